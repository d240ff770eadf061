#include "history.h"

#include <stdlib.h>
#include <string.h>

#include "../engine/view.h"

static bool columns_fit(const struct nr_actor_config *config, const struct nr_store_config *store)
{
    if (config->observation_columns > config->column_count)
        return false;
    for (uint32_t i = 0; i < config->column_count; i++) {
        uint32_t room = i < config->observation_columns ? store->observation_bytes : store->step_bytes;

        if ((uint64_t)config->column_offset[i] + config->column_bytes[i] > room)
            return false;
    }
    return (uint64_t)config->reward_offset + sizeof(float) <= store->step_bytes && config->terminated_offset < store->step_bytes &&
           config->truncated_offset < store->step_bytes;
}

int nr_history_open(struct nr_history *history, const struct nr_actor_config *config, const struct nr_store_config *store,
                    uint64_t places)
{
    size_t columns = config->column_count;

    memset(history, 0, sizeof(*history));
    if (!columns_fit(config, store) || places > 1u << 30)
        return NR_BAD_CONFIG;
    history->ring = 1;
    while (history->ring < places)
        history->ring *= 2;
    history->stride = (store->step_bytes + 7) / 8 * 8;
    history->step_bytes = store->step_bytes;
    history->observation_bytes = store->observation_bytes;
    history->column_count = config->column_count;
    history->observation_columns = config->observation_columns;
    history->reward_offset = config->reward_offset;
    history->terminated_offset = config->terminated_offset;
    history->truncated_offset = config->truncated_offset;

    size_t all = (size_t)config->streams * history->ring;

    history->steps = calloc(all, history->stride);
    history->finals = calloc(all, 1);
    history->column_offset = malloc((columns + 1) * 2 * sizeof(uint32_t));
    if (history->steps == NULL || history->finals == NULL || history->column_offset == NULL) {
        nr_history_free(history);
        return NR_NO_MEMORY;
    }
    history->column_bytes = history->column_offset + columns;
    if (columns != 0) {
        memcpy(history->column_offset, config->column_offset, columns * sizeof(uint32_t));
        memcpy(history->column_bytes, config->column_bytes, columns * sizeof(uint32_t));
    }
    return NR_OK;
}

void nr_history_free(struct nr_history *history)
{
    free(history->steps);
    free(history->finals);
    free(history->column_offset);
    memset(history, 0, sizeof(*history));
}

/* The usual widths of scalars without a call. */
static inline void copy(uint8_t *target, const uint8_t *source, uint32_t bytes)
{
    switch (bytes) {
    case 1:
        *target = *source;
        break;
    case 4:
        memcpy(target, source, 4);
        break;
    case 8:
        memcpy(target, source, 8);
        break;
    case 16:
        memcpy(target, source, 16);
        break;
    default:
        memcpy(target, source, bytes);
    }
}

static void take_columns(const struct nr_history *history, uint8_t *step, uint32_t row, uint32_t count, const void *const *column,
                         const uint64_t *row_stride)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *source = (const uint8_t *)column[i] + row * row_stride[i];

        copy(step + history->column_offset[i], source, history->column_bytes[i]);
    }
}

static void mark(struct nr_history *history, uint32_t stream, uint64_t number, bool final)
{
    history->finals[(size_t)stream * history->ring + (number & (history->ring - 1))] = final;
}

void nr_history_take(struct nr_history *history, uint32_t stream, uint64_t number, const struct nr_rows *rows)
{
    uint8_t *step = nr_history_step(history, stream, number);

    mark(history, stream, number, false);
    take_columns(history, step, stream, history->column_count, rows->column, rows->row_stride);
    memcpy(step + history->reward_offset, &rows->reward[stream], sizeof(float));
    step[history->terminated_offset] = rows->terminated[stream] != 0;
    step[history->truncated_offset] = rows->truncated[stream] != 0;
}

void nr_history_take_final(struct nr_history *history, uint32_t stream, uint64_t number, const void *const *column,
                           const uint64_t *row_stride)
{
    uint8_t *step = nr_history_step(history, stream, number);

    mark(history, stream, number, true);
    take_columns(history, step, stream, history->observation_columns, column, row_stride);
    memset(step + history->observation_bytes, 0, history->step_bytes - history->observation_bytes);
}

void nr_history_show(const struct nr_history *history, const struct nr_table_config *table, const struct nr_gather *gathers,
                     const struct nr_formed *formed, uint8_t *row)
{
    memset(row, 0, NR_ROW_HEAD);
    memcpy(row + NR_ROW_HEAD, formed->columns, table->item_bytes);
    for (uint32_t i = 0; i < table->gather_count; i++) {
        const struct nr_gather *gather = &gathers[table->first_gather + i];
        uint8_t *target = row + gather->target;

        for (uint32_t j = 0; j <= gather->more; j++, target += gather->length) {
            uint32_t step;

            if (nr_gather_piece(gather, j, formed->item.anchor, formed->item.length, &step))
                memcpy(target, nr_history_step(history, formed->row, formed->item.first_step + step) + gather->source,
                       gather->length);
            else
                memset(target, 0, gather->length);
        }
    }
}
