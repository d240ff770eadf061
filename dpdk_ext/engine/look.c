/* Looking without sampling: items by their keys, and how a table's priorities, ages and times sampled are distributed. */
#include <math.h>

#include "engine/expire.h"
#include "engine/lease.h"
#include "engine/space.h"
#include "engine/state.h"

#define AHEAD 8 /* slots whose memory is asked for before it is looked at */

/* ---- Items by key ---- */

static double probability_of(const struct nr_table *table, uint32_t slot, uint64_t total)
{
    const struct nr_selector *selector = &table->selector;
    bool withheld = (nr_table_record(table, slot)->reserved & NR_RECORD_WITHHELD) != 0;

    return total == 0 || withheld ? 0
                                  : (double)selector->ops->leaf(selector, nr_extremes_get(&table->extremes, slot)) / (double)total;
}

int nr_draw_open_keys(struct nr_engine *engine, uint32_t table_index, uint32_t count, const uint64_t *keys, struct nr_draw *draw,
                      uint64_t now, struct nr_wait *wait)
{
    nr_wait_clear(wait, table_index);
    draw->leased = draw->reserved = 0;
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];
    if (count == 0 || count > table->leases)
        return NR_BAD_COUNT;
    if (!nr_space_for_leases(engine, table, count, now))
        return nr_wait_for(wait, NR_WAIT_LEASES, table->leased, table->leases);

    bool limited = nr_expiry_limited(&table->expiry);
    nr_draw_take_head(table, &draw->head);
    for (uint32_t i = 0; i < count; i++) {
        struct nr_record *record = nr_table_find(table, keys[i]);
        uint32_t slot = nr_table_slot(table, keys[i]);

        if (record == NULL || table->resetting || (limited && nr_expire_due(engine, table, slot, now))) {
            draw->entries[i] = (struct nr_draw_entry){.key = NR_KEY_NONE};
            continue;
        }
        draw->entries[i] = (struct nr_draw_entry){keys[i], probability_of(table, slot, draw->head.total)};
        record->leases++;
    }
    nr_draw_enlist(engine, table, draw, count, now);
    return NR_OK;
}

/* ---- Histograms ---- */

static uint32_t priority_bucket(double raw)
{
    if (raw == 0)
        return 0;
    int bucket = ilogb(raw) - NR_PRIORITY_BINADE + 1;

    return bucket < 1 ? 1 : bucket >= NR_PRIORITY_BUCKETS ? NR_PRIORITY_BUCKETS - 1 : (uint32_t)bucket;
}

static uint32_t age_bucket(uint64_t age)
{
    return age == 0 ? 0 : 63 - (uint32_t)__builtin_clzll(age);
}

/* 0, 1, 2, 3-4, 5-8, ... */
static uint32_t sampled_bucket(uint32_t sampled)
{
    return sampled <= 1 ? sampled : 33 - (uint32_t)__builtin_clz(sampled - 1);
}

int nr_table_histograms(const struct nr_engine *engine, uint32_t table_index, uint64_t now, uint32_t budget,
                        struct nr_histograms *histograms)
{
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    const struct nr_table *table = &engine->tables[table_index];
    uint32_t end = table->fresh;

    if (histograms->cursor < end && end - histograms->cursor > budget)
        end = histograms->cursor + budget;
    for (; histograms->cursor < end; histograms->cursor++) {
        uint32_t slot = histograms->cursor;
        const struct nr_record *record = nr_table_record(table, slot);

        if (slot + AHEAD < end)
            __builtin_prefetch(nr_table_record(table, slot + AHEAD));
        if (record->key & NR_KEY_GONE)
            continue;
        histograms->items++;
        histograms->priority[priority_bucket(nr_extremes_get(&table->extremes, slot))]++;
        histograms->age[age_bucket(now > table->born[slot] ? now - table->born[slot] : 0)]++;
        histograms->sampled[sampled_bucket(record->sampled)]++;
    }
    return histograms->cursor >= table->fresh ? NR_OK : NR_PENDING;
}
