#include "engine/sum_tree.h"

#define LOCKSTEP 16 /* descents at a time: enough to hide a cache miss, few enough for the line fill buffers */

void nr_sum_tree_init(struct nr_sum_tree *tree, struct nr_arena *arena, uint32_t leaves)
{
    uint64_t entries = leaves;

    tree->leaves = leaves;
    tree->total = 0;
    tree->height = 0;
    do {
        uint64_t nodes = (entries + NR_SUM_TREE_FANOUT - 1) / NR_SUM_TREE_FANOUT;

        tree->levels[tree->height++] = nr_arena_take(arena, nodes, NR_CACHE_LINE);
        entries = nodes;
    } while (entries > 1);
}

void nr_sum_tree_find(const struct nr_sum_tree *tree, uint32_t count, const uint64_t *masses, uint32_t *leaves)
{
    while (count > 0) {
        uint32_t batch = count < LOCKSTEP ? count : LOCKSTEP;
        uint64_t rest[LOCKSTEP];

        for (uint32_t j = 0; j < batch; j++) {
            rest[j] = masses[j];
            leaves[j] = 0;
        }
        for (uint32_t level = tree->height; level-- > 0;) {
            const uint64_t *sums = tree->levels[level], *below = level > 0 ? tree->levels[level - 1] : sums;

            for (uint32_t j = 0; j < batch; j++) {
                const uint64_t *node = &sums[(uint64_t)leaves[j] * NR_SUM_TREE_FANOUT];
                uint64_t before[NR_SUM_TREE_FANOUT] = {0}, mass = rest[j];
                uint32_t child = 0;

                /* Without branches: the child is the number of prefix sums that the mass reaches. A mass below the node's sum
                 * never falls on an empty child, since that one's prefix sum is reached with the one before it. */
                for (uint32_t i = 1; i < NR_SUM_TREE_FANOUT; i++) {
                    before[i] = before[i - 1] + node[i - 1];
                    child += mass >= before[i];
                }
                rest[j] = mass - before[child];
                leaves[j] = leaves[j] * NR_SUM_TREE_FANOUT + child;
                __builtin_prefetch(&below[(uint64_t)leaves[j] * (level > 0 ? NR_SUM_TREE_FANOUT : 1)]);
            }
        }
        count -= batch;
        masses += batch;
        leaves += batch;
    }
}
