/*
 * A sum tree over 64-bit integer weights: exact, without drift. Eight children a node, one cache line each.
 *
 * levels[0] holds the leaves, levels[l][i] the sum of levels[l - 1][8 i .. 8 i + 7]; the topmost level has at most eight entries.
 * Every level is padded with zeros to whole nodes. The sum of all leaves must stay below 2^64 (the caller caps its leaves);
 * changes are added modulo 2^64, so the order of changes never matters.
 */
#ifndef NR_ENGINE_SUM_TREE_H
#define NR_ENGINE_SUM_TREE_H

#include <stdint.h>

#include "engine/arena.h"

#define NR_SUM_TREE_FANOUT 8
#define NR_SUM_TREE_LEVELS 11 /* 8^11 > 2^32 */

struct nr_sum_tree {
    uint64_t *levels[NR_SUM_TREE_LEVELS]; /* sums, from the leaves upwards */
    uint64_t total;                       /* of all leaves */
    uint32_t leaves;                      /* in use by the caller; those beyond are padding and stay zero */
    uint32_t height;                      /* levels in use, >= 1 */
};

_Static_assert(NR_SUM_TREE_FANOUT * sizeof(uint64_t) == NR_CACHE_LINE, "a node is one cache line");

/* Takes the memory of a tree of `leaves` >= 1 zero leaves. */
void nr_sum_tree_init(struct nr_sum_tree *tree, struct nr_arena *arena, uint32_t leaves);

static inline uint64_t nr_sum_tree_leaf(const struct nr_sum_tree *tree, uint32_t leaf)
{
    return tree->levels[0][leaf];
}

static inline void nr_sum_tree_set(struct nr_sum_tree *tree, uint32_t leaf, uint64_t weight)
{
    uint64_t delta = weight - tree->levels[0][leaf];

    if (delta == 0)
        return;
    for (uint32_t level = 0; level < tree->height; level++) {
        tree->levels[level][leaf] += delta;
        leaf /= NR_SUM_TREE_FANOUT;
    }
    tree->total += delta;
}

/* The two lowest lines on the way of a leaf: those above are few enough to be cached. */
static inline void nr_sum_tree_prefetch(const struct nr_sum_tree *tree, uint32_t leaf)
{
    __builtin_prefetch(&tree->levels[0][leaf], 1);
    if (tree->height > 1)
        __builtin_prefetch(&tree->levels[1][leaf / NR_SUM_TREE_FANOUT], 1);
}

/* The leaves that the masses (each < total) fall on: leaf i covers [sum of leaves before i, that + leaf i). Never a zero leaf. */
void nr_sum_tree_find(const struct nr_sum_tree *tree, uint32_t count, const uint64_t *masses, uint32_t *leaves);

#endif
