/* Draws all items alike, with replacement. Every item weighs one, whatever its priority. */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_dense_init(&selector->uniform, arena, slots, config->capacity);
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)raw;
    (void)saturated;
    nr_dense_add(&selector->uniform, slot);
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    nr_dense_remove(&selector->uniform, slot);
}

static uint32_t position(const struct nr_selector *selector, uint32_t slot)
{
    return selector->uniform.positions[slot];
}

static void move(struct nr_selector *selector, uint32_t slot, uint32_t target)
{
    nr_dense_swap(&selector->uniform, selector->uniform.positions[slot], target);
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)raw;
    return selector->uniform.size > 0 ? NR_PRIORITY_UNIT : 0;
}

static uint64_t total(const struct nr_selector *selector)
{
    return selector->uniform.size * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    double probability = 1.0 / selector->uniform.size;

    for (uint32_t i = 0; i < turn.count; i++) {
        drawn[i].key = selector->uniform.slots[nr_random_below(random, selector->uniform.size)];
        drawn[i].probability = probability;
    }
}

static const char *audit(const struct nr_selector *selector, uint8_t *held)
{
    return nr_dense_audit(&selector->uniform, held);
}

const struct nr_selector_ops nr_selector_uniform = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .leaf = leaf,
    .total = total,
    .position = position,
    .move = move,
    .sample = sample,
    .audit = audit,
};
