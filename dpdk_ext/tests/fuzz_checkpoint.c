/* The checkpoint reader against damaged records: whatever the bytes, it refuses them or restores an engine whose audit passes.
 * As a test it mutates records that an engine wrote (usage: fuzz_checkpoint [ROUNDS [SEED]]); with -DNR_LIBFUZZER it is libFuzzer's
 * target, whose input is the records themselves. Checksums are below this: a file of damaged blocks does not get so far. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_format.h"
#include "engine/random.h"
#include "engine/restore.h"

enum { STEP = 8, COLUMNS = 4, WINDOW = 3, OWNER = 5, MOST = 1 << 16 };

static struct nr_engine *create(void)
{
    static const struct nr_gather gather = {.length = STEP, .target = 24};
    static const struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = 4, .steps = 20, .window = WINDOW, .in_flight = 2, .streams = 3};
    static const struct nr_table_config tables[] = {
        {.capacity = 6, .exponent = 0.5, .leases = 4, .window = WINDOW, .row_bytes = 32, .item_bytes = COLUMNS, .gather_count = 1},
        {.capacity = 4,
         .sampler = NR_SAMPLER_UNIFORM,
         .leases = 4,
         .window = WINDOW,
         .row_bytes = 32,
         .item_bytes = COLUMNS,
         .gather_count = 1}};
    static const struct nr_set_config set = {.bytes = 8};
    struct nr_engine_config config = {.seed = 1,
                                      .lease_ns = 1000,
                                      .store_count = 1,
                                      .table_count = 2,
                                      .set_count = 1,
                                      .stores = &store,
                                      .tables = tables,
                                      .gathers = &gather,
                                      .sets = &set};
    int status;
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK(engine != NULL);
    return engine;
}

/* NR_OK with an engine that works, or a refusal that says why. */
static int attempt(const uint8_t *bytes, size_t length)
{
    struct nr_restore_map map;
    struct nr_engine *engine = create();
    struct nr_restored report;
    char message[200];
    int status;

    memset(&map, 0xff, sizeof(map));
    map.stores[0] = map.tables[0] = map.sets[0] = 0;
    map.tables[1] = 1;
    struct nr_restore *restore = nr_restore_open(engine, &map, 1000, &status);
    CHECK(restore != NULL);
    status = nr_restore_scan(restore, bytes, length);
    if (status == NR_OK)
        status = nr_restore_scanned(restore);
    if (status == NR_OK)
        status = nr_restore_take(restore, bytes, length);
    if (status == NR_OK)
        status = nr_restore_finish(restore);
    nr_restore_report(restore, &report);
    CHECK(status == NR_OK || status == NR_MALFORMED || status == NR_BAD_CONFIG);
    CHECK(status == NR_OK || nr_restore_complaint(restore)[0] != 0);
    nr_restore_close(restore);
    if (status == NR_OK) {
        struct nr_draw_entry entries[4];
        struct nr_draw draw = {.entries = entries};
        struct nr_wait wait;
        uint8_t row[4 * 32];

        if (nr_engine_audit(engine, message, sizeof(message)) != NR_OK) {
            fprintf(stderr, "audit: %s\n", message);
            abort();
        }
        for (uint32_t table = 0; table < 2; table++) {
            if (nr_draw_open(engine, table, 4, &draw, 1000, &wait) != NR_OK)
                continue;
            CHECK(nr_draw_copy(engine, &draw, 0, row, sizeof(row)) == NR_OK);
            nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
    }
    nr_engine_destroy(engine);
    return status;
}

#ifdef NR_LIBFUZZER
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    attempt(bytes, length);
    return 0;
}
#else

/* The records of an engine with items in both tables, evicted ones, a free slot and two streams. */
static size_t write_records(uint8_t *bytes)
{
    struct nr_engine *engine = create();
    static uint8_t own[NR_CHECKPOINT_OWN];
    struct nr_segment segments[4];
    size_t length = 0;
    int status;

    for (uint32_t s = 0; s < 2; s++) {
        uint8_t id[16] = {(uint8_t)(s + 1)}, step[STEP] = {0}, columns[COLUMNS] = {0};
        struct nr_stream_position position;
        struct nr_wait wait;
        uint64_t key;

        CHECK(nr_stream_open(engine, 0, id, OWNER, &position) == NR_OK);
        for (uint64_t n = 0; n < 9; n++) {
            CHECK(nr_step_write(engine, position.handle, OWNER, n, STEP, 0, step, STEP, 10 + n, &wait) == NR_OK);
            if (n < WINDOW)
                continue;
            struct nr_item item = {.number = n,
                                   .first_step = n - 2,
                                   .steps = WINDOW,
                                   .anchor = 1,
                                   .length = 1,
                                   .priority = (double)n,
                                   .columns = columns};
            CHECK(nr_item_insert(engine, n % 3 == 0, position.handle, OWNER, &item, 10 + n, &key, &wait) == NR_OK);
        }
    }
    CHECK(nr_checkpoint_begin(engine) == NR_OK);
    do {
        struct nr_pieces pieces = {.own = own, .least = NR_CHECKPOINT_LEAST, .room = 4, .segment = segments};

        status = nr_checkpoint_next(engine, &pieces, 1000, 50);
        CHECK(status == NR_OK || status == NR_PENDING);
        CHECK(pieces.count == 0 && length + pieces.length <= MOST);
        memcpy(bytes + length, own, pieces.length);
        length += pieces.length;
    } while (status != NR_OK);
    nr_engine_destroy(engine);
    return length;
}

/* Where record `index` starts, and how long it is; the last when there are fewer. */
static size_t record_at(const uint8_t *bytes, size_t length, uint64_t index, size_t *size)
{
    size_t at = 0;

    for (;;) {
        struct nr_saved_head head;

        memcpy(&head, bytes + at, sizeof(head));
        *size = sizeof(head) + head.length;
        if (index-- == 0 || at + *size >= length)
            return at;
        at += *size;
    }
}

int main(int argc, char **argv)
{
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 10) : 20000, seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static uint8_t whole[MOST], bytes[2 * MOST];
    size_t length = write_records(whole);
    uint64_t restored = 0, records = 0;
    struct nr_random random;

    for (size_t at = 0, size; at < length; at += size, records++)
        record_at(whole + at, length - at, 0, &size);
    CHECK(attempt(whole, length) == NR_OK);
    nr_random_seed(&random, seed);
    for (uint64_t round = 0; round < rounds; round++) {
        size_t now = length, size, other;

        memcpy(bytes, whole, length);
        for (uint64_t changes = 1 + nr_random_below(&random, 3); changes > 0; changes--) {
            size_t from = record_at(whole, length, nr_random_below(&random, records), &size);

            switch (nr_random_below(&random, 6)) {
            case 0: /* a bit */
                bytes[nr_random_below(&random, now)] ^= (uint8_t)(1u << nr_random_below(&random, 8));
                break;
            case 1: { /* a field of 4 bytes: an edge */
                static const uint32_t edges[] = {0, 1, 2, 19, 20, 255, 65535, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff};

                memcpy(bytes + nr_random_below(&random, now / 4) * 4, &edges[nr_random_below(&random, 11)], 4);
                break;
            }
            case 2: /* shorter */
                now = now > 1 ? nr_random_below(&random, now) + 1 : now;
                break;
            case 3: /* a record twice */
                memcpy(bytes + now, whole + from, size);
                now = now + size <= MOST ? now + size : now;
                break;
            case 4: /* two records change places */
                other = record_at(whole, length, nr_random_below(&random, records), &size);
                if (from + size <= now && other + size <= now)
                    memmove(bytes + from, whole + other, size);
                break;
            default: /* a record is missing */
                if (now == length) {
                    memmove(bytes + from, bytes + from + size, length - from - size);
                    now -= size;
                }
            }
        }
        restored += attempt(bytes, now) == NR_OK;
    }
    printf("%llu rounds, seed %llu: %llu restored all the same\n", (unsigned long long)rounds, (unsigned long long)seed,
           (unsigned long long)restored);
    CHECK(rounds < 1000 || (restored > 0 && restored < rounds));
    return 0;
}
#endif
