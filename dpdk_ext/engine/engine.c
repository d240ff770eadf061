#include "engine/engine.h"

#include <math.h>

#include "engine/state.h"
#include "engine/view.h"

/* ---- What a configuration may say ---- */

static bool store_valid(const struct nr_store_config *config)
{
    return config->step_bytes >= 1 && config->step_bytes <= NR_MAX_STEP_BYTES && config->observation_bytes >= 1 &&
           config->observation_bytes <= config->step_bytes && config->window >= 1 && config->window <= NR_MAX_WINDOW &&
           config->in_flight >= 1 && config->in_flight <= INT32_MAX && config->streams >= 1 && config->steps < NR_NONE &&
           /* One stream alone must not fill the slab with steps that it still may use. */
           config->steps >= config->window - 1 + config->in_flight;
}

static bool gathers_valid(const struct nr_gather *gathers, const struct nr_table_config *table, const struct nr_store_config *store)
{
    for (uint32_t i = 0; i < table->gather_count; i++) {
        const struct nr_gather *a = &gathers[i];

        if (a->length == 0 || a->from_end > 1 || a->inside > 1 || a->more >= NR_MAX_WINDOW ||
            (uint64_t)a->source + a->length > store->step_bytes || a->target < NR_ROW_HEAD + table->item_bytes ||
            a->target + nr_gather_bytes(a) > table->row_bytes)
            return false;
        for (uint32_t j = 0; j < i; j++) {
            const struct nr_gather *b = &gathers[j];

            if (a->target < b->target + nr_gather_bytes(b) && b->target < a->target + nr_gather_bytes(a))
                return false;
        }
    }
    return true;
}

static bool table_valid(const struct nr_engine_config *config, const struct nr_table_config *table)
{
    if (table->store >= config->store_count)
        return false;
    const struct nr_store_config *store = &config->stores[table->store];
    return table->capacity >= 1 && table->leases >= 1 && (uint64_t)table->capacity + table->leases <= INT32_MAX &&
           nr_selector_find(table->sampler) != NULL && nr_remover_find(table->remover) != NULL &&
           (table->sampler != NR_SAMPLER_TOP_K || table->top >= 1) && isfinite(table->exponent) && table->exponent >= 0 &&
           nr_limits_valid(&table->limits, table->capacity) &&
           table->limits.versions <= (nr_expiry_versioned(table, config->set_count) ? NR_MAX_VERSIONS : 0) && table->window >= 1 &&
           table->window <= store->window && table->row_bytes % 8 == 0 && table->item_bytes <= NR_MAX_ITEM_COLUMNS &&
           table->row_bytes >= NR_ROW_HEAD + table->item_bytes && table->gather_count <= NR_MAX_GATHERS &&
           (table->gather_count == 0 || gathers_valid(config->gathers + table->first_gather, table, store));
}

static bool config_valid(const struct nr_engine_config *config)
{
    uint64_t streams = 0;

    if (config->store_count > NR_MAX_STORES || config->table_count > NR_MAX_TABLES || config->set_count > NR_MAX_SETS ||
        config->shard > UINT8_MAX || config->start_seconds > UINT32_MAX)
        return false;
    for (uint32_t i = 0; i < config->store_count; i++) {
        if (!store_valid(&config->stores[i]))
            return false;
        streams += config->stores[i].streams;
    }
    /* At least 8 bits of a handle are its generation. */
    if (streams >= 1u << 24)
        return false;
    for (uint32_t i = 0; i < config->table_count; i++) {
        if (!table_valid(config, &config->tables[i]))
            return false;
    }
    return true;
}

/* ---- Layout ---- */

/* At least 2^(g - 8), so that keys given after a checkpoint, and lost, match no later item; and another at each start, so that this
 * holds too for what one start after the checkpoint gives and the next start after the same checkpoint gives again. */
static uint64_t leap_of(const struct nr_table *table, uint64_t start)
{
    uint64_t least = (uint64_t)1 << (table->generation_bits - 8);

    return least + (nr_random_mix(start) & (least - 1));
}

/* Cuts the arena up and fills in what has no memory of its own. On an arena without memory it only reckons. */
static void lay_out(struct nr_engine *engine, struct nr_arena *arena, const struct nr_engine_config *config)
{
    uint32_t streams = 0;

    engine->stores = nr_arena_take(arena, config->store_count, sizeof(struct nr_store));
    engine->tables = nr_arena_take(arena, config->table_count, sizeof(struct nr_table));
    engine->sets = nr_arena_take(arena, config->set_count, sizeof(struct nr_set));
    for (uint32_t i = 0; i < config->store_count; i++) {
        struct nr_store scratch;

        nr_store_init(arena->base != NULL ? &engine->stores[i] : &scratch, arena, &config->stores[i], streams);
        streams += config->stores[i].streams;
    }
    uint64_t secret[2] = {nr_random_next(&engine->random), nr_random_next(&engine->random)};
    nr_streams_init(&engine->streams, arena, streams, secret);
    for (uint32_t i = 0; i < config->table_count; i++) {
        struct nr_table scratch;

        nr_table_init(arena->base != NULL ? &engine->tables[i] : &scratch, arena, &config->tables[i], config->set_count);
    }
    for (uint32_t i = 0; i < config->set_count; i++) {
        for (int j = 0; j < 2; j++) {
            uint8_t *bytes = nr_arena_take(arena, config->sets[i].bytes, 1);

            if (arena->base != NULL) {
                engine->sets[i].buffers[j].bytes = bytes;
                engine->sets[i].room = config->sets[i].bytes;
            }
        }
    }
}

uint64_t nr_engine_bytes(const struct nr_engine_config *config, int *status)
{
    struct nr_engine scratch = {.arena = {0}};

    *status = config_valid(config) ? NR_OK : NR_BAD_CONFIG;
    if (*status != NR_OK)
        return 0;
    nr_arena_take(&scratch.arena, 1, sizeof(struct nr_engine));
    lay_out(&scratch, &scratch.arena, config);
    return scratch.arena.used;
}

struct nr_engine *nr_engine_create(const struct nr_engine_config *config, int *status)
{
    struct nr_arena arena = {0};
    uint64_t bytes = nr_engine_bytes(config, status);

    if (*status != NR_OK)
        return NULL;
    if (!nr_arena_open(&arena, bytes)) {
        *status = NR_NO_MEMORY;
        return NULL;
    }
    struct nr_engine *engine = nr_arena_take(&arena, 1, sizeof(struct nr_engine));
    nr_random_seed(&engine->random, config->seed);
    lay_out(engine, &arena, config);
    engine->arena = arena;
    engine->lease_ns = config->lease_ns;
    engine->start_version = (config->start_seconds << 32) + config->first_version;
    engine->store_count = config->store_count;
    engine->table_count = config->table_count;
    engine->set_count = config->set_count;
    for (uint32_t i = config->table_count; i-- > 0;) {
        struct nr_table *table = &engine->tables[i];
        struct nr_store *store = nr_engine_store_of(engine, table);

        nr_table_plan(table, config->tables[i].gather_count > 0 ? config->gathers + config->tables[i].first_gather : NULL,
                      config->tables[i].gather_count);
        nr_expire_configure(engine, table, &config->tables[i].limits);
        table->shard = (uint64_t)config->shard << NR_KEY_BITS;
        table->first_generations = nr_random_next(&engine->random);
        table->leap = leap_of(table, engine->start_version);
        table->next_of_store = store->first_table;
        store->first_table = i;
    }
    return engine;
}

void nr_engine_destroy(struct nr_engine *engine)
{
    if (engine != NULL) {
        struct nr_arena arena = engine->arena;

        nr_arena_close(&arena);
    }
}

/* ---- Limits ---- */

int nr_table_limits(const struct nr_engine *engine, uint32_t table_index, struct nr_limits *limits)
{
    *limits = (struct nr_limits){0};
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    *limits = engine->tables[table_index].limiter.limits;
    return NR_OK;
}

int nr_table_configure(struct nr_engine *engine, uint32_t table_index, const struct nr_limits *limits)
{
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    struct nr_table *table = &engine->tables[table_index];

    if (!nr_limits_valid(limits, table->capacity) || !nr_expire_limits_valid(table, limits))
        return NR_BAD_LIMITS;
    nr_limiter_set(&table->limiter, limits);
    nr_expire_configure(engine, table, limits);
    table->progress++;
    return NR_OK;
}

/* ---- Looking ---- */

uint32_t nr_engine_store_count(const struct nr_engine *engine)
{
    return engine->store_count;
}

uint32_t nr_engine_table_count(const struct nr_engine *engine)
{
    return engine->table_count;
}

uint32_t nr_engine_set_count(const struct nr_engine *engine)
{
    return engine->set_count;
}

uint32_t nr_engine_streams(const struct nr_engine *engine)
{
    uint32_t open = 0;

    for (uint32_t i = 0; i < engine->store_count; i++)
        open += engine->stores[i].open;
    return open;
}

uint32_t nr_engine_lent(const struct nr_engine *engine)
{
    uint32_t lent = 0;

    for (uint32_t i = 0; i < engine->store_count; i++)
        lent += engine->stores[i].slab.lent;
    return lent;
}

int nr_table_info(const struct nr_engine *engine, uint32_t table_index, struct nr_table_info *info)
{
    *info = (struct nr_table_info){0};
    if (table_index >= engine->table_count)
        return NR_NO_TABLE;
    const struct nr_table *table = &engine->tables[table_index];
    const struct nr_selector *selector = &table->selector;
    const struct nr_slab *slab = &nr_engine_store_of(engine, table)->slab;
    *info = (struct nr_table_info){
        .size = table->order.size,
        .capacity = table->capacity,
        .min_size = table->limiter.limits.min_size,
        .inserted = table->limiter.inserted,
        .sampled = table->limiter.committed,
        .reserved = table->limiter.reserved,
        .updated = table->updated,
        .stale = table->stale,
        .refused = table->refused,
        .evicted_capacity = table->evicted_capacity,
        .evicted_steps = table->evicted_steps,
        .evicted_deleted = table->evicted_deleted,
        .evicted_reset = table->evicted_reset,
        .max_age_ns = table->limiter.limits.max_age_ns,
        .samples_per_insert = table->limiter.limits.samples_per_insert,
        .least = table->limiter.limits.least,
        .most = table->limiter.limits.most,
        .max_sampled = table->limiter.limits.max_sampled,
        .versions = table->limiter.limits.versions,
        .evicted_sampled = table->evicted_sampled,
        .evicted_age = table->evicted_age,
        .evicted_version = table->evicted_version,
        .saturated = table->saturated,
        .leased = table->leased,
        .total = selector->ops->total(selector),
        .max_leaf = selector->ops->leaf(selector, nr_extremes_largest(&table->extremes)),
        .min_leaf = selector->ops->leaf(selector, nr_extremes_least(&table->extremes)),
        .max_priority = nr_extremes_largest(&table->extremes),
        .steps = slab->used,
        .steps_capacity = slab->count,
        .item_bytes_held = ((uint64_t)table->order.size + table->leftovers) * table->stride,
        .step_bytes_held = (uint64_t)slab->used * slab->stride,
    };
    return NR_OK;
}

uint32_t nr_table_row_bytes(const struct nr_engine *engine, uint32_t table_index)
{
    return table_index < engine->table_count ? engine->tables[table_index].row_bytes : 0;
}

uint32_t nr_table_item_bytes(const struct nr_engine *engine, uint32_t table_index)
{
    return table_index < engine->table_count ? engine->tables[table_index].item_bytes : 0;
}

uint64_t nr_table_progress(const struct nr_engine *engine, uint32_t table_index)
{
    if (table_index >= engine->table_count)
        return 0;
    const struct nr_table *table = &engine->tables[table_index];
    return table->progress + nr_engine_store_of(engine, table)->slab.freed;
}

const void *nr_engine_memory(const struct nr_engine *engine, uint64_t *bytes)
{
    *bytes = engine->arena.bytes;
    return engine->arena.base;
}
