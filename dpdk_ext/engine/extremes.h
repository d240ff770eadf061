/*
 * The exact largest and the exact least positive of many numbers >= 0 that change one at a time. Two tournament trees with
 * eight children a node over one array of leaves. An absent number is 0, which is never the least positive and never matters
 * for the largest.
 */
#ifndef NR_ENGINE_EXTREMES_H
#define NR_ENGINE_EXTREMES_H

#include <stdint.h>

#include "engine/arena.h"

#define NR_EXTREMES_FANOUT 8
#define NR_EXTREMES_LEVELS 11 /* 8^11 > 2^32 */

/* Of one group of eight. `least` is kept so that zeroed memory is right: 0 means no positive number. */
struct nr_extreme {
    double largest; /* 0 when none is positive */
    double least;   /* positive; 0 when none is */
};

struct nr_extremes {
    double *leaves;                                 /* the numbers */
    struct nr_extreme *groups[NR_EXTREMES_LEVELS]; /* groups[0][i]: of leaves[8 i ..]; groups[l][i]: of groups[l - 1][8 i ..] */
    uint32_t height;                                /* levels of groups, >= 1; the topmost has one group in use */
    uint32_t count;                                 /* leaves in use by the caller */
};

/* Takes the memory of `count` >= 1 absent numbers. */
void nr_extremes_init(struct nr_extremes *extremes, struct nr_arena *arena, uint32_t count);

/* Changes one number; it must be finite, >= 0 and not -0.0. The climb stops where a group does not change. */
void nr_extremes_set(struct nr_extremes *extremes, uint32_t leaf, double value);

static inline double nr_extremes_get(const struct nr_extremes *extremes, uint32_t leaf)
{
    return extremes->leaves[leaf];
}

static inline double nr_extremes_largest(const struct nr_extremes *extremes)
{
    return extremes->groups[extremes->height - 1]->largest;
}

static inline double nr_extremes_least(const struct nr_extremes *extremes)
{
    return extremes->groups[extremes->height - 1]->least;
}

static inline void nr_extremes_prefetch(const struct nr_extremes *extremes, uint32_t leaf)
{
    __builtin_prefetch(&extremes->leaves[leaf], 1);
    __builtin_prefetch(&extremes->groups[0][leaf / NR_EXTREMES_FANOUT], 1);
}

#endif
