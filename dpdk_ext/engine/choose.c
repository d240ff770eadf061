#include "engine/choose.h"

#define RETIRED 1024 /* items that one call lets leave at most */
#define ROUNDS 16    /* in which it does so */

/* The draws of one call, of a table whose items may be drawn a limited number of times. */
struct choice {
    struct nr_engine *engine;
    struct nr_table *table;
    struct nr_draw *draw;
    uint32_t count;  /* entries wanted */
    uint32_t chosen; /* entries drawn: their keys are slots, and their items are counted as sampled */
    uint32_t first; /* of these, drawn in that pass */
    uint64_t pass; /* the running one before the draws */
    uint32_t retired; /* items that turned out to be drawn too often already: the limit was lowered since */
};

static struct nr_record *chosen_at(const struct choice *choice, uint32_t i)
{
    return nr_table_record(choice->table, (uint32_t)choice->draw->entries[i].key);
}

/* The item was drawn as often as it may be, or more often: it leaves, or is kept back until its open draws are settled. */
static void retire(struct choice *choice, uint32_t slot)
{
    struct nr_table *table = choice->table;
    struct nr_selector *selector = &table->selector;

    if (selector->ops->give_back != NULL)
        selector->ops->give_back(selector, slot, nr_selector_running(selector));
    if (nr_table_record(table, slot)->reserved > 0) {
        nr_table_withhold(table, slot);
    } else {
        nr_table_evict(table, &nr_engine_store_of(choice->engine, table)->slab, slot);
        table->evicted_sampled++;
    }
    choice->retired++;
}

/* Takes back what was drawn, as if it had not been. */
static void undo(struct choice *choice)
{
    for (uint32_t i = choice->chosen; i-- > 0;) {
        struct nr_record *record = chosen_at(choice, i);

        record->sampled--;
        if (record->reserved & NR_RECORD_WITHHELD)
            nr_table_show(choice->table, (uint32_t)choice->draw->entries[i].key);
    }
    nr_selector_rewind(&choice->table->selector, choice->pass, choice->first, choice->chosen, choice->draw->entries);
    choice->chosen = choice->first = 0;
}

/* Counts the draw; true if it was the last that its item may have. */
static bool count_in(struct choice *choice, uint32_t slot)
{
    struct nr_record *record = nr_table_record(choice->table, slot);

    choice->chosen++;
    if (++record->sampled < choice->table->limiter.limits.max_sampled)
        return false;
    nr_table_withhold(choice->table, slot);
    return true;
}

/* Draws until the entries are full or nothing is left to draw. Items that must leave do so, and are drawn over. */
static void choose_once(struct choice *choice)
{
    struct nr_table *table = choice->table;
    struct nr_selector *selector = &table->selector;
    struct nr_draw_entry *entries = choice->draw->entries;
    uint32_t most = table->limiter.limits.max_sampled;

    choice->draw->pass = nr_selector_pass(selector);
    choice->pass = nr_selector_running(selector);
    if (selector->ops->distinct) {
        if (choice->count > nr_selector_drawable(selector))
            return;
        selector->ops->sample(selector, &choice->engine->random, (struct nr_turn){0, choice->count, choice->count}, entries);
        uint32_t before = choice->retired;
        for (uint32_t i = 0; i < choice->count; i++) {
            if (nr_table_record(table, (uint32_t)entries[i].key)->sampled >= most)
                retire(choice, (uint32_t)entries[i].key);
        }
        for (uint32_t i = 0; choice->retired == before && i < choice->count; i++)
            count_in(choice, (uint32_t)entries[i].key);
        return;
    }
    /* Many at a time, as they are cheaper so. The first that changes what can be drawn makes those behind it worthless: they are drawn
     * again, few at a time for a while. Not where a draw leaves something behind. */
    uint32_t batch = selector->ops->give_back == NULL ? choice->count : 1;
    while (choice->chosen < choice->count && choice->retired < RETIRED && selector->ops->total(selector) > 0 &&
           nr_selector_allowed(selector) > 0) {
        uint32_t first = choice->chosen, rest = choice->count - first;
        struct nr_turn turn = {.first = first, .count = batch < rest ? batch : rest, .of = choice->count};
        bool changed = false;

        selector->ops->sample(selector, &choice->engine->random, turn, &entries[first]);
        for (uint32_t i = 0; i < turn.count && !changed; i++) {
            uint32_t slot = (uint32_t)entries[first + i].key;

            changed = nr_table_record(table, slot)->sampled >= most;
            if (changed)
                retire(choice, slot);
            else
                changed = count_in(choice, slot);
        }
        batch = changed || selector->ops->give_back != NULL ? 1 : 2 * batch;
        if (nr_selector_running(selector) == choice->pass)
            choice->first = choice->chosen;
    }
}

/* The draws of the call, each item counted as sampled, and withheld with the last draw that it may have. NR_WAIT_* leaves no draw. */
static int choose_limited(struct choice *choice, struct nr_wait *wait)
{
    struct nr_table *table = choice->table;
    struct nr_random before = choice->engine->random;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t retired = choice->retired;

        choose_once(choice);
        if (choice->retired == retired) {
            if (choice->chosen == choice->count)
                return NR_OK;
            uint64_t have = choice->chosen;
            undo(choice);
            if (retired == 0)
                choice->engine->random = before;
            if (table->selector.ops->distinct)
                have = nr_selector_drawable(&table->selector);
            else if (nr_selector_allowed(&table->selector) < choice->count)
                return nr_wait_for(wait, NR_WAIT_PASSES, nr_selector_allowed(&table->selector), choice->count);
            return nr_wait_for(wait, NR_WAIT_EMPTY, have, choice->count);
        }
        /* Drawn anew without those that left, so that they change nothing but that they are gone. */
        undo(choice);
        table->progress++;
        if (choice->retired >= RETIRED)
            break;
    }
    return nr_wait_for(wait, NR_WAIT_LEAVING, table->order.size, 0);
}

int nr_choose_lacking(const struct nr_table *table, uint32_t count, struct nr_wait *wait)
{
    const struct nr_selector *selector = &table->selector;
    bool distinct = selector->ops->distinct;

    if (selector->ops->total(selector) == 0)
        return nr_wait_for(wait, NR_WAIT_EMPTY, table->order.size - table->withheld, distinct ? count : 1);
    if (distinct && count > nr_selector_drawable(selector))
        return nr_wait_for(wait, NR_WAIT_EMPTY, nr_selector_drawable(selector), count);
    if (count > nr_selector_allowed(selector))
        return nr_wait_for(wait, NR_WAIT_PASSES, nr_selector_allowed(selector), count);
    return NR_OK;
}

int nr_choose(struct nr_engine *engine, struct nr_table *table, struct nr_draw *draw, uint32_t count, struct nr_wait *wait)
{
    struct nr_selector *selector = &table->selector;

    if (table->limiter.limits.max_sampled > 0) {
        struct choice choice = {.engine = engine, .table = table, .draw = draw, .count = count};

        return choose_limited(&choice, wait);
    }
    draw->pass = nr_selector_pass(selector);
    selector->ops->sample(selector, &engine->random, (struct nr_turn){0, count, count}, draw->entries);
    return NR_OK;
}
