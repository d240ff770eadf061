/*
 * When a table lets its callers insert and sample. It counts for all limiters: inserts, samples that learners took (committed)
 * and samples that are drawn but not taken (reserved). Draws see both kinds, inserts see committed ones only, so that samples
 * which are prefetched and never taken hold nobody back.
 *
 * Where every item is to be drawn exactly so many times (max_sampled = samples_per_insert: queues and stacks), the draws that an
 * item leaves without having had are `forfeited`: they can never be made, so they count as taken. Else each item that is deleted
 * or expires would for ever take a place of the queue.
 */
#ifndef NR_ENGINE_LIMITER_H
#define NR_ENGINE_LIMITER_H

#include <stdint.h>

#include "engine/engine.h"

struct nr_limiter {
    struct nr_limits limits; /* in force now; min_size >= 1 */
    uint64_t inserted;       /* items since the last reset */
    uint64_t committed;      /* samples taken since then */
    uint64_t reserved;       /* samples of draws opened since then, neither taken nor refunded */
    uint64_t forfeited;      /* draws that items have left without, since then */
};

/* The limits must be valid. */
void nr_limiter_init(struct nr_limiter *limiter, const struct nr_limits *limits);
/* Puts valid limits in force; what was counted stays. */
void nr_limiter_set(struct nr_limiter *limiter, const struct nr_limits *limits);
/* As if nothing had been inserted and nothing drawn. */
void nr_limiter_reset(struct nr_limiter *limiter);

/* NR_OK, or NR_WAIT_* with have/need. `size`: items in the table now. */
int nr_limiter_can_sample(const struct nr_limiter *limiter, uint64_t size, uint32_t count, struct nr_wait *wait);
int nr_limiter_can_insert(const struct nr_limiter *limiter, uint64_t size, struct nr_wait *wait);

/* An item leaves that was drawn so many times, draws that are not settled included. */
static inline void nr_limiter_left(struct nr_limiter *limiter, uint32_t sampled)
{
    uint32_t draws = limiter->limits.max_sampled;

    if (draws > sampled && limiter->limits.samples_per_insert == draws)
        limiter->forfeited += draws - sampled;
}

/* A draw of an item that has left is refunded. */
static inline void nr_limiter_refunded_gone(struct nr_limiter *limiter)
{
    if (limiter->limits.max_sampled > 0 && limiter->limits.samples_per_insert == limiter->limits.max_sampled)
        limiter->forfeited++;
}

#endif
