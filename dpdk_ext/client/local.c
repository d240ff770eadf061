/* The replay in this process: the engine behind the replay's mutex. What cannot be done at once (an insert without space, a
 * sample below the table's minimum) is tried again, first come first served, whenever another call may have made it possible. */
#include "local.h"
#include "../engine/maintain.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "../loop/checkpointer.h"

enum {
    OWNER = 1,          /* of every stream */
    AHEAD = 8,          /* steps that an actor may stage while earlier ones wait for space */
    NAP_NS = 100000,    /* of a checkpoint, while blocks are written */
    ACCESSES = 4096,       /* of memory, about, that one call spends on items that must leave */
    RETRY_NS = 5000000, /* how soon a publication waiting for readers' patience looks again */
};

/* A part's own memory. */
struct part_draw {
    struct nr_draw draw;
    struct nr_draw_entry entries[NR_SAMPLE_PART];
};

/* ---- Inserting ---- */

static uint32_t local_places(const struct nr_store_config *store)
{
    return store->window + AHEAD;
}

static int local_actor_open(struct nr_actor *actor)
{
    struct nr_engine *engine = nr_local_of(actor->replay)->engine;

    for (uint32_t r = 0; r < actor->streams; r++) {
        struct nr_stream_position position;
        uint8_t id[16];
        int status = getrandom(id, sizeof(id), 0) == sizeof(id) ? NR_OK : NR_SYSTEM;

        if (status == NR_OK)
            status = nr_stream_open(engine, actor->store, id, OWNER, &position);
        if (status != NR_OK) {
            while (r-- > 0)
                nr_stream_close(engine, actor->stream[r], OWNER);
            return status;
        }
        actor->stream[r] = position.handle;
    }
    return NR_OK;
}

/* Steps of the stream below `end` into the engine, as far as they go. */
static int write_steps(struct nr_actor *actor, uint32_t stream, uint64_t end, uint64_t now)
{
    struct nr_engine *engine = nr_local_of(actor->replay)->engine;

    while (actor->written[stream] < end) {
        uint64_t number = actor->written[stream];
        uint32_t total = nr_history_total(&actor->history, stream, number);
        struct nr_wait wait;
        int status = nr_step_write(engine, actor->stream[stream], OWNER, number, total, 0,
                                   nr_history_step(&actor->history, stream, number), total, now, &wait);

        if (nr_is_wait(status)) {
            actor->replay->append_wait = wait;
            return status;
        }
        actor->written[stream]++;
    }
    return NR_OK;
}

/* Gives the engine what is committed, in order, until something waits. Items are decided as they go in. */
static int push_items(struct nr_actor *actor, uint64_t now)
{
    struct nr_engine *engine = nr_local_of(actor->replay)->engine;

    for (; actor->head < actor->committed; actor->head++) {
        struct nr_formed *formed = nr_actor_item(actor, actor->head);
        uint32_t stream = formed->row;
        struct nr_wait wait;
        uint64_t key;
        int status = write_steps(actor, stream, formed->item.first_step + formed->item.steps, now);

        if (status != NR_OK)
            return status;
        formed->item.number = actor->next_item[stream];
        formed->item.columns = formed->columns;
        status = nr_item_insert(engine, actor->formers->former[formed->former].config.table, actor->stream[stream], OWNER,
                                &formed->item, now, &key, &wait);
        if (nr_is_wait(status)) {
            actor->replay->append_wait = wait;
            return status;
        }
        actor->next_item[stream]++;
        nr_actor_decide(actor, actor->head, status, key);
    }
    for (uint32_t r = 0; r < actor->streams; r++) {
        int status = write_steps(actor, r, nr_actor_end_of(actor, r), now);

        if (status != NR_OK)
            return status;
    }
    return NR_OK;
}

static bool behind(const struct nr_actor *actor)
{
    if (actor->head < actor->committed)
        return true;
    for (uint32_t r = 0; r < actor->streams; r++) {
        if (actor->written[r] < nr_actor_end_of(actor, r))
            return true;
    }
    return false;
}

/* ---- Sampling ---- */

static struct part_draw *draw_of(const struct nr_sample_part *part)
{
    return (struct part_draw *)part->own;
}

/* Draws the parts that are not drawn yet, as far as that goes. */
static void draw_parts(struct nr_sample *sample, uint64_t now)
{
    struct nr_engine *engine = nr_local_of(sample->replay)->engine;

    while (sample->done < sample->parts) {
        struct nr_sample_part *part = &sample->part[sample->done];
        struct nr_draw *draw = &draw_of(part)->draw;
        uint8_t *rows = sample->rows + (size_t)sample->done * sample->part_rows * sample->row_bytes;
        uint64_t bytes = (uint64_t)part->count * sample->row_bytes, offset = 0;

        draw->entries = draw_of(part)->entries;

        int status = sample->keys == NULL
                         ? nr_draw_open(engine, sample->table, part->count, draw, now, &sample->wait)
                         : nr_draw_open_keys(engine, sample->table, part->count,
                                             sample->keys + (size_t)sample->done * sample->part_rows, draw, now, &sample->wait);

        if (nr_is_wait(status)) {
            nr_local_of(sample->replay)->leaving |= status == NR_WAIT_LEAVING;
            return;
        }
        while (status == NR_OK && offset < bytes) {
            uint32_t length = bytes - offset < 1u << 30 ? (uint32_t)(bytes - offset) : 1u << 30;

            status = nr_draw_copy(engine, draw, offset, rows + offset, length);
            offset += length;
        }
        if (status != NR_OK) {
            nr_draw_settle(engine, draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
            sample->status = status;
            return;
        }
        nr_draw_settle(engine, draw, NR_SETTLE_RELEASE);
        part->head = draw->head;
        part->whole = 1;
        sample->done++;
    }
    sample->status = NR_OK;
    memset(&sample->wait, 0, sizeof(sample->wait));
}

/* Tries the waiting samples by age; one that must wait holds back the later ones of its table. */
static bool draw_waiting(struct nr_local *local, uint64_t now)
{
    struct nr_sample **link = &local->first_waiting;
    bool drawn = false;

    memset(local->passed, 0, local->replay.layout->config.table_count);
    while (*link != NULL) {
        struct nr_sample *sample = *link;

        if (!local->passed[sample->table] || sample->keys != NULL) { /* what only looks waits for nobody */
            draw_parts(sample, now);
            if (sample->status != NR_PENDING) {
                *link = sample->waiting;
                drawn = true;
                continue;
            }
            local->passed[sample->table] |= sample->keys == NULL;
        }
        link = &sample->waiting;
    }
    local->last_waiting = link;
    return drawn;
}

/* ---- Progress ---- */

static bool push_blocked(struct nr_local *local, uint64_t now)
{
    bool moved = false;

    local->blocked_actors = 0;
    for (struct nr_actor *actor = local->replay.actors; actor != NULL; actor = actor->next) {
        if (!behind(actor))
            continue;
        if (push_items(actor, now) == NR_OK)
            moved = true;
        else
            local->blocked_actors++;
    }
    return moved;
}

void nr_local_advance(struct nr_local *local, uint64_t now)
{
    bool moved;

    if (local->first_waiting != NULL || local->blocked_actors != 0) {
        do {
            moved = local->blocked_actors != 0 && push_blocked(local, now);
            moved = (local->first_waiting != NULL && draw_waiting(local, now)) || moved;
        } while (moved && (local->first_waiting != NULL || local->blocked_actors != 0));
    }
    nr_notify(&local->replay);
}

void nr_local_leave(struct nr_local *local, uint64_t now)
{
    if (!local->leaving && !nr_engine_leaving(local->engine))
        return;
    local->leaving = nr_engine_maintain(local->engine, now, ACCESSES);
    if (!local->leaving)
        nr_local_advance(local, now);
}

static void local_push(struct nr_actor *actor, uint64_t now)
{
    struct nr_local *local = nr_local_of(actor->replay);

    nr_local_leave(local, now);
    /* Space that comes free is for those who wait already. */
    if (local->blocked_actors != 0 || push_items(actor, now) != NR_OK)
        local->blocked_actors++;
    nr_local_advance(local, now);
}

static int local_room(const struct nr_actor *actor, uint32_t stream, uint32_t steps)
{
    uint64_t waiting = actor->episodes[stream].next - actor->written[stream];

    return waiting + steps <= AHEAD ? NR_OK : NR_PENDING;
}

static bool local_actor_close(struct nr_actor *actor)
{
    struct nr_local *local = nr_local_of(actor->replay);

    for (uint32_t r = 0; r < actor->streams; r++)
        nr_stream_close(local->engine, actor->stream[r], OWNER);
    nr_local_advance(local, nr_clock());
    return true;
}

static int local_sample_start(struct nr_sample *sample, uint64_t now)
{
    struct nr_local *local = nr_local_of(sample->replay);
    bool queued = false;

    nr_local_leave(local, now);
    for (struct nr_sample *other = local->first_waiting; other != NULL; other = other->waiting)
        queued = queued || (other->table == sample->table && sample->keys == NULL && other->keys == NULL);
    if (!queued)
        draw_parts(sample, now);
    if (sample->status != NR_PENDING) {
        int status = sample->status;

        if (status != NR_OK) {
            for (uint32_t i = 0; i < sample->done; i++)
                nr_draw_settle(local->engine, &draw_of(&sample->part[i])->draw, NR_SETTLE_REFUND);
            return status;
        }
        return NR_OK;
    }
    sample->waiting = NULL;
    *local->last_waiting = sample;
    local->last_waiting = &sample->waiting;
    return NR_OK;
}

static int local_sample_poll(struct nr_sample *sample, uint64_t now)
{
    (void)now;
    return sample->status;
}

static void local_sample_end(struct nr_sample *sample, bool taken, uint64_t now)
{
    struct nr_local *local = nr_local_of(sample->replay);

    if (sample->status == NR_PENDING) {
        struct nr_sample **link = &local->first_waiting;

        while (*link != sample)
            link = &(*link)->waiting;
        *link = sample->waiting;
        if (local->last_waiting == &sample->waiting)
            local->last_waiting = link;
    }
    for (uint32_t i = 0; i < sample->done; i++)
        nr_draw_settle(local->engine, &draw_of(&sample->part[i])->draw, taken ? NR_SETTLE_COMMIT : NR_SETTLE_REFUND);
    nr_local_advance(local, now);
}

/* ---- The rest ---- */

static void local_wait(struct nr_replay *replay, uint64_t now, uint64_t until)
{
    struct nr_local *local = nr_local_of(replay);

    /* Whoever waits works, and lets others in between, so that it goes on also when who began it has given up. */
    if (local->looks != 0 || local->leaving || nr_engine_leaving(local->engine)) {
        nr_local_leave(local, now);
        pthread_mutex_unlock(&replay->mutex);
        sched_yield();
        pthread_mutex_lock(&replay->mutex);
        return;
    }
    if (local->publications != 0 && until - now > RETRY_NS)
        until = now + RETRY_NS;
    nr_sleep(replay, until);
}

static int local_ready(struct nr_replay *replay)
{
    (void)replay;
    return NR_OK;
}

static int local_layout(struct nr_replay *replay)
{
    (void)replay;
    return NR_OK;
}

static const char *local_spec(const struct nr_replay *replay)
{
    return replay->spec;
}

/* No thread, socket or timer: nothing to do at close or after a call. */
static void local_nothing(struct nr_replay *replay)
{
    (void)replay;
}

static void local_blocked(struct nr_replay *replay, struct nr_blocked *blocked)
{
    (void)replay;
    (void)blocked;
}

static uint32_t local_losses(struct nr_replay *replay, uint32_t capacity, struct nr_loss *losses)
{
    (void)replay;
    (void)capacity;
    (void)losses;
    return 0;
}

static void local_counters(struct nr_replay *replay, struct nr_replay_counters *counters)
{
    (void)replay;
    (void)counters;
}

static void local_destroy(struct nr_replay *replay)
{
    struct nr_local *local = nr_local_of(replay);

    nr_checkpointer_close(local->checkpointer, local->engine);
    nr_engine_destroy(local->engine);
    nr_replay_end(replay);
    free(local);
}

static const struct nr_backend local_backend = {
    .destroy = local_destroy,
    .close = local_nothing,
    .ready = local_ready,
    .layout = local_layout,
    .spec = local_spec,
    .wait = local_wait,
    .leave = local_nothing,
    .places = local_places,
    .actor_open = local_actor_open,
    .actor_close = local_actor_close,
    .room = local_room,
    .push = local_push,
    .part_bytes = sizeof(struct part_draw),
    .sample_start = local_sample_start,
    .sample_poll = local_sample_poll,
    .sample_end = local_sample_end,
    .operation_start = nr_local_operation_start,
    .operation_poll = nr_local_operation_poll,
    .operation_end = nr_local_operation_end,
    .blocked = local_blocked,
    .losses = local_losses,
    .counters = local_counters,
};

int nr_replay_checkpoint_begin(struct nr_replay *replay, const char *path, int *error)
{
    *error = 0;
    if (replay->backend != &local_backend)
        return NR_REFUSED;
    int status = nr_enter(replay);
    if (status != NR_OK)
        return status;
    status = nr_checkpointer_begin(nr_local_of(replay)->checkpointer, path, error);
    nr_leave(replay);
    return status;
}

int nr_replay_checkpoint_wait(struct nr_replay *replay, uint64_t wait_ns, struct nr_checkpoint_progress *progress)
{
    struct nr_local *local = nr_local_of(replay);
    uint64_t begin = nr_clock(), now = begin;

    for (;;) {
        /* The mutex is given up after each quantum, so that others wait for one at most. */
        int status = nr_enter(replay);
        if (status != NR_OK)
            return status;
        bool more = nr_checkpointer_work(local->checkpointer, local->engine, now);
        nr_leave(replay);
        nr_checkpointer_progress(local->checkpointer, progress);
        if (!nr_checkpointer_running(local->checkpointer))
            return progress->status;
        if (now - begin >= wait_ns)
            return NR_PENDING;
        if (!more) {
            struct timespec nap = {.tv_nsec = NAP_NS};

            nanosleep(&nap, NULL);
        }
        now = nr_clock();
    }
}

void nr_replay_checkpoint_cancel(struct nr_replay *replay)
{
    if (nr_enter(replay) != NR_OK)
        return; /* whoever frees it ends it */
    nr_checkpointer_cancel(nr_local_of(replay)->checkpointer, nr_local_of(replay)->engine);
    nr_leave(replay);
}

struct nr_replay *nr_replay_local(struct nr_engine *engine, const struct nr_engine_config *config, const char *spec, int *status)
{
    struct nr_layout *layout = nr_layout_copy(config, status);
    struct nr_local *local = layout != NULL ? calloc(1, sizeof(*local)) : NULL;

    if (local == NULL) {
        if (layout != NULL)
            *status = NR_NO_MEMORY;
        free(layout);
        return NULL;
    }
    *status = nr_replay_begin(&local->replay, &local_backend);
    if (*status != NR_OK) {
        free(layout);
        free(local);
        return NULL;
    }
    local->replay.layout = layout;
    local->replay.spec = strdup(spec);
    local->checkpointer = nr_checkpointer_open(spec, status);
    if (local->replay.spec == NULL || local->checkpointer == NULL) {
        nr_checkpointer_close(local->checkpointer, engine);
        nr_replay_end(&local->replay);
        free(local);
        *status = NR_NO_MEMORY;
        return NULL;
    }
    local->engine = engine;
    local->last_waiting = &local->first_waiting;
    return &local->replay;
}
