#include "engine/random.h"

void nr_random_seed(struct nr_random *random, uint64_t seed)
{
    /* splitmix64: four outputs are never all zero, since its map is a bijection of four different states. */
    for (int i = 0; i < 4; i++) {
        seed += 0x9e3779b97f4a7c15u;
        random->state[i] = nr_random_mix(seed);
    }
}
