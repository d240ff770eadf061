/* The replay in this process: what its two files share. Every function is called with the replay's mutex held. */
#ifndef NR_CLIENT_LOCAL_H
#define NR_CLIENT_LOCAL_H

#include "runtime.h"

struct nr_local {
    struct nr_replay replay; /* first */
    struct nr_engine *engine;
    struct nr_checkpointer *checkpointer;
    struct nr_sample *first_waiting, **last_waiting; /* samples not drawn yet, by age */
    uint32_t blocked_actors;       /* actors with committed steps or items that wait */
    uint32_t publications;         /* that wait: sleepers look again soon */
    bool leaving;                  /* a sample waits for items that are too old to be gone */
    uint32_t looks;                /* histograms being counted: sleepers look again at once */
    uint8_t passed[NR_MAX_TABLES]; /* scratch of local.c */
};

static inline struct nr_local *nr_local_of(const struct nr_replay *replay)
{
    return (struct nr_local *)replay;
}

/* Something changed in the engine: tries again what waits. */
void nr_local_advance(struct nr_local *local, uint64_t now);
/* Goes on with resets, one quantum; what waited for them is tried when they are over. */
void nr_local_leave(struct nr_local *local, uint64_t now);

/* local_operation.c; as in struct nr_backend */
int nr_local_operation_start(struct nr_operation *operation, uint64_t now);
int nr_local_operation_poll(struct nr_operation *operation, uint64_t now);
void nr_local_operation_end(struct nr_operation *operation);

#endif
