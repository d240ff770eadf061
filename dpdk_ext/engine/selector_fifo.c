/* Gives the oldest items, in their order, each with certainty. The table's order is all it needs. Every item weighs one. */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, uint32_t slots, uint32_t capacity, double exponent)
{
    (void)selector;
    (void)arena;
    (void)slots;
    (void)capacity;
    (void)exponent;
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)selector;
    (void)slot;
    (void)raw;
    (void)saturated;
}

static void update(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    (void)selector;
    (void)count;
    (void)slots;
    (void)raws;
    (void)saturated;
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    (void)selector;
    (void)slot;
}

static void prefetch(const struct nr_selector *selector, uint32_t slot)
{
    (void)selector;
    (void)slot;
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)raw;
    return selector->order->size > 0 ? NR_PRIORITY_UNIT : 0;
}

static uint64_t total(const struct nr_selector *selector)
{
    return selector->order->size * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, uint32_t count, struct nr_draw_entry *drawn)
{
    uint32_t slot = selector->order->oldest;

    (void)random;
    for (uint32_t i = 0; i < count; i++) {
        drawn[i].key = slot;
        drawn[i].probability = 1.0;
        slot = selector->order->links[slot].after;
    }
}

const struct nr_selector_ops nr_selector_fifo = {
    .distinct = true,
    .init = init,
    .insert = insert,
    .remove = drop,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
};
