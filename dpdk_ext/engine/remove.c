/* Items that a client deletes. */
#include "engine/state.h"

#define AHEAD 12 /* keys whose records are asked for before they are looked at */

static inline void ask(const struct nr_table *table, uint64_t key)
{
    uint32_t slot = nr_table_slot(table, key);

    if (slot < table->fresh)
        __builtin_prefetch(nr_table_record(table, slot));
}

int nr_items_delete(struct nr_engine *engine, uint32_t table_index, uint32_t count, const uint64_t *keys, uint8_t *outcome)
{
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];
    struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    uint64_t deleted = 0;

    for (uint32_t i = 0; i < count && i < AHEAD; i++)
        ask(table, keys[i]);
    for (uint32_t i = 0; i < count; i++) {
        if (count - i > AHEAD)
            ask(table, keys[i + AHEAD]);
        if (table->resetting || nr_table_find(table, keys[i]) == NULL) {
            outcome[i] = NR_OUTCOME_STALE;
            table->stale++;
        } else {
            outcome[i] = NR_APPLIED;
            nr_table_evict(table, slab, nr_table_slot(table, keys[i]));
            deleted++;
        }
    }
    table->evicted_deleted += deleted;
    table->progress += deleted > 0;
    return NR_OK;
}
