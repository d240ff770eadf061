/* Limiters: what they let through, with which numbers, against a model in whole numbers; changes of a live table.
 * usage: test_limiter [OPERATIONS [SEED]] */
#include <math.h>

#include "engine/random.h"
#include "tiny.h"

static const struct nr_limits none = {0};

static int open_draw(struct tiny *tiny, struct nr_draw *draw, uint32_t count, struct nr_wait *wait)
{
    return nr_draw_open(tiny->engine, 0, count, draw, tiny->now, wait);
}

static void a_ratio_holds_both_sides_back(void)
{
    const struct nr_limits limits = {.min_size = 4, .samples_per_insert = 1.5, .least = 2, .most = 10};
    struct tiny tiny = tiny_open(100, NR_SAMPLER_UNIFORM, &limits);
    struct nr_draw_entry entries[2][16];
    struct nr_draw draw = {.entries = entries[0]}, ahead = {.entries = entries[1]};
    struct nr_wait wait;
    uint64_t key;

    CHECK(open_draw(&tiny, &draw, 1, &wait) == NR_WAIT_LIMITER && wait.have == 0 && wait.need == 4);
    for (int i = 0; i < 6; i++)
        tiny_insert_one(&tiny, 1);
    /* 6 x 1.5 = 9; a seventh would make 10.5. */
    CHECK(tiny_insert(&tiny, 1, &key, &wait) == NR_WAIT_INSERTS && wait.have == 0 && wait.need == 1 && wait.table == 0);
    CHECK(key == NR_KEY_NONE);
    CHECK(open_draw(&tiny, &draw, 8, &wait) == NR_WAIT_SAMPLES && wait.have == 8 && wait.need == 7 && wait.table == 0);
    CHECK_EQUAL(open_draw(&tiny, &draw, 5, &wait), NR_OK);
    /* What is drawn and not taken counts for draws, and not for inserts. */
    CHECK(open_draw(&tiny, &ahead, 3, &wait) == NR_WAIT_SAMPLES && wait.have == 8 && wait.need == 7);
    CHECK_EQUAL(open_draw(&tiny, &ahead, 2, &wait), NR_OK);
    CHECK_EQUAL(tiny_insert(&tiny, 1, &key, &wait), NR_WAIT_INSERTS);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE); /* nor does the end of a lease */
    CHECK_EQUAL(tiny_insert(&tiny, 1, &key, &wait), NR_WAIT_INSERTS);
    nr_draw_settle(tiny.engine, &ahead, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    CHECK_EQUAL(tiny_insert(&tiny, 1, &key, &wait), NR_WAIT_INSERTS);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_COMMIT);
    for (int i = 0; i < 4; i++) /* (6 + 4) x 1.5 - 5 = 10 */
        tiny_insert_one(&tiny, 1);
    CHECK(tiny_insert(&tiny, 1, &key, &wait) == NR_WAIT_INSERTS && wait.have == 5 && wait.need == 7);
    CHECK(tiny_info(&tiny).inserted == 10 && tiny_info(&tiny).sampled == 5 && tiny_info(&tiny).reserved == 0);
    tiny_close(&tiny);
}

static void inserts_are_free_up_to_the_minimum(void)
{
    /* Of no use, but valid: the buffer ends before the minimum is reached. */
    const struct nr_limits limits = {.min_size = 10, .samples_per_insert = 1, .least = 0, .most = 3};
    struct tiny tiny = tiny_open(100, NR_SAMPLER_UNIFORM, &limits);
    struct nr_wait wait;
    uint64_t key;

    for (int i = 0; i < 10; i++)
        key = tiny_insert_one(&tiny, 1);
    CHECK(tiny_insert(&tiny, 1, &key, &wait) == NR_WAIT_INSERTS && wait.need == 8);
    tiny_close(&tiny);
}

static void waiting_callers_can_see_that_limits_changed(void)
{
    struct tiny tiny = tiny_open(10, NR_SAMPLER_UNIFORM, &(struct nr_limits){.min_size = 5});
    struct nr_draw_entry entries[16];
    struct nr_draw draw = {.entries = entries};
    struct nr_limits limits;
    struct nr_wait wait;
    uint64_t before = nr_table_progress(tiny.engine, 0);

    tiny_insert_one(&tiny, 1);
    CHECK_EQUAL(nr_table_limits(tiny.engine, 0, &limits), NR_OK);
    CHECK_EQUAL(limits.min_size, 5);
    before = nr_table_progress(tiny.engine, 0);
    limits.min_size = 11;
    CHECK_EQUAL(nr_table_configure(tiny.engine, 0, &limits), NR_BAD_LIMITS);
    CHECK_EQUAL(nr_table_configure(tiny.engine, 1, &limits), NR_NO_TABLE);
    CHECK_EQUAL(nr_table_limits(tiny.engine, 1, &limits), NR_NO_TABLE);
    CHECK_EQUAL(nr_table_progress(tiny.engine, 0), before);
    CHECK_EQUAL(tiny_info(&tiny).min_size, 5);
    CHECK_EQUAL(nr_table_configure(tiny.engine, 0, &none), NR_OK);
    CHECK(nr_table_progress(tiny.engine, 0) > before);
    CHECK_EQUAL(tiny_info(&tiny).min_size, 1); /* understood */
    CHECK_EQUAL(open_draw(&tiny, &draw, 16, &wait), NR_OK);
    /* A ratio put on a table that lived without one counts all that was. */
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    limits = (struct nr_limits){.min_size = 1, .samples_per_insert = 2, .least = -1, .most = 5};
    CHECK_EQUAL(nr_table_configure(tiny.engine, 0, &limits), NR_OK);
    CHECK(open_draw(&tiny, &draw, 1, &wait) == NR_WAIT_SAMPLES && wait.have == 17 && wait.need == 3);
    for (int i = 0; i < 7; i++)
        tiny_insert_one(&tiny, 1);
    CHECK_EQUAL(open_draw(&tiny, &draw, 1, &wait), NR_OK);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    struct nr_table_info info = tiny_info(&tiny);
    CHECK(info.samples_per_insert == 2 && info.least == -1 && info.most == 5 && info.max_sampled == 0 && info.versions == 0);
    tiny_close(&tiny);
}

/* ---- Limits themselves ---- */

static void limits_that_cannot_be_are_refused(void)
{
    const struct nr_limits good = {.min_size = 10, .samples_per_insert = 2, .least = 15, .most = 25};
    struct nr_limits bad;

    CHECK(nr_limits_valid(&good, 10) && nr_limits_valid(&none, 1));
#define REFUSED(change)                                                                                                            \
    do {                                                                                                                           \
        bad = good;                                                                                                                \
        change;                                                                                                                    \
        CHECK(!nr_limits_valid(&bad, 10));                                                                                         \
    } while (0)
    REFUSED(bad.min_size = 11);
    REFUSED(bad.max_sampled = UINT32_MAX);
    REFUSED(bad.samples_per_insert = -1);
    REFUSED(bad.samples_per_insert = NAN);
    REFUSED(bad.samples_per_insert = INFINITY);
    REFUSED(bad.least = NAN);
    REFUSED(bad.least = -INFINITY);
    REFUSED(bad.most = NAN);
    REFUSED(bad.most = INFINITY);
    REFUSED(bad.least = 26);
    REFUSED(bad.most = 16); /* both sides could wait */
#undef REFUSED
    CHECK(isinf(nr_limits_rows(&none)));
    CHECK(nr_limits_rows(&(struct nr_limits){.samples_per_insert = 1, .most = 8}) == 8);
    CHECK(nr_limits_rows(&(struct nr_limits){.samples_per_insert = 3, .least = -1, .most = 7}) == 6);
    CHECK(nr_limits_rows(&(struct nr_limits){.samples_per_insert = 0.5, .least = 0, .most = 4}) == 3);
}

/* Of any draw up to nr_limits_rows, whatever was inserted and taken: inserts and the draw never wait both. Of one more they can, at
 * least where the ratio is whole. */
static void no_draw_within_the_rows_waits_for_ever(void)
{
    static const double ratios[] = {0.25, 0.5, 1, 1.5, 2, 3, 7};
    static const double buffers[] = {1, 1.5, 2, 3, 7, 8.25, 20};

    for (uint32_t r = 0; r < 7; r++)
        for (uint32_t b = 0; b < 7; b++) {
            double spi = ratios[r], least = 3 * spi - buffers[b], most = 3 * spi + buffers[b];
            struct nr_limits limits = {.min_size = 3, .samples_per_insert = spi, .least = least, .most = most};
            double rows = nr_limits_rows(&limits);
            bool more = false;

            if (!nr_limits_valid(&limits, 100))
                continue;
            for (int inserted = 3; inserted < 60; inserted++)
                for (int taken = 0; taken < 60 * spi; taken++) {
                    double d = inserted * spi - taken;
                    bool insert = d + spi <= most;

                    if (d < least)
                        continue; /* never reached */
                    CHECK(insert || d - rows >= least);
                    more = more || (!insert && d - (rows + 1) < least);
                }
            CHECK(more || spi != floor(spi));
        }
}

static void limits_change_one_by_one(void)
{
    struct nr_limits limits = {.min_size = 4, .max_sampled = 3, .versions = 2, .max_age_ns = 9};
    struct nr_limits_change change = {.which = NR_LIMIT_MIN_SIZE, .min_size = 6, .max_sampled = 99, .versions = 99};

    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.min_size == 6 && limits.max_sampled == 3 && limits.versions == 2 && limits.max_age_ns == 9);
    CHECK(limits.samples_per_insert == 0 && limits.least == 0 && limits.most == 0);
    change = (struct nr_limits_change){.which = NR_LIMIT_SAMPLES_PER_INSERT, .samples_per_insert = 2};
    struct nr_limits before = limits;
    CHECK_EQUAL(nr_limits_merge(&before, &change), NR_BAD_LIMITS); /* a new ratio wants a buffer */
    change = (struct nr_limits_change){.which = NR_LIMIT_ERROR_BUFFER, .error_buffer = 5};
    before = limits;
    CHECK_EQUAL(nr_limits_merge(&before, &change), NR_BAD_LIMITS); /* and a buffer a ratio */
    change = (struct nr_limits_change){
        .which = NR_LIMIT_SAMPLES_PER_INSERT | NR_LIMIT_ERROR_BUFFER, .samples_per_insert = 2, .error_buffer = 5};
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.samples_per_insert == 2 && limits.least == 7 && limits.most == 17);
    change = (struct nr_limits_change){.which = NR_LIMIT_MIN_SIZE, .min_size = 0}; /* 1 is understood */
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.least == -3 && limits.most == 7);
    change = (struct nr_limits_change){.which = NR_LIMIT_SAMPLES_PER_INSERT, .samples_per_insert = 4};
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.least == -1 && limits.most == 9);
    change = (struct nr_limits_change){.which = NR_LIMIT_SIZE, .size = 12};
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.least == 0 && limits.most == 12);
    change.which |= NR_LIMIT_ERROR_BUFFER;
    before = limits;
    CHECK_EQUAL(nr_limits_merge(&before, &change), NR_BAD_LIMITS);
    change = (struct nr_limits_change){.which = NR_LIMIT_SAMPLES_PER_INSERT};
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.samples_per_insert == 0 && limits.least == 0 && limits.most == 0);
    change = (struct nr_limits_change){
        .which = NR_LIMIT_MAX_SAMPLED | NR_LIMIT_VERSIONS | NR_LIMIT_MAX_AGE, .max_sampled = 1, .versions = 0, .max_age_ns = 7};
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_OK);
    CHECK(limits.max_sampled == 1 && limits.versions == 0 && limits.max_age_ns == 7);
    change.which = NR_LIMIT_ALL + 1;
    CHECK_EQUAL(nr_limits_merge(&limits, &change), NR_BAD_LIMITS);
}

/* ---- Any calls ---- */

/* All that the limiter should know, in quarters of a sample so that every sum is exact. */
struct model {
    int64_t min_size, spi, least, most; /* the last three in quarters; spi 0: no ratio */
    int64_t inserted, committed, reserved, size, capacity;
};

static struct nr_limits any_limits(struct nr_random *dice, struct model *model)
{
    model->min_size = 1 + (int64_t)nr_random_below(dice, 8);
    model->spi = (int64_t)nr_random_below(dice, 16);
    int64_t buffer = (model->spi > 4 ? model->spi : 4) + (int64_t)nr_random_below(dice, 40);
    model->least = model->spi == 0 ? 0 : model->min_size * model->spi - buffer;
    model->most = model->spi == 0 ? 0 : model->min_size * model->spi + buffer;
    return (struct nr_limits){.min_size = (uint64_t)model->min_size,
                              .samples_per_insert = (double)model->spi / 4,
                              .least = (double)model->least / 4,
                              .most = (double)model->most / 4};
}

static int model_insert(const struct model *model)
{
    bool free = model->spi == 0 || model->size < model->min_size;

    return free || (model->inserted + 1) * model->spi - 4 * model->committed <= model->most ? NR_OK : NR_WAIT_INSERTS;
}

static int model_draw(const struct model *model, int64_t count)
{
    if (model->size < model->min_size)
        return NR_WAIT_LIMITER;
    int64_t drawn = model->committed + model->reserved + count;
    return model->spi == 0 || model->inserted * model->spi - 4 * drawn >= model->least ? NR_OK : NR_WAIT_SAMPLES;
}

static void check_numbers(const struct model *model, int status, int64_t count, const struct nr_wait *wait)
{
    int64_t need;

    switch (status) {
    case NR_WAIT_LIMITER:
        CHECK(wait->have == (uint64_t)model->size && wait->need == (uint64_t)model->min_size);
        break;
    case NR_WAIT_SAMPLES: /* so many could have been drawn, and not one more */
        need = (int64_t)wait->need;
        CHECK(wait->have == (uint64_t)(model->committed + model->reserved + count));
        CHECK(need == 0 || model->inserted * model->spi - 4 * need >= model->least);
        CHECK(model->inserted * model->spi - 4 * (need + 1) < model->least);
        break;
    case NR_WAIT_INSERTS:
        need = (int64_t)wait->need;
        CHECK(wait->have == (uint64_t)model->committed);
        CHECK((model->inserted + 1) * model->spi - 4 * need <= model->most);
        CHECK((model->inserted + 1) * model->spi - 4 * (need - 1) > model->most);
        break;
    default:
        CHECK_EQUAL(status, NR_OK);
    }
}

static void random_calls_agree_with_the_model(uint64_t operations, uint64_t seed)
{
    struct nr_random dice;
    struct model model = {.capacity = 12};
    nr_random_seed(&dice, seed);
    struct nr_limits limits = any_limits(&dice, &model);
    struct tiny tiny = tiny_open(12, NR_SAMPLER_PRIORITIZED, &limits);
    static struct nr_draw_entry entries[TINY_DRAWS][8];
    static struct nr_draw draws[TINY_DRAWS];
    uint64_t seen[3] = {0}, keys[64] = {0};

    for (uint32_t i = 0; i < TINY_DRAWS; i++)
        draws[i] = (struct nr_draw){.entries = entries[i]};
    for (uint64_t i = 0; i < operations; i++) {
        struct nr_wait wait = {0};
        uint32_t at = (uint32_t)nr_random_below(&dice, TINY_DRAWS);
        struct nr_draw *draw = &draws[at];
        uint32_t count = 1 + (uint32_t)nr_random_below(&dice, 8);
        uint64_t key;
        int status;

        switch (nr_random_below(&dice, 40)) {
        case 0:
            limits = any_limits(&dice, &model);
            CHECK_EQUAL(nr_table_configure(tiny.engine, 0, &limits), NR_OK);
            break;
        case 1: {
            uint8_t outcome;
            key = keys[nr_random_below(&dice, 64)];
            CHECK_EQUAL(nr_items_delete(tiny.engine, 0, 1, &key, &outcome), NR_OK);
            model.size -= outcome == NR_APPLIED;
            break;
        }
        case 2:
            if (nr_random_below(&dice, 8) != 0)
                break;
            CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
            model.inserted = model.committed = model.reserved = 0;
            do
                CHECK_EQUAL(tiny_insert(&tiny, 1, &key, &wait), NR_WAIT_LEAVING);
            while (nr_engine_leave(tiny.engine, 5));
            model.size = 0;
            break;
        default:
            if (nr_random_below(&dice, 2) == 0) {
                status = tiny_insert(&tiny, 1, &key, &wait);
                CHECK_EQUAL(status, model_insert(&model));
                check_numbers(&model, status, 0, &wait);
                if (status == NR_OK) {
                    model.inserted++;
                    model.size += model.size < model.capacity;
                    keys[nr_random_below(&dice, 64)] = key;
                }
                seen[0] += status == NR_WAIT_INSERTS;
            } else if (draw->leased == 0 && draw->reserved == 0) {
                status = open_draw(&tiny, draw, count, &wait);
                CHECK_EQUAL(status, model_draw(&model, count));
                check_numbers(&model, status, count, &wait);
                model.reserved += status == NR_OK ? count : 0;
                seen[1] += status == NR_WAIT_SAMPLES;
                seen[2] += status == NR_OK;
            } else {
                bool counted = draw->resets == 0 || draw->reserved > 0;
                uint32_t reserved = draw->reserved, how = 1 + (uint32_t)nr_random_below(&dice, 3);
                uint32_t settle = how == 1 ? NR_SETTLE_RELEASE : how == 2 ? NR_SETTLE_COMMIT : NR_SETTLE_REFUND;
                uint64_t before = tiny_info(&tiny).reserved;

                nr_draw_settle(tiny.engine, draw, settle);
                /* A draw of before a reset counts for nothing: the engine says which it was. */
                if (settle != NR_SETTLE_RELEASE && counted && tiny_info(&tiny).reserved != before) {
                    CHECK_EQUAL(before - tiny_info(&tiny).reserved, reserved);
                    model.reserved -= reserved;
                    model.committed += settle == NR_SETTLE_COMMIT ? reserved : 0;
                }
            }
        }
        struct nr_table_info info = tiny_info(&tiny);
        CHECK(info.inserted == (uint64_t)model.inserted && info.sampled == (uint64_t)model.committed &&
              info.reserved == (uint64_t)model.reserved && info.size == (uint64_t)model.size);
        if (i % 64 == 0)
            tiny_audit(&tiny);
    }
    CHECK(operations < 10000 || (seen[0] > 100 && seen[1] > 100 && seen[2] > 100));
    tiny_close(&tiny);
}

int main(int argc, char **argv)
{
    uint64_t operations = argc > 1 ? strtoull(argv[1], NULL, 0) : 200000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;

    a_ratio_holds_both_sides_back();
    inserts_are_free_up_to_the_minimum();
    waiting_callers_can_see_that_limits_changed();
    limits_that_cannot_be_are_refused();
    no_draw_within_the_rows_waits_for_ever();
    limits_change_one_by_one();
    for (uint64_t i = 0; i < 4; i++) {
        printf("seed %llu\n", (unsigned long long)(seed + i));
        random_calls_agree_with_the_model(operations, seed + i);
    }
    return 0;
}
