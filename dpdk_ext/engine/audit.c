/* Everything that must hold between two calls, recomputed from nothing. For tests and simulators: slow, and it allocates. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/state.h"

struct audit {
    char *message;
    size_t size;
};

__attribute__((format(printf, 2, 3))) static int broken(const struct audit *audit, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(audit->message, audit->size, format, arguments);
    va_end(arguments);
    return NR_MALFORMED;
}

#define EXPECT(condition, ...)                                                                                                     \
    do {                                                                                                                           \
        if (!(condition))                                                                                                          \
            return broken(audit, __VA_ARGS__);                                                                                     \
    } while (0)

static int audit_tree(const struct audit *audit, const struct nr_sum_tree *tree)
{
    uint64_t entries = tree->leaves, total = 0;

    for (uint32_t level = 1; level < tree->height; level++) {
        uint64_t nodes = (entries + NR_SUM_TREE_FANOUT - 1) / NR_SUM_TREE_FANOUT;

        for (uint64_t node = 0; node < nodes; node++) {
            uint64_t sum = 0;

            for (uint32_t i = 0; i < NR_SUM_TREE_FANOUT; i++)
                sum += tree->levels[level - 1][node * NR_SUM_TREE_FANOUT + i];
            EXPECT(sum == tree->levels[level][node], "sum tree: level %u node %llu", level, (unsigned long long)node);
        }
        entries = nodes;
    }
    for (uint32_t i = 0; i < NR_SUM_TREE_FANOUT; i++)
        total += tree->levels[tree->height - 1][i];
    EXPECT(total == tree->total, "sum tree: total");
    for (uint64_t leaf = tree->leaves; leaf % NR_SUM_TREE_FANOUT != 0; leaf++)
        EXPECT(tree->levels[0][leaf] == 0, "sum tree: padding");
    return NR_OK;
}

/* `held`: by slot, zeroed. */
static int audit_priorities(const struct audit *audit, const struct nr_table *table, uint32_t index, uint8_t *held)
{
    const struct nr_selector *selector = &table->selector;
    const bool weighted = selector->ops->weighted;
    double largest = 0, least = 0;
    uint64_t total = 0, max_leaf = 0, min_leaf = 0;
    const char *wrong = weighted ? NULL : selector->ops->audit(selector, held);

    EXPECT(wrong == NULL, "table %u: %s", index, wrong);
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        bool item = slot < table->fresh && (nr_table_record(table, slot)->key & NR_KEY_GONE) == 0;
        bool drawable = item && (nr_table_record(table, slot)->reserved & NR_RECORD_WITHHELD) == 0;
        double raw = nr_extremes_get(&table->extremes, slot);
        uint64_t leaf = item ? selector->ops->leaf(selector, raw) : 0;

        EXPECT(nr_priority_valid(raw), "table %u slot %u: raw priority", index, slot);
        EXPECT(item || raw == 0, "table %u slot %u: a raw priority without item", index, slot);
        if (weighted)
            EXPECT(nr_sum_tree_leaf(&selector->prioritized.tree, slot) == (drawable ? leaf : 0), "table %u slot %u: leaf", index,
                   slot);
        else
            EXPECT(held[slot] == (drawable && leaf > 0), "table %u slot %u: drawn from %u times", index, slot, held[slot]);
        largest = raw > largest ? raw : largest;
        if (raw > 0 && (least == 0 || raw < least))
            least = raw;
        EXPECT(total + leaf >= total, "table %u: leaves exceed 64 bits", index);
        total += drawable ? leaf : 0;
        max_leaf = leaf > max_leaf ? leaf : max_leaf;
        if (leaf > 0 && (min_leaf == 0 || leaf < min_leaf))
            min_leaf = leaf;
    }
    EXPECT(largest == nr_extremes_largest(&table->extremes), "table %u: largest priority", index);
    EXPECT(least == nr_extremes_least(&table->extremes), "table %u: least priority", index);
    EXPECT(total == selector->ops->total(selector), "table %u: total", index);
    EXPECT(max_leaf == selector->ops->leaf(selector, largest), "table %u: largest leaf", index);
    EXPECT(min_leaf == selector->ops->leaf(selector, least), "table %u: least leaf", index);
    return weighted ? audit_tree(audit, &selector->prioritized.tree) : NR_OK;
}

/* `held`: by slot, zeroed. */
static int audit_remover(const struct audit *audit, const struct nr_table *table, uint32_t index, uint8_t *held)
{
    const struct nr_removal *remover = &table->remover;

    if (remover->ops->audit == NULL)
        return NR_OK;
    const char *wrong = remover->ops->audit(remover, held);
    EXPECT(wrong == NULL, "table %u, remover: %s", index, wrong);
    for (uint32_t slot = 0; slot < table->slots; slot++) {
        bool item = slot < table->fresh && (nr_table_record(table, slot)->key & NR_KEY_GONE) == 0;

        EXPECT(held[slot] == item, "table %u slot %u: removable %u times", index, slot, held[slot]);
    }
    if (remover->ops == &nr_remover_lowest_priority) {
        for (uint32_t i = 0; i < remover->heap.items.size; i++) {
            const struct nr_heap_entry *entry = &remover->heap.items.entries[i];

            EXPECT(entry->key == nr_heap_key(nr_extremes_get(&table->extremes, entry->slot)), "table %u: a remover's key", index);
        }
    }
    return NR_OK;
}

/* Items are in the order of their birth, and those with a version, as far as they were looked at, in the list of their publication. */
static int audit_expiry(const struct audit *audit, const struct nr_engine *engine, const struct nr_table *table, uint32_t index)
{
    const struct nr_expiry *expiry = &table->expiry;
    uint64_t born = 0, linked = 0, expected = 0;

    for (uint32_t slot = table->order.oldest; slot != NR_NONE; slot = table->order.links[slot].after) {
        uint64_t version = 0;

        EXPECT(table->born[slot] >= born, "table %u slot %u: born before an older item", index, slot);
        born = table->born[slot];
        if (expiry->versions > 0)
            memcpy(&version, (const uint8_t *)nr_table_record(table, slot) + table->columns + expiry->offset, sizeof(version));
        expected += version != 0 && slot < expiry->scanned;
    }
    if (expiry->versions == 0)
        return NR_OK;
    uint64_t present = engine->sets[expiry->set].counter;
    uint64_t kept = expiry->seen >= expiry->versions ? expiry->seen - expiry->versions + 1 : 0;
    EXPECT(expiry->seen <= present && expiry->kept <= kept, "table %u: publications kept", index);
    for (uint32_t head = expiry->slots; head <= expiry->slots + NR_MAX_VERSIONS; head++) {
        for (uint32_t node = expiry->links[head].after, before = head; node != head;
             before = node, node = expiry->links[node].after) {
            EXPECT(node < table->fresh && expiry->links[node].before == before && ++linked <= table->order.size &&
                       (nr_table_record(table, node)->key & NR_KEY_GONE) == 0,
                   "table %u: list of publication %u", index, head - expiry->slots);
        }
    }
    EXPECT(linked == expected, "table %u: %llu items are in lists of publications, %llu should be", index,
           (unsigned long long)linked, (unsigned long long)expected);
    return NR_OK;
}

/* `leases`: by slot, zeroed. `references`: by place; what the table's items hold is added. */
static int audit_table(const struct audit *audit, const struct nr_engine *engine, uint32_t index, uint32_t *leases,
                       uint32_t *references)
{
    const struct nr_table *table = &engine->tables[index];
    const struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    const struct nr_order *order = &table->order;
    uint64_t leased = 0, reserved = 0, leftovers = 0, listed = 0, unused = 0, withheld = 0;

    for (const struct nr_draw *draw = table->oldest, *before = NULL; draw != NULL; before = draw, draw = draw->later) {
        EXPECT(draw->earlier == before, "table %u: draws are linked wrongly", index);
        EXPECT(&engine->tables[draw->table] == table && draw->leased == draw->count, "table %u: a draw is not its own", index);
        EXPECT(before == NULL || before->due <= draw->due, "table %u: draws are not by age", index);
        EXPECT(draw->later != NULL || table->newest == draw, "table %u: newest draw", index);
        leased += draw->leased;
        reserved += draw->resets == table->resets ? draw->reserved : 0;
        for (uint32_t i = 0; i < draw->count; i++) {
            if (draw->entries[i].key == NR_KEY_NONE && draw->reserved == 0)
                continue; /* it was looked for, and is not here */
            uint32_t slot = nr_table_slot(table, draw->entries[i].key);

            EXPECT(slot < table->fresh && (nr_table_record(table, slot)->key & ~NR_KEY_GONE) == draw->entries[i].key,
                   "table %u: a drawn item's slot was given away", index);
            leases[slot]++;
        }
    }
    EXPECT(table->oldest != NULL || table->newest == NULL, "table %u: draws", index);
    EXPECT(leased == table->leased && leased <= table->leases, "table %u: leased", index);
    EXPECT(reserved <= table->limiter.reserved, "table %u: reserved", index);

    for (uint32_t slot = order->oldest, before = NR_NONE; slot != NR_NONE; before = slot, slot = order->links[slot].after) {
        EXPECT(slot < table->fresh && order->links[slot].before == before, "table %u: order", index);
        EXPECT((nr_table_record(table, slot)->key & NR_KEY_GONE) == 0, "table %u: an item in order is gone", index);
        EXPECT(order->links[slot].after != NR_NONE || order->newest == slot, "table %u: newest item", index);
        EXPECT(++listed <= order->size, "table %u: order is too long", index);
    }
    EXPECT(listed == order->size && order->size <= table->capacity, "table %u: size", index);
    EXPECT(order->size > 0 || order->newest == NR_NONE, "table %u: order of none", index);
    if (table->remover.passed != NR_NONE) {
        uint32_t slot = order->oldest;

        for (; slot != NR_NONE && slot != table->remover.passed; slot = order->links[slot].after)
            EXPECT(nr_table_record(table, slot)->leases > 0, "table %u: an item is passed over without lease", index);
        EXPECT(slot == table->remover.passed && nr_table_record(table, slot)->leases > 0, "table %u: passed", index);
    }

    for (uint32_t slot = table->free; slot != NR_NONE; slot = order->links[slot].after) {
        EXPECT(slot < table->fresh && (nr_table_record(table, slot)->key & NR_KEY_GONE) && leases[slot] == 0,
               "table %u: free slot %u", index, slot);
        EXPECT(++unused <= table->fresh, "table %u: free slots go round", index);
    }
    for (uint32_t slot = 0; slot < table->fresh; slot++) {
        const struct nr_record *record = nr_table_record(table, slot);
        bool item = (record->key & NR_KEY_GONE) == 0;

        EXPECT(nr_table_slot(table, record->key) == slot &&
                   (record->key & ~NR_KEY_GONE) >> NR_KEY_BITS == table->shard >> NR_KEY_BITS,
               "table %u slot %u: key", index, slot);
        EXPECT(record->leases == leases[slot], "table %u slot %u: leases", index, slot);
        if (!item && record->leases == 0)
            continue;
        leftovers += !item;
        if (item && (record->reserved & NR_RECORD_WITHHELD)) {
            EXPECT(record->reserved > NR_RECORD_WITHHELD, "table %u slot %u: withheld for nothing", index, slot);
            withheld++;
        }
        EXPECT(!item || (record->reserved & ~NR_RECORD_WITHHELD) <= record->sampled, "table %u slot %u: sampled", index, slot);
        EXPECT(nr_record_steps(record) <= table->window, "table %u slot %u: window", index, slot);
        for (uint32_t i = 0; i < nr_record_steps(record); i++) {
            EXPECT(record->steps[i] < slab->fresh && nr_slab_whole(slab, record->steps[i]), "table %u slot %u: step %u", index,
                   slot, i);
            references[record->steps[i]]++;
        }
    }
    EXPECT(leftovers == table->leftovers, "table %u: leftovers", index);
    EXPECT(withheld == table->withheld, "table %u: withheld", index);
    EXPECT(listed + leftovers + unused == table->fresh && table->fresh <= table->slots, "table %u: slots", index);
    EXPECT(table->inserted_before + table->limiter.inserted ==
               listed + table->evicted_capacity + table->evicted_steps + table->evicted_sampled + table->evicted_deleted +
                   table->evicted_reset + table->evicted_age + table->evicted_version + table->dropped,
           "table %u: inserts and evictions", index);
    EXPECT(nr_limits_valid(&table->limiter.limits, table->capacity) && table->limiter.limits.min_size > 0, "table %u: limits",
           index);
    EXPECT(table->limiter.inserted == 0 || !table->resetting, "table %u: an insert during a reset", index);
    uint8_t *held = calloc(table->slots, 1);
    int status = held == NULL ? NR_NO_MEMORY : audit_priorities(audit, table, index, held);
    if (status == NR_OK) {
        memset(held, 0, table->slots);
        status = audit_remover(audit, table, index, held);
    }
    free(held);
    return status == NR_OK ? audit_expiry(audit, engine, table, index) : status;
}

/* `references`: by place; what the rings hold is added. */
static int audit_streams(const struct audit *audit, const struct nr_engine *engine, uint32_t index, uint32_t *references)
{
    const struct nr_store *store = &engine->stores[index];
    const struct nr_streams *streams = &engine->streams;
    uint32_t open = 0, idle = 0, free = 0, ringed = 0;

    for (uint32_t place = store->first; place < store->first + store->fresh; place++) {
        const struct nr_stream *stream = &streams->places[place];

        if (!stream->open)
            continue;
        const uint32_t *ring = nr_stream_ring(store, streams, stream);
        uint32_t listed = stream->owner != 0 ? NR_NONE : store->idle_oldest;
        EXPECT(stream->store == index, "store %u stream %u: store", index, place);
        open++;
        if (stream->owner != 0) {
            listed = streams->buckets[nr_random_mix(stream->owner) & streams->mask];
        } else {
            idle++;
        }
        while (listed != NR_NONE && listed != place)
            listed = streams->places[listed].after;
        EXPECT(listed == place, "store %u stream %u: in no list", index, place);
        for (uint32_t i = 0; i < store->span; i++) {
            if (ring[i] == NR_NONE)
                continue;
            EXPECT(ring[i] < store->slab.fresh && (store->slab.steps[ring[i]].state & NR_STEP_RINGED), "store %u stream %u: ring",
                   index, place);
            EXPECT(stream->owner != 0 || nr_slab_whole(&store->slab, ring[i]), "store %u stream %u: unfinished, without owner",
                   index, place);
            references[ring[i]]++;
            ringed++;
        }
    }
    EXPECT(ringed == store->slab.ringed, "store %u: ringed", index);
    EXPECT(open == store->open, "store %u: open streams", index);
    for (uint32_t place = store->idle_oldest, before = NR_NONE; place != NR_NONE;
         before = place, place = streams->places[place].after) {
        EXPECT(streams->places[place].open && streams->places[place].owner == 0 && streams->places[place].before == before &&
                   idle-- > 0,
               "store %u: idle streams", index);
        EXPECT(streams->places[place].after != NR_NONE || store->idle_newest == place, "store %u: newest idle stream", index);
    }
    EXPECT(idle == 0, "store %u: idle streams are missing", index);
    for (uint32_t place = store->free; place != NR_NONE; place = streams->places[place].after)
        EXPECT(!streams->places[place].open && ++free <= store->fresh, "store %u: free streams", index);
    EXPECT(open + free == store->fresh && store->fresh <= store->streams, "store %u: stream places", index);
    return NR_OK;
}

static int audit_slab(const struct audit *audit, const struct nr_slab *slab, uint32_t index, const uint32_t *references)
{
    uint32_t used = 0, free = 0;
    uint64_t lent = 0;

    for (uint32_t place = 0; place < slab->fresh; place++) {
        uint32_t held = slab->steps[place].references;

        EXPECT(held >= references[place], "store %u step %u: %u references, held %u times", index, place, held, references[place]);
        lent += held - references[place];
        used += held > 0;
        EXPECT(held == 0 || (slab->steps[place].state & NR_STEP_MISSING) <= slab->step_bytes, "store %u step %u: missing", index,
               place);
    }
    EXPECT(lent == (uint64_t)slab->lent + slab->pinned, "store %u: %llu references are nobody's, %u are lent, %u pinned", index,
           (unsigned long long)lent, slab->lent, slab->pinned);
    EXPECT(slab->lent <= slab->count / NR_SLAB_LENT_SHARE, "store %u: lent steps", index);
    EXPECT(used == slab->used && slab->used <= slab->count, "store %u: used steps", index);
    for (uint32_t place = slab->free; place != NR_NONE; place = slab->steps[place].state)
        EXPECT(place < slab->fresh && slab->steps[place].references == 0 && ++free <= slab->fresh, "store %u: free steps", index);
    EXPECT(used + free == slab->fresh && slab->fresh <= slab->count, "store %u: steps", index);
    return NR_OK;
}

static int audit_store(const struct audit *audit, const struct nr_engine *engine, uint32_t index)
{
    const struct nr_store *store = &engine->stores[index];
    uint32_t *references = calloc((size_t)store->slab.fresh + 1, sizeof(*references));
    int status = references == NULL ? NR_NO_MEMORY : audit_streams(audit, engine, index, references);

    for (uint32_t i = store->first_table; status == NR_OK && i != NR_NONE; i = engine->tables[i].next_of_store) {
        uint32_t *leases = calloc(engine->tables[i].slots, sizeof(*leases));

        status = leases == NULL ? NR_NO_MEMORY : audit_table(audit, engine, i, leases, references);
        free(leases);
    }
    if (status == NR_OK)
        status = audit_slab(audit, &store->slab, index, references);
    free(references);
    return status;
}

int nr_engine_audit(const struct nr_engine *engine, char *message, size_t size)
{
    struct audit audit = {message, size};
    uint32_t resetting = 0;
    int status = NR_OK;

    if (size > 0)
        message[0] = 0;
    for (uint32_t i = 0; status == NR_OK && i < engine->store_count; i++)
        status = audit_store(&audit, engine, i);
    for (uint32_t i = 0; status == NR_OK && i < engine->set_count; i++) {
        const struct nr_set *set = &engine->sets[i];

        if (set->writer != 0 && (set->buffers[!set->current].version != 0 || set->written > set->buffers[!set->current].length))
            status = broken(&audit, "set %u: being written", i);
        if (set->buffers[0].length > set->room || set->buffers[1].length > set->room)
            status = broken(&audit, "set %u: longer than its room", i);
    }
    for (uint32_t i = 0; i < engine->table_count; i++)
        resetting += engine->tables[i].resetting;
    if (status == NR_OK && resetting != engine->resetting)
        status = broken(&audit, "%u tables are being reset, %u are counted", resetting, engine->resetting);
    return status;
}
