/* What a checkpoint of an Atari-like table costs: the loop's quanta, and the writing and reading of the file.
 * usage: bench_checkpoint [ITEMS [FILE [STEP_BYTES]]]; without FILE, or with "", only the quanta. 700,000 items of 7,072 B make a file above 4 GiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "engine/checkpoint.h"
#include "engine/state.h"
#include "loop/checkpoint_file.h"
#include "loop/checkpointer.h"

enum { COLUMNS = 24, WINDOW = 5, OWNER = 1 };

static uint64_t read_ns(clockid_t clock)
{
    struct timespec now;

    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct nr_engine *create(uint32_t items, uint32_t step_bytes)
{
    struct nr_gather gather = {.length = 16, .target = 16 + COLUMNS};
    struct nr_store_config store = {.step_bytes = step_bytes,
                                    .observation_bytes = step_bytes - 16,
                                    .steps = items + items / 8 + 2000,
                                    .window = WINDOW,
                                    .in_flight = 64,
                                    .streams = 16};
    struct nr_table_config table = {.capacity = items,
                                    .exponent = 0.6,
                                    .leases = 4096,
                                    .window = WINDOW,
                                    .row_bytes = 64,
                                    .item_bytes = COLUMNS,
                                    .gather_count = 1};
    struct nr_engine_config config = {
        .lease_ns = 1000000000, .store_count = 1, .table_count = 1, .stores = &store, .tables = &table, .gathers = &gather};
    int status;
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK(engine != NULL);
    return engine;
}

static void fill(struct nr_engine *engine, uint32_t items, uint32_t step_bytes)
{
    uint8_t id[16] = {1}, *step = malloc(step_bytes), columns[COLUMNS] = {0};
    struct nr_stream_position position;
    struct nr_wait wait;
    uint64_t key;

    CHECK(step != NULL && nr_stream_open(engine, 0, id, OWNER, &position) == NR_OK);
    for (uint32_t i = 0; i < step_bytes; i++)
        step[i] = (uint8_t)(i * 37);
    for (uint64_t n = 0, number = 0; number < items; n++) {
        memcpy(step, &n, sizeof(n));
        CHECK(nr_step_write(engine, position.handle, OWNER, n, step_bytes, 0, step, step_bytes, n, &wait) == NR_OK);
        if (n + 1 < WINDOW)
            continue;
        struct nr_item item = {.number = number++,
                               .first_step = n + 1 - WINDOW,
                               .steps = WINDOW,
                               .anchor = WINDOW - 2,
                               .length = 1,
                               .priority = 1,
                               .columns = columns};
        CHECK(nr_item_insert(engine, 0, position.handle, OWNER, &item, n, &key, &wait) == NR_OK);
    }
    free(step);
}

static uint64_t clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

static int compare(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

    return (left > right) - (left < right);
}

/* The engine alone: blocks come back at once. In processor time of this thread, since another that is given the core is no part of a
 * quantum. */
static void quanta(struct nr_engine *engine)
{
    uint8_t *own = malloc(NR_CHECKPOINT_OWN);
    static struct nr_segment segments[NR_CHECKPOINT_SEGMENTS];
    uint64_t *took = NULL, count = 0, room = 0, all = 0, bytes = 0;
    int status;

    CHECK(own != NULL && nr_checkpoint_begin(engine) == NR_OK);
    memset(own, 0, NR_CHECKPOINT_OWN);
    do {
        struct nr_pieces pieces = {.own = own, .least = NR_CHECKPOINT_LEAST, .room = NR_CHECKPOINT_SEGMENTS, .segment = segments};
        uint64_t start = read_ns(CLOCK_THREAD_CPUTIME_ID);

        status = nr_checkpoint_next(engine, &pieces, NR_CHECKPOINT_WORK, start);
        if (count == room) {
            room = room ? 2 * room : 1024;
            took = realloc(took, room * sizeof(*took));
            CHECK(took != NULL);
        }
        took[count] = read_ns(CLOCK_THREAD_CPUTIME_ID) - start;
        all += took[count++];
        bytes += pieces.front;
        for (uint32_t i = 0; i < pieces.count; i++) {
            bytes += segments[i].length;
            nr_checkpoint_sent(engine, segments[i].token);
        }
    } while (status != NR_OK);
    qsort(took, count, sizeof(*took), compare);
    printf("quanta: %llu, of %llu bytes in all; median %.1f us, 99%% %.1f us, longest %.1f us; %.1f ms of the loop in all\n",
           (unsigned long long)count, (unsigned long long)bytes, (double)took[count / 2] / 1e3,
           (double)took[count * 99 / 100] / 1e3, (double)took[count - 1] / 1e3, (double)all / 1e6);
    free(took);
    free(own);
}

int main(int argc, char **argv)
{
    uint32_t items = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 50000;
    const char *path = argc > 2 ? argv[2] : "";
    uint32_t step_bytes = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 7072;
    struct nr_engine *engine = create(items, step_bytes);
    struct nr_checkpoint_progress progress;
    struct nr_checkpoint_file file;
    struct nr_restore_map map;
    int status, error;

    fill(engine, items, step_bytes);
    for (uint32_t i = 0; i < 3; i++)
        quanta(engine);
    if (path[0] == 0)
        return 0;
    struct nr_checkpointer *checkpointer = nr_checkpointer_open("{}", &status);
    CHECK(checkpointer != NULL && nr_checkpointer_begin(checkpointer, path, &error) == NR_OK);
    CHECK(nr_checkpointer_finish(checkpointer, engine, UINT64_MAX) == NR_OK);
    nr_checkpointer_progress(checkpointer, &progress);
    if (progress.status != NR_OK) {
        fprintf(stderr, "%s: %s\n", path, strerror(progress.error));
        return 1;
    }
    printf("written: %llu bytes (estimated %llu) in %.2f s: %.2f GB/s, synchronised; longest quantum %.1f us\n",
           (unsigned long long)progress.bytes, (unsigned long long)progress.estimate, (double)progress.elapsed_ns / 1e9,
           (double)progress.bytes / (double)progress.elapsed_ns, (double)progress.longest_quantum_ns / 1e3);
    nr_checkpointer_close(checkpointer, engine);
    nr_engine_destroy(engine);

    memset(&map, 0xff, sizeof(map));
    map.stores[0] = map.tables[0] = 0;
    engine = create(items, step_bytes);
    uint64_t start = clock_ns();
    status = nr_checkpoint_restore(path, engine, &map, &file);
    if (status != NR_OK)
        fprintf(stderr, "%s\n", file.complaint);
    CHECK(status == NR_OK && file.restored.tables[0].restored == items);
    printf("restored: %llu items in %.2f s: %.2f GB/s\n", (unsigned long long)file.restored.items,
           (double)(clock_ns() - start) / 1e9, (double)file.bytes / (double)(clock_ns() - start));
    nr_checkpoint_file_free(&file);
    nr_engine_destroy(engine);
    unlink(path);
    return 0;
}
