#include "engine/reset.h"

uint32_t nr_reset_some(struct nr_engine *engine, struct nr_table *table, uint32_t budget)
{
    struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    uint32_t left = 0;

    if (!table->resetting)
        return 0;
    for (; left < budget && table->order.size > 0; left++)
        nr_table_evict(table, slab, table->order.oldest);
    table->evicted_reset += left;
    if (table->order.size == 0) {
        table->resetting = false;
        engine->resetting--;
    }
    /* Items left by a reset were never counted as inserted by the limiter that came after them. */
    table->limiter.forfeited = 0;
    table->progress++;
    return left;
}

bool nr_engine_leave(struct nr_engine *engine, uint32_t budget)
{
    if (engine->resetting == 0)
        return false;
    for (uint32_t i = 0; i < engine->table_count && budget > 0; i++)
        budget -= nr_reset_some(engine, &engine->tables[i], budget);
    return engine->resetting != 0;
}

bool nr_engine_leaving(const struct nr_engine *engine)
{
    return engine->resetting != 0;
}

int nr_table_reset(struct nr_engine *engine, uint32_t table_index)
{
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];

    if (table->resetting)
        return NR_OK;
    table->inserted_before += table->limiter.inserted;
    table->resets++;
    nr_limiter_reset(&table->limiter);
    table->resetting = true;
    engine->resetting++;
    table->progress++;
    return NR_OK;
}

int nr_table_left(const struct nr_engine *engine, uint32_t table_index, struct nr_wait *wait)
{
    nr_wait_clear(wait, table_index);
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    const struct nr_table *table = &engine->tables[table_index];

    return table->resetting ? nr_wait_for(wait, NR_WAIT_LEAVING, table->order.size, 0) : NR_OK;
}
