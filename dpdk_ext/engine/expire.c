#include "engine/expire.h"

#include <string.h>

#include "engine/state.h"

enum {
    EVICTION = 6, /* accesses that an eviction takes beside those of its steps */
    AHEAD = 8,    /* slots whose records are asked for before they are looked at */
};

#define NO_VERSION UINT64_MAX /* the item's publication is not known */

bool nr_expiry_versioned(const struct nr_table_config *config, uint32_t sets)
{
    return config->version_set < sets && config->version_offset <= config->item_bytes &&
           config->item_bytes - config->version_offset >= sizeof(uint64_t);
}

void nr_expiry_init(struct nr_expiry *expiry, struct nr_arena *arena, const struct nr_table_config *config, uint32_t sets)
{
    *expiry = (struct nr_expiry){
        .slots = config->capacity + config->leases,
        .scanned = NR_NONE,
        .set = config->version_set,
        .offset = config->version_offset,
    };
    if (nr_expiry_versioned(config, sets))
        expiry->links = nr_arena_take(arena, (uint64_t)expiry->slots + NR_MAX_VERSIONS + 1, sizeof(struct nr_link));
}

bool nr_expire_limits_valid(const struct nr_table *table, const struct nr_limits *limits)
{
    return limits->versions <= (table->expiry.links != NULL ? NR_MAX_VERSIONS : 0);
}

/* ---- Circular lists ---- */

static void link_before(struct nr_link *links, uint32_t node, uint32_t next)
{
    uint32_t last = links[next].before;

    links[node] = (struct nr_link){.before = last, .after = next};
    links[last].after = node;
    links[next].before = node;
}

/* All of list `from` to the end of list `to`. */
static void splice(struct nr_link *links, uint32_t from, uint32_t to)
{
    uint32_t first = links[from].after, last = links[from].before, end = links[to].before;

    if (first == from)
        return;
    links[end].after = first;
    links[first].before = end;
    links[last].after = to;
    links[to].before = last;
    links[from] = (struct nr_link){from, from};
}

static uint32_t head_of(const struct nr_expiry *expiry, uint64_t publication)
{
    return expiry->slots + (uint32_t)(publication % NR_MAX_VERSIONS);
}

static uint32_t due_head(const struct nr_expiry *expiry)
{
    return expiry->slots + NR_MAX_VERSIONS;
}

void nr_expire_unlink(struct nr_expiry *expiry, uint32_t slot)
{
    if (expiry->versions == 0 || slot >= expiry->scanned)
        return;
    struct nr_link link = expiry->links[slot];

    expiry->links[link.before].after = link.after;
    expiry->links[link.after].before = link.before;
}

/* ---- Versions ---- */

/* The publication, counted from 1, that the columns name: since this start, or, after a restore, since that of the engine which wrote
 * the checkpoint, whose count goes on. What a still earlier start published counts as the one before the first: the item is at least
 * that far behind. */
static uint64_t publication_of(const struct nr_engine *engine, const struct nr_expiry *expiry, const void *columns)
{
    uint64_t version;

    memcpy(&version, (const uint8_t *)columns + expiry->offset, sizeof(version));
    if (version == 0)
        return NO_VERSION;
    if (version > engine->start_version)
        return version - engine->start_version;
    if (engine->earlier_version == 0 || version <= engine->earlier_version)
        return 0;
    version -= engine->earlier_version;
    return version < engine->earlier_counter ? version : engine->earlier_counter;
}

static const void *columns_of(const struct nr_table *table, uint32_t slot)
{
    return (const uint8_t *)nr_table_record(table, slot) + table->columns;
}

static uint64_t oldest_kept(uint64_t present, uint32_t versions)
{
    return present >= versions ? present - versions + 1 : 0;
}

/* Moves the lists whose publications are too old now. There are only so many. */
static void advance(const struct nr_engine *engine, struct nr_expiry *expiry)
{
    uint64_t present = engine->sets[expiry->set].counter, kept = oldest_kept(present, expiry->versions);

    for (uint64_t p = expiry->kept; p < kept && p - expiry->kept < NR_MAX_VERSIONS; p++)
        splice(expiry->links, head_of(expiry, p), due_head(expiry));
    expiry->kept = kept;
    expiry->seen = present;
}

static void put(const struct nr_engine *engine, struct nr_table *table, uint32_t slot)
{
    struct nr_expiry *expiry = &table->expiry;
    uint64_t publication = publication_of(engine, expiry, columns_of(table, slot));

    if (publication == NO_VERSION) { /* a list of its own, which leaving it leaves intact */
        expiry->links[slot] = (struct nr_link){slot, slot};
        return;
    }
    /* Of one that lies further ahead than there are lists the last will do: it is judged anew when its list is moved. */
    if (publication >= expiry->kept + NR_MAX_VERSIONS)
        publication = expiry->kept + NR_MAX_VERSIONS - 1;
    link_before(expiry->links, slot, publication < expiry->kept ? due_head(expiry) : head_of(expiry, publication));
}

void nr_expire_link(const struct nr_engine *engine, struct nr_table *table, uint32_t slot)
{
    struct nr_expiry *expiry = &table->expiry;

    if (expiry->versions == 0 || slot >= expiry->scanned)
        return;
    advance(engine, expiry);
    put(engine, table, slot);
}

bool nr_expire_late(const struct nr_engine *engine, const struct nr_table *table, const void *columns)
{
    const struct nr_expiry *expiry = &table->expiry;

    if (expiry->versions == 0)
        return false;
    uint64_t publication = publication_of(engine, expiry, columns);
    return publication != NO_VERSION && publication < oldest_kept(engine->sets[expiry->set].counter, expiry->versions);
}

/* Empty lists; every item is to be put into one. */
static void begin_scan(const struct nr_engine *engine, struct nr_expiry *expiry)
{
    for (uint32_t head = expiry->slots; head <= due_head(expiry); head++)
        expiry->links[head] = (struct nr_link){head, head};
    expiry->seen = engine->sets[expiry->set].counter;
    expiry->kept = oldest_kept(expiry->seen, expiry->versions);
    expiry->scanned = 0;
}

/* True: all items are in lists. */
static bool scan(const struct nr_engine *engine, struct nr_table *table, uint32_t *budget)
{
    struct nr_expiry *expiry = &table->expiry;

    while (expiry->scanned < table->fresh) {
        if (*budget == 0)
            return false;
        uint32_t slot = expiry->scanned++;

        --*budget;
        if (slot + AHEAD < table->fresh)
            __builtin_prefetch(nr_table_record(table, slot + AHEAD));
        if ((nr_table_record(table, slot)->key & NR_KEY_GONE) == 0)
            put(engine, table, slot);
    }
    expiry->scanned = NR_NONE;
    return true;
}

void nr_expire_configure(struct nr_engine *engine, struct nr_table *table, const struct nr_limits *limits)
{
    struct nr_expiry *expiry = &table->expiry;
    uint32_t before = expiry->versions;

    expiry->max_age = limits->max_age_ns;
    expiry->versions = limits->versions;
    if (limits->versions == before || limits->versions == 0)
        return;
    uint64_t kept = oldest_kept(expiry->seen, expiry->versions);
    if (before == 0)
        begin_scan(engine, expiry);
    else if (kept < expiry->kept) /* what was due and is not any more goes back into its list when its turn comes */
        expiry->kept = kept;
}

/* ---- Leaving ---- */

static bool aged(const struct nr_table *table, uint32_t slot, uint64_t now)
{
    return table->expiry.max_age != 0 && now >= table->born[slot] && now - table->born[slot] >= table->expiry.max_age;
}

/* Evicts the item if the budget allows it. */
static bool leave(struct nr_engine *engine, struct nr_table *table, uint32_t slot, uint64_t *counter, uint32_t *budget)
{
    uint32_t cost = EVICTION + nr_record_steps(nr_table_record(table, slot));

    if (*budget < cost && *budget < NR_EXPIRE_QUANTUM) /* a whole quantum is enough for any one item */
        return false;
    *budget -= cost < *budget ? cost : *budget;
    nr_table_evict(table, &nr_engine_store_of(engine, table)->slab, slot);
    ++*counter;
    return true;
}

static bool expire(struct nr_engine *engine, struct nr_table *table, uint64_t now, uint32_t *budget)
{
    struct nr_expiry *expiry = &table->expiry;

    while (table->order.oldest != NR_NONE && aged(table, table->order.oldest, now)) {
        if (!leave(engine, table, table->order.oldest, &table->evicted_age, budget))
            return false;
    }
    if (expiry->versions == 0)
        return true;
    advance(engine, expiry);
    if (expiry->scanned != NR_NONE && !scan(engine, table, budget))
        return false;
    for (uint32_t head = due_head(expiry), slot; (slot = expiry->links[head].after) != head;) {
        if (nr_expire_late(engine, table, columns_of(table, slot))) {
            if (!leave(engine, table, slot, &table->evicted_version, budget))
                return false;
        } else {
            if (*budget < EVICTION)
                return false;
            *budget -= EVICTION;
            nr_expire_unlink(expiry, slot);
            put(engine, table, slot);
        }
    }
    return true;
}

bool nr_expire(struct nr_engine *engine, struct nr_table *table, uint64_t now, uint32_t *budget)
{
    uint32_t before = *budget;

    if (!nr_expiry_limited(&table->expiry))
        return true;
    bool done = expire(engine, table, now, budget);
    table->progress += *budget != before;
    return done;
}

bool nr_expire_due(const struct nr_engine *engine, const struct nr_table *table, uint32_t slot, uint64_t now)
{
    return aged(table, slot, now) || nr_expire_late(engine, table, columns_of(table, slot));
}
