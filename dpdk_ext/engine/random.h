/*
 * Randomness of one engine: xoshiro256++ seeded by splitmix64. Reproducible from its seed; not for secrets.
 */
#ifndef NR_ENGINE_RANDOM_H
#define NR_ENGINE_RANDOM_H

#include <stdint.h>

struct nr_random {
    uint64_t state[4]; /* never all zero */
};

void nr_random_seed(struct nr_random *random, uint64_t seed);

/* A well mixed function of its argument; a bijection. */
static inline uint64_t nr_random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t nr_random_rotate(uint64_t x, unsigned bits)
{
    return x << bits | x >> (64 - bits);
}

/* 64 uniform bits. */
static inline uint64_t nr_random_next(struct nr_random *random)
{
    uint64_t *s = random->state;
    uint64_t result = nr_random_rotate(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;

    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = nr_random_rotate(s[3], 45);
    return result;
}

/* Uniform in [0, bound), bound >= 1, without bias: Lemire's multiplication, which rejects with probability < bound / 2^64. */
static inline uint64_t nr_random_below(struct nr_random *random, uint64_t bound)
{
    unsigned __int128 product = (unsigned __int128)nr_random_next(random) * bound;

    if ((uint64_t)product < bound) {
        uint64_t threshold = -bound % bound;

        while ((uint64_t)product < threshold)
            product = (unsigned __int128)nr_random_next(random) * bound;
    }
    return (uint64_t)(product >> 64);
}

#endif
