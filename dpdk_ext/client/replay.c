#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime.h"
#include "update.h"

enum { MOST_KEYS = 1 << 24 /* of one update */ };

static _Atomic uint32_t generation;
static pthread_once_t watch_forks = PTHREAD_ONCE_INIT;

static void count_fork(void)
{
    atomic_fetch_add_explicit(&generation, 1, memory_order_relaxed);
}

static void watch(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

uint32_t nr_fork_generation(void)
{
    return atomic_load_explicit(&generation, memory_order_relaxed);
}

uint64_t nr_clock(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static uint64_t after(uint64_t now, uint64_t wait_ns)
{
    return wait_ns > UINT64_MAX - now ? UINT64_MAX : now + wait_ns;
}

/* ---- The object ---- */

int nr_replay_begin(struct nr_replay *replay, const struct nr_backend *backend)
{
    pthread_condattr_t attributes;

    pthread_once(&watch_forks, watch);
    memset(replay, 0, sizeof(*replay));
    replay->backend = backend;
    replay->generation = nr_fork_generation();
    if (pthread_mutex_init(&replay->mutex, NULL) != 0)
        return NR_SYSTEM;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);

    int failed = pthread_cond_init(&replay->changed, &attributes);

    pthread_condattr_destroy(&attributes);
    if (failed) {
        pthread_mutex_destroy(&replay->mutex);
        return NR_SYSTEM;
    }
    return NR_OK;
}

void nr_replay_end(struct nr_replay *replay)
{
    while (replay->actors != NULL) {
        struct nr_actor *actor = replay->actors;

        replay->actors = actor->next;
        nr_actor_free(actor);
    }
    while (replay->operations != NULL) {
        struct nr_operation *operation = replay->operations;

        replay->operations = operation->all;
        free(operation->request);
        free(operation->scratch.bytes);
        free(operation);
    }
    while (replay->samples != NULL) {
        struct nr_sample *sample = replay->samples;

        replay->samples = sample->all;
        free(sample);
    }
    free(replay->layout);
    free(replay->spec);
    pthread_cond_destroy(&replay->changed);
    pthread_mutex_destroy(&replay->mutex);
}

int nr_enter(struct nr_replay *replay)
{
    if (replay->generation != nr_fork_generation())
        return NR_FORKED;
    if (atomic_load_explicit(&replay->closed, memory_order_acquire))
        return NR_CLOSED;
    nr_lock(replay);
    return NR_OK;
}

void nr_leave(struct nr_replay *replay)
{
    replay->backend->leave(replay);
    pthread_mutex_unlock(&replay->mutex);
}

void nr_sleep(struct nr_replay *replay, uint64_t until)
{
    replay->sleepers++;
    if (until == UINT64_MAX) {
        pthread_cond_wait(&replay->changed, &replay->mutex);
    } else {
        struct timespec time = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

        pthread_cond_timedwait(&replay->changed, &replay->mutex, &time);
    }
    replay->sleepers--;
}

int nr_await(struct nr_replay *replay, nr_poll_fn poll, void *what, uint64_t wait_ns)
{
    uint64_t now = nr_clock();
    uint64_t until = after(now, wait_ns);

    for (;;) {
        int status = poll(what, now);

        if (status != NR_PENDING)
            return status;
        if (atomic_load_explicit(&replay->closed, memory_order_relaxed))
            return NR_CLOSED;
        if (now >= until)
            return NR_PENDING;
        replay->backend->wait(replay, now, until);
        now = nr_clock();
    }
}

static int poll_ready(void *what, uint64_t now)
{
    struct nr_replay *replay = what;

    (void)now;
    return replay->backend->ready(replay);
}

int nr_replay_ready(struct nr_replay *replay, uint64_t wait_ns)
{
    int status = nr_enter(replay);

    if (status != NR_OK)
        return status;
    status = nr_await(replay, poll_ready, replay, wait_ns);
    nr_leave(replay);
    return status;
}

const char *nr_replay_spec(const struct nr_replay *replay)
{
    return replay->backend->spec(replay);
}

int nr_replay_layout(struct nr_replay *replay, const struct nr_engine_config *config)
{
    int status;
    struct nr_layout *layout = nr_layout_copy(config, &status);

    if (layout == NULL)
        return status;
    status = nr_enter(replay);
    if (status != NR_OK) {
        free(layout);
        return status;
    }
    if (replay->layout != NULL) {
        free(layout);
    } else {
        replay->layout = layout;
        status = replay->backend->layout(replay);
        if (status != NR_OK) {
            replay->layout = NULL;
            free(layout);
        }
    }
    nr_leave(replay);
    return status;
}

void nr_replay_close(struct nr_replay *replay)
{
    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    if (!atomic_exchange(&replay->closed, 1)) {
        replay->backend->close(replay);
        nr_notify(replay);
    }
    pthread_mutex_unlock(&replay->mutex);
}

/* In a child of the process that made it nothing is freed: its threads are not here, and the mutex may be held for ever. */
void nr_replay_free(struct nr_replay *replay)
{
    if (replay == NULL || replay->generation != nr_fork_generation())
        return;
    nr_replay_close(replay);
    replay->backend->destroy(replay);
}

static void look_blocked(struct nr_replay *replay, const struct nr_wait *wait, struct nr_blocked *blocked)
{
    memset(blocked, 0, sizeof(*blocked));
    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    blocked->wait = wait != NULL ? *wait : replay->append_wait;
    if (wait == NULL && replay->backend->insert_wait != NULL)
        replay->backend->insert_wait(replay, &blocked->wait);
    replay->backend->blocked(replay, blocked);
    pthread_mutex_unlock(&replay->mutex);
}

void nr_replay_blocked(struct nr_replay *replay, struct nr_blocked *blocked)
{
    look_blocked(replay, NULL, blocked);
}

void nr_operation_blocked(struct nr_operation *operation, struct nr_blocked *blocked)
{
    look_blocked(operation->replay, &operation->wait, blocked);
}

void nr_sample_blocked(struct nr_sample *sample, struct nr_blocked *blocked)
{
    look_blocked(sample->replay, &sample->wait, blocked);
}

uint32_t nr_replay_losses(struct nr_replay *replay, uint32_t capacity, struct nr_loss *losses)
{
    uint32_t count;

    if (replay->generation != nr_fork_generation())
        return 0;
    nr_lock(replay);
    count = replay->backend->losses(replay, capacity, losses);
    pthread_mutex_unlock(&replay->mutex);
    return count;
}

void nr_replay_counters(struct nr_replay *replay, struct nr_replay_counters *counters)
{
    memset(counters, 0, sizeof(*counters));
    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    counters->stalls = replay->stalls;
    replay->backend->counters(replay, counters);
    pthread_mutex_unlock(&replay->mutex);
}

/* ---- Operations ---- */

void *nr_scratch_take(struct nr_scratch *scratch, size_t size)
{
    if (scratch->size < size) {
        size_t room = size < 4096 ? 4096 : size + size / 2;
        void *bytes = malloc(room);

        if (bytes == NULL)
            return NULL;
        free(scratch->bytes);
        scratch->bytes = bytes;
        scratch->size = room;
    }
    return scratch->bytes;
}

/* Mutex held. NULL without memory. */
static struct nr_operation *take_operation(struct nr_replay *replay, uint32_t kind)
{
    struct nr_operation *operation = replay->spare_operations;

    if (operation != NULL) {
        replay->spare_operations = operation->next;
    } else {
        operation = calloc(1, sizeof(*operation));
        if (operation == NULL)
            return NULL;
        operation->replay = replay;
        operation->all = replay->operations;
        replay->operations = operation;
    }
    operation->kind = kind;
    memset(&operation->wait, 0, sizeof(operation->wait));
    return operation;
}

static void give_operation(struct nr_operation *operation)
{
    struct nr_replay *replay = operation->replay;

    replay->backend->operation_end(operation);
    operation->next = replay->spare_operations;
    replay->spare_operations = operation;
}

static int poll_operation(void *what, uint64_t now)
{
    struct nr_operation *operation = what;

    return operation->replay->backend->operation_poll(operation, now);
}

/* Begins it and waits up to wait_ns; gives up the mutex. */
static int run_operation(struct nr_operation *operation, uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_replay *replay = operation->replay;
    int status = replay->backend->operation_start(operation, nr_clock());

    if (status == NR_PENDING && wait_ns != 0)
        status = nr_await(replay, poll_operation, operation, wait_ns);
    *handle = NULL;
    if (status == NR_PENDING)
        *handle = operation;
    else
        give_operation(operation);
    nr_leave(replay);
    return status;
}

/* Enters and takes an operation, or says why not, with *handle NULL. */
static int begin_operation(struct nr_replay *replay, uint32_t kind, struct nr_operation **operation, struct nr_operation **handle)
{
    int status = nr_enter(replay);

    *handle = NULL;
    if (status != NR_OK)
        return status;
    *operation = take_operation(replay, kind);
    if (*operation == NULL) {
        nr_leave(replay);
        return NR_NO_MEMORY;
    }
    return NR_OK;
}

int nr_operation_wait(struct nr_operation *operation, uint64_t wait_ns)
{
    struct nr_replay *replay = operation->replay;
    int status;

    if (replay->generation != nr_fork_generation())
        return NR_FORKED;
    nr_lock(replay);
    status = nr_await(replay, poll_operation, operation, wait_ns);
    if (status != NR_PENDING)
        give_operation(operation);
    nr_leave(replay);
    return status;
}

void nr_operation_cancel(struct nr_operation *operation)
{
    struct nr_replay *replay = operation->replay;

    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    give_operation(operation);
    nr_leave(replay);
}

/* Where the layout is known, what the server would refuse is not sent. */
static int check_set(const struct nr_replay *replay, uint32_t set, uint64_t length)
{
    if (replay->layout == NULL)
        return NR_OK;
    if (set >= replay->layout->config.set_count)
        return NR_NO_SET;
    return length <= replay->layout->config.sets[set].bytes ? NR_OK : NR_BAD_LENGTH;
}

/* Gives up an operation that was refused before it began; the status goes through. */
static int refuse_operation(struct nr_operation *operation, int status)
{
    struct nr_replay *replay = operation->replay;

    give_operation(operation);
    nr_leave(replay);
    return status;
}

int nr_actor_flush(struct nr_actor *actor, uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(actor->replay, NR_FLUSH, &operation, handle);

    if (status != NR_OK)
        return status;
    operation->flush = (struct nr_flush_call){.actor = actor, .target = actor->committed};
    return run_operation(operation, wait_ns, handle);
}

/* NR_UPDATE or, without priorities, NR_DELETE. */
static int change_items(struct nr_replay *replay, uint32_t kind, uint32_t table, uint32_t count, const uint64_t *keys,
                        const double *priorities, uint8_t *outcome, uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status;

    *handle = NULL;
    if (count > MOST_KEYS)
        return NR_BAD_COUNT;
    status = begin_operation(replay, kind, &operation, handle);
    if (status != NR_OK)
        return status;
    operation->update = (struct nr_update_call){.table = table, .count = count, .outcome = outcome};
    if (replay->layout == NULL)
        status = NR_BAD_CONFIG;
    else if (table >= replay->layout->config.table_count)
        status = NR_NO_TABLE;
    else
        status = nr_update_resolve(&operation->update, keys, priorities, &operation->scratch);
    if (status != NR_OK || count == 0)
        return refuse_operation(operation, status);
    return run_operation(operation, wait_ns, handle);
}

int nr_update(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, const double *priorities,
              uint8_t *outcome, uint64_t wait_ns, struct nr_operation **handle)
{
    return change_items(replay, NR_UPDATE, table, count, keys, priorities, outcome, wait_ns, handle);
}

int nr_delete(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, uint8_t *outcome, uint64_t wait_ns,
              struct nr_operation **handle)
{
    return change_items(replay, NR_DELETE, table, count, keys, NULL, outcome, wait_ns, handle);
}

static int administer(struct nr_replay *replay, uint32_t kind, const struct nr_admin_call *call, uint64_t wait_ns,
                      struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, kind, &operation, handle);

    if (status != NR_OK)
        return status;
    if (replay->layout != NULL && call->table >= replay->layout->config.table_count)
        return refuse_operation(operation, NR_NO_TABLE);
    operation->admin = *call;
    return run_operation(operation, wait_ns, handle);
}

int nr_configure(struct nr_replay *replay, uint32_t table, const struct nr_limits_change *change, struct nr_limits *limits,
                 uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_admin_call call = {.change = *change, .limits = limits, .table = table};

    return administer(replay, NR_CONFIGURE, &call, wait_ns, handle);
}

int nr_reset(struct nr_replay *replay, uint32_t table, uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_admin_call call = {.table = table};

    return administer(replay, NR_RESET, &call, wait_ns, handle);
}

int nr_publish(struct nr_replay *replay, uint32_t set, const void *bytes, uint64_t length, uint64_t expect, uint64_t *version,
               uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, NR_PUBLISH, &operation, handle);

    if (status != NR_OK)
        return status;
    status = check_set(replay, set, length);
    if (status != NR_OK)
        return refuse_operation(operation, status);
    operation->publish =
        (struct nr_publish_call){.bytes = bytes, .length = length, .expect = expect, .version = version, .set = set};
    return run_operation(operation, wait_ns, handle);
}

int nr_fetch(struct nr_replay *replay, uint32_t set, uint64_t newer_than, struct nr_fetched *fetched, uint64_t wait_ns,
             struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, NR_FETCH, &operation, handle);

    if (status != NR_OK)
        return status;
    memset(fetched, 0, sizeof(*fetched));
    status = check_set(replay, set, 0);
    if (status != NR_OK)
        return refuse_operation(operation, status);
    operation->fetch = (struct nr_fetch_call){.fetched = fetched, .newer_than = newer_than, .set = set};
    return run_operation(operation, wait_ns, handle);
}

void nr_fetched_free(struct nr_fetched *fetched)
{
    free(fetched->data);
    memset(fetched, 0, sizeof(*fetched));
}

int nr_tables(struct nr_replay *replay, struct nr_table_info *tables, uint32_t capacity, uint64_t wait_ns,
              struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, NR_TABLES, &operation, handle);

    if (status != NR_OK)
        return status;
    operation->tables = (struct nr_tables_call){.tables = tables, .capacity = capacity};
    return run_operation(operation, wait_ns, handle);
}

int nr_histograms(struct nr_replay *replay, uint32_t table, struct nr_histograms *histograms, uint64_t wait_ns,
                  struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, NR_LOOK, &operation, handle);

    if (status != NR_OK)
        return status;
    memset(histograms, 0, sizeof(*histograms));
    operation->look = (struct nr_look_call){.histograms = histograms, .table = table};
    return run_operation(operation, wait_ns, handle);
}

int nr_ping(struct nr_replay *replay, uint32_t payload_bytes, struct nr_ping *ping, uint64_t wait_ns, struct nr_operation **handle)
{
    struct nr_operation *operation;
    int status = begin_operation(replay, NR_PING, &operation, handle);

    if (status != NR_OK)
        return status;
    operation->ping = (struct nr_ping_call){.ping = ping, .payload_bytes = payload_bytes};
    return run_operation(operation, wait_ns, handle);
}
