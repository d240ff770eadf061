/* What a replay does, wherever it is: each test of one opens worlds with its own world_open. */
#ifndef NR_TESTS_REPLAY_BEHAVIOUR_H
#define NR_TESTS_REPLAY_BEHAVIOUR_H

#include <math.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "toy.h"

#define MILLISECOND UINT64_C(1000000)
#define LONG (20000 * MILLISECOND)

/* A replay and what stands behind it. */
struct world {
    struct toy_spec spec;
    struct nr_replay *replay;
    void *server; /* of the test's own */
};

/* Opens the replay of world->spec. */
static void world_open(struct world *world);
static void world_close(struct world *world);

static uint32_t append(struct nr_actor *actor, struct toy_rows *toy, bool end)
{
    uint32_t items, row;

    CHECK_EQUAL(nr_actor_stage(actor, &toy->rows, end ? toy->end_mask : NULL, LONG, &items, &row), NR_OK);
    CHECK_EQUAL(nr_actor_commit(actor, NULL), NR_OK);
    return items;
}

static void flush(struct nr_actor *actor)
{
    struct nr_operation *operation;

    CHECK_EQUAL(nr_actor_flush(actor, LONG, &operation), NR_OK);
    CHECK(operation == NULL);
}

static uint64_t clock_now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* The table once all that was drawn is committed or refunded. */
static struct nr_table_info settled(struct nr_replay *replay)
{
    struct nr_table_info info;
    struct nr_operation *operation;
    uint64_t before = clock_now();

    do {
        CHECK_EQUAL(nr_tables(replay, &info, 1, LONG, &operation), NR_OK);
        CHECK(clock_now() - before < LONG);
    } while (info.reserved != 0 || info.leased != 0);
    return info;
}

static uint64_t size_of(struct nr_replay *replay)
{
    struct nr_table_info info;
    struct nr_operation *operation;

    CHECK_EQUAL(nr_tables(replay, &info, 1, LONG, &operation), NR_OK);
    return info.size;
}

static void sampled_rows_are_those_inserted(void)
{
    struct world world;
    struct toy_rows toy;
    int status;

    toy_spec(&world.spec, 256, 1, 3, 1, NR_AUTORESET_NONE);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    CHECK(actor != NULL);
    nr_actor_version(actor, 41);
    toy_rows(&toy);
    toy.end_mask[0] = 1;

    static struct toy_row staged[300];
    uint32_t made = 0;

    for (uint32_t number = 0; number < 100; number++) {
        bool last = number % 10 == 9, over = number % 10 == 8;
        uint32_t items, row, table[4], rows[4];

        toy_fill(&toy, 0, number, over && number < 50, over && number >= 50);
        toy.column[1] = last ? NULL : toy.action;
        CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, last ? toy.end_mask : NULL, LONG, &items, &row), NR_OK);
        if (number % 3 == 0) {
            nr_actor_rollback(actor);
            CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, last ? toy.end_mask : NULL, LONG, &items, &row), NR_OK);
        }
        CHECK_EQUAL(items, last ? 3 : number % 10 < 3 ? 0 : 1);
        CHECK_EQUAL(nr_actor_staged(actor, table, rows), NR_OK);
        for (uint32_t i = 0; i < items; i++)
            CHECK(table[i] == 0 && rows[i] == 0);
        CHECK_EQUAL(nr_actor_staged_rows(actor, 0, &staged[made]), NR_OK);
        made += items;
        CHECK_EQUAL(nr_actor_commit(actor, NULL), NR_OK);
    }
    flush(actor);
    CHECK_EQUAL(made, 90);

    uint64_t keys[300];
    int32_t statuses[300];
    CHECK_EQUAL(nr_actor_keys(actor, 0, NULL, NULL), 90);
    CHECK_EQUAL(nr_actor_keys(actor, 40, keys, statuses), 40);
    CHECK_EQUAL(nr_actor_keys(actor, 300, keys + 40, statuses + 40), 50);
    CHECK_EQUAL(nr_actor_keys(actor, 300, keys, statuses), 0);
    CHECK_EQUAL(size_of(replay), 90);

    static struct toy_row rows[600];
    struct nr_sample *sample;
    struct nr_draw_head heads[3];
    CHECK_EQUAL(nr_sample_start(replay, 0, 600, rows, &sample), NR_OK);
    CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);
    CHECK_EQUAL(nr_sample_heads(sample, heads), 3);
    CHECK_EQUAL(heads[2].number, 3);
    CHECK_EQUAL(heads[2].size, 90);
    nr_sample_settle(sample, 1);
    for (uint32_t i = 0; i < 600; i++) {
        uint32_t at = 0;

        CHECK(fabs(rows[i].probability - 1.0 / 90) < 1e-12);
        while (at < 90 && keys[at] != rows[i].key)
            at++;
        CHECK(at < 90);
        CHECK(statuses[at] == NR_OK);
        CHECK_EQUAL(rows[i].version, 41);
        CHECK(memcmp(&rows[i].reward, &staged[at].reward, sizeof(rows[i]) - NR_ROW_HEAD) == 0);
    }
    /* The last anchor before a terminated end: one step, nothing to bootstrap from. */
    CHECK_EQUAL(staged[8].length, 1);
    CHECK(staged[8].discount == 0 && staged[8].reward == 8);
    CHECK(staged[8].observation[0] == 32 && staged[8].next_observation[0] == 36);
    CHECK(staged[89].discount == 0.5F && staged[87].discount == 0.125F);

    struct nr_actor_counters counters;
    nr_actor_counters(actor, &counters);
    CHECK_EQUAL(counters.steps, 100);
    CHECK_EQUAL(counters.items, 90);
    CHECK_EQUAL(counters.acknowledged, 90);
    CHECK_EQUAL(counters.episodes, 10);
    nr_actor_close(actor);
    world_close(&world);
}

static void bad_rows_take_nothing(void)
{
    struct world world;
    struct toy_rows toy;
    int status;
    uint32_t items, row;

    toy_spec(&world.spec, 64, 1, 1, 5, NR_AUTORESET_SAME_STEP);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    append(actor, &toy, false);
    toy.terminated[3] = 1;
    CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, NULL, 0, &items, &row), NR_BAD_COUNT);
    CHECK_EQUAL(row, 3);
    toy.final_mask[3] = toy.final_mask[4] = 1;
    CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, NULL, 0, &items, &row), NR_BAD_COUNT);
    CHECK_EQUAL(row, 4);
    toy.final_mask[4] = 0;
    CHECK_EQUAL(append(actor, &toy, false), 6);
    flush(actor);
    CHECK_EQUAL(size_of(replay), 6);

    world.spec.actor.autoreset = NR_AUTORESET_NONE;
    world.spec.actor.streams = 1;
    struct nr_actor *single = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    toy.end_mask[0] = 1;
    CHECK_EQUAL(nr_actor_stage(single, &toy.rows, toy.end_mask, 0, &items, &row), NR_BAD_COUNT);
    toy.truncated[0] = 1;
    append(single, &toy, false);
    CHECK_EQUAL(nr_actor_stage(single, &toy.rows, NULL, 0, &items, &row), NR_BAD_COUNT);
    CHECK_EQUAL(append(single, &toy, true), 1);

    world.spec.actor.streams = TOY_STREAMS;
    struct nr_actor *many = nr_actor_open(replay, &world.spec.actor, &status);
    if (many != NULL) { /* the server's answer comes later */
        toy_rows(&toy);
        do
            status = nr_actor_stage(many, &toy.rows, NULL, LONG, &items, &row);
        while (status == NR_OK);
        nr_actor_close(many);
    }
    CHECK_EQUAL(status, NR_TOO_MANY);
    world.spec.former.n = 2;
    CHECK(nr_actor_open(replay, &world.spec.actor, &status) == NULL);
    CHECK_EQUAL(status, NR_BAD_CONFIG);
    world.spec.former.table = 1;
    CHECK(nr_actor_open(replay, &world.spec.actor, &status) == NULL);
    CHECK_EQUAL(status, NR_NO_TABLE);
    nr_actor_close(single);
    nr_actor_close(actor);
    world_close(&world);
}

static void updates_resolve_repeated_keys(void)
{
    struct world world;
    struct toy_rows toy;
    struct nr_operation *operation;
    int status;
    uint64_t keys[8];
    int32_t statuses[8];

    toy_spec(&world.spec, 8, 1, 1, 1, NR_AUTORESET_NONE);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t i = 0; i < 5; i++)
        append(actor, &toy, false);
    flush(actor);
    CHECK_EQUAL(nr_actor_keys(actor, 8, keys, statuses), 4);

    uint64_t asked[9] = {keys[0], keys[1], keys[0], keys[2], keys[1], keys[3], keys[0], 12345, keys[2]};
    double values[9] = {5, 6, 7, 9, NAN, -1, 0, 1, 4};
    uint8_t outcome[9];
    const uint8_t expected[9] = {NR_SUPERSEDED,      NR_SUPERSEDED, NR_SUPERSEDED,    NR_SUPERSEDED, NR_OUTCOME_REFUSED,
                                 NR_OUTCOME_REFUSED, NR_APPLIED,    NR_OUTCOME_STALE, NR_APPLIED};
    CHECK_EQUAL(nr_update(replay, 0, 9, asked, values, outcome, LONG, &operation), NR_OK);
    for (int i = 0; i < 9; i++)
        CHECK_EQUAL(outcome[i], expected[i]);

    /* 0 -> 0; 1 and 3 keep 1.0; 2 -> 4 */
    struct nr_table_info info;
    CHECK_EQUAL(nr_tables(replay, &info, 1, LONG, &operation), NR_OK);
    CHECK_EQUAL(info.total, 6 << 24);
    CHECK_EQUAL(nr_update(replay, 0, 3, keys, values, outcome, LONG, &operation), NR_OK);
    for (int i = 0; i < 3; i++)
        CHECK_EQUAL(outcome[i], NR_APPLIED);
    CHECK_EQUAL(nr_update(replay, 0, 0, NULL, NULL, NULL, LONG, &operation), NR_OK);
    CHECK_EQUAL(nr_update(replay, 1, 1, keys, values, outcome, LONG, &operation), NR_NO_TABLE);

    static uint64_t many[5000];
    static double many_values[5000];
    static uint8_t many_outcome[5000];
    for (uint32_t i = 0; i < 5000; i++) {
        many[i] = i % 7 ? i : keys[i % 4];
        many_values[i] = i;
    }
    CHECK_EQUAL(nr_update(replay, 0, 5000, many, many_values, many_outcome, LONG, &operation), NR_OK);
    for (uint32_t i = 0; i < 5000; i++) {
        bool last = true;

        for (uint32_t j = i + 1; j < 5000 && last; j++)
            last = many[j] != many[i];
        CHECK_EQUAL(many_outcome[i], !last ? NR_SUPERSEDED : i % 7 ? NR_OUTCOME_STALE : NR_APPLIED);
    }
    world_close(&world);
}

/* CASES 15: one thread alternates, with more samples asked for than the limiter lets through. */
static void prefetched_samples_do_not_block_inserts(void)
{
    struct world world;
    struct toy_rows toy;
    static struct toy_row rows[4][32];
    struct nr_sample *sample[4];
    struct nr_blocked blocked;
    int status;

    toy_spec(&world.spec, 1000, 100, 1, 1, NR_AUTORESET_NONE);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(nr_sample_start(replay, 0, 32, rows[i], &sample[i]), NR_OK);
    for (uint32_t i = 0; i < 100; i++) {
        append(actor, &toy, false);
        flush(actor);
        CHECK_EQUAL(nr_sample_wait(sample[i % 4], 0), NR_PENDING);
    }
    nr_sample_blocked(sample[0], &blocked);
    CHECK_EQUAL(blocked.wait.reason, NR_WAIT_LIMITER);
    CHECK(blocked.wait.have <= 99 && (world.server != NULL || blocked.wait.have == 99));
    CHECK_EQUAL(blocked.wait.need, 100);
    nr_sample_settle(sample[2], 0);
    append(actor, &toy, false);
    for (int i = 0; i < 4; i++) {
        if (i == 2)
            continue;
        CHECK_EQUAL(nr_sample_wait(sample[i], LONG), NR_OK);
        struct nr_draw_head head;
        nr_sample_heads(sample[i], &head);
        /* The one given up has no draw, unless the server made it before it heard. */
        CHECK(head.number == (uint64_t)i + 1 || (i == 3 && head.number == 3));
        nr_sample_settle(sample[i], i & 1);
    }
    struct nr_table_info info = settled(replay);
    CHECK_EQUAL(info.sampled, 64);
    CHECK_EQUAL(nr_sample_start(replay, 0, 0, rows, &sample[0]), NR_BAD_COUNT);
    CHECK_EQUAL(nr_sample_start(replay, 9, 1, rows, &sample[0]), NR_NO_TABLE);
    world_close(&world);
}

struct race {
    struct nr_replay *replay;
    pthread_barrier_t barrier;
    struct toy_spec *spec;
    _Atomic int status;
};

static void *sample_for_long(void *argument)
{
    struct race *race = argument;
    struct toy_row rows[32];
    struct nr_sample *sample;
    int status;

    CHECK_EQUAL(nr_sample_start(race->replay, 0, 32, rows, &sample), NR_OK);
    pthread_barrier_wait(&race->barrier);
    status = nr_sample_wait(sample, LONG);
    nr_sample_settle(sample, 1);
    race->status = status;
    return NULL;
}

static void waiting_ends_by_time_by_progress_and_by_close(void)
{
    for (int by_close = 0; by_close < 2; by_close++) {
        struct world world;
        struct toy_rows toy;
        struct race race = {.spec = &world.spec};
        pthread_t thread;
        int status;

        toy_spec(&world.spec, 16, 4, 1, 1, NR_AUTORESET_NONE);
        world_open(&world);
        race.replay = world.replay;
        struct nr_actor *actor = nr_actor_open(race.replay, &world.spec.actor, &status);
        struct toy_row row;
        struct nr_sample *sample;
        uint64_t before = clock_now();

        CHECK_EQUAL(nr_sample_start(race.replay, 0, 1, &row, &sample), NR_OK);
        CHECK_EQUAL(nr_sample_wait(sample, 20 * MILLISECOND), NR_PENDING);
        CHECK(clock_now() - before >= 20 * MILLISECOND);
        nr_sample_settle(sample, 0);

        pthread_barrier_init(&race.barrier, NULL, 2);
        CHECK(pthread_create(&thread, NULL, sample_for_long, &race) == 0);
        pthread_barrier_wait(&race.barrier);
        toy_rows(&toy);
        before = clock_now();
        if (by_close) {
            nr_replay_close(race.replay);
            nr_replay_close(race.replay);
        } else {
            for (uint32_t i = 0; i < 5; i++)
                append(actor, &toy, false);
        }
        CHECK(pthread_join(thread, NULL) == 0);
        CHECK(clock_now() - before < 1000 * MILLISECOND);
        CHECK_EQUAL(race.status, by_close ? NR_CLOSED : NR_OK);
        if (by_close) {
            uint32_t items, r;
            struct nr_operation *operation;

            CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, NULL, LONG, &items, &r), NR_CLOSED);
            CHECK_EQUAL(nr_actor_flush(actor, LONG, &operation), NR_CLOSED);
            CHECK_EQUAL(nr_sample_start(race.replay, 0, 1, &row, &sample), NR_CLOSED);
        }
        pthread_barrier_destroy(&race.barrier);
        nr_actor_close(actor);
        world_close(&world);
    }
}

static void *insert_many(void *argument)
{
    struct race *race = argument;
    struct toy_rows *toy = malloc(sizeof(*toy));
    int status;
    struct nr_actor *actor = nr_actor_open(race->replay, &race->spec->actor, &status);

    CHECK(actor != NULL && toy != NULL);
    toy_rows(toy);
    for (uint32_t i = 0; i < 2000; i++) {
        for (uint32_t r = 0; r < race->spec->actor.streams; r++)
            toy_fill(toy, r, i, i % 50 == 48, false);
        append(actor, toy, false);
        if (i % 64 == 0)
            flush(actor);
    }
    flush(actor);
    nr_actor_close(actor);
    free(toy);
    return NULL;
}

static void *learn(void *argument)
{
    struct race *race = argument;
    static struct toy_row rows[2][300];
    struct nr_sample *sample[2];
    struct nr_operation *operation;
    uint64_t keys[300];
    double values[300];
    uint8_t outcome[300];

    for (int i = 0; i < 2; i++)
        CHECK_EQUAL(nr_sample_start(race->replay, 0, 300, rows[i], &sample[i]), NR_OK);
    for (uint32_t i = 0; i < 500; i++) {
        int s = i & 1;

        CHECK_EQUAL(nr_sample_wait(sample[s], LONG), NR_OK);
        for (int j = 0; j < 300; j++) {
            keys[j] = rows[s][j].key;
            values[j] = 1 + j % 5;
            CHECK(rows[s][j].next_observation[0] == rows[s][j].observation[0] + 4 * (float)rows[s][j].length);
        }
        nr_sample_settle(sample[s], 1);
        CHECK_EQUAL(nr_sample_start(race->replay, 0, 300, rows[s], &sample[s]), NR_OK);
        CHECK_EQUAL(nr_update(race->replay, 0, 300, keys, values, outcome, LONG, &operation), NR_OK);
    }
    for (int i = 0; i < 2; i++)
        nr_sample_settle(sample[i], 0);
    return NULL;
}

static void several_threads_share_a_replay(void)
{
    struct world world;
    struct race race = {.spec = &world.spec};
    pthread_t thread[3];
    struct nr_table_info info;

    toy_spec(&world.spec, 4000, 500, 3, 8, NR_AUTORESET_NEXT_STEP);
    world_open(&world);
    race.replay = world.replay;
    CHECK(pthread_create(&thread[0], NULL, insert_many, &race) == 0);
    CHECK(pthread_create(&thread[1], NULL, insert_many, &race) == 0);
    CHECK(pthread_create(&thread[2], NULL, learn, &race) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    info = settled(race.replay);
    CHECK_EQUAL(info.inserted, 2 * 8 * (2000 - 40));
    world_close(&world);
}

static void parameters_come_back(void)
{
    struct world world;
    struct nr_operation *operation;
    struct nr_fetched fetched;
    uint64_t first, second, refused;
    static uint8_t bytes[100000], large[(1 << 20) + 1];

    toy_spec(&world.spec, 16, 1, 1, 1, NR_AUTORESET_NONE);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    memset(bytes, 5, sizeof(bytes));
    CHECK_EQUAL(nr_fetch(replay, 0, 0, &fetched, LONG, &operation), NR_OK);
    CHECK(fetched.data == NULL && fetched.version == 0);
    CHECK_EQUAL(nr_publish(replay, 0, bytes, sizeof(bytes), UINT64_MAX, &first, LONG, &operation), NR_OK);
    for (int i = 0; i < (world.server != NULL ? 2 : 5); i++) { /* in this process readers keep no publisher waiting */
        CHECK_EQUAL(nr_fetch(replay, 0, 0, &fetched, LONG, &operation), NR_OK);
        CHECK(fetched.length == sizeof(bytes) && memcmp(fetched.data, bytes, sizeof(bytes)) == 0);
        second = fetched.version;
        nr_fetched_free(&fetched);
        bytes[0]++;
        CHECK_EQUAL(nr_publish(replay, 0, bytes, sizeof(bytes), second, &first, LONG, &operation), NR_OK);
        CHECK(first > second);
        CHECK_EQUAL(nr_publish(replay, 0, bytes, 1, second, &refused, LONG, &operation), NR_CONFLICT);
    }
    CHECK_EQUAL(nr_fetch(replay, 0, first, &fetched, LONG, &operation), NR_OK);
    CHECK(fetched.data == NULL && fetched.version == first);
    CHECK_EQUAL(nr_publish(replay, 1, bytes, 1, UINT64_MAX, &first, LONG, &operation), NR_NO_SET);
    CHECK_EQUAL(nr_fetch(replay, 1, 0, &fetched, LONG, &operation), NR_NO_SET);
    CHECK_EQUAL(nr_publish(replay, 0, large, sizeof(large), UINT64_MAX, &first, LONG, &operation), NR_BAD_LENGTH);
    struct nr_ping ping;
    CHECK_EQUAL(nr_ping(replay, 100, &ping, LONG, &operation), NR_OK);
    CHECK(world.server != NULL ? ping.round_trip_ns > ping.server_ns : ping.server_ns == 0);
    world_close(&world);
}

static void a_child_is_refused(void)
{
    struct world world;
    struct toy_rows toy;
    struct toy_row row;
    struct nr_sample *sample;
    uint32_t items, r;
    int status, result;

    toy_spec(&world.spec, 16, 1, 1, 1, NR_AUTORESET_NONE);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    pid_t child = fork();
    if (child == 0) {
        CHECK_EQUAL(nr_actor_stage(actor, &toy.rows, NULL, 0, &items, &r), NR_FORKED);
        CHECK_EQUAL(nr_sample_start(replay, 0, 1, &row, &sample), NR_FORKED);
        CHECK(nr_actor_open(replay, &world.spec.actor, &status) == NULL && status == NR_FORKED);
        nr_actor_close(actor);
        nr_replay_free(replay);
        _exit(0);
    }
    CHECK(waitpid(child, &result, 0) == child && WIFEXITED(result) && WEXITSTATUS(result) == 0);
    append(actor, &toy, false);
    nr_actor_close(actor);
    world_close(&world);
}

static void all_replays_behave(void)
{
    sampled_rows_are_those_inserted();
    bad_rows_take_nothing();
    updates_resolve_repeated_keys();
    prefetched_samples_do_not_block_inserts();
    waiting_ends_by_time_by_progress_and_by_close();
    several_threads_share_a_replay();
    parameters_come_back();
    a_child_is_refused();
}

#endif
