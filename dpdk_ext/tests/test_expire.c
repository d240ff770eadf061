/* Items that leave by age and by version: random calls, limits changed on the way, against a model that judges every item anew at
 * every draw. usage: test_expire [OPERATIONS [SEED]] */
#include "engine/expire.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/maintain.h"
#include "engine/random.h"
#include "engine/state.h"

enum { STEP = 8, COLUMNS = 8, ROW = 32, CAPACITY = 400, LEASES = 16, OWNER = 3, MOST = 1 << 20 };
#define START ((UINT64_C(1700000000) << 32) + 5)

struct model_item {
    uint64_t key, born, version;
    bool here;
};

struct model {
    struct nr_engine *engine;
    uint32_t handle;
    uint64_t steps, items, now, publications;
    struct nr_limits limits;
    struct model_item *item; /* in the order of insertion */
    uint32_t count, first;   /* those below `first` have left */
};

static struct nr_random dice;

static uint32_t below(uint32_t bound)
{
    return (uint32_t)nr_random_below(&dice, bound);
}

static struct nr_engine *create(uint32_t capacity, uint32_t sampler, struct nr_limits limits, int expected)
{
    const struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = STEP, .steps = capacity + 200, .window = 1, .in_flight = 8, .streams = 2};
    const struct nr_table_config table = {.capacity = capacity,
                                          .sampler = sampler,
                                          .exponent = 1,
                                          .limits = limits,
                                          .version_set = 1,
                                          .leases = LEASES,
                                          .window = 1,
                                          .row_bytes = ROW,
                                          .item_bytes = COLUMNS,
                                          .gather_count = 1};
    const struct nr_gather gather = {.length = STEP, .target = 24};
    const struct nr_set_config sets[] = {{.bytes = 8}, {.bytes = 8}};
    const struct nr_engine_config config = {.seed = 9,
                                            .lease_ns = 1000,
                                            .start_seconds = 1700000000,
                                            .first_version = 5,
                                            .store_count = 1,
                                            .table_count = 1,
                                            .set_count = 2,
                                            .stores = &store,
                                            .tables = &table,
                                            .gathers = &gather,
                                            .sets = sets};
    int status;
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK_EQUAL(status, expected);
    return engine;
}

static struct model model_of(uint32_t capacity, uint32_t sampler, struct nr_limits limits)
{
    struct model model = {.engine = create(capacity, sampler, limits, NR_OK), .limits = limits, .now = 1000};
    struct nr_stream_position position;
    uint8_t id[16] = {1};

    CHECK(nr_stream_open(model.engine, 0, id, OWNER, &position) == NR_OK);
    model.handle = position.handle;
    model.item = malloc(MOST * sizeof(*model.item));
    CHECK(model.item != NULL);
    return model;
}

static void model_free(struct model *model)
{
    nr_engine_destroy(model->engine);
    free(model->item);
}

static void audit(const struct model *model)
{
    char message[200];

    if (nr_engine_audit(model->engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static bool too_old(const struct model *model, uint64_t version)
{
    uint64_t published = version <= START ? 0 : version - START;

    if (model->limits.versions == 0 || version == 0)
        return false;
    return published + model->limits.versions <= model->publications;
}

static bool due(const struct model *model, const struct model_item *item)
{
    return (model->limits.max_age_ns != 0 && model->now - item->born >= model->limits.max_age_ns) || too_old(model, item->version);
}

/* All that are due leave; how many are left. */
static uint32_t judge(struct model *model)
{
    uint32_t left = 0;

    for (uint32_t i = model->first; i < model->count; i++) {
        model->item[i].here = model->item[i].here && !due(model, &model->item[i]);
        left += model->item[i].here;
    }
    while (model->first < model->count && !model->item[model->first].here)
        model->first++;
    return left;
}

static void publish(struct model *model)
{
    struct nr_wait wait;
    uint64_t version;

    CHECK(nr_parameters_begin(model->engine, 1, 7, 0, UINT64_MAX, model->now, &wait) == NR_OK);
    CHECK(nr_parameters_finish(model->engine, 1, 7, &version) == NR_OK);
    CHECK_EQUAL(version, START + ++model->publications);
}

/* Also what the engine calls on the next draw of a table with room: the oldest item goes when it is full. */
static void insert(struct model *model, uint64_t version)
{
    struct nr_wait wait;
    uint64_t key, step = model->steps++;

    CHECK(nr_step_write(model->engine, model->handle, OWNER, step, STEP, 0, &step, STEP, model->now, &wait) == NR_OK);
    struct nr_item item = {.number = model->items++, .first_step = step, .steps = 1, .priority = 1 + below(4), .columns = &version};
    bool late = too_old(model, version);
    uint32_t size = judge(model); /* the engine does so too */
    CHECK(nr_item_insert(model->engine, 0, model->handle, OWNER, &item, model->now, &key, &wait) == NR_OK);
    CHECK_EQUAL(key == NR_KEY_NONE, late);
    if (late)
        return;
    CHECK(model->count < MOST);
    if (size == model->engine->tables[0].capacity) {
        while (!model->item[model->first].here)
            model->first++;
        model->item[model->first++].here = false;
    }
    model->item[model->count++] = (struct model_item){.key = key, .born = model->now, .version = version, .here = true};
}

static void configure(struct model *model, uint32_t versions, uint64_t max_age)
{
    model->limits.versions = versions;
    model->limits.max_age_ns = max_age;
    CHECK(nr_expire_limits_valid(&model->engine->tables[0], &model->limits));
    nr_expire_configure(model->engine, &model->engine->tables[0], &model->limits);
}

/* A draw is from exactly the items that the model has. */
static void draw(struct model *model)
{
    struct nr_draw_entry entries[LEASES];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;
    uint32_t left = judge(model), tries = 0;
    int status;

    while ((status = nr_draw_open(model->engine, 0, 4, &draw, model->now, &wait)) == NR_WAIT_LEAVING)
        CHECK(++tries < 1000);
    struct nr_table_info info;
    nr_table_info(model->engine, 0, &info);
    CHECK_EQUAL(info.size, left);
    if (left < (model->engine->tables[0].selector.ops->distinct ? 4 : 1)) {
        CHECK(nr_is_wait(status));
        return;
    }
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(draw.head.size, left);
    for (uint32_t i = 0; i < 4; i++) {
        bool found = false;

        for (uint32_t j = model->first; j < model->count && !found; j++)
            found = model->item[j].here && model->item[j].key == entries[i].key;
        CHECK(found);
    }
    nr_draw_settle(model->engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
}

/* What is due is not found either, though nothing has made it leave yet. */
static void get(struct model *model)
{
    struct nr_draw_entry entries[LEASES];
    struct nr_draw draw = {.entries = entries};
    uint64_t keys[LEASES];
    uint32_t from = model->count > LEASES ? below(model->count - LEASES + 1) : 0, count = 0;
    struct nr_wait wait;

    for (; count < LEASES && from + count < model->count; count++)
        keys[count] = model->item[from + count].key;
    if (count == 0)
        return;
    CHECK(nr_draw_open_keys(model->engine, 0, count, keys, &draw, model->now, &wait) == NR_OK);
    for (uint32_t i = 0; i < count; i++) {
        const struct model_item *item = &model->item[from + i];

        CHECK_EQUAL(entries[i].key, item->here && !due(model, item) ? item->key : NR_KEY_NONE);
    }
    nr_draw_settle(model->engine, &draw, NR_SETTLE_RELEASE);
}

/* Some of those that are due leave, and nobody else. */
static void maintain(struct model *model)
{
    bool more = nr_engine_maintain(model->engine, model->now, below(60));

    for (uint32_t i = model->first; i < model->count; i++) {
        if (!model->item[i].here)
            continue;
        bool left = nr_table_find(&model->engine->tables[0], model->item[i].key) == NULL;

        CHECK(!left || due(model, &model->item[i]));
        CHECK(left || more || !due(model, &model->item[i]));
        model->item[i].here = !left;
    }
}

static uint64_t any_version(const struct model *model)
{
    switch (below(8)) {
    case 0:
        return 0; /* unknown */
    case 1:
        return START - below(3); /* of an earlier start */
    case 2:
        return START + model->publications + below(3) + (below(9) == 0 ? NR_MAX_VERSIONS - 10 : 0); /* not published yet */
    default:
        return START + (model->publications > 20 ? model->publications - below(20) : below((uint32_t)model->publications + 1));
    }
}

static void random_calls_agree_with_the_model(uint32_t operations, uint32_t sampler)
{
    struct model model = model_of(CAPACITY, sampler, (struct nr_limits){0});
    uint64_t left_by_age = 0, left_by_version = 0;

    for (uint32_t i = 0; i < operations; i++) {
        model.now += below(3) == 0 ? 0 : below(20);
        switch (below(40)) {
        case 0:
        case 1:
        case 2:
            publish(&model);
            break;
        case 3:
            configure(&model, below(3) == 0 ? 0 : 1 + below(25), model.limits.max_age_ns);
            break;
        case 4:
            configure(&model, model.limits.versions, below(3) == 0 ? 0 : 1 + below(4000));
            break;
        case 5:
            maintain(&model);
            break;
        case 6:
            get(&model);
            break;
        case 7:
        case 8:
        case 9:
            draw(&model);
            break;
        default:
            insert(&model, any_version(&model));
        }
        if (i % 16 == 0)
            audit(&model);
    }
    struct nr_table_info info;
    nr_table_info(model.engine, 0, &info);
    left_by_age = info.evicted_age;
    left_by_version = info.evicted_version;
    CHECK(left_by_age > operations / 100 && left_by_version > operations / 100);
    model_free(&model);
}

static void limits_that_cannot_be_kept_are_refused(void)
{
    CHECK(create(10, NR_SAMPLER_UNIFORM, (struct nr_limits){.versions = NR_MAX_VERSIONS + 1}, NR_BAD_CONFIG) == NULL);
    nr_engine_destroy(create(10, NR_SAMPLER_UNIFORM, (struct nr_limits){.versions = NR_MAX_VERSIONS}, NR_OK));
}

/* Publications come faster than anybody looks: a whole round of lists and more, and none is mistaken for another. */
static void publications_may_outrun_the_lists(void)
{
    struct model model = model_of(64, NR_SAMPLER_PRIORITIZED, (struct nr_limits){.versions = NR_MAX_VERSIONS});

    for (uint32_t i = 0; i < 40; i++) {
        insert(&model, START + model.publications);
        publish(&model);
    }
    for (uint32_t i = 0; i < NR_MAX_VERSIONS - 20; i++)
        publish(&model);
    insert(&model, START + model.publications); /* its list was that of one that is due */
    audit(&model);
    draw(&model);
    CHECK_EQUAL(judge(&model), 20);
    for (uint32_t i = 0; i < 3 * NR_MAX_VERSIONS; i++)
        publish(&model);
    insert(&model, START + model.publications);
    draw(&model);
    CHECK_EQUAL(judge(&model), 1);
    audit(&model);
    model_free(&model);
}

/* More is due than a draw may do: it waits, and goes on until it is done; nothing is drawn that is too old. */
static void a_draw_waits_while_many_leave(bool by_version)
{
    enum { ITEMS = 20000 };
    struct model model = model_of(ITEMS, NR_SAMPLER_PRIORITIZED, (struct nr_limits){0});
    struct nr_draw_entry entries[LEASES];
    struct nr_draw draw = {.entries = entries};
    struct nr_table_info info;
    struct nr_wait wait;
    uint32_t waits = 0, before = ITEMS;
    int status;

    publish(&model);
    for (uint32_t i = 0; i < ITEMS; i++)
        insert(&model, START + 1);
    publish(&model);
    model.now += 1000;
    if (by_version)
        configure(&model, 1, 0);
    else
        configure(&model, 0, 900);
    uint64_t progress = nr_table_progress(model.engine, 0);
    while ((status = nr_draw_open(model.engine, 0, 1, &draw, model.now, &wait)) == NR_WAIT_LEAVING) {
        CHECK_EQUAL(wait.reason, NR_WAIT_LEAVING);
        CHECK(nr_table_progress(model.engine, 0) > progress); /* so that it is tried again */
        progress = nr_table_progress(model.engine, 0);
        nr_table_info(model.engine, 0, &info);
        CHECK_EQUAL(wait.have, info.size);
        CHECK(before - info.size <= NR_EXPIRE_QUANTUM / 6);
        before = (uint32_t)info.size;
        if (waits++ % 4 == 3)
            nr_engine_maintain(model.engine, model.now, 500);
        before = waits % 4 == 0 ? (nr_table_info(model.engine, 0, &info), (uint32_t)info.size) : before;
        audit(&model);
    }
    CHECK_EQUAL(status, NR_WAIT_LIMITER);
    CHECK(waits > 5);
    nr_table_info(model.engine, 0, &info);
    CHECK_EQUAL(info.size, 0);
    CHECK_EQUAL(info.evicted_age, by_version ? 0 : ITEMS);
    CHECK_EQUAL(info.evicted_version, by_version ? ITEMS : 0);
    CHECK(!nr_engine_maintain(model.engine, model.now, 1));
    model_free(&model);
}

/* Leased items leave the table, and their rows stay readable. */
static void what_is_leased_leaves_and_stays_readable(void)
{
    struct model model = model_of(8, NR_SAMPLER_FIFO, (struct nr_limits){.max_age_ns = 100});
    struct nr_draw_entry entries[LEASES];
    struct nr_draw draw = {.entries = entries}, second = {.entries = entries + 4};
    struct nr_wait wait;
    uint64_t row[ROW / 8];

    insert(&model, 1);
    insert(&model, 2);
    CHECK(nr_draw_open(model.engine, 0, 2, &draw, model.now, &wait) == NR_OK);
    model.now += 100;
    CHECK_EQUAL(nr_draw_open(model.engine, 0, 1, &second, model.now, &wait), NR_WAIT_LIMITER);
    CHECK(nr_draw_copy(model.engine, &draw, ROW, row, ROW) == NR_OK);
    CHECK_EQUAL(row[2], 2);
    CHECK_EQUAL(row[3], 1);
    audit(&model);
    nr_draw_settle(model.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    audit(&model);
    model_free(&model);
}

int main(int argc, char **argv)
{
    uint32_t operations = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 0) : 60000;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1;

    printf("seed %llu\n", (unsigned long long)seed);
    nr_random_seed(&dice, seed);
    limits_that_cannot_be_kept_are_refused();
    publications_may_outrun_the_lists();
    a_draw_waits_while_many_leave(false);
    a_draw_waits_while_many_leave(true);
    what_is_leased_leaves_and_stays_readable();
    random_calls_agree_with_the_model(operations, NR_SAMPLER_PRIORITIZED);
    random_calls_agree_with_the_model(operations, NR_SAMPLER_UNIFORM);
    random_calls_agree_with_the_model(operations, NR_SAMPLER_FIFO);
    return 0;
}
