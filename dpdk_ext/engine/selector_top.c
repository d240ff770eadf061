/*
 * Draws alike, with replacement, among the items of the `top` largest raw priorities; of equal ones the first inserted counts as
 * larger. Two heaps: those drawn from, the worst of them first, and the others, the best of them first. What has priority zero is in
 * neither. Every item that is in one of them weighs one: the total is that of both.
 */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    selector->heap.top = config->top;
    nr_heap_init(&selector->heap.best, arena, slots, config->top < config->capacity ? config->top : config->capacity);
    nr_heap_init(&selector->heap.rest, arena, slots, config->capacity);
    selector->heap.sequences = nr_arena_take(arena, slots, sizeof(uint64_t));
    selector->heap.next = 0;
}

/* The key and the sequence of an entry of `best`, turned round, are those that it would have in `rest`. */
static void move(struct nr_heap *from, struct nr_heap *to)
{
    struct nr_heap_entry entry = *nr_heap_first(from);

    nr_heap_remove(from, entry.slot);
    nr_heap_push(to, entry.slot, ~entry.key, ~entry.sequence);
}

static void add(struct nr_selector *selector, uint32_t slot, double raw)
{
    struct nr_heap *best = &selector->heap.best, *rest = &selector->heap.rest;
    uint64_t key = nr_heap_key(raw), sequence = selector->heap.sequences[slot];

    if (best->size == selector->heap.top) {
        struct nr_heap_entry entry = {.key = key, .sequence = ~sequence};

        if (nr_heap_before(&entry, nr_heap_first(best))) {
            nr_heap_push(rest, slot, ~key, sequence);
            return;
        }
        move(best, rest);
    }
    nr_heap_push(best, slot, key, ~sequence);
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    struct nr_heap *best = &selector->heap.best, *rest = &selector->heap.rest;

    if (nr_heap_has(rest, slot)) {
        nr_heap_remove(rest, slot);
    } else if (nr_heap_has(best, slot)) {
        nr_heap_remove(best, slot);
        if (rest->size > 0)
            move(rest, best);
    }
}

static void show(struct nr_selector *selector, uint32_t slot, double raw)
{
    if (raw > 0)
        add(selector, slot, raw);
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)saturated;
    selector->heap.sequences[slot] = selector->heap.next++;
    show(selector, slot, raw);
}

static void update(struct nr_selector *selector, uint32_t count, const uint32_t *slots, const double *raws, uint64_t *saturated)
{
    (void)saturated;
    for (uint32_t i = 0; i < count; i++) {
        drop(selector, slots[i]);
        show(selector, slots[i], raws[i]);
    }
}

static void prefetch(const struct nr_selector *selector, uint32_t slot)
{
    __builtin_prefetch(&selector->heap.best.positions[slot]);
    __builtin_prefetch(&selector->heap.rest.positions[slot]);
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)selector;
    return raw > 0 ? NR_PRIORITY_UNIT : 0;
}

static uint64_t total(const struct nr_selector *selector)
{
    return ((uint64_t)selector->heap.best.size + selector->heap.rest.size) * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    const struct nr_heap *best = &selector->heap.best;
    double probability = 1.0 / best->size;

    for (uint32_t i = 0; i < turn.count; i++) {
        drawn[i].key = best->entries[nr_random_below(random, best->size)].slot;
        drawn[i].probability = probability;
    }
}

static const char *audit(const struct nr_selector *selector, uint8_t *held)
{
    const struct nr_heap *best = &selector->heap.best, *rest = &selector->heap.rest;
    const char *broken = nr_heap_audit(best, held);

    if (broken == NULL)
        broken = nr_heap_audit(rest, held);
    if (broken != NULL || rest->size == 0)
        return broken;
    struct nr_heap_entry other = {.key = ~nr_heap_first(rest)->key, .sequence = ~nr_heap_first(rest)->sequence};
    return best->size != selector->heap.top               ? "the number of the top"
           : !nr_heap_before(&other, nr_heap_first(best)) ? "one that is not of the top is larger"
                                                          : NULL;
}

const struct nr_selector_ops nr_selector_top = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .show = show,
    .update = update,
    .prefetch = prefetch,
    .leaf = leaf,
    .total = total,
    .sample = sample,
    .audit = audit,
};
