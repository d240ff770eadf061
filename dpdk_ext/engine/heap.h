/*
 * The least of many slots by (key, sequence), kept by a heap with four children a node. Sequences break ties, so no two entries are
 * equal and the order in which slots come out never depends on how the heap came about. Whoever wants the largest complements keys.
 */
#ifndef NR_ENGINE_HEAP_H
#define NR_ENGINE_HEAP_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/arena.h"
#include "engine/slab.h"

#define NR_HEAP_FANOUT 4

struct nr_heap_entry {
    uint64_t key;
    uint64_t sequence; /* unique in its heap */
    uint32_t slot;
    uint32_t pad; /* 0 */
};

struct nr_heap {
    struct nr_heap_entry *entries; /* no child before its parent; behind `size` what was set aside, the last set aside first */
    uint32_t *positions;           /* by slot: its entry's index plus 1, so that 0 can mean that it is not there */
    uint32_t size;                 /* entries that are not set aside */
};

/* Room for `capacity` entries of slots below `slots`. */
void nr_heap_init(struct nr_heap *heap, struct nr_arena *arena, uint32_t slots, uint32_t capacity);

/* All O(log size). Nothing but first, set_aside and put_back may be called while entries are set aside. */
void nr_heap_push(struct nr_heap *heap, uint32_t slot, uint64_t key, uint64_t sequence); /* a slot that is not there */
void nr_heap_remove(struct nr_heap *heap, uint32_t slot);                                /* one that is */
void nr_heap_change(struct nr_heap *heap, uint32_t slot, uint64_t key);                  /* its sequence stays */
/* Takes the first out for a while; the next one is first. */
void nr_heap_set_aside(struct nr_heap *heap);
/* Puts the `count` entries that are aside back, all of them. */
void nr_heap_put_back(struct nr_heap *heap, uint32_t count);

static inline bool nr_heap_has(const struct nr_heap *heap, uint32_t slot)
{
    return heap->positions[slot] != 0;
}

static inline const struct nr_heap_entry *nr_heap_entry(const struct nr_heap *heap, uint32_t slot)
{
    return &heap->entries[heap->positions[slot] - 1];
}

/* The entry that comes first; only when size > 0. */
static inline const struct nr_heap_entry *nr_heap_first(const struct nr_heap *heap)
{
    return &heap->entries[0];
}

static inline bool nr_heap_before(const struct nr_heap_entry *a, const struct nr_heap_entry *b)
{
    return a->key != b->key ? a->key < b->key : a->sequence < b->sequence;
}

/* A raw priority as a key: finite, >= 0 and never -0.0, so that its bits rise with it. */
static inline uint64_t nr_heap_key(double raw)
{
    uint64_t bits;

    memcpy(&bits, &raw, sizeof(bits));
    return bits;
}

/* Counts what it holds in `held`, by slot, and tells what is broken, or NULL. */
const char *nr_heap_audit(const struct nr_heap *heap, uint8_t *held);

#endif
