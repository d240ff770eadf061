#include "engine/space.h"

#define PASSES 256 /* items looked at before one that may be of use is given up on, see below */

static bool past_due(const struct nr_table *table, uint64_t now)
{
    return table->oldest != NULL && table->oldest->due <= now;
}

bool nr_space_reclaim(struct nr_engine *engine, struct nr_table *table, uint64_t now)
{
    if (!past_due(table, now))
        return false;
    nr_draw_settle(engine, table->oldest, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    return true;
}

bool nr_space_for_leases(struct nr_engine *engine, struct nr_table *table, uint32_t count, uint64_t now)
{
    while (count > table->leases - table->leased) {
        if (!nr_space_reclaim(engine, table, now))
            return false;
    }
    return true;
}

/* Reclaims the oldest past-due draw on the store's steps. */
static bool reclaim_oldest(struct nr_engine *engine, const struct nr_store *store, uint64_t now)
{
    struct nr_table *oldest = NULL;

    for (uint32_t i = store->first_table; i != NR_NONE; i = engine->tables[i].next_of_store) {
        struct nr_table *table = &engine->tables[i];

        if (past_due(table, now) && (oldest == NULL || table->oldest->due < oldest->oldest->due))
            oldest = table;
    }
    return oldest != NULL && nr_space_reclaim(engine, oldest, now);
}

static bool all_ringed(const struct nr_slab *slab, const struct nr_record *record)
{
    for (uint32_t i = 0, steps = nr_record_steps(record); i < steps; i++) {
        if ((slab->steps[record->steps[i]].state & NR_STEP_RINGED) == 0)
            return false;
    }
    return true;
}

/* The first item in the remover's order whose leaving may free a step. Leased items are passed over: they would keep their steps. */
static uint32_t candidate(struct nr_table *table, const struct nr_slab *slab, bool careful, struct nr_random *random)
{
    struct nr_removal *remover = &table->remover;
    bool leading = remover->ops == &nr_remover_fifo; /* all items so far are leased: the next walk need not look at them */
    uint32_t passes = 0, slot;

    if (leading)
        remover->walked = remover->passed;
    do {
        slot = remover->ops->next(remover, random);
        if (slot == NR_NONE)
            break;
        const struct nr_record *record = nr_table_record(table, slot);
        if (record->leases == 0 && (!careful || !all_ringed(slab, record)))
            break;
        leading = leading && record->leases > 0;
        if (leading)
            remover->passed = slot;
        else if (++passes == PASSES)
            slot = NR_NONE;
    } while (slot != NR_NONE);
    remover->ops->end(remover);
    return slot;
}

static bool fuller(const struct nr_table *a, const struct nr_table *b)
{
    return (uint64_t)a->order.size * b->capacity > (uint64_t)b->order.size * a->capacity;
}

/* Evicts one item of the fullest table that has a candidate. Whole runs of items may have to leave until a step is free, since
 * windows share steps; the rings', the draws' and the datagrams' steps stay whatever leaves, so when there may be no others, an item
 * must hold a step that no ring holds. */
static bool evict_one(struct nr_engine *engine, struct nr_store *store)
{
    uint64_t loose = store->slab.used - store->slab.ringed, leased = (uint64_t)store->slab.lent + store->slab.pinned;
    struct nr_table *best = NULL;
    uint32_t best_slot = NR_NONE;

    if (loose == 0)
        return false;
    for (uint32_t i = store->first_table; i != NR_NONE; i = engine->tables[i].next_of_store)
        leased += (uint64_t)engine->tables[i].leased * engine->tables[i].window;
    for (uint32_t i = store->first_table; i != NR_NONE; i = engine->tables[i].next_of_store) {
        struct nr_table *table = &engine->tables[i];

        if (best != NULL && !fuller(table, best))
            continue;
        uint32_t slot = candidate(table, &store->slab, loose <= leased, &engine->random);
        if (slot != NR_NONE) {
            best = table;
            best_slot = slot;
        }
    }
    if (best == NULL)
        return false;
    nr_table_evict(best, &store->slab, best_slot);
    best->evicted_steps++;
    return true;
}

bool nr_space_for_step(struct nr_engine *engine, struct nr_store *store, uint64_t now)
{
    while (!nr_slab_available(&store->slab)) {
        if (!reclaim_oldest(engine, store, now) && !evict_one(engine, store) && !nr_streams_drop_idle(&engine->streams, store))
            return false;
    }
    return true;
}
