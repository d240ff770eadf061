/*
 * How a table chooses the items it gives: one of the constant operation tables below, and its state. A selector knows slots and
 * raw priorities, never items. The table owns it and tells it of every insert, removal and changed priority.
 */
#ifndef NR_ENGINE_SELECTOR_H
#define NR_ENGINE_SELECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/order.h"
#include "engine/priority.h"
#include "engine/random.h"
#include "engine/sum_tree.h"

enum { NR_UPDATES_AT_ONCE = 32 };

struct nr_selector;

struct nr_selector_ops {
    bool distinct; /* the draws of one call are different items, so there must be as many */
    void (*init)(struct nr_selector *selector, struct nr_arena *arena, uint32_t slots, uint32_t capacity, double exponent);
    void (*insert)(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated);
    void (*remove)(struct nr_selector *selector, uint32_t slot);
    /* At most NR_UPDATES_AT_ONCE changed priorities, in order. */
    void (*update)(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated);
    void (*prefetch)(const struct nr_selector *selector, uint32_t slot); /* what update will touch */
    /* The leaf of a raw priority, and the sum of the leaves of all items, in units. */
    uint64_t (*leaf)(const struct nr_selector *selector, double raw);
    uint64_t (*total)(const struct nr_selector *selector);
    /* Where the item stands in an array whose order matters to draws, and how it gets there again: it changes places. NULL: none. */
    uint32_t (*position)(const struct nr_selector *selector, uint32_t slot);
    void (*move)(struct nr_selector *selector, uint32_t slot, uint32_t position); /* position < items */
    /* Draws, one after the other: probabilities, and slots where the table then puts the keys. Only when total > 0 and, for
     * `distinct`, count <= size. */
    void (*sample)(struct nr_selector *selector, struct nr_random *random, uint32_t count, struct nr_draw_entry *drawn);
};

struct nr_selector {
    const struct nr_selector_ops *ops;
    const struct nr_order *order; /* the table's items, oldest first */
    union {
        struct {
            struct nr_sum_tree tree; /* leaf = slot */
            struct nr_priority priority;
        } prioritized;
        struct {
            uint32_t *slots;     /* the items' slots, dense, in no order */
            uint32_t *positions; /* by slot: where it stands in `slots` */
            uint32_t size;       /* of `slots` */
        } uniform;
    };
};

extern const struct nr_selector_ops nr_selector_prioritized; /* by priority^exponent, with replacement */
extern const struct nr_selector_ops nr_selector_uniform;     /* all alike, with replacement */
extern const struct nr_selector_ops nr_selector_fifo;        /* the oldest first; each call starts at the oldest */

/* The operations of an enum nr_sampler; NULL for none. */
const struct nr_selector_ops *nr_selector_find(uint32_t sampler);

/* Slots, of which at most `capacity` hold items at once. */
static inline void nr_selector_init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_order *order,
                                    uint32_t sampler, uint32_t slots, uint32_t capacity, double exponent)
{
    selector->ops = nr_selector_find(sampler);
    selector->order = order;
    selector->ops->init(selector, arena, slots, capacity, exponent);
}

#endif
