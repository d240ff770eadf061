/*
 * The reader of checkpoints against records that no engine wrote, with no checksum in their way: whatever they are, they are refused
 * with a reason, or the engine that they fill passes its audit, works on, and can be saved again.
 *
 * Plain: usage fuzz_checkpoint [ROUNDS [SEED]]; mutates what engines of several kinds wrote. With clang -fsanitize=fuzzer and
 * NR_LIBFUZZER defined it is a target of libFuzzer: the first byte chooses today's configuration, the rest are the records.
 */
#include <string.h>

#include "check.h"
#include "engine/checkpoint.h"
#include "engine/checkpoint_format.h"
#include "engine/random.h"
#include "engine/restore.h"

enum {
    STEP = 24,
    OBSERVATION = 16,
    COLUMNS = 8,
    WINDOW = 3,
    OWNER = 9,
    STREAMS = 3,
    TABLES = 3,
    LEASES = 8,
    SETUPS = 4,
    MOST = 1 << 17, /* bytes of records */
};

/* ---- Engines ---- */

static struct nr_engine *engine_of(uint32_t setup)
{
    static const uint32_t capacities[SETUPS] = {20, 7, 64, 20};
    static const struct nr_gather gather = {.length = 8, .target = NR_ROW_HEAD + COLUMNS};
    struct nr_store_config stores[2];
    struct nr_table_config tables[TABLES];
    struct nr_set_config set = {.bytes = 64};
    struct nr_engine_config config = {.seed = 5,
                                      .lease_ns = 10,
                                      .start_seconds = 1700000000,
                                      .shard = 3,
                                      .store_count = 2,
                                      .table_count = TABLES,
                                      .set_count = 1,
                                      .stores = stores,
                                      .tables = tables,
                                      .gathers = &gather,
                                      .sets = &set};
    int status;

    for (uint32_t i = 0; i < 2; i++)
        stores[i] = (struct nr_store_config){.step_bytes = STEP,
                                             .observation_bytes = OBSERVATION,
                                             .steps = capacities[setup] * 2 + 60,
                                             .window = WINDOW + (setup == 3),
                                             .in_flight = 4,
                                             .streams = setup == 1 ? 1 : STREAMS};
    for (uint32_t i = 0; i < TABLES; i++)
        tables[i] = (struct nr_table_config){.store = i == 2,
                                             .capacity = capacities[setup] + i,
                                             .sampler = i % 3,
                                             .exponent = 1,
                                             .leases = LEASES,
                                             .window = WINDOW + (setup == 3),
                                             .row_bytes = NR_ROW_HEAD + COLUMNS + 8,
                                             .item_bytes = COLUMNS,
                                             .gather_count = 1};
    struct nr_engine *engine = nr_engine_create(&config, &status);

    CHECK_EQUAL(status, NR_OK);
    return engine;
}

static uint64_t current; /* round, to say which failed */

static void check_sound(const struct nr_engine *engine, const char *when)
{
    char message[256];

    if (nr_engine_audit(engine, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "round %llu, %s: %s\n", (unsigned long long)current, when, message);
        abort();
    }
}

/* Streams, items, draws and updates, of which nothing need succeed. */
static void work(struct nr_engine *engine, struct nr_random *dice, uint32_t operations)
{
    struct nr_stream_position position[2 * STREAMS] = {0};
    struct nr_draw_entry entries[4];
    uint64_t steps[2 * STREAMS], items[2 * STREAMS], key;
    bool open[2 * STREAMS] = {false};
    uint8_t bytes[STEP] = {7}, outcome;
    struct nr_wait wait;

    for (uint32_t i = 0; i < operations; i++) {
        uint32_t which = (uint32_t)nr_random_below(dice, 2 * STREAMS), store = which % 2;
        uint8_t id[16] = {(uint8_t)(which + 1)};

        if (!open[which]) {
            open[which] = nr_stream_open(engine, store, id, OWNER, &position[which]) == NR_OK;
            steps[which] = position[which].next_step;
            items[which] = position[which].next_item;
            continue;
        }
        /* Windows that reach back, and steps that come again. */
        if (nr_step_write(engine, position[which].handle, OWNER, steps[which], STEP, 0, bytes, STEP, i, &wait) == NR_OK)
            steps[which]++;
        struct nr_item item = {.number = items[which]++,
                               .first_step = steps[which] > 2 ? steps[which] - 2 : 0,
                               .steps = 2,
                               .length = 1,
                               .priority = (double)nr_random_below(dice, 3),
                               .columns = &steps[which]};
        uint32_t table = store == 1 ? 2 : (uint32_t)nr_random_below(dice, 2);

        (void)nr_item_insert(engine, table, position[which].handle, OWNER, &item, i, &key, &wait);
        struct nr_draw draw = {.entries = entries};
        if (nr_random_below(dice, 4) == 0 && nr_draw_open(engine, table, 4, &draw, i, &wait) == NR_OK) {
            double priority = 2;
            (void)nr_priorities_update(engine, table, 1, &entries[0].key, &priority, &outcome);
            nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        }
    }
    nr_stream_release_owner(engine, OWNER);
}

/* All records of the engine, one behind the other. */
static uint64_t save(struct nr_engine *engine, uint8_t *records)
{
    static uint8_t own[NR_CHECKPOINT_OWN];
    struct nr_segment segment[NR_CHECKPOINT_SEGMENTS];
    uint64_t length = 0;
    int status;

    CHECK_EQUAL(nr_checkpoint_begin(engine), NR_OK);
    do {
        struct nr_pieces pieces = {.own = own, .least = 20, .room = NR_CHECKPOINT_SEGMENTS, .segment = segment};

        status = nr_checkpoint_next(engine, &pieces, NR_CHECKPOINT_WORK, 1000);
        CHECK(status == NR_OK || status == NR_PENDING);
        memcpy(records + length, pieces.own, pieces.front);
        length += pieces.front;
        for (uint32_t i = 0; i < pieces.count; i++) {
            CHECK(length + pieces.segment[i].length <= MOST);
            memcpy(records + length, pieces.segment[i].base, pieces.segment[i].length);
            length += pieces.segment[i].length;
            nr_checkpoint_sent(engine, pieces.segment[i].token);
        }
    } while (status != NR_OK);
    return length;
}

/* ---- One input ---- */

static int read_into(struct nr_engine *engine, const uint8_t *records, uint64_t length)
{
    struct nr_restore_map map;
    struct nr_restored restored;
    int status;

    memset(&map, 0xff, sizeof(map));
    for (uint32_t i = 0; i < TABLES; i++)
        map.stores[i] = map.sets[i] = map.tables[i] = i;
    map.stores[2] = map.sets[1] = map.sets[2] = UINT32_MAX;
    struct nr_restore *restore = nr_restore_open(engine, &map, 5000, &status);

    CHECK_EQUAL(status, NR_OK);
    status = nr_restore_scan(restore, records, length);
    if (status == NR_OK)
        status = nr_restore_scanned(restore);
    if (status == NR_OK)
        status = nr_restore_take(restore, records, length);
    if (status == NR_OK)
        status = nr_restore_finish(restore);
    if (status != NR_OK)
        CHECK(status == NR_NO_MEMORY || nr_restore_complaint(restore)[0] != '\0');
    nr_restore_report(restore, &restored);
    nr_restore_close(restore);
    return status;
}

/* Whether it was taken. */
static bool try(uint32_t setup, const uint8_t *records, uint64_t length)
{
    static uint8_t again[MOST];
    struct nr_engine *engine = engine_of(setup);
    struct nr_random dice;
    bool taken = read_into(engine, records, length) == NR_OK;

    if (taken) {
        nr_random_seed(&dice, length);
        check_sound(engine, "restored");
        work(engine, &dice, 60);
        check_sound(engine, "worked on");
        length = save(engine, again);
        struct nr_engine *third = engine_of(setup);
        CHECK_EQUAL(read_into(third, again, length), NR_OK);
        check_sound(third, "restored again");
        nr_engine_destroy(third);
    }
    nr_engine_destroy(engine);
    return taken;
}

#ifdef NR_LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0)
        try(data[0] % SETUPS, data + 1, size - 1);
    return 0;
}

#else

/* ---- Mutations ---- */

static struct nr_random dice;

static uint64_t below(uint64_t bound)
{
    return nr_random_below(&dice, bound);
}

/* Where the records begin. */
static uint32_t find_records(const uint8_t *records, uint64_t length, uint64_t *starts, uint32_t room)
{
    uint32_t count = 0;

    for (uint64_t at = 0; at + sizeof(struct nr_saved_head) <= length && count < room;) {
        struct nr_saved_head head;

        memcpy(&head, records + at, sizeof(head));
        starts[count++] = at;
        if (head.length > length - at - sizeof(head))
            break;
        at += sizeof(head) + head.length;
    }
    return count;
}

/* Changes a number within a record into another that looks like one. */
static void change_number(uint8_t *at, uint64_t left)
{
    static const uint64_t numbers[] = {0,         1, 2, 255, 1 << 16, INT32_MAX, UINT32_MAX, UINT64_C(1) << 62, UINT64_C(1) << 63,
                                       UINT64_MAX};
    uint32_t width = below(2) ? 4 : 8;
    uint64_t value = 0;

    if (left < 4)
        return;
    uint64_t offset = below(left / 4) * 4;
    if (offset + width > left)
        return;
    memcpy(&value, at + offset, width);
    value = below(2) ? numbers[below(sizeof(numbers) / sizeof(numbers[0]))] : value + below(5) - 2;
    memcpy(at + offset, &value, width);
}

static uint64_t mutate(uint8_t *records, uint64_t length)
{
    static uint64_t starts[1 << 14];
    uint32_t count = find_records(records, length, starts, 1 << 14);
    uint64_t from, to, size;
    struct nr_saved_head head;

    if (count == 0)
        return length;
    from = starts[below(count)];
    to = starts[below(count)];
    memcpy(&head, records + from, sizeof(head));
    size = sizeof(head) + head.length;
    if (size > length - from)
        size = length - from;
    switch (below(8)) {
    case 0: /* a record less */
        memmove(records + from, records + from + size, length - from - size);
        return length - size;
    case 1: { /* one more, elsewhere */
        uint8_t copy[8192];

        if (size > sizeof(copy) || length + size > MOST)
            return length;
        memcpy(copy, records + from, size);
        memmove(records + to + size, records + to, length - to);
        memcpy(records + to, copy, size);
        return length + size;
    }
    case 2: /* cut off */
        return from + below(size + 1);
    case 3:
        records[below(length)] = (uint8_t)below(256);
        return length;
    default:
        if (below(16) > 0)
            change_number(records + from + sizeof(head), size - sizeof(head));
        else
            change_number(records + from, sizeof(head));
        return length;
    }
}

int main(int argc, char **argv)
{
    static uint8_t base[MOST], mutant[MOST];
    uint64_t rounds = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000, seed = argc > 2 ? strtoull(argv[2], NULL, 0) : 1, taken = 0;
    uint64_t length = 0;

    printf("fuzz_checkpoint %llu %llu\n", (unsigned long long)rounds, (unsigned long long)seed);
    nr_random_seed(&dice, seed);
    for (uint64_t round = 0; round < rounds; round++) {
        if (round % 100 == 0) {
            struct nr_engine *engine = engine_of((uint32_t)below(SETUPS));

            work(engine, &dice, (uint32_t)below(300));
            length = save(engine, base);
            nr_engine_destroy(engine);
        }
        uint64_t changed = length;

        memcpy(mutant, base, length);
        for (uint64_t i = below(4); i > 0 && changed > 0; i--)
            changed = mutate(mutant, changed);
        current = round;
        taken += try((uint32_t)below(SETUPS), mutant, changed);
    }
    printf("%llu of %llu taken\n", (unsigned long long)taken, (unsigned long long)rounds);
    CHECK(taken > rounds / 20 && taken < rounds / 2);
    return 0;
}

#endif
