/*
 * One table of one-step items, and beside it a plain model that knows by search and addition alone what the table must do: which item
 * leaves, which may be drawn and with which probability, what a call waits for. For the tests of selectors and removers.
 */
#ifndef NR_TESTS_CHOOSING_H
#define NR_TESTS_CHOOSING_H

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/random.h"
#include "engine/state.h"

enum { C_OWNER = 5, C_DRAWS = 6, C_MOST = 12, C_LEASES = 200, C_CLOSED = 1 };

struct c_item {
    uint64_t key;
    double raw;        /* a multiple of 1/4, so that with exponent 1 its leaf is exact */
    uint64_t version;  /* column */
    uint32_t sampled;  /* times drawn, refunds taken off */
    uint32_t reserved; /* of these, not settled */
    uint64_t drawn_in; /* pass */
    bool gone;
};

struct c_draw {
    struct nr_draw draw;
    struct nr_draw_entry entries[C_MOST];
    uint64_t pass[C_MOST]; /* of each entry */
    bool used;
};

struct choosing {
    struct nr_store_config store;
    struct nr_table_config table;
    struct nr_engine_config config;
    struct nr_engine *engine;
    struct nr_random random; /* of the test */
    uint32_t handle;
    uint64_t number;      /* of the next step and item */
    struct c_item *items; /* as inserted; `room` of them */
    uint32_t count, room;
    uint64_t evicted_capacity, evicted_sampled;
    uint64_t pass; /* the running one */
    struct c_draw draws[C_DRAWS];
};

static inline void c_open(struct choosing *c, uint32_t sampler, uint32_t remover, uint32_t capacity, uint64_t seed)
{
    memset(c, 0, sizeof(*c));
    c->store = (struct nr_store_config){
        .step_bytes = 8, .observation_bytes = 8, .steps = capacity + C_LEASES + 40, .window = 1, .in_flight = 8, .streams = 1};
    c->table = (struct nr_table_config){.capacity = capacity,
                                        .sampler = sampler,
                                        .remover = remover,
                                        .exponent = 1,
                                        .top = 3,
                                        .leases = C_LEASES,
                                        .window = 1,
                                        .row_bytes = 24,
                                        .item_bytes = 8};
    c->config = (struct nr_engine_config){.seed = seed, .lease_ns = 1000, .store_count = 1, .table_count = 1};
    nr_random_seed(&c->random, seed + 1);
    c->pass = 1;
}

static inline void c_start(struct choosing *c)
{
    struct nr_stream_position position;
    uint8_t id[16] = {1};
    int status;

    c->config.stores = &c->store;
    c->config.tables = &c->table;
    c->engine = nr_engine_create(&c->config, &status);
    CHECK(c->engine != NULL);
    CHECK_EQUAL(nr_stream_open(c->engine, 0, id, C_OWNER, &position), NR_OK);
    c->handle = position.handle;
}

static inline void c_close(struct choosing *c)
{
    nr_engine_destroy(c->engine);
    free(c->items);
}

static inline void c_audit(const struct choosing *c)
{
    char message[200];

    if (nr_engine_audit(c->engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static inline uint64_t c_pick(struct choosing *c, uint64_t bound)
{
    return nr_random_below(&c->random, bound);
}

static inline struct nr_table_info c_info(const struct choosing *c)
{
    struct nr_table_info info;

    CHECK(nr_table_info(c->engine, 0, &info) == NR_OK);
    return info;
}

static inline struct c_item *c_find(const struct choosing *c, uint64_t key)
{
    for (uint32_t i = c->count; i-- > 0;) {
        if (c->items[i].key == key)
            return &c->items[i];
    }
    return NULL;
}

/* ---- What the table must do ---- */

static inline uint32_t c_max(const struct choosing *c)
{
    return c->engine->tables[0].limiter.limits.max_sampled;
}

static inline bool c_withheld(const struct choosing *c, const struct c_item *item)
{
    return c_max(c) > 0 && item->sampled >= c_max(c);
}

static inline bool c_looks(uint32_t sampler)
{
    return sampler == NR_SAMPLER_PRIORITIZED || sampler == NR_SAMPLER_STRATIFIED || sampler == NR_SAMPLER_MAX_HEAP ||
           sampler == NR_SAMPLER_MIN_HEAP || sampler == NR_SAMPLER_TOP_K;
}

static inline bool c_distinct(uint32_t sampler)
{
    return sampler == NR_SAMPLER_FIFO || sampler == NR_SAMPLER_LIFO || sampler == NR_SAMPLER_MAX_HEAP ||
           sampler == NR_SAMPLER_MIN_HEAP;
}

static inline bool c_drawable(const struct choosing *c, const struct c_item *item)
{
    return !item->gone && !c_withheld(c, item) && (item->raw > 0 || !c_looks(c->table.sampler));
}

static inline uint32_t c_drawables(const struct choosing *c)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < c->count; i++)
        count += c_drawable(c, &c->items[i]);
    return count;
}

static inline uint64_t c_leaf(const struct choosing *c, const struct c_item *item)
{
    bool weighted = c->table.sampler == NR_SAMPLER_PRIORITIZED || c->table.sampler == NR_SAMPLER_STRATIFIED;

    return !c_drawable(c, item) ? 0 : weighted ? (uint64_t)(item->raw * 0x1p24) : (uint64_t)1 << 24;
}

static inline uint64_t c_total(const struct choosing *c)
{
    uint64_t total = 0;

    for (uint32_t i = 0; i < c->count; i++)
        total += c_leaf(c, &c->items[i]);
    return total;
}

/* Whether a comes before b in a table's order of that sampler; ties by insertion, which is the order of addresses. */
static inline bool c_before(uint32_t sampler, const struct c_item *a, const struct c_item *b)
{
    switch (sampler) {
    case NR_SAMPLER_LIFO:
        return a > b;
    case NR_SAMPLER_MAX_HEAP:
    case NR_SAMPLER_TOP_K:
        return a->raw > b->raw || (a->raw == b->raw && a < b);
    case NR_SAMPLER_MIN_HEAP:
        return a->raw < b->raw || (a->raw == b->raw && a < b);
    default:
        return a < b;
    }
}

/* How many drawable items come before it. */
static inline uint32_t c_rank(const struct choosing *c, const struct c_item *item)
{
    uint32_t rank = 0;

    for (uint32_t i = 0; i < c->count; i++)
        rank += c_drawable(c, &c->items[i]) && c_before(c->table.sampler, &c->items[i], item);
    return rank;
}

static inline uint32_t c_left(const struct choosing *c)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < c->count; i++)
        left += c_drawable(c, &c->items[i]) && c->items[i].drawn_in != c->pass;
    return left;
}

/* The item that must leave a full table; NULL: any may. */
static inline struct c_item *c_leaving(struct choosing *c)
{
    struct c_item *first = NULL;

    if (c->table.remover == NR_REMOVER_UNIFORM)
        return NULL;
    for (uint32_t i = 0; i < c->count; i++) {
        struct c_item *item = &c->items[i];

        if (item->gone)
            continue;
        if (first == NULL || (c->table.remover == NR_REMOVER_LOWEST_PRIORITY && item->raw < first->raw) ||
            (c->table.remover == NR_REMOVER_OLDEST && item->version < first->version))
            first = item;
    }
    return first;
}

/* ---- Operations, each compared with the model ---- */

static inline double c_raw(struct choosing *c)
{
    return c_pick(c, 5) == 0 ? 0 : 0.25 * (double)(1 + c_pick(c, 20));
}

static inline uint64_t c_insert(struct choosing *c, double raw, uint64_t version)
{
    struct nr_wait wait;
    uint64_t key;

    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 64;
        c->items = realloc(c->items, c->room * sizeof(*c->items));
        CHECK(c->items != NULL);
    }
    CHECK_EQUAL(nr_step_write(c->engine, c->handle, C_OWNER, c->number, 8, 0, &c->number, 8, 0, &wait), NR_OK);
    uint64_t size = c_info(c).size;
    struct c_item *leaving = size == c->table.capacity ? c_leaving(c) : NULL;
    struct nr_item item = {.number = c->number, .first_step = c->number, .steps = 1, .priority = raw, .columns = &version};
    c->number++;
    CHECK_EQUAL(nr_item_insert(c->engine, 0, c->handle, C_OWNER, &item, 0, &key, &wait), NR_OK);
    if (size == c->table.capacity) {
        uint32_t left = 0;

        for (uint32_t i = 0; i < c->count; i++) {
            if (c->items[i].gone || nr_table_find(&c->engine->tables[0], c->items[i].key) != NULL)
                continue;
            CHECK(leaving == NULL || leaving == &c->items[i]);
            c->items[i].gone = true;
            left++;
        }
        CHECK_EQUAL(left, 1);
        c->evicted_capacity++;
    }
    c->items[c->count++] = (struct c_item){.key = key, .raw = raw, .version = version};
    CHECK_EQUAL(c_info(c).size, size + (size < c->table.capacity));
    CHECK_EQUAL(c_info(c).evicted_capacity, c->evicted_capacity);
    return key;
}

static inline void c_update(struct choosing *c, uint64_t key, double raw)
{
    struct c_item *item = c_find(c, key);
    uint8_t outcome;

    CHECK(nr_priorities_update(c->engine, 0, 1, &key, &raw, &outcome) == NR_OK);
    CHECK_EQUAL(outcome, item->gone ? NR_OUTCOME_STALE : NR_APPLIED);
    if (!item->gone)
        item->raw = raw;
}

/* Draws that the items still have in them. */
static inline uint64_t c_available(const struct choosing *c)
{
    uint64_t available = 0, more = UINT64_MAX;

    if (c->table.sampler == NR_SAMPLER_WITHOUT_REPLACEMENT && c->table.passes > 0)
        more = c->table.passes - c->pass;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct c_item *item = &c->items[i];
        uint64_t by_pass = more == UINT64_MAX ? more : more + (item->drawn_in != c->pass);
        uint64_t by_count = c_max(c) == 0 ? UINT64_MAX : c_max(c) - item->sampled;

        if (!c_drawable(c, item))
            continue;
        uint64_t add = by_pass < by_count ? by_pass : by_count;
        available = available + add < available ? UINT64_MAX : available + add;
    }
    return available;
}

static inline void c_expect_entry(struct choosing *c, struct c_draw *at, uint32_t i, uint32_t count)
{
    const struct nr_draw_entry *entry = &at->entries[i];
    struct c_item *item = c_find(c, entry->key);
    uint32_t sampler = c->table.sampler, drawables = c_drawables(c);

    CHECK(item != NULL && c_drawable(c, item));
    if (c_distinct(sampler)) {
        /* The first i were counted in; with a limit they may be withheld now. */
        uint32_t before = 0;

        for (uint32_t j = 0; j < i; j++)
            before += c_drawable(c, c_find(c, at->entries[j].key));
        CHECK_EQUAL(c_rank(c, item), before);
        CHECK(entry->probability == 1.0);
    } else if (sampler == NR_SAMPLER_UNIFORM) {
        CHECK(entry->probability == 1.0 / drawables);
    } else if (sampler == NR_SAMPLER_TOP_K) {
        uint32_t top = c->table.top < drawables ? c->table.top : drawables;

        CHECK(c_rank(c, item) < top);
        CHECK(entry->probability == 1.0 / top);
    } else if (sampler == NR_SAMPLER_WITHOUT_REPLACEMENT) {
        uint32_t left = c_left(c);

        if (left == 0) {
            c->pass++;
            left = c_left(c);
            CHECK(c->table.passes == 0 || c->pass <= c->table.passes);
        }
        CHECK(item->drawn_in != c->pass);
        CHECK(entry->probability == 1.0 / left);
        item->drawn_in = at->pass[i] = c->pass;
    } else {
        uint64_t total = c_total(c), leaf = c_leaf(c, item);

        CHECK(entry->probability == (double)leaf / (double)total);
        if (sampler == NR_SAMPLER_STRATIFIED) {
            /* Leaves lie in the order of their slots; this one must have a part in the i-th of `count` parts. */
            const struct nr_table *table = &c->engine->tables[0];
            uint64_t before = 0;

            for (uint32_t j = 0; j < c->count; j++) {
                if (nr_table_slot(table, c->items[j].key) < nr_table_slot(table, item->key))
                    before += c_leaf(c, &c->items[j]);
            }
            CHECK((unsigned __int128)(before + leaf) * count > (unsigned __int128)total * i);
            CHECK((unsigned __int128)before * count < (unsigned __int128)total * (i + 1));
        }
    }
    item->sampled++;
    item->reserved++;
}

static inline int c_draw(struct choosing *c, struct c_draw *at, uint32_t count)
{
    struct nr_wait wait;
    uint32_t drawables = c_drawables(c), size = (uint32_t)c_info(c).size;
    uint64_t total = c_total(c), available = c_available(c);
    struct nr_random before = c->engine->random;
    int expected = NR_OK;
    uint64_t have = 0, need = count;

    at->draw = (struct nr_draw){.entries = at->entries};
    int status = nr_draw_open(c->engine, 0, count, &at->draw, 0, &wait);
    if (c_distinct(c->table.sampler) && count > c->table.capacity) {
        CHECK_EQUAL(status, NR_BAD_COUNT);
        return status;
    }
    if (size == 0) {
        expected = NR_WAIT_LIMITER;
        need = 1;
    } else if (total == 0) {
        uint32_t withheld = c->engine->tables[0].withheld;

        expected = NR_WAIT_EMPTY;
        have = size - withheld;
        need = c_distinct(c->table.sampler) ? count : 1;
    } else if (c_distinct(c->table.sampler) && count > drawables) {
        expected = NR_WAIT_EMPTY;
        have = drawables;
    } else if (c->table.passes > 0 && c->table.sampler == NR_SAMPLER_WITHOUT_REPLACEMENT &&
               count > c_left(c) + (c->table.passes - c->pass) * drawables) {
        expected = NR_WAIT_PASSES;
        have = c_left(c) + (c->table.passes - c->pass) * drawables;
    } else if (!c_distinct(c->table.sampler) && count > available) {
        expected = NR_WAIT_EMPTY;
        have = available;
    }
    CHECK_EQUAL(status, expected);
    if (status != NR_OK) {
        CHECK_EQUAL(wait.reason, expected);
        CHECK_EQUAL(wait.have, have);
        CHECK_EQUAL(wait.need, need);
        CHECK(memcmp(&before, &c->engine->random, sizeof(before)) == 0); /* waiting costs no randomness */
        return status;
    }
    CHECK_EQUAL(wait.reason, 0);
    at->used = true;
    CHECK_EQUAL(at->draw.head.size, size);
    CHECK_EQUAL(at->draw.head.total, total);
    for (uint32_t i = 0; i < count; i++)
        c_expect_entry(c, at, i, count);
    return NR_OK;
}

static inline void c_settle(struct choosing *c, struct c_draw *at, bool taken)
{
    if (at->draw.reserved > 0) {
        for (uint32_t i = 0; i < at->draw.count; i++) {
            struct c_item *item = c_find(c, at->entries[i].key);

            if (item->gone)
                continue;
            item->reserved--;
            item->sampled -= !taken;
            if (c_max(c) > 0 && item->sampled - item->reserved >= c_max(c)) {
                item->gone = true;
                c->evicted_sampled++;
            } else if (!taken && at->pass[i] == c->pass && item->drawn_in == c->pass) {
                item->drawn_in = 0;
            }
        }
    }
    nr_draw_settle(c->engine, &at->draw, NR_SETTLE_RELEASE | (taken ? NR_SETTLE_COMMIT : NR_SETTLE_REFUND));
    at->used = false;
    CHECK_EQUAL(c_info(c).evicted_sampled, c->evicted_sampled);
}

/* One random operation. */
static inline void c_operate(struct choosing *c)
{
    uint64_t kind = c_pick(c, 100);

    if (kind < 35 || c->count == 0) {
        c_insert(c, c_raw(c), c_pick(c, 6));
    } else if (kind < 55) {
        uint32_t window = c->count < 2 * c->table.capacity ? c->count : 2 * c->table.capacity;

        c_update(c, c->items[c->count - 1 - c_pick(c, window)].key, c_raw(c));
    } else {
        struct c_draw *at = &c->draws[c_pick(c, C_DRAWS)];

        if (at->used)
            c_settle(c, at, c_pick(c, 3) > 0);
        else
            c_draw(c, at, 1 + (uint32_t)c_pick(c, C_MOST));
    }
    /* Whatever is long gone and in no open draw is forgotten, so that the model's searches stay short. */
    if (c->count >= 4 * c->table.capacity + 400) {
        uint32_t kept = 0;

        for (uint32_t i = 0; i < c->count; i++) {
            if (!c->items[i].gone || c->items[i].reserved > 0)
                c->items[kept++] = c->items[i];
        }
        c->count = kept;
    }
}

/* What is left of the table agrees with the model, item by item. */
static inline void c_compare(const struct choosing *c)
{
    uint32_t size = 0;

    for (uint32_t i = 0; i < c->count; i++) {
        const struct c_item *item = &c->items[i];
        const struct nr_record *record = nr_table_find(&c->engine->tables[0], item->key);

        CHECK((record == NULL) == item->gone);
        if (record == NULL)
            continue;
        size++;
        CHECK_EQUAL(record->sampled, item->sampled);
        CHECK_EQUAL(record->reserved & ~NR_RECORD_WITHHELD, item->reserved);
        CHECK_EQUAL((record->reserved & NR_RECORD_WITHHELD) != 0, c_withheld(c, item));
    }
    CHECK_EQUAL(c_info(c).size, size);
    CHECK_EQUAL(c_info(c).total, c_total(c));
    c_audit(c);
}

/* The parameters of the sequence that runs, for whoever wants to repeat it. */
static struct {
    uint64_t seed;
    uint32_t sampler, remover, capacity, max_sampled, operation;
    bool running;
} c_trace;

static void c_say(void)
{
    if (c_trace.running)
        fprintf(stderr, "seed %llu, sampler %u, remover %u, capacity %u, max_sampled %u, operation %u\n",
                (unsigned long long)c_trace.seed, c_trace.sampler, c_trace.remover, c_trace.capacity, c_trace.max_sampled,
                c_trace.operation);
}

static inline void c_run(uint32_t sampler, uint32_t remover, uint32_t capacity, uint32_t max_sampled, uint32_t passes,
                         uint32_t operations, uint64_t seed)
{
    struct choosing c;

    c_trace.seed = seed;
    c_trace.sampler = sampler;
    c_trace.remover = remover;
    c_trace.capacity = capacity;
    c_trace.max_sampled = max_sampled;
    c_trace.running = true;
    c_open(&c, sampler, remover, capacity, seed);
    c.table.limits.max_sampled = max_sampled;
    c.table.passes = passes;
    c_start(&c);
    for (uint32_t i = 0; i < capacity / 2; i++)
        c_insert(&c, c_raw(&c), c_pick(&c, 6));
    for (uint32_t i = 0; i < operations; i++) {
        c_trace.operation = i;
        c_operate(&c);
        if (capacity < 100 || i % 64 == 0)
            c_compare(&c);
    }
    c_compare(&c);
    c_trace.running = false;
    c_close(&c);
}

#endif
