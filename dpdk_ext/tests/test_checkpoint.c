/* Checkpoints: what one holds of an engine that goes on working meanwhile, against a model; what a restored engine is; and files that
 * are not whole. usage: test_checkpoint [ROUNDS [SEED]] */
#include "engine/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "engine/checkpoint_format.h"
#include "engine/crc32c.h"
#include "engine/maintain.h"
#include "engine/random.h"
#include "engine/restore.h"
#include "engine/state.h"
#include "loop/checkpoint_file.h"
#include "loop/checkpointer.h"

enum { OBSERVATION = 13, COLUMNS = 11, WINDOW = 5, ROW = 64, OWNER = 77, STREAMS = 6, TABLES = 2, DRAW = 16, MOST = 1 << 16 };
#define SECOND UINT64_C(1000000000)

static uint32_t step_size = 21; /* bytes of a whole step; above NR_CHECKPOINT_LEAST it leaves as a reference */

/* ---- An engine under test ---- */

struct setup {
    struct nr_store_config store;
    struct nr_table_config tables[TABLES];
    struct nr_set_config set;
    struct nr_engine_config config;
    struct nr_gather gathers[1];
};

static struct setup setup_of(uint32_t capacity)
{
    struct setup setup = {
        .store = {.step_bytes = step_size,
                  .observation_bytes = OBSERVATION,
                  .steps = 3 * capacity + 100,
                  .window = WINDOW,
                  .in_flight = 6,
                  .streams = STREAMS},
        .set = {.bytes = 64},
        .gathers = {{.length = OBSERVATION, .target = 32}},
        .config = {.seed = 99,
                   .lease_ns = 5 * SECOND,
                   .start_seconds = 1700000000,
                   .shard = 3,
                   .store_count = 1,
                   .table_count = TABLES,
                   .set_count = 1},
    };

    for (uint32_t i = 0; i < TABLES; i++)
        setup.tables[i] = (struct nr_table_config){.capacity = i == 0 ? capacity : capacity / 2 + 1,
                                                   .sampler = i == 0 ? NR_SAMPLER_PRIORITIZED : NR_SAMPLER_UNIFORM,
                                                   .exponent = 1,
                                                   .leases = 2 * DRAW,
                                                   .window = WINDOW,
                                                   .row_bytes = ROW,
                                                   .item_bytes = COLUMNS,
                                                   .gather_count = 1};
    return setup;
}

static struct nr_engine *create(struct setup *setup)
{
    int status;

    setup->config.stores = &setup->store;
    setup->config.tables = setup->tables;
    setup->config.gathers = setup->gathers;
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

static void step_bytes(uint32_t stream, uint64_t number, uint8_t *bytes, uint32_t length)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)nr_random_mix(number * 1000003 + stream * 7919 + (uint64_t)i);
}

/* An item says in its columns what it is. */
struct __attribute__((packed)) columns {
    uint8_t stream, table;
    uint32_t number, first;
    uint8_t steps;
};
_Static_assert(sizeof(struct columns) == COLUMNS, "an item's columns");

static bool short_step(uint64_t number)
{
    return number % 11 == 10;
}

struct feed {
    uint32_t handle;
    uint64_t steps, items;
};

static void write_step(struct nr_engine *engine, struct feed *feed, uint32_t stream, uint64_t now)
{
    uint8_t bytes[8192];
    struct nr_wait wait;
    uint32_t total = short_step(feed->steps) ? OBSERVATION : step_size;

    step_bytes(stream, feed->steps, bytes, total);
    CHECK(nr_step_write(engine, feed->handle, OWNER, feed->steps, total, 0, bytes, total, now, &wait) == NR_OK);
    feed->steps++;
}

static uint64_t insert(struct nr_engine *engine, struct feed *feed, uint32_t stream, uint32_t table, uint32_t steps, uint64_t now)
{
    struct columns columns = {(uint8_t)stream, (uint8_t)table, (uint32_t)feed->items, (uint32_t)(feed->steps - steps),
                              (uint8_t)steps};
    struct nr_item item = {.number = feed->items,
                           .first_step = feed->steps - steps,
                           .steps = steps,
                           .anchor = steps - 1 - steps / 2,
                           .length = steps / 2,
                           .priority = 1,
                           .columns = &columns};
    struct nr_wait wait;
    uint64_t key;

    CHECK(nr_item_insert(engine, table, feed->handle, OWNER, &item, now, &key, &wait) == NR_OK);
    feed->items++;
    return key;
}

static struct nr_stream_position open_stream(struct nr_engine *engine, uint32_t stream)
{
    struct nr_stream_position position;
    uint8_t id[16] = {(uint8_t)stream, 9, 8};

    CHECK(nr_stream_open(engine, 0, id, OWNER, &position) == NR_OK);
    return position;
}

/* ---- Model: every item by stream and number ---- */

struct model {
    uint64_t key[STREAMS][MOST / STREAMS]; /* NR_KEY_NONE: none */
    uint8_t table[STREAMS][MOST / STREAMS];
    uint32_t updates[STREAMS][MOST / STREAMS]; /* its priority is this plus 1 */
    uint32_t at_cut[STREAMS][MOST / STREAMS]; /* the same at the cut */
    bool visible[STREAMS][MOST / STREAMS]; /* at the cut */
    uint64_t next_item[STREAMS]; /* at the cut */
};

static bool present(const struct nr_engine *engine, const struct model *model, uint32_t stream, uint64_t number)
{
    return nr_table_find(&engine->tables[model->table[stream][number]], model->key[stream][number]) != NULL;
}

struct world {
    struct nr_engine *engine;
    struct feed feeds[STREAMS];
    struct model *model;
    struct nr_draw draw;
    struct nr_draw_entry entries[DRAW];
    struct nr_random random;
    uint64_t now;
    bool drawn;
};

static void operate(struct world *world)
{
    struct nr_random *random = &world->random;
    uint32_t stream = (uint32_t)nr_random_below(random, STREAMS - 1); /* the last is opened in between, see below */
    struct feed *feed = &world->feeds[stream];
    struct nr_wait wait;

    world->now += 1 + nr_random_below(random, 3);
    switch (nr_random_below(random, 8)) {
    case 0: {
        uint32_t count = 1 + (uint32_t)nr_random_below(random, DRAW), table = (uint32_t)nr_random_below(random, TABLES);

        if (world->drawn)
            nr_draw_settle(world->engine, &world->draw,
                           NR_SETTLE_RELEASE | (nr_random_below(random, 2) ? NR_SETTLE_COMMIT : NR_SETTLE_REFUND));
        world->draw.entries = world->entries;
        world->drawn = nr_draw_open(world->engine, table, count, &world->draw, world->now, &wait) == NR_OK;
        break;
    }
    case 1:
    case 2: {
        if (feed->items == 0)
            break;
        uint64_t number = nr_random_below(random, feed->items);
        double priority = ++world->model->updates[stream][number] + 1.0;
        uint8_t outcome;

        CHECK(nr_priorities_update(world->engine, world->model->table[stream][number], 1, &world->model->key[stream][number],
                                   &priority, &outcome) == NR_OK);
        if (outcome != NR_APPLIED)
            world->model->updates[stream][number]--;
        break;
    }
    default: {
        uint32_t steps = 1 + (uint32_t)nr_random_below(random, WINDOW), table = (uint32_t)nr_random_below(random, TABLES);

        do
            write_step(world->engine, feed, stream, world->now);
        while (feed->steps < WINDOW);
        if (feed->items + 1 < MOST / STREAMS && nr_random_below(random, 4) > 0) {
            world->model->table[stream][feed->items] = (uint8_t)table;
            world->model->key[stream][feed->items] = insert(world->engine, feed, stream, table, steps, world->now);
        }
    }
    }
}

static void remember_cut(struct world *world)
{
    for (uint32_t s = 0; s < STREAMS; s++) {
        world->model->next_item[s] = world->feeds[s].items;
        for (uint64_t n = 0; n < world->feeds[s].items; n++) {
            world->model->visible[s][n] = present(world->engine, world->model, s, n);
            world->model->at_cut[s][n] = world->model->updates[s][n];
        }
    }
}

/* ---- A checkpoint in memory ---- */

struct payloads {
    uint8_t **bytes;
    uint64_t *length;
    uint32_t count, room;
};

static void keep(struct payloads *payloads, struct nr_engine *engine, const struct nr_pieces *pieces)
{
    uint64_t length = pieces->front, at = pieces->front;

    for (uint32_t i = 0; i < pieces->count; i++)
        length += pieces->segment[i].length;
    if (payloads->count == payloads->room) {
        payloads->room = payloads->room ? 2 * payloads->room : 64;
        payloads->bytes = realloc(payloads->bytes, payloads->room * sizeof(*payloads->bytes));
        payloads->length = realloc(payloads->length, payloads->room * sizeof(*payloads->length));
        CHECK(payloads->bytes != NULL && payloads->length != NULL);
    }
    uint8_t *bytes = malloc(length + 1);
    CHECK(bytes != NULL);
    memcpy(bytes, pieces->own, pieces->front);
    for (uint32_t i = 0; i < pieces->count; at += pieces->segment[i++].length)
        memcpy(bytes + at, pieces->segment[i].base, pieces->segment[i].length);
    payloads->bytes[payloads->count] = bytes;
    payloads->length[payloads->count++] = length;
    for (uint32_t i = 0; i < pieces->count; i++)
        nr_checkpoint_sent(engine, pieces->segment[i].token);
}

static void forget(struct payloads *payloads)
{
    for (uint32_t i = 0; i < payloads->count; i++)
        free(payloads->bytes[i]);
    free(payloads->bytes);
    free(payloads->length);
    *payloads = (struct payloads){0};
}

/* Saves, with up to `busy` random operations between two quanta of `work`. */
static void save(struct world *world, uint32_t work, uint32_t busy, struct payloads *payloads)
{
    uint8_t *own = malloc(NR_CHECKPOINT_OWN);
    struct nr_segment segments[4];
    int status;

    CHECK(own != NULL && nr_checkpoint_begin(world->engine) == NR_OK);
    CHECK(nr_checkpoint_begin(world->engine) == NR_WAIT_TURN);
    do {
        struct nr_pieces pieces = {.own = own, .least = NR_CHECKPOINT_LEAST, .room = 4, .segment = segments};
        bool before = world->engine->saving.stage <= NR_SAVING_CUT;

        /* The cut is the first call that adds something; the model looks before each that may be it. */
        if (before)
            remember_cut(world);
        status = nr_checkpoint_next(world->engine, &pieces, work, world->now);
        CHECK(status == NR_OK || status == NR_PENDING || status == NR_WAIT_SPACE);
        CHECK(pieces.length <= NR_CHECKPOINT_OWN && pieces.count <= pieces.room);
        if (pieces.length + pieces.count > 0) {
            audit(world->engine);
            for (uint64_t i = nr_random_below(&world->random, busy + 1); i > 0 && status != NR_OK; i--)
                operate(world); /* while the block is on its way */
            keep(payloads, world->engine, &pieces);
        }
        if (before && world->engine->saving.stage > NR_SAVING_CUT && busy > 0) {
            struct feed *late = &world->feeds[STREAMS - 1]; /* opened after the cut: not in the file, nor its item */

            late->handle = open_stream(world->engine, STREAMS - 1).handle;
            for (uint32_t i = 0; i < WINDOW; i++)
                write_step(world->engine, late, STREAMS - 1, world->now);
            world->model->key[STREAMS - 1][0] = insert(world->engine, late, STREAMS - 1, 0, 2, world->now);
        }
        audit(world->engine);
    } while (status != NR_OK);
    CHECK(!nr_checkpoint_running(world->engine));
    free(own);
}

static const struct nr_restore_map *straight(void)
{
    static struct nr_restore_map map;

    memset(&map, 0xff, sizeof(map));
    map.stores[0] = map.sets[0] = 0;
    for (uint32_t i = 0; i < TABLES; i++)
        map.tables[i] = i;
    return &map;
}

static int restore(struct nr_engine *engine, const struct payloads *payloads, uint64_t now, struct nr_restored *report)
{
    int status;
    struct nr_restore *restore = nr_restore_open(engine, straight(), now, &status);

    CHECK(restore != NULL);
    for (uint32_t i = 0; i < payloads->count && status == NR_OK; i++)
        status = nr_restore_scan(restore, payloads->bytes[i], payloads->length[i]);
    if (status == NR_OK)
        status = nr_restore_scanned(restore);
    for (uint32_t i = 0; i < payloads->count && status == NR_OK; i++)
        status = nr_restore_take(restore, payloads->bytes[i], payloads->length[i]);
    if (status == NR_OK)
        status = nr_restore_finish(restore);
    if (status != NR_OK && status != NR_BAD_CONFIG)
        fprintf(stderr, "restore: %s\n", nr_restore_complaint(restore));
    nr_restore_report(restore, report);
    nr_restore_close(restore);
    if (status == NR_OK)
        audit(engine);
    return status;
}

/* What the item in a slot is, all of its bytes checked. */
static struct columns look(const struct nr_engine *engine, uint32_t table_index, uint32_t slot)
{
    const struct nr_table *table = &engine->tables[table_index];
    const struct nr_record *record = nr_table_record(table, slot);
    const struct nr_slab *slab = &engine->stores[0].slab;
    struct columns columns;
    uint8_t expected[8192];

    memcpy(&columns, (const uint8_t *)record + table->columns, sizeof(columns));
    CHECK(columns.stream < STREAMS && columns.table == table_index);
    CHECK(nr_record_steps(record) == columns.steps && record->length == columns.steps / 2u);
    for (uint32_t i = 0; i < columns.steps; i++) {
        uint64_t number = columns.first + i;

        step_bytes(columns.stream, number, expected, step_size);
        if (short_step(number))
            memset(expected + OBSERVATION, 0, step_size - OBSERVATION);
        CHECK(memcmp(nr_slab_step(slab, record->steps[i]), expected, step_size) == 0);
    }
    return columns;
}

/* ---- Tests ---- */

static struct world *world_of(struct setup *setup, uint64_t seed)
{
    struct world *world = calloc(1, sizeof(*world));

    CHECK(world != NULL);
    world->model = calloc(1, sizeof(*world->model));
    CHECK(world->model != NULL);
    world->engine = create(setup);
    world->now = SECOND;
    nr_random_seed(&world->random, seed);
    for (uint32_t s = 0; s < STREAMS - 1; s++)
        world->feeds[s].handle = open_stream(world->engine, s).handle;
    return world;
}

static void world_end(struct world *world)
{
    nr_engine_destroy(world->engine);
    free(world->model);
    free(world);
}

/* Operations between quanta: what must, and what may, be in the file. */
static void test_busy(uint64_t seed, uint32_t rounds)
{
    for (uint32_t round = 0; round < rounds; round++) {
        struct setup setup = setup_of(8 + round % 50);
        struct world *world = world_of(&setup, seed + round);
        struct payloads payloads = {0};
        struct nr_restored report;
        static bool found[STREAMS][MOST / STREAMS];

        for (uint32_t i = 0; i < 20 * (round % 20); i++)
            operate(world);
        save(world, 1 + round % 40, round % 7, &payloads);

        struct nr_engine *restored = create(&setup);
        CHECK(restore(restored, &payloads, world->now, &report) == NR_OK);
        memset(found, 0, sizeof(found));
        for (uint32_t t = 0; t < TABLES; t++) {
            const struct nr_table *table = &restored->tables[t];

            CHECK(report.tables[t].found && report.tables[t].keys && report.tables[t].items == table->order.size);
            CHECK(report.tables[t].restored == table->order.size);
            for (uint32_t slot = table->order.oldest; slot != NR_NONE; slot = table->order.links[slot].after) {
                struct columns columns = look(restored, t, slot);
                double updates = nr_extremes_get(&table->extremes, slot) - 1;

                CHECK(!found[columns.stream][columns.number]);
                found[columns.stream][columns.number] = true;
                CHECK(world->model->visible[columns.stream][columns.number]);
                CHECK(nr_table_record(table, slot)->key == world->model->key[columns.stream][columns.number]);
                CHECK(nr_table_record(table, slot)->reserved == 0 && nr_table_record(table, slot)->leases == 0);
                if (round % 7 == 0) { /* nothing happened meanwhile; what was drawn and not taken is given back */
                    const struct nr_record *was = nr_table_record(&world->engine->tables[t], slot);

                    CHECK_EQUAL(nr_table_record(table, slot)->sampled, was->sampled - (was->reserved & ~NR_RECORD_WITHHELD));
                }
                CHECK(updates >= world->model->at_cut[columns.stream][columns.number] &&
                      updates <= world->model->updates[columns.stream][columns.number]);
            }
        }
        for (uint32_t s = 0; s < STREAMS - 1; s++) {
            for (uint64_t n = 0; n < world->model->next_item[s]; n++)
                CHECK(found[s][n] || !world->model->visible[s][n] || !present(world->engine, world->model, s, n));
            struct nr_stream_position position = open_stream(restored, s);
            CHECK(position.known == 1);
            CHECK_EQUAL(position.next_item, world->model->next_item[s]);
        }
        CHECK(open_stream(restored, STREAMS - 1).known == 0);
        nr_engine_destroy(restored);
        world_end(world);
        forget(&payloads);
    }
}

/* The same operations after a restore and without: the same draws, from the same slots. */
static void test_determinism(uint32_t sampler, uint32_t remover, uint32_t max_sampled)
{
    struct setup setup = setup_of(40);
    for (uint32_t i = 0; i < TABLES; i++) {
        setup.tables[i].sampler = sampler;
        setup.tables[i].remover = remover;
        setup.tables[i].top = 10;
        setup.tables[i].limits.max_sampled = max_sampled;
    }
    struct world *a = world_of(&setup, 5);
    struct payloads payloads = {0};
    struct nr_restored report;

    for (uint32_t i = 0; i < 3000; i++)
        operate(a);
    if (a->drawn)
        nr_draw_settle(a->engine, &a->draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    a->drawn = false;
    save(a, 3, 0, &payloads);
    struct world *b = calloc(1, sizeof(*b));
    CHECK(b != NULL);
    b->engine = create(&setup);
    b->model = calloc(1, sizeof(*b->model));
    CHECK(b->model != NULL);
    CHECK(restore(b->engine, &payloads, a->now, &report) == NR_OK);
    b->now = a->now;
    b->random = a->random;
    *b->model = *a->model;
    for (uint32_t s = 0; s < STREAMS - 1; s++) {
        struct nr_stream_position position = open_stream(b->engine, s);

        b->feeds[s] = (struct feed){.handle = position.handle, .steps = position.next_step, .items = position.next_item};
        CHECK_EQUAL(b->feeds[s].steps, a->feeds[s].steps);
        CHECK_EQUAL(b->feeds[s].items, a->feeds[s].items);
    }
    for (uint32_t t = 0; t < TABLES; t++) {
        struct nr_table_info before, after;

        nr_table_info(a->engine, t, &before);
        nr_table_info(b->engine, t, &after);
        after.steps = before.steps;
        after.step_bytes_held = before.step_bytes_held;
        CHECK(memcmp(&before, &after, sizeof(before)) == 0);
        for (uint32_t slot = a->engine->tables[t].order.oldest; slot != NR_NONE;
             slot = a->engine->tables[t].order.links[slot].after) {
            CHECK(nr_table_record(&a->engine->tables[t], slot)->sampled == nr_table_record(&b->engine->tables[t], slot)->sampled);
            CHECK_EQUAL(a->engine->tables[t].born[slot], b->engine->tables[t].born[slot]);
        }
    }
    for (uint32_t i = 0; i < 3000; i++) {
        operate(a);
        operate(b);
        CHECK(a->drawn == b->drawn);
        for (uint32_t d = 0; a->drawn && d < a->draw.count; d++) {
            uint32_t slot = nr_table_slot(&a->engine->tables[a->draw.table], a->entries[d].key);

            CHECK_EQUAL(slot, nr_table_slot(&b->engine->tables[b->draw.table], b->entries[d].key));
            CHECK(a->entries[d].probability == b->entries[d].probability);
        }
    }
    audit(b->engine);
    world_end(a);
    world_end(b);
    forget(&payloads);
}

/* Keys that were given after the checkpoint, and lost with the server, name nothing after a restore, however often slots turn over. */
static void test_lost_keys(void)
{
    struct setup setup = setup_of(20);
    struct world *world = world_of(&setup, 6);
    struct payloads payloads = {0};
    struct nr_restored report;
    static uint64_t lost[4000];
    uint32_t count = 0;

    for (uint32_t i = 0; i < 100; i++)
        operate(world);
    save(world, 9, 0, &payloads);
    struct feed *feed = &world->feeds[0];
    for (uint32_t i = 0; i < 2000; i++) {
        write_step(world->engine, feed, 0, world->now);
        for (uint32_t t = 0; t < TABLES; t++)
            lost[count++] = insert(world->engine, feed, 0, t, 1, world->now);
    }
    struct nr_engine *restored = create(&setup);
    CHECK(restore(restored, &payloads, world->now, &report) == NR_OK);
    struct nr_stream_position position = open_stream(restored, 1);
    struct feed other = {.handle = position.handle, .steps = position.next_step, .items = position.next_item};
    for (uint32_t i = 0; i < 4000; i++) {
        write_step(restored, &other, 1, world->now);
        for (uint32_t t = 0; t < TABLES; t++) {
            insert(restored, &other, 1, t, 1, world->now);
            if (i % 50 == 0) {
                for (uint32_t k = t; k < count; k += TABLES)
                    CHECK(nr_table_find(&restored->tables[t], lost[k]) == NULL);
            }
        }
    }
    nr_engine_destroy(restored);
    world_end(world);
    forget(&payloads);
}

/* The items that a server was given after a checkpoint: their keys, `count` for each table. */
static void use(struct nr_engine *engine, uint64_t now, uint32_t count, uint64_t *keys)
{
    struct nr_stream_position position = open_stream(engine, 1);
    struct feed feed = {.handle = position.handle, .steps = position.next_step, .items = position.next_item};

    for (uint32_t i = 0; i < count; i++) {
        write_step(engine, &feed, 1, now);
        for (uint32_t t = 0; t < TABLES; t++)
            *keys++ = insert(engine, &feed, 1, t, 1, now);
    }
}

/* A server that dies twice after the same checkpoint: what its first life gave names nothing of the second. */
static void test_keys_of_two_lives(void)
{
    enum { COUNT = 2000 };
    static uint64_t first[COUNT * TABLES], second[COUNT * TABLES];
    struct setup setup = setup_of(20);
    struct world *world = world_of(&setup, 6);
    struct payloads payloads = {0};
    struct nr_restored report;

    for (uint32_t i = 0; i < 100; i++)
        operate(world);
    save(world, 9, 0, &payloads);
    for (uint32_t life = 0; life < 2; life++) {
        setup.config.start_seconds++;
        struct nr_engine *restored = create(&setup);

        CHECK(restore(restored, &payloads, world->now, &report) == NR_OK);
        use(restored, world->now, COUNT, life == 0 ? first : second);
        nr_engine_destroy(restored);
    }
    for (uint32_t i = 0; i < COUNT * TABLES; i++)
        for (uint32_t j = i % TABLES; j < COUNT * TABLES; j += TABLES)
            CHECK(first[i] == NR_KEY_NONE || first[i] != second[j]);
    world_end(world);
    forget(&payloads);
}

/* Smaller and larger tables, fewer and more steps; keys stay where the slots fit. */
static void test_sizes(void)
{
    struct setup setup = setup_of(60);
    struct world *world = world_of(&setup, 7);
    struct payloads payloads = {0};
    struct nr_restored report;

    for (uint32_t i = 0; i < 2000; i++)
        operate(world);
    save(world, 100, 0, &payloads);
    uint32_t sizes[] = {1, 2, 7, 30, 59, 60, 61, 300, 5000};
    for (uint32_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        for (uint32_t steps = 0; steps < 3; steps++) {
            struct setup today = setup_of(sizes[i]);

            today.store.steps = steps == 0 ? today.store.steps : steps == 1 ? WINDOW - 1 + 6 : 40;
            struct nr_engine *engine = create(&today);
            CHECK(restore(engine, &payloads, 1, &report) == NR_OK);
            for (uint32_t t = 0; t < TABLES; t++) {
                const struct nr_table *table = &engine->tables[t], *old = &world->engine->tables[t];
                uint32_t slot = table->order.newest, was = old->order.newest;

                CHECK(report.tables[t].items == old->order.size && report.tables[t].restored == table->order.size);
                if (steps == 0)
                    CHECK_EQUAL(table->order.size, old->order.size < table->capacity ? old->order.size : table->capacity);
                CHECK(table->dropped == old->order.size - table->order.size + old->dropped);
                /* The newest ones are those that stay. */
                for (; slot != NR_NONE; slot = table->order.links[slot].before, was = old->order.links[was].before) {
                    struct columns now = look(engine, t, slot), before = look(world->engine, t, was);

                    if (steps == 0)
                        CHECK(memcmp(&now, &before, sizeof(now)) == 0);
                    bool same = nr_table_record(table, slot)->key == nr_table_record(old, was)->key;
                    CHECK(same == (report.tables[t].keys == 1) || steps != 0);
                }
            }
            if (sizes[i] == 60)
                CHECK(report.tables[0].keys == 1);
            if (sizes[i] == 5000)
                CHECK(report.tables[0].keys == 0);
            nr_engine_destroy(engine);
        }
    }
    struct setup other = setup_of(60);
    other.store.step_bytes += 8;
    struct nr_engine *engine = create(&other);
    CHECK(restore(engine, &payloads, 1, &report) == NR_BAD_CONFIG);
    nr_engine_destroy(engine);
    other = setup_of(60);
    other.tables[1].window = WINDOW - 1;
    engine = create(&other);
    CHECK(restore(engine, &payloads, 1, &report) == NR_BAD_CONFIG);
    nr_engine_destroy(engine);
    world_end(world);
    forget(&payloads);
}

/* A stream whose last steps are lost goes on from its client's last window. */
static void test_stream_goes_on(void)
{
    struct setup setup = setup_of(20);
    struct world *world = world_of(&setup, 8);
    struct payloads payloads = {0};
    struct nr_restored report;

    for (uint32_t i = 0; i < 200; i++)
        operate(world);
    save(world, 50, 0, &payloads);
    for (uint64_t ahead = 0; ahead < 50; ahead++) {
        struct nr_engine *engine = create(&setup);

        CHECK(restore(engine, &payloads, 1, &report) == NR_OK);
        struct nr_stream_position position = open_stream(engine, 0);
        struct feed feed = {.handle = position.handle, .steps = position.next_step + ahead, .items = position.next_item + ahead};
        for (uint32_t i = 0; i < WINDOW; i++)
            write_step(engine, &feed, 0, 1);
        insert(engine, &feed, 0, 0, WINDOW, 1);
        audit(engine);
        CHECK(look(engine, 0, engine->tables[0].order.newest).steps == WINDOW);
        nr_engine_destroy(engine);
    }
    world_end(world);
    forget(&payloads);
}

/* Publications are counted on: an item is as far behind as it was, and a new publication is one more. */
static void test_versions(void)
{
    struct setup setup = setup_of(20);
    struct payloads payloads = {0};
    struct nr_restored report;
    struct nr_wait wait;
    uint64_t version;

    for (uint32_t i = 0; i < TABLES; i++) {
        setup.tables[i].version_offset = 3; /* within the columns */
        setup.tables[i].limits.versions = 2;
    }
    struct world *world = world_of(&setup, 11);
    for (uint32_t i = 0; i < 5; i++) {
        CHECK(nr_parameters_begin(world->engine, 0, 1, 0, UINT64_MAX, i * SECOND * 3, &wait) == NR_OK);
        CHECK(nr_parameters_finish(world->engine, 0, 1, &version) == NR_OK);
        uint8_t columns[COLUMNS] = {0};
        memcpy(columns + 3, &version, sizeof(version));
        write_step(world->engine, &world->feeds[0], 0, i);
        struct nr_item item = {.number = i, .first_step = i, .steps = 1, .priority = 1, .columns = columns};
        uint64_t key;
        CHECK(nr_item_insert(world->engine, 0, world->feeds[0].handle, OWNER, &item, i, &key, &wait) == NR_OK);
    }
    save(world, 10, 0, &payloads);
    uint64_t before = version, held = 0;
    setup.config.start_seconds += 1000;
    struct nr_engine *engine = create(&setup);
    CHECK(restore(engine, &payloads, 1, &report) == NR_OK);
    for (uint32_t i = 0; i < 3; i++) {
        struct nr_table_info info;

        while (nr_engine_maintain(engine, 10, 1000))
            ;
        nr_table_info(engine, 0, &info);
        held = info.size;
        CHECK_EQUAL(held, 2 - i); /* of the publications 4 and 5, then of 5, then none */
        CHECK(nr_parameters_begin(engine, 0, 1, 0, UINT64_MAX, (i + 1) * SECOND * 3, &wait) == NR_OK);
        CHECK(nr_parameters_finish(engine, 0, 1, &version) == NR_OK);
        CHECK(version > before);
        before = version;
    }
    audit(engine);
    nr_engine_destroy(engine);
    world_end(world);
    forget(&payloads);
}

/* ---- Files ---- */

static char folder[] = "/tmp/test_checkpoint.XXXXXX";
static char path[256], partial[300];

static struct nr_checkpoint_progress write_file(struct world *world, uint32_t busy)
{
    struct nr_checkpoint_progress progress;
    int status, error;
    struct nr_checkpointer *checkpointer = nr_checkpointer_open("{\"a\": 1}", &status);

    CHECK(checkpointer != NULL && status == NR_OK);
    nr_checkpointer_progress(checkpointer, &progress);
    CHECK(progress.state == NR_CHECKPOINT_IDLE && !nr_checkpointer_work(checkpointer, world->engine, 1));
    CHECK(nr_checkpointer_begin(checkpointer, path, &error) == NR_OK);
    CHECK(nr_checkpointer_begin(checkpointer, path, &error) == NR_WAIT_TURN);
    while (nr_checkpointer_running(checkpointer)) {
        if (!nr_checkpointer_work(checkpointer, world->engine, world->now))
            usleep(50);
        for (uint32_t i = 0; i < busy; i++)
            operate(world);
    }
    nr_checkpointer_progress(checkpointer, &progress);
    audit(world->engine);
    CHECK(world->engine->stores[0].slab.pinned == 0);
    nr_checkpointer_close(checkpointer, world->engine);
    CHECK(access(partial, F_OK) != 0);
    return progress;
}

static uint8_t *read_whole(uint64_t *length)
{
    struct stat stat;
    int fd = open(path, O_RDONLY);

    CHECK(fd >= 0 && fstat(fd, &stat) == 0);
    uint8_t *bytes = malloc((size_t)stat.st_size + 1);
    CHECK(bytes != NULL && read(fd, bytes, (size_t)stat.st_size) == stat.st_size);
    close(fd);
    *length = (uint64_t)stat.st_size;
    return bytes;
}

static void write_whole(const char *name, const uint8_t *bytes, uint64_t length)
{
    unlink(name); /* some file systems synchronise a file that replaces another one's bytes */
    int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);

    CHECK(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
    close(fd);
}

static void test_files(void)
{
    struct setup setup = setup_of(6);
    struct world *world = world_of(&setup, 9);
    struct nr_checkpoint_file file;
    uint64_t length;

    /* Empty, then with one item, then full. */
    for (uint32_t i = 0; i < 3; i++) {
        if (i == 1) {
            write_step(world->engine, &world->feeds[0], 0, 1);
            insert(world->engine, &world->feeds[0], 0, 0, 1, 1);
        }
        for (uint32_t j = 0; i == 2 && j < 60; j++) {
            write_step(world->engine, &world->feeds[0], 0, 1);
            insert(world->engine, &world->feeds[0], 0, j % 2, 1, 1);
        }
        struct nr_checkpoint_progress progress = write_file(world, 0);
        CHECK(progress.state == NR_CHECKPOINT_WRITTEN && progress.status == NR_OK && progress.error == 0);
        CHECK(nr_checkpoint_inspect(path, &file) == NR_OK);
        CHECK(file.bytes == progress.bytes && strcmp(file.spec, "{\"a\": 1}") == 0);
        CHECK_EQUAL(file.restored.items, i == 0 ? 0 : i == 1 ? 1 : 6 + 4);
        nr_checkpoint_file_free(&file);
        struct nr_engine *engine = create(&setup);
        CHECK(nr_checkpoint_restore(path, engine, straight(), &file) == NR_OK);
        nr_checkpoint_file_free(&file);
        audit(engine);
        CHECK_EQUAL(engine->tables[0].order.size, i == 0 ? 0 : i == 1 ? 1 : 6);
        nr_engine_destroy(engine);
    }

    /* Cut off anywhere, changed anywhere, longer: refused, and nothing is taken. */
    uint8_t *bytes = read_whole(&length);
    struct nr_engine *engine = create(&setup);
    for (uint64_t i = 0; i < length; i++) {
        write_whole(path, bytes, i);
        int status = nr_checkpoint_restore(path, engine, straight(), &file);
        CHECK(status == NR_MALFORMED && file.complaint[0] != 0);
        nr_checkpoint_file_free(&file);
    }
    for (uint64_t i = 0; i < length; i++) {
        uint8_t was = bytes[i];

        bytes[i] ^= (uint8_t)(1u << i % 8);
        write_whole(path, bytes, length);
        int status = nr_checkpoint_restore(path, engine, straight(), &file);
        CHECK(status == NR_MALFORMED && file.complaint[0] != 0);
        nr_checkpoint_file_free(&file);
        bytes[i] = was;
    }
    uint8_t *longer = malloc(length + 1);
    CHECK(longer != NULL);
    memcpy(longer, bytes, length);
    longer[length] = 0;
    write_whole(path, longer, length + 1);
    CHECK(nr_checkpoint_restore(path, engine, straight(), &file) == NR_MALFORMED);
    nr_checkpoint_file_free(&file);
    free(longer);
    struct nr_file_head head = nr_file_head();
    head.version = 2;
    head.crc = nr_crc32c(0, &head, offsetof(struct nr_file_head, crc));
    memcpy(bytes, &head, sizeof(head));
    write_whole(path, bytes, length);
    CHECK(nr_checkpoint_restore(path, engine, straight(), &file) == NR_BAD_VERSION);
    nr_checkpoint_file_free(&file);
    CHECK(engine->stores[0].slab.used == 0 && engine->tables[0].fresh == 0 && nr_engine_streams(engine) == 0);
    CHECK(nr_checkpoint_restore("/nowhere/at/all", engine, straight(), &file) == NR_SYSTEM && file.error == ENOENT);
    nr_checkpoint_file_free(&file);
    CHECK(nr_checkpoint_restore(folder, engine, straight(), &file) == NR_MALFORMED);
    nr_checkpoint_file_free(&file);
    nr_engine_destroy(engine);
    free(bytes);
    world_end(world);
}

/* What goes wrong with the disk: an error that says why, the old file as it was, every step given back. */
static void test_disk(void)
{
    struct setup setup = setup_of(400);
    struct world *world = world_of(&setup, 10);
    struct rlimit before, small;
    uint64_t length, again;

    for (uint32_t i = 0; i < 6000; i++)
        operate(world);
    CHECK(write_file(world, 2).state == NR_CHECKPOINT_WRITTEN);
    uint8_t *old = read_whole(&length);
    signal(SIGXFSZ, SIG_IGN);
    CHECK(getrlimit(RLIMIT_FSIZE, &before) == 0);
    small = before;
    uint64_t limits[] = {0, 10, 1000, length / 2, length * 3 / 4};
    for (uint32_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        small.rlim_cur = limits[i];
        CHECK(setrlimit(RLIMIT_FSIZE, &small) == 0);
        struct nr_checkpoint_progress progress = write_file(world, i);
        CHECK(setrlimit(RLIMIT_FSIZE, &before) == 0);
        CHECK(progress.state == NR_CHECKPOINT_FAILED && progress.status == NR_SYSTEM && progress.error == EFBIG);
        uint8_t *now = read_whole(&again);
        CHECK(again == length && memcmp(now, old, length) == 0);
        free(now);
    }
    char was[sizeof(path)], gone[sizeof(partial)];
    strcpy(was, path);
    strcpy(gone, partial);
    strcpy(path, "/nowhere/at/all");
    strcpy(partial, "/nowhere/at/all.partial");
    struct nr_checkpoint_progress progress = write_file(world, 3);
    CHECK(progress.state == NR_CHECKPOINT_FAILED && progress.error == ENOENT);
    strcpy(path, was);
    strcpy(partial, gone);
    CHECK(write_file(world, 0).state == NR_CHECKPOINT_WRITTEN);

    /* Closed in the middle. */
    int status, error;
    struct nr_checkpointer *checkpointer = nr_checkpointer_open("", &status);
    CHECK(nr_checkpointer_begin(checkpointer, path, &error) == NR_OK);
    for (uint32_t i = 0; i < 4; i++)
        nr_checkpointer_work(checkpointer, world->engine, 1);
    nr_checkpointer_close(checkpointer, world->engine);
    CHECK(!nr_checkpoint_running(world->engine) && world->engine->stores[0].slab.pinned == 0 && access(partial, F_OK) != 0);
    audit(world->engine);
    free(old);
    world_end(world);
}

/* Above 4 GiB: read in full, as a sparse file of steps that are zeros, and restored into an engine that has room for the last of
 * them. (Written in full it is by bench_checkpoint, which takes the disk and the memory.) */
static void append(int fd, uint64_t *at, const void *bytes, uint64_t length)
{
    CHECK(pwrite(fd, bytes, length, (off_t)*at) == (ssize_t)length);
    *at += length;
}

static void test_large(void)
{
    enum { BIG = 48 << 20, COUNT = 90 };
    struct setup setup = setup_of(3);
    struct nr_checkpoint_file file;
    uint8_t *zeros = calloc(BIG, 1), records[1024];
    uint64_t at = 0;
    uint32_t number = 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    CHECK(zeros != NULL && fd >= 0);
    setup.store = (struct nr_store_config){
        .step_bytes = BIG, .observation_bytes = OBSERVATION, .steps = 4, .window = 1, .in_flight = 1, .streams = 1};
    setup.config.table_count = 1;
    setup.config.set_count = 0;
    setup.tables[0].window = 1;
    struct nr_engine *engine = create(&setup);
    const struct nr_table *table = &engine->tables[0];

    struct nr_file_head file_head = nr_file_head();
    append(fd, &at, &file_head, sizeof(file_head));
    struct nr_segment spec = {.base = "{}", .length = 2};
    struct nr_block_head head = nr_block_head(NR_BLOCK_SPEC, number++, &spec, 1);
    append(fd, &at, &head, sizeof(head));
    append(fd, &at, "{}", 2);

    struct __attribute__((packed)) {
        struct nr_saved_head begin_head;
        struct nr_saved_begin begin;
        struct nr_saved_head store_head;
        struct nr_saved_store store;
        struct nr_saved_head table_head;
        struct nr_saved_table table;
    } start = {
        {NR_SAVED_BEGIN, sizeof(start.begin)},
        {.random = {1}, .stores = 1, .tables = 1},
        {NR_SAVED_STORE, sizeof(start.store)},
        {.step_bytes = BIG, .observation_bytes = OBSERVATION, .window = 1, .span = 1},
        {NR_SAVED_TABLE, sizeof(start.table)},
        {.capacity = COUNT,
         .slots = COUNT,
         .generation_bits = 40,
         .item_bytes = COLUMNS,
         .window = 1,
         .size = COUNT,
         .shard = table->shard,
         .inserted = COUNT},
    };
    struct nr_segment part = {.base = &start, .length = sizeof(start)};
    head = nr_block_head(NR_BLOCK_DATA, number++, &part, 1);
    append(fd, &at, &head, sizeof(head));
    append(fd, &at, &start, sizeof(start));

    for (uint32_t i = 0; i < COUNT; i++) {
        struct __attribute__((packed)) {
            struct nr_saved_head head;
            struct nr_saved_step step;
            uint8_t first[8]; /* of the step's bytes */
        } step = {{NR_SAVED_STEP, sizeof(step.step) + BIG}, {.number = i}, {(uint8_t)i, 1}};
        struct __attribute__((packed)) {
            struct nr_saved_head head;
            struct nr_saved_item item;
            uint8_t columns[COLUMNS];
            uint32_t number;
        } item = {{NR_SAVED_ITEM, sizeof(item) - sizeof(item.head)},
                  {.key = table->shard | (uint64_t)i << 40, .born = i, .priority = 1, .position = NR_NONE},
                  {(uint8_t)i},
                  i};
        struct nr_segment parts[] = {{.base = &step, .length = sizeof(step)},
                                     {.base = zeros, .length = BIG - sizeof(step.first)},
                                     {.base = &item, .length = sizeof(item)}};

        head = nr_block_head(NR_BLOCK_DATA, number++, parts, 3);
        append(fd, &at, &head, sizeof(head));
        append(fd, &at, &step, sizeof(step));
        at += BIG - sizeof(step.first); /* a hole */
        append(fd, &at, &item, sizeof(item));
    }
    struct nr_saved_head done_head = {NR_SAVED_DONE, sizeof(struct nr_saved_done)};
    struct nr_saved_done done = {.steps = COUNT, .items = COUNT};
    memcpy(records, &done_head, sizeof(done_head));
    memcpy(records + sizeof(done_head), &done, sizeof(done));
    part = (struct nr_segment){.base = records, .length = sizeof(done_head) + sizeof(done)};
    head = nr_block_head(NR_BLOCK_DATA, number++, &part, 1);
    append(fd, &at, &head, sizeof(head));
    append(fd, &at, records, part.length);
    struct nr_block_end end = {.blocks = number, .bytes = at};
    part = (struct nr_segment){.base = &end, .length = sizeof(end)};
    head = nr_block_head(NR_BLOCK_END, number, &part, 1);
    append(fd, &at, &head, sizeof(head));
    append(fd, &at, &end, sizeof(end));
    close(fd);
    CHECK(at > UINT64_C(1) << 32);

    int status = nr_checkpoint_restore(path, engine, straight(), &file);
    if (status != NR_OK)
        fprintf(stderr, "%s\n", file.complaint);
    CHECK(status == NR_OK && file.bytes == at);
    CHECK_EQUAL(file.restored.tables[0].items, COUNT);
    nr_checkpoint_file_free(&file);
    audit(engine);
    CHECK_EQUAL(table->order.size, 3);
    uint32_t slot = table->order.oldest;
    for (uint32_t i = COUNT - 3; i < COUNT; i++, slot = table->order.links[slot].after) {
        const struct nr_record *record = nr_table_record(table, slot);

        CHECK_EQUAL(((const uint8_t *)record)[table->columns], i);
        CHECK_EQUAL(nr_slab_step(&engine->stores[0].slab, record->steps[0])[0], i);
    }
    nr_engine_destroy(engine);
    unlink(path);
    free(zeros);
}

static void test_crc(void)
{
    uint8_t bytes[200];
    struct nr_random random;

    nr_random_seed(&random, 3);
    CHECK(nr_crc32c(0, "123456789", 9) == 0xe3069283u);
    for (uint32_t i = 0; i < sizeof(bytes); i++)
        bytes[i] = (uint8_t)nr_random_next(&random);
    for (uint32_t from = 0; from < 9; from++) {
        for (uint32_t length = 0; from + length <= sizeof(bytes); length++) {
            uint32_t cut = length / 3;

            CHECK(nr_crc32c(0, bytes + from, length) == nr_crc32c_tables(0, bytes + from, length));
            CHECK(nr_crc32c(0, bytes + from, length) ==
                  nr_crc32c(nr_crc32c(0, bytes + from, cut), bytes + from + cut, length - cut));
        }
    }
}

int main(int argc, char **argv)
{
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 200;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;

    printf("%u rounds, seed %llu\n", rounds, (unsigned long long)seed);
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/a.ckpt", folder);
    snprintf(partial, sizeof(partial), "%s.partial", path);
    test_crc();
    for (uint32_t large = 0; large < 2; large++) {
        step_size = large ? 1500 : 21;
        test_busy(seed, rounds);
        for (uint32_t sampler = 0; sampler < NR_SAMPLERS; sampler++) {
            /* Of the `top` best the same are drawn from, but which one depends on the order in their heap. */
            for (uint32_t remover = 0; remover < NR_REMOVERS && sampler != NR_SAMPLER_TOP_K; remover++)
                test_determinism(sampler, remover, remover == NR_REMOVER_UNIFORM ? 3 : 0);
        }
        test_sizes();
    }
    step_size = 21;
    test_lost_keys();
    test_keys_of_two_lives();
    test_stream_goes_on();
    test_versions();
    test_files();
    test_large();
    step_size = 1500;
    test_disk();
    unlink(path);
    rmdir(folder);
    return 0;
}
