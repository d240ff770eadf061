#include "engine/limiter.h"

#include <math.h>

/* Doubles count whole numbers exactly up to here; whoever reaches it has sampled for centuries. */
#define MOST 0x1p53

/* ---- Limits ---- */

static uint64_t least_size(const struct nr_limits *limits)
{
    return limits->min_size > 0 ? limits->min_size : 1;
}

/* With d = inserted x spi - taken: inserts wait from some d above most - spi on, and then draws must be possible. Where spi is whole
 * so is d, and the least such d is known. */
double nr_limits_rows(const struct nr_limits *limits)
{
    double spi = limits->samples_per_insert;

    if (spi == 0)
        return INFINITY;
    double held = spi == floor(spi) ? floor(limits->most - spi) + 1 : limits->most - spi;
    double rows = floor(held - limits->least);
    return rows > 0 ? rows : 0;
}

bool nr_limits_valid(const struct nr_limits *limits, uint64_t capacity)
{
    double spi = limits->samples_per_insert;

    if (limits->min_size > capacity || limits->max_sampled > INT32_MAX || !(spi >= 0 && spi <= MOST))
        return false;
    if (spi == 0)
        return true;
    return fabs(limits->least) <= MOST && fabs(limits->most) <= MOST && limits->least <= limits->most &&
           nr_limits_rows(limits) >= 1;
}

int nr_limits_merge(struct nr_limits *limits, const struct nr_limits_change *change)
{
    double before = limits->samples_per_insert, middle_before = (double)least_size(limits) * before;
    uint32_t which = change->which;

    if (which & ~(uint32_t)NR_LIMIT_ALL)
        return NR_BAD_LIMITS;
    if (which & NR_LIMIT_MIN_SIZE)
        limits->min_size = change->min_size;
    if (which & NR_LIMIT_SAMPLES_PER_INSERT)
        limits->samples_per_insert = change->samples_per_insert;
    if (which & NR_LIMIT_MAX_SAMPLED)
        limits->max_sampled = change->max_sampled;
    if (which & NR_LIMIT_VERSIONS)
        limits->versions = change->versions;
    if (which & NR_LIMIT_MAX_AGE)
        limits->max_age_ns = change->max_age_ns;

    double spi = limits->samples_per_insert, middle = (double)least_size(limits) * spi;
    if (spi == 0) {
        limits->least = limits->most = 0;
        return which & (NR_LIMIT_ERROR_BUFFER | NR_LIMIT_SIZE) ? NR_BAD_LIMITS : NR_OK;
    }
    if (which & NR_LIMIT_SIZE) {
        limits->least = 0;
        limits->most = (double)change->size;
        return which & NR_LIMIT_ERROR_BUFFER ? NR_BAD_LIMITS : NR_OK;
    }
    if (which & NR_LIMIT_ERROR_BUFFER) {
        limits->least = middle - change->error_buffer;
        limits->most = middle + change->error_buffer;
        return NR_OK;
    }
    if (before == 0)
        return NR_BAD_LIMITS;
    limits->least += middle - middle_before;
    limits->most += middle - middle_before;
    return NR_OK;
}

/* ---- The limiter ---- */

void nr_limiter_set(struct nr_limiter *limiter, const struct nr_limits *limits)
{
    limiter->limits = *limits;
    limiter->limits.min_size = least_size(limits);
}

void nr_limiter_init(struct nr_limiter *limiter, const struct nr_limits *limits)
{
    *limiter = (struct nr_limiter){.inserted = 0};
    nr_limiter_set(limiter, limits);
}

void nr_limiter_reset(struct nr_limiter *limiter)
{
    limiter->inserted = limiter->committed = limiter->reserved = limiter->forfeited = 0;
}

static int wait_for(struct nr_wait *wait, int reason, uint64_t have, uint64_t need)
{
    wait->reason = reason;
    wait->have = have;
    wait->need = need;
    return reason;
}

/* Whole samples in `samples`: those that may have been taken are rounded down, those that must have been up. */
static uint64_t whole(double samples)
{
    return samples <= 0 ? 0 : samples >= MOST ? (uint64_t)MOST : (uint64_t)samples;
}

int nr_limiter_can_sample(const struct nr_limiter *limiter, uint64_t size, uint32_t count, struct nr_wait *wait)
{
    const struct nr_limits *limits = &limiter->limits;

    if (size < limits->min_size)
        return wait_for(wait, NR_WAIT_LIMITER, size, limits->min_size);
    if (limits->samples_per_insert == 0)
        return NR_OK;
    uint64_t allowed = whole(floor((double)limiter->inserted * limits->samples_per_insert - limits->least));
    uint64_t drawn = limiter->committed + limiter->forfeited + limiter->reserved + count;
    return drawn <= allowed ? NR_OK : wait_for(wait, NR_WAIT_SAMPLES, drawn, allowed);
}

int nr_limiter_can_insert(const struct nr_limiter *limiter, uint64_t size, struct nr_wait *wait)
{
    const struct nr_limits *limits = &limiter->limits;

    if (limits->samples_per_insert == 0 || size < limits->min_size)
        return NR_OK;
    uint64_t wanted = whole(ceil((double)(limiter->inserted + 1) * limits->samples_per_insert - limits->most));
    uint64_t taken = limiter->committed + limiter->forfeited;
    return taken >= wanted ? NR_OK : wait_for(wait, NR_WAIT_INSERTS, taken, wanted);
}
