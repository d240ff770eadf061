/*
 * Items that leave because they have become too old: by the time since their insertion, or by the publications of a parameter set
 * since the one that they were made with. They leave before a draw, so that every draw is from exactly the items that are not
 * too old; a call that finds more to do than it may spend tells its caller to wait, and nr_engine_maintain goes on with it.
 *
 * By age the table's own order serves: it is that of insertion, so those due stand at its head, whatever the remover. By version
 * items hang in a list for each of the last publications; a new publication moves whole lists to the one of those that are due. The
 * lists are built (by a scan in quanta) when the limit is set, so that a table without one pays a branch for them.
 */
#ifndef NR_ENGINE_EXPIRE_H
#define NR_ENGINE_EXPIRE_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/order.h"

struct nr_table;

enum {
    /* What one call of a draw or an insert may spend, in about a memory access: well below a millisecond. */
    NR_EXPIRE_QUANTUM = 8192,
};

struct nr_expiry {
    uint64_t max_age;     /* ns; 0: no limit */
    uint64_t seen;        /* publications of the set when the lists were last moved */
    uint64_t kept;        /* items of publications below it are due */
    struct nr_link *links; /* by slot; then the heads of the lists of publication p, at slots + p % NR_MAX_VERSIONS; then that
                              of those that are due, as far as is known; circular. NULL: items have no version */
    uint32_t slots;       /* of the table */
    uint32_t versions;    /* newest publications whose items stay; 0: no limit, and nothing is in lists */
    uint32_t scanned;     /* the items of slots below it are in lists; NR_NONE: all are */
    uint32_t set;         /* index: parameter set */
    uint32_t offset;      /* bytes into an item's columns where its version stands */
};

/* Whether items of the table's configuration have a version that its set gives. */
bool nr_expiry_versioned(const struct nr_table_config *config, uint32_t sets);
/* `limits` are those of the configuration, which is valid. */
void nr_expiry_init(struct nr_expiry *expiry, struct nr_arena *arena, const struct nr_table_config *config, uint32_t sets);
/* Whether the limits by age and version are such as nr_expire_configure takes. */
bool nr_expire_limits_valid(const struct nr_table *table, const struct nr_limits *limits);
/* Puts the limits by age and version in force on a live table. What has not left yet is judged by them alone. */
void nr_expire_configure(struct nr_engine *engine, struct nr_table *table, const struct nr_limits *limits);

/* Anything to look at? */
static inline bool nr_expiry_limited(const struct nr_expiry *expiry)
{
    return expiry->max_age != 0 || expiry->versions != 0;
}

/* Lets items leave that are due at `now`, while *budget, which is lowered by what it cost, lasts. True: none that is due is left. */
bool nr_expire(struct nr_engine *engine, struct nr_table *table, uint64_t now, uint32_t *budget);

/* Whether the item of a slot is due at `now`: for those who look at single items and cannot wait. */
bool nr_expire_due(const struct nr_engine *engine, const struct nr_table *table, uint32_t slot, uint64_t now);
/* Whether an item with these columns would be due as soon as it came. After nr_expire. */
bool nr_expire_late(const struct nr_engine *engine, const struct nr_table *table, const void *columns);

/* The item of the slot has come (its columns are in the record); it leaves. */
void nr_expire_link(const struct nr_engine *engine, struct nr_table *table, uint32_t slot);
void nr_expire_unlink(struct nr_expiry *expiry, uint32_t slot);

#endif
