#include "appliance.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "../io/waiter.h"
#include "../protocol/server.h"

enum {
    MICROSECOND = 1000,
    MILLISECOND = 1000 * MICROSECOND,
    BURST = 32,                     /* datagrams handled between two looks at anything else */
    OUTBOX = 64,                    /* datagrams sent at once */
    STRIDE = (NR_MAX_DATAGRAM + 63) / 64 * 64,
    SPIN_NS = 20 * MICROSECOND,     /* adaptive: after the last datagram first the processor is kept, */
    YIELD_NS = 50 * MICROSECOND,    /* then offered to others, then given up until something comes */
    SLEEP_NS = 100 * MILLISECOND,   /* at most, so that dead sessions are swept */
    SAVING_NS = 100 * MICROSECOND,  /* the same while a checkpoint runs: blocks come back */
    SWEEP_NS = MILLISECOND,
    SHOW_NS = 20 * MILLISECOND,     /* between two copies for other threads */
};
static_assert(sizeof(struct nr_appliance_counters) % 8 == 0, "shown word by word");

/* What other threads may look at: written by the loop, word by word, between two rises of `version` (odd meanwhile). */
struct shown {
    _Atomic uint32_t version;
    uint32_t words;
    _Atomic uint64_t word[];
};

struct nr_appliance {
    struct nr_engine *engine; /* owned */
    struct nr_server *server;
    struct nr_checkpointer *checkpointer;
    struct nr_packet_io *io[NR_APPLIANCE_LINKS]; /* owned */
    struct nr_waiter *waiter; /* on them */
    uint32_t links;      /* entries of io */
    struct shown *shown; /* struct nr_appliance_counters, then struct nr_table_info of each table */
    uint64_t *scratch;   /* the next of the same */
    uint8_t *arena;
    uint32_t tables;
    bool busy;           /* polls for ever */
    bool restless;       /* the last sweep left work that it did not have the time for */
    uint64_t session_bytes;

    uint64_t last;   /* ns, when the last datagram came */
    uint64_t since;  /* ns, up to which busy and idle time are accounted */
    uint64_t swept;  /* ns */
    uint64_t showed; /* ns */
    struct nr_appliance_counters counters; /* those of the loop itself */
    struct nr_outbox outbox;
    struct nr_tx tx[OUTBOX];
    struct nr_rx rx[BURST];

    _Alignas(64) _Atomic bool stopping; /* set by any thread or signal handler */
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Sending ---- */

/* How long the datagram's cause has been here when it leaves: the protocol itself has no clock. */
static void stamp_residence(uint8_t *datagram, uint32_t length, uint64_t now)
{
    struct nr_wire_stamps stamps;

    if (length < NR_RESPONSE_OVERHEAD)
        return;
    memcpy(&stamps, datagram + sizeof(struct nr_header), sizeof(stamps));
    uint64_t residence = now > stamps.received ? now - stamps.received : 0;
    stamps.residence = residence < UINT32_MAX ? (uint32_t)residence : UINT32_MAX;
    memcpy(datagram + sizeof(struct nr_header), &stamps, sizeof(stamps));
}

static void flush(struct nr_outbox *outbox)
{
    struct nr_appliance *appliance = outbox->context;

    if (outbox->count == 0)
        return;
    uint64_t now = clock_ns();
    for (uint32_t i = 0; i < outbox->count; i++)
        stamp_residence(outbox->arena + (size_t)i * outbox->stride, outbox->tx[i].length, now);
    for (uint32_t first = 0, last; first < outbox->count; first = last) {
        uint8_t link = outbox->tx[first].peer.bytes[NR_PEER_LINK];

        for (last = first + 1; last < outbox->count && outbox->tx[last].peer.bytes[NR_PEER_LINK] == link; last++)
            ;
        uint32_t sent = nr_io_send_burst(appliance->io[link], outbox->tx + first, last - first);
        appliance->counters.dropped_out += last - first - sent; /* the client asks again */
        for (uint32_t i = first + sent; i < last; i++) {
            for (uint32_t s = 0; s < outbox->tx[i].segments; s++)
                nr_server_sent(appliance->server, outbox->tx[i].segment[s].token);
        }
    }
    outbox->count = 0;
}

/* ---- Showing ---- */

static void collect(struct nr_appliance *appliance, struct nr_appliance_counters *counters)
{
    struct nr_server_counters server;

    nr_server_counters(appliance->server, &server);
    *counters = appliance->counters;
    counters->datagrams_in = server.datagrams_in;
    counters->datagrams_out = server.datagrams_out;
    counters->bytes_in = server.bytes_in;
    counters->bytes_out = server.bytes_out;
    counters->malformed = server.malformed;
    for (uint32_t link = 0; link < appliance->links; link++) {
        counters->dropped_out += appliance->io[link]->counters.send_dropped;
        counters->malformed += appliance->io[link]->counters.receive_truncated;
    }
    counters->bad_version = server.bad_version;
    counters->no_session = server.no_session;
    counters->wrong_peer = server.wrong_peer;
    counters->refused = server.refused;
    counters->duplicates = server.duplicates + server.old;
    counters->sessions_open = server.sessions_open;
    counters->sessions_opened = server.sessions_opened;
    counters->sessions_swept = server.sessions_swept;
    counters->streams_open = nr_engine_streams(appliance->engine);
    counters->sessions_bytes = appliance->session_bytes;
    counters->batches = server.samples;
    counters->sampled_bytes = server.rows_bytes;
    counters->inserts = server.inserts;
    counters->updates = server.updates;
    counters->publishes = server.publishes;
    counters->fetches = server.fetches;
    counters->pings = server.pings;
}

static void show(struct nr_appliance *appliance, uint64_t now)
{
    struct shown *shown = appliance->shown;
    struct nr_table_info *tables = (struct nr_table_info *)(appliance->scratch + sizeof(struct nr_appliance_counters) / 8);

    collect(appliance, (struct nr_appliance_counters *)appliance->scratch);
    for (uint32_t table = 0; table < appliance->tables; table++)
        nr_table_info(appliance->engine, table, &tables[table]);
    uint32_t version = atomic_load_explicit(&shown->version, memory_order_relaxed);
    atomic_store_explicit(&shown->version, version + 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_release);
    for (uint32_t i = 0; i < shown->words; i++)
        atomic_store_explicit(&shown->word[i], appliance->scratch[i], memory_order_relaxed);
    atomic_store_explicit(&shown->version, version + 2, memory_order_release);
    appliance->showed = now;
}

/* Words [first, first + count) as they were at one moment. */
static void look(const struct nr_appliance *appliance, uint32_t first, uint32_t count, void *target)
{
    struct shown *shown = appliance->shown;
    uint64_t *out = target;

    for (;;) {
        uint32_t version = atomic_load_explicit(&shown->version, memory_order_acquire);

        for (uint32_t i = 0; i < count; i++)
            out[i] = atomic_load_explicit(&shown->word[first + i], memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (!(version & 1) && atomic_load_explicit(&shown->version, memory_order_relaxed) == version)
            return;
        sched_yield();
    }
}

void nr_appliance_counters(const struct nr_appliance *appliance, struct nr_appliance_counters *counters)
{
    look(appliance, 0, sizeof(*counters) / 8, counters);
}

int nr_appliance_table(const struct nr_appliance *appliance, uint32_t table, struct nr_table_info *info)
{
    if (table >= appliance->tables)
        return NR_NO_TABLE;
    look(appliance, (uint32_t)(sizeof(struct nr_appliance_counters) + table * sizeof(*info)) / 8, sizeof(*info) / 8, info);
    return NR_OK;
}

/* ---- The loop ---- */

/* Handles what has come by one link. False when nothing had. */
static bool work_on(struct nr_appliance *appliance, uint32_t link)
{
    uint32_t count = nr_io_receive_burst(appliance->io[link], appliance->rx, BURST);

    if (count == 0)
        return false;
    uint64_t now = clock_ns();
    appliance->counters.idle_ns += now - appliance->since;
    for (uint32_t i = 0; i < count; i++) {
        appliance->rx[i].peer.bytes[NR_PEER_LINK] = (uint8_t)link;
        nr_server_receive(appliance->server, &appliance->rx[i], now, &appliance->outbox);
    }
    flush(&appliance->outbox);
    uint64_t end = clock_ns();
    appliance->counters.busy_ns += end - now;
    if (end - now > appliance->counters.longest_quantum_ns)
        appliance->counters.longest_quantum_ns = end - now;
    appliance->last = appliance->since = end;
    return true;
}

/* One look at every link. False when nothing had come. */
static bool work(struct nr_appliance *appliance)
{
    bool worked = false;

    for (uint32_t link = 0; link < appliance->links; link++)
        worked |= work_on(appliance, link);
    appliance->counters.polls++;
    appliance->counters.empty_polls += !worked;
    return worked;
}

/* What is done now and then, whether datagrams come or not. */
static void tend(struct nr_appliance *appliance, uint64_t now, bool worked)
{
    if (now - appliance->swept >= SWEEP_NS || (appliance->restless && !worked) || nr_engine_leaving(appliance->engine)) {
        appliance->restless = nr_server_sweep(appliance->server, now, &appliance->outbox);
        flush(&appliance->outbox);
        appliance->swept = now;
    }
    if (now - appliance->showed >= SHOW_NS)
        show(appliance, now);
}

static void idle(struct nr_appliance *appliance, uint64_t now)
{
    uint64_t quiet = now - appliance->last;

    if (appliance->busy || quiet < SPIN_NS || appliance->restless || nr_engine_leaving(appliance->engine)) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (quiet < YIELD_NS) {
        sched_yield();
    } else {
        if (appliance->showed < appliance->last)
            show(appliance, now);
        nr_waiter_wait(appliance->waiter, nr_checkpointer_running(appliance->checkpointer) ? SAVING_NS : SLEEP_NS);
    }
}

int nr_appliance_run(struct nr_appliance *appliance)
{
    uint64_t now = clock_ns();

    appliance->last = appliance->since = now;
    while (!atomic_load_explicit(&appliance->stopping, memory_order_relaxed)) {
        bool worked = work(appliance);

        now = worked ? appliance->last : clock_ns();
        tend(appliance, now, worked);
        bool saved = nr_checkpointer_work(appliance->checkpointer, appliance->engine, now);
        if (!worked && !saved)
            idle(appliance, now);
    }
    now = clock_ns();
    appliance->counters.idle_ns += now - appliance->since;
    appliance->since = now;
    show(appliance, now);
    return NR_OK;
}

void nr_appliance_stop(struct nr_appliance *appliance)
{
    atomic_store_explicit(&appliance->stopping, true, memory_order_relaxed);
    nr_waiter_wake(appliance->waiter);
}

/* ---- Checkpoints ---- */

int nr_appliance_checkpoint(struct nr_appliance *appliance, const char *path, int *error)
{
    int status = nr_checkpointer_begin(appliance->checkpointer, path, error);

    nr_waiter_wake(appliance->waiter);
    return status;
}

void nr_appliance_checkpoint_progress(const struct nr_appliance *appliance, struct nr_checkpoint_progress *progress)
{
    nr_checkpointer_progress(appliance->checkpointer, progress);
}

void nr_appliance_leave(struct nr_appliance *appliance)
{
    for (uint32_t link = 0; link < appliance->links; link++)
        nr_io_close(appliance->io[link]); /* the last references into the slab */
    appliance->links = 0;
}

int nr_appliance_checkpoint_finish(struct nr_appliance *appliance, uint64_t wait_ns)
{
    return nr_checkpointer_finish(appliance->checkpointer, appliance->engine, wait_ns);
}

/* ---- Opening and closing ---- */

static uint32_t datagram_limit(const struct nr_appliance_config *config)
{
    return config->max_datagram == 0 || config->max_datagram > NR_MAX_DATAGRAM ? NR_MAX_DATAGRAM : config->max_datagram;
}

static struct nr_server_config server_config(const struct nr_appliance_config *config)
{
    return (struct nr_server_config){
        .sessions = config->sessions, .max_datagram = datagram_limit(config), .session_ns = config->session_ns, .spec = ""};
}

uint64_t nr_appliance_session_bytes(const struct nr_appliance_config *config)
{
    struct nr_server_config server = server_config(config);

    return nr_server_bytes(&server);
}

static int open_server(struct nr_appliance *appliance, const struct nr_engine_config *engine_config, const char *spec,
                       const struct nr_appliance_config *config)
{
    struct nr_server_config server = server_config(config);
    int status;

    server.receive_buffer = UINT32_MAX;
    for (uint32_t link = 0; link < config->links; link++) {
        uint32_t capacity = nr_io_receive_capacity(config->io[link]);

        if (capacity < server.receive_buffer)
            server.receive_buffer = capacity;
    }

    server.spec = spec;
    server.start_seconds = engine_config->start_seconds;
    while (server.incarnation == 0)
        if (getrandom(&server.incarnation, sizeof(server.incarnation), 0) != sizeof(server.incarnation))
            server.incarnation = clock_ns();
    appliance->server = nr_server_create(appliance->engine, &server, &status);
    appliance->session_bytes = nr_server_bytes(&server);
    return status;
}

static int open_memory(struct nr_appliance *appliance)
{
    size_t bytes = sizeof(struct nr_appliance_counters) + appliance->tables * sizeof(struct nr_table_info);

    appliance->shown = calloc(1, sizeof(*appliance->shown) + bytes);
    appliance->scratch = calloc(1, bytes);
    appliance->arena = aligned_alloc(64, (size_t)OUTBOX * STRIDE);
    if (appliance->shown == NULL || appliance->scratch == NULL || appliance->arena == NULL)
        return NR_NO_MEMORY;
    appliance->shown->words = (uint32_t)(bytes / 8);
    appliance->outbox = (struct nr_outbox){
        .tx = appliance->tx, .arena = appliance->arena, .stride = STRIDE, .capacity = OUTBOX, .flush = flush, .context = appliance};
    return NR_OK;
}

static void dispose(struct nr_appliance *appliance)
{
    nr_checkpointer_close(appliance->checkpointer, appliance->engine);
    nr_server_destroy(appliance->server);
    nr_waiter_close(appliance->waiter);
    free(appliance->shown);
    free(appliance->scratch);
    free(appliance->arena);
    free(appliance);
}

struct nr_appliance *nr_appliance_open(struct nr_engine *engine, const struct nr_engine_config *engine_config, const char *spec,
                                       const struct nr_appliance_config *config, int *status)
{
    struct nr_appliance *appliance;
    int error;

    *status = NR_BAD_CONFIG;
    if (config->links == 0 || config->links > NR_APPLIANCE_LINKS)
        return NULL;
    *status = NR_NO_MEMORY;
    appliance = aligned_alloc(64, (sizeof(*appliance) + 63) / 64 * 64);
    if (appliance == NULL)
        return NULL;
    memset(appliance, 0, sizeof(*appliance));
    appliance->engine = engine;
    appliance->tables = nr_engine_table_count(engine);
    appliance->busy = config->busy;
    appliance->links = config->links;
    memcpy(appliance->io, config->io, config->links * sizeof(struct nr_packet_io *));
    *status = open_memory(appliance);
    if (*status == NR_OK)
        appliance->checkpointer = nr_checkpointer_open(spec, status);
    if (*status == NR_OK) {
        appliance->waiter = nr_waiter_open(appliance->io, appliance->links, &error);
        *status = appliance->waiter == NULL ? NR_NO_MEMORY : open_server(appliance, engine_config, spec, config);
    }
    if (*status != NR_OK) {
        dispose(appliance);
        return NULL;
    }
    for (uint32_t link = 0; link < appliance->links; link++) {
        appliance->io[link]->sent = nr_server_sent;
        appliance->io[link]->sent_context = appliance->server;
    }
    show(appliance, 0);
    return appliance;
}

void nr_appliance_close(struct nr_appliance *appliance)
{
    if (appliance == NULL)
        return;
    struct nr_engine *engine = appliance->engine;

    nr_appliance_leave(appliance);
    dispose(appliance);
    nr_engine_destroy(engine);
}
