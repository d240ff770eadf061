#include "engine/maintain.h"

#include "engine/state.h"

bool nr_engine_maintain(struct nr_engine *engine, uint64_t now, uint32_t budget)
{
    /* An item that leaves costs several accesses. */
    bool more = nr_engine_leave(engine, budget / 4);

    /* Each call begins where the last one ran out, so that no table waits for another for ever. */
    for (uint32_t i = 0; i < engine->table_count; i++) {
        uint32_t index = engine->maintained < engine->table_count ? engine->maintained : 0;

        if (!nr_expire(engine, &engine->tables[index], now, &budget)) {
            more = true;
            break;
        }
        engine->maintained = index + 1;
    }
    return more;
}
