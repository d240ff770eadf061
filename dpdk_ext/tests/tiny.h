/* The smallest engine: one store of 8-byte steps, one table of one-step items over it, one stream that feeds it. */
#ifndef NR_TESTS_TINY_H
#define NR_TESTS_TINY_H

#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"

enum { TINY_ROW = 24, TINY_DRAWS = 64, TINY_OWNER = 5 };

struct tiny {
    struct nr_engine *engine;
    uint32_t handle;
    uint64_t steps, items; /* next numbers */
    uint64_t now;
};

static inline void tiny_audit(const struct tiny *tiny)
{
    char message[200];

    if (nr_engine_audit(tiny->engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static inline struct tiny tiny_open(uint32_t capacity, uint32_t sampler, const struct nr_limits *limits)
{
    static const struct nr_gather gather = {.length = 8, .target = NR_ROW_HEAD};
    const struct nr_store_config store = {
        .step_bytes = 8, .observation_bytes = 8, .steps = capacity + 4096 + 16, .window = 1, .in_flight = 8, .streams = 2};
    const struct nr_table_config table = {.capacity = capacity,
                                          .sampler = sampler,
                                          .exponent = 1,
                                          .limits = *limits,
                                          .leases = 4096,
                                          .window = 1,
                                          .row_bytes = TINY_ROW,
                                          .gather_count = 1};
    const struct nr_set_config set = {.bytes = 8};
    const struct nr_engine_config config = {.seed = 99,
                                            .lease_ns = 1000,
                                            .start_seconds = 1,
                                            .store_count = 1,
                                            .table_count = 1,
                                            .set_count = 1,
                                            .stores = &store,
                                            .tables = &table,
                                            .gathers = &gather,
                                            .sets = &set};
    struct tiny tiny = {.now = 1};
    struct nr_stream_position position;
    uint8_t id[16] = {1};
    int status;

    tiny.engine = nr_engine_create(&config, &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_stream_open(tiny.engine, 0, id, TINY_OWNER, &position), NR_OK);
    tiny.handle = position.handle;
    return tiny;
}

static inline void tiny_close(struct tiny *tiny)
{
    tiny_audit(tiny);
    nr_engine_destroy(tiny->engine);
}

/* The next step, whose bytes are its number, and an item of it; one that has to wait is the next again. */
static inline int tiny_insert(struct tiny *tiny, double priority, uint64_t *key, struct nr_wait *wait)
{
    if (tiny->steps == tiny->items) {
        CHECK_EQUAL(nr_step_write(tiny->engine, tiny->handle, TINY_OWNER, tiny->steps, 8, 0, &tiny->steps, 8, tiny->now, wait),
                    NR_OK);
        tiny->steps++;
    }
    struct nr_item item = {.number = tiny->items, .first_step = tiny->items, .steps = 1, .priority = priority, .columns = ""};
    int status = nr_item_insert(tiny->engine, 0, tiny->handle, TINY_OWNER, &item, tiny->now, key, wait);
    tiny->items += status == NR_OK;
    return status;
}

static inline uint64_t tiny_insert_one(struct tiny *tiny, double priority)
{
    struct nr_wait wait;
    uint64_t key;

    CHECK_EQUAL(tiny_insert(tiny, priority, &key, &wait), NR_OK);
    return key;
}

static inline struct nr_table_info tiny_info(const struct tiny *tiny)
{
    struct nr_table_info info;

    CHECK_EQUAL(nr_table_info(tiny->engine, 0, &info), NR_OK);
    return info;
}

/* The number of the step in row `row` of a draw. */
static inline uint64_t tiny_row(const struct tiny *tiny, const struct nr_draw *draw, uint32_t row)
{
    uint8_t bytes[TINY_ROW];
    uint64_t number;

    CHECK_EQUAL(nr_draw_copy(tiny->engine, draw, (uint64_t)row * TINY_ROW, bytes, TINY_ROW), NR_OK);
    memcpy(&number, bytes + NR_ROW_HEAD, sizeof(number));
    return number;
}

#endif
