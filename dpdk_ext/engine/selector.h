/*
 * How a table chooses the items it gives: one of the constant operation tables below, and its state. A selector knows slots and
 * raw priorities, never items. The table owns it and tells it of every insert, removal and changed priority, and withholds from it
 * the items that were drawn as often as they may be.
 */
#ifndef NR_ENGINE_SELECTOR_H
#define NR_ENGINE_SELECTOR_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dense.h"
#include "engine/heap.h"
#include "engine/order.h"
#include "engine/priority.h"
#include "engine/random.h"
#include "engine/sum_tree.h"

enum { NR_UPDATES_AT_ONCE = 32 };

struct nr_selector;

/* Of which draws of one call `sample` is asked for. */
struct nr_turn {
    uint32_t first; /* the number of its first, from 0 */
    uint32_t count; /* how many */
    uint32_t of;    /* all draws of the call */
};

struct nr_selector_ops {
    bool distinct; /* the draws of one call are different items, and follow from what is in the table alone */
    bool weighted; /* leaves follow from priorities; else whatever can be drawn weighs one, NR_PRIORITY_UNIT */
    void (*init)(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots);
    void (*insert)(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated); /* a new item, the newest */
    void (*remove)(struct nr_selector *selector, uint32_t slot); /* a drawable item, for good or withheld */
    /* A withheld item is drawable again, and stands where it stood. NULL: as if it were new. */
    void (*show)(struct nr_selector *selector, uint32_t slot, double raw);
    /* At most NR_UPDATES_AT_ONCE changed priorities of drawable items, in order. NULL: they mean nothing to it. */
    void (*update)(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated);
    void (*prefetch)(const struct nr_selector *selector, uint32_t slot); /* what update will touch; NULL: nothing */
    /* The leaf of a raw priority, and the sum of the leaves of all drawable items, in units. */
    uint64_t (*leaf)(const struct nr_selector *selector, double raw);
    uint64_t (*total)(const struct nr_selector *selector);
    /* Where the item stands in an array whose order matters to draws, and how it gets there again: it changes places. NULL: none. */
    uint32_t (*position)(const struct nr_selector *selector, uint32_t slot);
    void (*move)(struct nr_selector *selector, uint32_t slot, uint32_t position); /* position < items */
    /* Draws, one after the other: probabilities, and slots where the table then puts the keys. Only when total > 0 and, for
     * `distinct`, count <= total / NR_PRIORITY_UNIT. */
    void (*sample)(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn);
    /* A draw was refunded that was made in pass `pass`, of a drawable item. NULL: draws leave nothing behind. */
    void (*give_back)(struct nr_selector *selector, uint32_t slot, uint64_t pass);
    /* For audits: counts in `held`, by slot, what it could draw, and tells what is broken in its own structures, or NULL. Without
     * one for `weighted`, whose tree is looked at. */
    const char *(*audit)(const struct nr_selector *selector, uint8_t *held);
};

struct nr_selector {
    const struct nr_selector_ops *ops;
    union {
        struct { /* selector_prioritized.c */
            struct nr_sum_tree tree; /* leaf = slot */
            struct nr_priority priority;
        } prioritized;
        struct nr_dense uniform; /* selector_uniform.c */
        struct { /* selector_order.c */
            struct nr_order order;    /* oldest first; without those that were withheld and came back */
            struct nr_heap returned;  /* these, by sequence: none where no item is ever withheld */
            uint64_t *sequences;      /* by slot: of its item's insertion */
            uint64_t next;            /* sequence */
        } order;
        struct { /* selector_heap.c, selector_top.c */
            struct nr_heap best;   /* what is drawn from: the first is drawn first, but for top_k, where it is the worst */
            struct nr_heap rest;   /* top_k: the others of positive priority, the best first */
            uint64_t *sequences;   /* by slot: of its item's insertion */
            uint64_t next;         /* sequence */
            uint32_t top;          /* top_k: entries of `best` at most */
        } heap;
        struct { /* selector_pass.c */
            struct nr_dense items;  /* the first `left` are not drawn yet in this pass */
            uint64_t *drawn_in;     /* by slot: the pass that its item was last drawn in, 0 for none */
            uint64_t pass;          /* the running one, from 1 */
            uint64_t passes;        /* the last; 0: endless */
            uint32_t left;
        } pass;
    };
};

extern const struct nr_selector_ops nr_selector_prioritized;         /* by priority^exponent, with replacement */
extern const struct nr_selector_ops nr_selector_stratified;          /* the same, each draw of a call from its part of the mass */
extern const struct nr_selector_ops nr_selector_uniform;             /* all alike, with replacement */
extern const struct nr_selector_ops nr_selector_fifo;                /* the oldest first; each call starts at the oldest */
extern const struct nr_selector_ops nr_selector_lifo;                /* the newest first; each call starts at the newest */
extern const struct nr_selector_ops nr_selector_max_heap;            /* the largest raw priority first */
extern const struct nr_selector_ops nr_selector_min_heap;            /* the least positive one first */
extern const struct nr_selector_ops nr_selector_top;                 /* the `top` largest alike, with replacement */
extern const struct nr_selector_ops nr_selector_without_replacement; /* all alike, each once in a pass */

/* The operations of an enum nr_sampler; NULL for none. */
const struct nr_selector_ops *nr_selector_find(uint32_t sampler);

/* Slots, of which at most the table's capacity hold items at once. */
static inline void nr_selector_init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config,
                                    uint32_t slots)
{
    selector->ops = nr_selector_find(config->sampler);
    selector->ops->init(selector, arena, config, slots);
}

static inline void nr_selector_show(struct nr_selector *selector, uint32_t slot, double raw)
{
    uint64_t saturated = 0; /* not counted again */

    if (selector->ops->show != NULL)
        selector->ops->show(selector, slot, raw);
    else
        selector->ops->insert(selector, slot, raw, &saturated);
}

/* Drawable items, where every one of them weighs one. */
static inline uint64_t nr_selector_drawable(const struct nr_selector *selector)
{
    return selector->ops->total(selector) >> NR_PRIORITY_UNIT_BITS;
}

/* The running pass, and that in which the next draw will be made; 0 for selectors without passes. */
uint64_t nr_selector_running(const struct nr_selector *selector);
uint64_t nr_selector_pass(const struct nr_selector *selector);
/* Draws that its passes still allow; UINT64_MAX without passes or without an end to them. */
uint64_t nr_selector_allowed(const struct nr_selector *selector);
/* The pass that an item was last drawn in; 0 for none, and for selectors without passes. */
uint64_t nr_selector_drawn_in(const struct nr_selector *selector, uint32_t slot);
/* For a restore, when the items are there and none is drawn: the running pass, and that an item was drawn in it. */
void nr_selector_resume(struct nr_selector *selector, uint64_t pass);
void nr_selector_drawn(struct nr_selector *selector, uint32_t slot);
/* Takes the `count` draws just made back: `pass` ran before them, and the `first` first of them are of it. Their keys are slots, all
 * drawable. */
void nr_selector_rewind(struct nr_selector *selector, uint64_t pass, uint32_t first, uint32_t count,
                        const struct nr_draw_entry *drawn);

#endif
