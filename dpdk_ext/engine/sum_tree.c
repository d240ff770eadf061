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
            for (uint32_t j = 0; j < batch; j++) {
                const uint64_t *node = &tree->levels[level][(uint64_t)leaves[j] * NR_SUM_TREE_FANOUT];
                uint64_t sum = 0, before = 0, mass = rest[j];
                uint32_t child = 0;

                /* Without branches: the child is the number of prefix sums that the mass reaches. The last is not asked: a mass
                 * below the node's sum never reaches it. */
                for (uint32_t i = 0; i < NR_SUM_TREE_FANOUT - 1; i++) {
                    sum += node[i];
                    child += mass >= sum;
                    before = mass >= sum ? sum : before;
                }
                rest[j] = mass - before;
                leaves[j] = leaves[j] * NR_SUM_TREE_FANOUT + child;
                if (level > 0)
                    __builtin_prefetch(&tree->levels[level - 1][(uint64_t)leaves[j] * NR_SUM_TREE_FANOUT]);
            }
        }
        count -= batch;
        masses += batch;
        leaves += batch;
    }
}
