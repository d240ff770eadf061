/*
 * What the engine's calls cost, on rows as CartPole has them: 80 bytes, with two observations of 16 bytes out of the steps.
 * The table is prioritized and FIFO; then a draw of 32 of every other sampler, an insert that evicts with every other remover, and
 * draws where an item may be drawn a limited number of times. usage: bench_engine [ITEMS ...]; default 100000 and 1000000.
 * Medians of many short rounds, and behind them the best tenth, which other work on the machine disturbs less.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "engine/engine.h"
#include "engine/random.h"

enum { ROUNDS = 201, STREAMS = 16, NSTEP = 3, LEASES = 8192 };

static const struct nr_gather gathers[] = {
    {.delta = 0, .from_end = 0, .source = 0, .length = 16, .target = 40},  /* obs */
    {.delta = 0, .from_end = 1, .source = 0, .length = 16, .target = 56},  /* next_obs */
    {.delta = 0, .from_end = 0, .source = 16, .length = 4, .target = 72},  /* action */
};

struct bench {
    struct nr_engine *engine;
    struct nr_random random;
    uint32_t handles[STREAMS];
    uint64_t numbers[STREAMS]; /* of the next step */
    uint64_t items[STREAMS];   /* of the next item */
    uint64_t *keys;            /* ring of the last `capacity` */
    uint64_t inserted, capacity;
    uint32_t next; /* stream */
};

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

struct cost {
    double median, best; /* ns */
};

static struct cost cost_of(double *values)
{
    qsort(values, ROUNDS, sizeof(*values), compare);
    return (struct cost){values[ROUNDS / 2], values[ROUNDS / 10]};
}

static double uniform(struct nr_random *random)
{
    return (double)(nr_random_next(random) >> 11) * 0x1p-53;
}

/* A step, and the item that it completes. */
static void insert(struct bench *bench)
{
    uint32_t s = bench->next;
    uint8_t step[26], columns[24];
    struct nr_wait wait;
    uint64_t number = bench->numbers[s]++;

    bench->next = (s + 1) % STREAMS;
    memset(step, (int)number, sizeof(step));
    memset(columns, (int)number, sizeof(columns));
    CHECK(nr_step_write(bench->engine, bench->handles[s], 1, number, sizeof(step), 0, step, sizeof(step), 0, &wait) == NR_OK);
    if (number < NSTEP)
        return;
    struct nr_item item = {
        .number = bench->items[s]++,
        .first_step = number - NSTEP,
        .steps = NSTEP + 1,
        .anchor = 0,
        .length = NSTEP,
        .flags = NR_ITEM_DEFAULT_PRIORITY,
        .columns = columns,
    };
    uint64_t key;
    CHECK(nr_item_insert(bench->engine, 0, bench->handles[s], 1, &item, 0, &key, &wait) == NR_OK);
    bench->keys[bench->inserted++ % bench->capacity] = key;
}

static struct cost time_inserts(struct bench *bench)
{
    double values[ROUNDS];

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now_ns();

        for (int i = 0; i < 1000; i++)
            insert(bench);
        values[round] = (double)(now_ns() - begin) / 1000;
    }
    return cost_of(values);
}

static struct cost time_draws(struct bench *bench, uint32_t count)
{
    double values[ROUNDS];
    struct nr_draw_entry entries[512];
    static uint8_t rows[512 * 80];
    uint32_t repeats = 2048 / count;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now_ns();

        for (uint32_t i = 0; i < repeats; i++) {
            struct nr_draw draw = {.entries = entries};
            struct nr_wait wait;

            CHECK(nr_draw_open(bench->engine, 0, count, &draw, 0, &wait) == NR_OK);
            CHECK(nr_draw_copy(bench->engine, &draw, 0, rows, count * 80) == NR_OK);
            nr_draw_settle(bench->engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
        values[round] = (double)(now_ns() - begin) / repeats;
    }
    return cost_of(values);
}

/* Of 512 keys: random ones, or those of a draw just made, whose items are in the cache, as a learner's are not. */
static struct cost time_updates(struct bench *bench, bool drawn)
{
    double values[ROUNDS];
    struct nr_draw_entry entries[512];
    uint64_t keys[512];
    double priorities[512];
    uint8_t outcome[512];

    for (int round = 0; round < ROUNDS; round++) {
        struct nr_draw draw = {.entries = entries};
        struct nr_wait wait;

        if (drawn)
            CHECK(nr_draw_open(bench->engine, 0, 512, &draw, 0, &wait) == NR_OK);
        for (int j = 0; j < 512; j++) {
            keys[j] = drawn ? entries[j].key : bench->keys[nr_random_below(&bench->random, bench->capacity)];
            priorities[j] = uniform(&bench->random) * uniform(&bench->random) * 4;
        }
        if (drawn)
            nr_draw_settle(bench->engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        uint64_t begin = now_ns();
        CHECK(nr_priorities_update(bench->engine, 0, 512, keys, priorities, outcome) == NR_OK);
        values[round] = (double)(now_ns() - begin);
        for (int j = 0; j < 512; j++)
            CHECK(outcome[j] == NR_APPLIED);
    }
    return cost_of(values);
}

static const char *const samplers[NR_SAMPLERS] = {
    "prioritized", "uniform", "fifo", "lifo", "stratified", "max_heap", "min_heap", "top_k", "without_replacement"};
static const char *const removers[NR_REMOVERS] = {"fifo", "uniform", "lowest_priority", "oldest"};

static void run(uint32_t capacity, uint32_t sampler, uint32_t remover, uint32_t max_sampled)
{
    struct nr_store_config store = {
        .step_bytes = 26,
        .observation_bytes = 16,
        .steps = (remover == NR_REMOVER_FIFO ? capacity + capacity / 8 : capacity * (NSTEP + 1)) + STREAMS * 67,
        .window = NSTEP + 1,
        .in_flight = 64,
        .streams = STREAMS,
    };
    struct nr_table_config table = {
        .capacity = capacity,
        .sampler = sampler,
        .remover = remover,
        .limits.max_sampled = max_sampled,
        .top = capacity / 10,
        .exponent = 0.6,
        .leases = LEASES,
        .window = NSTEP + 1,
        .row_bytes = 80,
        .item_bytes = 24,
        .gather_count = 3,
    };
    struct nr_engine_config config = {
        .seed = 1,
        .lease_ns = 1000000000,
        .store_count = 1,
        .table_count = 1,
        .stores = &store,
        .tables = &table,
        .gathers = gathers,
    };
    struct bench bench = {.capacity = capacity, .keys = calloc(capacity, sizeof(uint64_t))};
    int status;

    nr_random_seed(&bench.random, 7);
    bench.engine = nr_engine_create(&config, &status);
    CHECK(bench.engine != NULL);
    for (uint32_t s = 0; s < STREAMS; s++) {
        struct nr_stream_position position;
        uint8_t id[16] = {(uint8_t)s};

        CHECK(nr_stream_open(bench.engine, 0, id, 1, &position) == NR_OK);
        bench.handles[s] = position.handle;
    }
    while (bench.inserted < capacity)
        insert(&bench);
    if (sampler != NR_SAMPLER_PRIORITIZED || remover != NR_REMOVER_FIFO || max_sampled > 0) {
        /* Priorities that differ, as after some learning; evicted keys are stale and no matter. */
        for (uint64_t i = 0; i < capacity; i++) {
            double priority = uniform(&bench.random);
            uint8_t outcome;

            CHECK(nr_priorities_update(bench.engine, 0, 1, &bench.keys[i], &priority, &outcome) == NR_OK);
        }
        struct cost draw = time_draws(&bench, 32), evicting = time_inserts(&bench);
        printf("  %-19s %-15s %u: draw of 32 %8.2f (%.2f) us, insert %8.0f (%.0f) ns\n", samplers[sampler], removers[remover],
               max_sampled, draw.median / 1e3, draw.best / 1e3, evicting.median, evicting.best);
        nr_engine_destroy(bench.engine);
        free(bench.keys);
        return;
    }
    struct cost mixing = time_updates(&bench, false);
    for (uint64_t done = 0; done < capacity; done += 512 * ROUNDS)
        mixing = time_updates(&bench, false);
    struct cost draw32 = time_draws(&bench, 32), draw512 = time_draws(&bench, 512);
    struct cost drawn = time_updates(&bench, true), inserts = time_inserts(&bench);
    printf("%u items, %llu MiB\n", capacity, (unsigned long long)(nr_engine_bytes(&config, &status) >> 20));
    printf("  insert of a step and an item %8.0f (%.0f) ns\n", inserts.median, inserts.best);
    printf("  draw of 32, copied, settled  %8.2f (%.2f) us\n", draw32.median / 1e3, draw32.best / 1e3);
    printf("  draw of 512, copied, settled %8.2f (%.2f) us\n", draw512.median / 1e3, draw512.best / 1e3);
    printf("  update of 512 random keys    %8.2f (%.2f) us\n", mixing.median / 1e3, mixing.best / 1e3);
    printf("  update of 512 just drawn     %8.2f (%.2f) us\n", drawn.median / 1e3, drawn.best / 1e3);
    char message[200];
    CHECK(nr_engine_audit(bench.engine, message, sizeof(message)) == NR_OK);
    nr_engine_destroy(bench.engine);
    free(bench.keys);
}

static void run_all(uint32_t capacity)
{
    run(capacity, NR_SAMPLER_PRIORITIZED, NR_REMOVER_FIFO, 0);
    for (uint32_t sampler = 1; sampler < NR_SAMPLERS; sampler++)
        run(capacity, sampler, NR_REMOVER_FIFO, 0);
    for (uint32_t remover = 1; remover < NR_REMOVERS; remover++)
        run(capacity, NR_SAMPLER_PRIORITIZED, remover, 0);
    run(capacity, NR_SAMPLER_PRIORITIZED, NR_REMOVER_FIFO, 1000000);
    run(capacity, NR_SAMPLER_FIFO, NR_REMOVER_FIFO, 1000000);
}

/* Sequences of the same steps: 80 of them, every 40, as R2D2 has them. */
enum { SEQUENCE = 80, STRIDE = 40, SEQUENCE_ROW = 32 + SEQUENCE * 13 + (SEQUENCE + 1) * 16 };

static void run_sequences(uint32_t capacity)
{
    static const struct nr_gather runs[] = {
        {.source = 16, .length = 8, .target = 32, .more = SEQUENCE - 1, .inside = 1},                       /* action */
        {.source = 20, .length = 4, .target = 32 + SEQUENCE * 8, .more = SEQUENCE - 1, .inside = 1},        /* reward */
        {.source = 24, .length = 1, .target = 32 + SEQUENCE * 12, .more = SEQUENCE - 1, .inside = 1},       /* terminated */
        {.source = 0, .length = 16, .target = 32 + SEQUENCE * 13, .more = SEQUENCE},                        /* observations */
    };
    struct nr_store_config store = {
        .step_bytes = 26,
        .observation_bytes = 16,
        .steps = capacity * STRIDE + capacity * STRIDE / 8 + STREAMS * (SEQUENCE + 65),
        .window = SEQUENCE + 1,
        .in_flight = 64,
        .streams = STREAMS,
    };
    struct nr_table_config table = {
        .capacity = capacity,
        .sampler = NR_SAMPLER_PRIORITIZED,
        .exponent = 0.6,
        .leases = LEASES,
        .window = SEQUENCE + 1,
        .row_bytes = (SEQUENCE_ROW + 7) / 8 * 8,
        .item_bytes = 16,
        .gather_count = 4,
    };
    struct nr_engine_config config = {
        .seed = 1, .lease_ns = 1000000000, .store_count = 1, .table_count = 1, .stores = &store, .tables = &table, .gathers = runs};
    int status;
    uint64_t items = 0;
    struct nr_engine *engine = nr_engine_create(&config, &status);
    struct nr_draw_entry entries[32];
    double values[ROUNDS];
    uint8_t *rows = malloc(32 * (size_t)table.row_bytes);
    uint32_t handles[STREAMS];

    CHECK(engine != NULL && rows != NULL);
    for (uint32_t s = 0; s < STREAMS; s++) {
        struct nr_stream_position position;
        uint8_t id[16] = {(uint8_t)s};

        CHECK(nr_stream_open(engine, 0, id, 1, &position) == NR_OK);
        handles[s] = position.handle;
    }
    for (uint64_t number = 0; items < capacity + STREAMS; number++) {
        for (uint32_t s = 0; s < STREAMS; s++) {
            uint8_t step[26] = {(uint8_t)number}, columns[16] = {0};
            struct nr_item item = {.number = number / STRIDE,
                                   .first_step = number - SEQUENCE,
                                   .steps = SEQUENCE + 1,
                                   .length = SEQUENCE,
                                   .flags = NR_ITEM_DEFAULT_PRIORITY,
                                   .columns = columns};
            struct nr_wait wait;
            uint64_t key;

            CHECK(nr_step_write(engine, handles[s], 1, number, sizeof(step), 0, step, sizeof(step), 0, &wait) == NR_OK);
            if (number < SEQUENCE || number % STRIDE != 0)
                continue;
            CHECK(nr_item_insert(engine, 0, handles[s], 1, &item, 0, &key, &wait) == NR_OK);
            items++;
        }
    }
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t begin = now_ns();

        for (int i = 0; i < 16; i++) {
            struct nr_draw draw = {.entries = entries};
            struct nr_wait wait;

            CHECK(nr_draw_open(engine, 0, 32, &draw, 0, &wait) == NR_OK);
            CHECK(nr_draw_copy(engine, &draw, 0, rows, 32 * table.row_bytes) == NR_OK);
            nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
        values[round] = (double)(now_ns() - begin) / 16;
    }
    struct cost cost = cost_of(values);
    printf("%u sequences of %d steps, %d apart, rows of %u bytes, %llu MiB\n", capacity, SEQUENCE, STRIDE, table.row_bytes,
           (unsigned long long)(nr_engine_bytes(&config, &status) >> 20));
    printf("  draw of 32, copied, settled  %8.2f (%.2f) us, %.1f ns per step\n", cost.median / 1e3, cost.best / 1e3,
           cost.median / 32 / SEQUENCE);
    nr_engine_destroy(engine);
    free(rows);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        run_all(100000);
        run_all(1000000);
        run_sequences(2500);
        run_sequences(100000);
    }
    for (int i = 1; i < argc; i++)
        run_all((uint32_t)atoi(argv[i]));
    return 0;
}
