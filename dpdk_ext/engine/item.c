/* Items: insertion and priorities. */
#include <string.h>

#include "engine/space.h"
#include "engine/state.h"

#define AHEAD 12 /* keys whose memory is asked for before they are updated */

static int refuse(struct nr_streams *streams, struct nr_table *table, struct nr_stream *stream, uint64_t number, int status)
{
    nr_stream_decide(streams, stream, number + 1);
    table->refused++;
    return status;
}

int nr_item_insert(struct nr_engine *engine, uint32_t table_index, uint32_t handle, uint32_t owner, const struct nr_item *item,
                   uint64_t now, uint64_t *key, struct nr_wait *wait)
{
    *key = NR_KEY_NONE;
    nr_wait_clear(wait, table_index);
    struct nr_stream *stream = nr_streams_find(&engine->streams, handle, owner);
    if (stream == NULL || owner == 0)
        return NR_STREAM_GONE;
    bool by_default = (item->flags & NR_ITEM_DEFAULT_PRIORITY) != 0;
    bool bad_priority = !by_default && !nr_priority_valid(item->priority);
    if (item->number < stream->next_item) /* a refusal whose answer was lost is told again */
        return bad_priority ? NR_BAD_PRIORITY : NR_DUPLICATE;
    if (item->number >= NR_MAX_NUMBER)
        return NR_BAD_WINDOW;
    if (table_index >= engine->table_count || engine->tables[table_index].store != stream->store) {
        nr_stream_decide(&engine->streams, stream, item->number + 1);
        return NR_NO_TABLE;
    }

    struct nr_table *table = &engine->tables[table_index];
    struct nr_store *store = &engine->stores[stream->store];
    if (bad_priority)
        return refuse(&engine->streams, table, stream, item->number, NR_BAD_PRIORITY);
    if (item->steps == 0 || item->steps > table->window || (uint64_t)item->anchor + item->length != item->steps - 1)
        return refuse(&engine->streams, table, stream, item->number, NR_BAD_WINDOW);
    uint32_t whole;
    int status = nr_stream_has(&engine->streams, store, stream, item->first_step, item->steps, &whole);
    if (status == NR_WAIT_STEPS)
        return nr_wait_for(wait, NR_WAIT_STEPS, whole, item->steps);
    if (status != NR_OK)
        return refuse(&engine->streams, table, stream, item->number, status);
    if (table->resetting)
        return nr_wait_for(wait, NR_WAIT_LEAVING, table->order.size, 0);
    if (nr_expiry_limited(&table->expiry)) { /* those that are too old make room, and are no measure of the default priority */
        uint32_t budget = NR_EXPIRE_QUANTUM;

        nr_expire(engine, table, now, &budget);
    }
    status = nr_limiter_can_insert(&table->limiter, table->order.size, wait);
    if (status != NR_OK)
        return status;

    /* From here on nothing fails. What comes too late takes nobody's place. */
    if (nr_expire_late(engine, table, item->columns)) {
        nr_stream_decide(&engine->streams, stream, item->number + 1);
        table->limiter.inserted++;
        nr_limiter_left(&table->limiter, 0);
        table->evicted_version++;
        table->progress++;
        return NR_OK;
    }
    /* The largest priority is asked for before an item makes room. */
    double raw = !by_default              ? nr_priority_normal(item->priority)
                 : table->order.size == 0 ? 1.0
                                          : nr_extremes_largest(&table->extremes);
    if (table->order.size == table->capacity) {
        nr_table_evict(table, &store->slab, nr_remover_first(&table->remover, &engine->random));
        table->evicted_capacity++;
    }
    uint32_t slot = nr_table_take(table);
    struct nr_record *record = nr_table_record(table, slot);
    const uint32_t *ring = nr_stream_ring(store, &engine->streams, stream);
    uint32_t at = (uint32_t)(item->first_step % store->span);
    for (uint32_t i = 0; i < item->steps; i++) {
        record->steps[i] = ring[at];
        nr_slab_hold(&store->slab, ring[at]);
        at = at + 1 < store->span ? at + 1 : 0;
    }
    uint64_t newest = table->order.newest != NR_NONE ? table->born[table->order.newest] : 0;
    table->born[slot] = now > newest ? now : newest;
    record->anchor = (uint16_t)item->anchor;
    record->length = (uint16_t)item->length;
    if (table->item_bytes > 0)
        memcpy((uint8_t *)record + table->columns, item->columns, table->item_bytes);
    nr_table_add(table, slot, raw);
    nr_expire_link(engine, table, slot);
    table->limiter.inserted++;
    table->progress++;
    nr_stream_decide(&engine->streams, stream, item->number + 1);
    *key = record->key;
    return NR_OK;
}

/* Asks for the memory that an update of the key will touch. */
static inline void ask(const struct nr_table *table, uint64_t key)
{
    uint32_t slot = nr_table_slot(table, key);

    if (slot >= table->fresh)
        return;
    __builtin_prefetch(nr_table_record(table, slot));
    nr_extremes_prefetch(&table->extremes, slot);
    if (table->selector.ops->prefetch != NULL)
        table->selector.ops->prefetch(&table->selector, slot);
}

int nr_priorities_update(struct nr_engine *engine, uint32_t table_index, uint32_t count, const uint64_t *keys,
                         const double *priorities, uint8_t *outcome)
{
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];
    struct nr_selector *selector = &table->selector;
    const struct nr_selector_ops *ops = selector->ops;
    uint32_t slots[NR_UPDATES_AT_ONCE], changed = 0;
    double raws[NR_UPDATES_AT_ONCE];
    uint64_t applied = 0;

    for (uint32_t i = 0; i < count && i < AHEAD; i++)
        ask(table, keys[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (count - i > AHEAD)
            ask(table, keys[i + AHEAD]);
        const struct nr_record *record = nr_table_find(table, keys[i]);

        if (!nr_priority_valid(priorities[i])) {
            outcome[i] = NR_OUTCOME_REFUSED;
            table->refused++;
        } else if (table->resetting || record == NULL) {
            outcome[i] = NR_OUTCOME_STALE;
            table->stale++;
        } else {
            outcome[i] = NR_APPLIED;
            applied++;
            slots[changed] = nr_table_slot(table, keys[i]);
            raws[changed] = nr_priority_normal(priorities[i]);
            nr_extremes_set(&table->extremes, slots[changed], raws[changed]);
            if (table->remover.ops->update != NULL)
                table->remover.ops->update(&table->remover, slots[changed], raws[changed]);
            /* A withheld item's priority is kept for the selector until it is drawable again. */
            changed += ops->update != NULL && (table->withheld == 0 || (record->reserved & NR_RECORD_WITHHELD) == 0);
            if (changed == NR_UPDATES_AT_ONCE) {
                ops->update(selector, changed, slots, raws, &table->saturated);
                changed = 0;
            }
        }
    }
    if (changed > 0)
        ops->update(selector, changed, slots, raws, &table->saturated);
    table->updated += applied;
    table->progress += applied > 0;
    return NR_OK;
}
