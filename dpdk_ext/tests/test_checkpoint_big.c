/*
 * A checkpoint beyond 4 GiB: every offset, length and count that a file has, with 4.5 GiB of steps. The steps' pages between their first
 * and last bytes are never written, so that the engine costs little memory; the file takes 4.5 GiB of disk in TMPDIR (or /tmp) for as
 * long as the test runs, and is read back into an engine that keeps the newest items only.
 */
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "check.h"
#include "engine/state.h"
#include "loop/checkpoint_file.h"
#include "loop/checkpointer.h"

enum { STEP = 4 << 20, STEPS = 1152, KEPT = 4, OWNER = 1, COLUMNS = 8 };

_Static_assert((uint64_t)STEP *STEPS >= UINT64_C(9) << 29, "4.5 GiB");

static struct nr_engine *engine_of(uint32_t capacity)
{
    static const struct nr_gather gather = {.length = 8, .target = NR_ROW_HEAD + COLUMNS};
    struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = 8, .steps = capacity + 8, .window = 1, .in_flight = 2, .streams = 1};
    struct nr_table_config table = {.capacity = capacity,
                                    .leases = 2,
                                    .window = 1,
                                    .row_bytes = NR_ROW_HEAD + COLUMNS + 8,
                                    .item_bytes = COLUMNS,
                                    .gather_count = 1,
                                    .exponent = 1,
                                    .sampler = NR_SAMPLER_FIFO};
    struct nr_engine_config config = {.store_count = 1,
                                      .table_count = 1,
                                      .stores = &store,
                                      .tables = &table,
                                      .gathers = &gather,
                                      .start_seconds = 1,
                                      .lease_ns = 1};
    int status;
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK_EQUAL(status, NR_OK);
    return engine;
}

/* A step of which only the first and the last eight bytes are written, and made whole by hand. */
static void write_step(struct nr_engine *engine, uint32_t handle, uint64_t number)
{
    struct nr_store *store = &engine->stores[0];
    struct nr_stream *stream = nr_streams_find(&engine->streams, handle, OWNER);
    uint64_t last = ~number;
    struct nr_wait wait;

    CHECK(stream != NULL);
    CHECK_EQUAL(nr_step_write(engine, handle, OWNER, number, STEP, 0, &number, 8, 1, &wait), NR_OK);
    CHECK_EQUAL(nr_step_write(engine, handle, OWNER, number, STEP, STEP - 8, &last, 8, 1, &wait), NR_OK);
    uint32_t place = nr_stream_ring(store, &engine->streams, stream)[number % store->span];
    CHECK_EQUAL(store->slab.steps[place].state & NR_STEP_MISSING, STEP - 16);
    store->slab.steps[place].state -= STEP - 16;
}

static void fill(struct nr_engine *engine)
{
    static const uint8_t id[16] = {1};
    struct nr_stream_position position;
    struct nr_wait wait;
    uint64_t key;

    CHECK_EQUAL(nr_stream_open(engine, 0, id, OWNER, &position), NR_OK);
    for (uint64_t i = 0; i < STEPS; i++) {
        struct nr_item item = {.number = i, .first_step = i, .steps = 1, .priority = (double)i, .columns = &i};

        write_step(engine, position.handle, i);
        CHECK_EQUAL(nr_item_insert(engine, 0, position.handle, OWNER, &item, i, &key, &wait), NR_OK);
    }
}

static void check_step(struct nr_engine *engine, uint32_t slot, uint64_t number)
{
    const struct nr_record *record = nr_table_record(&engine->tables[0], slot);
    const uint8_t *bytes = nr_slab_step(&engine->stores[0].slab, record->steps[0]);
    uint64_t first, last;

    memcpy(&first, bytes, 8);
    memcpy(&last, bytes + STEP - 8, 8);
    CHECK(first == number && last == ~number);
    CHECK(nr_extremes_get(&engine->tables[0].extremes, slot) == (double)number);
}

int main(void)
{
    const char *folder = getenv("TMPDIR");
    char path[300], message[256];
    struct statvfs space;
    struct nr_checkpoint_progress progress;
    struct nr_checkpoint_file file;
    struct nr_restore_map map;
    int status, error;

    snprintf(path, sizeof(path), "%s/test_checkpoint_big.%d", folder != NULL ? folder : "/tmp", (int)getpid());
    CHECK_EQUAL(statvfs(folder != NULL ? folder : "/tmp", &space), 0);
    if ((uint64_t)space.f_bavail * space.f_frsize < UINT64_C(6) << 30) {
        fprintf(stderr, "%s: needs 6 GiB of disk: set TMPDIR\n", path);
        return 1;
    }

    /* Huge pages would make memory of what is not written. */
    CHECK_EQUAL(prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0), 0);
    struct nr_engine *engine = engine_of(STEPS);
    fill(engine);
    struct nr_checkpointer *checkpointer = nr_checkpointer_open("{}", &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_checkpointer_begin(checkpointer, path, &error), NR_OK);
    CHECK_EQUAL(nr_checkpointer_finish(checkpointer, engine, UINT64_C(600) * 1000000000u), NR_OK);
    nr_checkpointer_progress(checkpointer, &progress);
    CHECK_EQUAL(progress.state, NR_CHECKPOINT_WRITTEN);
    CHECK_EQUAL(nr_engine_audit(engine, message, sizeof(message)), NR_OK);
    CHECK_EQUAL(progress.items, STEPS);
    CHECK(progress.bytes > (uint64_t)STEP * STEPS && progress.estimate > progress.bytes / 10 * 9);
    printf("%llu B in %.1f s, longest quantum %.0f us\n", (unsigned long long)progress.bytes, (double)progress.elapsed_ns * 1e-9,
           (double)progress.longest_quantum_ns * 1e-3);
    nr_checkpointer_close(checkpointer, engine);
    nr_engine_destroy(engine);

    memset(&map, 0xff, sizeof(map));
    map.stores[0] = map.tables[0] = 0;
    engine = engine_of(KEPT);
    status = nr_checkpoint_restore(path, engine, &map, &file);
    unlink(path);
    if (status != NR_OK)
        fprintf(stderr, "%s\n", file.complaint);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_engine_audit(engine, message, sizeof(message)), NR_OK);
    CHECK(file.bytes == progress.bytes && file.restored.items == STEPS && file.restored.tables[0].restored == KEPT);
    uint64_t number = STEPS - KEPT;
    for (uint32_t slot = engine->tables[0].order.oldest; slot != NR_NONE; slot = engine->tables[0].order.links[slot].after)
        check_step(engine, slot, number++);
    CHECK_EQUAL(number, STEPS);
    nr_checkpoint_file_free(&file);
    struct rusage used;
    CHECK_EQUAL(getrusage(RUSAGE_SELF, &used), 0);
    printf("%ld MiB of memory at most\n", used.ru_maxrss >> 10);
    nr_engine_destroy(engine);
    return 0;
}
