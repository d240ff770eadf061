/* Every selector, against a model that searches and adds: what is drawn, with which probability, what a call waits for, what a limit
 * of draws withholds and what a refund brings back; and how often what is drawn. usage: test_selectors [OPERATIONS [SEED]] */
#include "choosing.h"

static const uint32_t capacities[] = {1, 2, 3, 5, 7, 31, 32, 33, 255, 256, 257, 1000};

#define CAPACITIES (sizeof(capacities) / sizeof(capacities[0]))

static void random_operations_agree_with_the_model(uint32_t operations, uint64_t seed)
{
    static const uint32_t limits[] = {0, 1, 3};

    for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
        for (size_t capacity = 0; capacity < CAPACITIES; capacity++) {
            for (int limit = 0; limit < 3; limit++) {
                uint32_t count = capacities[capacity] < 100 ? operations : operations / 3;

                c_run(sampler, (uint32_t)(capacity + (size_t)limit) % NR_REMOVERS, capacities[capacity], limits[limit], 0, count,
                      seed++);
                if (sampler == NR_SAMPLER_WITHOUT_REPLACEMENT)
                    c_run(sampler, NR_REMOVER_FIFO, capacities[capacity], limits[limit], 1 + (uint32_t)limit, count, seed++);
            }
        }
    }
}

/* ---- How often what is drawn ---- */

/* Two-sided: neither too far from what is expected nor too near. By chance once in 10^6 runs or so. */
static void check_fit(double statistic, double freedom)
{
    CHECK(fabs(statistic - freedom) < 5 * sqrt(2 * freedom) + 5);
}

static double chi_square(const double *hits, const double *expected, uint32_t cells, double *freedom)
{
    double statistic = 0;

    for (uint32_t i = 0; i < cells; i++) {
        CHECK(expected[i] > 0 || hits[i] == 0);
        if (expected[i] <= 0)
            continue;
        CHECK(expected[i] >= 5);
        statistic += (hits[i] - expected[i]) * (hits[i] - expected[i]) / expected[i];
        ++*freedom;
    }
    --*freedom;
    return statistic;
}

enum { ITEMS = 60, OF = 12, ROUNDS = 20000 };

static void probabilities_are_kept(uint32_t sampler)
{
    struct choosing c;
    double expected[ITEMS], hits[ITEMS] = {0}, freedom = 0;

    c_open(&c, sampler, NR_REMOVER_FIFO, 64, 77);
    c.table.top = 20;
    c_start(&c);
    for (uint32_t i = 0; i < ITEMS; i++)
        c_insert(&c, c_raw(&c), 0);
    for (uint32_t i = 0; i < ITEMS; i++) {
        double share = (double)c_leaf(&c, &c.items[i]) / (double)c_total(&c);

        if (sampler == NR_SAMPLER_TOP_K)
            share = c_drawable(&c, &c.items[i]) && c_rank(&c, &c.items[i]) < 20 ? 1.0 / 20 : 0;
        expected[i] = share * OF * ROUNDS;
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];

        at->draw.entries = at->entries;
        CHECK_EQUAL(nr_draw_open(c.engine, 0, OF, &at->draw, 0, &wait), NR_OK);
        for (int i = 0; i < OF; i++) {
            struct c_item *item = c_find(&c, at->entries[i].key);

            CHECK(fabs(at->entries[i].probability * OF * ROUNDS - expected[item - c.items]) < 1e-6);
            hits[item - c.items]++;
        }
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    }
    double statistic = chi_square(hits, expected, ITEMS, &freedom);
    check_fit(statistic, freedom);
    c_close(&c);
}

/* Stratified draws: each stratum by itself is a draw from its part of the mass, and together they hit each item as often as its
 * share says, with the scatter that the strata leave, which is less than that of independent draws. */
static void each_stratum_is_drawn_from_as_it_should(void)
{
    static double hits[OF][ITEMS];
    double sums[ITEMS] = {0}, statistic = 0, freedom = 0, scatter = 0, independent = 0, variance = 0;
    struct choosing c;

    memset(hits, 0, sizeof(hits));
    c_open(&c, NR_SAMPLER_STRATIFIED, NR_REMOVER_FIFO, 64, 78);
    c_start(&c);
    for (uint32_t i = 0; i < ITEMS; i++)
        c_insert(&c, c_raw(&c), 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];

        at->draw.entries = at->entries;
        CHECK_EQUAL(nr_draw_open(c.engine, 0, OF, &at->draw, 0, &wait), NR_OK);
        for (int i = 0; i < OF; i++)
            hits[i][c_find(&c, at->entries[i].key) - c.items]++;
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    }
    double total = (double)c_total(&c);
    for (int stratum = 0; stratum < OF; stratum++) {
        double expected[ITEMS], low = total * stratum / OF, high = total * (stratum + 1) / OF, before = 0, cells = 0;

        /* Fresh slots are in the order of insertion. */
        for (uint32_t i = 0; i < ITEMS; i++) {
            double leaf = (double)c_leaf(&c, &c.items[i]);
            double from = before > low ? before : low, to = before + leaf < high ? before + leaf : high;

            expected[i] = to - from > 0.5 ? (to - from) / (high - low) * ROUNDS : 0;
            variance += expected[i] * (1 - expected[i] / ROUNDS);
            before += leaf;
            sums[i] += hits[stratum][i];
        }
        double fit = chi_square(hits[stratum], expected, ITEMS, &cells);
        check_fit(fit, cells);
        statistic += fit;
        freedom += cells;
    }
    check_fit(statistic, freedom);
    for (uint32_t i = 0; i < ITEMS; i++) {
        double mean = (double)c_leaf(&c, &c.items[i]) / total * OF * ROUNDS;

        scatter += (sums[i] - mean) * (sums[i] - mean);
        independent += mean * (1 - mean / OF / ROUNDS);
        CHECK(fabs(sums[i] - mean) <= 6 * sqrt(mean) + 1);
    }
    CHECK(scatter > variance / 3 && scatter < 2 * variance && variance < 0.9 * independent);
    c_close(&c);
}

/* The first draw of a pass is any item, and so is the last. */
static void every_order_of_a_pass_is_as_likely(void)
{
    enum { N = 8 };
    static double hits[N][N];
    struct choosing c;

    memset(hits, 0, sizeof(hits));
    c_open(&c, NR_SAMPLER_WITHOUT_REPLACEMENT, NR_REMOVER_FIFO, N, 79);
    c_start(&c);
    for (uint32_t i = 0; i < N; i++)
        c_insert(&c, 1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];

        at->draw.entries = at->entries;
        CHECK_EQUAL(nr_draw_open(c.engine, 0, N, &at->draw, 0, &wait), NR_OK);
        for (int i = 0; i < N; i++)
            hits[i][c_find(&c, at->entries[i].key) - c.items]++;
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    }
    for (int i = 0; i < N; i++) {
        double expected[N], freedom = 0;

        for (int j = 0; j < N; j++)
            expected[j] = (double)ROUNDS / N;
        check_fit(chi_square(hits[i], expected, N, &freedom), N - 1);
    }
    c_close(&c);
}

/* Items that may be drawn once: of six, every three come in every order as often, whatever part of the draws had to be made again. */
static void draws_under_a_limit_are_one_after_the_other(uint32_t sampler)
{
    enum { N = 6 };
    double hits[N * N * N] = {0}, expected[N * N * N], freedom = 0;
    struct choosing c;

    c_open(&c, sampler, NR_REMOVER_FIFO, N, 80);
    c.table.limits.max_sampled = 1;
    c.table.top = N;
    c_start(&c);
    for (uint32_t i = 0; i < N; i++)
        c_insert(&c, 1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];
        uint32_t cell = 0;

        at->draw.entries = at->entries;
        CHECK_EQUAL(nr_draw_open(c.engine, 0, 3, &at->draw, 0, &wait), NR_OK);
        for (int i = 0; i < 3; i++)
            cell = cell * N + (uint32_t)(c_find(&c, at->entries[i].key) - c.items);
        hits[cell]++;
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    }
    for (uint32_t i = 0; i < N * N * N; i++) {
        uint32_t a = i / N / N, b = i / N % N, d = i % N;

        expected[i] = a == b || b == d || a == d ? 0 : ROUNDS / 120.0;
    }
    double statistic = chi_square(hits, expected, N * N * N, &freedom);
    CHECK_EQUAL((int)freedom, 119);
    check_fit(statistic, freedom);
    c_close(&c);
}

/* ---- Rules that one look shows ---- */

static void what_is_zero_is_never_drawn_by_what_looks_at_priorities(void)
{
    for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
        struct choosing c;
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];

        c_open(&c, sampler, NR_REMOVER_FIFO, 10, 5);
        c_start(&c);
        uint64_t first = c_insert(&c, 0.0, 0);
        c_insert(&c, -0.0, 0);
        at->draw.entries = at->entries;
        int status = nr_draw_open(c.engine, 0, 1, &at->draw, 0, &wait);
        CHECK_EQUAL(status, c_looks(sampler) ? NR_WAIT_EMPTY : NR_OK);
        if (c_looks(sampler)) {
            CHECK(wait.have == 2 && wait.need == 1);
            CHECK_EQUAL(c_info(&c).min_leaf, 0);
            c_update(&c, first, 1e-9);
            CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &at->draw, 0, &wait), NR_OK);
            CHECK(at->entries[0].key == first && at->entries[0].probability == 1.0);
        }
        c_audit(&c);
        c_close(&c);
    }
}

static void first_last_and_only_items_are_all_drawn(void)
{
    for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
        for (uint32_t items = 1; items <= 3; items++) {
            struct choosing c;
            bool seen[3] = {false};
            uint32_t left = items;

            c_open(&c, sampler, NR_REMOVER_FIFO, 3, 6 + items);
            c.table.top = 3;
            c_start(&c);
            for (uint32_t i = 0; i < items; i++)
                c_insert(&c, 1, 0);
            for (int tries = 0; left > 0; tries++) {
                CHECK(tries < 200);
                CHECK_EQUAL(c_draw(&c, &c.draws[0], items), NR_OK);
                for (uint32_t i = 0; i < items; i++) {
                    uint32_t at = (uint32_t)(c_find(&c, c.draws[0].entries[i].key) - c.items);

                    left -= !seen[at];
                    seen[at] = true;
                }
                c_settle(&c, &c.draws[0], true);
            }
            c_close(&c);
        }
    }
}

static void the_exponent_is_applied_once_and_stratified_too(void)
{
    struct choosing c;

    c_open(&c, NR_SAMPLER_STRATIFIED, NR_REMOVER_FIFO, 10, 5);
    c.table.exponent = 0.5;
    c_start(&c);
    c_insert(&c, 4, 0);
    CHECK_EQUAL(c_info(&c).total, (uint64_t)2 << 24);
    c_close(&c);
}

/* ---- Items that may be drawn a limited number of times ---- */

static void set_limit(struct choosing *c, uint32_t limit)
{
    c->engine->tables[0].limiter.limits.max_sampled = limit;
}

/* A queue: each item once, in order; what was drawn and not settled is neither drawable nor gone; a refund puts it in front again. */
static void a_refund_brings_an_item_back_to_its_place(void)
{
    static const uint32_t samplers[] = {NR_SAMPLER_FIFO, NR_SAMPLER_LIFO, NR_SAMPLER_MAX_HEAP, NR_SAMPLER_MIN_HEAP};

    for (int s = 0; s < 4; s++) {
        struct choosing c;

        c_open(&c, samplers[s], NR_REMOVER_FIFO, 10, 5);
        c.table.limits.max_sampled = 1;
        c_start(&c);
        for (uint32_t i = 0; i < 6; i++)
            c_insert(&c, 1 + i % 3, 0);
        for (uint32_t i = 0; i < 3; i++)
            CHECK_EQUAL(c_draw(&c, &c.draws[i], 2), NR_OK);
        CHECK_EQUAL(c_draw(&c, &c.draws[3], 1), NR_WAIT_EMPTY);
        CHECK_EQUAL(c_info(&c).size, 6);
        CHECK_EQUAL(c_info(&c).total, 0);
        c_update(&c, c.draws[0].entries[0].key, 0.25); /* its key is as good as before */
        c_settle(&c, &c.draws[1], false);
        c_compare(&c);
        c_settle(&c, &c.draws[0], false);
        c_compare(&c);
        c_settle(&c, &c.draws[2], true);
        CHECK_EQUAL(c_info(&c).size, 4);
        CHECK_EQUAL(c_info(&c).evicted_sampled, 2);
        CHECK_EQUAL(c_draw(&c, &c.draws[0], 4), NR_OK);
        c_settle(&c, &c.draws[0], true);
        CHECK_EQUAL(c_info(&c).size, 0);
        c_compare(&c);
        c_close(&c);
    }
}

/* A lowered limit: what is above it leaves when it is met; a raised one lets withheld items go with their settlement. */
static void limits_change_on_a_live_table(void)
{
    for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
        struct choosing c;
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0], *other = &c.draws[1];

        c_open(&c, sampler, NR_REMOVER_FIFO, 8, 5);
        c.table.top = 8;
        c_start(&c);
        for (uint32_t i = 0; i < 8; i++)
            c_insert(&c, 1, 0);
        for (int i = 0; i < 40; i++) {
            at->draw.entries = at->entries;
            CHECK_EQUAL(nr_draw_open(c.engine, 0, 8, &at->draw, 0, &wait), NR_OK);
            nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
        /* One draw is open while the limit comes down below what every item was drawn. */
        CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &at->draw, 0, &wait), NR_OK);
        set_limit(&c, 2);
        other->draw.entries = other->entries;
        CHECK(nr_is_wait(nr_draw_open(c.engine, 0, 1, &other->draw, 0, &wait)));
        c_audit(&c);
        CHECK_EQUAL(c_info(&c).size, 1); /* the drawn one is withheld: it has a reservation */
        CHECK_EQUAL(c_info(&c).evicted_sampled, 7);
        set_limit(&c, 1000);
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        c_audit(&c);
        CHECK_EQUAL(c_info(&c).total, (uint64_t)1 << 24);
        CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &at->draw, 0, &wait), NR_OK);
        set_limit(&c, 2);
        nr_draw_settle(c.engine, &at->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        c_audit(&c);
        CHECK_EQUAL(c_info(&c).size, 0);
        c_close(&c);
    }
}

/* Many items above a lowered limit leave a bounded number at a time, and the draw says that it waits for that. */
static void what_is_above_a_lowered_limit_leaves_in_quanta(void)
{
    for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
        struct choosing c;
        struct nr_wait wait;
        struct c_draw *at = &c.draws[0];
        int status, calls = 0;

        c_open(&c, sampler, NR_REMOVER_FIFO, 6000, 5);
        c_start(&c);
        for (uint32_t i = 0; i < 6000; i++)
            nr_table_find(&c.engine->tables[0], c_insert(&c, 1, 0))->sampled = 5;
        set_limit(&c, 5);
        at->draw.entries = at->entries;
        do {
            uint64_t progress = nr_table_progress(c.engine, 0), size = c_info(&c).size;

            status = nr_draw_open(c.engine, 0, C_MOST, &at->draw, 0, &wait);
            CHECK(size - c_info(&c).size <= 1024 + C_MOST);
            if (status == NR_WAIT_LEAVING) {
                CHECK(wait.have == c_info(&c).size && wait.need == 0);
                CHECK(nr_table_progress(c.engine, 0) > progress && c_info(&c).size < size);
            }
            CHECK(++calls < 1000);
        } while (status == NR_WAIT_LEAVING);
        CHECK_EQUAL(status, c_info(&c).size == 0 && calls > 1 ? status : NR_WAIT_EMPTY);
        CHECK_EQUAL(c_info(&c).size, 0);
        CHECK_EQUAL(c_info(&c).evicted_sampled, 6000);
        c_audit(&c);
        c_close(&c);
    }
}

/* A reader that died with its draws keeps their items from others only until they are past due. */
static void withheld_items_come_back_when_their_draw_is_past_due(void)
{
    struct choosing c;
    struct nr_wait wait;

    c_open(&c, NR_SAMPLER_FIFO, NR_REMOVER_FIFO, 8, 5);
    c.table.limits.max_sampled = 1;
    c_start(&c);
    uint64_t key = c_insert(&c, 1, 0);
    for (int i = 0; i < 2; i++)
        c.draws[i].draw.entries = c.draws[i].entries;
    CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &c.draws[0].draw, 0, &wait), NR_OK);
    CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &c.draws[1].draw, 999, &wait), NR_WAIT_EMPTY);
    CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &c.draws[1].draw, 1000, &wait), NR_OK);
    CHECK(c.draws[1].entries[0].key == key && c.draws[0].draw.reserved == 0);
    c_audit(&c);
    c_close(&c);
}

/* ---- Passes ---- */

static void passes_end_and_refunds_return_to_their_own(void)
{
    struct choosing c;
    struct nr_wait wait;

    c_open(&c, NR_SAMPLER_WITHOUT_REPLACEMENT, NR_REMOVER_FIFO, 8, 5);
    c.table.passes = 2;
    c_start(&c);
    for (uint32_t i = 0; i < 5; i++)
        c_insert(&c, 0, 0);
    CHECK_EQUAL(c_draw(&c, &c.draws[0], 3), NR_OK);
    CHECK_EQUAL(c_draw(&c, &c.draws[1], 4), NR_OK); /* two of each pass */
    c_settle(&c, &c.draws[0], false); /* of a pass that is over */
    CHECK_EQUAL(c_draw(&c, &c.draws[0], 4), NR_WAIT_PASSES);
    c_settle(&c, &c.draws[1], false); /* two come back */
    CHECK_EQUAL(c_draw(&c, &c.draws[0], 5), NR_OK);
    c_settle(&c, &c.draws[0], true);
    CHECK_EQUAL(nr_draw_open(c.engine, 0, 1, &c.draws[0].draw, 0, &wait), NR_WAIT_PASSES);
    CHECK(wait.have == 0 && wait.need == 1);
    c_insert(&c, 0, 0); /* joins the pass that is running still */
    CHECK_EQUAL(c_draw(&c, &c.draws[0], 1), NR_OK);
    c_compare(&c);
    c_close(&c);
}

int main(int argc, char **argv)
{
    uint32_t operations = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1500;

    atexit(c_say);
    what_is_zero_is_never_drawn_by_what_looks_at_priorities();
    first_last_and_only_items_are_all_drawn();
    the_exponent_is_applied_once_and_stratified_too();
    a_refund_brings_an_item_back_to_its_place();
    limits_change_on_a_live_table();
    what_is_above_a_lowered_limit_leaves_in_quanta();
    withheld_items_come_back_when_their_draw_is_past_due();
    passes_end_and_refunds_return_to_their_own();
    probabilities_are_kept(NR_SAMPLER_PRIORITIZED);
    probabilities_are_kept(NR_SAMPLER_UNIFORM);
    probabilities_are_kept(NR_SAMPLER_TOP_K);
    each_stratum_is_drawn_from_as_it_should();
    every_order_of_a_pass_is_as_likely();
    draws_under_a_limit_are_one_after_the_other(NR_SAMPLER_PRIORITIZED);
    draws_under_a_limit_are_one_after_the_other(NR_SAMPLER_UNIFORM);
    draws_under_a_limit_are_one_after_the_other(NR_SAMPLER_TOP_K);
    draws_under_a_limit_are_one_after_the_other(NR_SAMPLER_WITHOUT_REPLACEMENT);
    random_operations_agree_with_the_model(operations, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    return 0;
}
