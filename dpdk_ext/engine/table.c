#include "engine/table.h"

#include <string.h>

#include "engine/random.h"
#include "engine/view.h"

/* Of larger rows the processor's own prefetching is enough. */
#define SMALL_ROW 2048 /* bytes */
#define SMALL_COUNT 32 /* pieces */

void nr_table_init(struct nr_table *table, struct nr_arena *arena, const struct nr_table_config *config, uint32_t sets)
{
    uint32_t slot_bits = 1;

    *table = (struct nr_table){
        .row_bytes = config->row_bytes,
        .item_bytes = config->item_bytes,
        .slots = config->capacity + config->leases,
        .free = NR_NONE,
        .save_next = NR_NONE,
        .save_last = NR_NONE,
        .version = config->version_offset <= config->item_bytes && config->item_bytes - config->version_offset >= sizeof(uint64_t)
                       ? config->version_offset
                       : NR_NONE,
        .capacity = config->capacity,
        .leases = config->leases,
        .window = config->window,
        .store = config->store,
        .next_of_store = NR_NONE,
    };
    while (((uint64_t)1 << slot_bits) < table->slots)
        slot_bits++;
    table->generation_bits = NR_KEY_BITS - slot_bits;
    table->columns = (uint32_t)offsetof(struct nr_record, steps) + config->window * (uint32_t)sizeof(uint32_t);
    table->stride = nr_arena_stride(table->columns + config->item_bytes);
    table->touch_steps = config->row_bytes <= SMALL_ROW && config->gather_count <= SMALL_COUNT;
    nr_limiter_init(&table->limiter, &config->limits);
    table->records = nr_arena_take(arena, table->slots, table->stride);
    /* The head, the columns, each gather, and before or after each of them at most one gap. */
    table->pieces = nr_arena_take(arena, 2 * (uint64_t)config->gather_count + 3, sizeof(struct nr_piece));
    table->born = nr_arena_take(arena, table->slots, sizeof(uint64_t));
    table->restored_slots = nr_arena_take(arena, ((uint64_t)table->slots + 7) / 8, 1);
    nr_expiry_init(&table->expiry, arena, config, sets);
    nr_order_init(&table->order, arena, table->slots);
    nr_extremes_init(&table->extremes, arena, table->slots);
    nr_selector_init(&table->selector, arena, config, table->slots);
    nr_remover_init(&table->remover, arena, config, &table->order, table->slots);
}

static void piece_add(struct nr_table *table, uint32_t kind, struct nr_gather gather)
{
    if (gather.length == 0)
        return;
    if (kind <= NR_PIECE_RUN && gather.length > table->longest)
        table->longest = gather.length;
    if (kind != NR_PIECE_RUN && table->piece_count > 0) {
        struct nr_piece *last = &table->pieces[table->piece_count - 1];

        /* What lies side by side in the same step is one copy. */
        if (last->kind == kind && last->gather.from_end == gather.from_end && last->gather.delta == gather.delta &&
            last->gather.source + last->gather.length == gather.source) {
            last->gather.length += gather.length;
            if (kind == NR_PIECE_STEP && last->gather.length > table->longest)
                table->longest = last->gather.length;
            return;
        }
    }
    struct nr_piece piece = {.kind = (uint16_t)kind, .gather = gather, .touch = kind == NR_PIECE_STEP};
    for (uint32_t i = 0; i < table->piece_count && i < SMALL_COUNT && piece.touch; i++) {
        const struct nr_gather *other = &table->pieces[i].gather;

        if (table->pieces[i].touch && other->from_end == gather.from_end && other->delta == gather.delta &&
            other->source / NR_CACHE_LINE == gather.source / NR_CACHE_LINE)
            piece.touch = 0;
    }
    table->pieces[table->piece_count++] = piece;
}

void nr_table_plan(struct nr_table *table, const struct nr_gather *gathers, uint32_t count)
{
    uint32_t filled = NR_ROW_HEAD + table->item_bytes;

    table->piece_count = table->longest = 0;
    piece_add(table, NR_PIECE_HEAD, (struct nr_gather){.length = NR_ROW_HEAD});
    piece_add(table, NR_PIECE_COLUMNS, (struct nr_gather){.target = NR_ROW_HEAD, .length = table->item_bytes});
    table->body = table->piece_count;
    for (;;) {
        const struct nr_gather *next = NULL;

        for (uint32_t i = 0; i < count; i++) {
            if (gathers[i].target >= filled && (next == NULL || gathers[i].target < next->target))
                next = &gathers[i];
        }
        uint32_t end = next != NULL ? next->target : table->row_bytes;
        piece_add(table, NR_PIECE_ZERO, (struct nr_gather){.target = filled, .length = end - filled});
        if (next == NULL)
            break;
        piece_add(table, next->more > 0 || next->inside ? NR_PIECE_RUN : NR_PIECE_STEP, *next);
        filled = next->target + (uint32_t)nr_gather_bytes(next);
    }
}

uint32_t nr_table_take(struct nr_table *table)
{
    uint32_t slot = table->free;
    struct nr_record *record;

    if (slot != NR_NONE) {
        table->free = table->order.links[slot].after;
        record = nr_table_record(table, slot);
    } else {
        slot = table->fresh++;
        record = nr_table_record(table, slot);
        uint64_t generation =
            (nr_random_mix(table->first_generations + slot) + table->first_offset) & (((uint64_t)1 << table->generation_bits) - 1);
        record->key = NR_KEY_GONE | table->shard | (uint64_t)slot << table->generation_bits | generation;
    }
    record->leases = record->sampled = record->reserved = 0;
    return slot;
}

void nr_table_give(struct nr_table *table, struct nr_slab *slab, uint32_t slot)
{
    struct nr_record *record = nr_table_record(table, slot);
    uint64_t leap = 1;

    for (uint32_t i = 0, steps = nr_record_steps(record); i < steps; i++)
        nr_slab_drop(slab, record->steps[i]);
    if (table->restored > 0 && (table->restored_slots[slot / 8] >> slot % 8 & 1)) {
        table->restored_slots[slot / 8] &= (uint8_t)~(1u << slot % 8);
        table->restored--;
        leap = table->leap;
    }
    record->key = nr_table_next_key(table, record->key, leap);
    table->order.links[slot].after = table->free;
    table->free = slot;
}

void nr_table_save_past(struct nr_table *table, uint32_t slot)
{
    if (table->save_next == slot) {
        table->save_next = table->save_last == slot ? NR_NONE : table->order.links[slot].after;
        table->save_step = 0;
        if (table->save_next == NR_NONE)
            table->save_last = NR_NONE;
    } else {
        table->save_last = table->order.links[slot].before;
    }
}

void nr_table_add(struct nr_table *table, uint32_t slot, double raw)
{
    struct nr_record *record = nr_table_record(table, slot);

    record->key &= ~NR_KEY_GONE;
    nr_order_append(&table->order, slot);
    nr_extremes_set(&table->extremes, slot, raw);
    table->selector.ops->insert(&table->selector, slot, raw, &table->saturated);
    if (table->remover.ops->insert != NULL) {
        uint64_t version = 0;

        if (table->version != NR_NONE)
            memcpy(&version, (const uint8_t *)record + table->columns + table->version, sizeof(version));
        table->remover.ops->insert(&table->remover, slot, raw, version);
    }
}

void nr_table_withhold(struct nr_table *table, uint32_t slot)
{
    nr_table_record(table, slot)->reserved |= NR_RECORD_WITHHELD;
    table->withheld++;
    table->selector.ops->remove(&table->selector, slot);
}

void nr_table_show(struct nr_table *table, uint32_t slot)
{
    nr_table_record(table, slot)->reserved &= ~NR_RECORD_WITHHELD;
    table->withheld--;
    nr_selector_show(&table->selector, slot, nr_extremes_get(&table->extremes, slot));
}

void nr_table_evict(struct nr_table *table, struct nr_slab *slab, uint32_t slot)
{
    struct nr_record *record = nr_table_record(table, slot);

    if (table->save_next == slot || table->save_last == slot)
        nr_table_save_past(table, slot);
    if (table->remover.passed == slot)
        table->remover.passed = NR_NONE;
    nr_limiter_left(&table->limiter, record->sampled);
    nr_order_remove(&table->order, slot);
    nr_expire_unlink(&table->expiry, slot);
    if (record->reserved & NR_RECORD_WITHHELD)
        table->withheld--;
    else
        table->selector.ops->remove(&table->selector, slot);
    if (table->remover.ops->remove != NULL)
        table->remover.ops->remove(&table->remover, slot);
    nr_extremes_set(&table->extremes, slot, 0);
    record->key |= NR_KEY_GONE;
    if (record->leases > 0)
        table->leftovers++;
    else
        nr_table_give(table, slab, slot);
}
