/*
 * The engine's sample of 32 and update of 512, a hundred times each on 10^5 CartPole-size items, with seeds: for callgrind, which
 * counts the instructions of sample_32 and update_512 (tests/bench/bench_instructions.py).
 */
#include <string.h>

#include "check.h"
#include "engine/random.h"
#include "toy.h"

enum { ITEMS = 100000, TIMES = 100, ROWS = 32, KEYS = 512 };

static uint64_t keys[ITEMS];

__attribute__((noipa)) void sample_32(struct nr_engine *engine, uint8_t *rows, uint32_t row_bytes);
__attribute__((noipa)) void update_512(struct nr_engine *engine, const uint64_t *chosen, const double *priorities);

void sample_32(struct nr_engine *engine, uint8_t *rows, uint32_t row_bytes)
{
    struct nr_draw_entry entries[ROWS];
    struct nr_draw draw = {.entries = entries};
    struct nr_wait wait;

    CHECK(nr_draw_open(engine, 0, ROWS, &draw, 0, &wait) == NR_OK);
    CHECK(nr_draw_copy(engine, &draw, 0, rows, ROWS * row_bytes) == NR_OK);
    nr_draw_settle(engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
}

void update_512(struct nr_engine *engine, const uint64_t *chosen, const double *priorities)
{
    uint8_t outcome[KEYS];

    CHECK(nr_priorities_update(engine, 0, KEYS, chosen, priorities, outcome) == NR_OK);
}

static double uniform(struct nr_random *random)
{
    return (double)(nr_random_next(random) >> 11) * 0x1p-53;
}

int main(void)
{
    struct toy_spec spec;
    struct nr_random random;
    struct nr_stream_position position;
    struct nr_wait wait;
    int status;

    toy_spec(&spec, ITEMS, 1, 1, 1, 0);
    spec.table.exponent = 0.6;
    nr_random_seed(&random, 1);
    struct nr_engine *engine = nr_engine_create(&spec.config, &status);
    CHECK(engine != NULL);
    CHECK(nr_stream_open(engine, 0, (const uint8_t *)"0123456789abcde", 1, &position) == NR_OK);
    for (uint64_t number = 0; number <= ITEMS; number++) {
        struct toy_step step = {.action = (int32_t)number};
        uint8_t columns[24] = {0};

        CHECK(nr_step_write(engine, position.handle, 1, number, sizeof(step), 0, &step, sizeof(step), 0, &wait) == NR_OK);
        if (number == 0)
            continue;
        struct nr_item item = {.number = number - 1,
                               .first_step = number - 1,
                               .steps = 2,
                               .length = 1,
                               .priority = uniform(&random) * 4,
                               .columns = columns};
        CHECK(nr_item_insert(engine, 0, position.handle, 1, &item, 0, &keys[number - 1], &wait) == NR_OK);
    }
    for (int i = 0; i < TIMES; i++) {
        uint8_t rows[ROWS * sizeof(struct toy_row)];
        uint64_t chosen[KEYS];
        double priorities[KEYS];

        for (int k = 0; k < KEYS; k++) {
            chosen[k] = keys[nr_random_below(&random, ITEMS)];
            priorities[k] = uniform(&random) * uniform(&random) * 4;
        }
        sample_32(engine, rows, sizeof(struct toy_row));
        update_512(engine, chosen, priorities);
    }
    nr_engine_destroy(engine);
    return 0;
}
