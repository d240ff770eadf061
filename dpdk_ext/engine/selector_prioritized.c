/* Draws by priority: a sum tree whose leaves are the items' weights. Either each draw from the whole mass, or (stratified) draw i of
 * n from the i-th of n parts of it. */
#include "engine/selector.h"

#define BATCH 64 /* draws between two looks at the masses */

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_sum_tree_init(&selector->prioritized.tree, arena, slots);
    nr_priority_init(&selector->prioritized.priority, config->exponent, config->capacity);
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

/* The items that masses fall on, and their share of the whole. */
static inline void find(const struct nr_sum_tree *tree, uint32_t count, const uint64_t *masses, struct nr_draw_entry *drawn)
{
    double sum = (double)tree->total;
    uint32_t slots[BATCH];

    nr_sum_tree_find(tree, count, masses, slots);
    for (uint32_t i = 0; i < count; i++) {
        drawn[i].key = slots[i];
        drawn[i].probability = (double)nr_sum_tree_leaf(tree, slots[i]) / sum;
    }
}

static void sample(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    const struct nr_sum_tree *tree = &selector->prioritized.tree;

    while (turn.count > 0) {
        uint32_t batch = turn.count < BATCH ? turn.count : BATCH;
        uint64_t masses[BATCH];

        for (uint32_t i = 0; i < batch; i++)
            masses[i] = nr_random_below(random, tree->total);
        find(tree, batch, masses, drawn);
        drawn += batch;
        turn.count -= batch;
    }
}

/* i x total + r, i below n and r below the total, takes every value below n x total alike over the n draws; each unit of mass is n
 * of these values, so it is hit as often as any other, and a leaf of it n x leaf / total times in the mean. */
static void sample_stratified(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn,
                              struct nr_draw_entry *drawn)
{
    const struct nr_sum_tree *tree = &selector->prioritized.tree;

    while (turn.count > 0) {
        uint32_t batch = turn.count < BATCH ? turn.count : BATCH;
        uint64_t masses[BATCH];

        for (uint32_t i = 0; i < batch; i++) {
            unsigned __int128 place = (unsigned __int128)(turn.first + i) * tree->total + nr_random_below(random, tree->total);

            masses[i] = (uint64_t)(place / turn.of);
        }
        find(tree, batch, masses, drawn);
        drawn += batch;
        turn.first += batch;
        turn.count -= batch;
    }
}

const struct nr_selector_ops nr_selector_prioritized = {
    .weighted = true,
    .init = init,
    .insert = insert,
    .remove = drop,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
};

const struct nr_selector_ops nr_selector_stratified = {
    .weighted = true,
    .init = init,
    .insert = insert,
    .remove = drop,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample_stratified,
};
