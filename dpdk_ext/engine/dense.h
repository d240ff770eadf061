/*
 * A set of slots as a dense array: any one of it in O(1). The place of each slot in the array is known, so it leaves in O(1) too,
 * the last taking its place.
 */
#ifndef NR_ENGINE_DENSE_H
#define NR_ENGINE_DENSE_H

#include <stddef.h>
#include <stdint.h>

#include "engine/arena.h"

struct nr_dense {
    uint32_t *slots;     /* those of the set, in no order */
    uint32_t *positions; /* by slot: where it stands in `slots`, if it is in the set */
    uint32_t size;       /* of `slots` */
};

static inline void nr_dense_init(struct nr_dense *dense, struct nr_arena *arena, uint32_t slots, uint32_t capacity)
{
    dense->slots = nr_arena_take(arena, capacity, sizeof(uint32_t));
    dense->positions = nr_arena_take(arena, slots, sizeof(uint32_t));
    dense->size = 0;
}

/* Places `a` and `b` change their slots. */
static inline void nr_dense_swap(struct nr_dense *dense, uint32_t a, uint32_t b)
{
    uint32_t slot_a = dense->slots[a], slot_b = dense->slots[b];

    dense->slots[a] = slot_b;
    dense->positions[slot_b] = a;
    dense->slots[b] = slot_a;
    dense->positions[slot_a] = b;
}

static inline void nr_dense_add(struct nr_dense *dense, uint32_t slot)
{
    dense->positions[slot] = dense->size;
    dense->slots[dense->size++] = slot;
}

static inline void nr_dense_remove(struct nr_dense *dense, uint32_t slot)
{
    uint32_t position = dense->positions[slot];
    uint32_t last = dense->slots[--dense->size];

    dense->slots[position] = last;
    dense->positions[last] = position;
}

/* Counts what it holds in `held`, by slot, and tells what is broken, or NULL. */
static inline const char *nr_dense_audit(const struct nr_dense *dense, uint8_t *held)
{
    for (uint32_t i = 0; i < dense->size; i++) {
        if (dense->positions[dense->slots[i]] != i)
            return "a position in a dense set";
        held[dense->slots[i]]++;
    }
    return NULL;
}

#endif
