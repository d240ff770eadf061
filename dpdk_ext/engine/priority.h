/*
 * From a raw priority to the integer leaf of the sum tree: raw^exponent in units of 2^-24, rounded to nearest (ties to even).
 * A positive priority never becomes 0 and no leaf exceeds the cap, which is chosen so that a full table's sum fits 64 bits.
 * Monotone but for raw priorities closer to one another than the power is exact (2^-52 of them): the leaf of the largest raw
 * priority is the largest leaf, or less than one unit in 2^50 below it.
 */
#ifndef NR_ENGINE_PRIORITY_H
#define NR_ENGINE_PRIORITY_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/power.h"

#define NR_PRIORITY_UNIT ((uint64_t)1 << NR_PRIORITY_UNIT_BITS) /* the leaf of weight 1 */

enum nr_priority_path { NR_PRIORITY_POWER, NR_PRIORITY_FLAT, NR_PRIORITY_ROOT, NR_PRIORITY_LINEAR };

struct nr_priority {
    double exponent;            /* finite, >= 0 */
    double cap_double;          /* cap as a double; may be rounded up */
    uint64_t cap;               /* units: the largest leaf */
    enum nr_priority_path path; /* how the power is taken */
};

/* `items`: the most leaves that can be positive at once. */
void nr_priority_init(struct nr_priority *priority, double exponent, uint32_t items);

/* NaN, infinities and negative numbers are refused; -0.0 is not negative. */
static inline bool nr_priority_valid(double raw)
{
    return raw >= 0 && raw <= DBL_MAX;
}

/* -0.0 becomes 0.0. */
static inline double nr_priority_normal(double raw)
{
    return raw == 0 ? 0.0 : raw;
}

/* The leaf of a valid raw priority of that weight. *saturated rises when it was cut to the cap, or raised from nothing to the
 * least leaf. */
static inline uint64_t nr_priority_round(const struct nr_priority *priority, double raw, double weight, uint64_t *saturated)
{
    if (raw == 0)
        return 0;
    weight *= (double)NR_PRIORITY_UNIT;
    if (weight >= priority->cap_double) {
        *saturated += weight > priority->cap_double;
        return priority->cap;
    }
    /* Below 2^52 a sum with 2^52 has no room for a fraction, so it rounds; from there on a double is whole already. */
    if (weight < 0x1p52)
        weight = (weight + 0x1p52) - 0x1p52;
    if (weight < 1) {
        ++*saturated;
        return 1;
    }
    return (uint64_t)weight;
}

static inline double nr_priority_weight(const struct nr_priority *priority, double raw)
{
    switch (priority->path) {
    case NR_PRIORITY_FLAT:
        return 1;
    case NR_PRIORITY_ROOT:
        return sqrt(raw);
    case NR_PRIORITY_LINEAR:
        return raw;
    default:
        return nr_power(raw, priority->exponent);
    }
}

static inline uint64_t nr_priority_leaf(const struct nr_priority *priority, double raw, uint64_t *saturated)
{
    return nr_priority_round(priority, raw, nr_priority_weight(priority, raw), saturated);
}

/* The weights of many, the same as one by one. */
static inline void nr_priority_weights(const struct nr_priority *priority, uint32_t count, const double *raws, double *weights)
{
    if (priority->path == NR_PRIORITY_POWER) {
        nr_powers(priority->exponent, count, raws, weights);
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        weights[i] = nr_priority_weight(priority, raws[i]);
}

#endif
