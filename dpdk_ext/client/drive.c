#include "drive.h"

#include <sched.h>
#include <signal.h>
#include <stdlib.h>

#include "../protocol/wire.h"

enum {
    MICROSECOND = 1000,
    MILLISECOND = 1000 * MICROSECOND,
    SPIN_NS = 30 * MICROSECOND,   /* a caller polls for this long after the last sign of life, then it sleeps */
    YIELD_NS = 20 * MICROSECOND,  /* behind a datagram more are likely: for this long others get the processor, but no sleep */
    NEAR_NS = 300 * MICROSECOND,  /* an answer within this, yet after a sleep, says that the polling was in vain: */
    MISSES = 3,                   /* after so many in a row callers sleep at once (the server may need this very core), */
    PROBE = 32,                   /* but for every so manieth wait */
    GRACE_NS = 100 * MICROSECOND, /* after the last call before the progress thread sleeps in the kernel for rows */
    LOOK_NS = MILLISECOND,        /* between two looks of it while answers are outstanding */
    LINGER_NS = 2 * MILLISECOND,  /* it looks this often while calls come, so that they need not signal it, */
    CALM_NS = 50 * MILLISECOND,   /* and this long after the last one */
    GIVE_WAY = 64,                /* yields to threads that want the mutex */
    STRIDE = (NR_MAX_DATAGRAM + 63) / 64 * 64,
};

static void flush(struct nr_outbox *outbox)
{
    struct nr_network *network = outbox->context;

    if (outbox->count != 0)
        nr_io_send_burst(network->io, outbox->tx, outbox->count); /* what is not taken counts as lost */
    outbox->count = 0;
}

int nr_drive_open(struct nr_network *network, struct nr_packet_io *io, bool busy)
{
    pthread_condattr_t attributes;

    network->arena = malloc((size_t)NR_DRIVE_BURST * STRIDE);
    if (network->arena == NULL)
        return NR_NO_MEMORY;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&network->work, &attributes);
    pthread_condattr_destroy(&attributes);
    int error;

    network->waiter = nr_waiter_open(&io, 1, &error);
    if (network->waiter == NULL) {
        free(network->arena);
        pthread_cond_destroy(&network->work);
        return NR_NO_MEMORY;
    }
    network->io = io;
    network->busy = busy;
    network->outbox = (struct nr_outbox){.tx = network->tx,
                                         .arena = network->arena,
                                         .stride = STRIDE,
                                         .capacity = NR_DRIVE_BURST,
                                         .flush = flush,
                                         .context = network};
    return NR_OK;
}

void nr_drive_close(struct nr_network *network)
{
    if (network->begun)
        pthread_join(network->thread, NULL);
    nr_waiter_close(network->waiter);
    nr_io_close(network->io);
    pthread_cond_destroy(&network->work);
    free(network->arena);
}

void nr_drive_wake(struct nr_network *network)
{
    nr_waiter_wake(network->waiter);
    pthread_cond_broadcast(&network->work);
    nr_notify(&network->replay);
}

/* ---- Without sleeping ---- */

static void look(struct nr_network *network, uint64_t now)
{
    struct nr_client_view view;
    uint64_t progress = nr_client_progress(network->client);

    if (progress != network->progress) {
        network->progress = progress;
        nr_network_progress(network);
        nr_notify(&network->replay);
    }
    nr_client_look(network->client, &view);
    network->outstanding = view.outstanding;
    network->wakeup = nr_client_wakeup(network->client, now);
}

void nr_drive_send(struct nr_network *network, uint64_t now)
{
    nr_client_send(network->client, now, &network->outbox);
    flush(&network->outbox);
    look(network, now);
}

bool nr_drive_step(struct nr_network *network, uint64_t now)
{
    uint32_t count = nr_io_receive_burst(network->io, network->rx, NR_DRIVE_BURST);

    if (count == 0) {
        if (now >= network->wakeup)
            nr_drive_send(network, now);
        return false;
    }
    if (count == NR_DRIVE_BURST && network->sleeping)
        nr_waiter_wake(network->waiter); /* its descriptor may not tell of the rest */
    now = nr_clock();
    for (uint32_t i = 0; i < count; i++)
        nr_client_receive(network->client, &network->rx[i], now);
    network->active = now;
    network->flowing = true;
    network->unreachable = network->io->counters.unreachable;
    nr_drive_send(network, now);
    return true;
}

/* ---- A caller that waits ---- */

/* Gives up the mutex for a moment. */
static void give_way(struct nr_replay *replay)
{
    pthread_mutex_unlock(&replay->mutex);
    for (int i = 0; i < GIVE_WAY && atomic_load_explicit(&replay->arrivals, memory_order_relaxed) != 0; i++)
        sched_yield();
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    pthread_mutex_lock(&replay->mutex);
}

/* Gives up the mutex and the processor for a moment. */
static void yield(struct nr_replay *replay)
{
    pthread_mutex_unlock(&replay->mutex);
    sched_yield();
    pthread_mutex_lock(&replay->mutex);
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Sleeps in the kernel. The mutex is given up meanwhile. */
static void sleep_in_kernel(struct nr_network *network, uint64_t now, uint64_t until)
{
    struct nr_replay *replay = &network->replay;

    if (until <= now)
        return;
    network->sleeping = true;
    network->sleep_until = until;
    pthread_mutex_unlock(&replay->mutex);
    nr_waiter_wait(network->waiter, until == UINT64_MAX ? NR_WAIT_FOREVER : until - now);
    pthread_mutex_lock(&replay->mutex);
    network->sleeping = false;
    nr_notify(replay); /* one that waits for the place */
}

/* An answer came to a caller after `quiet` ns: remembers whether polling would do. */
static void learn(struct nr_network *network, uint64_t quiet)
{
    if (!network->slept)
        network->misses = 0;
    else if (network->misses < MISSES && quiet < NEAR_NS)
        network->misses++;
    network->slept = false;
    network->waits++;
}

static bool polls(const struct nr_network *network, uint64_t quiet)
{
    if (network->flowing)
        return network->busy || quiet < YIELD_NS;
    return network->busy || (quiet < SPIN_NS && (network->misses < MISSES || network->waits % PROBE == 0));
}

void nr_drive_wait(struct nr_replay *replay, uint64_t now, uint64_t until)
{
    struct nr_network *network = nr_network_of(replay);
    uint64_t quiet = now - network->active;

    network->called = now;
    if (nr_drive_step(network, now)) {
        learn(network, quiet);
        return;
    }
    until = earlier(until, network->wakeup);
    if (network->waiting) { /* another drives */
        nr_sleep(replay, until);
        return;
    }
    network->waiting = true;
    if (polls(network, quiet)) {
        if (network->flowing && !network->busy)
            yield(replay);
        else
            give_way(replay);
    } else if (network->sleeping) { /* the progress thread: it leaves the place to us */
        nr_waiter_wake(network->waiter);
        nr_sleep(replay, until);
    } else {
        sleep_in_kernel(network, now, until);
        network->slept = true;
    }
    network->waiting = false;
}

/* ---- The progress thread ---- */

/* True while an answer is awaited that somebody will want soon. */
static bool urgent(const struct nr_network *network)
{
    return network->pending != NULL;
}

static void doze(struct nr_network *network, uint64_t until)
{
    struct nr_replay *replay = &network->replay;

    network->tick = until;
    network->parked = until == UINT64_MAX;
    if (network->parked) {
        pthread_cond_wait(&network->work, &replay->mutex);
    } else {
        struct timespec time = {.tv_sec = (time_t)(until / 1000000000u), .tv_nsec = (long)(until % 1000000000u)};

        pthread_cond_timedwait(&network->work, &replay->mutex, &time);
    }
    network->parked = false;
    network->tick = 0;
}

/* One turn of the progress thread. */
static void look_after(struct nr_network *network)
{
    uint64_t now = nr_clock();
    bool open = nr_client_busy(network->client);
    uint64_t until = UINT64_MAX;

    if (open && !network->waiting) {
        nr_drive_step(network, now);
        if (network->busy) {
            give_way(&network->replay);
            return;
        }
        if (urgent(network) && !network->sleeping && now - network->called >= GRACE_NS) {
            sleep_in_kernel(network, now, network->wakeup);
            return;
        }
        until = network->wakeup;
        if (urgent(network))
            until = earlier(until, now + GRACE_NS);
        else if (network->outstanding != 0)
            until = earlier(until, now + LOOK_NS);
    }
    if (now - network->called < CALM_NS)
        until = earlier(until, now + LINGER_NS);
    if (until > now)
        doze(network, until);
    else
        give_way(&network->replay);
}

static void *run(void *argument)
{
    struct nr_network *network = argument;

    pthread_mutex_lock(&network->replay.mutex);
    while (!atomic_load_explicit(&network->replay.closed, memory_order_relaxed))
        look_after(network);
    pthread_mutex_unlock(&network->replay.mutex);
    return NULL;
}

static void begin(struct nr_network *network)
{
    sigset_t all, before;

    /* Signals are the application's: none is handled here. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    network->begun = pthread_create(&network->thread, NULL, run, network) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void nr_drive_leave(struct nr_replay *replay)
{
    struct nr_network *network = nr_network_of(replay);

    if (replay->sleepers != 0 && !network->waiting)
        nr_notify(replay); /* one of them drives now */
    if (atomic_load_explicit(&replay->closed, memory_order_relaxed))
        return;
    if (network->sleeping && network->wakeup < network->sleep_until)
        nr_waiter_wake(network->waiter); /* something is due before it would wake */
    if (!network->begun) {
        if (nr_client_busy(network->client))
            begin(network);
    } else if ((network->parked || network->tick > network->called + 2 * LINGER_NS) && nr_client_busy(network->client)) {
        pthread_cond_signal(&network->work);
    }
}
