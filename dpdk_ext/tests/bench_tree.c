/*
 * The sum tree alone: nanoseconds per draw and per update, with several numbers of children a node, against the binary tree of
 * floats that other replay memories have. Draws and updates come in batches of 512, at random leaves with random weights.
 * usage: bench_tree [ITEMS ...]; default 1000, 100000 and 1000000. Medians of many rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "engine/random.h"
#include "engine/sum_tree.h"

enum { ROUNDS = 101, BATCH = 512, LOCKSTEP = 16, LEVELS = 32 };

/* One kind of tree. Masses are fractions of the whole, 0 <= mass < 1. */
struct kind {
    const char *name;
    void (*create)(uint32_t leaves);
    void (*set)(uint32_t count, const uint32_t *leaves, const double *weights);
    void (*find)(uint32_t count, const double *masses, uint32_t *leaves);
    void (*destroy)(void);
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void *zeroed(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 63) / 64 * 64);

    CHECK(memory != NULL);
    memset(memory, 0, (bytes + 63) / 64 * 64);
    return memory;
}

static uint64_t units(double weight)
{
    return (uint64_t)(weight * (1 << 24));
}

/* ---- The product's ---- */

static struct nr_arena arena;
static struct nr_sum_tree product;

static void product_create(uint32_t leaves)
{
    CHECK(nr_arena_open(&arena, (uint64_t)leaves * 16 + (1 << 20)));
    nr_sum_tree_init(&product, &arena, leaves);
}

static void product_set(uint32_t count, const uint32_t *leaves, const double *weights)
{
    for (uint32_t i = 0; i < count; i++)
        nr_sum_tree_set(&product, leaves[i], units(weights[i]));
}

static void product_find(uint32_t count, const double *masses, uint32_t *leaves)
{
    uint64_t whole[BATCH];

    for (uint32_t i = 0; i < count; i++)
        whole[i] = (uint64_t)(masses[i] * (double)product.total);
    nr_sum_tree_find(&product, count, whole, leaves);
}

static void product_destroy(void)
{
    nr_arena_close(&arena);
}

/* ---- The same with K children, written plainly ---- */

struct wide {
    uint64_t *levels[LEVELS]; /* sums, from the leaves upwards */
    uint64_t total;           /* of all leaves */
    uint32_t height;          /* levels */
};
static struct wide wide;

static inline __attribute__((always_inline)) void wide_create(uint32_t leaves, uint32_t fanout)
{
    uint64_t entries = leaves;

    wide.height = 0;
    wide.total = 0;
    do {
        uint64_t nodes = (entries + fanout - 1) / fanout;

        wide.levels[wide.height++] = zeroed(nodes * fanout * sizeof(uint64_t));
        entries = nodes;
    } while (entries > 1);
}

static inline __attribute__((always_inline)) void wide_set(uint32_t count, const uint32_t *leaves, const double *weights,
                                                           uint32_t fanout)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = leaves[i];
        uint64_t delta = units(weights[i]) - wide.levels[0][at];

        for (uint32_t level = 0; level < wide.height; level++, at /= fanout)
            wide.levels[level][at] += delta;
        wide.total += delta;
    }
}

static inline __attribute__((always_inline)) void wide_find(uint32_t count, const double *masses, uint32_t *leaves, uint32_t fanout)
{
    for (uint32_t first = 0; first < count; first += LOCKSTEP) {
        uint32_t batch = count - first < LOCKSTEP ? count - first : LOCKSTEP, *at = leaves + first;
        uint64_t rest[LOCKSTEP];

        for (uint32_t j = 0; j < batch; j++) {
            rest[j] = (uint64_t)(masses[first + j] * (double)wide.total);
            at[j] = 0;
        }
        for (uint32_t level = wide.height; level-- > 0;) {
            for (uint32_t j = 0; j < batch; j++) {
                const uint64_t *node = &wide.levels[level][(uint64_t)at[j] * fanout];
                uint64_t before = 0, sum = 0;
                uint32_t child = 0;

                for (uint32_t i = 0; i + 1 < fanout; i++) {
                    sum += node[i];
                    uint64_t reached = -(uint64_t)(rest[j] >= sum);
                    child += (uint32_t)reached & 1;
                    before += node[i] & reached;
                }
                rest[j] -= before;
                at[j] = at[j] * fanout + child;
                if (level > 0)
                    __builtin_prefetch(&wide.levels[level - 1][(uint64_t)at[j] * fanout]);
            }
        }
    }
}

static void wide_destroy(void)
{
    for (uint32_t level = 0; level < wide.height; level++)
        free(wide.levels[level]);
}

#define WIDE(k)                                                                                                                    \
    static void create_##k(uint32_t leaves)                                                                                        \
    {                                                                                                                              \
        wide_create(leaves, k);                                                                                                    \
    }                                                                                                                              \
    static void set_##k(uint32_t count, const uint32_t *leaves, const double *weights)                                             \
    {                                                                                                                              \
        wide_set(count, leaves, weights, k);                                                                                       \
    }                                                                                                                              \
    static void find_##k(uint32_t count, const double *masses, uint32_t *leaves)                                                   \
    {                                                                                                                              \
        wide_find(count, masses, leaves, k);                                                                                       \
    }
WIDE(2)
WIDE(4)
WIDE(8)
WIDE(16)
WIDE(32)

/* ---- The binary tree of floats: node i has the children 2 i and 2 i + 1, sums are made anew on the way up ---- */

static float *binary;
static uint32_t width; /* leaves, a power of two */

static void binary_create(uint32_t leaves)
{
    width = 1;
    while (width < leaves)
        width *= 2;
    binary = zeroed(2 * (size_t)width * sizeof(float));
}

static void binary_set(uint32_t count, const uint32_t *leaves, const double *weights)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = width + leaves[i];

        binary[at] = (float)weights[i];
        for (at /= 2; at > 0; at /= 2)
            binary[at] = binary[2 * at] + binary[2 * at + 1];
    }
}

static void binary_find(uint32_t count, const double *masses, uint32_t *leaves)
{
    for (uint32_t i = 0; i < count; i++) {
        float rest = (float)masses[i] * binary[1];
        uint32_t at = 1;

        while (at < width) {
            at *= 2;
            if (rest >= binary[at])
                rest -= binary[at++];
        }
        leaves[i] = at - width;
    }
}

static void binary_destroy(void)
{
    free(binary);
}

static const struct kind kinds[] = {
    {"integers, 8 (ours)", product_create, product_set, product_find, product_destroy},
    {"integers, 2", create_2, set_2, find_2, wide_destroy},
    {"integers, 4", create_4, set_4, find_4, wide_destroy},
    {"integers, 8", create_8, set_8, find_8, wide_destroy},
    {"integers, 16", create_16, set_16, find_16, wide_destroy},
    {"integers, 32", create_32, set_32, find_32, wide_destroy},
    {"floats, binary", binary_create, binary_set, binary_find, binary_destroy},
};

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double uniform(struct nr_random *random)
{
    return (double)(nr_random_next(random) >> 11) * 0x1p-53;
}

static void measure(const struct kind *kind, uint32_t items)
{
    struct nr_random random;
    double draws[ROUNDS], updates[ROUNDS], values[BATCH];
    uint32_t leaves[BATCH];
    uint64_t sum = 0;

    nr_random_seed(&random, 1);
    kind->create(items);
    for (uint32_t first = 0; first < items; first += BATCH) {
        uint32_t some = items - first < BATCH ? items - first : BATCH;

        for (uint32_t i = 0; i < some; i++) {
            leaves[i] = first + i;
            values[i] = uniform(&random) * uniform(&random) * 4;
        }
        kind->set(some, leaves, values);
    }
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < BATCH; i++) {
            leaves[i] = (uint32_t)nr_random_below(&random, items);
            values[i] = uniform(&random) * uniform(&random) * 4;
        }
        uint64_t begin = now_ns();
        kind->set(BATCH, leaves, values);
        updates[round] = (double)(now_ns() - begin) / BATCH;
        for (int i = 0; i < BATCH; i++)
            values[i] = uniform(&random);
        begin = now_ns();
        kind->find(BATCH, values, leaves);
        draws[round] = (double)(now_ns() - begin) / BATCH;
        for (int i = 0; i < BATCH; i++)
            sum += leaves[i];
    }
    CHECK(sum > 0);
    kind->destroy();
    qsort(draws, ROUNDS, sizeof(*draws), compare);
    qsort(updates, ROUNDS, sizeof(*updates), compare);
    printf("tree of %8u, %-20s draw %6.1f ns  update %6.1f ns\n", items, kind->name, draws[ROUNDS / 2], updates[ROUNDS / 2]);
}

int main(int count, char **arguments)
{
    static const uint32_t defaults[] = {1000, 100000, 1000000};
    int sizes = count > 1 ? count - 1 : 3;

    for (int i = 0; i < sizes; i++)
        for (size_t k = 0; k < sizeof(kinds) / sizeof(*kinds); k++)
            measure(&kinds[k], count > 1 ? (uint32_t)strtoul(arguments[i + 1], NULL, 10) : defaults[i]);
    return 0;
}
