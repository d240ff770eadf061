/*
 * The items of a table in the order of their insertion: a doubly linked list over slots, O(1) at both ends and in the middle.
 * The links of slots that are in no order serve the table's list of free slots.
 */
#ifndef NR_ENGINE_ORDER_H
#define NR_ENGINE_ORDER_H

#include <stdint.h>

#include "engine/slab.h"

struct nr_link {
    uint32_t before; /* slot inserted just earlier, or NR_NONE */
    uint32_t after;  /* slot inserted just later, or NR_NONE */
};

struct nr_order {
    struct nr_link *links; /* by slot */
    uint32_t oldest;       /* slot, or NR_NONE */
    uint32_t newest;       /* slot, or NR_NONE */
    uint32_t size;         /* slots in the list */
};

static inline void nr_order_init(struct nr_order *order, struct nr_arena *arena, uint32_t slots)
{
    order->links = nr_arena_take(arena, slots, sizeof(struct nr_link));
    order->oldest = order->newest = NR_NONE;
    order->size = 0;
}

static inline void nr_order_append(struct nr_order *order, uint32_t slot)
{
    order->links[slot] = (struct nr_link){.before = order->newest, .after = NR_NONE};
    if (order->newest == NR_NONE)
        order->oldest = slot;
    else
        order->links[order->newest].after = slot;
    order->newest = slot;
    order->size++;
}

static inline void nr_order_remove(struct nr_order *order, uint32_t slot)
{
    struct nr_link link = order->links[slot];

    if (link.before == NR_NONE)
        order->oldest = link.after;
    else
        order->links[link.before].after = link.after;
    if (link.after == NR_NONE)
        order->newest = link.before;
    else
        order->links[link.after].before = link.before;
    order->size--;
}

#endif
