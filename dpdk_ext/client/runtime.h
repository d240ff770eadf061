/* What is inside the handles of replay.h, and what a backend provides. Private to client/.
 *
 * One mutex guards a replay with all its actors, samples and operations; it is never held while sleeping. What an actor's own
 * thread alone touches (its episodes, the ring places beyond the committed steps) is written without it. */
#ifndef NR_CLIENT_RUNTIME_H
#define NR_CLIENT_RUNTIME_H

#include <pthread.h>
#include <stdatomic.h>

#include "former.h"
#include "history.h"
#include "layout.h"
#include "replay.h"

struct nr_request;

/* ---- The replay ---- */

struct nr_backend;

/* First member of both backends' objects. */
struct nr_replay {
    const struct nr_backend *backend;
    pthread_mutex_t mutex;       /* guards everything below, and what the backend adds */
    pthread_cond_t changed;      /* on CLOCK_MONOTONIC: something that a blocked call waits for may have happened */
    uint32_t sleepers;           /* threads that wait for `changed` */
    uint32_t generation;         /* of this process (nr_fork_generation) when it was made */
    _Atomic uint32_t arrivals;   /* threads that want the mutex: whoever spins lets them in */
    _Atomic uint32_t closed;     /* 1: every blocked and every later call answers NR_CLOSED */
    struct nr_layout *layout;    /* NULL before nr_replay_layout */
    char *spec;                  /* local only: what nr_replay_spec answers */
    struct nr_actor *actors;     /* open ones */
    struct nr_operation *spare_operations, *operations; /* unused; all that exist */
    struct nr_sample *spare_samples, *samples;          /* unused; all that exist */
    struct nr_wait append_wait;  /* why the last append or insert had to wait */
    uint64_t stalls;             /* appends that had to wait */
};

/* Every function is called with the mutex held; `wait` gives it up while it sleeps and takes it again. */
struct nr_backend {
    void (*destroy)(struct nr_replay *replay); /* without the mutex; frees the object; nobody is inside */
    void (*close)(struct nr_replay *replay);   /* `closed` is set: says farewell, wakes what sleeps outside `changed` */
    int (*ready)(struct nr_replay *replay);    /* NR_OK, NR_PENDING, or why it never will be */
    int (*layout)(struct nr_replay *replay);   /* replay->layout has just been set */
    const char *(*spec)(const struct nr_replay *replay); /* without the mutex */
    /* Sleeps until something may have changed, `now` reaches `until`, or it seems so. */
    void (*wait)(struct nr_replay *replay, uint64_t now, uint64_t until);
    /* The mutex is about to be given up after a call that may have left work open. */
    void (*leave)(struct nr_replay *replay);

    uint32_t (*places)(const struct nr_store_config *store); /* steps per stream that an actor's history must hold */
    int (*actor_open)(struct nr_actor *actor);
    /* The actor leaves the list. Returns false while the backend still reads its history: then the backend frees it. */
    bool (*actor_close)(struct nr_actor *actor);
    /* NR_OK when `steps` more may be committed, NR_PENDING while not, or why they never will. */
    int (*room)(const struct nr_actor *actor, uint32_t stream, uint32_t steps);
    void (*push)(struct nr_actor *actor, uint64_t now);              /* more has been committed */

    size_t part_bytes; /* that a sample keeps per part for the backend */
    int (*sample_start)(struct nr_sample *sample, uint64_t now);
    int (*sample_poll)(struct nr_sample *sample, uint64_t now); /* NR_PENDING, or final */
    void (*sample_end)(struct nr_sample *sample, bool taken, uint64_t now);

    int (*operation_start)(struct nr_operation *operation, uint64_t now); /* NR_PENDING, or final */
    int (*operation_poll)(struct nr_operation *operation, uint64_t now);
    void (*operation_end)(struct nr_operation *operation); /* drops what the backend holds for it, finished or not */

    void (*blocked)(struct nr_replay *replay, struct nr_blocked *blocked); /* all but `wait` */
    /* Why inserts are held back, where `append_wait` does not say; may be NULL. */
    void (*insert_wait)(struct nr_replay *replay, struct nr_wait *wait);
    uint32_t (*losses)(struct nr_replay *replay, uint32_t capacity, struct nr_loss *losses);
    void (*counters)(struct nr_replay *replay, struct nr_replay_counters *counters);
};

uint32_t nr_fork_generation(void); /* differs in a child from its parent's */
uint64_t nr_clock(void);           /* CLOCK_MONOTONIC, ns */

/* Initialises the shared part. NR_OK, NR_NO_MEMORY or NR_SYSTEM. */
int nr_replay_begin(struct nr_replay *replay, const struct nr_backend *backend);
/* Frees the shared part: its actors, samples and operations too. */
void nr_replay_end(struct nr_replay *replay);

/* Takes the mutex; when another has it, says so to whoever spins around it. */
static inline void nr_lock(struct nr_replay *replay)
{
    if (pthread_mutex_trylock(&replay->mutex) == 0)
        return;
    atomic_fetch_add_explicit(&replay->arrivals, 1, memory_order_relaxed);
    pthread_mutex_lock(&replay->mutex);
    atomic_fetch_sub_explicit(&replay->arrivals, 1, memory_order_relaxed);
}

/* NR_OK with the mutex held, or NR_FORKED or NR_CLOSED without it. */
int nr_enter(struct nr_replay *replay);
void nr_leave(struct nr_replay *replay);

/* Wakes all that sleep on `changed`. Mutex held. */
static inline void nr_notify(struct nr_replay *replay)
{
    if (replay->sleepers != 0)
        pthread_cond_broadcast(&replay->changed);
}

/* Sleeps on `changed` until woken or until `until` (ns; UINT64_MAX: no end). Mutex held. */
void nr_sleep(struct nr_replay *replay, uint64_t until);

typedef int (*nr_poll_fn)(void *what, uint64_t now);
/* Calls `poll` until it answers something other than NR_PENDING, the replay is closed (NR_CLOSED) or wait_ns are over
 * (NR_PENDING), sleeping between. Mutex held. */
int nr_await(struct nr_replay *replay, nr_poll_fn poll, void *what, uint64_t wait_ns);

/* ---- Actors ---- */

struct nr_kept_key {
    uint64_t key;   /* NR_KEY_NONE unless stored and known */
    int32_t status; /* enum nr_status; NR_PENDING while undecided */
    uint32_t pad;
};

struct nr_actor {
    struct nr_replay *replay;
    struct nr_actor *next; /* in replay->actors */
    uint64_t id;           /* never used again in this process */
    uint32_t store;
    uint32_t streams;
    uint32_t autoreset; /* enum nr_autoreset */
    uint32_t staging;   /* 1: a call is staged */
    uint32_t dead;      /* 1: closed, but the backend still reads the history */
    uint32_t pad;
    struct nr_formers *formers;
    struct nr_history history;
    struct nr_episode *episodes; /* [streams] with the staged call taken in */
    struct nr_episode *saved;    /* [streams] without it; valid while staging */
    float *rewards;              /* [streams][formers->reward_ring] */
    uint8_t *kinds;              /* [streams] enum nr_row_kind of the staged call */

    /* Items by their number within the actor: decided <= head <= committed <= staged. */
    struct nr_formed *queue;             /* items [queue_base, staged); those from head on are still needed */
    uint64_t queue_base;                 /* number of the item at queue[0] */
    uint64_t queue_size;                 /* items that there is room for */
    uint64_t head;                       /* the next to give to the engine or the protocol */
    uint64_t committed, staged;          /* items below are committed; are formed */
    uint64_t decided;                    /* items [.., decided) are decided */
    uint64_t kept;                       /* keys [kept, committed) are held */
    struct nr_kept_key *keys;            /* key i lies at i & (keys_size - 1) */
    uint64_t keys_size;                  /* a power of two */
    uint64_t version;                    /* `version` column of the next items */
    uint64_t dropped;                    /* anchors of the staged call that make no item */
    struct nr_actor_counters counters;

    uint32_t *stream;    /* [streams] the engine's handle, or the protocol client's number */
    uint64_t *written;   /* local: [streams] steps below are in the engine */
    uint64_t *next_item; /* local: [streams] number of the stream's next item */
};

/* Steps of the stream below this number are committed. */
static inline uint64_t nr_actor_end_of(const struct nr_actor *actor, uint32_t stream)
{
    return actor->staging ? actor->saved[stream].next : actor->episodes[stream].next;
}

static inline struct nr_formed *nr_actor_item(const struct nr_actor *actor, uint64_t number)
{
    return &actor->queue[number - actor->queue_base];
}

/* Item `number` of the actor is decided. Mutex held. */
void nr_actor_decide(struct nr_actor *actor, uint64_t number, int status, uint64_t key);
void nr_actor_free(struct nr_actor *actor); /* memory only */

/* ---- Samples ---- */

struct nr_sample_part {
    struct nr_draw_head head;    /* valid when the part is whole */
    struct nr_request *request;  /* network: until settled */
    uint32_t count;              /* rows */
    uint32_t whole;              /* 1: all its bytes are here */
    uint8_t *own;                /* backend->part_bytes */
};

struct nr_sample {
    struct nr_replay *replay;
    struct nr_sample *next;    /* unused ones */
    struct nr_sample *all;     /* all of the replay's */
    struct nr_sample *waiting; /* the next that is not whole */
    uint8_t *rows;             /* the caller's, count * row_bytes */
    const uint64_t *keys;      /* the caller's [count]: items to look at; NULL: they are drawn */
    uint32_t row_bytes;
    uint32_t table;
    uint32_t count;    /* rows */
    uint32_t part_rows; /* of each part but the last */
    uint32_t parts;    /* in use */
    uint32_t capacity; /* parts that there is room for */
    uint32_t done;     /* parts that are whole, of the first */
    bool urgent;       /* network: somebody waits for it */
    int status;        /* NR_PENDING, or final */
    struct nr_wait wait;
    struct nr_sample_part part[];
};

/* ---- Operations ---- */

enum nr_operation_kind {
    NR_FLUSH,
    NR_UPDATE,
    NR_DELETE,
    NR_CONFIGURE,
    NR_RESET,
    NR_PUBLISH,
    NR_FETCH,
    NR_TABLES,
    NR_PING,
    NR_LOOK
};

/* Memory that stays with its operation from use to use. */
struct nr_scratch {
    void *bytes;
    size_t size;
};

struct nr_flush_call {
    struct nr_actor *actor;
    uint64_t target; /* items below must be decided */
};

/* An update, or a deletion, with its repeated keys taken out. */
struct nr_update_call {
    uint32_t table;
    uint32_t count; /* of the caller's arrays */
    uint8_t *outcome;
    const uint64_t *keys; /* [distinct]; the caller's own arrays when nothing was repeated */
    const double *priorities; /* NULL of a deletion */
    uint8_t *distinct_outcome;
    const uint32_t *place; /* [distinct] indices into the caller's arrays; NULL: the same */
    uint32_t distinct;
    uint32_t sent;         /* network: keys that have a request */
};

struct nr_admin_call {
    struct nr_limits_change change; /* NR_CONFIGURE */
    struct nr_limits *limits;       /* the caller's; NR_CONFIGURE */
    uint32_t table;
};

struct nr_publish_call {
    const void *bytes;
    uint64_t length;
    uint64_t expect;
    uint64_t *version; /* the caller's */
    uint32_t set;
};

struct nr_fetch_call {
    struct nr_fetched *fetched; /* the caller's */
    uint64_t newer_than;
    uint32_t set;
};

struct nr_tables_call {
    struct nr_table_info *tables; /* the caller's */
    uint32_t capacity;
};

struct nr_look_call {
    struct nr_histograms *histograms; /* the caller's */
    uint32_t table;
};

struct nr_ping_call {
    struct nr_ping *ping; /* the caller's */
    uint32_t payload_bytes;
};

struct nr_operation {
    struct nr_replay *replay;
    struct nr_operation *next; /* unused ones */
    struct nr_operation *all;  /* all of the replay's */
    uint32_t kind;             /* enum nr_operation_kind */
    uint32_t requests;         /* network: in use of `request` */
    uint32_t request_room;     /* network: allocated of `request` */
    uint32_t counted;          /* local: 1 among the publications that wait */
    struct nr_request **request;
    struct nr_wait wait; /* why it waits, last heard */
    struct nr_scratch scratch;
    union {
        struct nr_flush_call flush;
        struct nr_update_call update;
        struct nr_admin_call admin;
        struct nr_publish_call publish;
        struct nr_fetch_call fetch;
        struct nr_tables_call tables;
        struct nr_ping_call ping;
        struct nr_look_call look;
    };
};

/* At least `size` bytes, or NULL. */
void *nr_scratch_take(struct nr_scratch *scratch, size_t size);

#endif
