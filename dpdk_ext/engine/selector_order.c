/*
 * Gives the oldest (FIFO) or the newest items (LIFO), in order, each with certainty. Drawing removes nothing: the next call begins
 * at the same end. Every item weighs one.
 *
 * A list serves as long as items only come at its end and leave. One that was withheld and comes back belongs somewhere in the
 * middle, and waits in a heap: the order is that of the two, merged by sequence.
 */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_order_init(&selector->order.order, arena, slots);
    nr_heap_init(&selector->order.returned, arena, slots, config->capacity);
    selector->order.sequences = nr_arena_take(arena, slots, sizeof(uint64_t));
    selector->order.next = 0;
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)raw;
    (void)saturated;
    selector->order.sequences[slot] = selector->order.next++;
    nr_order_append(&selector->order.order, slot);
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    if (nr_heap_has(&selector->order.returned, slot))
        nr_heap_remove(&selector->order.returned, slot);
    else
        nr_order_remove(&selector->order.order, slot);
}

static void show_fifo(struct nr_selector *selector, uint32_t slot, double raw)
{
    (void)raw;
    nr_heap_push(&selector->order.returned, slot, 0, selector->order.sequences[slot]);
}

static void show_lifo(struct nr_selector *selector, uint32_t slot, double raw)
{
    (void)raw;
    nr_heap_push(&selector->order.returned, slot, 0, ~selector->order.sequences[slot]);
}

static uint64_t total(const struct nr_selector *selector)
{
    return ((uint64_t)selector->order.order.size + selector->order.returned.size) * NR_PRIORITY_UNIT;
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)raw;
    return total(selector) > 0 ? NR_PRIORITY_UNIT : 0;
}

static void sample_fifo(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    struct nr_heap *returned = &selector->order.returned;
    uint32_t slot = selector->order.order.oldest, aside = 0;

    (void)random;
    for (uint32_t i = 0; i < turn.count; i++) {
        drawn[i].probability = 1.0;
        if (returned->size > 0 && (slot == NR_NONE || nr_heap_first(returned)->sequence < selector->order.sequences[slot])) {
            drawn[i].key = nr_heap_first(returned)->slot;
            nr_heap_set_aside(returned);
            aside++;
        } else {
            drawn[i].key = slot;
            slot = selector->order.order.links[slot].after;
        }
    }
    nr_heap_put_back(returned, aside);
}

static void sample_lifo(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    struct nr_heap *returned = &selector->order.returned;
    uint32_t slot = selector->order.order.newest, aside = 0;

    (void)random;
    for (uint32_t i = 0; i < turn.count; i++) {
        drawn[i].probability = 1.0;
        if (returned->size > 0 && (slot == NR_NONE || ~nr_heap_first(returned)->sequence > selector->order.sequences[slot])) {
            drawn[i].key = nr_heap_first(returned)->slot;
            nr_heap_set_aside(returned);
            aside++;
        } else {
            drawn[i].key = slot;
            slot = selector->order.order.links[slot].before;
        }
    }
    nr_heap_put_back(returned, aside);
}

static const char *audit(const struct nr_selector *selector, uint8_t *held)
{
    const struct nr_order *order = &selector->order.order;
    uint32_t listed = 0;

    for (uint32_t slot = order->oldest, before = NR_NONE; slot != NR_NONE; before = slot, slot = order->links[slot].after) {
        if (order->links[slot].before != before || ++listed > order->size)
            return "the order of the drawable";
        if (before != NR_NONE && selector->order.sequences[before] >= selector->order.sequences[slot])
            return "a sequence in the order of the drawable";
        held[slot]++;
    }
    if (listed != order->size)
        return "the number of the drawable";
    return nr_heap_audit(&selector->order.returned, held);
}

const struct nr_selector_ops nr_selector_fifo = {
    .distinct = true,
    .init = init,
    .insert = insert,
    .remove = drop,
    .show = show_fifo,
    .leaf = leaf,
    .total = total,
    .sample = sample_fifo,
    .audit = audit,
};

const struct nr_selector_ops nr_selector_lifo = {
    .distinct = true,
    .init = init,
    .insert = insert,
    .remove = drop,
    .show = show_lifo,
    .leaf = leaf,
    .total = total,
    .sample = sample_lifo,
    .audit = audit,
};
