/*
 * The order in which items leave a table that is full, or whose store has no step free: one of the constant operation tables below,
 * and its state. A remover knows slots, raw priorities and versions. The table owns it and tells it of every item that comes and
 * leaves, drawable or withheld, and of every changed priority.
 */
#ifndef NR_ENGINE_REMOVER_H
#define NR_ENGINE_REMOVER_H

#include "engine/dense.h"
#include "engine/engine.h"
#include "engine/heap.h"
#include "engine/order.h"
#include "engine/random.h"

struct nr_removal;

struct nr_remover_ops {
    void (*init)(struct nr_removal *remover, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots);
    void (*insert)(struct nr_removal *remover, uint32_t slot, double raw, uint64_t version); /* the newest; NULL: see the order */
    void (*remove)(struct nr_removal *remover, uint32_t slot);                               /* NULL: see the order */
    void (*update)(struct nr_removal *remover, uint32_t slot, double raw);                   /* NULL: priorities mean nothing */
    /* A walk over items in the order in which they should leave: any number of `next`, then `end`, and nothing in between.
     * NR_NONE: there is no further one. */
    uint32_t (*next)(struct nr_removal *remover, struct nr_random *random);
    void (*end)(struct nr_removal *remover);
    /* Counts in `held`, by slot, what it holds, and tells what is broken, or NULL. No function: it holds nothing of its own. */
    const char *(*audit)(const struct nr_removal *remover, uint8_t *held);
};

struct nr_removal {
    const struct nr_remover_ops *ops;
    const struct nr_order *order; /* the table's items, oldest first */
    uint32_t walked;              /* `next` of this walk so far; of FIFO the slot that it came to, or NR_NONE */
    uint32_t passed;              /* FIFO: up to this slot all items are leased, for walks that look for others; or NR_NONE */
    union {
        struct nr_dense uniform;
        struct {
            struct nr_heap items;
            uint64_t next; /* sequence */
        } heap;
    };
};

extern const struct nr_remover_ops nr_remover_fifo;            /* first inserted first; the order is all it needs */
extern const struct nr_remover_ops nr_remover_uniform;         /* any, all alike */
extern const struct nr_remover_ops nr_remover_lowest_priority; /* the least raw priority, zero included */
extern const struct nr_remover_ops nr_remover_oldest;          /* the least version */

/* The operations of an enum nr_remover; NULL for none. */
const struct nr_remover_ops *nr_remover_find(uint32_t remover);

static inline void nr_remover_init(struct nr_removal *remover, struct nr_arena *arena, const struct nr_table_config *config,
                                   const struct nr_order *order, uint32_t slots)
{
    remover->ops = nr_remover_find(config->remover);
    remover->order = order;
    remover->walked = remover->ops == &nr_remover_fifo ? NR_NONE : 0;
    remover->passed = NR_NONE;
    remover->ops->init(remover, arena, config, slots);
}

/* Where an item stands in an array whose order matters to draws, and how it gets there again: it changes places. NR_NONE: none. */
static inline uint32_t nr_remover_position(const struct nr_removal *remover, uint32_t slot)
{
    return remover->ops == &nr_remover_uniform ? remover->uniform.positions[slot] : NR_NONE;
}

static inline void nr_remover_move(struct nr_removal *remover, uint32_t slot, uint32_t position)
{
    if (remover->ops == &nr_remover_uniform && position < remover->uniform.size)
        nr_dense_swap(&remover->uniform, remover->uniform.positions[slot], position);
}

/* The item that leaves first; only when there is one. */
static inline uint32_t nr_remover_first(struct nr_removal *remover, struct nr_random *random)
{
    uint32_t slot = remover->ops->next(remover, random);

    remover->ops->end(remover);
    return slot;
}

#endif
