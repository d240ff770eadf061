/*
 * The file around a checkpoint's records (docs/checkpoint.md): heads and checksums of blocks, and reading a whole file, to look at
 * it or to fill an engine. Blocking file I/O: for control threads and the start, never for a loop.
 */
#ifndef NR_LOOP_CHECKPOINT_FILE_H
#define NR_LOOP_CHECKPOINT_FILE_H

#include "../engine/checkpoint_format.h"
#include "../engine/restore.h"

struct nr_checkpoint_file {
    int error;        /* errno of NR_SYSTEM; else 0 */
    uint64_t bytes;   /* of the file */
    uint64_t offset;  /* of the block that a complaint is about */
    uint64_t blocks;  /* before the end */
    char *spec;       /* the writer's, with a zero behind it; nr_checkpoint_file_free frees it */
    uint64_t spec_bytes;
    char complaint[320];
    struct nr_restored restored;
};

struct nr_file_head nr_file_head(void);
/* `parts` are the payload. */
struct nr_block_head nr_block_head(uint32_t kind, uint32_t number, const struct nr_segment *parts, uint32_t count);

/* Looks through the whole file: NR_OK only when it could be restored as far as the file is concerned. NR_SYSTEM; NR_BAD_VERSION;
 * NR_MALFORMED: not whole, or not a checkpoint. */
int nr_checkpoint_inspect(const char *path, struct nr_checkpoint_file *file);
/* Fills a fresh engine; also NR_BAD_CONFIG. Unless NR_OK the engine must be destroyed. */
int nr_checkpoint_restore(const char *path, struct nr_engine *engine, const struct nr_restore_map *map,
                          struct nr_checkpoint_file *file);
void nr_checkpoint_file_free(struct nr_checkpoint_file *file);

#endif
