/* The sum tree: every leaf is found where its mass is, sums stay exact. usage: test_sum_tree [DRAWS] */
#include "engine/sum_tree.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/random.h"

static const uint32_t capacities[] = {1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000, 4095, 4096, 4097};

#define CAPACITIES (sizeof(capacities) / sizeof(capacities[0]))

/* A tree with memory of its own. */
static struct nr_arena make(struct nr_sum_tree *tree, uint32_t leaves)
{
    struct nr_arena reckoned = {0}, arena;

    nr_sum_tree_init(tree, &reckoned, leaves);
    CHECK(nr_arena_open(&arena, reckoned.used));
    nr_sum_tree_init(tree, &arena, leaves);
    CHECK(arena.used == reckoned.used);
    return arena;
}

static uint32_t find(const struct nr_sum_tree *tree, uint64_t mass)
{
    uint32_t leaf;

    nr_sum_tree_find(tree, 1, &mass, &leaf);
    return leaf;
}

/* Every node is the sum of its children, padding included. */
static void check_sums(const struct nr_sum_tree *tree)
{
    uint64_t entries = tree->leaves;

    for (uint32_t level = 1; level <= tree->height; level++) {
        uint64_t nodes = (entries + 7) / 8;

        for (uint64_t node = 0; node < nodes; node++) {
            uint64_t sum = 0;

            for (int i = 0; i < 8; i++)
                sum += tree->levels[level - 1][node * 8 + i];
            CHECK(sum == (level == tree->height ? tree->total : tree->levels[level][node]));
        }
        entries = nodes;
    }
    CHECK(entries == 1);
}

static void unit_leaves_are_found_by_their_mass(void)
{
    for (size_t c = 0; c < CAPACITIES; c++) {
        struct nr_sum_tree tree;
        struct nr_arena arena = make(&tree, capacities[c]);

        for (uint32_t i = 0; i < capacities[c]; i++)
            nr_sum_tree_set(&tree, i, 2);
        CHECK(tree.total == 2 * (uint64_t)capacities[c]);
        for (uint32_t i = 0; i < capacities[c]; i++) {
            CHECK(find(&tree, 2 * (uint64_t)i) == i);
            CHECK(find(&tree, 2 * (uint64_t)i + 1) == i); /* i + 0.5 of unit leaves */
        }
        check_sums(&tree);
        nr_arena_close(&arena);
    }
}

static void only_one_leaf_is_found_wherever_it_is(void)
{
    for (size_t c = 0; c < CAPACITIES; c++) {
        struct nr_sum_tree tree;
        struct nr_arena arena = make(&tree, capacities[c]);

        for (uint32_t i = 0; i < capacities[c]; i++) {
            uint64_t weight = i % 3 == 0 ? 1 : i % 3 == 1 ? UINT64_MAX : 1000003;

            nr_sum_tree_set(&tree, i, weight);
            CHECK(tree.total == weight);
            CHECK(find(&tree, 0) == i && find(&tree, weight - 1) == i && find(&tree, weight / 2) == i);
            nr_sum_tree_set(&tree, i, 0);
            CHECK(tree.total == 0);
        }
        nr_arena_close(&arena);
    }
}

/* Masses at both borders of every leaf, against a plain scan; zeros between. */
static void borders_are_exact(void)
{
    struct nr_random random;

    nr_random_seed(&random, 3);
    for (size_t c = 0; c < CAPACITIES; c++) {
        uint32_t n = capacities[c];
        struct nr_sum_tree tree;
        struct nr_arena arena = make(&tree, n);

        for (uint32_t i = 0; i < n; i++)
            nr_sum_tree_set(&tree, i,
                            nr_random_below(&random, 3) == 0 ? 0 : nr_random_next(&random) >> (13 + nr_random_below(&random, 50)));
        uint64_t before = 0;
        for (uint32_t i = 0; i < n; i++) {
            uint64_t leaf = nr_sum_tree_leaf(&tree, i);

            if (leaf > 0) {
                CHECK(find(&tree, before) == i);
                CHECK(find(&tree, before + leaf - 1) == i);
            }
            before += leaf;
        }
        CHECK(before == tree.total);
        nr_arena_close(&arena);
    }
}

/* Case 4: 10^6 random updates over 8 decades. */
static void random_updates_leave_exact_sums(void)
{
    static const uint32_t sizes[] = {1, 7, 1000, 100003};
    struct nr_random random;

    nr_random_seed(&random, 4);
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
        struct nr_sum_tree tree;
        struct nr_arena arena = make(&tree, sizes[s]);
        uint64_t *model = calloc(sizes[s], sizeof(*model)), sum = 0;

        for (int i = 0; i < 1000000; i++) {
            uint32_t leaf = (uint32_t)nr_random_below(&random, sizes[s]);
            double decade = pow(10, (double)nr_random_below(&random, 9) - 4);

            model[leaf] = nr_random_below(&random, 10) == 0 ? 0 : (uint64_t)(decade * (double)(nr_random_next(&random) >> 40));
            nr_sum_tree_set(&tree, leaf, model[leaf]);
        }
        for (uint32_t i = 0; i < sizes[s]; i++) {
            CHECK(nr_sum_tree_leaf(&tree, i) == model[i]);
            sum += model[i];
        }
        CHECK(tree.total == sum);
        check_sums(&tree);
        free(model);
        nr_arena_close(&arena);
    }
}

/* Case 4: nothing outside the filled part, nothing without weight; and each of the others as often as it weighs. */
static void draws_meet_only_positive_leaves(uint32_t leaf_count, uint32_t filled, uint64_t draws)
{
    enum { BATCH = 64 };
    struct nr_sum_tree tree;
    struct nr_arena arena = make(&tree, leaf_count);
    struct nr_random random;
    uint64_t *hits = calloc(leaf_count, sizeof(*hits));
    double statistic = 0;
    int cells = 0;

    nr_random_seed(&random, 5);
    for (uint32_t i = 0; i < filled; i++)
        nr_sum_tree_set(&tree, i, i % 5 == 0 ? 0 : 1 + nr_random_below(&random, 1000));
    for (uint64_t drawn = 0; drawn < draws; drawn += BATCH) {
        uint64_t masses[BATCH];
        uint32_t leaves[BATCH];

        for (int i = 0; i < BATCH; i++)
            masses[i] = nr_random_below(&random, tree.total);
        nr_sum_tree_find(&tree, BATCH, masses, leaves);
        for (int i = 0; i < BATCH; i++) {
            CHECK(leaves[i] < filled && leaves[i] % 5 != 0);
            hits[leaves[i]]++;
        }
    }
    uint64_t all = (draws + BATCH - 1) / BATCH * BATCH;
    for (uint32_t i = 0; i < filled; i++) {
        double expected = (double)all * (double)nr_sum_tree_leaf(&tree, i) / (double)tree.total;

        if (expected < 5)
            continue;
        statistic += ((double)hits[i] - expected) * ((double)hits[i] - expected) / expected;
        cells++;
    }
    /* Chi-square with `cells` degrees is near normal with deviation sqrt(2 cells): five of them either way. */
    CHECK(fabs(statistic - cells) < 5 * sqrt(2.0 * cells));
    free(hits);
    nr_arena_close(&arena);
}

static void the_full_64_bits_are_used(void)
{
    struct nr_sum_tree tree;
    struct nr_arena arena = make(&tree, 1000);
    uint64_t cap = UINT64_MAX / 1000;

    for (uint32_t i = 0; i < 1000; i++)
        nr_sum_tree_set(&tree, i, cap);
    CHECK(tree.total == cap * 1000);
    CHECK(find(&tree, tree.total - 1) == 999 && find(&tree, cap) == 1 && find(&tree, cap - 1) == 0);
    for (uint32_t i = 0; i < 1000; i++)
        nr_sum_tree_set(&tree, i, 1);
    CHECK(tree.total == 1000);
    nr_arena_close(&arena);
}

static void bounded_numbers_are_even(void)
{
    struct nr_random random;
    uint64_t hits[6] = {0};
    uint64_t bound = (UINT64_MAX / 4) * 3; /* where taking a remainder would be wrong by a third */

    nr_random_seed(&random, 6);
    for (int i = 0; i < 600000; i++)
        hits[nr_random_below(&random, bound) / (bound / 6 + 1)]++;
    for (int i = 0; i < 6; i++)
        CHECK(hits[i] > 98500 && hits[i] < 101500);
    for (uint64_t i = 0; i < 1000; i++)
        CHECK(nr_random_below(&random, 1) == 0);
}

int main(int argc, char **argv)
{
    unit_leaves_are_found_by_their_mass();
    only_one_leaf_is_found_wherever_it_is();
    borders_are_exact();
    random_updates_leave_exact_sums();
    uint64_t draws = argc > 1 ? strtoull(argv[1], NULL, 10) : 10000000;
    draws_meet_only_positive_leaves(4097, 2500, draws);
    draws_meet_only_positive_leaves(262145, 100003, draws);
    the_full_64_bits_are_used();
    bounded_numbers_are_even();
    return 0;
}
