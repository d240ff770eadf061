#include "engine/limiter.h"

void nr_limiter_init(struct nr_limiter *limiter, const struct nr_limits *limits)
{
    *limiter = (struct nr_limiter){.limits = *limits};
    if (limiter->limits.min_size == 0)
        limiter->limits.min_size = 1;
}

int nr_limiter_can_sample(const struct nr_limiter *limiter, uint64_t size, uint32_t count, struct nr_wait *wait)
{
    (void)count;
    if (size >= limiter->limits.min_size)
        return NR_OK;
    wait->reason = NR_WAIT_LIMITER;
    wait->have = size;
    wait->need = limiter->limits.min_size;
    return NR_WAIT_LIMITER;
}

int nr_limiter_can_insert(const struct nr_limiter *limiter, uint64_t size, struct nr_wait *wait)
{
    /* A minimum size holds back no insert. */
    (void)limiter;
    (void)size;
    (void)wait;
    return NR_OK;
}
