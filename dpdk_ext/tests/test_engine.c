/* The engine through its public calls: what SEMANTICS means by stores, items, keys, draws, waiting and space; and random sequences
 * of calls, against a plain model, audited after each. usage: test_engine [OPERATIONS [SEED]] */
#include "engine/engine.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/random.h"
#include "engine/state.h"

enum { STEP = 21, OBSERVATION = 13, COLUMNS = 11, WINDOW = 5, ROW = 88, MAX_DRAW = 64, OWNER = 77 };
#define SECOND UINT64_C(1000000000)

/* A stack of two observations at the anchor, one at the end, the action; some of the row is filled by nothing. */
static const struct nr_gather gathers[] = {
    {.delta = 0, .from_end = 1, .source = 0, .length = OBSERVATION, .target = 54},
    {.delta = -1, .from_end = 0, .source = 0, .length = OBSERVATION, .target = 27},
    {.delta = 0, .from_end = 0, .source = 0, .length = OBSERVATION, .target = 40},
    {.delta = 0, .from_end = 0, .source = OBSERVATION, .length = STEP - OBSERVATION, .target = 72},
};

struct setup {
    struct nr_store_config store;
    struct nr_table_config tables[3];
    struct nr_set_config set;
    struct nr_engine_config config;
};

static struct setup setup_of(uint32_t capacity, uint32_t sampler, double exponent)
{
    return (struct setup){
        .store = {.step_bytes = STEP,
                  .observation_bytes = OBSERVATION,
                  .steps = 3 * capacity * WINDOW + 200,
                  .window = WINDOW,
                  .in_flight = 6,
                  .streams = 4},
        .tables = {{.capacity = capacity,
                    .sampler = sampler,
                    .exponent = exponent,
                    .leases = MAX_DRAW,
                    .window = WINDOW,
                    .row_bytes = ROW,
                    .item_bytes = COLUMNS,
                    .gather_count = 4}},
        .config =
            {.seed = 1234, .lease_ns = 5 * SECOND, .start_seconds = 1700000000, .shard = 200, .store_count = 1, .table_count = 1},
    };
}

static struct nr_engine *create(struct setup *setup)
{
    int status;

    setup->config.stores = &setup->store;
    setup->config.tables = setup->tables;
    setup->config.gathers = gathers;
    setup->config.sets = &setup->set;
    struct nr_engine *engine = nr_engine_create(&setup->config, &status);
    CHECK(engine != NULL && status == NR_OK);
    return engine;
}

static void audit(const struct nr_engine *engine)
{
    char message[200];

    if (nr_engine_audit(engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static struct nr_table_info info_of(const struct nr_engine *engine, uint32_t table)
{
    struct nr_table_info info;

    CHECK(nr_table_info(engine, table, &info) == NR_OK);
    return info;
}

/* The bytes of step `number` of stream `stream`. */
static void step_bytes(uint32_t stream, uint64_t number, bool is_short, uint8_t bytes[STEP])
{
    for (int i = 0; i < STEP; i++)
        bytes[i] = (uint8_t)(nr_random_mix(number * 1000003 + stream * 7919 + (uint64_t)i) | 1);
    if (is_short)
        memset(bytes + OBSERVATION, 0, STEP - OBSERVATION);
}

static struct nr_stream_position open_stream(struct nr_engine *engine, uint32_t stream)
{
    struct nr_stream_position position;
    uint8_t id[16] = {(uint8_t)stream, 1, 2, 3};

    CHECK(nr_stream_open(engine, 0, id, OWNER, &position) == NR_OK);
    return position;
}

static int write_step(struct nr_engine *engine, uint32_t handle, uint32_t stream, uint64_t number)
{
    uint8_t bytes[STEP];
    struct nr_wait wait;

    step_bytes(stream, number, false, bytes);
    return nr_step_write(engine, handle, OWNER, number, STEP, 0, bytes, STEP, 0, &wait);
}

/* A one-step-longer stream, and an item over its last steps. */
struct feed {
    struct nr_engine *engine;
    uint32_t handle, stream;
    uint64_t steps, items;
};

static struct feed feed_of(struct nr_engine *engine, uint32_t stream)
{
    struct nr_stream_position position = open_stream(engine, stream);

    return (struct feed){.engine = engine, .handle = position.handle, .stream = stream};
}

static uint64_t feed_item(struct feed *feed, uint32_t table, uint32_t window, double priority, uint32_t flags, int expected)
{
    uint8_t columns[COLUMNS];
    uint64_t key;
    struct nr_wait wait;

    do
        CHECK(write_step(feed->engine, feed->handle, feed->stream, feed->steps++) == NR_OK);
    while (feed->steps < window);
    memset(columns, (int)feed->items, sizeof(columns));
    struct nr_item item = {.number = feed->items++,
                           .first_step = feed->steps - window,
                           .steps = window,
                           .anchor = 0,
                           .length = window - 1,
                           .flags = flags,
                           .priority = priority,
                           .columns = columns};
    CHECK_EQUAL(nr_item_insert(feed->engine, table, feed->handle, OWNER, &item, 0, &key, &wait), expected);
    CHECK((key == NR_KEY_NONE) == (expected != NR_OK));
    return key;
}

static uint8_t update(struct nr_engine *engine, uint64_t key, double priority)
{
    uint8_t outcome;

    CHECK(nr_priorities_update(engine, 0, 1, &key, &priority, &outcome) == NR_OK);
    return outcome;
}

/* ---- Priorities: CASES 1 to 9 ---- */

static void bad_priorities_are_refused_one_by_one(void)
{
    static const double bad[] = {NAN, INFINITY, -INFINITY, -1, -1e-7, -5e-324};
    struct setup setup = setup_of(100, NR_SAMPLER_PRIORITIZED, 1);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    uint64_t keys[32];
    double priorities[32];
    uint8_t outcome[32];

    for (int i = 0; i < 32; i++)
        keys[i] = feed_item(&feed, 0, 2, 1, 0, NR_OK);
    for (size_t b = 0; b < sizeof(bad) / sizeof(bad[0]); b++) {
        feed_item(&feed, 0, 2, bad[b], 0, NR_BAD_PRIORITY);
        for (int i = 0; i < 32; i++)
            priorities[i] = i == 17 ? bad[b] : i + 1;
        CHECK(nr_priorities_update(engine, 0, 32, keys, priorities, outcome) == NR_OK);
        for (int i = 0; i < 32; i++)
            CHECK(outcome[i] == (i == 17 ? NR_OUTCOME_REFUSED : NR_APPLIED));
        audit(engine);
    }
    struct nr_table_info info = info_of(engine, 0);
    CHECK_EQUAL(info.refused, 12);
    CHECK_EQUAL(info.size, 32);
    CHECK_EQUAL(info.total, (uint64_t)(32 * 33 / 2 - 18 + 1) << 24);
    nr_engine_destroy(engine);
}

static void extreme_priorities_stay_drawable(void)
{
    static const double raws[] = {5e-324, 1e-300, 1e38, 1e300, 1.7976931348623157e308};
    struct setup setup = setup_of(10, NR_SAMPLER_PRIORITIZED, 0.6);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);

    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++)
        feed_item(&feed, 0, 1, raws[i], 0, NR_OK);
    audit(engine);
    struct nr_table_info info = info_of(engine, 0);
    CHECK(info.max_priority == raws[4]);
    CHECK_EQUAL(info.min_leaf, 1);
    CHECK(info.max_leaf == UINT64_MAX / 10);
    CHECK_EQUAL(info.saturated, 5); /* 1e38^0.6 weighs 6e22, above the cap too */
    nr_engine_destroy(engine);
}

static void nothing_is_drawn_where_all_is_zero(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_PRIORITIZED, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_draw_entry entries[4];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;

    CHECK(nr_draw_open(engine, 0, 4, &draw, 0, &wait) == NR_WAIT_LIMITER && wait.have == 0 && wait.need == 1);
    feed_item(&feed, 0, 1, 0.0, 0, NR_OK);
    uint64_t key = feed_item(&feed, 0, 1, -0.0, 0, NR_OK);
    CHECK(nr_draw_open(engine, 0, 4, &draw, 0, &wait) == NR_WAIT_EMPTY && wait.have == 2 && wait.need == 1);
    CHECK(wait.reason == NR_WAIT_EMPTY && wait.table == 0);
    CHECK(info_of(engine, 0).reserved == 0 && info_of(engine, 0).leased == 0);
    uint64_t progress = nr_table_progress(engine, 0);
    CHECK(update(engine, key, 1e-9) == NR_APPLIED);
    CHECK(nr_table_progress(engine, 0) > progress);
    CHECK(nr_draw_open(engine, 0, 4, &draw, 0, &wait) == NR_OK && wait.reason == 0);
    for (int i = 0; i < 4; i++)
        CHECK(entries[i].key == key && entries[i].probability == 1.0);
    CHECK(draw.head.max_leaf == 1 << 24 && draw.head.min_leaf == 1 << 24 && draw.head.total == 1 << 24 && draw.head.size == 2);
    audit(engine);
    nr_engine_destroy(engine);
}

static void the_default_priority_is_the_largest_kept_as_it_is(void)
{
    struct setup setup = setup_of(4, NR_SAMPLER_PRIORITIZED, 0.6);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);

    uint64_t first = feed_item(&feed, 0, 1, NAN, NR_ITEM_DEFAULT_PRIORITY, NR_OK);
    CHECK(info_of(engine, 0).max_priority == 1.0);
    CHECK(update(engine, first, 0.37) == NR_APPLIED);
    feed_item(&feed, 0, 1, 0, NR_ITEM_DEFAULT_PRIORITY, NR_OK);
    struct nr_table_info info = info_of(engine, 0);
    CHECK(info.max_priority == 0.37);
    CHECK(info.total == 2 * info.max_leaf && info.max_leaf == info.min_leaf);
    /* The largest leaves with its item. */
    uint64_t large = feed_item(&feed, 0, 1, 9, 0, NR_OK);
    feed_item(&feed, 0, 1, 0.25, 0, NR_OK);
    for (int i = 0; i < 2; i++)
        feed_item(&feed, 0, 1, 0.5, 0, NR_OK);
    CHECK(info_of(engine, 0).max_priority == 9);
    feed_item(&feed, 0, 1, 0.5, 0, NR_OK);
    CHECK(info_of(engine, 0).max_priority == 0.5);
    CHECK(update(engine, large, 1) == NR_OUTCOME_STALE);
    audit(engine);
    nr_engine_destroy(engine);

    /* In a table of one, the item that makes room still counts: the newcomer's default is asked for before. */
    setup = setup_of(1, NR_SAMPLER_PRIORITIZED, 1);
    engine = create(&setup);
    feed = feed_of(engine, 0);
    feed_item(&feed, 0, 1, 0.37, 0, NR_OK);
    feed_item(&feed, 0, 1, 0, NR_ITEM_DEFAULT_PRIORITY, NR_OK);
    CHECK(info_of(engine, 0).max_priority == 0.37);
    nr_engine_destroy(engine);
}

static void first_last_and_only_items_are_drawn(void)
{
    static const uint32_t capacities[] = {1, 2, 3, 5, 7, 1000, 1023, 1024, 1025};

    for (size_t c = 0; c < sizeof(capacities) / sizeof(capacities[0]); c++) {
        for (uint32_t sampler = 0; sampler < 2; sampler++) {
            uint32_t capacity = capacities[c];
            struct setup setup = setup_of(capacity, sampler, 0.5);
            struct nr_engine *engine = create(&setup);
            struct feed feed = feed_of(engine, 0);
            uint64_t *keys = calloc(2 * capacity, sizeof(*keys));
            bool *seen = calloc(2 * capacity, sizeof(*seen));
            uint32_t left = 0;

            for (uint32_t items = 1; items <= 2 * capacity; items++) {
                keys[items - 1] = feed_item(&feed, 0, 3, 1, 0, NR_OK);
                CHECK(info_of(engine, 0).size == (items < capacity ? items : capacity));
                if (items > 3 && items != capacity && items != 2 * capacity - 1 && items != 2 * capacity)
                    continue;
                /* Draws until each item that should be there was seen; none else may come. */
                uint32_t oldest = items > capacity ? items - capacity : 0;
                memset(seen, 0, 2 * capacity);
                left = items - oldest;
                for (int tries = 0; left > 0; tries++) {
                    struct nr_draw_entry entries[MAX_DRAW];
                    struct nr_draw draw = {.entries = entries};
                    struct nr_wait wait;

                    CHECK(tries < 10000);
                    CHECK(nr_draw_open(engine, 0, MAX_DRAW, &draw, 0, &wait) == NR_OK);
                    for (int i = 0; i < MAX_DRAW; i++) {
                        uint32_t at = oldest;

                        while (at < items && keys[at] != entries[i].key)
                            at++;
                        CHECK(at < items);
                        CHECK(fabs(entries[i].probability * (items - oldest) - 1) < 1e-12);
                        left -= !seen[at];
                        seen[at] = true;
                    }
                    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
                }
            }
            CHECK(info_of(engine, 0).evicted_capacity == capacity);
            audit(engine);
            free(seen);
            free(keys);
            nr_engine_destroy(engine);
        }
    }
}

static void draws_are_as_frequent_as_they_say(uint32_t sampler)
{
    enum { ITEMS = 300, DRAWS = 60000 };
    struct setup setup = setup_of(400, sampler, 0.6);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_random random;
    uint64_t keys[ITEMS];
    double probability[ITEMS] = {0}, hits[ITEMS] = {0}, statistic = 0, sum = 0;
    int cells = 0;

    nr_random_seed(&random, 11);
    for (int i = 0; i < ITEMS; i++)
        keys[i] = feed_item(&feed, 0, 1, (double)nr_random_below(&random, 10), 0, NR_OK);
    for (int d = 0; d < DRAWS; d++) {
        struct nr_draw_entry entries[MAX_DRAW];
        struct nr_draw draw = {.entries = entries};
        struct nr_wait wait;

        CHECK(nr_draw_open(engine, 0, MAX_DRAW, &draw, 0, &wait) == NR_OK);
        CHECK(draw.head.number == (uint64_t)d + 1);
        for (int i = 0; i < MAX_DRAW; i++) {
            int at = 0;

            /* Keys of fresh slots come in order of their slots. */
            while (keys[at] != entries[i].key)
                at++;
            hits[at]++;
            CHECK(probability[at] == 0 || probability[at] == entries[i].probability);
            probability[at] = entries[i].probability;
        }
        nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    }
    for (int i = 0; i < ITEMS; i++) {
        double expected = probability[i] * DRAWS * MAX_DRAW;

        sum += probability[i];
        if (expected > 0) {
            statistic += (hits[i] - expected) * (hits[i] - expected) / expected;
            cells++;
        }
    }
    CHECK(fabs(sum - 1) < 1e-9);
    CHECK(fabs(statistic - (cells - 1)) < 5 * sqrt(2.0 * (cells - 1)));
    CHECK(info_of(engine, 0).sampled == DRAWS * MAX_DRAW);
    audit(engine);
    nr_engine_destroy(engine);
}

static void an_exponent_of_zero_is_uniform_over_what_is_positive(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_PRIORITIZED, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);

    for (int i = 0; i < 8; i++)
        feed_item(&feed, 0, 1, i % 2 ? pow(10, i) : 0, 0, NR_OK);
    struct nr_table_info info = info_of(engine, 0);
    CHECK(info.total == 4u << 24 && info.max_leaf == 1 << 24 && info.min_leaf == 1 << 24);
    nr_engine_destroy(engine);
}

/* ---- Identity: CASES 10, 12, 13 ---- */

static void a_key_never_touches_its_successor(void)
{
    struct setup setup = setup_of(7, NR_SAMPLER_PRIORITIZED, 1);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    uint64_t keys[7], strange[] = {0, 1, NR_KEY_NONE, UINT64_MAX - 1, UINT64_C(1) << 63, (UINT64_C(1) << 63) - 1};
    double priorities[7];
    uint8_t outcome[7];

    for (int i = 0; i < 7; i++) {
        keys[i] = feed_item(&feed, 0, 2, 1, 0, NR_OK);
        CHECK(keys[i] >> 55 == 200);
        priorities[i] = 100;
    }
    for (int i = 0; i < 7; i++)
        feed_item(&feed, 0, 2, 1, 0, NR_OK);
    uint64_t total = info_of(engine, 0).total;
    CHECK(nr_priorities_update(engine, 0, 7, keys, priorities, outcome) == NR_OK);
    for (int i = 0; i < 7; i++)
        CHECK(outcome[i] == NR_OUTCOME_STALE);
    CHECK(info_of(engine, 0).total == total && info_of(engine, 0).stale == 7 && info_of(engine, 0).updated == 0);
    for (size_t i = 0; i < sizeof(strange) / sizeof(strange[0]); i++)
        CHECK(update(engine, strange[i], 5) == NR_OUTCOME_STALE);
    for (int bit = 0; bit < 64; bit++)
        CHECK(update(engine, keys[3] ^ UINT64_C(1) << bit, 5) == NR_OUTCOME_STALE || bit < 3);
    CHECK(nr_priorities_update(engine, 1, 1, keys, priorities, outcome) == NR_NO_TABLE);
    CHECK(nr_priorities_update(engine, 0, 0, NULL, NULL, NULL) == NR_OK);
    audit(engine);
    nr_engine_destroy(engine);
}

static void numbers_are_decided_once(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_UNIFORM, 0);
    struct nr_engine *engine = create(&setup);
    struct nr_stream_position position = open_stream(engine, 3);
    uint32_t handle = position.handle;
    uint8_t columns[COLUMNS] = {0};
    uint64_t key;
    struct nr_wait wait;
    struct nr_item item = {.number = 5, .first_step = 100, .steps = 2, .anchor = 0, .length = 1, .priority = 1, .columns = columns};

    CHECK(position.known == 0 && position.next_step == 0 && position.next_item == 0);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_WAIT_STEPS && wait.have == 0 && wait.need == 2);
    CHECK(write_step(engine, handle, 3, 100) == NR_OK && write_step(engine, handle, 3, 100) == NR_DUPLICATE);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_WAIT_STEPS && wait.have == 1 && wait.need == 2);
    CHECK(write_step(engine, handle, 3, 101) == NR_OK);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_OK && key != NR_KEY_NONE);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_DUPLICATE && key == NR_KEY_NONE);
    item.number = 4; /* skipped over, so decided */
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_DUPLICATE);
    item.number = 6;
    item.priority = NAN;
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_BAD_PRIORITY);
    item.priority = 1;
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_DUPLICATE);
    item.number = 7;
    CHECK(nr_item_insert(engine, 9, handle, OWNER, &item, 0, &key, &wait) == NR_NO_TABLE);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_DUPLICATE);
    position = open_stream(engine, 3);
    CHECK(position.known == 1 && position.handle == handle && position.next_step == 102 && position.next_item == 8);

    struct nr_stream_position other;
    uint8_t id[16] = {3, 1, 2, 3};
    CHECK(nr_stream_open(engine, 0, id, OWNER + 1, &other) == NR_STREAM_OWNED);
    CHECK(nr_stream_open(engine, 1, id, OWNER, &other) == NR_NO_STORE);
    CHECK(nr_stream_open(engine, 0, id, 0, &other) == NR_MALFORMED);
    item.number = 8;
    CHECK(nr_item_insert(engine, 0, handle, OWNER + 1, &item, 0, &key, &wait) == NR_STREAM_GONE);
    CHECK(nr_stream_close(engine, handle, OWNER + 1) == NR_STREAM_GONE);

    /* Half a step, and its owner dies: the half is dropped, what is whole stays, another takes up. */
    uint8_t bytes[STEP];
    step_bytes(3, 102, false, bytes);
    CHECK(nr_step_write(engine, handle, OWNER, 102, STEP, 0, bytes, 9, 0, &wait) == NR_OK);
    nr_stream_release_owner(engine, OWNER);
    audit(engine);
    CHECK(write_step(engine, handle, 3, 102) == NR_STREAM_GONE);
    CHECK(nr_stream_open(engine, 0, id, OWNER + 1, &other) == NR_OK && other.known && other.next_step == 102 &&
          other.next_item == 8);
    item.first_step = 101;
    CHECK(nr_item_insert(engine, 0, other.handle, OWNER + 1, &item, 0, &key, &wait) == NR_WAIT_STEPS && wait.have == 1);
    CHECK(nr_step_write(engine, other.handle, OWNER + 1, 102, STEP, 0, bytes, STEP, 0, &wait) == NR_OK);
    CHECK(nr_item_insert(engine, 0, other.handle, OWNER + 1, &item, 0, &key, &wait) == NR_OK);
    CHECK(nr_stream_close(engine, other.handle, OWNER + 1) == NR_OK);
    CHECK(nr_stream_close(engine, other.handle, OWNER + 1) == NR_STREAM_GONE);
    CHECK(info_of(engine, 0).size == 2 && info_of(engine, 0).steps == 3);
    audit(engine);
    nr_engine_destroy(engine);
}

static void places_for_streams_go_to_the_least_recently_used(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_UNIFORM, 0);
    struct nr_engine *engine = create(&setup);
    struct nr_stream_position position[6];
    uint8_t id[16] = {0};

    for (uint32_t i = 0; i < 4; i++) {
        id[0] = (uint8_t)i;
        CHECK(nr_stream_open(engine, 0, id, OWNER + i, &position[i]) == NR_OK);
    }
    id[0] = 4;
    CHECK(nr_stream_open(engine, 0, id, OWNER, &position[4]) == NR_TOO_MANY);
    nr_stream_release_owner(engine, OWNER + 2);
    nr_stream_release_owner(engine, OWNER + 1);
    audit(engine);
    CHECK(nr_stream_open(engine, 0, id, OWNER, &position[4]) == NR_OK && position[4].known == 0);
    id[0] = 1;
    CHECK(nr_stream_open(engine, 0, id, OWNER, &position[1]) == NR_OK && position[1].known == 1);
    id[0] = 2;
    CHECK(nr_stream_open(engine, 0, id, OWNER, &position[5]) == NR_TOO_MANY);
    CHECK(write_step(engine, position[2].handle, 2, 0) == NR_STREAM_GONE);
    CHECK(write_step(engine, position[4].handle, 4, 0) == NR_OK);
    audit(engine);
    nr_engine_destroy(engine);
}

/* ---- Steps as hostile clients write them ---- */

static void steps_are_taken_in_any_order_and_never_beyond_their_bounds(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_UNIFORM, 0);
    struct nr_engine *engine = create(&setup);
    uint32_t handle = open_stream(engine, 1).handle, span = WINDOW - 1 + 6;
    uint8_t bytes[STEP];
    struct nr_wait wait;

#define WRITE(number, total, offset, length) nr_step_write(engine, handle, OWNER, number, total, offset, bytes, length, 0, &wait)
    step_bytes(1, 50, false, bytes);
    CHECK(WRITE(50, STEP, 0, 0) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP, 0, STEP + 1) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP, 1, STEP) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP, UINT32_MAX, 2) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP, 2, UINT32_MAX) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP, STEP, 1) == NR_BAD_LENGTH);
    CHECK(WRITE(50, STEP - 1, 0, 1) == NR_BAD_LENGTH);
    CHECK(WRITE(50, UINT32_MAX, 0, 1) == NR_BAD_LENGTH);
    CHECK(WRITE(50, 0, 0, 0) == NR_BAD_LENGTH);
    CHECK(WRITE(UINT64_MAX, STEP, 0, STEP) == NR_BAD_WINDOW);
    CHECK(WRITE((uint64_t)1 << 63, STEP, 0, STEP) == NR_BAD_WINDOW);
    CHECK(info_of(engine, 0).steps == 0);
    CHECK(nr_step_write(engine, handle ^ 1, OWNER, 50, STEP, 0, bytes, STEP, 0, &wait) == NR_STREAM_GONE);
    CHECK(nr_step_write(engine, handle ^ 0x80000000, OWNER, 50, STEP, 0, bytes, STEP, 0, &wait) == NR_STREAM_GONE);
    CHECK(nr_step_write(engine, UINT32_MAX, OWNER, 50, STEP, 0, bytes, STEP, 0, &wait) == NR_STREAM_GONE);
    CHECK(nr_step_write(engine, handle, 0, 50, STEP, 0, bytes, STEP, 0, &wait) == NR_STREAM_GONE);

    CHECK(WRITE(50, STEP, 10, STEP - 10) == NR_OK);
    CHECK(WRITE(50 - span, STEP, 0, 10) == NR_DUPLICATE);  /* its place in the ring is another's, unfinished */
    CHECK(WRITE(50, STEP, 0, 11) == NR_BAD_LENGTH);        /* one byte more than is missing */
    CHECK(WRITE(50, OBSERVATION, 0, 5) == NR_BAD_LENGTH);  /* it began as a whole step */
    CHECK(nr_step_write(engine, handle, OWNER, 50, STEP, 0, bytes, 10, 0, &wait) == NR_OK);
    CHECK(WRITE(50, STEP, 0, 1) == NR_DUPLICATE);
    CHECK(WRITE(50 + span + 1, STEP, 0, STEP) == NR_BAD_WINDOW);
    CHECK(WRITE(50 - span, STEP, 0, STEP) == NR_DUPLICATE);
    CHECK(open_stream(engine, 1).next_step == 51);
    CHECK(WRITE(50 - span + 1, STEP, 0, STEP) == NR_OK);   /* the oldest that the ring has room for */
    CHECK(open_stream(engine, 1).next_step == 50 - span + 2);
    audit(engine);
    CHECK(WRITE(50 + span, STEP, 0, STEP) == NR_OK); /* the furthest ahead: everything before leaves the ring */
    audit(engine);
    CHECK(info_of(engine, 0).steps == 1);
    for (uint64_t number = 50 + span; number > 50; number--)
        CHECK(WRITE(number, STEP, 0, STEP) == (number == 50 + span ? NR_DUPLICATE : NR_OK));
    CHECK(WRITE(50, STEP, 0, STEP) == NR_DUPLICATE);
    CHECK(info_of(engine, 0).steps == span);
    CHECK(open_stream(engine, 1).next_step == 50 + span + 1);
    audit(engine);
#undef WRITE
    nr_engine_destroy(engine);
}

static void windows_must_lie_in_what_the_stream_holds(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_UNIFORM, 0);
    setup.tables[0].window = 4;
    struct nr_engine *engine = create(&setup);
    uint32_t handle = open_stream(engine, 1).handle;
    uint8_t columns[COLUMNS] = {0};
    uint64_t key, number = 0, span = WINDOW - 1 + 6;
    struct nr_wait wait;

    for (uint64_t step = 100; step < 130; step++)
        CHECK(write_step(engine, handle, 1, step) == NR_OK);
#define INSERT(first, count, at, k)                                                                                                \
    nr_item_insert(                                                                                                                \
        engine, 0, handle, OWNER,                                                                                                  \
        &(struct nr_item){.number = number++, .first_step = first, .steps = count, .anchor = at, .length = k, .columns = columns}, \
        0, &key, &wait)
    CHECK(INSERT(126, 0, 0, UINT32_MAX) == NR_BAD_WINDOW);
    CHECK(INSERT(126, 5, 0, 4) == NR_BAD_WINDOW);
    CHECK(INSERT(126, UINT32_MAX, 0, UINT32_MAX - 1) == NR_BAD_WINDOW);
    CHECK(INSERT(126, 4, 1, 3) == NR_BAD_WINDOW);
    CHECK(INSERT(126, 4, UINT32_MAX, 4) == NR_BAD_WINDOW);
    CHECK(INSERT(126, 4, 4, UINT32_MAX) == NR_BAD_WINDOW);
    CHECK(INSERT(UINT64_MAX, 2, 0, 1) == NR_BAD_WINDOW);
    CHECK(INSERT(130 - span - 1, 2, 0, 1) == NR_BAD_WINDOW); /* its first step has left the ring */
    CHECK(INSERT(0, 2, 0, 1) == NR_BAD_WINDOW);
    CHECK(INSERT(130 + span, 1, 0, 0) == NR_BAD_WINDOW); /* no step so far ahead could be written */
    CHECK(info_of(engine, 0).refused == 10);
    CHECK(INSERT(130 + span - 1, 1, 0, 0) == NR_WAIT_STEPS);
    CHECK(INSERT(127, 4, 3, 0) == NR_WAIT_STEPS && wait.have == 3 && wait.need == 4);
    CHECK(INSERT(130 - span, 4, 0, 3) == NR_OK);
    CHECK(INSERT(126, 4, 3, 0) == NR_OK);
    CHECK(INSERT(129, 1, 0, 0) == NR_OK);
#undef INSERT
    audit(engine);
    nr_engine_destroy(engine);
}

/* ---- Rows ---- */

/* What a row must be, after its head. */
static void expect_row(uint8_t row[ROW], uint32_t stream, uint64_t first, uint32_t anchor, uint32_t length, bool last_is_short,
                       const uint8_t columns[COLUMNS])
{
    uint8_t bytes[STEP];

    memset(row, 0, ROW);
    memcpy(row + NR_ROW_HEAD, columns, COLUMNS);
    step_bytes(stream, first + (anchor > 0 ? anchor - 1 : 0), last_is_short && length == 0 && anchor == 0, bytes);
    memcpy(row + 27, bytes, OBSERVATION);
    step_bytes(stream, first + anchor, last_is_short && length == 0, bytes);
    memcpy(row + 40, bytes, OBSERVATION);
    memcpy(row + 72, bytes + OBSERVATION, STEP - OBSERVATION);
    step_bytes(stream, first + anchor + length, last_is_short, bytes);
    memcpy(row + 54, bytes, OBSERVATION);
}

static void any_range_of_rows_is_right_through_a_lease(void)
{
    struct setup setup = setup_of(8, NR_SAMPLER_FIFO, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 2);
    uint8_t expected[8 * ROW], got[8 * ROW], columns[COLUMNS];
    struct nr_draw_entry entries[8];
    struct nr_draw draw = {.entries = entries}, other = {.entries = entries};
    struct nr_wait wait;

    /* Windows of 1 to 5 steps with anchors at their start, so that stacks reach before it. */
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t window = 1 + i % 5;
        uint64_t key = feed_item(&feed, 0, window, 1, 0, NR_OK);

        memset(columns, (int)i, COLUMNS);
        expect_row(expected + i * ROW, 2, feed.steps - window, 0, window - 1, false, columns);
        memcpy(expected + i * ROW, &(struct nr_draw_entry){.key = key, .probability = 1.0}, NR_ROW_HEAD);
    }
    CHECK(nr_draw_open(engine, 0, 9, &other, 0, &wait) == NR_BAD_COUNT);
    CHECK(nr_draw_open(engine, 0, 8, &draw, 0, &wait) == NR_OK);
    CHECK(nr_table_row_bytes(engine, 0) == ROW && nr_table_row_bytes(engine, 1) == 0);
    for (int overwritten = 0; overwritten < 2; overwritten++) {
        for (uint32_t offset = 0; offset < 3 * ROW; offset++) {
            for (uint32_t length = 0; length <= 3 * ROW; length += 1 + offset % 3) {
                memset(got, 0xee, sizeof(got));
                CHECK(nr_draw_copy(engine, &draw, offset, got, length) == NR_OK);
                CHECK(memcmp(got, expected + offset, length) == 0);
                CHECK(length == sizeof(got) || got[length] == 0xee);
            }
        }
        CHECK(nr_draw_copy(engine, &draw, 0, got, sizeof(got)) == NR_OK && memcmp(got, expected, sizeof(got)) == 0);
        CHECK(nr_draw_copy(engine, &draw, 8 * ROW, got, 0) == NR_OK);
        CHECK(nr_draw_copy(engine, &draw, 8 * ROW, got, 1) == NR_BAD_LENGTH);
        CHECK(nr_draw_copy(engine, &draw, 1, got, 8 * ROW) == NR_BAD_LENGTH);
        CHECK(nr_draw_copy(engine, &draw, UINT64_MAX, got, 8 * ROW) == NR_BAD_LENGTH);
        /* Overwrite all, then compare again: the lease keeps what was drawn. */
        for (int i = 0; i < 100 && !overwritten; i++)
            feed_item(&feed, 0, 5, 1, 0, NR_OK);
        audit(engine);
    }
    for (int i = 0; i < 8; i++)
        CHECK(update(engine, entries[i].key, 2) == NR_OUTCOME_STALE);
    uint64_t before = info_of(engine, 0).steps;
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE);
    CHECK(info_of(engine, 0).steps < before && info_of(engine, 0).leased == 0 && info_of(engine, 0).reserved == 8);
    CHECK(draw.leased == 0 && draw.reserved == 8);
    CHECK(nr_draw_copy(engine, &draw, 0, got, 1) == NR_LEASE_EXPIRED);
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE);
    nr_draw_settle(engine, &draw, NR_SETTLE_COMMIT);
    nr_draw_settle(engine, &draw, NR_SETTLE_REFUND);
    CHECK(info_of(engine, 0).reserved == 0 && info_of(engine, 0).sampled == 8);
    audit(engine);
    nr_engine_destroy(engine);
}

static void observation_only_steps_are_zero_where_nothing_was_sent(void)
{
    struct setup setup = setup_of(2, NR_SAMPLER_FIFO, 0);
    struct nr_engine *engine = create(&setup);
    uint32_t handle = open_stream(engine, 2).handle;
    uint8_t bytes[STEP], columns[COLUMNS] = {1}, row[ROW], expected[ROW];
    struct nr_draw_entry entry;
    struct nr_draw draw = {.entries = &entry};
    struct nr_wait wait;
    uint64_t key;

    /* Fill and free the slab's places first, so that the zeros are not those of fresh memory. */
    for (uint64_t i = 0; i < 100; i++)
        CHECK(write_step(engine, handle, 2, i) == NR_OK);
    step_bytes(2, 100, true, bytes);
    CHECK(nr_step_write(engine, handle, OWNER, 100, OBSERVATION, 4, bytes + 4, OBSERVATION - 4, 0, &wait) == NR_OK);
    struct nr_item item = {.first_step = 100, .steps = 1, .columns = columns, .flags = NR_ITEM_DEFAULT_PRIORITY};
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_WAIT_STEPS);
    CHECK(nr_step_write(engine, handle, OWNER, 100, OBSERVATION, 0, bytes, 4, 0, &wait) == NR_OK);
    CHECK(nr_item_insert(engine, 0, handle, OWNER, &item, 0, &key, &wait) == NR_OK);
    CHECK(nr_draw_open(engine, 0, 1, &draw, 0, &wait) == NR_OK);
    CHECK(nr_draw_copy(engine, &draw, 0, row, ROW) == NR_OK);
    expect_row(expected, 2, 100, 0, 0, true, columns);
    CHECK(memcmp(row + NR_ROW_HEAD, expected + NR_ROW_HEAD, ROW - NR_ROW_HEAD) == 0);
    nr_engine_destroy(engine);
}

/* ---- Waiting and space ---- */

static void draws_wait_for_the_minimum_and_for_leases(void)
{
    struct setup setup = setup_of(20, NR_SAMPLER_UNIFORM, 0);
    setup.tables[0].limits.min_size = 5;
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_draw_entry entries[4][MAX_DRAW];
    struct nr_draw draws[4];
    struct nr_wait wait;

    for (int i = 0; i < 4; i++)
        draws[i] = (struct nr_draw){.entries = entries[i]};
    for (uint64_t i = 0; i < 5; i++) {
        CHECK(nr_draw_open(engine, 0, 1, &draws[0], 0, &wait) == NR_WAIT_LIMITER && wait.have == i && wait.need == 5);
        feed_item(&feed, 0, 1, 1, 0, NR_OK);
    }
    CHECK(nr_draw_open(engine, 0, 0, &draws[0], 0, &wait) == NR_BAD_COUNT);
    CHECK(nr_draw_open(engine, 0, MAX_DRAW + 1, &draws[0], 0, &wait) == NR_BAD_COUNT);
    CHECK(nr_draw_open(engine, 1, 1, &draws[0], 0, &wait) == NR_NO_TABLE);
    CHECK(nr_draw_open(engine, 0, MAX_DRAW - 10, &draws[0], 0, &wait) == NR_OK);
    CHECK(nr_draw_open(engine, 0, 11, &draws[1], 0, &wait) == NR_WAIT_LEASES && wait.have == MAX_DRAW - 10 &&
          wait.need == MAX_DRAW);
    CHECK(nr_draw_open(engine, 0, 10, &draws[1], 1 * SECOND, &wait) == NR_OK);
    /* Past due, the oldest gives way, and only when it is wanted. */
    CHECK(nr_draw_open(engine, 0, 1, &draws[2], 5 * SECOND - 1, &wait) == NR_WAIT_LEASES);
    CHECK(draws[0].leased == MAX_DRAW - 10);
    CHECK(nr_draw_open(engine, 0, 1, &draws[2], 5 * SECOND, &wait) == NR_OK);
    CHECK(draws[0].leased == 0 && draws[0].reserved == 0 && draws[1].leased == 10);
    uint8_t byte;
    CHECK(nr_draw_copy(engine, &draws[0], 0, &byte, 1) == NR_LEASE_EXPIRED);
    CHECK(nr_draw_copy(engine, &draws[1], 0, &byte, 1) == NR_OK);
    CHECK(info_of(engine, 0).reserved == 11 && info_of(engine, 0).leased == 11);
    nr_draw_settle(engine, &draws[0], NR_SETTLE_RELEASE | NR_SETTLE_COMMIT); /* too late: refunded already */
    CHECK(info_of(engine, 0).sampled == 0);
    nr_draw_settle(engine, &draws[1], NR_SETTLE_COMMIT);
    nr_draw_settle(engine, &draws[2], NR_SETTLE_REFUND | NR_SETTLE_RELEASE);
    CHECK(info_of(engine, 0).sampled == 10 && info_of(engine, 0).reserved == 0 && info_of(engine, 0).leased == 10);
    audit(engine);
    nr_engine_destroy(engine);
}

static void the_oldest_come_first_from_a_fifo_table(void)
{
    struct setup setup = setup_of(5, NR_SAMPLER_FIFO, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    uint64_t keys[9];
    struct nr_draw_entry entries[5];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;

    for (int i = 0; i < 3; i++)
        keys[i] = feed_item(&feed, 0, 1, 1, 0, NR_OK);
    CHECK(nr_draw_open(engine, 0, 4, &draw, 0, &wait) == NR_WAIT_EMPTY && wait.have == 3 && wait.need == 4);
    for (int i = 3; i < 9; i++)
        keys[i] = feed_item(&feed, 0, 1, 1, 0, NR_OK);
    CHECK(nr_draw_open(engine, 0, 5, &draw, 0, &wait) == NR_OK);
    for (int i = 0; i < 5; i++)
        CHECK(entries[i].key == keys[4 + i] && entries[i].probability == 1.0);
    CHECK(draw.head.total == 5u << 24 && draw.head.size == 5);
    nr_engine_destroy(engine);
}

static void items_leave_when_steps_run_out(void)
{
    struct setup setup = setup_of(100, NR_SAMPLER_FIFO, 0);
    setup.store.steps = 30;
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    uint64_t keys[300];

    for (int i = 0; i < 300; i++) {
        keys[i] = feed_item(&feed, 0, 3, 1, 0, NR_OK);
        audit(engine);
    }
    struct nr_table_info info = info_of(engine, 0);
    CHECK_EQUAL(info.size, 30 - 2); /* neighbours share all but one step */
    CHECK_EQUAL(info.evicted_steps, 300 - 28);
    CHECK_EQUAL(info.evicted_capacity, 0);
    CHECK_EQUAL(info.steps, 30);
    CHECK(update(engine, keys[271], 1) == NR_OUTCOME_STALE && update(engine, keys[272], 1) == NR_APPLIED);

    /* Leased items are passed over; those after them leave. When all are leased, the step waits, and leaves no trace. */
    struct nr_draw_entry entries[28];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    CHECK(nr_draw_open(engine, 0, 8, &draw, 0, &wait) == NR_OK);
    feed_item(&feed, 0, 3, 1, 0, NR_OK);
    audit(engine);
    for (int i = 272; i < 280; i++)
        CHECK(update(engine, keys[i], 1) == NR_APPLIED);
    CHECK(update(engine, keys[280], 1) == NR_OUTCOME_STALE);
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    uint32_t size = (uint32_t)info_of(engine, 0).size;
    CHECK(nr_draw_open(engine, 0, size, &draw, 0, &wait) == NR_OK);
    uint8_t bytes[STEP];
    int status, written = 0;
    do {
        step_bytes(0, feed.steps, false, bytes);
        status = nr_step_write(engine, feed.handle, OWNER, feed.steps, STEP, 0, bytes, STEP, 1 * SECOND, &wait);
        feed.steps += status == NR_OK;
        audit(engine);
    } while (status == NR_OK && ++written < 100);
    CHECK(status == NR_WAIT_SPACE && wait.reason == NR_WAIT_SPACE && wait.have == 0 && wait.need == 1);
    CHECK(info_of(engine, 0).size == size && open_stream(engine, 0).next_step == feed.steps);
    /* Past due, the draw gives way. */
    CHECK(nr_step_write(engine, feed.handle, OWNER, feed.steps, STEP, 0, bytes, STEP, 5 * SECOND, &wait) == NR_OK);
    CHECK(draw.leased == 0 && info_of(engine, 0).size < size);
    audit(engine);
    nr_engine_destroy(engine);
}

static void items_stay_when_only_rings_hold_the_steps(void)
{
    struct setup setup = setup_of(100, NR_SAMPLER_FIFO, 0);
    setup.store.steps = 25; /* two streams' rings of 10 and five more */
    struct nr_engine *engine = create(&setup);
    struct feed feeds[3];
    struct nr_wait wait;
    uint8_t bytes[STEP] = {0};

    for (uint32_t s = 0; s < 3; s++)
        feeds[s] = feed_of(engine, s);
    for (int i = 0; i < 8; i++) {
        for (int s = 0; s < 3; s++)
            feed_item(&feeds[s], 0, 1, 1, 0, NR_OK);
    }
    CHECK(write_step(engine, feeds[0].handle, 0, feeds[0].steps++) == NR_OK);
    CHECK(info_of(engine, 0).steps == 25 && info_of(engine, 0).size == 24);
    CHECK(nr_step_write(engine, feeds[0].handle, OWNER, feeds[0].steps, STEP, 0, bytes, STEP, 0, &wait) == NR_WAIT_SPACE);
    CHECK(info_of(engine, 0).size == 24 && info_of(engine, 0).evicted_steps == 0);
    audit(engine);
    /* A stream without owner gives its ring up; then items that held those steps leave. */
    nr_stream_release_owner(engine, OWNER);
    for (uint32_t s = 0; s < 2; s++)
        CHECK(open_stream(engine, s).known == 1);
    CHECK(nr_step_write(engine, feeds[0].handle, OWNER, feeds[0].steps, STEP, 0, bytes, STEP, 0, &wait) == NR_OK);
    audit(engine);
    CHECK(open_stream(engine, 2).known == 0);
    nr_engine_destroy(engine);
}

static void a_stream_goes_on_in_a_slab_as_small_as_its_ring(void)
{
    for (uint32_t with_items = 0; with_items < 2; with_items++) {
        struct setup setup = setup_of(100, NR_SAMPLER_FIFO, 0);
        setup.store.steps = WINDOW - 1 + 6;
        struct nr_engine *engine = create(&setup);
        struct feed feed = feed_of(engine, 0);

        for (int i = 0; i < 100; i++) {
            if (with_items)
                feed_item(&feed, 0, 1 + (uint32_t)i % 5, 1, 0, NR_OK);
            else
                CHECK(write_step(engine, feed.handle, 0, feed.steps++) == NR_OK);
            audit(engine);
        }
        CHECK(info_of(engine, 0).steps == setup.store.steps);
        nr_engine_destroy(engine);
    }
}

/* What rings and draws hold stays whatever leaves: then nothing leaves in vain. But a ring gives way to its own next step. */
static void no_item_leaves_in_vain(void)
{
    struct setup setup = setup_of(100, NR_SAMPLER_FIFO, 0);
    setup.store.steps = 30;
    struct nr_engine *engine = create(&setup);
    struct feed a = feed_of(engine, 0), b = feed_of(engine, 1), c = feed_of(engine, 2);
    struct nr_draw_entry entries[10];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;

    for (int i = 0; i < 10; i++)
        feed_item(&a, 0, 1, 1, 0, NR_OK);
    CHECK(nr_draw_open(engine, 0, 10, &draw, 0, &wait) == NR_OK);
    for (int i = 0; i < 10; i++)
        CHECK(write_step(engine, a.handle, 0, a.steps++) == NR_OK);
    for (int i = 0; i < 10; i++)
        feed_item(&b, 0, 1, 1, 0, NR_OK);
    CHECK(info_of(engine, 0).steps == 30);
    CHECK(write_step(engine, c.handle, 2, 0) == NR_WAIT_SPACE);
    CHECK(info_of(engine, 0).size == 20 && info_of(engine, 0).evicted_steps == 0);
    audit(engine);
    CHECK(write_step(engine, b.handle, 1, b.steps) == NR_OK);
    CHECK(info_of(engine, 0).size == 19 && info_of(engine, 0).evicted_steps == 1);
    audit(engine);
    nr_engine_destroy(engine);
}

static void refunds_take_back_that_an_item_was_sampled(void)
{
    struct setup setup = setup_of(4, NR_SAMPLER_FIFO, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_draw_entry entries[2];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    uint64_t key = feed_item(&feed, 0, 1, 1, 0, NR_OK);

    for (uint32_t i = 0; i < 4; i++) {
        CHECK(nr_draw_open(engine, 0, 1, &draw, 0, &wait) == NR_OK);
        CHECK(nr_table_find(&engine->tables[0], key)->sampled == 1 + i / 2);
        nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | (i % 2 == 0 ? NR_SETTLE_REFUND : NR_SETTLE_COMMIT));
    }
    CHECK(nr_table_find(&engine->tables[0], key)->sampled == 2 && info_of(engine, 0).sampled == 2);
    nr_engine_destroy(engine);
}

static void the_fullest_table_gives_way(void)
{
    struct setup setup = setup_of(100, NR_SAMPLER_UNIFORM, 0);
    setup.store.steps = 40;
    setup.config.table_count = 3;
    setup.tables[1] = setup.tables[2] = setup.tables[0];
    setup.tables[1].capacity = 20;
    setup.tables[2].capacity = 1000;
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);

    for (int i = 0; i < 25; i++) {
        feed_item(&feed, i < 15 ? 1 : 0, 2, 1, 0, NR_OK);
        if (i % 5 == 0)
            feed_item(&feed, 2, 2, 1, 0, NR_OK);
    }
    for (int i = 0; i < 10; i++)
        feed_item(&feed, 2, 2, 1, 0, NR_OK);
    CHECK(info_of(engine, 1).evicted_steps > 0);
    CHECK(info_of(engine, 0).evicted_steps == 0 && info_of(engine, 2).evicted_steps == 0);
    audit(engine);
    nr_engine_destroy(engine);
}

/* ---- Parameters ---- */

static void publications_are_whole_and_one_at_a_time(void)
{
    struct setup setup = setup_of(2, NR_SAMPLER_FIFO, 0);
    setup.set.bytes = 100;
    setup.config.set_count = 1;
    struct nr_engine *engine = create(&setup);
    uint8_t bytes[100], got[100];
    uint64_t version, length, first, second, now = 10 * SECOND;
    struct nr_wait wait;

    memset(bytes, 1, sizeof(bytes));
    CHECK(nr_engine_set_count(engine) == 1 && nr_engine_store_count(engine) == 1 && nr_engine_table_count(engine) == 1);
    CHECK(nr_parameters_version(engine, 1, &version, &length) == NR_NO_SET);
    CHECK(nr_parameters_version(engine, 0, &version, &length) == NR_OK && version == 0 && length == 0);
    CHECK(nr_parameters_read(engine, 0, 0, 0, got, 0, now) == NR_RESTART);
    CHECK(nr_parameters_begin(engine, 0, 0, 10, UINT64_MAX, now, &wait) == NR_MALFORMED);
    CHECK(nr_parameters_begin(engine, 0, 1, 101, UINT64_MAX, now, &wait) == NR_BAD_LENGTH);
    CHECK(nr_parameters_begin(engine, 0, 1, 100, 5, now, &wait) == NR_CONFLICT);
    CHECK(nr_parameters_begin(engine, 0, 1, 100, 0, now, &wait) == NR_OK);
    CHECK(nr_parameters_begin(engine, 0, 2, 100, UINT64_MAX, now, &wait) == NR_WAIT_TURN);
    CHECK(nr_parameters_write(engine, 0, 2, 0, bytes, 10, now) == NR_RESTART);
    CHECK(nr_parameters_write(engine, 0, 1, 50, bytes, 50, now + SECOND) == NR_OK);
    CHECK(nr_parameters_write(engine, 0, 1, 50, bytes, 51, now) == NR_BAD_LENGTH);
    CHECK(nr_parameters_write(engine, 0, 1, UINT64_MAX, bytes, 2, now) == NR_BAD_LENGTH);
    CHECK(nr_parameters_begin(engine, 0, 2, 100, UINT64_MAX, now + 2 * SECOND - 1, &wait) == NR_WAIT_TURN);
    CHECK(nr_parameters_finish(engine, 0, 1, &first) == NR_PENDING);
    CHECK(nr_parameters_write(engine, 0, 1, 0, bytes, 50, now + SECOND) == NR_OK);
    CHECK(nr_parameters_write(engine, 0, 1, 0, bytes, 1, now + SECOND) == NR_BAD_LENGTH); /* more than there is */
    CHECK(nr_parameters_finish(engine, 0, 2, &first) == NR_RESTART);
    CHECK(nr_parameters_finish(engine, 0, 1, &first) == NR_OK);
    CHECK(first == ((uint64_t)1700000000 << 32 | 1));
    CHECK(nr_parameters_finish(engine, 0, 1, &second) == NR_RESTART);
    CHECK(nr_parameters_version(engine, 0, &version, &length) == NR_OK && version == first && length == 100);

    /* A silent publisher loses its turn; a second version; the first is read on until a third wants its buffer. */
    now = 20 * SECOND;
    CHECK(nr_parameters_begin(engine, 0, 1, 3, first, now, &wait) == NR_OK);
    CHECK(nr_parameters_begin(engine, 0, 2, 3, first, now + SECOND, &wait) == NR_OK);
    CHECK(nr_parameters_write(engine, 0, 1, 0, bytes, 3, now) == NR_RESTART);
    CHECK(nr_parameters_write(engine, 0, 2, 0, "abc", 3, now + SECOND) == NR_OK);
    CHECK(nr_parameters_read(engine, 0, first, 0, got, 100, now + SECOND) == NR_OK && memcmp(got, bytes, 100) == 0);
    CHECK(nr_parameters_finish(engine, 0, 2, &second) == NR_OK && second == first + 1);
    CHECK(nr_parameters_read(engine, 0, second, 1, got, 2, now + SECOND) == NR_OK && memcmp(got, "bc", 2) == 0);
    CHECK(nr_parameters_read(engine, 0, second, 1, got, 3, now + SECOND) == NR_BAD_LENGTH);
    now = 30 * SECOND;
    for (uint64_t after = 0; after < SECOND; after += SECOND / 50) { /* a reader that goes on and on */
        CHECK(nr_parameters_read(engine, 0, first, 99, got, 1, now + after) == NR_OK);
        CHECK(nr_parameters_begin(engine, 0, 3, 1, UINT64_MAX, now + after + 1, &wait) == NR_WAIT_TURN);
    }
    CHECK(nr_parameters_begin(engine, 0, 3, 1, UINT64_MAX, now + 1 + SECOND, &wait) == NR_OK); /* a second after it first asked */
    CHECK(nr_parameters_read(engine, 0, first, 0, got, 1, now + SECOND) == NR_RESTART);
    CHECK(nr_parameters_read(engine, 0, second, 0, got, 3, now + SECOND) == NR_OK);

    /* A reader that has fallen silent does not keep it. */
    CHECK(nr_parameters_write(engine, 0, 3, 0, "x", 1, now + SECOND) == NR_OK);
    CHECK(nr_parameters_finish(engine, 0, 3, &version) == NR_OK);
    CHECK(nr_parameters_read(engine, 0, second, 0, got, 3, now + 2 * SECOND) == NR_OK);
    CHECK(nr_parameters_begin(engine, 0, 3, 1, UINT64_MAX, now + 2 * SECOND + SECOND / 20 - 1, &wait) == NR_WAIT_TURN);
    CHECK(nr_parameters_begin(engine, 0, 3, 1, UINT64_MAX, now + 2 * SECOND + SECOND / 20, &wait) == NR_OK);
    audit(engine);
    nr_engine_destroy(engine);
}

/* ---- Configurations ---- */

static void configurations_are_refused(void)
{
    struct setup good = setup_of(100, NR_SAMPLER_PRIORITIZED, 0.6), bad;
    int status;

#define REFUSED(change)                                                                                                            \
    do {                                                                                                                           \
        bad = good;                                                                                                                \
        bad.config.stores = &bad.store;                                                                                            \
        bad.config.tables = bad.tables;                                                                                            \
        bad.config.gathers = gathers;                                                                                              \
        bad.config.sets = &bad.set;                                                                                                \
        change;                                                                                                                    \
        CHECK(nr_engine_bytes(&bad.config, &status) == 0 && status == NR_BAD_CONFIG);                                              \
        CHECK(nr_engine_create(&bad.config, &status) == NULL && status == NR_BAD_CONFIG);                                          \
    } while (0)
    REFUSED(bad.store.step_bytes = 0);
    REFUSED(bad.store.step_bytes = UINT32_MAX);
    REFUSED(bad.store.observation_bytes = 0);
    REFUSED(bad.store.observation_bytes = STEP + 1);
    REFUSED(bad.store.steps = WINDOW - 1 + 5);
    REFUSED(bad.store.steps = UINT32_MAX);
    REFUSED(bad.store.window = 0);
    REFUSED(bad.store.window = NR_MAX_WINDOW + 1);
    REFUSED(bad.store.in_flight = 0);
    REFUSED(bad.store.in_flight = UINT32_MAX);
    REFUSED(bad.store.streams = 0);
    REFUSED(bad.store.streams = UINT32_MAX);
    REFUSED(bad.tables[0].store = 1);
    REFUSED(bad.tables[0].capacity = 0);
    REFUSED(bad.tables[0].capacity = UINT32_MAX);
    REFUSED(bad.tables[0].sampler = NR_SAMPLERS);
    REFUSED(bad.tables[0].sampler = NR_SAMPLER_TOP_K); /* of none */
    REFUSED(bad.tables[0].remover = NR_REMOVERS);
    REFUSED(bad.tables[0].exponent = NAN);
    REFUSED(bad.tables[0].exponent = INFINITY);
    REFUSED(bad.tables[0].exponent = -0.1);
    REFUSED(bad.tables[0].limits.min_size = 101);
    REFUSED(bad.tables[0].leases = 0);
    REFUSED(bad.tables[0].window = WINDOW + 1);
    REFUSED(bad.tables[0].window = 0);
    REFUSED(bad.tables[0].row_bytes = ROW - 1);
    REFUSED(bad.tables[0].row_bytes = ROW - 16);
    REFUSED(bad.tables[0].item_bytes = NR_MAX_ITEM_COLUMNS + 1);
    REFUSED(bad.tables[0].item_bytes = COLUMNS + 1);
    REFUSED(bad.tables[0].gather_count = NR_MAX_GATHERS + 1);
    REFUSED(bad.config.shard = 256);
    REFUSED(bad.config.store_count = NR_MAX_STORES + 1);
    REFUSED(bad.config.table_count = NR_MAX_TABLES + 1);
    REFUSED(bad.config.set_count = NR_MAX_SETS + 1);
    struct nr_gather wrong[4];
#define WRONG(change) REFUSED(memcpy(wrong, gathers, sizeof(wrong)); bad.config.gathers = wrong; change)
    WRONG(wrong[1].length = 0);
    WRONG(wrong[1].length = OBSERVATION + 1); /* overlaps the next */
    WRONG(wrong[1].from_end = 2);
    WRONG(wrong[1].source = STEP - OBSERVATION + 1);
    WRONG(wrong[1].source = UINT32_MAX);
    WRONG(wrong[1].target = NR_ROW_HEAD);
    WRONG(wrong[1].target = UINT32_MAX);
    WRONG(wrong[1].inside = 2);
    WRONG(wrong[1].more = 1); /* overlaps the next */
    WRONG(wrong[3].more = NR_MAX_WINDOW);
    WRONG(wrong[3].more = UINT32_MAX);
#undef WRONG
#undef REFUSED

    /* More than any machine has, and more than 64 bits count: no memory, and nothing taken. */
    bad = good;
    bad.config.stores = &bad.store;
    bad.config.tables = bad.tables;
    bad.config.gathers = gathers;
    bad.config.sets = &bad.set;
    bad.store.step_bytes = 1u << 28;
    bad.store.steps = UINT32_MAX - 1;
    CHECK(nr_engine_bytes(&bad.config, &status) > (uint64_t)1 << 59 && status == NR_OK);
    CHECK(nr_engine_create(&bad.config, &status) == NULL && status == NR_NO_MEMORY);
    bad.set.bytes = UINT64_MAX - 5;
    bad.config.set_count = 1;
    CHECK(nr_engine_bytes(&bad.config, &status) == UINT64_MAX && status == NR_OK);
    CHECK(nr_engine_create(&bad.config, &status) == NULL && status == NR_NO_MEMORY);
    nr_engine_destroy(NULL);
}

/* ---- Random sequences of calls against a plain model ---- */

enum { M_STREAMS = 3, M_ITEMS = 4096, M_DRAWS = 6, M_STEPS = 64 };

struct model_item {
    uint64_t key, first;
    uint32_t table, stream, anchor, length;
    double raw;
    uint8_t columns[COLUMNS];
    bool gone;
};

struct model_stream {
    uint64_t incarnation; /* names its bytes: streams that are closed begin anew */
    uint32_t handle;
    bool open;
    uint64_t head;             /* next step to be sent for the first time */
    uint64_t next_item;
    uint32_t missing[M_STEPS]; /* by number % M_STEPS: parts (bits) that were not sent */
    bool is_short[M_STEPS];
};

struct model_draw {
    struct nr_draw draw;
    struct nr_draw_entry entries[MAX_DRAW];
    bool used;
};

struct model {
    struct nr_engine *engine;
    struct nr_random random;
    struct setup setup;
    struct model_stream streams[M_STREAMS];
    struct model_item items[M_ITEMS]; /* ring of the last inserted */
    uint64_t inserted, evicted;
    struct model_draw draws[M_DRAWS];
    uint64_t now, incarnations;
};

static uint64_t pick(struct model *model, uint64_t bound)
{
    return nr_random_below(&model->random, bound);
}

static struct model_item *model_find(struct model *model, uint64_t key)
{
    for (uint64_t i = model->inserted; i-- > 0 && i + M_ITEMS >= model->inserted;) {
        if (model->items[i % M_ITEMS].key == key)
            return &model->items[i % M_ITEMS];
    }
    return NULL;
}

static void model_row(struct model *model, const struct nr_draw_entry *entry, uint8_t row[ROW])
{
    struct model_item *item = model_find(model, entry->key);

    CHECK(item != NULL);
    expect_row(row, item->stream, item->first, item->anchor, item->length, false, item->columns);
    /* Which steps were observations only is part of their bytes: see model_step. */
    memcpy(row, entry, NR_ROW_HEAD);
}

/* The parts of a step are its bytes [0, 5), [5, 13), [13, 21). */
static const uint32_t part_at[] = {0, 5, OBSERVATION, STEP};

static void model_step(struct model *model)
{
    uint32_t s = (uint32_t)pick(model, M_STREAMS);
    struct model_stream *stream = &model->streams[s];
    struct nr_wait wait;
    uint8_t bytes[STEP];

    if (!stream->open)
        return;
    /* Mostly the next step, or one that is unfinished. */
    uint64_t number = stream->head;
    if (pick(model, 2) == 0 && number > 0)
        number -= 1 + pick(model, number < 8 ? number : 8);
    uint32_t parts = number == stream->head ? 7 : stream->missing[number % M_STEPS], part = (uint32_t)pick(model, 3);
    bool fresh = number == stream->head;
    step_bytes((uint32_t)stream->incarnation, number, false, bytes);
    if (pick(model, 4) > 0 || parts == 0) {
        /* The whole step at once; a duplicate when it is whole, refused when only a part of it is missing. */
        int status = nr_step_write(model->engine, stream->handle, OWNER, number, STEP, 0, bytes, STEP, model->now, &wait);
        CHECK_EQUAL(status == NR_WAIT_SPACE ? NR_OK : status, parts == 0 ? NR_DUPLICATE : parts == 7 ? NR_OK : NR_BAD_LENGTH);
        if (status != NR_OK)
            return;
        stream->missing[number % M_STEPS] = 0;
    } else {
        if ((parts & (1u << part)) == 0)
            return; /* each part is sent once */
        uint32_t length = part_at[part + 1] - part_at[part];
        int status = nr_step_write(model->engine, stream->handle, OWNER, number, STEP, part_at[part], bytes + part_at[part], length,
                                   model->now, &wait);
        CHECK(status == NR_OK || (status == NR_WAIT_SPACE && parts == 7));
        if (status != NR_OK)
            return;
        stream->missing[number % M_STEPS] = parts & ~(1u << part);
    }
    stream->head += fresh;
}

static void model_insert(struct model *model)
{
    uint32_t s = (uint32_t)pick(model, M_STREAMS), table = (uint32_t)pick(model, model->setup.config.table_count);
    struct model_stream *stream = &model->streams[s];
    struct model_item *at = &model->items[model->inserted % M_ITEMS];
    double raw = pick(model, 6) == 0 ? 0 : pow(10, (double)pick(model, 9) - 4) * (double)(1 + pick(model, 9));
    bool bad = pick(model, 20) == 0, by_default = !bad && pick(model, 4) == 0;
    struct nr_wait wait;
    uint64_t key;

    if (!stream->open || stream->head == 0)
        return;
    uint32_t steps = 1 + (uint32_t)pick(model, WINDOW);
    if (steps > stream->head)
        steps = (uint32_t)stream->head;
    uint64_t back = pick(model, 3);
    uint64_t first = stream->head - steps - (back + steps <= stream->head ? back : 0);
    uint32_t whole = 0;
    for (uint32_t i = 0; i < steps; i++)
        whole += stream->missing[(first + i) % M_STEPS] == 0;
    struct model_item entry = {.first = first, .table = table, .stream = (uint32_t)stream->incarnation, .raw = raw};
    entry.anchor = (uint32_t)pick(model, steps);
    entry.length = steps - 1 - entry.anchor;
    for (int i = 0; i < COLUMNS; i++)
        entry.columns[i] = (uint8_t)nr_random_next(&model->random);
    struct nr_item item = {.number = stream->next_item,
                           .first_step = first,
                           .steps = steps,
                           .anchor = entry.anchor,
                           .length = entry.length,
                           .flags = by_default ? NR_ITEM_DEFAULT_PRIORITY : 0,
                           .priority = bad          ? -1e-7
                                       : by_default ? NAN
                                                    : raw,
                           .columns = entry.columns};
    struct nr_table_info before = info_of(model->engine, table);
    int status = nr_item_insert(model->engine, table, stream->handle, OWNER, &item, model->now, &key, &wait);
    CHECK_EQUAL(status, bad ? NR_BAD_PRIORITY : whole == steps ? NR_OK : NR_WAIT_STEPS);
    if (status == NR_WAIT_STEPS) {
        CHECK(wait.have == whole && wait.need == steps);
        return;
    }
    CHECK_EQUAL(nr_item_insert(model->engine, table, stream->handle, OWNER, &item, model->now, &(uint64_t){0}, &wait),
                bad ? NR_BAD_PRIORITY : NR_DUPLICATE);
    stream->next_item++;
    if (status != NR_OK)
        return;
    if (by_default)
        entry.raw = before.size == 0 ? 1.0 : before.max_priority;
    entry.key = key;
    *at = entry;
    model->inserted++;
    if (before.size == before.capacity) {
        /* The oldest of the table left. */
        uint64_t i = model->inserted > M_ITEMS ? model->inserted - M_ITEMS : 0;
        /* By another remover, any did; test_removers knows which. */
        while (model->items[i % M_ITEMS].gone || model->items[i % M_ITEMS].table != table ||
               (model->setup.tables[table].remover != NR_REMOVER_FIFO &&
                nr_table_find(&model->engine->tables[table], model->items[i % M_ITEMS].key) != NULL))
            i++;
        model->items[i % M_ITEMS].gone = true;
    }
}

/* Learns by updates which items are gone because steps ran short, and that no younger item than a survivor is, save for leases. */
static void model_update(struct model *model)
{
    uint64_t keys[20];
    double priorities[20];
    uint8_t outcome[20];
    struct model_item *items[20];
    uint32_t table = (uint32_t)pick(model, model->setup.config.table_count), count = 0;

    for (uint32_t i = 0; i < 20 && model->inserted > 0; i++) {
        uint64_t window = model->inserted < 200 ? model->inserted : 200;
        struct model_item *item = &model->items[(model->inserted - 1 - pick(model, window)) % M_ITEMS];

        if (item->table != table)
            continue;
        items[count] = item;
        keys[count] = item->key;
        priorities[count++] = pick(model, 10) == 0 ? INFINITY : pow(10, (double)pick(model, 9) - 4) * (double)pick(model, 5);
    }
    CHECK(nr_priorities_update(model->engine, table, count, keys, priorities, outcome) == NR_OK);
    for (uint32_t i = 0; i < count; i++) {
        if (priorities[i] == INFINITY) {
            CHECK(outcome[i] == NR_OUTCOME_REFUSED);
        } else if (items[i]->gone) {
            CHECK(outcome[i] == NR_OUTCOME_STALE);
        } else if (outcome[i] == NR_OUTCOME_STALE) {
            CHECK(info_of(model->engine, table).evicted_steps > 0 || info_of(model->engine, table).evicted_sampled > 0);
            items[i]->gone = true;
        } else {
            CHECK(outcome[i] == NR_APPLIED);
            items[i]->raw = priorities[i];
        }
    }
}

static void model_draw(struct model *model)
{
    struct model_draw *at = &model->draws[pick(model, M_DRAWS)];
    uint32_t table = (uint32_t)pick(model, model->setup.config.table_count), count = 1 + (uint32_t)pick(model, 10);
    struct nr_wait wait;

    if (at->used) {
        uint64_t bytes = (uint64_t)at->draw.count * ROW;
        uint8_t got[10 * ROW], row[ROW], expected[10 * ROW];

        if (at->draw.leased > 0) {
            uint64_t offset = pick(model, bytes + 1);
            uint32_t length = (uint32_t)pick(model, bytes - offset + 1);

            for (uint32_t i = 0; i < at->draw.count; i++) {
                model_row(model, &at->entries[i], row);
                memcpy(expected + i * ROW, row, ROW);
            }
            CHECK(nr_draw_copy(model->engine, &at->draw, offset, got, length) == NR_OK);
            CHECK(memcmp(got, expected + offset, length) == 0);
        } else {
            CHECK(nr_draw_copy(model->engine, &at->draw, 0, got, 1) == NR_LEASE_EXPIRED);
        }
        nr_draw_settle(model->engine, &at->draw, 1 + (uint32_t)pick(model, 6));
        at->used = at->draw.leased > 0 || at->draw.reserved > 0;
        return;
    }
    at->draw = (struct nr_draw){.entries = at->entries};
    int status = nr_draw_open(model->engine, table, count, &at->draw, model->now, &wait);
    struct nr_table_info info = info_of(model->engine, table);
    if (status != NR_OK) {
        const struct nr_table_config *config = &model->setup.tables[table];
        bool distinct = nr_selector_find(config->sampler)->distinct;

        CHECK((status == NR_WAIT_LIMITER && info.size < info.min_size) ||
              (status == NR_WAIT_EMPTY && (info.total == 0 || (distinct && info.total >> 24 < count) ||
                                           (config->limits.max_sampled > 0 && wait.have < count))) ||
              (status == NR_WAIT_LEASES && info.leased + count > model->setup.tables[table].leases) ||
              (status == NR_BAD_COUNT && distinct && count > info.capacity));
        CHECK(nr_is_wait(status) == (wait.reason == status));
        return;
    }
    at->used = true;
    CHECK(at->draw.head.size == info.size);
    uint32_t sampler = model->setup.tables[table].sampler;
    /* The head is from before the draws; the info from after them, when items may be withheld. */
    CHECK(
        model->setup.tables[table].limits.max_sampled > 0 ||
        (at->draw.head.total == info.total && at->draw.head.max_leaf == info.max_leaf && at->draw.head.min_leaf == info.min_leaf));
    for (uint32_t i = 0; i < count; i++) {
        struct model_item *item = model_find(model, at->entries[i].key);

        CHECK(item != NULL && !item->gone && item->table == table);
        CHECK(at->entries[i].probability > 0 && at->entries[i].probability <= 1);
        if (sampler != NR_SAMPLER_UNIFORM && sampler != NR_SAMPLER_FIFO && sampler != NR_SAMPLER_LIFO &&
            sampler != NR_SAMPLER_WITHOUT_REPLACEMENT)
            CHECK(item->raw > 0);
    }
}

static void model_stream(struct model *model)
{
    uint32_t s = (uint32_t)pick(model, M_STREAMS);
    struct model_stream *stream = &model->streams[s];
    struct nr_stream_position position;
    uint8_t id[16] = {(uint8_t)s, 9};

    if (stream->open && pick(model, 2) == 0) {
        CHECK(nr_stream_close(model->engine, stream->handle, OWNER) == NR_OK);
        stream->open = false;
        stream->incarnation = ++model->incarnations;
    } else if (stream->open) {
        /* The session dies: of every stream, what is not whole is lost. */
        nr_stream_release_owner(model->engine, OWNER);
        for (int i = 0; i < M_STREAMS; i++) {
            model->streams[i].open = false;
            for (int j = 0; j < M_STEPS; j++)
                model->streams[i].missing[j] = model->streams[i].missing[j] == 0 ? 0 : 7;
        }
    } else {
        CHECK(nr_stream_open(model->engine, 0, id, OWNER, &position) == NR_OK);
        if (!position.known) {
            if (stream->head > 0)
                stream->incarnation = ++model->incarnations;
            stream->head = stream->next_item = 0;
            memset(stream->missing, 0, sizeof(stream->missing));
        }
        CHECK(position.next_item == stream->next_item && position.next_step <= stream->head);
        stream->handle = position.handle;
        stream->open = true;
    }
}

/* The random sequence that runs, for whoever wants to repeat it. */
static struct {
    uint64_t seed, operation;
    bool running;
} trace;

static void say_seed(void)
{
    if (trace.running)
        fprintf(stderr, "random calls: seed %llu, operation %llu\n", (unsigned long long)trace.seed,
                (unsigned long long)trace.operation);
}

static void random_calls_agree_with_the_model(struct setup setup, uint64_t seed, uint64_t operations)
{
    struct model *model = calloc(1, sizeof(*model));

    trace.seed = seed;
    trace.running = true;
    nr_random_seed(&model->random, seed);
    setup.config.seed = seed;
    model->setup = setup;
    model->engine = create(&model->setup);
    model->incarnations = M_STREAMS;
    for (uint32_t s = 0; s < M_STREAMS; s++)
        model->streams[s].incarnation = s + 1;
    for (uint64_t i = 0; i < operations; i++) {
        uint64_t kind = pick(model, 1000);

        trace.operation = i;
        model->now += pick(model, SECOND / 10);
        if (kind < 400)
            model_step(model);
        else if (kind < 700)
            model_insert(model);
        else if (kind < 800)
            model_update(model);
        else if (kind < 980 || i < 20)
            model_draw(model);
        else
            model_stream(model);
        if (i % 64 == 0) {
            for (int s = 0; s < M_STREAMS; s++) {
                if (!model->streams[s].open && pick(model, 2))
                    model_stream(model);
            }
        }
        audit(model->engine);
    }
    trace.running = false;
    nr_engine_destroy(model->engine);
    free(model);
}

static void random_calls(uint64_t operations, uint64_t seed)
{
    static const uint32_t capacities[] = {1, 2, 3, 7, 8, 9, 40};

    for (size_t c = 0; c < sizeof(capacities) / sizeof(capacities[0]); c++) {
        for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
            for (int is_short = 0; is_short < 2; is_short++) {
                struct setup setup = setup_of(capacities[c], sampler, sampler == 0 ? 0.6 : 0);

                setup.tables[0].leases = 24;
                setup.tables[0].remover = sampler % NR_REMOVERS;
                setup.tables[0].limits.max_sampled = sampler < 3 ? 0 : (uint32_t)c;
                setup.tables[0].top = 3;
                setup.config.table_count = 2;
                setup.tables[1] = setup.tables[0];
                setup.tables[1].sampler = (sampler + 1) % NR_SAMPLERS;
                setup.tables[1].capacity = 5;
                setup.tables[1].limits.min_size = 2;
                if (is_short)
                    setup.store.steps = 26; /* three rings hold 30 */
                random_calls_agree_with_the_model(setup, seed + 100 * c + 10 * sampler + (uint64_t)is_short, operations);
            }
        }
    }
}

/* ---- Datagrams on their way ---- */

/* The rows of the draw as a datagram's pieces, put together again. Returns how many references were taken. */
static uint32_t gather(struct nr_engine *engine, const struct nr_draw *draw, uint64_t offset, uint32_t length, uint32_t least,
                       uint32_t room, struct nr_segment *segments, uint8_t *bytes, uint64_t *tokens)
{
    uint8_t own[4 * ROW];
    struct nr_pieces pieces = {.own = own, .least = least, .room = room, .segment = segments};
    uint32_t references = 0, at;

    CHECK_EQUAL(nr_draw_gather(engine, draw, offset, length, &pieces), NR_OK);
    CHECK(pieces.count <= room);
    memcpy(bytes, own, pieces.front);
    at = pieces.front;
    for (uint32_t i = 0; i < pieces.count; i++) {
        memcpy(bytes + at, segments[i].base, segments[i].length);
        at += segments[i].length;
        CHECK(segments[i].token == NR_TOKEN_NONE || segments[i].length >= least);
        if (segments[i].token != NR_TOKEN_NONE)
            tokens[references++] = segments[i].token;
    }
    CHECK_EQUAL(at, length);
    return references;
}

static void pieces_are_the_rows_whatever_is_referred_to(void)
{
    struct setup setup = setup_of(10, NR_SAMPLER_UNIFORM, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_draw_entry entries[4];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    uint8_t expected[4 * ROW], bytes[4 * ROW];
    struct nr_segment segments[40];
    uint64_t tokens[40];
    uint32_t most = 0;

    for (int i = 0; i < 10; i++)
        feed_item(&feed, 0, 3, 1, 0, NR_OK);
    CHECK_EQUAL(nr_draw_open(engine, 0, 4, &draw, 0, &wait), NR_OK);
    CHECK_EQUAL(nr_draw_copy(engine, &draw, 0, expected, sizeof(expected)), NR_OK);
    for (uint32_t room = 0; room <= 40; room = room < 6 ? room + 1 : room + 17) {
        for (uint32_t least = 1; least <= OBSERVATION + 1; least += 4) {
            for (uint32_t from = 0; from < sizeof(expected); from++) {
                for (uint32_t length = 1; length <= sizeof(expected) - from; length += 1 + length / 8) {
                    uint32_t count = gather(engine, &draw, from, length, least, room, segments, bytes, tokens);

                    CHECK(memcmp(bytes, expected + from, length) == 0);
                    CHECK_EQUAL(engine->stores[0].slab.lent, count);
                    most = count > most ? count : most;
                    while (count > 0)
                        nr_step_sent(engine, tokens[--count]);
                }
            }
        }
    }
    CHECK_EQUAL(most, 16); /* four gathers of each row */
    nr_step_sent(engine, NR_TOKEN_NONE);
    audit(engine);
    struct nr_pieces none = {.own = bytes, .least = 1, .room = 40, .segment = segments};
    CHECK_EQUAL(nr_draw_gather(engine, &draw, 1, sizeof(expected), &none), NR_BAD_LENGTH);
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    CHECK_EQUAL(nr_draw_gather(engine, &draw, 0, 8, &none), NR_LEASE_EXPIRED);
    CHECK(none.count == 0 && none.length == 0 && engine->stores[0].slab.lent == 0);
    nr_engine_destroy(engine);
}

static void steps_stay_until_the_last_datagram_is_sent(void)
{
    struct setup setup = setup_of(4, NR_SAMPLER_FIFO, 0);
    struct nr_engine *engine = create(&setup);
    struct feed feed = feed_of(engine, 0);
    struct nr_slab *slab = &engine->stores[0].slab;
    struct nr_draw_entry entries[1];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    uint8_t expected[ROW], bytes[ROW], own[ROW];
    struct nr_segment segments[2][8] = {0};
    uint64_t tokens[2][8], progress;

    for (int i = 0; i < 4; i++)
        feed_item(&feed, 0, 3, 1, 0, NR_OK);
    CHECK_EQUAL(nr_draw_open(engine, 0, 1, &draw, 0, &wait), NR_OK);
    CHECK_EQUAL(nr_draw_copy(engine, &draw, 0, expected, ROW), NR_OK);
    /* The same bytes in two datagrams, as after a repeated READ. */
    uint32_t count = gather(engine, &draw, 0, ROW, 8, 8, segments[0], bytes, tokens[0]);
    CHECK_EQUAL(gather(engine, &draw, 0, ROW, 8, 8, segments[1], bytes, tokens[1]), count);
    CHECK(count == 4 && slab->lent == 8);
    audit(engine);

    /* The draw is settled, the item evicted, its stream closed; every other place is used again and again. */
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    CHECK_EQUAL(nr_stream_close(engine, feed.handle, OWNER), NR_OK);
    feed = feed_of(engine, 1);
    for (uint32_t i = 0; i < 3 * slab->count; i++)
        feed_item(&feed, 0, 3, 1, 0, NR_OK);
    audit(engine);
    for (int which = 0; which < 2; which++) {
        for (uint32_t i = 0; i < 8 && segments[which][i].base != NULL; i++) {
            if (segments[which][i].token != NR_TOKEN_NONE)
                CHECK(memmem(expected, ROW, segments[which][i].base, segments[which][i].length) != NULL);
        }
    }

    /* With the last reference the step is free, and whoever waits for space hears of it. */
    uint32_t used = slab->used;
    for (uint32_t i = 0; i < count; i++)
        nr_step_sent(engine, tokens[0][i]);
    CHECK(slab->used == used && slab->lent == 4);
    progress = nr_table_progress(engine, 0);
    for (uint32_t i = 0; i < count; i++)
        nr_step_sent(engine, tokens[1][i]);
    CHECK(slab->used < used && slab->lent == 0 && nr_table_progress(engine, 0) > progress);
    audit(engine);

    /* A store lends an eighth of its places, and no step whose references could be counted out. */
    CHECK_EQUAL(nr_draw_open(engine, 0, 1, &draw, 0, &wait), NR_OK);
    uint32_t lent = 0;
    struct nr_pieces pieces = {.own = own, .least = 8, .room = 8, .segment = segments[0]};
    do {
        lent = slab->lent;
        pieces.count = pieces.length = pieces.front = 0;
        CHECK_EQUAL(nr_draw_gather(engine, &draw, 0, ROW, &pieces), NR_OK);
    } while (slab->lent > lent);
    CHECK_EQUAL(lent, slab->count / NR_SLAB_LENT_SHARE);
    CHECK(pieces.count == 0 && pieces.length == ROW);
    audit(engine);
    slab->lent = 0;
    uint32_t place = (uint32_t)tokens[0][0];
    uint32_t references = slab->steps[place].references;
    slab->steps[place].references = NR_STEP_LENDABLE + 1;
    CHECK(!nr_slab_lend(slab, place));
    slab->steps[place].references = references;
    nr_engine_destroy(engine); /* with references outstanding: nobody may return them any more */
}

int main(int argc, char **argv)
{
    atexit(say_seed);
    bad_priorities_are_refused_one_by_one();
    extreme_priorities_stay_drawable();
    nothing_is_drawn_where_all_is_zero();
    the_default_priority_is_the_largest_kept_as_it_is();
    first_last_and_only_items_are_drawn();
    draws_are_as_frequent_as_they_say(NR_SAMPLER_PRIORITIZED);
    draws_are_as_frequent_as_they_say(NR_SAMPLER_UNIFORM);
    an_exponent_of_zero_is_uniform_over_what_is_positive();
    a_key_never_touches_its_successor();
    numbers_are_decided_once();
    places_for_streams_go_to_the_least_recently_used();
    steps_are_taken_in_any_order_and_never_beyond_their_bounds();
    windows_must_lie_in_what_the_stream_holds();
    any_range_of_rows_is_right_through_a_lease();
    observation_only_steps_are_zero_where_nothing_was_sent();
    draws_wait_for_the_minimum_and_for_leases();
    the_oldest_come_first_from_a_fifo_table();
    items_leave_when_steps_run_out();
    items_stay_when_only_rings_hold_the_steps();
    a_stream_goes_on_in_a_slab_as_small_as_its_ring();
    no_item_leaves_in_vain();
    refunds_take_back_that_an_item_was_sampled();
    the_fullest_table_gives_way();
    publications_are_whole_and_one_at_a_time();
    configurations_are_refused();
    pieces_are_the_rows_whatever_is_referred_to();
    steps_stay_until_the_last_datagram_is_sent();
    random_calls(argc > 1 ? strtoull(argv[1], NULL, 10) : 5000, argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    return 0;
}
