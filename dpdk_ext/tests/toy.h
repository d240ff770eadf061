/* A CartPole-like store with one n-step table, its rows, and an actor over it: what the client tests insert and sample. */
#ifndef NR_TESTS_TOY_H
#define NR_TESTS_TOY_H

#include <stddef.h>
#include <string.h>

#include "check.h"
#include "client/replay.h"

enum { TOY_OBSERVATION = 16, TOY_STREAMS = 64 };

struct toy_step {
    float observation[4]; /* [0] counts the stream's steps */
    int32_t action;
    float reward;
    uint8_t terminated, truncated, pad[2];
};

struct toy_row {
    uint64_t key;
    double probability;
    float reward, discount;
    int32_t length, pad;
    uint64_t version;
    float observation[4], next_observation[4];
    int32_t action, pad2;
};

struct toy_spec {
    struct nr_store_config store;
    struct nr_table_config table;
    struct nr_gather gathers[3];
    struct nr_set_config set;
    struct nr_engine_config config;
    struct nr_former_config former;
    struct nr_actor_config actor;
    uint32_t column_offset[2], column_bytes[2];
};

static inline void toy_spec(struct toy_spec *spec, uint32_t capacity, uint64_t min_size, uint32_t n, uint32_t streams,
                            uint32_t autoreset)
{
    memset(spec, 0, sizeof(*spec));
    spec->store = (struct nr_store_config){.step_bytes = sizeof(struct toy_step),
                                           .observation_bytes = TOY_OBSERVATION,
                                           .steps = capacity * 2 + TOY_STREAMS * (n + 64),
                                           .window = n + 1,
                                           .in_flight = 64,
                                           .streams = TOY_STREAMS};
    spec->gathers[0] = (struct nr_gather){.length = 16, .target = offsetof(struct toy_row, observation)};
    spec->gathers[1] = (struct nr_gather){.from_end = 1, .length = 16, .target = offsetof(struct toy_row, next_observation)};
    spec->gathers[2] =
        (struct nr_gather){.source = offsetof(struct toy_step, action), .length = 4, .target = offsetof(struct toy_row, action)};
    spec->table = (struct nr_table_config){.capacity = capacity,
                                           .exponent = 1,
                                           .limits.min_size = min_size,
                                           .leases = 4096,
                                           .window = n + 1,
                                           .row_bytes = sizeof(struct toy_row),
                                           .item_bytes = 24,
                                           .gather_count = 3};
    spec->set = (struct nr_set_config){.bytes = 1 << 20};
    spec->config = (struct nr_engine_config){.seed = 7,
                                             .lease_ns = 1000000000,
                                             .start_seconds = 1700000000,
                                             .store_count = 1,
                                             .table_count = 1,
                                             .set_count = 1,
                                             .stores = &spec->store,
                                             .tables = &spec->table,
                                             .gathers = spec->gathers,
                                             .sets = &spec->set};
    spec->former = (struct nr_former_config){
        .stack = 1, .n = n, .gamma = 0.5, .reward_offset = 0, .discount_offset = 4, .length_offset = 8, .version_offset = 16};
    spec->column_offset[1] = offsetof(struct toy_step, action);
    spec->column_bytes[0] = 16;
    spec->column_bytes[1] = 4;
    spec->actor = (struct nr_actor_config){.streams = streams,
                                           .autoreset = autoreset,
                                           .column_count = 2,
                                           .observation_columns = 1,
                                           .former_count = 1,
                                           .column_offset = spec->column_offset,
                                           .column_bytes = spec->column_bytes,
                                           .reward_offset = offsetof(struct toy_step, reward),
                                           .terminated_offset = offsetof(struct toy_step, terminated),
                                           .truncated_offset = offsetof(struct toy_step, truncated),
                                           .formers = &spec->former};
}

/* The caller's arrays of one append. */
struct toy_rows {
    float observation[TOY_STREAMS][4], final[TOY_STREAMS][4], reward[TOY_STREAMS];
    int32_t action[TOY_STREAMS];
    uint8_t terminated[TOY_STREAMS], truncated[TOY_STREAMS], final_mask[TOY_STREAMS], end_mask[TOY_STREAMS];
    const void *column[2], *finals[1];
    uint64_t stride[2], final_stride[1];
    struct nr_rows rows;
};

static inline void toy_rows(struct toy_rows *toy)
{
    memset(toy, 0, sizeof(*toy));
    toy->column[0] = toy->observation;
    toy->column[1] = toy->action;
    toy->finals[0] = toy->final;
    toy->stride[0] = 16;
    toy->stride[1] = 4;
    toy->final_stride[0] = 16;
    toy->rows = (struct nr_rows){.column = toy->column,
                                 .row_stride = toy->stride,
                                 .reward = toy->reward,
                                 .terminated = toy->terminated,
                                 .truncated = toy->truncated,
                                 .final = toy->finals,
                                 .final_stride = toy->final_stride,
                                 .final_mask = toy->final_mask};
}

/* Row r: observation and action from `number`. */
static inline void toy_fill(struct toy_rows *toy, uint32_t r, uint32_t number, bool terminated, bool truncated)
{
    for (int i = 0; i < 4; i++)
        toy->observation[r][i] = (float)(number * 4 + (uint32_t)i);
    toy->action[r] = (int32_t)number;
    toy->reward[r] = (float)(number % 16);
    toy->terminated[r] = terminated;
    toy->truncated[r] = truncated;
}

#endif
