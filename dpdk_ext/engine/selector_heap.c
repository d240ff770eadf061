/*
 * Gives the items of the largest or of the least raw priority, in that order, each with certainty; of equal ones the first inserted
 * first. Drawing removes nothing. What has priority zero is not in the heap. Every item that is weighs one.
 */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_heap_init(&selector->heap.best, arena, slots, config->capacity);
    selector->heap.sequences = nr_arena_take(arena, slots, sizeof(uint64_t));
    selector->heap.next = 0;
}

static inline void show(struct nr_selector *selector, uint32_t slot, uint64_t key, double raw)
{
    if (raw > 0)
        nr_heap_push(&selector->heap.best, slot, key, selector->heap.sequences[slot]);
}

static void show_max(struct nr_selector *selector, uint32_t slot, double raw)
{
    show(selector, slot, ~nr_heap_key(raw), raw);
}

static void show_min(struct nr_selector *selector, uint32_t slot, double raw)
{
    show(selector, slot, nr_heap_key(raw), raw);
}

static void insert_max(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)saturated;
    selector->heap.sequences[slot] = selector->heap.next++;
    show_max(selector, slot, raw);
}

static void insert_min(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)saturated;
    selector->heap.sequences[slot] = selector->heap.next++;
    show_min(selector, slot, raw);
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    if (nr_heap_has(&selector->heap.best, slot))
        nr_heap_remove(&selector->heap.best, slot);
}

static inline void update(struct nr_selector *selector, uint32_t slot, uint64_t key, double raw)
{
    if (raw > 0 && nr_heap_has(&selector->heap.best, slot)) {
        nr_heap_change(&selector->heap.best, slot, key);
    } else {
        drop(selector, slot);
        show(selector, slot, key, raw);
    }
}

static void update_max(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    (void)saturated;
    for (uint32_t i = 0; i < count; i++)
        update(selector, slots[i], ~nr_heap_key(raws[i]), raws[i]);
}

static void update_min(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    (void)saturated;
    for (uint32_t i = 0; i < count; i++)
        update(selector, slots[i], nr_heap_key(raws[i]), raws[i]);
}

static void prefetch(const struct nr_selector *selector, uint32_t slot)
{
    __builtin_prefetch(&selector->heap.best.positions[slot]);
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)selector;
    return raw > 0 ? NR_PRIORITY_UNIT : 0;
}

static uint64_t total(const struct nr_selector *selector)
{
    return selector->heap.best.size * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    struct nr_heap *heap = &selector->heap.best;

    (void)random;
    for (uint32_t i = 0; i < turn.count; i++) {
        drawn[i].key = nr_heap_first(heap)->slot;
        drawn[i].probability = 1.0;
        nr_heap_set_aside(heap);
    }
    nr_heap_put_back(heap, turn.count);
}

static const char *audit(const struct nr_selector *selector, uint8_t *held)
{
    return nr_heap_audit(&selector->heap.best, held);
}

const struct nr_selector_ops nr_selector_max_heap = {
    .distinct = true,
    .init = init,
    .insert = insert_max,
    .remove = drop,
    .show = show_max,
    .update = update_max,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
    .audit = audit,
};

const struct nr_selector_ops nr_selector_min_heap = {
    .distinct = true,
    .init = init,
    .insert = insert_min,
    .remove = drop,
    .show = show_min,
    .update = update_min,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
    .audit = audit,
};
