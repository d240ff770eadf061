/* Rows made of random gathers, runs among them, against a model that looks up each byte by itself: whole, in parts, and as the
 * pieces of a datagram. */
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/random.h"

enum { STEP = 40, OBSERVATION = 24, ITEM_BYTES = 16, MOST_GATHERS = 12, MOST_ROW = 6000, ITEMS = 8, SEGMENTS = 64, OWNER = 1 };

struct item {
    uint64_t first;
    uint32_t anchor, length;
};

struct rows {
    struct nr_gather gathers[MOST_GATHERS];
    uint32_t gather_count, row_bytes, window;
    struct nr_engine *engine;
    struct item items[ITEMS];
    uint64_t finals; /* bit i: step i is only an observation */
};

static struct nr_random rng;

static uint32_t below(uint32_t bound)
{
    return (uint32_t)nr_random_below(&rng, bound);
}

/* Byte `at` of step `number`. */
static uint8_t byte_of(const struct rows *rows, uint64_t number, uint32_t at)
{
    bool final = number < 64 && (rows->finals >> number & 1);

    return final && at >= OBSERVATION ? 0 : (uint8_t)(1 + (number * 37 + at * 11) % 251);
}

/* Random gathers one behind the other, in random order, with gaps between them. */
static void lay_out(struct rows *rows)
{
    uint32_t at = NR_ROW_HEAD + ITEM_BYTES;

    rows->gather_count = 0;
    while (rows->gather_count < MOST_GATHERS && below(8) != 0) {
        struct nr_gather *gather = &rows->gathers[rows->gather_count];
        uint32_t lengths[] = {1, 4, 8, 16, 3, STEP};

        *gather = (struct nr_gather){.delta = (int32_t)below(2 * rows->window + 1) - (int32_t)rows->window,
                                     .from_end = below(2),
                                     .length = lengths[below(6)],
                                     .more = below(3) ? below(2 * rows->window) : 0,
                                     .inside = below(2)};
        gather->source = below(STEP - gather->length + 1);
        at += below(3) ? 0 : below(9);
        gather->target = at;
        if ((uint64_t)at + (uint64_t)gather->length * (gather->more + 1) > MOST_ROW - 8)
            break;
        at += gather->length * (gather->more + 1);
        rows->gather_count++;
    }
    rows->row_bytes = (at + below(9) + 7) / 8 * 8;
    for (uint32_t i = 1; i < rows->gather_count; i++) {
        uint32_t j = below(i + 1);
        struct nr_gather kept = rows->gathers[i];

        rows->gathers[i] = rows->gathers[j];
        rows->gathers[j] = kept;
    }
}

static void fill(struct rows *rows)
{
    const struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = OBSERVATION, .steps = 400, .window = rows->window, .in_flight = 80, .streams = 1};
    const struct nr_table_config table = {.capacity = ITEMS,
                                          .sampler = NR_SAMPLER_FIFO,
                                          .leases = ITEMS,
                                          .window = rows->window,
                                          .row_bytes = rows->row_bytes,
                                          .item_bytes = ITEM_BYTES,
                                          .gather_count = rows->gather_count};
    const struct nr_engine_config config = {
        .lease_ns = 1, .store_count = 1, .table_count = 1, .stores = &store, .tables = &table, .gathers = rows->gathers};
    struct nr_stream_position position;
    const uint8_t id[16] = {1};
    struct nr_wait wait;
    int status;

    rows->engine = nr_engine_create(&config, &status);
    CHECK(rows->engine != NULL);
    CHECK_EQUAL(nr_stream_open(rows->engine, 0, id, OWNER, &position), NR_OK);
    rows->finals = nr_random_next(&rng);
    for (uint64_t number = 0; number < 80; number++) {
        uint32_t total = number < 64 && (rows->finals >> number & 1) ? OBSERVATION : STEP;
        uint8_t bytes[STEP];

        for (uint32_t at = 0; at < total; at++)
            bytes[at] = byte_of(rows, number, at);
        CHECK_EQUAL(nr_step_write(rows->engine, position.handle, OWNER, number, total, 0, bytes, total, 0, &wait), NR_OK);
    }
    for (uint32_t i = 0; i < ITEMS; i++) {
        uint32_t steps = 1 + below(rows->window);
        struct item *item = &rows->items[i];
        uint8_t columns[ITEM_BYTES];
        uint64_t key;

        memset(columns, (int)(100 + i), sizeof(columns));
        item->anchor = below(steps);
        item->length = steps - 1 - item->anchor;
        item->first = below(80 - steps + 1);
        struct nr_item inserted = {.number = i,
                                   .first_step = item->first,
                                   .steps = steps,
                                   .anchor = item->anchor,
                                   .length = item->length,
                                   .priority = 1,
                                   .columns = columns};
        CHECK_EQUAL(nr_item_insert(rows->engine, 0, position.handle, OWNER, &inserted, 0, &key, &wait), NR_OK);
    }
}

/* The rows of the draw as engine.h words them. */
static void model(const struct rows *rows, const struct nr_draw_entry *entries, uint8_t *bytes)
{
    memset(bytes, 0, (size_t)ITEMS * rows->row_bytes);
    for (uint32_t r = 0; r < ITEMS; r++, bytes += rows->row_bytes) {
        const struct item *item = &rows->items[r];
        int64_t last = (int64_t)item->anchor + item->length;

        memcpy(bytes, &entries[r], NR_ROW_HEAD);
        memset(bytes + NR_ROW_HEAD, (int)(100 + r), ITEM_BYTES);
        for (uint32_t g = 0; g < rows->gather_count; g++) {
            const struct nr_gather *gather = &rows->gathers[g];

            for (uint32_t i = 0; i <= gather->more; i++) {
                int64_t step = (gather->from_end ? last : item->anchor) + (int64_t)gather->delta + i;

                if (gather->inside && (step < item->anchor || step >= last))
                    continue;
                step = step < 0 ? 0 : step > last ? last : step;
                for (uint32_t at = 0; at < gather->length; at++)
                    bytes[gather->target + i * gather->length + at] =
                        byte_of(rows, item->first + (uint64_t)step, gather->source + at);
            }
        }
    }
}

static void compare_parts(struct rows *rows, const struct nr_draw *draw, const uint8_t *expected)
{
    static uint8_t bytes[ITEMS * MOST_ROW], own[ITEMS * MOST_ROW];
    uint32_t all = ITEMS * rows->row_bytes;

    for (int i = 0; i < 60; i++) {
        uint32_t offset = i == 0 ? 0 : below(all), length = i == 0 ? all : below(all - offset + 1);
        struct nr_segment segments[SEGMENTS];
        struct nr_pieces pieces = {.own = own, .least = 1 + below(STEP), .room = below(SEGMENTS + 1), .segment = segments};
        uint32_t at;

        memset(bytes, 0xee, length);
        CHECK_EQUAL(nr_draw_copy(rows->engine, draw, offset, bytes, length), NR_OK);
        CHECK(memcmp(bytes, expected + offset, length) == 0);
        CHECK_EQUAL(nr_draw_gather(rows->engine, draw, offset, length, &pieces), NR_OK);
        CHECK(pieces.count <= pieces.room);
        memcpy(bytes, own, pieces.front);
        at = pieces.front;
        for (uint32_t s = 0; s < pieces.count; s++) {
            CHECK(segments[s].token == NR_TOKEN_NONE || segments[s].length >= pieces.least);
            memcpy(bytes + at, segments[s].base, segments[s].length);
            at += segments[s].length;
            nr_step_sent(rows->engine, segments[s].token);
        }
        CHECK_EQUAL(at, length);
        CHECK(memcmp(bytes, expected + offset, length) == 0);
    }
}

static void rows_are_what_their_gathers_say(void)
{
    static uint8_t expected[ITEMS * MOST_ROW];

    for (int round = 0; round < 400; round++) {
        struct rows rows = {.window = 1 + below(20)};
        struct nr_draw_entry entries[ITEMS];
        struct nr_draw draw = {.entries = entries};
        struct nr_wait wait;
        char message[200];

        lay_out(&rows);
        fill(&rows);
        CHECK_EQUAL(nr_draw_open(rows.engine, 0, ITEMS, &draw, 0, &wait), NR_OK);
        model(&rows, entries, expected);
        compare_parts(&rows, &draw, expected);
        nr_draw_settle(rows.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        CHECK_EQUAL(nr_engine_lent(rows.engine), 0);
        CHECK_EQUAL(nr_engine_audit(rows.engine, message, sizeof(message)), NR_OK);
        nr_engine_destroy(rows.engine);
    }
}

int main(int count, char **arguments)
{
    nr_random_seed(&rng, count > 1 ? strtoull(arguments[1], NULL, 0) : 20260102);
    rows_are_what_their_gathers_say();
    return 0;
}
