/* Items that leave because a client says so: deletion and reset, under leases and open draws, and beside a queue's limiter.
 * usage: test_remove [ITEMS] - with a number of items, only how long a reset of so many takes and its longest quantum. */
#include <time.h>

#include "engine/random.h"
#include "tiny.h"

static const struct nr_limits none = {0};

static int open_draw(struct tiny *tiny, struct nr_draw *draw, uint32_t count)
{
    struct nr_wait wait;

    return nr_draw_open(tiny->engine, 0, count, draw, tiny->now, &wait);
}

static uint8_t delete_one(struct tiny *tiny, uint64_t key)
{
    uint8_t outcome = 99;

    CHECK_EQUAL(nr_items_delete(tiny->engine, 0, 1, &key, &outcome), NR_OK);
    return outcome;
}

/* ---- Deletion ---- */

static void deleting_one_of_n_leaves_the_others(uint32_t sampler)
{
    for (uint32_t n = 1; n < 40; n++) {
        struct tiny tiny = tiny_open(40, sampler, &none);
        struct nr_draw_entry entries[40];
        struct nr_draw draw = {.entries = entries};
        uint64_t keys[40];

        for (uint32_t i = 0; i < n; i++)
            keys[i] = tiny_insert_one(&tiny, 1 + i);
        CHECK_EQUAL(delete_one(&tiny, keys[n / 3]), NR_APPLIED);
        tiny_audit(&tiny);
        struct nr_table_info info = tiny_info(&tiny);
        CHECK(info.size == n - 1 && info.evicted_deleted == 1 && info.stale == 0 && info.inserted == n);
        CHECK_EQUAL(delete_one(&tiny, keys[n / 3]), NR_OUTCOME_STALE);
        CHECK(tiny_info(&tiny).size == n - 1 && tiny_info(&tiny).stale == 1);
        for (int times = 0; n > 1 && times < 20; times++) {
            CHECK_EQUAL(open_draw(&tiny, &draw, 1), NR_OK);
            CHECK(entries[0].key != keys[n / 3] && tiny_row(&tiny, &draw, 0) != n / 3);
            nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
        tiny_close(&tiny);
    }
}

static void keys_that_are_not_the_tables_are_stale(void)
{
    struct tiny tiny = tiny_open(8, NR_SAMPLER_PRIORITIZED, &none);
    uint64_t good[3] = {tiny_insert_one(&tiny, 1), tiny_insert_one(&tiny, 2), tiny_insert_one(&tiny, 3)};
    uint64_t keys[] = {good[1], good[1], 0, UINT64_MAX, good[0] | (uint64_t)1 << 63, good[0] ^ 1, good[2], NR_KEY_NONE};
    uint8_t outcome[8], expected[] = {0, 1, 1, 1, 1, 1, 0, 1};

    CHECK_EQUAL(nr_items_delete(tiny.engine, 0, 8, keys, outcome), NR_OK);
    CHECK(memcmp(outcome, expected, 8) == 0);
    CHECK_EQUAL(nr_items_delete(tiny.engine, 1, 8, keys, outcome), NR_NO_TABLE);
    CHECK_EQUAL(nr_items_delete(tiny.engine, 0, 0, NULL, NULL), NR_OK);
    /* The place's next item has another key. */
    uint64_t next = tiny_insert_one(&tiny, 1);
    CHECK(next != good[1] && next != good[2]);
    CHECK_EQUAL(delete_one(&tiny, good[1]), NR_OUTCOME_STALE);
    CHECK(tiny_info(&tiny).size == 2 && tiny_info(&tiny).max_priority == 1);
    tiny_close(&tiny);
}

static void a_draw_keeps_what_is_deleted_readable(void)
{
    struct tiny tiny = tiny_open(4, NR_SAMPLER_PRIORITIZED, &none);
    struct nr_draw_entry entries[4];
    struct nr_draw draw = {.entries = entries};
    uint64_t number = tiny.items, key = tiny_insert_one(&tiny, 1);

    CHECK_EQUAL(open_draw(&tiny, &draw, 4), NR_OK);
    CHECK_EQUAL(delete_one(&tiny, key), NR_APPLIED);
    tiny_audit(&tiny);
    for (int i = 0; i < 4; i++)
        tiny_insert_one(&tiny, 1);
    CHECK_EQUAL(tiny_row(&tiny, &draw, 3), number);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_COMMIT);
    CHECK(tiny_info(&tiny).sampled == 4);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE);
    tiny_audit(&tiny);
    tiny_close(&tiny);
}

/* ---- Reset ---- */

static void finish_reset(struct tiny *tiny, uint32_t quantum)
{
    struct nr_wait wait;
    uint64_t key, size = tiny_info(tiny).size;

    while (true) {
        CHECK_EQUAL(nr_table_left(tiny->engine, 0, &wait), NR_WAIT_LEAVING);
        CHECK(wait.have == size && wait.need == 0 && wait.table == 0 && nr_engine_leaving(tiny->engine));
        CHECK(tiny_insert(tiny, 1, &key, &wait) == NR_WAIT_LEAVING && wait.have == size);
        uint64_t before = nr_table_progress(tiny->engine, 0);
        bool more = nr_engine_leave(tiny->engine, quantum);
        CHECK(nr_table_progress(tiny->engine, 0) > before);
        size -= size < quantum ? size : quantum;
        CHECK_EQUAL(tiny_info(tiny).size, size);
        tiny_audit(tiny);
        if (!more)
            break;
    }
    CHECK(size == 0 && !nr_engine_leaving(tiny->engine));
    CHECK_EQUAL(nr_table_left(tiny->engine, 0, &wait), NR_OK);
    CHECK(!nr_engine_leave(tiny->engine, quantum));
}

static void everything_leaves_and_counts_begin_anew(uint32_t sampler)
{
    const struct nr_limits limits = {.min_size = 3, .samples_per_insert = 1, .least = -20, .most = 200};
    struct tiny tiny = tiny_open(100, sampler, &limits);
    struct nr_draw_entry entries[4][4];
    struct nr_draw draws[4];
    struct nr_wait wait;
    uint64_t key = 0, number = 0, update = 0;
    uint8_t outcome;
    double priority = 5;

    for (int i = 0; i < 4; i++)
        draws[i] = (struct nr_draw){.entries = entries[i]};
    for (int i = 0; i < 90; i++)
        update = key = tiny_insert_one(&tiny, 2);
    for (int i = 0; i < 4; i++) {
        CHECK_EQUAL(open_draw(&tiny, &draws[i], 4), NR_OK);
        number = draws[i].head.number;
    }
    nr_draw_settle(tiny.engine, &draws[0], NR_SETTLE_COMMIT);  /* leased only */
    nr_draw_settle(tiny.engine, &draws[1], NR_SETTLE_RELEASE); /* reserved only */
    CHECK(tiny_info(&tiny).sampled == 4 && tiny_info(&tiny).reserved == 12);

    CHECK_EQUAL(nr_table_reset(tiny.engine, 1), NR_NO_TABLE);
    CHECK_EQUAL(nr_table_left(tiny.engine, 1, &wait), NR_NO_TABLE);
    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
    struct nr_table_info info = tiny_info(&tiny);
    CHECK(info.inserted == 0 && info.sampled == 0 && info.reserved == 0 && info.size == 90 && info.leased == 12);
    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK); /* the same one */
    /* All keys are stale from the start, whether the item has left or not. */
    CHECK_EQUAL(delete_one(&tiny, key), NR_OUTCOME_STALE);
    CHECK_EQUAL(nr_priorities_update(tiny.engine, 0, 1, &update, &priority, &outcome), NR_OK);
    CHECK_EQUAL(outcome, NR_OUTCOME_STALE);
    struct nr_draw_entry more[4];
    struct nr_draw late = {.entries = more};
    CHECK_EQUAL(open_draw(&tiny, &late, 1), NR_WAIT_LEAVING);
    nr_draw_settle(tiny.engine, &draws[2], NR_SETTLE_RELEASE | NR_SETTLE_COMMIT); /* in the middle of it */
    finish_reset(&tiny, 7);

    info = tiny_info(&tiny);
    CHECK(info.evicted_reset == 90 && info.size == 0 && info.max_priority == 0 && info.total == 0);
    CHECK(tiny_row(&tiny, &draws[0], 0) < 90 && tiny_row(&tiny, &draws[3], 3) < 90); /* leases outlive it */
    nr_draw_settle(tiny.engine, &draws[0], NR_SETTLE_RELEASE);
    nr_draw_settle(tiny.engine, &draws[1], NR_SETTLE_COMMIT); /* draws of before count for nothing */
    nr_draw_settle(tiny.engine, &draws[3], NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    info = tiny_info(&tiny);
    CHECK(info.sampled == 0 && info.reserved == 0 && info.leased == 0);
    CHECK(nr_draw_open(tiny.engine, 0, 1, &late, 0, &wait) == NR_WAIT_LIMITER && wait.have == 0);
    for (int i = 0; i < 3; i++) /* the stream goes on */
        key = tiny_insert_one(&tiny, 1);
    CHECK(key != update);
    CHECK_EQUAL(open_draw(&tiny, &late, 3), NR_OK);
    CHECK_EQUAL(late.head.number, number + 1);
    CHECK(tiny_row(&tiny, &late, 0) >= 90);
    nr_draw_settle(tiny.engine, &late, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    CHECK(tiny_info(&tiny).sampled == 3 && tiny_info(&tiny).inserted == 3);

    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
    finish_reset(&tiny, 1);
    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK); /* of an empty table */
    finish_reset(&tiny, 1);
    CHECK_EQUAL(tiny_info(&tiny).evicted_reset, 93);
    tiny_close(&tiny);
}

/* Two tables that differ only in that one was reset draw the same afterwards: the random state goes on. */
static void draws_after_a_reset_follow_from_the_seed(void)
{
    uint64_t drawn[2][3];

    for (int run = 0; run < 2; run++) {
        struct tiny tiny = tiny_open(50, NR_SAMPLER_PRIORITIZED, &none);
        struct nr_draw_entry entries[8];
        struct nr_draw draw = {.entries = entries};

        for (int round = 0; round < 3; round++) {
            for (int i = 0; i < 20; i++)
                tiny_insert_one(&tiny, 1 + i % 5);
            CHECK_EQUAL(open_draw(&tiny, &draw, 8), NR_OK);
            drawn[run][round] = 0;
            for (uint32_t i = 0; i < 8; i++)
                drawn[run][round] = drawn[run][round] * 100 + tiny_row(&tiny, &draw, i);
            nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
            CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
            while (nr_engine_leave(tiny.engine, run == 0 ? 3 : 1000)) /* in whatever quanta */
                ;
        }
        tiny_close(&tiny);
    }
    CHECK(memcmp(drawn[0], drawn[1], sizeof(drawn[0])) == 0);
}

/* ---- Beside a limiter whose items are drawn so many times each ---- */

static void what_leaves_undrawn_takes_no_place_of_a_queue(void)
{
    const struct nr_limits queue = {.min_size = 1, .samples_per_insert = 1, .most = 4, .max_sampled = 1};
    struct tiny tiny = tiny_open(4, NR_SAMPLER_FIFO, &queue);
    struct nr_draw_entry entries[4];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    uint64_t keys[4], key;

    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++)
            keys[i] = tiny_insert_one(&tiny, 1);
        CHECK(tiny_insert(&tiny, 1, &key, &wait) == NR_WAIT_INSERTS && wait.need == wait.have + 1);
        for (int i = 0; i < 4; i++)
            CHECK_EQUAL(delete_one(&tiny, keys[i]), NR_APPLIED);
    }
    /* One that is drawn, deleted and then refunded as well. */
    key = tiny_insert_one(&tiny, 1);
    CHECK_EQUAL(open_draw(&tiny, &draw, 1), NR_OK);
    CHECK_EQUAL(delete_one(&tiny, key), NR_APPLIED);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    for (int i = 0; i < 4; i++)
        keys[i] = tiny_insert_one(&tiny, 1);
    CHECK_EQUAL(tiny_insert(&tiny, 1, &key, &wait), NR_WAIT_INSERTS);
    CHECK_EQUAL(open_draw(&tiny, &draw, 4), NR_OK);
    nr_draw_settle(tiny.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    /* Those lost to a reset count neither. */
    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
    while (nr_engine_leave(tiny.engine, 1))
        ;
    for (int i = 0; i < 4; i++)
        tiny_insert_one(&tiny, 1);
    CHECK(tiny_insert(&tiny, 1, &key, &wait) == NR_WAIT_INSERTS && wait.have == 0 && wait.need == 1);
    tiny_close(&tiny);
}

/* ---- How long it takes ---- */

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now); /* others may have the processor meanwhile */
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void time_a_reset(uint32_t items, uint32_t quantum)
{
    struct tiny tiny = tiny_open(items, NR_SAMPLER_PRIORITIZED, &none);
    uint64_t longest = 0, begin, before;
    bool more;

    for (uint32_t i = 0; i < items; i++)
        tiny_insert_one(&tiny, 1 + i % 1000);
    CHECK_EQUAL(nr_table_reset(tiny.engine, 0), NR_OK);
    begin = before = clock_ns();
    do {
        more = nr_engine_leave(tiny.engine, quantum);
        uint64_t now = clock_ns();
        longest = now - before > longest ? now - before : longest;
        before = now;
    } while (more);
    printf("%u items left in %.3f s, %.0f ns each; the longest quantum of %u took %.0f us\n", items, (double)(before - begin) / 1e9,
           (double)(before - begin) / items, quantum, (double)longest / 1e3);
    nr_engine_destroy(tiny.engine);
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        time_a_reset((uint32_t)strtoul(argv[1], NULL, 0), 512);
        return 0;
    }
    static const uint32_t samplers[] = {NR_SAMPLER_PRIORITIZED, NR_SAMPLER_UNIFORM, NR_SAMPLER_FIFO};
    for (uint32_t i = 0; i < 3; i++) {
        deleting_one_of_n_leaves_the_others(samplers[i]);
        everything_leaves_and_counts_begin_anew(samplers[i]);
    }
    keys_that_are_not_the_tables_are_stale();
    a_draw_keeps_what_is_deleted_readable();
    draws_after_a_reset_follow_from_the_seed();
    what_leaves_undrawn_takes_no_place_of_a_queue();
    return 0;
}
