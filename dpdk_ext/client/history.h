/* The newest steps of an actor's streams: the client's only copy. Steps are gathered into it from the caller's columns; the
 * engine or the protocol client takes them from it, and staged items are shown from it.
 *
 * Step n of a stream lies at place n & (ring - 1) of the stream's ring. Beyond an observation-only step's observation there are
 * zeros. Owned by one actor. */
#ifndef NR_CLIENT_HISTORY_H
#define NR_CLIENT_HISTORY_H

#include "../engine/engine.h"
#include "former.h"
#include "replay.h"

struct nr_history {
    uint8_t *steps;  /* [streams][ring][stride] bytes */
    uint8_t *finals; /* [streams][ring]: 1 for an observation-only step */
    uint32_t ring;   /* places per stream, a power of two */
    uint32_t stride; /* bytes from place to place */
    uint32_t step_bytes, observation_bytes;
    uint32_t column_count;        /* of a step; the first observation_columns make the observation */
    uint32_t observation_columns; /* of those */
    uint32_t *column_offset;      /* [column_count] bytes within the step */
    uint32_t *column_bytes;       /* [column_count] */
    uint32_t reward_offset, terminated_offset, truncated_offset; /* bytes within the step */
    uint32_t pad;
};

/* Room for `places` steps per stream at least. NR_OK, NR_NO_MEMORY, or NR_BAD_CONFIG when a column lies outside its step. */
int nr_history_open(struct nr_history *history, const struct nr_actor_config *config, const struct nr_store_config *store,
                    uint64_t places);
void nr_history_free(struct nr_history *history);

static inline uint8_t *nr_history_step(const struct nr_history *history, uint32_t stream, uint64_t number)
{
    size_t place = (size_t)stream * history->ring + (number & (history->ring - 1));

    return history->steps + place * history->stride;
}

/* Bytes of step `number` that count: a whole step's or an observation's. */
static inline uint32_t nr_history_total(const struct nr_history *history, uint32_t stream, uint64_t number)
{
    size_t place = (size_t)stream * history->ring + (number & (history->ring - 1));

    return history->finals[place] ? history->observation_bytes : history->step_bytes;
}

/* Copies row r of the caller's columns into place `number` of the stream: a whole step, or only its observation. */
void nr_history_take(struct nr_history *history, uint32_t stream, uint64_t number, const struct nr_rows *rows);
void nr_history_take_final(struct nr_history *history, uint32_t stream, uint64_t number, const void *const *column,
                           const uint64_t *row_stride);

/* One row of the table as a draw of the item would give it, but for key and probability, which are 0. Its columns are those
 * of `formed`, its steps must still be in the ring. */
void nr_history_show(const struct nr_history *history, const struct nr_table_config *table, const struct nr_gather *gathers,
                     const struct nr_formed *formed, uint8_t *row);

#endif
