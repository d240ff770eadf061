/* Draws all items alike: a dense array of slots, and where each slot stands in it. Every item weighs one. */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, uint32_t slots, uint32_t capacity, double exponent)
{
    (void)exponent;
    selector->uniform.slots = nr_arena_take(arena, capacity, sizeof(uint32_t));
    selector->uniform.positions = nr_arena_take(arena, slots, sizeof(uint32_t));
    selector->uniform.size = 0;
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)raw;
    (void)saturated;
    selector->uniform.positions[slot] = selector->uniform.size;
    selector->uniform.slots[selector->uniform.size++] = slot;
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    /* The last takes the place of the one that leaves. */
    uint32_t position = selector->uniform.positions[slot];
    uint32_t last = selector->uniform.slots[--selector->uniform.size];

    selector->uniform.slots[position] = last;
    selector->uniform.positions[last] = position;
}

static uint32_t position(const struct nr_selector *selector, uint32_t slot)
{
    return selector->uniform.positions[slot];
}

static void move(struct nr_selector *selector, uint32_t slot, uint32_t target)
{
    uint32_t from = selector->uniform.positions[slot], other = selector->uniform.slots[target];

    selector->uniform.slots[from] = other;
    selector->uniform.positions[other] = from;
    selector->uniform.slots[target] = slot;
    selector->uniform.positions[slot] = target;
}

static void update(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    (void)selector;
    (void)count;
    (void)slots;
    (void)raws;
    (void)saturated;
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
    return selector->uniform.size * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, uint32_t count, struct nr_draw_entry *drawn)
{
    double probability = 1.0 / selector->uniform.size;

    for (uint32_t i = 0; i < count; i++) {
        drawn[i].key = selector->uniform.slots[nr_random_below(random, selector->uniform.size)];
        drawn[i].probability = probability;
    }
}

const struct nr_selector_ops nr_selector_uniform = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .position = position,
    .move = move,
    .sample = sample,
};
