/* Which steps of a window a gather reads. One rule for the engine's sampled rows and the client's staged ones. */
#ifndef NR_ENGINE_VIEW_H
#define NR_ENGINE_VIEW_H

#include "engine.h"

/* Bytes that the gather fills in the row. */
static inline uint64_t nr_gather_bytes(const struct nr_gather *gather)
{
    return (uint64_t)gather->length * ((uint64_t)gather->more + 1);
}

/* Position in the window, for an item whose anchor lies `anchor` steps in and whose last step is anchor + length: a stack that
 * reaches before the window's first step repeats that one, and what lies past the last repeats the last. */
static inline uint32_t nr_gather_step(const struct nr_gather *gather, uint32_t anchor, uint32_t length)
{
    int64_t last = (int64_t)anchor + length;
    int64_t step = (gather->from_end ? last : (int64_t)anchor) + gather->delta;

    return step < 0 ? 0 : step > last ? (uint32_t)last : (uint32_t)step;
}

/* The pieces of a run that have steps of their own, each the one after the other's. Those before and behind are zeros or repeat their
 * neighbour. */
struct nr_gather_own {
    uint32_t first, stop; /* pieces [first, stop) */
    uint32_t step;        /* position in the window of the first's, if there is one */
};

static inline struct nr_gather_own nr_gather_own(const struct nr_gather *gather, uint32_t anchor, uint32_t length)
{
    int64_t last = (int64_t)anchor + length;
    int64_t at = (gather->from_end ? last : (int64_t)anchor) + gather->delta;
    int64_t from = (gather->inside ? (int64_t)anchor : 0) - at, to = last + (gather->inside ? 0 : 1) - at;
    int64_t count = (int64_t)gather->more + 1;
    uint32_t first = from < 0 ? 0 : from > count ? (uint32_t)count : (uint32_t)from;

    return (struct nr_gather_own){
        .first = first,
        .stop = to < 0       ? 0
                : to > count ? (uint32_t)count
                             : (uint32_t)to,
        .step = (uint32_t)(at + first),
    };
}

/* The same for piece i of a run. False: it is zeros. */
static inline bool nr_gather_piece(const struct nr_gather *gather, uint32_t i, uint32_t anchor, uint32_t length, uint32_t *step)
{
    int64_t last = (int64_t)anchor + length;
    int64_t at = (gather->from_end ? last : (int64_t)anchor) + gather->delta + i;

    if (gather->inside && (at < anchor || at >= last))
        return false;
    *step = at < 0 ? 0 : at > last ? (uint32_t)last : (uint32_t)at;
    return true;
}

#endif
