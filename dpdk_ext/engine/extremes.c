#include "engine/extremes.h"

void nr_extremes_init(struct nr_extremes *extremes, struct nr_arena *arena, uint32_t count)
{
    uint64_t groups = ((uint64_t)count + NR_EXTREMES_FANOUT - 1) / NR_EXTREMES_FANOUT;

    extremes->count = count;
    extremes->leaves = nr_arena_take(arena, groups, NR_EXTREMES_FANOUT * sizeof(double));
    extremes->height = 0;
    for (;;) {
        /* Padded to whole nodes, so that a node is read without asking where the level ends. */
        uint64_t nodes = (groups + NR_EXTREMES_FANOUT - 1) / NR_EXTREMES_FANOUT;

        extremes->groups[extremes->height++] = nr_arena_take(arena, nodes, NR_EXTREMES_FANOUT * sizeof(struct nr_extreme));
        if (groups == 1)
            break;
        groups = nodes;
    }
}

static inline double larger(double a, double b)
{
    return a > b ? a : b;
}

/* The lesser of two where 0 stands for none. */
static inline double lesser(double a, double b)
{
    return b > 0 && (b < a || a == 0) ? b : a;
}

void nr_extremes_set(struct nr_extremes *extremes, uint32_t leaf, double value)
{
    double old = extremes->leaves[leaf];

    if (value == old)
        return;
    extremes->leaves[leaf] = value;

    /* What left the group below and what came to it, for each of the two extremes; equal values mean that it did not change. */
    struct nr_extreme left = {old, old}, came = {value, value};
    for (uint32_t level = 0; level < extremes->height; level++) {
        uint32_t group = leaf / NR_EXTREMES_FANOUT;
        struct nr_extreme *at = &extremes->groups[level][group], before = *at;

        /* Only the loss of the extreme itself makes the group be read again. */
        int again_largest = left.largest == before.largest && came.largest < before.largest;
        int again_least = left.least == before.least && left.least > 0 && (came.least > before.least || came.least == 0);

        at->largest = larger(before.largest, came.largest);
        at->least = lesser(before.least, came.least);
        if (again_largest || again_least) {
            double largest = 0, least = 0;

            if (level == 0) {
                const double *child = &extremes->leaves[(uint64_t)group * NR_EXTREMES_FANOUT];

                for (int i = 0; i < NR_EXTREMES_FANOUT; i++) {
                    largest = larger(largest, child[i]);
                    least = lesser(least, child[i]);
                }
            } else {
                const struct nr_extreme *child = &extremes->groups[level - 1][(uint64_t)group * NR_EXTREMES_FANOUT];

                for (int i = 0; i < NR_EXTREMES_FANOUT; i++) {
                    largest = larger(largest, child[i].largest);
                    least = lesser(least, child[i].least);
                }
            }
            at->largest = largest;
            at->least = least;
        }
        if (at->largest == before.largest && at->least == before.least)
            return;
        left = before;
        came = *at;
        leaf = group;
    }
}
