/*
 * When a table lets its callers insert and sample. It counts for all limiters: inserts, samples that learners took (committed)
 * and samples that are drawn but not taken (reserved). Draws see both kinds, inserts see committed ones only, so that samples
 * which are prefetched and never taken hold nobody back.
 */
#ifndef NR_ENGINE_LIMITER_H
#define NR_ENGINE_LIMITER_H

#include <stdint.h>

#include "engine/engine.h"

struct nr_limiter {
    struct nr_limits limits; /* in force now; min_size >= 1 */
    uint64_t inserted;  /* items, ever */
    uint64_t committed; /* samples, ever */
    uint64_t reserved;  /* samples, now */
};

void nr_limiter_init(struct nr_limiter *limiter, const struct nr_limits *limits);

/* NR_OK, or NR_WAIT_LIMITER with have/need. `size`: items in the table now. */
int nr_limiter_can_sample(const struct nr_limiter *limiter, uint64_t size, uint32_t count, struct nr_wait *wait);
int nr_limiter_can_insert(const struct nr_limiter *limiter, uint64_t size, struct nr_wait *wait);

#endif
