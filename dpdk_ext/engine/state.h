/* The engine as a whole: what its public functions, which stand in several files, share. */
#ifndef NR_ENGINE_STATE_H
#define NR_ENGINE_STATE_H

#include "engine/arena.h"
#include "engine/engine.h"
#include "engine/random.h"
#include "engine/stream.h"
#include "engine/table.h"

/* One set of parameters. The buffer that is not `current` is the older: it is read until a publisher takes it. */
struct nr_set {
    struct {
        uint8_t *bytes;   /* `room` of them */
        uint64_t version; /* 0: holds nothing readable */
        uint64_t length;  /* bytes of the publication */
        uint64_t read_at; /* ns; when it was last read, only when `was_read` */
        bool was_read;    /* since it was filled */
    } buffers[2];
    uint64_t room;      /* bytes of a buffer */
    uint64_t counter;   /* publications */
    uint64_t writer;    /* who fills the older buffer, or 0 */
    uint64_t wrote_at;  /* ns; of the writer's last call */
    uint64_t written;   /* bytes of this publication so far */
    uint64_t wanted_at; /* ns; since when a publisher waits for readers, only when `wanted` */
    bool wanted;        /* a publisher was told to wait for readers */
    uint8_t current;    /* index of the buffer with the present version */
};

enum nr_saving_stage {
    NR_SAVING_NONE, /* no checkpoint is running */
    NR_SAVING_CLEAR_STEPS,
    NR_SAVING_CLEAR_STREAMS,
    NR_SAVING_CUT, /* of all stores, before anything is written */
    NR_SAVING_ITEMS,
    NR_SAVING_SLOTS,
    NR_SAVING_STREAMS,           /* of each store */
    NR_SAVING_DONE,
};

/* The running checkpoint: where it is. Each table holds its own cursor over its items. */
struct nr_saving {
    uint32_t stage;      /* enum nr_saving_stage */
    uint32_t store;      /* index; the stage is at */
    uint32_t table;      /* index; SLOTS is at, or NR_NONE */
    uint32_t at;         /* slab place, slot or stream place that comes next */
    uint32_t generation; /* of the stream whose ring is being written */
    bool within;         /* the ring of stream place `at` is being written, */
    uint64_t number;     /* and this step is its next, */
    uint64_t end;        /* below the head that the file has */
    uint64_t estimate;   /* bytes, reckoned at the cut */
    uint64_t steps, items, streams, rings; /* records written */
};

struct nr_engine {
    struct nr_arena arena; /* holds everything, this included */
    struct nr_store *stores;
    struct nr_table *tables;
    struct nr_set *sets;
    struct nr_streams streams;
    struct nr_saving saving; /* a checkpoint */
    struct nr_random random; /* of the draws */
    uint64_t lease_ns;       /* ns a draw may hold its steps before it can be reclaimed */
    uint64_t start_version;  /* of parameters, before the first publication */
    uint64_t earlier_version; /* the same of the engine that wrote the restored checkpoint, or 0 */
    uint64_t earlier_counter; /* the most publications of a set that this one had */
    uint32_t store_count;
    uint32_t table_count;
    uint32_t set_count;
    uint32_t resetting; /* tables whose items are leaving */
    uint32_t maintained; /* index of the table that nr_engine_maintain looks at next */
};

static inline struct nr_store *nr_engine_store_of(const struct nr_engine *engine, const struct nr_table *table)
{
    return &engine->stores[table->store];
}

static inline void nr_wait_clear(struct nr_wait *wait, uint32_t table)
{
    *wait = (struct nr_wait){.reason = 0, .table = table};
}

static inline int nr_wait_for(struct nr_wait *wait, int reason, uint64_t have, uint64_t need)
{
    wait->reason = reason;
    wait->have = have;
    wait->need = need;
    return reason;
}

#endif
