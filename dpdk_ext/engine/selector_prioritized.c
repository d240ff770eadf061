/* Draws by priority: a sum tree whose leaves are the items' weights. */
#include "engine/selector.h"

#define BATCH 64 /* draws between two looks at the masses */

static void init(struct nr_selector *selector, struct nr_arena *arena, uint32_t slots, uint32_t capacity, double exponent)
{
    nr_sum_tree_init(&selector->prioritized.tree, arena, slots);
    nr_priority_init(&selector->prioritized.priority, exponent, capacity);
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    nr_sum_tree_set(&selector->prioritized.tree, slot, nr_priority_leaf(&selector->prioritized.priority, raw, saturated));
}

static void update(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    const struct nr_priority *priority = &selector->prioritized.priority;
    double weights[NR_UPDATES_AT_ONCE];

    nr_priority_weights(priority, count, raws, weights);
    for (uint32_t i = 0; i < count; i++)
        nr_sum_tree_set(&selector->prioritized.tree, slots[i], nr_priority_round(priority, raws[i], weights[i], saturated));
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    nr_sum_tree_set(&selector->prioritized.tree, slot, 0);
}

static void prefetch(const struct nr_selector *selector, uint32_t slot)
{
    nr_sum_tree_prefetch(&selector->prioritized.tree, slot);
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    uint64_t saturated = 0;

    return nr_priority_leaf(&selector->prioritized.priority, raw, &saturated);
}

static uint64_t total(const struct nr_selector *selector)
{
    return selector->prioritized.tree.total;
}

static void sample(struct nr_selector *selector, struct nr_random *random, uint32_t count, struct nr_draw_entry *drawn)
{
    const struct nr_sum_tree *tree = &selector->prioritized.tree;
    double sum = (double)tree->total;

    while (count > 0) {
        uint32_t batch = count < BATCH ? count : BATCH;
        uint64_t masses[BATCH];
        uint32_t slots[BATCH];

        for (uint32_t i = 0; i < batch; i++)
            masses[i] = nr_random_below(random, tree->total);
        nr_sum_tree_find(tree, batch, masses, slots);
        for (uint32_t i = 0; i < batch; i++) {
            drawn[i].key = slots[i];
            drawn[i].probability = (double)nr_sum_tree_leaf(tree, slots[i]) / sum;
        }
        drawn += batch;
        count -= batch;
    }
}

const struct nr_selector_ops nr_selector_prioritized = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
};
