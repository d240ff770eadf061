/* Looking without sampling: rows by key, present and absent, in any ranges; histograms by quanta. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/random.h"
#include "engine/state.h"

enum { STEP = 1024, COLUMNS = 8, ROW = 16 + 8 + STEP, LEASES = 64, OWNER = 3 };

static uint64_t steps;
static uint32_t handle;

static struct nr_engine *create(uint32_t capacity, uint32_t sampler)
{
    const struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = STEP, .steps = capacity + 100, .window = 1, .in_flight = 8, .streams = 2};
    const struct nr_table_config table = {.capacity = capacity,
                                          .sampler = sampler,
                                          .exponent = 1,
                                          .limits.min_size = capacity, /* a look asks no limiter */
                                          .leases = LEASES,
                                          .window = 1,
                                          .row_bytes = ROW,
                                          .item_bytes = COLUMNS,
                                          .gather_count = 1};
    const struct nr_gather gather = {.length = STEP, .target = 24};
    const struct nr_engine_config config = {.seed = 9,
                                            .lease_ns = 1000,
                                            .start_seconds = 1700000000,
                                            .store_count = 1,
                                            .table_count = 1,
                                            .stores = &store,
                                            .tables = &table,
                                            .gathers = &gather};
    struct nr_stream_position position;
    uint8_t id[16] = {1};
    int status;
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK_EQUAL(status, NR_OK);
    CHECK(nr_stream_open(engine, 0, id, OWNER, &position) == NR_OK);
    handle = position.handle;
    steps = 0;
    return engine;
}

static uint64_t insert(struct nr_engine *engine, double priority, uint64_t now)
{
    uint8_t bytes[STEP];
    struct nr_wait wait;
    uint64_t key, step = steps++;

    memset(bytes, (int)(step % 255) + 1, STEP);
    CHECK(nr_step_write(engine, handle, OWNER, step, STEP, 0, bytes, STEP, now, &wait) == NR_OK);
    struct nr_item item = {.number = step, .first_step = step, .steps = 1, .priority = priority, .columns = &step};
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, now, &key, &wait) == NR_OK);
    return key;
}

static void audit(const struct nr_engine *engine)
{
    char message[200];

    if (nr_engine_audit(engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static void rows_come_by_key_in_any_ranges(uint32_t sampler)
{
    struct nr_engine *engine = create(4, sampler);
    struct nr_draw_entry entries[LEASES], more[LEASES];
    struct nr_draw draw = {.entries = entries}, second = {.entries = more};
    uint64_t keys[8];
    struct nr_table_info info;
    struct nr_wait wait;
    static uint8_t rows[8 * ROW], again[8 * ROW];

    for (uint32_t i = 0; i < 5; i++) /* the first is evicted by the fifth */
        keys[i] = insert(engine, i + 1, 10);
    keys[5] = 12345;
    keys[6] = NR_KEY_NONE;
    keys[7] = keys[3]; /* twice in one call */
    CHECK(nr_draw_open_keys(engine, 0, 8, keys, &draw, 20, &wait) == NR_OK);
    audit(engine);
    CHECK(nr_draw_copy(engine, &draw, 0, rows, sizeof(rows)) == NR_OK);
    uint64_t total = sampler == NR_SAMPLER_PRIORITIZED ? 2 + 3 + 4 + 5 : 4;
    for (uint32_t i = 0; i < 8; i++) {
        bool here = i != 0 && i != 5 && i != 6;
        uint32_t item = i == 7 ? 3 : i;
        uint64_t key, number;
        double probability;

        memcpy(&key, rows + i * ROW, 8);
        memcpy(&probability, rows + i * ROW + 8, 8);
        memcpy(&number, rows + i * ROW + 16, 8);
        CHECK(key == (here ? keys[i] : NR_KEY_NONE));
        CHECK(probability == (!here ? 0 : (double)(sampler == NR_SAMPLER_PRIORITIZED ? item + 1 : 1) / (double)total));
        CHECK_EQUAL(number, here ? item : 0);
        for (uint32_t b = 24; b < ROW; b++)
            CHECK_EQUAL(rows[i * ROW + b], here ? item + 1 : 0);
    }
    for (uint32_t offset = 0, length; offset < sizeof(rows); offset += length) { /* as a reader would ask, and by reference */
        struct nr_segment segment[16];

        length = sizeof(rows) - offset < 700 ? (uint32_t)sizeof(rows) - offset : 700;
        CHECK(nr_draw_copy(engine, &draw, offset, again + offset, length) == NR_OK);
        struct nr_pieces pieces = {.own = again + offset, .least = UINT32_MAX, .room = 16, .segment = segment};
        CHECK(nr_draw_gather(engine, &draw, offset, length, &pieces) == NR_OK);
    }
    CHECK(memcmp(rows, again, sizeof(rows)) == 0);
    /* With references too, what lies apart is put together again. */
    for (uint32_t offset = 0, length; offset < sizeof(rows); offset += length) {
        struct nr_segment segment[16];
        uint8_t own[3000];
        uint32_t at = offset;

        length = sizeof(rows) - offset < 2100 ? (uint32_t)sizeof(rows) - offset : 2100;
        struct nr_pieces pieces = {.own = own, .least = 512, .room = 16, .segment = segment};
        CHECK(nr_draw_gather(engine, &draw, offset, length, &pieces) == NR_OK);
        uint32_t apart = 0; /* bytes that are in segments: the last of these */
        for (uint32_t s = 0; s < pieces.count; s++)
            apart += segment[s].length;
        CHECK(memcmp(rows + at, own, length - apart) == 0);
        at += length - apart;
        for (uint32_t s = 0; s < pieces.count; s++) {
            CHECK(memcmp(rows + at, segment[s].base, segment[s].length) == 0);
            at += segment[s].length;
            nr_step_sent(engine, segment[s].token);
        }
    }

    /* Nothing is counted, and what is evicted meanwhile stays readable. */
    nr_table_info(engine, 0, &info);
    CHECK_EQUAL(info.sampled + info.reserved, 0);
    CHECK_EQUAL(info.leased, 8);
    for (uint32_t i = 0; i < 4; i++)
        insert(engine, 1, 30);
    audit(engine);
    CHECK(nr_draw_copy(engine, &draw, 0, again, sizeof(again)) == NR_OK);
    CHECK(memcmp(rows, again, sizeof(rows)) == 0);
    CHECK(nr_draw_open_keys(engine, 0, 1, keys + 3, &second, 40, &wait) == NR_OK);
    CHECK(more[0].key == NR_KEY_NONE);
    nr_draw_settle(engine, &second, NR_SETTLE_RELEASE);
    nr_draw_settle(engine, &draw, NR_SETTLE_COMMIT); /* nothing of it is reserved */
    CHECK(draw.leased == 8);
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE);
    CHECK_EQUAL(nr_draw_copy(engine, &draw, 0, rows, 8), NR_LEASE_EXPIRED);
    audit(engine);

    /* Leases: refused above the table's, waited for below, taken back when past due. */
    CHECK_EQUAL(nr_draw_open_keys(engine, 0, 0, keys, &draw, 40, &wait), NR_BAD_COUNT);
    CHECK_EQUAL(nr_draw_open_keys(engine, 0, LEASES + 1, keys, &draw, 40, &wait), NR_BAD_COUNT);
    CHECK_EQUAL(nr_draw_open_keys(engine, 1, 1, keys, &draw, 40, &wait), NR_NO_TABLE);
    uint64_t many[LEASES];
    for (uint32_t i = 0; i < LEASES; i++)
        many[i] = keys[i % 8];
    CHECK(nr_draw_open_keys(engine, 0, LEASES, many, &draw, 40, &wait) == NR_OK);
    CHECK_EQUAL(nr_draw_open_keys(engine, 0, 1, keys, &second, 40, &wait), NR_WAIT_LEASES);
    CHECK_EQUAL(nr_draw_open_keys(engine, 0, 1, keys, &second, 1040, &wait), NR_OK);
    CHECK_EQUAL(draw.leased, 0);
    audit(engine);
    nr_engine_destroy(engine);
}

static uint32_t bucket_of(double raw)
{
    if (raw == 0)
        return 0;
    int exponent;
    (void)frexp(raw, &exponent); /* raw = m 2^exponent, m in [1/2, 1) */
    int bucket = exponent - 1 - NR_PRIORITY_BINADE + 1;
    return bucket < 1 ? 1 : bucket > NR_PRIORITY_BUCKETS - 1 ? NR_PRIORITY_BUCKETS - 1 : (uint32_t)bucket;
}

static void histograms_count_every_item_once(void)
{
    enum { ITEMS = 1000 };
    static const double priorities[] = {0, 1, 1.999, 2, 1e-300, 1e300, 0.5, 0.4999, 3, 5e-324, 0x1p-46, 0x1p47, 0x1p48};
    struct nr_engine *engine = create(ITEMS, NR_SAMPLER_PRIORITIZED);
    struct nr_histograms expected = {0}, found = {0};
    struct nr_random dice;
    uint32_t quanta = 0;
    int status;

    nr_random_seed(&dice, 5);
    for (uint64_t i = 0; i < ITEMS + 300; i++) { /* the first 300 leave */
        uint64_t born = i * 1000;
        double raw = priorities[nr_random_below(&dice, sizeof(priorities) / sizeof(priorities[0]))];
        uint64_t key = insert(engine, raw, born);

        if (i < 300)
            continue;
        uint32_t slot = nr_table_slot(&engine->tables[0], key);
        uint32_t sampled = (uint32_t)nr_random_below(&dice, 40) * (uint32_t)nr_random_below(&dice, 3);
        uint64_t age = 2000000 - born;
        nr_table_record(&engine->tables[0], slot)->sampled = sampled;
        expected.priority[bucket_of(raw)]++;
        uint32_t binade = 0;
        while (age >= UINT64_C(2) << binade)
            binade++;
        expected.age[binade]++;
        uint32_t bucket = 0, last = 0; /* of the bucket: its last number of times */
        for (; last < sampled; bucket++)
            last = bucket == 0 ? 1 : 2 * last;
        expected.sampled[bucket]++;
    }
    while ((status = nr_table_histograms(engine, 0, 2000000, 7, &found)) == NR_PENDING)
        CHECK_EQUAL(found.cursor, ++quanta * 7);
    CHECK_EQUAL(status, NR_OK);
    CHECK(quanta > 100);
    CHECK_EQUAL(found.items, ITEMS);
    CHECK(memcmp(found.priority, expected.priority, sizeof(found.priority)) == 0);
    CHECK(memcmp(found.age, expected.age, sizeof(found.age)) == 0);
    CHECK(memcmp(found.sampled, expected.sampled, sizeof(found.sampled)) == 0);
    CHECK_EQUAL(nr_table_histograms(engine, 1, 0, 7, &found), NR_NO_TABLE);
    nr_engine_destroy(engine);
}

int main(void)
{
    rows_come_by_key_in_any_ranges(NR_SAMPLER_PRIORITIZED);
    rows_come_by_key_in_any_ranges(NR_SAMPLER_UNIFORM);
    rows_come_by_key_in_any_ranges(NR_SAMPLER_FIFO);
    histograms_count_every_item_once();
    return 0;
}
