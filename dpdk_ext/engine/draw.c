/* Draws: opening them, reading their rows, settling them. */
#include <string.h>

#include "engine/choose.h"
#include "engine/lease.h"
#include "engine/space.h"
#include "engine/state.h"
#include "engine/view.h"

_Static_assert(sizeof(struct nr_draw_entry) == NR_ROW_HEAD, "a row starts with its draw's entry");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "rows are little-endian");

static inline const uint8_t *step_source(const struct nr_slab *slab, const struct nr_gather *gather, const struct nr_record *record)
{
    return nr_slab_step(slab, record->steps[nr_gather_step(gather, record->anchor, record->length)]) + gather->source;
}

/* Where a piece's bytes come from; NULL for zeros. Not for runs. */
static inline const uint8_t *piece_source(const struct nr_table *table, const struct nr_slab *slab, const struct nr_piece *piece,
                                          const struct nr_draw_entry *entry, const struct nr_record *record)
{
    switch (piece->kind) {
    case NR_PIECE_STEP:
        return step_source(slab, &piece->gather, record);
    case NR_PIECE_HEAD:
        return (const uint8_t *)entry;
    case NR_PIECE_COLUMNS:
        return (const uint8_t *)record + table->columns;
    default:
        return NULL;
    }
}

int nr_draw_open(struct nr_engine *engine, uint32_t table_index, uint32_t count, struct nr_draw *draw, uint64_t now,
                 struct nr_wait *wait)
{
    nr_wait_clear(wait, table_index);
    draw->leased = draw->reserved = 0;
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];
    if (count == 0 || count > table->leases || (table->selector.ops->distinct && count > table->capacity))
        return NR_BAD_COUNT;
    if (table->resetting)
        return nr_wait_for(wait, NR_WAIT_LEAVING, table->order.size, 0);
    if (nr_expiry_limited(&table->expiry)) {
        uint32_t budget = NR_EXPIRE_QUANTUM;

        if (!nr_expire(engine, table, now, &budget))
            return nr_wait_for(wait, NR_WAIT_LEAVING, table->order.size, 0);
    }
    int status = nr_limiter_can_sample(&table->limiter, table->order.size, count, wait);
    if (status != NR_OK)
        return status;
    bool limited = table->limiter.limits.max_sampled > 0;
    do {
        nr_wait_clear(wait, table_index);
        status = nr_choose_lacking(table, count, wait);
        if (status == NR_OK && !nr_space_for_leases(engine, table, count, now))
            return nr_wait_for(wait, NR_WAIT_LEASES, table->leased, table->leases);
        nr_draw_take_head(table, &draw->head); /* before the draws, which may withhold items */
        if (status == NR_OK)
            status = nr_choose(engine, table, draw, count, wait);
        /* Draws past due keep items from others: they give way. */
    } while ((status == NR_WAIT_PASSES || (status == NR_WAIT_EMPTY && table->withheld > 0)) &&
             nr_space_reclaim(engine, table, now));
    if (status != NR_OK)
        return status;

    struct nr_draw_entry *entries = draw->entries;
    for (uint32_t i = 0; i < count; i++)
        __builtin_prefetch(nr_table_record(table, (uint32_t)entries[i].key), 1);
    const struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    for (uint32_t i = 0; i < count; i++) {
        struct nr_record *record = nr_table_record(table, (uint32_t)entries[i].key);

        entries[i].key = record->key;
        record->leases++;
        record->sampled += !limited; /* else it is counted already */
        record->reserved++;
        if (table->touch_steps) {
            for (const struct nr_piece *piece = table->pieces, *end = piece + table->piece_count; piece < end; piece++) {
                if (piece->touch)
                    __builtin_prefetch(step_source(slab, &piece->gather, record));
            }
        }
    }

    table->draws++;
    nr_draw_enlist(engine, table, draw, count, now);
    draw->reserved = count;
    table->limiter.reserved += count;
    return NR_OK;
}

/* Most pieces are a number or a small vector: those sizes without a call. */
static inline void copy(uint8_t *target, const uint8_t *source, uint32_t length)
{
    switch (length) {
    case 4:
        memcpy(target, source, 4);
        break;
    case 8:
        memcpy(target, source, 8);
        break;
    case 16:
        memcpy(target, source, 16);
        break;
    case 24:
        memcpy(target, source, 24);
        break;
    case 32:
        memcpy(target, source, 32);
        break;
    default:
        memcpy(target, source, length);
    }
}

/* `count` pieces of a run that have steps of their own, one copy each. `length` is a constant where this is called for the usual
 * sizes, so that a copy is a load and a store. */
static inline void copy_steps(const uint8_t *source, uint64_t stride, const uint32_t *steps, uint32_t count, uint32_t length,
                              uint8_t *target)
{
    for (uint32_t i = 0; i < count; i++)
        memcpy(target + (size_t)i * length, source + steps[i] * stride, length);
}

/* Part of one piece of a run. */
static void copy_piece(const struct nr_slab *slab, const struct nr_gather *gather, const struct nr_record *record, uint32_t i,
                       uint32_t skip, uint32_t length, uint8_t *target)
{
    uint32_t step;

    if (nr_gather_piece(gather, i, record->anchor, record->length, &step))
        memcpy(target, nr_slab_step(slab, record->steps[step]) + gather->source + skip, length);
    else
        memset(target, 0, length);
}

/* Pieces [i, end) of a run. */
static void copy_pieces(const struct nr_slab *slab, const struct nr_gather *gather, const struct nr_record *record, uint32_t i,
                        uint32_t end, uint8_t *target)
{
    const struct nr_gather_own own = nr_gather_own(gather, record->anchor, record->length);
    uint32_t length = gather->length;

    for (; i < end && i < own.first; i++, target += length)
        copy_piece(slab, gather, record, i, 0, length, target);
    if (i < own.stop && i < end) {
        uint32_t count = (own.stop < end ? own.stop : end) - i;
        const uint32_t *steps = &record->steps[own.step + i - own.first];
        const uint8_t *source = nr_slab_step(slab, 0) + gather->source;

        switch (length) {
        case 1:
            copy_steps(source, slab->stride, steps, count, 1, target);
            break;
        case 4:
            copy_steps(source, slab->stride, steps, count, 4, target);
            break;
        case 8:
            copy_steps(source, slab->stride, steps, count, 8, target);
            break;
        case 16:
            copy_steps(source, slab->stride, steps, count, 16, target);
            break;
        default:
            copy_steps(source, slab->stride, steps, count, length, target);
        }
        i += count;
        target += (size_t)count * length;
    }
    for (; i < end; i++, target += length)
        copy_piece(slab, gather, record, i, 0, length, target);
}

/* Bytes [from, to) of a run. */
static void copy_run(const struct nr_slab *slab, const struct nr_gather *gather, const struct nr_record *record, uint32_t from,
                     uint32_t to, uint8_t *target)
{
    uint32_t length = gather->length, i = from / length, skip = from % length;

    if (skip != 0) {
        uint32_t part = length - skip < to - from ? length - skip : to - from;

        copy_piece(slab, gather, record, i++, skip, part, target);
        target += part;
        from += part;
    }
    uint32_t whole = (to - from) / length, rest = (to - from) % length;

    copy_pieces(slab, gather, record, i, i + whole, target);
    if (rest != 0)
        copy_piece(slab, gather, record, i + whole, 0, rest, target + (size_t)whole * length);
}

/* A whole row; its first pieces are always the head and, if there are any, the columns. */
static inline void copy_row(const struct nr_table *table, const struct nr_slab *slab, const struct nr_draw_entry *entry,
                            const struct nr_record *record, uint8_t *target)
{
    memcpy(target, entry, NR_ROW_HEAD);
    copy(target + NR_ROW_HEAD, (const uint8_t *)record + table->columns, table->item_bytes);
    for (const struct nr_piece *piece = table->pieces + table->body, *end = table->pieces + table->piece_count; piece < end;
         piece++) {
        if (piece->kind == NR_PIECE_STEP)
            copy(target + piece->gather.target, step_source(slab, &piece->gather, record), piece->gather.length);
        else if (piece->kind == NR_PIECE_RUN)
            copy_run(slab, &piece->gather, record, 0, (uint32_t)nr_gather_bytes(&piece->gather), target + piece->gather.target);
        else if (piece->gather.length == 4)
            memset(target + piece->gather.target, 0, 4);
        else
            memset(target + piece->gather.target, 0, piece->gather.length);
    }
}

/* The piece that byte `from` of a row falls into: the last whose target is not beyond it. */
static const struct nr_piece *piece_at(const struct nr_table *table, uint32_t from)
{
    uint32_t low = 0, high = table->piece_count;

    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;

        if (table->pieces[middle].gather.target <= from)
            low = middle;
        else
            high = middle;
    }
    return &table->pieces[low];
}

/* Bytes [from, to) of a row. */
static void copy_part(const struct nr_table *table, const struct nr_slab *slab, const struct nr_draw_entry *entry,
                      const struct nr_record *record, uint32_t from, uint32_t to, uint8_t *target)
{
    for (const struct nr_piece *piece = piece_at(table, from); from < to; piece++) {
        uint32_t skip = from - piece->gather.target, bytes = (uint32_t)nr_gather_bytes(&piece->gather);
        uint32_t length = bytes - skip < to - from ? bytes - skip : to - from;
        const uint8_t *source = piece_source(table, slab, piece, entry, record);

        if (piece->kind == NR_PIECE_RUN)
            copy_run(slab, &piece->gather, record, skip, skip + length, target);
        else if (source != NULL)
            memcpy(target, source + skip, length);
        else
            memset(target, 0, length);
        target += length;
        from += length;
    }
}

/* The record of an entry; NULL where it was looked for and is not here. */
static inline const struct nr_record *record_of(const struct nr_table *table, const struct nr_draw_entry *entry)
{
    return entry->key == NR_KEY_NONE ? NULL : nr_table_record(table, nr_table_slot(table, entry->key));
}

/* Bytes [from, to) of the row of an item that is not here: its entry, then zeros. */
static void copy_absent(const struct nr_draw_entry *entry, uint32_t from, uint32_t to, uint8_t *target)
{
    uint32_t head = from >= NR_ROW_HEAD ? 0 : (to < NR_ROW_HEAD ? to : NR_ROW_HEAD) - from;

    memcpy(target, (const uint8_t *)entry + from, head);
    memset(target + head, 0, to - from - head);
}

int nr_draw_copy(struct nr_engine *engine, const struct nr_draw *draw, uint64_t offset, void *target, uint32_t length)
{
    if (draw->leased == 0)
        return NR_LEASE_EXPIRED;
    const struct nr_table *table = &engine->tables[draw->table];
    const struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    uint64_t bytes = (uint64_t)draw->count * table->row_bytes;
    uint8_t *out = target;

    if (offset > bytes || length > bytes - offset)
        return NR_BAD_LENGTH;
    uint32_t row = (uint32_t)(offset / table->row_bytes), from = (uint32_t)(offset % table->row_bytes);
    while (length > 0) {
        const struct nr_draw_entry *entry = &draw->entries[row];
        const struct nr_record *record = record_of(table, entry);
        uint32_t part = table->row_bytes - from < length ? table->row_bytes - from : length;

        if (record == NULL) {
            copy_absent(entry, from, from + part, out);
        } else if (part == table->row_bytes) {
            copy_row(table, slab, entry, record, out);
        } else {
            copy_part(table, slab, entry, record, from, from + part, out);
        }
        out += part;
        length -= part;
        from = 0;
        row++;
    }
    return NR_OK;
}

static uint64_t token_of(uint32_t store, uint32_t place)
{
    return (uint64_t)(store + 1) << 32 | place;
}

void nr_step_sent(struct nr_engine *engine, uint64_t token)
{
    if (token != NR_TOKEN_NONE)
        nr_slab_returned(&engine->stores[(uint32_t)(token >> 32) - 1].slab, (uint32_t)token);
}

/* Adds a run of the step as a reference. False: it must be copied. What follows it may need one segment more; behind the run that
 * is `last` nothing does. */
static bool refer(struct nr_store *store, uint32_t index, uint32_t place, const uint8_t *source, uint32_t length, bool last,
                  struct nr_pieces *pieces)
{
    if (pieces->count + (last ? 1 : 2) > pieces->room || !nr_slab_lend(&store->slab, place))
        return false;
    pieces->segment[pieces->count++] = (struct nr_segment){.base = source, .length = length, .token = token_of(index, place)};
    return true;
}

/* Bytes [from, to) of a run; `last`: nothing follows. */
static void gather_run(struct nr_store *store, uint32_t index, const struct nr_gather *gather, const struct nr_record *record,
                       uint32_t from, uint32_t to, bool last, struct nr_pieces *pieces)
{
    uint32_t skip = from % gather->length;

    for (uint32_t i = from / gather->length; from < to; i++, skip = 0) {
        uint32_t length = gather->length - skip < to - from ? gather->length - skip : to - from, step;

        from += length;
        if (!nr_gather_piece(gather, i, record->anchor, record->length, &step)) {
            memset(nr_pieces_copied(pieces, length), 0, length);
            continue;
        }
        const uint8_t *source = nr_slab_step(&store->slab, record->steps[step]) + gather->source + skip;

        if (length < pieces->least || !refer(store, index, record->steps[step], source, length, last && from == to, pieces))
            copy(nr_pieces_copied(pieces, length), source, length);
    }
}

/* Bytes [from, to) of a row; `last`: nothing follows. */
static void gather_part(struct nr_store *store, const struct nr_table *table, const struct nr_draw_entry *entry,
                        const struct nr_record *record, uint32_t from, uint32_t to, bool last, struct nr_pieces *pieces)
{
    for (const struct nr_piece *piece = piece_at(table, from); from < to; piece++) {
        uint32_t skip = from - piece->gather.target, bytes = (uint32_t)nr_gather_bytes(&piece->gather);
        uint32_t length = bytes - skip < to - from ? bytes - skip : to - from;
        const uint8_t *source = piece_source(table, &store->slab, piece, entry, record);

        from += length;
        if (piece->kind == NR_PIECE_RUN) {
            if (piece->gather.length >= pieces->least)
                gather_run(store, table->store, &piece->gather, record, skip, skip + length, last && from == to, pieces);
            else
                copy_run(&store->slab, &piece->gather, record, skip, skip + length, nr_pieces_copied(pieces, length));
            continue;
        }
        if (piece->kind == NR_PIECE_STEP && length >= pieces->least) {
            uint32_t place = record->steps[nr_gather_step(&piece->gather, record->anchor, record->length)];

            if (refer(store, table->store, place, source + skip, length, last && from == to, pieces))
                continue;
        }
        if (source != NULL)
            copy(nr_pieces_copied(pieces, length), source + skip, length);
        else
            memset(nr_pieces_copied(pieces, length), 0, length);
    }
}

int nr_draw_gather(struct nr_engine *engine, const struct nr_draw *draw, uint64_t offset, uint32_t length, struct nr_pieces *pieces)
{
    if (draw->leased == 0)
        return NR_LEASE_EXPIRED;
    const struct nr_table *table = &engine->tables[draw->table];
    struct nr_store *store = nr_engine_store_of(engine, table);
    uint64_t bytes = (uint64_t)draw->count * table->row_bytes;

    if (offset > bytes || length > bytes - offset)
        return NR_BAD_LENGTH;
    if (table->longest < pieces->least) /* small rows take the quicker way */
        return nr_draw_copy(engine, draw, offset, nr_pieces_copied(pieces, length), length);
    uint32_t row = (uint32_t)(offset / table->row_bytes), from = (uint32_t)(offset % table->row_bytes);
    while (length > 0) {
        const struct nr_draw_entry *entry = &draw->entries[row];
        const struct nr_record *record = record_of(table, entry);
        uint32_t part = table->row_bytes - from < length ? table->row_bytes - from : length;

        length -= part;
        if (record == NULL)
            copy_absent(entry, from, from + part, nr_pieces_copied(pieces, part));
        else
            gather_part(store, table, entry, record, from, from + part, length == 0, pieces);
        from = 0;
        row++;
    }
    return NR_OK;
}

static void release(struct nr_engine *engine, struct nr_table *table, struct nr_draw *draw)
{
    struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;

    for (uint32_t i = 0; i < draw->count; i++) {
        if (draw->entries[i].key == NR_KEY_NONE)
            continue;
        uint32_t slot = nr_table_slot(table, draw->entries[i].key);
        struct nr_record *record = nr_table_record(table, slot);

        if (--record->leases > 0)
            continue;
        if (record->key & NR_KEY_GONE) {
            table->leftovers--;
            nr_table_give(table, slab, slot);
        } else {
            table->remover.passed = NR_NONE;
        }
    }
    if (draw->earlier != NULL)
        draw->earlier->later = draw->later;
    else
        table->oldest = draw->later;
    if (draw->later != NULL)
        draw->later->earlier = draw->earlier;
    else
        table->newest = draw->earlier;
    draw->earlier = draw->later = NULL;
    table->leased -= draw->leased;
    draw->leased = 0;
}

/* One entry's reservation is over; `pass` is that it was drawn in. False when its item has left before. */
static bool settle_entry(struct nr_engine *engine, struct nr_table *table, uint64_t key, bool taken, uint64_t pass)
{
    struct nr_record *record = nr_table_find(table, key);

    if (record == NULL)
        return false;
    uint32_t slot = nr_table_slot(table, key), most = table->limiter.limits.max_sampled;
    record->reserved--;
    record->sampled -= !taken;
    if (most > 0 && record->sampled - (record->reserved & ~NR_RECORD_WITHHELD) >= most) {
        nr_table_evict(table, &nr_engine_store_of(engine, table)->slab, slot);
        table->evicted_sampled++;
        return true;
    }
    if ((record->reserved & NR_RECORD_WITHHELD) && (most == 0 || record->sampled < most))
        nr_table_show(table, slot);
    if (!taken && table->selector.ops->give_back != NULL && (record->reserved & NR_RECORD_WITHHELD) == 0)
        table->selector.ops->give_back(&table->selector, slot, pass);
    return true;
}

static void settle_reserved(struct nr_engine *engine, struct nr_table *table, struct nr_draw *draw, bool taken)
{
    bool counted = draw->resets == table->resets; /* else of before a reset */

    if (table->limiter.limits.max_sampled > 0 || table->withheld > 0 || (!taken && table->selector.ops->give_back != NULL)) {
        uint64_t pass = draw->pass;

        for (uint32_t i = 0; i < draw->count; i++) {
            if (!settle_entry(engine, table, draw->entries[i].key, taken, pass) && !taken && counted)
                nr_limiter_refunded_gone(&table->limiter);
            pass += draw->entries[i].probability == 1.0; /* the last of its pass */
        }
    } else {
        for (uint32_t i = 0; i < draw->count; i++) {
            struct nr_record *record = nr_table_find(table, draw->entries[i].key);

            if (record != NULL) {
                record->reserved--;
                record->sampled -= !taken;
            }
        }
    }
    if (counted) {
        table->limiter.committed += taken ? draw->reserved : 0;
        table->limiter.reserved -= draw->reserved;
    }
    draw->reserved = 0;
}

void nr_draw_settle(struct nr_engine *engine, struct nr_draw *draw, uint32_t settle)
{
    bool ends = ((settle & NR_SETTLE_RELEASE) && draw->leased > 0) ||
                ((settle & (NR_SETTLE_COMMIT | NR_SETTLE_REFUND)) && draw->reserved > 0);

    if (!ends)
        return;
    struct nr_table *table = &engine->tables[draw->table];
    if (draw->reserved > 0 && (settle & (NR_SETTLE_COMMIT | NR_SETTLE_REFUND)))
        settle_reserved(engine, table, draw, (settle & NR_SETTLE_COMMIT) != 0);
    if (draw->leased > 0 && (settle & NR_SETTLE_RELEASE))
        release(engine, table, draw);
    table->progress++;
}
