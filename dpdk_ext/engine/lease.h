/* How a draw comes to hold its items: shared by those that choose them and those that are told them. */
#ifndef NR_ENGINE_LEASE_H
#define NR_ENGINE_LEASE_H

#include "engine/state.h"

/* The table as a draw of it sees it. */
static inline void nr_draw_take_head(const struct nr_table *table, struct nr_draw_head *head)
{
    const struct nr_selector *selector = &table->selector;

    head->number = table->draws + 1; /* it is taken before the draw counts */
    head->size = table->order.size;
    head->total = selector->ops->total(selector);
    head->max_leaf = selector->ops->leaf(selector, nr_extremes_largest(&table->extremes));
    head->min_leaf = selector->ops->leaf(selector, nr_extremes_least(&table->extremes));
}

/* Its items are leased: the draw is the newest of those that hold leases. */
static inline void nr_draw_enlist(const struct nr_engine *engine, struct nr_table *table, struct nr_draw *draw, uint32_t count,
                                  uint64_t now)
{
    draw->table = (uint32_t)(table - engine->tables);
    draw->count = count;
    draw->due = now + engine->lease_ns < now ? UINT64_MAX : now + engine->lease_ns;
    draw->leased = count;
    draw->resets = table->resets;
    draw->earlier = table->newest;
    draw->later = NULL;
    if (table->newest != NULL)
        table->newest->later = draw;
    else
        table->oldest = draw;
    table->newest = draw;
    table->leased += count;
}

#endif
