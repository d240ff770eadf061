/*
 * Draws all items alike and each once in a pass over the table: a dense array, in front those that the running pass has not drawn.
 * New items join the running pass. When none is left the next draw begins another pass, unless that was the last. Every item weighs
 * one, whatever its priority; the probability of a draw is one of those that were left.
 */
#include "engine/selector.h"

static void init(struct nr_selector *selector, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_dense_init(&selector->pass.items, arena, slots, config->capacity);
    selector->pass.drawn_in = nr_arena_take(arena, slots, sizeof(uint64_t));
    selector->pass.pass = 1;
    selector->pass.passes = config->passes;
    selector->pass.left = 0;
}

/* The item at `position`, which is none of those left, becomes one. */
static inline void join(struct nr_selector *selector, uint32_t position)
{
    nr_dense_swap(&selector->pass.items, position, selector->pass.left++);
}

static void show(struct nr_selector *selector, uint32_t slot, double raw)
{
    (void)raw;
    nr_dense_add(&selector->pass.items, slot);
    if (selector->pass.drawn_in[slot] != selector->pass.pass)
        join(selector, selector->pass.items.size - 1);
}

static void insert(struct nr_selector *selector, uint32_t slot, double raw, uint64_t *saturated)
{
    (void)saturated;
    selector->pass.drawn_in[slot] = 0;
    show(selector, slot, raw);
}

static void drop(struct nr_selector *selector, uint32_t slot)
{
    uint32_t position = selector->pass.items.positions[slot];

    if (position < selector->pass.left)
        nr_dense_swap(&selector->pass.items, position, --selector->pass.left);
    nr_dense_remove(&selector->pass.items, slot);
}

static void give_back(struct nr_selector *selector, uint32_t slot, uint64_t pass)
{
    uint32_t position = selector->pass.items.positions[slot];

    if (pass != selector->pass.pass || selector->pass.drawn_in[slot] != pass || position < selector->pass.left)
        return;
    selector->pass.drawn_in[slot] = 0;
    join(selector, position);
}

static uint64_t leaf(const struct nr_selector *selector, double raw)
{
    (void)raw;
    return selector->pass.items.size > 0 ? NR_PRIORITY_UNIT : 0;
}

static uint64_t total(const struct nr_selector *selector)
{
    return selector->pass.items.size * NR_PRIORITY_UNIT;
}

static void sample(struct nr_selector *selector, struct nr_random *random, struct nr_turn turn, struct nr_draw_entry *drawn)
{
    struct nr_dense *items = &selector->pass.items;

    for (uint32_t i = 0; i < turn.count; i++) {
        if (selector->pass.left == 0) {
            selector->pass.pass++;
            selector->pass.left = items->size;
        }
        uint32_t position = (uint32_t)nr_random_below(random, selector->pass.left), slot = items->slots[position];

        drawn[i].key = slot;
        drawn[i].probability = 1.0 / selector->pass.left;
        nr_dense_swap(items, position, --selector->pass.left);
        selector->pass.drawn_in[slot] = selector->pass.pass;
    }
}

uint64_t nr_selector_running(const struct nr_selector *selector)
{
    return selector->ops == &nr_selector_without_replacement ? selector->pass.pass : 0;
}

uint64_t nr_selector_pass(const struct nr_selector *selector)
{
    if (selector->ops != &nr_selector_without_replacement)
        return 0;
    return selector->pass.pass + (selector->pass.left == 0);
}

uint64_t nr_selector_allowed(const struct nr_selector *selector)
{
    if (selector->ops != &nr_selector_without_replacement || selector->pass.passes == 0)
        return UINT64_MAX;
    return selector->pass.left + (selector->pass.passes - selector->pass.pass) * selector->pass.items.size;
}

uint64_t nr_selector_drawn_in(const struct nr_selector *selector, uint32_t slot)
{
    return selector->ops == &nr_selector_without_replacement ? selector->pass.drawn_in[slot] : 0;
}

void nr_selector_resume(struct nr_selector *selector, uint64_t pass)
{
    if (selector->ops != &nr_selector_without_replacement || pass == 0)
        return;
    selector->pass.pass = selector->pass.passes > 0 && pass > selector->pass.passes ? selector->pass.passes : pass;
}

void nr_selector_drawn(struct nr_selector *selector, uint32_t slot)
{
    uint32_t position = selector->pass.items.positions[slot];

    if (position >= selector->pass.left)
        return;
    selector->pass.drawn_in[slot] = selector->pass.pass;
    nr_dense_swap(&selector->pass.items, position, --selector->pass.left);
}

static uint32_t position_of(const struct nr_selector *selector, uint32_t slot)
{
    return selector->pass.items.positions[slot];
}

/* Never from the drawn to the others, nor back. */
static void move(struct nr_selector *selector, uint32_t slot, uint32_t target)
{
    uint32_t position = selector->pass.items.positions[slot];

    if ((position < selector->pass.left) == (target < selector->pass.left))
        nr_dense_swap(&selector->pass.items, position, target);
}

void nr_selector_rewind(struct nr_selector *selector, uint64_t pass, uint32_t first, uint32_t count,
                        const struct nr_draw_entry *drawn)
{
    if (selector->ops != &nr_selector_without_replacement)
        return;
    if (selector->pass.pass != pass) { /* it was over, so all others were drawn in it before */
        selector->pass.pass = pass;
        selector->pass.left = 0;
        for (uint32_t i = first; i < count; i++)
            selector->pass.drawn_in[(uint32_t)drawn[i].key] = pass;
    }
    for (uint32_t i = 0; i < first; i++) {
        uint32_t slot = (uint32_t)drawn[i].key;

        selector->pass.drawn_in[slot] = 0;
        join(selector, selector->pass.items.positions[slot]);
    }
}

static const char *audit(const struct nr_selector *selector, uint8_t *held)
{
    const struct nr_dense *items = &selector->pass.items;

    if (selector->pass.left > items->size)
        return "the number left in the pass";
    if (selector->pass.passes > 0 && selector->pass.pass > selector->pass.passes)
        return "a pass after the last";
    for (uint32_t i = 0; i < items->size; i++) {
        uint64_t drawn_in = selector->pass.drawn_in[items->slots[i]];

        if (i < selector->pass.left ? drawn_in >= selector->pass.pass : drawn_in != selector->pass.pass)
            return "the pass that an item was drawn in";
    }
    return nr_dense_audit(items, held);
}

const struct nr_selector_ops nr_selector_without_replacement = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .show = show,
    .leaf = leaf,
    .total = total,
    .sample = sample,
    .give_back = give_back,
    .position = position_of,
    .move = move,
    .audit = audit,
};
