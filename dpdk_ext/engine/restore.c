#include "engine/restore.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint_format.h"
#include "engine/space.h"
#include "engine/state.h"

/* A store of the file. */
struct old_store {
    struct nr_saved_store saved;
    uint32_t *uses;   /* by the step's number: times that items and rings still to come name it */
    uint32_t *places; /* by the step's number: today's slab place, or NR_NONE */
    uint32_t room;    /* entries of uses */
    uint32_t steps;   /* in the file, so far */
    uint32_t taken;   /* given the second time, so far */
    uint32_t now;     /* today's index, or NR_NONE */
    bool streaming;   /* a stream of it has come */
};

/* A table of the file. */
struct old_table {
    struct nr_saved_table saved;
    struct nr_saved_slot *slots; /* by slot, as read */
    uint32_t *positions;         /* by slot: in the selector's array */
    uint32_t *removals;          /* by slot: in the remover's array */
    uint8_t *drawn;              /* by slot: in the running pass */
    uint8_t *listed;             /* by slot: already in the list of free slots that is being made */
    uint64_t items;              /* in the file */
    uint64_t newest;             /* ns: born of the last item */
    uint32_t fresh;              /* slots described so far */
    uint32_t head;               /* of the file's list of free slots */
    uint32_t now;                /* today's index, or NR_NONE */
    bool keys;                   /* its items keep their slots and keys */
};

struct nr_restore {
    struct nr_engine *engine; /* NULL: only looking */
    struct nr_restore_map map;
    struct old_store *stores;
    struct old_table *tables;
    uint64_t now; /* ns */
    struct nr_saved_begin begin;
    struct nr_saved_set sets[NR_MAX_SETS];
    struct nr_saved_done counted; /* records so far */
    struct nr_stream *stream;     /* whose ring comes, or NULL */
    uint32_t stream_store;        /* of the file; the last stream's */
    uint32_t described;           /* stores, tables and sets so far */
    uint64_t streams_restored;
    bool begun, done, loading;
    uint64_t offset; /* bytes of all payloads before the record */
    char complaint[256];
};

__attribute__((format(printf, 3, 4))) static int refuse(struct nr_restore *restore, int status, const char *format, ...)
{
    char text[200];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    snprintf(restore->complaint, sizeof(restore->complaint), "record at byte %llu of the data: %s",
             (unsigned long long)restore->offset, text);
    return status;
}

#define EXPECT(condition, ...)                                                                                                     \
    do {                                                                                                                           \
        if (!(condition))                                                                                                          \
            return refuse(restore, NR_MALFORMED, __VA_ARGS__);                                                                     \
    } while (0)

/* ---- Opening and closing ---- */

struct nr_restore *nr_restore_inspect(int *status)
{
    struct nr_restore *restore = calloc(1, sizeof(*restore));

    *status = restore != NULL ? NR_OK : NR_NO_MEMORY;
    if (restore != NULL)
        memset(&restore->map, 0xff, sizeof(restore->map));
    return restore;
}

struct nr_restore *nr_restore_open(struct nr_engine *engine, const struct nr_restore_map *map, uint64_t now, int *status)
{
    struct nr_restore *restore = nr_restore_inspect(status);

    if (restore != NULL) {
        restore->engine = engine;
        restore->map = *map;
        restore->now = now;
    }
    return restore;
}

void nr_restore_close(struct nr_restore *restore)
{
    if (restore == NULL)
        return;
    for (uint32_t i = 0; restore->stores != NULL && i < restore->begin.stores; i++) {
        free(restore->stores[i].uses);
        free(restore->stores[i].places);
    }
    for (uint32_t i = 0; restore->tables != NULL && i < restore->begin.tables; i++) {
        free(restore->tables[i].slots);
        free(restore->tables[i].positions);
        free(restore->tables[i].removals);
        free(restore->tables[i].drawn);
        free(restore->tables[i].listed);
    }
    free(restore->stores);
    free(restore->tables);
    free(restore);
}

const char *nr_restore_complaint(const struct nr_restore *restore)
{
    return restore->complaint;
}

/* ---- The first time ---- */

static int scan_begin(struct nr_restore *restore, const struct nr_saved_begin *saved)
{
    const struct nr_engine *engine = restore->engine;

    EXPECT(!restore->begun, "a second beginning");
    EXPECT(saved->stores <= NR_MAX_STORES && saved->tables <= NR_MAX_TABLES && saved->sets <= NR_MAX_SETS && saved->reserved == 0,
           "%u stores, %u tables, %u sets", saved->stores, saved->tables, saved->sets);
    EXPECT((saved->random[0] | saved->random[1] | saved->random[2] | saved->random[3]) != 0, "random state of nothing but zeros");
    restore->stores = calloc(saved->stores + 1, sizeof(*restore->stores));
    restore->tables = calloc(saved->tables + 1, sizeof(*restore->tables));
    if (restore->stores == NULL || restore->tables == NULL)
        return NR_NO_MEMORY;
    restore->begin = *saved;
    restore->begun = true;
    for (uint32_t i = 0; engine != NULL && i < saved->stores; i++)
        EXPECT(restore->map.stores[i] == NR_NONE || restore->map.stores[i] < engine->store_count, "mapped to no store");
    for (uint32_t i = 0; engine != NULL && i < saved->tables; i++)
        EXPECT(restore->map.tables[i] == NR_NONE || restore->map.tables[i] < engine->table_count, "mapped to no table");
    return NR_OK;
}

static int scan_store(struct nr_restore *restore, const struct nr_saved_store *saved)
{
    EXPECT(saved->store == restore->described && saved->store < restore->begin.stores, "store %u out of turn", saved->store);
    EXPECT(saved->step_bytes >= 1 && saved->step_bytes <= NR_MAX_STEP_BYTES && saved->observation_bytes >= 1 &&
               saved->observation_bytes <= saved->step_bytes && saved->window >= 1 && saved->window <= NR_MAX_WINDOW &&
               saved->span >= saved->window && saved->reserved == 0,
           "store %u: impossible sizes", saved->store);
    struct old_store *store = &restore->stores[restore->described++];
    store->saved = *saved;
    store->now = restore->map.stores[saved->store];
    if (restore->engine == NULL || store->now == NR_NONE)
        return NR_OK;
    const struct nr_slab *slab = &restore->engine->stores[store->now].slab;
    if (slab->step_bytes != saved->step_bytes || slab->observation_bytes != saved->observation_bytes)
        return refuse(restore, NR_BAD_CONFIG, "store %u: its steps have %u bytes, %u of them observation; today's have %u and %u",
                      saved->store, saved->step_bytes, saved->observation_bytes, slab->step_bytes, slab->observation_bytes);
    return NR_OK;
}

static int scan_table(struct nr_restore *restore, const struct nr_saved_table *saved)
{
    EXPECT(saved->table < restore->begin.tables && saved->table + restore->begin.stores == restore->described,
           "table %u out of turn", saved->table);
    EXPECT(saved->store < restore->begin.stores && saved->capacity >= 1 && saved->slots >= saved->capacity &&
               saved->slots <= INT32_MAX && saved->generation_bits >= 24 && saved->generation_bits < NR_KEY_BITS &&
               (uint64_t)saved->slots <= (uint64_t)1 << (NR_KEY_BITS - saved->generation_bits) &&
               saved->item_bytes <= NR_MAX_ITEM_COLUMNS && saved->window >= 1 &&
               saved->window <= restore->stores[saved->store].saved.window && saved->size <= saved->capacity &&
               saved->shard >> NR_KEY_BITS <= UINT8_MAX && (saved->shard & (((uint64_t)1 << NR_KEY_BITS) - 1)) == 0,
           "table %u: impossible sizes", saved->table);
    EXPECT(saved->inserted_before + saved->inserted - saved->evicted_capacity - saved->evicted_steps - saved->evicted_deleted -
                   saved->evicted_reset - saved->evicted_sampled - saved->evicted_age - saved->evicted_version - saved->dropped ==
               saved->size,
           "table %u: its counters do not add up to its items", saved->table);
    struct old_table *table = &restore->tables[saved->table];
    restore->described++;
    table->saved = *saved;
    table->head = NR_NONE;
    table->now = restore->map.tables[saved->table];
    if (restore->engine == NULL || table->now == NR_NONE)
        return NR_OK;
    const struct nr_table *now = &restore->engine->tables[table->now];
    if (now->store != restore->map.stores[saved->store])
        return refuse(restore, NR_BAD_CONFIG, "table %u: is over another store today", saved->table);
    if (now->item_bytes != saved->item_bytes)
        return refuse(restore, NR_BAD_CONFIG, "table %u: its items' columns have %u bytes, today's %u", saved->table,
                      saved->item_bytes, now->item_bytes);
    if (now->window < saved->window)
        return refuse(restore, NR_BAD_CONFIG, "table %u: its items have up to %u steps, today's %u", saved->table, saved->window,
                      now->window);
    table->keys = saved->generation_bits == now->generation_bits && saved->slots <= now->slots && saved->shard == now->shard;
    return NR_OK;
}

static int scan_step(struct nr_restore *restore, const struct nr_saved_step *saved, uint64_t bytes)
{
    EXPECT(saved->store < restore->begin.stores, "a step of no store");
    struct old_store *store = &restore->stores[saved->store];
    EXPECT(saved->number == store->steps && store->steps < NR_NONE - 1, "step %u out of turn", saved->number);
    EXPECT(bytes == store->saved.step_bytes || bytes == store->saved.observation_bytes, "a step of %llu bytes",
           (unsigned long long)bytes);
    if (store->steps == store->room) {
        uint64_t room = store->room > 0 ? 2 * (uint64_t)store->room : 1024;
        uint32_t *uses = realloc(store->uses, room * sizeof(*uses));

        if (uses == NULL)
            return NR_NO_MEMORY;
        store->uses = uses;
        store->room = room < NR_NONE ? (uint32_t)room : NR_NONE;
    }
    store->uses[store->steps++] = 0;
    restore->counted.steps++;
    return NR_OK;
}

/* What is behind the columns of an item. */
static const uint8_t *item_steps(const struct old_table *table, const uint8_t *rest)
{
    return rest + table->saved.item_bytes;
}

static uint32_t number_at(const uint8_t *steps, uint32_t i)
{
    uint32_t number;

    memcpy(&number, steps + i * sizeof(number), sizeof(number));
    return number;
}

static uint32_t slot_of(const struct old_table *table, uint64_t key)
{
    return (uint32_t)((key & (((uint64_t)1 << NR_KEY_BITS) - 1)) >> table->saved.generation_bits);
}

static int scan_item(struct nr_restore *restore, const struct nr_saved_item *saved, const uint8_t *rest, uint64_t more)
{
    uint32_t count = (uint32_t)saved->anchor + saved->length + 1;

    EXPECT(saved->table < restore->begin.tables, "an item of no table");
    struct old_table *table = &restore->tables[saved->table];
    struct old_store *store = &restore->stores[table->saved.store];
    EXPECT(count <= table->saved.window && more == table->saved.item_bytes + (uint64_t)count * sizeof(uint32_t),
           "an item of %u steps and %llu bytes", count, (unsigned long long)more);
    EXPECT(nr_priority_valid(saved->priority), "a priority that no item can have");
    EXPECT(saved->key >> NR_KEY_BITS == table->saved.shard >> NR_KEY_BITS && slot_of(table, saved->key) < table->saved.slots,
           "a key that no item can have");
    EXPECT(table->items < table->saved.size, "table %u: more items than it had", saved->table);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t number = number_at(item_steps(table, rest), i);

        EXPECT(number < store->steps, "an item before its step %u", number);
        EXPECT(store->uses[number] < UINT32_MAX, "a step of too many items");
        store->uses[number]++;
    }
    EXPECT(saved->born >= table->newest && saved->born <= INT64_MAX && saved->reserved == 0,
           "an item older than the one before it");
    table->newest = saved->born;
    table->items++;
    restore->counted.items++;
    return NR_OK;
}

static int scan_slots(struct nr_restore *restore, const struct nr_saved_slots *saved, uint64_t more)
{
    EXPECT(saved->table < restore->begin.tables, "slots of no table");
    struct old_table *table = &restore->tables[saved->table];
    EXPECT(saved->first == table->fresh && saved->count <= table->saved.slots - saved->first &&
               more == saved->count * sizeof(struct nr_saved_slot),
           "slots %u to %u of %u out of turn", saved->first, saved->first + saved->count, table->saved.slots);
    table->fresh += saved->count;
    return NR_OK;
}

static int scan_stream(struct nr_restore *restore, const struct nr_saved_stream *saved)
{
    EXPECT(saved->store < restore->begin.stores, "a stream of no store");
    EXPECT(saved->head <= NR_MAX_NUMBER && saved->low <= saved->head && saved->next_item <= NR_MAX_NUMBER && saved->owned <= 1,
           "impossible numbers of a stream");
    restore->stream_store = saved->store;
    restore->counted.streams++;
    return NR_OK;
}

static int scan_ring(struct nr_restore *restore, const struct nr_saved_ring *saved)
{
    EXPECT(restore->counted.streams > 0 && saved->store == restore->stream_store, "a ring's step behind no stream of its store");
    struct old_store *store = &restore->stores[saved->store];
    EXPECT(saved->number < NR_MAX_NUMBER && saved->step < store->steps, "a ring before its step %u", saved->step);
    EXPECT(store->uses[saved->step] < UINT32_MAX, "a step of too many rings");
    store->uses[saved->step]++;
    restore->counted.rings++;
    return NR_OK;
}

static int scan_done(struct nr_restore *restore, const struct nr_saved_done *saved)
{
    EXPECT(memcmp(saved, &restore->counted, sizeof(*saved)) == 0, "not what was counted");
    restore->done = true;
    return NR_OK;
}

int nr_restore_scanned(struct nr_restore *restore)
{
    if (!restore->done)
        return refuse(restore, NR_MALFORMED, "the end is missing");
    restore->offset = 0;
    restore->loading = true;
    for (uint32_t i = 0; i < restore->begin.stores; i++) {
        struct old_store *store = &restore->stores[i];

        store->places = malloc(((size_t)store->steps + 1) * sizeof(*store->places));
        if (store->places == NULL)
            return NR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < restore->begin.tables; i++) {
        struct old_table *table = &restore->tables[i];

        if (!table->keys)
            continue;
        /* An item's slot was used at the cut, so that the slots' records, made later, describe it. */
        table->slots = calloc((size_t)table->fresh + 1, sizeof(*table->slots));
        table->positions = malloc(((size_t)table->fresh + 1) * sizeof(*table->positions));
        table->removals = malloc(((size_t)table->fresh + 1) * sizeof(*table->removals));
        table->listed = calloc((size_t)table->fresh + 1, 1);
        table->drawn = calloc((size_t)table->fresh + 1, 1);
        if (table->slots == NULL || table->positions == NULL || table->removals == NULL || table->listed == NULL ||
            table->drawn == NULL)
            return NR_NO_MEMORY;
    }
    return NR_OK;
}

/* ---- The second time ---- */

/* Publications are counted on, so that items' versions are as far behind as they were. */
static void take_set(struct nr_restore *restore, const struct nr_saved_set *saved)
{
    struct nr_engine *engine = restore->engine;
    uint32_t now = restore->map.sets[saved->set];

    if (now < engine->set_count && engine->sets[now].counter < saved->counter)
        engine->sets[now].counter = saved->counter;
    if (engine->earlier_counter < saved->counter)
        engine->earlier_counter = saved->counter;
}

/* One who still needed the step needs it no more. */
static void used(struct nr_restore *restore, struct old_store *store, uint32_t number)
{
    if (store->now != NR_NONE && --store->uses[number] == 0 && store->places[number] != NR_NONE)
        nr_slab_drop(&restore->engine->stores[store->now].slab, store->places[number]);
}

static int take_step(struct nr_restore *restore, const struct nr_saved_step *saved, const uint8_t *bytes, uint64_t length)
{
    struct old_store *old = &restore->stores[saved->store];

    EXPECT(saved->number == old->taken && saved->number < old->steps, "another file than before");
    old->places[old->taken++] = NR_NONE;
    if (old->now == NR_NONE || old->uses[saved->number] == 0)
        return NR_OK;
    struct nr_store *store = &restore->engine->stores[old->now];
    struct nr_slab *slab = &store->slab;
    if (!nr_space_for_step(restore->engine, store, restore->now))
        return NR_OK; /* all places are kept for what is still to come */
    uint32_t place = nr_slab_take(slab, (uint32_t)length);
    memcpy(nr_slab_step(slab, place), bytes, length);
    /* The reference is this restore's until all that need the step have come. */
    slab->steps[place].state = length < slab->step_bytes ? NR_STEP_SHORT : 0;
    slab->ringed--;
    old->places[saved->number] = place;
    return NR_OK;
}

/* Makes slots below `end` ones that were used. */
static void use_slots(struct nr_table *table, uint32_t end)
{
    for (; table->fresh < end; table->fresh++) {
        struct nr_record *record = nr_table_record(table, table->fresh);

        record->key = NR_KEY_GONE | table->shard | (uint64_t)table->fresh << table->generation_bits;
        record->leases = record->sampled = record->reserved = 0;
    }
}

static bool occupied(const struct nr_table *table, uint32_t slot)
{
    return (nr_table_record(table, slot)->key & NR_KEY_GONE) == 0;
}

/* Whether today's limit says that the item was drawn often enough. */
static bool leaves(const struct nr_table *table, uint32_t sampled)
{
    return table->limiter.limits.max_sampled > 0 && sampled >= table->limiter.limits.max_sampled;
}

static int take_item(struct nr_restore *restore, const struct nr_saved_item *saved, const uint8_t *rest)
{
    struct old_table *old = &restore->tables[saved->table];
    struct old_store *old_store = &restore->stores[old->saved.store];
    uint32_t count = (uint32_t)saved->anchor + saved->length + 1, slot;
    const uint8_t *steps = item_steps(old, rest);
    bool whole = old->now != NR_NONE;

    for (uint32_t i = 0; i < count && whole; i++)
        whole = old_store->places[number_at(steps, i)] != NR_NONE;
    if (whole && leaves(&restore->engine->tables[old->now], saved->sampled))
        whole = false;
    else if (!whole && old->now != NR_NONE)
        nr_limiter_left(&restore->engine->tables[old->now].limiter, saved->sampled);
    if (whole) {
        struct nr_table *table = &restore->engine->tables[old->now];
        struct nr_slab *slab = &nr_engine_store_of(restore->engine, table)->slab;

        if (table->order.size == table->capacity)
            nr_table_evict(table, slab, table->order.oldest);
        if (old->keys) {
            slot = slot_of(old, saved->key);
            EXPECT(slot < old->fresh, "an item in slot %u, which no table had", slot);
            use_slots(table, slot + 1);
            EXPECT(!occupied(table, slot), "two items in slot %u", slot);
            nr_table_record(table, slot)->key = saved->key | NR_KEY_GONE;
            old->positions[slot] = saved->position;
            old->removals[slot] = saved->removal;
            old->drawn[slot] = saved->drawn_in != 0 && saved->drawn_in == old->saved.pass;
        } else {
            slot = nr_table_take(table);
        }
        struct nr_record *record = nr_table_record(table, slot);
        for (uint32_t i = 0; i < count; i++) {
            record->steps[i] = old_store->places[number_at(steps, i)];
            nr_slab_hold(slab, record->steps[i]);
        }
        uint64_t age = restore->begin.now > saved->born ? restore->begin.now - saved->born : 0;
        table->born[slot] = restore->now > age ? restore->now - age : 0;
        record->anchor = saved->anchor;
        record->length = saved->length;
        record->leases = record->reserved = 0;
        record->sampled = saved->sampled;
        memcpy((uint8_t *)record + table->columns, rest, table->item_bytes);
        nr_table_add(table, slot, nr_priority_normal(saved->priority));
        nr_expire_link(restore->engine, table, slot);
    }
    for (uint32_t i = 0; i < count; i++)
        used(restore, old_store, number_at(steps, i));
    return NR_OK;
}

static int take_slots(struct nr_restore *restore, const struct nr_saved_slots *saved, const uint8_t *rest)
{
    struct old_table *old = &restore->tables[saved->table];

    if (!old->keys)
        return NR_OK;
    struct nr_table *table = &restore->engine->tables[old->now];
    EXPECT(saved->first + saved->count <= old->fresh, "another file than before");
    use_slots(table, saved->first + saved->count);
    memcpy(&old->slots[saved->first], rest, saved->count * sizeof(struct nr_saved_slot));
    old->head = saved->free;
    for (uint32_t slot = saved->first; slot < saved->first + saved->count; slot++) {
        EXPECT(slot_of(old, old->slots[slot].key) == slot && old->slots[slot].key >> NR_KEY_BITS == table->shard >> NR_KEY_BITS,
               "a key of slot %u that it cannot have", slot);
        if (occupied(table, slot)) {
            table->restored_slots[slot / 8] |= (uint8_t)(1u << slot % 8);
            table->restored++;
        } else {
            nr_table_record(table, slot)->key = NR_KEY_GONE | nr_table_next_key(table, old->slots[slot].key, table->leap);
        }
    }
    return NR_OK;
}

static int take_stream(struct nr_restore *restore, const struct nr_saved_stream *saved)
{
    const struct old_store *old = &restore->stores[saved->store];
    bool twice = false;

    restore->stream = old->now != NR_NONE ? nr_stream_restore(restore->engine, old->now, saved->id, &twice) : NULL;
    EXPECT(!twice, "a stream that was there before");
    if (restore->stream == NULL)
        return NR_OK;
    restore->stream->head = saved->head;
    restore->stream->low = saved->low;
    restore->stream->next_item = saved->next_item;
    return NR_OK;
}

static int take_ring(struct nr_restore *restore, const struct nr_saved_ring *saved)
{
    struct old_store *old = &restore->stores[saved->store];
    struct nr_stream *stream = restore->stream;
    uint32_t place = old->places[saved->step];

    /* The stream may have been the one that gave way to this very step. */
    if (stream != NULL && stream->open == NR_STREAM_RESTORED && place != NR_NONE) {
        struct nr_store *store = &restore->engine->stores[old->now];
        uint32_t *ring = nr_stream_ring(store, &restore->engine->streams, stream);

        EXPECT((store->slab.steps[place].state & NR_STEP_RINGED) == 0, "a step of two streams");
        EXPECT(saved->number < stream->head && saved->number >= stream->low, "step %llu, which its stream never had",
               (unsigned long long)saved->number);
        uint32_t *cell = &ring[saved->number % store->span];
        if (saved->number + store->span >= stream->head) {
            EXPECT(*cell == NR_NONE, "a stream's step twice");
            *cell = place;
            nr_slab_hold_ringed(&store->slab, place);
        }
    }
    used(restore, old, saved->step);
    return NR_OK;
}

/* ---- Records ---- */

/* Bytes of the fixed part, by kind; 0: no such record. */
static uint32_t fixed_bytes(uint32_t kind)
{
    static const uint32_t bytes[] = {
        [NR_SAVED_BEGIN] = sizeof(struct nr_saved_begin), [NR_SAVED_STORE] = sizeof(struct nr_saved_store),
        [NR_SAVED_TABLE] = sizeof(struct nr_saved_table), [NR_SAVED_SET] = sizeof(struct nr_saved_set),
        [NR_SAVED_STEP] = sizeof(struct nr_saved_step),   [NR_SAVED_ITEM] = sizeof(struct nr_saved_item),
        [NR_SAVED_SLOTS] = sizeof(struct nr_saved_slots), [NR_SAVED_STREAM] = sizeof(struct nr_saved_stream),
        [NR_SAVED_RING] = sizeof(struct nr_saved_ring),   [NR_SAVED_DONE] = sizeof(struct nr_saved_done),
    };

    return kind < sizeof(bytes) / sizeof(bytes[0]) ? bytes[kind] : 0;
}

static bool variable(uint32_t kind)
{
    return kind == NR_SAVED_STEP || kind == NR_SAVED_ITEM || kind == NR_SAVED_SLOTS;
}

union saved {
    struct nr_saved_begin begin;
    struct nr_saved_store store;
    struct nr_saved_table table;
    struct nr_saved_set set;
    struct nr_saved_step step;
    struct nr_saved_item item;
    struct nr_saved_slots slots;
    struct nr_saved_stream stream;
    struct nr_saved_ring ring;
    struct nr_saved_done done;
};

static int scan_record(struct nr_restore *restore, uint32_t kind, const union saved *saved, const uint8_t *rest, uint64_t more)
{
    uint32_t all = restore->begin.stores + restore->begin.tables + restore->begin.sets;

    EXPECT(restore->begun == (kind != NR_SAVED_BEGIN), "not at the beginning");
    EXPECT(!restore->done, "a record behind the end");
    EXPECT(kind <= NR_SAVED_SET || restore->described == all, "stores, tables or sets are missing");
    switch (kind) {
    case NR_SAVED_BEGIN:
        return scan_begin(restore, &saved->begin);
    case NR_SAVED_STORE:
        return scan_store(restore, &saved->store);
    case NR_SAVED_TABLE:
        return scan_table(restore, &saved->table);
    case NR_SAVED_SET:
        EXPECT(saved->set.counter <= UINT32_MAX && saved->set.set < restore->begin.sets &&
                   restore->described + restore->begin.sets == all + saved->set.set,
               "set %u out of turn", saved->set.set);
        restore->sets[saved->set.set] = saved->set;
        restore->described++;
        return NR_OK;
    case NR_SAVED_STEP:
        return scan_step(restore, &saved->step, more);
    case NR_SAVED_ITEM:
        return scan_item(restore, &saved->item, rest, more);
    case NR_SAVED_SLOTS:
        return scan_slots(restore, &saved->slots, more);
    case NR_SAVED_STREAM:
        return scan_stream(restore, &saved->stream);
    case NR_SAVED_RING:
        return scan_ring(restore, &saved->ring);
    default:
        return scan_done(restore, &saved->done);
    }
}

static int take_record(struct nr_restore *restore, uint32_t kind, const union saved *saved, const uint8_t *rest, uint64_t more)
{
    switch (kind) {
    case NR_SAVED_STEP:
        return take_step(restore, &saved->step, rest, more);
    case NR_SAVED_ITEM:
        return take_item(restore, &saved->item, rest);
    case NR_SAVED_SLOTS:
        return take_slots(restore, &saved->slots, rest);
    case NR_SAVED_STREAM:
        return take_stream(restore, &saved->stream);
    case NR_SAVED_RING:
        return take_ring(restore, &saved->ring);
    case NR_SAVED_BEGIN:
        restore->engine->earlier_version = saved->begin.start_version;
        return NR_OK;
    case NR_SAVED_SET:
        take_set(restore, &saved->set);
        return NR_OK;
    default:
        return NR_OK;
    }
}

static int read_payload(struct nr_restore *restore, const void *payload, uint64_t length)
{
    const uint8_t *at = payload;

    while (length > 0) {
        struct nr_saved_head head;
        union saved saved;

        EXPECT(length >= sizeof(head), "cut off");
        memcpy(&head, at, sizeof(head));
        uint32_t fixed = fixed_bytes(head.kind);
        EXPECT(fixed > 0, "of unknown kind %u", head.kind);
        EXPECT(head.length <= length - sizeof(head) && (variable(head.kind) ? head.length >= fixed : head.length == fixed),
               "of kind %u with %u bytes", head.kind, head.length);
        memcpy(&saved, at + sizeof(head), fixed);
        const uint8_t *rest = at + sizeof(head) + fixed;
        int status = restore->loading ? take_record(restore, head.kind, &saved, rest, head.length - fixed)
                                      : scan_record(restore, head.kind, &saved, rest, head.length - fixed);

        if (status != NR_OK)
            return status;
        at += sizeof(head) + head.length;
        length -= sizeof(head) + head.length;
        restore->offset += sizeof(head) + head.length;
    }
    return NR_OK;
}

int nr_restore_scan(struct nr_restore *restore, const void *payload, uint64_t length)
{
    return restore->loading ? NR_CLOSED : read_payload(restore, payload, length);
}

int nr_restore_take(struct nr_restore *restore, const void *payload, uint64_t length)
{
    return restore->loading && restore->engine != NULL ? read_payload(restore, payload, length) : NR_CLOSED;
}

/* ---- The end ---- */

/* Chains the free slots: those of the file's list in its order, so that later items get the slots that they would have got, then the
 * others. */
static void chain_free(struct old_table *old, struct nr_table *table)
{
    uint32_t *link = &table->free;

    for (uint32_t slot = old->head; slot < old->fresh && old->slots[slot].free && !old->listed[slot] && !occupied(table, slot);
         slot = old->slots[slot].after) {
        old->listed[slot] = 1;
        *link = slot;
        link = &table->order.links[slot].after;
    }
    for (uint32_t slot = 0; slot < table->fresh; slot++) {
        if (occupied(table, slot) || old->listed[slot])
            continue;
        *link = slot;
        link = &table->order.links[slot].after;
    }
    *link = NR_NONE;
}

static void place_all(const struct old_table *old, struct nr_table *table)
{
    for (uint32_t slot = table->order.oldest; slot != NR_NONE; slot = table->order.links[slot].after) {
        nr_remover_move(&table->remover, slot, old->removals[slot]);
        if (table->selector.ops->move != NULL && old->positions[slot] < table->order.size)
            table->selector.ops->move(&table->selector, slot, old->positions[slot]);
    }
}

static void finish_table(struct nr_restore *restore, struct old_table *old)
{
    struct nr_table *table = &restore->engine->tables[old->now];
    const struct nr_saved_table *saved = &old->saved;

    nr_selector_resume(&table->selector, saved->pass);
    if (old->keys) {
        for (uint32_t slot = table->order.oldest; slot != NR_NONE && saved->pass != 0; slot = table->order.links[slot].after) {
            if (old->drawn[slot] && nr_selector_running(&table->selector) == saved->pass)
                nr_selector_drawn(&table->selector, slot);
        }
        use_slots(table, old->fresh);
        chain_free(old, table);
        place_all(old, table);
        table->first_generations = saved->first_generations;
        table->first_offset = saved->first_offset + table->leap;
    }
    table->limiter.inserted = saved->inserted;
    table->limiter.committed = saved->committed;
    table->inserted_before = saved->inserted_before;
    table->resets = saved->resets;
    table->evicted_deleted = saved->evicted_deleted;
    table->evicted_reset = saved->evicted_reset;
    table->evicted_sampled = saved->evicted_sampled;
    table->evicted_age = saved->evicted_age;
    table->evicted_version = saved->evicted_version;
    /* The draws that items left without: those given up here, and those that left before they were written. */
    table->limiter.forfeited += saved->forfeited;
    for (uint64_t i = old->items; i < saved->size; i++)
        nr_limiter_left(&table->limiter, 0);
    table->draws = saved->draws;
    table->updated = saved->updated;
    table->stale = saved->stale;
    table->refused = saved->refused;
    table->evicted_capacity = saved->evicted_capacity;
    table->evicted_steps = saved->evicted_steps;
    table->saturated = saved->saturated;
    table->dropped = saved->dropped + saved->size - table->order.size;
    table->progress++;
}

int nr_restore_finish(struct nr_restore *restore)
{
    struct nr_engine *engine = restore->engine;

    if (!restore->loading || engine == NULL)
        return NR_CLOSED;
    for (uint32_t i = 0; i < restore->begin.stores; i++) {
        const struct old_store *store = &restore->stores[i];

        EXPECT(store->taken == store->steps, "another file than before");
        for (uint32_t number = 0; store->now != NR_NONE && number < store->steps; number++)
            EXPECT(store->uses[number] == 0, "another file than before");
    }
    for (uint32_t i = 0; i < restore->begin.tables; i++) {
        if (restore->tables[i].now != NR_NONE)
            finish_table(restore, &restore->tables[i]);
    }
    for (uint32_t i = 0; i < engine->store_count; i++)
        restore->streams_restored += engine->stores[i].open;
    memcpy(engine->random.state, restore->begin.random, sizeof(engine->random.state));
    return NR_OK;
}

void nr_restore_report(const struct nr_restore *restore, struct nr_restored *restored)
{
    *restored = (struct nr_restored){
        .steps = restore->counted.steps,
        .items = restore->counted.items,
        .streams = restore->counted.streams,
        .streams_restored = restore->streams_restored,
    };
    for (uint32_t i = 0; restore->tables != NULL && i < restore->begin.tables; i++) {
        const struct old_table *old = &restore->tables[i];

        if (restore->engine != NULL && old->now == NR_NONE)
            continue;
        restored->tables[restore->engine != NULL ? old->now : i] = (struct nr_restored_table){
            .items = old->items,
            .restored = restore->engine != NULL ? restore->engine->tables[old->now].order.size : 0,
            .capacity = old->saved.capacity,
            .found = 1,
            .keys = old->keys,
        };
    }
}
