/*
 * Filling a fresh engine from a checkpoint's records. The payloads of all DATA blocks are given twice, in their order and the very
 * same: first to be looked through, then, when the file has proved whole, to be taken. Today's configuration holds: smaller tables keep the newest
 * items, and what today's engine has no place for is counted. An engine whose restore failed is of no use: destroy it.
 *
 * A restore belongs to the start: unlike the engine it allocates, 8 bytes for each step and 26 for each slot of the file.
 */
#ifndef NR_ENGINE_RESTORE_H
#define NR_ENGINE_RESTORE_H

#include "engine/engine.h"

/* Which of today's stores and tables the file's are, by the file's index; UINT32_MAX: none. */
struct nr_restore_map {
    uint32_t stores[NR_MAX_STORES];
    uint32_t tables[NR_MAX_TABLES];
    uint32_t sets[NR_MAX_SETS];
};

struct nr_restored_table {
    uint64_t items;    /* in the file */
    uint64_t restored; /* of them */
    uint64_t capacity; /* of the table when the file was made */
    uint32_t found;    /* 1: the file has the table, and the map names it */
    uint32_t keys;     /* 1: its items kept their keys */
};

struct nr_restored {
    uint64_t steps, items, streams; /* in the file */
    uint64_t streams_restored;
    struct nr_restored_table tables[NR_MAX_TABLES]; /* by today's index */
};

struct nr_restore;

/* NR_NO_MEMORY. The engine is fresh: nothing has been done with it. */
struct nr_restore *nr_restore_open(struct nr_engine *engine, const struct nr_restore_map *map, uint64_t now, int *status);
/* Without an engine: only looks through what a file holds. */
struct nr_restore *nr_restore_inspect(int *status);
/* The next payload of the first, and of the second, time. NR_MALFORMED, NR_NO_MEMORY, NR_BAD_CONFIG (the file's steps, columns or
 * windows do not fit today's): nr_restore_complaint says what and where. */
int nr_restore_scan(struct nr_restore *restore, const void *payload, uint64_t length);
int nr_restore_scanned(struct nr_restore *restore); /* all was given once */
int nr_restore_take(struct nr_restore *restore, const void *payload, uint64_t length);
int nr_restore_finish(struct nr_restore *restore);
/* What is in the file after the scan, and what became of it after the end. Inspecting: tables by the file's index. */
void nr_restore_report(const struct nr_restore *restore, struct nr_restored *restored);
const char *nr_restore_complaint(const struct nr_restore *restore);
void nr_restore_close(struct nr_restore *restore);

#endif
