/* Actors: staging a call, committing or rolling it back, and the keys that come back. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { FIRST_ITEMS = 64 /* places of a new actor's item queue and of its keys */ };

static _Atomic uint64_t last_id;

void nr_actor_free(struct nr_actor *actor)
{
    nr_formers_free(actor->formers);
    nr_history_free(&actor->history);
    free(actor->episodes);
    free(actor->rewards);
    free(actor->kinds);
    free(actor->queue);
    free(actor->keys);
    free(actor->stream);
    free(actor->written);
    free(actor);
}

static int check_config(const struct nr_replay *replay, const struct nr_actor_config *config)
{
    if (replay->layout == NULL)
        return NR_BAD_CONFIG;

    const struct nr_engine_config *layout = &replay->layout->config;

    if (config->store >= layout->store_count)
        return NR_NO_STORE;
    if (config->streams == 0 || config->autoreset > NR_AUTORESET_SAME_STEP || config->former_count > NR_MAX_TABLES)
        return NR_BAD_CONFIG;
    for (uint32_t i = 0; i < config->former_count; i++) {
        const struct nr_former_config *former = &config->formers[i];

        if (former->table >= layout->table_count)
            return NR_NO_TABLE;
        if (layout->tables[former->table].store != config->store ||
            (uint64_t)former->stack + former->n > layout->tables[former->table].window)
            return NR_BAD_CONFIG;
    }
    return NR_OK;
}

static int allocate(struct nr_actor *actor, const struct nr_actor_config *config)
{
    const struct nr_engine_config *layout = &actor->replay->layout->config;
    const struct nr_store_config *store = &layout->stores[config->store];
    uint32_t item_bytes[NR_MAX_TABLES];
    size_t streams = config->streams;
    int status;

    for (uint32_t i = 0; i < config->former_count; i++)
        item_bytes[i] = layout->tables[config->formers[i].table].item_bytes;
    actor->formers = nr_formers_create(config->former_count, config->formers, item_bytes, &status);
    if (actor->formers == NULL)
        return status;
    status = nr_history_open(&actor->history, config, store, actor->replay->backend->places(store));
    if (status != NR_OK)
        return status;
    actor->episodes = calloc(streams, 2 * sizeof(*actor->episodes));
    actor->rewards = calloc(streams, actor->formers->reward_ring * sizeof(float));
    actor->kinds = calloc(streams, 1);
    actor->stream = calloc(streams, sizeof(*actor->stream));
    actor->written = calloc(streams, 2 * sizeof(*actor->written));
    actor->queue = malloc(FIRST_ITEMS * sizeof(*actor->queue));
    actor->queue_size = FIRST_ITEMS;
    actor->keys = malloc(FIRST_ITEMS * sizeof(*actor->keys));
    actor->keys_size = FIRST_ITEMS;
    if (actor->episodes == NULL || actor->rewards == NULL || actor->kinds == NULL || actor->stream == NULL ||
        actor->written == NULL || actor->queue == NULL || actor->keys == NULL)
        return NR_NO_MEMORY;
    actor->saved = actor->episodes + streams;
    actor->next_item = actor->written + streams;
    return NR_OK;
}

struct nr_actor *nr_actor_open(struct nr_replay *replay, const struct nr_actor_config *config, int *status)
{
    struct nr_actor *actor = NULL;

    *status = nr_enter(replay);
    if (*status != NR_OK)
        return NULL;
    *status = check_config(replay, config);
    if (*status == NR_OK) {
        actor = calloc(1, sizeof(*actor));
        if (actor == NULL)
            *status = NR_NO_MEMORY;
    }
    if (actor != NULL) {
        actor->replay = replay;
        actor->id = atomic_fetch_add(&last_id, 1) + 1;
        actor->store = config->store;
        actor->streams = config->streams;
        actor->autoreset = config->autoreset;
        *status = allocate(actor, config);
        if (*status == NR_OK)
            *status = replay->backend->actor_open(actor);
        if (*status == NR_OK) {
            actor->next = replay->actors;
            replay->actors = actor;
        } else {
            nr_actor_free(actor);
            actor = NULL;
        }
    }
    nr_leave(replay);
    return actor;
}

static void roll_back(struct nr_actor *actor)
{
    if (!actor->staging)
        return;
    memcpy(actor->episodes, actor->saved, actor->streams * sizeof(*actor->saved));
    actor->staged = actor->committed;
    actor->staging = 0;
}

void nr_actor_close(struct nr_actor *actor)
{
    struct nr_replay *replay = actor->replay;

    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    roll_back(actor);

    struct nr_actor **link = &replay->actors;

    while (*link != actor)
        link = &(*link)->next;
    *link = actor->next;
    actor->dead = 1;
    if (replay->backend->actor_close(actor))
        nr_actor_free(actor);
    nr_leave(replay);
}

/* ---- Staging ---- */

/* Fills kinds. NR_BAD_COUNT with *row when a row contradicts the mode or lacks what a step needs. */
static int check_rows(struct nr_actor *actor, const struct nr_rows *rows, const uint8_t *end_mask, uint32_t *row)
{
    bool whole = rows->reward != NULL && rows->terminated != NULL && rows->truncated != NULL;

    for (uint32_t i = actor->history.observation_columns; i < actor->history.column_count; i++)
        whole = whole && rows->column[i] != NULL;
    for (uint32_t r = 0; r < actor->streams; r++) {
        bool end = end_mask != NULL && end_mask[r];
        bool done = whole && (rows->terminated[r] || rows->truncated[r]);
        bool final = rows->final != NULL && rows->final_mask != NULL && rows->final_mask[r];
        int kind = nr_row_kind(&actor->episodes[r], actor->autoreset, end, done, final);

        if (kind == 0 || ((kind & NR_ROW_STEP) && !whole)) {
            *row = r;
            return NR_BAD_COUNT;
        }
        actor->kinds[r] = (uint8_t)kind;
    }
    return NR_OK;
}

static uint32_t steps_of(int kind)
{
    return kind == NR_ROW_BOTH ? 2 : 1;
}

/* The credits of every stream suffice for its row. */
static int poll_room(void *what, uint64_t now)
{
    struct nr_actor *actor = what;

    (void)now;
    for (uint32_t r = 0; r < actor->streams; r++) {
        int status = actor->replay->backend->room(actor, r, steps_of(actor->kinds[r]));

        if (status != NR_OK)
            return status;
    }
    return NR_OK;
}

/* Room in the queue for what the call may form. */
static int reserve_queue(struct nr_actor *actor, uint64_t items)
{
    uint64_t live = actor->committed - actor->head;

    if (actor->committed - actor->queue_base + items <= actor->queue_size)
        return NR_OK;
    if (live != 0)
        memmove(actor->queue, nr_actor_item(actor, actor->head), live * sizeof(*actor->queue));
    actor->queue_base = actor->head;
    if (live + items > actor->queue_size) {
        uint64_t size = (live + items) * 2;
        struct nr_formed *queue = realloc(actor->queue, size * sizeof(*queue));

        if (queue == NULL)
            return NR_NO_MEMORY;
        actor->queue = queue;
        actor->queue_size = size;
    }
    return NR_OK;
}

/* The same for their keys. Beyond NR_KEPT_KEYS the oldest are dropped, so that an actor that never asks for them does not grow. */
static int reserve_keys(struct nr_actor *actor, uint64_t items)
{
    uint64_t held = actor->committed - actor->kept + items;
    uint64_t spare = actor->decided - actor->kept;
    uint64_t drop = held > NR_KEPT_KEYS ? held - NR_KEPT_KEYS : 0;
    uint64_t size = actor->keys_size;

    if (held <= size)
        return NR_OK;
    if (drop > spare)
        drop = spare;
    while (size < held - drop)
        size *= 2;
    if (size != actor->keys_size) {
        struct nr_kept_key *keys = malloc(size * sizeof(*keys));

        if (keys == NULL)
            return NR_NO_MEMORY;
        for (uint64_t i = actor->kept + drop; i < actor->committed; i++)
            keys[i & (size - 1)] = actor->keys[i & (actor->keys_size - 1)];
        free(actor->keys);
        actor->keys = keys;
        actor->keys_size = size;
    }
    actor->kept += drop;
    actor->counters.keys_dropped += drop;
    return NR_OK;
}

static void form_rows(struct nr_actor *actor, const struct nr_rows *rows)
{
    const struct nr_formers *formers = actor->formers;

    memcpy(actor->saved, actor->episodes, actor->streams * sizeof(*actor->saved));
    actor->staging = 1;
    actor->dropped = 0;
    for (uint32_t r = 0; r < actor->streams; r++) {
        bool step = (actor->kinds[r] & NR_ROW_STEP) != 0;

        actor->staged += nr_form(formers, &actor->episodes[r], actor->rewards + (size_t)r * formers->reward_ring, actor->kinds[r],
                                 step ? rows->reward[r] : 0, step && rows->terminated[r], step && rows->truncated[r],
                                 actor->version, r, nr_actor_item(actor, actor->staged), &actor->dropped);
    }
}

static void take_bytes(struct nr_actor *actor, const struct nr_rows *rows)
{
    for (uint32_t r = 0; r < actor->streams; r++) {
        uint64_t number = actor->saved[r].next;

        if (actor->kinds[r] & NR_ROW_STEP)
            nr_history_take(&actor->history, r, number++, rows);
        if (actor->kinds[r] == NR_ROW_FINAL)
            nr_history_take_final(&actor->history, r, number, rows->column, rows->row_stride);
        else if (actor->kinds[r] == NR_ROW_BOTH)
            nr_history_take_final(&actor->history, r, number, rows->final, rows->final_stride);
    }
}

int nr_actor_stage(struct nr_actor *actor, const struct nr_rows *rows, const uint8_t *end_mask, uint64_t wait_ns, uint32_t *items,
                   uint32_t *row)
{
    struct nr_replay *replay = actor->replay;
    int status = nr_enter(replay);

    *items = 0;
    *row = 0;
    if (status != NR_OK)
        return status;
    roll_back(actor);
    status = check_rows(actor, rows, end_mask, row);
    if (status == NR_OK) {
        status = poll_room(actor, 0);
        if (status == NR_PENDING) {
            replay->stalls++;
            status = nr_await(replay, poll_room, actor, wait_ns);
        }
    }
    if (status == NR_OK)
        status = reserve_queue(actor, (uint64_t)actor->formers->most * actor->streams);
    if (status == NR_OK)
        status = reserve_keys(actor, (uint64_t)actor->formers->most * actor->streams);
    if (status == NR_OK) {
        form_rows(actor, rows);
        *items = (uint32_t)(actor->staged - actor->committed);
    }
    nr_leave(replay);
    if (status == NR_OK)
        take_bytes(actor, rows);
    return status;
}

int nr_actor_staged(struct nr_actor *actor, uint32_t *table, uint32_t *row)
{
    if (actor->replay->generation != nr_fork_generation())
        return NR_FORKED;
    for (uint64_t i = actor->committed; i < actor->staged; i++) {
        const struct nr_formed *formed = nr_actor_item(actor, i);

        *table++ = actor->formers->former[formed->former].config.table;
        *row++ = formed->row;
    }
    return NR_OK;
}

int nr_actor_staged_rows(struct nr_actor *actor, uint32_t table, void *rows)
{
    const struct nr_engine_config *layout = &actor->replay->layout->config;
    uint8_t *target = rows;

    if (actor->replay->generation != nr_fork_generation())
        return NR_FORKED;
    if (table >= layout->table_count)
        return NR_NO_TABLE;
    for (uint64_t i = actor->committed; i < actor->staged; i++) {
        const struct nr_formed *formed = nr_actor_item(actor, i);

        if (actor->formers->former[formed->former].config.table != table)
            continue;
        nr_history_show(&actor->history, &layout->tables[table], layout->gathers, formed, target);
        target += layout->tables[table].row_bytes;
    }
    return NR_OK;
}

void nr_actor_rollback(struct nr_actor *actor)
{
    struct nr_replay *replay = actor->replay;

    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    roll_back(actor);
    pthread_mutex_unlock(&replay->mutex);
}

int nr_actor_commit(struct nr_actor *actor, const double *priority)
{
    struct nr_replay *replay = actor->replay;
    int status = nr_enter(replay);

    if (status != NR_OK)
        return status;
    if (actor->staging) {
        for (uint64_t i = actor->committed; i < actor->staged; i++) {
            struct nr_item *item = &nr_actor_item(actor, i)->item;

            item->flags = priority == NULL ? NR_ITEM_DEFAULT_PRIORITY : 0;
            item->priority = priority == NULL ? 0 : priority[i - actor->committed];
            actor->keys[i & (actor->keys_size - 1)] = (struct nr_kept_key){.key = NR_KEY_NONE, .status = NR_PENDING};
        }
        for (uint32_t r = 0; r < actor->streams; r++) {
            actor->counters.steps += steps_of(actor->kinds[r]);
            actor->counters.episodes += (actor->kinds[r] & NR_ROW_FINAL) != 0;
        }
        actor->counters.items += actor->staged - actor->committed;
        actor->counters.truncated_dropped += actor->dropped;
        actor->committed = actor->staged;
        actor->staging = 0;
        replay->backend->push(actor, nr_clock());
    }
    nr_leave(replay);
    return NR_OK;
}

/* ---- What comes back ---- */

void nr_actor_decide(struct nr_actor *actor, uint64_t number, int status, uint64_t key)
{
    struct nr_kept_key *kept = &actor->keys[number & (actor->keys_size - 1)];

    if (status == NR_OK || status == NR_DUPLICATE)
        actor->counters.acknowledged++;
    else
        actor->counters.refused++;
    *kept = (struct nr_kept_key){.key = key, .status = status};
    while (actor->decided < actor->committed && actor->keys[actor->decided & (actor->keys_size - 1)].status != NR_PENDING)
        actor->decided++;
}

uint64_t nr_actor_keys(struct nr_actor *actor, uint64_t capacity, uint64_t *keys, int32_t *statuses)
{
    struct nr_replay *replay = actor->replay;
    uint64_t count;

    if (replay->generation != nr_fork_generation())
        return 0;
    nr_lock(replay);
    count = actor->decided - actor->kept;
    if (capacity != 0) {
        if (count > capacity)
            count = capacity;
        for (uint64_t i = 0; i < count; i++) {
            const struct nr_kept_key *kept = &actor->keys[(actor->kept + i) & (actor->keys_size - 1)];

            keys[i] = kept->key;
            statuses[i] = kept->status;
        }
        actor->kept += count;
    }
    pthread_mutex_unlock(&replay->mutex);
    return count;
}

void nr_actor_counters(struct nr_actor *actor, struct nr_actor_counters *counters)
{
    struct nr_replay *replay = actor->replay;

    memset(counters, 0, sizeof(*counters));
    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    *counters = actor->counters;
    pthread_mutex_unlock(&replay->mutex);
}

void nr_actor_version(struct nr_actor *actor, uint64_t version)
{
    struct nr_replay *replay = actor->replay;

    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    actor->version = version;
    pthread_mutex_unlock(&replay->mutex);
}
