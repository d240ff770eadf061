#include "engine/checkpoint.h"

#include <string.h>

#include "engine/checkpoint_format.h"
#include "engine/state.h"

enum {
    CLEARED = 64,    /* marks cleared as one elementary step: they lie side by side */
    SLOTS_RUN = 256, /* slots of one record */
};

/* A quantum: the block that it fills, and what is left of its work. */
struct quantum {
    struct nr_engine *engine;
    struct nr_saving *saving;
    struct nr_pieces *pieces;
    uint32_t work;
};

static bool empty(const struct nr_pieces *pieces)
{
    return pieces->length == 0 && pieces->count == 0;
}

/* Whether a record of `bytes` copied ones, and perhaps a reference behind it, finds room. */
static bool fits(const struct nr_pieces *pieces, uint64_t bytes, uint32_t references)
{
    bool fresh = pieces->count > 0 && pieces->segment[pieces->count - 1].token != NR_TOKEN_NONE;

    return pieces->length + bytes <= NR_CHECKPOINT_OWN && pieces->count + fresh + references <= pieces->room;
}

/* Adds a record's head and fixed part; `more` bytes follow, of which the caller copies those that are no reference. */
static void put(struct nr_pieces *pieces, uint32_t kind, const void *fixed, uint32_t length, uint32_t more)
{
    struct nr_saved_head head = {.kind = kind, .length = length + more};
    uint8_t *at = nr_pieces_copied(pieces, sizeof(head) + length);

    memcpy(at, &head, sizeof(head));
    memcpy(at + sizeof(head), fixed, length);
}

static uint64_t token_of(uint32_t store, uint32_t place)
{
    return (uint64_t)(store + 1) << 32 | place;
}

/* ---- Before the cut ---- */

/* The marks of an earlier checkpoint go. */
static int clear_steps(struct quantum *quantum)
{
    struct nr_saving *saving = quantum->saving;

    for (; saving->store < quantum->engine->store_count; saving->store++, saving->at = 0) {
        struct nr_slab *slab = &quantum->engine->stores[saving->store].slab;

        while (saving->at < slab->fresh) {
            if (quantum->work == 0)
                return NR_PENDING;
            for (uint32_t i = 0; i < CLEARED && saving->at < slab->fresh; i++, saving->at++) {
                /* The state of a free place is a link. */
                if (slab->steps[saving->at].references > 0)
                    slab->steps[saving->at].state &= ~NR_STEP_SAVED;
            }
            quantum->work--;
        }
        slab->saved = 0;
    }
    saving->stage = NR_SAVING_CLEAR_STREAMS;
    saving->at = 0;
    return NR_OK;
}

static int clear_streams(struct quantum *quantum)
{
    struct nr_saving *saving = quantum->saving;
    struct nr_streams *streams = &quantum->engine->streams;

    while (saving->at < streams->count) {
        if (quantum->work == 0)
            return NR_PENDING;
        for (uint32_t i = 0; i < CLEARED && saving->at < streams->count; i++)
            streams->undecided[saving->at++] = NR_UNDECIDED_NOW;
        quantum->work--;
    }
    saving->stage = NR_SAVING_CUT;
    return NR_OK;
}

static void cut_table(struct quantum *quantum, uint32_t index)
{
    struct nr_table *table = &quantum->engine->tables[index];
    struct nr_saved_table saved = {
        .table = index,
        .store = table->store,
        .capacity = table->capacity,
        .slots = table->slots,
        .generation_bits = table->generation_bits,
        .item_bytes = table->item_bytes,
        .window = table->window,
        .size = table->resetting ? 0 : table->order.size, /* those that a reset removes are gone */
        .shard = table->shard,
        .first_generations = table->first_generations,
        .first_offset = table->first_offset,
        .inserted = table->limiter.inserted,
        .committed = table->limiter.committed,
        .forfeited = table->resetting ? 0 : table->limiter.forfeited, /* as the reset leaves it */
        .inserted_before = table->inserted_before,
        .resets = table->resets,
        .draws = table->draws,
        .updated = table->updated,
        .stale = table->stale,
        .refused = table->refused,
        .evicted_capacity = table->evicted_capacity,
        .evicted_steps = table->evicted_steps,
        .evicted_deleted = table->evicted_deleted,
        .evicted_reset = table->evicted_reset + (table->resetting ? table->order.size : 0),
        .evicted_sampled = table->evicted_sampled,
        .evicted_age = table->evicted_age,
        .evicted_version = table->evicted_version,
        .dropped = table->dropped,
        .pass = nr_selector_running(&table->selector),
        .saturated = table->saturated,
    };

    put(quantum->pieces, NR_SAVED_TABLE, &saved, sizeof(saved), 0);
    table->save_next = table->resetting ? NR_NONE : table->order.oldest;
    table->save_last = table->resetting ? NR_NONE : table->order.newest;
    table->save_step = 0;
    quantum->saving->estimate += (uint64_t)table->order.size * (sizeof(struct nr_saved_head) + sizeof(struct nr_saved_item) +
                                                                table->stride - offsetof(struct nr_record, steps)) +
                                 (uint64_t)table->fresh * sizeof(struct nr_saved_slot);
}

/* All that must be of one moment, in one call. */
static int cut(struct quantum *quantum, uint64_t now)
{
    struct nr_engine *engine = quantum->engine;
    struct nr_saved_begin begin = {.now = now,
                                   .start_version = engine->start_version,
                                   .stores = engine->store_count,
                                   .tables = engine->table_count,
                                   .sets = engine->set_count};

    if (!empty(quantum->pieces))
        return NR_PENDING;
    memcpy(begin.random, engine->random.state, sizeof(begin.random));
    put(quantum->pieces, NR_SAVED_BEGIN, &begin, sizeof(begin), 0);
    for (uint32_t i = 0; i < engine->store_count; i++) {
        const struct nr_store *store = &engine->stores[i];
        struct nr_saved_store saved = {.store = i,
                                       .step_bytes = store->slab.step_bytes,
                                       .observation_bytes = store->slab.observation_bytes,
                                       .window = store->window,
                                       .span = store->span};

        put(quantum->pieces, NR_SAVED_STORE, &saved, sizeof(saved), 0);
        quantum->saving->estimate +=
            (uint64_t)store->slab.used * (sizeof(struct nr_saved_head) + sizeof(struct nr_saved_step) + store->slab.step_bytes);
    }
    for (uint32_t i = 0; i < engine->table_count; i++)
        cut_table(quantum, i);
    for (uint32_t i = 0; i < engine->set_count; i++) {
        const struct nr_set *set = &engine->sets[i];
        struct nr_saved_set saved = {.set = i, .version = set->buffers[set->current].version, .counter = set->counter};

        put(quantum->pieces, NR_SAVED_SET, &saved, sizeof(saved), 0);
    }
    engine->streams.cut = true;
    quantum->saving->stage = NR_SAVING_ITEMS;
    quantum->saving->store = 0;
    return NR_OK;
}

_Static_assert(sizeof(struct nr_saved_head) * (1 + NR_MAX_STORES + NR_MAX_TABLES + NR_MAX_SETS) + sizeof(struct nr_saved_begin) +
                       NR_MAX_STORES * sizeof(struct nr_saved_store) + NR_MAX_TABLES * sizeof(struct nr_saved_table) +
                       NR_MAX_SETS * sizeof(struct nr_saved_set) <=
                   NR_CHECKPOINT_OWN,
               "what is of one moment fits one block");

/* ---- Steps and items ---- */

/* Writes a step unless the file has it. */
static int put_step(struct quantum *quantum, uint32_t index, uint32_t place)
{
    struct nr_slab *slab = &quantum->engine->stores[index].slab;
    struct nr_pieces *pieces = quantum->pieces;
    struct nr_step *step = &slab->steps[place];
    uint32_t bytes = (step->state & NR_STEP_SHORT) ? slab->observation_bytes : slab->step_bytes;
    struct nr_saved_step saved = {.store = index, .number = slab->saved};
    uint32_t head = sizeof(struct nr_saved_head) + sizeof(saved);

    if (step->state & NR_STEP_SAVED)
        return NR_OK;
    if (slab->saved == NR_NONE)
        return NR_TOO_MANY;
    if (bytes < pieces->least && head + bytes <= NR_CHECKPOINT_OWN) {
        if (!fits(pieces, head + bytes, 0))
            return NR_PENDING;
        put(pieces, NR_SAVED_STEP, &saved, sizeof(saved), bytes);
        memcpy(nr_pieces_copied(pieces, bytes), nr_slab_step(slab, place), bytes);
    } else {
        if (!fits(pieces, head, 1))
            return NR_PENDING;
        if (!nr_slab_pin(slab, place))
            return empty(pieces) ? NR_WAIT_SPACE : NR_PENDING;
        put(pieces, NR_SAVED_STEP, &saved, sizeof(saved), bytes);
        pieces->segment[pieces->count++] =
            (struct nr_segment){.base = nr_slab_step(slab, place), .length = bytes, .token = token_of(index, place)};
    }
    step->state |= NR_STEP_SAVED;
    slab->numbers[place] = slab->saved++;
    quantum->saving->steps++;
    quantum->work--;
    return NR_OK;
}

/* The table of the store whose next item was inserted first; NULL when all are written. */
static struct nr_table *next_table(struct nr_engine *engine, const struct nr_store *store, uint32_t *index)
{
    struct nr_table *next = NULL;

    for (uint32_t i = store->first_table; i != NR_NONE; i = engine->tables[i].next_of_store) {
        struct nr_table *table = &engine->tables[i];

        if (table->save_next != NR_NONE && (next == NULL || table->born[table->save_next] < next->born[next->save_next])) {
            next = table;
            *index = i;
        }
    }
    return next;
}

static int put_item(struct quantum *quantum, struct nr_table *table, uint32_t index)
{
    const struct nr_slab *slab = &quantum->engine->stores[table->store].slab;
    uint32_t slot = table->save_next;
    const struct nr_record *record = nr_table_record(table, slot);
    uint32_t steps = nr_record_steps(record), more = table->item_bytes + steps * (uint32_t)sizeof(uint32_t);
    uint32_t reserved = record->reserved & ~NR_RECORD_WITHHELD;
    struct nr_saved_item saved = {
        .key = record->key,
        .born = table->born[slot],
        .priority = nr_extremes_get(&table->extremes, slot),
        .table = index,
        /* What was drawn and not taken is given back. */
        .drawn_in = reserved == 0 ? nr_selector_drawn_in(&table->selector, slot) : 0,
        .sampled = record->sampled - reserved,
        .position = table->selector.ops->position != NULL ? table->selector.ops->position(&table->selector, slot) : NR_NONE,
        .removal = nr_remover_position(&table->remover, slot),
        .anchor = record->anchor,
        .length = record->length,
    };

    if (!fits(quantum->pieces, sizeof(struct nr_saved_head) + sizeof(saved) + more, 0))
        return NR_PENDING;
    put(quantum->pieces, NR_SAVED_ITEM, &saved, sizeof(saved), more);
    uint8_t *at = nr_pieces_copied(quantum->pieces, more);
    memcpy(at, (const uint8_t *)record + table->columns, table->item_bytes);
    at += table->item_bytes;
    for (uint32_t i = 0; i < steps; i++, at += sizeof(uint32_t))
        memcpy(at, &slab->numbers[record->steps[i]], sizeof(uint32_t));
    nr_table_save_past(table, slot);
    quantum->saving->items++;
    quantum->work--;
    return NR_OK;
}

static int put_items(struct quantum *quantum)
{
    struct nr_saving *saving = quantum->saving;
    const struct nr_store *store = &quantum->engine->stores[saving->store];
    struct nr_table *table;
    uint32_t index = 0;

    while ((table = next_table(quantum->engine, store, &index)) != NULL) {
        const struct nr_record *record = nr_table_record(table, table->save_next);

        /* The item is drawable, and keeps its steps: those written stay written, over any number of quanta. */
        for (uint32_t steps = nr_record_steps(record); table->save_step < steps; table->save_step++) {
            if (quantum->work == 0)
                return NR_PENDING;
            int status = put_step(quantum, saving->store, record->steps[table->save_step]);

            if (status != NR_OK)
                return status;
        }
        if (quantum->work == 0)
            return NR_PENDING;
        int status = put_item(quantum, table, index);

        if (status != NR_OK)
            return status;
    }
    saving->stage = NR_SAVING_SLOTS;
    saving->table = store->first_table;
    saving->at = 0;
    return NR_OK;
}

/* ---- Slots ---- */

static int put_slots(struct quantum *quantum)
{
    struct nr_saving *saving = quantum->saving;

    while (saving->table != NR_NONE) {
        const struct nr_table *table = &quantum->engine->tables[saving->table];

        while (saving->at < table->fresh) {
            uint32_t count = table->fresh - saving->at < SLOTS_RUN ? table->fresh - saving->at : SLOTS_RUN;
            uint32_t more = count * (uint32_t)sizeof(struct nr_saved_slot);
            struct nr_saved_slots saved = {.table = saving->table, .first = saving->at, .count = count, .free = table->free};

            if (quantum->work == 0 || !fits(quantum->pieces, sizeof(struct nr_saved_head) + sizeof(saved) + more, 0))
                return NR_PENDING;
            put(quantum->pieces, NR_SAVED_SLOTS, &saved, sizeof(saved), more);
            uint8_t *at = nr_pieces_copied(quantum->pieces, more);
            for (uint32_t i = 0; i < count; i++, saving->at++, at += sizeof(struct nr_saved_slot)) {
                const struct nr_record *record = nr_table_record(table, saving->at);
                bool is_free = (record->key & NR_KEY_GONE) && record->leases == 0;
                struct nr_saved_slot slot = {.key = record->key & ~NR_KEY_GONE,
                                             .after = is_free ? table->order.links[saving->at].after : NR_NONE,
                                             .free = is_free};

                memcpy(at, &slot, sizeof(slot));
            }
            quantum->work = quantum->work > SLOTS_RUN / 8 ? quantum->work - SLOTS_RUN / 8 : 0;
        }
        saving->table = table->next_of_store;
        saving->at = 0;
    }
    saving->stage = NR_SAVING_STREAMS;
    saving->at = quantum->engine->stores[saving->store].first;
    saving->within = false;
    return NR_OK;
}

/* ---- Streams ---- */

static int put_stream(struct quantum *quantum, const struct nr_stream *stream, uint64_t undecided)
{
    const struct nr_store *store = &quantum->engine->stores[stream->store];
    struct nr_saved_stream saved = {.head = stream->head,
                                    .low = stream->low,
                                    .next_item = undecided == NR_UNDECIDED_NOW ? stream->next_item : undecided,
                                    .store = stream->store,
                                    .owned = stream->owner != 0};

    if (!fits(quantum->pieces, sizeof(struct nr_saved_head) + sizeof(saved), 0))
        return NR_PENDING;
    memcpy(saved.id, stream->id, sizeof(saved.id));
    put(quantum->pieces, NR_SAVED_STREAM, &saved, sizeof(saved), 0);
    quantum->saving->within = true;
    quantum->saving->generation = stream->generation;
    quantum->saving->number = stream->head > 0 ? nr_stream_tail(store, stream) : 0;
    quantum->saving->end = stream->head;
    quantum->saving->streams++;
    quantum->work--;
    return NR_OK;
}

/* The whole steps of a stream's ring, as it is by now, but for those that came after its record. */
static int put_ring(struct quantum *quantum, const struct nr_stream *stream)
{
    struct nr_saving *saving = quantum->saving;
    const struct nr_store *store = &quantum->engine->stores[saving->store];
    const uint32_t *ring = nr_stream_ring(store, &quantum->engine->streams, stream);

    if (stream->head > 0 && saving->number < nr_stream_tail(store, stream))
        saving->number = nr_stream_tail(store, stream);
    for (; saving->number < saving->end; saving->number++) {
        uint32_t place = ring[saving->number % store->span];

        if (quantum->work == 0)
            return NR_PENDING;
        quantum->work--;
        if (place == NR_NONE || !nr_slab_whole(&store->slab, place))
            continue;
        quantum->work++;
        int status = put_step(quantum, saving->store, place);

        if (status != NR_OK)
            return status;
        struct nr_saved_ring saved = {.number = saving->number, .store = saving->store, .step = store->slab.numbers[place]};

        if (quantum->work == 0 || !fits(quantum->pieces, sizeof(struct nr_saved_head) + sizeof(saved), 0))
            return NR_PENDING;
        put(quantum->pieces, NR_SAVED_RING, &saved, sizeof(saved), 0);
        saving->rings++;
        quantum->work--;
    }
    return NR_OK;
}

static int put_streams(struct quantum *quantum)
{
    struct nr_saving *saving = quantum->saving;
    const struct nr_store *store = &quantum->engine->stores[saving->store];
    const struct nr_streams *streams = &quantum->engine->streams;

    for (; saving->at < store->first + store->fresh; saving->at++, saving->within = false) {
        const struct nr_stream *stream = &streams->places[saving->at];
        uint64_t undecided = streams->undecided[saving->at];

        if (quantum->work == 0)
            return NR_PENDING;
        if (!stream->open || undecided == NR_UNDECIDED_NEVER || (saving->within && stream->generation != saving->generation)) {
            quantum->work--;
            continue;
        }
        int status = saving->within ? NR_OK : put_stream(quantum, stream, undecided);

        if (status == NR_OK)
            status = put_ring(quantum, stream);
        if (status != NR_OK)
            return status;
    }
    saving->store++;
    saving->stage = NR_SAVING_ITEMS;
    return NR_OK;
}

/* ---- The whole ---- */

static int put_done(struct quantum *quantum)
{
    const struct nr_saving *saving = quantum->saving;
    struct nr_saved_done saved = {
        .steps = saving->steps, .items = saving->items, .streams = saving->streams, .rings = saving->rings};

    if (!fits(quantum->pieces, sizeof(struct nr_saved_head) + sizeof(saved), 0))
        return NR_PENDING;
    put(quantum->pieces, NR_SAVED_DONE, &saved, sizeof(saved), 0);
    return NR_OK;
}

int nr_checkpoint_begin(struct nr_engine *engine)
{
    if (engine->saving.stage != NR_SAVING_NONE)
        return NR_WAIT_TURN;
    engine->saving = (struct nr_saving){.stage = NR_SAVING_CLEAR_STEPS};
    return NR_OK;
}

void nr_checkpoint_end(struct nr_engine *engine)
{
    engine->saving.stage = NR_SAVING_NONE;
    engine->streams.cut = false;
    for (uint32_t i = 0; i < engine->table_count; i++)
        engine->tables[i].save_next = engine->tables[i].save_last = NR_NONE;
}

int nr_checkpoint_next(struct nr_engine *engine, struct nr_pieces *pieces, uint32_t work, uint64_t now)
{
    struct quantum quantum = {.engine = engine, .saving = &engine->saving, .pieces = pieces, .work = work};
    int status = NR_OK;

    while (status == NR_OK) {
        switch (engine->saving.stage) {
        case NR_SAVING_CLEAR_STEPS:
            status = clear_steps(&quantum);
            break;
        case NR_SAVING_CLEAR_STREAMS:
            status = clear_streams(&quantum);
            break;
        case NR_SAVING_CUT:
            status = cut(&quantum, now);
            break;
        case NR_SAVING_ITEMS:
            if (engine->saving.store == engine->store_count)
                engine->saving.stage = NR_SAVING_DONE;
            else
                status = put_items(&quantum);
            break;
        case NR_SAVING_SLOTS:
            status = put_slots(&quantum);
            break;
        case NR_SAVING_STREAMS:
            status = put_streams(&quantum);
            break;
        case NR_SAVING_DONE:
            status = put_done(&quantum);
            if (status == NR_OK) {
                nr_checkpoint_end(engine);
                return NR_OK;
            }
            break;
        default:
            return NR_CLOSED;
        }
    }
    if (status == NR_TOO_MANY)
        nr_checkpoint_end(engine);
    return status;
}

void nr_checkpoint_sent(struct nr_engine *engine, uint64_t token)
{
    if (token != NR_TOKEN_NONE)
        nr_slab_unpin(&engine->stores[(uint32_t)(token >> 32) - 1].slab, (uint32_t)token);
}

bool nr_checkpoint_running(const struct nr_engine *engine)
{
    return engine->saving.stage != NR_SAVING_NONE;
}

uint64_t nr_checkpoint_items(const struct nr_engine *engine)
{
    return engine->saving.items;
}

uint64_t nr_checkpoint_estimate(const struct nr_engine *engine)
{
    return engine->saving.estimate;
}
