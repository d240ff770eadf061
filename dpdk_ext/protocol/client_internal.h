/* What the client's files share. Only client_*.c include it. */
#ifndef NR_PROTOCOL_CLIENT_INTERNAL_H
#define NR_PROTOCOL_CLIENT_INTERNAL_H

#include <stdlib.h>

#include "client.h"

enum {
    NR_MICROSECOND = 1000,
    NR_MILLISECOND = 1000 * 1000,
    NR_NO_SLOT = 0xff,
    NR_PULL_RANGES = 32,      /* READs of one message that may be on their way */
    NR_RANGE_DATAGRAMS = 16,  /* datagrams that one READ asks for at most */
    NR_SENT_RING = 1024,      /* send times kept, by counter; a power of two */
    NR_INSERTS_ACTIVE = 3,    /* INSERT requests of a session at once */
    NR_SAMPLES_ACTIVE = 11,   /* draws at once: one slot is left to everything else */
    NR_SAMPLES_AHEAD = 8,     /* of them, those that nobody waits for yet: what was fetched ahead starves nobody */
    NR_LEAST_WINDOW = 8,      /* datagrams, whatever congestion says */
    NR_MOST_WINDOW = 1024,    /* datagrams */
    NR_SETTLE_DELAY = 500 * NR_MICROSECOND, /* how long a settlement waits for a SAMPLE to carry it */
    NR_LEAST_TIMEOUT = 3 * NR_MILLISECOND,
    NR_MOST_TIMEOUT = 200 * NR_MILLISECOND,
    NR_FIRST_TIMEOUT = 20 * NR_MILLISECOND, /* before any round trip was measured */
    NR_LEAST_REPEAT = 5 * NR_MILLISECOND,   /* of a request that waits at the server */
    NR_MOST_REPEAT = 100 * NR_MILLISECOND,
};
#define NR_KEEPALIVE (1000ull * NR_MILLISECOND) /* silence after which a publisher looks whether the server is still the same */

enum nr_class { NR_CLASS_SAMPLE, NR_CLASS_INSERT, NR_CLASS_OTHER, NR_CLASSES };

struct nr_request;

/* What differs between operations. */
struct nr_call {
    uint8_t operation; /* enum nr_operation_code */
    uint8_t class;     /* enum nr_class; of no meaning when stateless */
    bool stateless;
    bool pull; /* answered by a message that is read in ranges */
    /* How many datagrams it takes in this session; NULL: one, or set already. */
    uint32_t (*fragments)(const struct nr_client *client, const struct nr_request *request);
    /* Writes the body of one fragment; returns its bytes. `capacity` is the room. */
    uint32_t (*write)(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body, uint32_t capacity);
    /* The result of a request that is done (after the state), or NULL. Returns the final status; NR_PENDING: it goes on. */
    int (*result)(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now);
    /* Called when the request is final by refusal, and the client itself owns it. May be NULL. */
    void (*refused)(struct nr_client *client, struct nr_request *request, int status);
};

struct nr_range {
    uint32_t first;   /* chunk */
    uint32_t count;   /* chunks; 0: unused */
    uint32_t missing; /* of them, not arrived: counted as outstanding */
    uint64_t sent;    /* when asked for, ns */
};

/* A message being read. Chunk i is its bytes [i * chunk, (i + 1) * chunk). */
struct nr_pull {
    struct nr_wire_message head;
    uint8_t *target;    /* where the bytes after the head go */
    uint64_t capacity;  /* of target, bytes */
    uint64_t *arrived;  /* bitmap of chunks */
    uint64_t bytes;     /* of the whole message, head included; 0: not known */
    uint32_t chunk;     /* bytes */
    uint32_t chunks;    /* 0: not known */
    uint32_t left;      /* chunks not arrived */
    uint32_t next;      /* chunks below it were asked for at least once */
    uint32_t head_left; /* bytes of the head not arrived */
    uint32_t words;     /* of arrived, allocated */
    bool answered;      /* any chunk has arrived in this session */
    bool owned;         /* target is malloc'ed here */
    struct nr_range range[NR_PULL_RANGES];
};

struct nr_position {
    uint64_t record; /* in the log */
    uint32_t offset; /* bytes into a step record */
};

/* One INSERT: records [start[0], start[fragments]) of the log; fragment i begins at start[i]. */
struct nr_insert {
    struct nr_position start[NR_MAX_FRAGMENTS + 1];
    uint32_t sequence;
    uint16_t items;
    uint16_t fragments;
    bool done; /* its results stand in the log's records */
};

struct nr_request {
    struct nr_request *next; /* in a queue, or among the free */
    const struct nr_call *call;
    int32_t status; /* enum nr_status */
    uint32_t number;
    uint8_t slot;      /* NR_NO_SLOT while queued or over */
    bool urgent;       /* SAMPLE: somebody waits for it */
    bool internal;     /* freed here when final */
    bool waiting;      /* the server's last answer was NR_WAIT_*, or all fragments are there and it is not its turn */
    bool ask_state;    /* the next datagram is a READ of the state */
    uint16_t fragments;
    uint16_t repeats;  /* timeouts, or waits, in a row */
    uint64_t taken;    /* fragments that the server has */
    uint64_t inflight; /* fragments sent and not answered: counted as outstanding */
    uint64_t first_sent; /* its first datagram, whatever was repeated since, ns; 0: nothing yet */
    uint64_t last_sent; /* ns */
    uint64_t hold;      /* nothing is sent before, ns */
    uint64_t age;       /* order of beginning */
    struct nr_wait wait;

    /* arguments and results, by operation */
    uint32_t index; /* table, set, or store */
    uint32_t count; /* rows, keys, streams, payload bytes */
    union {
        struct {
            struct nr_wire_settle settle[NR_SETTLES_PER_REQUEST]; /* carried; SETTLE and SAMPLE */
            uint32_t settles;
            bool collected; /* `settle` is what was, or will be, sent */
            bool carried;   /* they were delivered, or taken back */
        };
        struct nr_histograms *histograms; /* the caller's */
        struct {
            const uint64_t *keys; /* UPDATE, GET */
            const double *priorities;
            uint8_t *outcome;
        };
        struct {
            uint32_t kind; /* enum nr_admin_kind */
            struct nr_limits_change change;
            struct nr_limits limits; /* result */
        } admin;
        struct {
            uint8_t *bytes; /* of a publication: the set's copy in `saved` when internal, else its own */
            uint64_t length, base, expect;
            uint32_t publication;
        };
        struct {
            uint64_t newer_than;
        };
        struct {
            uint32_t members[NR_STREAMS_PER_REQUEST]; /* streams being opened or closed */
        };
        struct {
            uint64_t round_trip, residence, began; /* PING, ns */
        };
        struct nr_insert *insert;
    };
    uint64_t version;    /* PUBLISH, FETCH */
    struct nr_pull pull; /* SAMPLE, GET, FETCH, SPEC, TABLES */
};

struct nr_client_slot {
    struct nr_request *request; /* NULL: none */
    uint32_t number;            /* last used in this session */
    uint8_t due;                /* NR_SETTLE_* to be delivered for `number` */
    uint8_t carried;            /* of them, on their way in a request */
    uint8_t done;               /* delivered */
    bool settling;              /* the slot is a draw that is not wholly settled */
    uint64_t due_since;         /* ns */
};

struct nr_logged {
    uint8_t type;  /* enum nr_record of wire.h */
    uint8_t flags; /* NR_ITEM_* */
    uint16_t table;
    uint32_t stream;
    uint64_t number;     /* of the step or item in its stream */
    uint64_t first_step; /* item */
    double priority;
    uint16_t steps, anchor;
    uint32_t total; /* step: bytes */
    uint64_t tag;
    uint64_t key;   /* item, once decided; else NR_KEY_NONE */
    int32_t status; /* item, once decided */
    uint8_t columns[NR_MAX_ITEM_COLUMNS];
};

struct nr_client_stream {
    uint8_t id[16];
    const uint8_t *steps;
    uint8_t *partial;   /* [ring] 1: only the observation */
    uint32_t ring, stride, store;
    uint32_t handle;
    int32_t status;     /* NR_PENDING until open */
    bool used, opening, ever, ended, closed;
    uint64_t next_step, next_item; /* to be pushed */
    uint64_t decided_step, decided_item; /* all below are decided */
    uint64_t lost_item; /* losses below are reported */
    uint64_t session_incarnation; /* of the server that last opened it */
};

struct nr_saved {
    uint8_t *bytes; /* last publication; NULL: none */
    uint64_t length;
};

enum nr_client_state { NR_CLIENT_HELLO, NR_CLIENT_SPEC, NR_CLIENT_READY, NR_CLIENT_FATAL };

struct nr_queue {
    struct nr_request *first, **last;
};

struct nr_client {
    /* session */
    int32_t fatal; /* status in NR_CLIENT_FATAL */
    enum nr_client_state state;
    uint32_t session;
    uint32_t max_datagram, credits;
    uint64_t nonce, incarnation, sessions;
    uint32_t hello_tries;
    uint64_t hello_at; /* next HELLO, ns */
    char *spec;
    uint64_t spec_of; /* incarnation that `spec` was read from, or found equal to */
    uint64_t counter; /* of the last datagram sent */
    uint64_t heard, progress, random;
    struct nr_client_config config;

    /* layout */
    uint32_t store_count, table_count;
    struct nr_store_config *stores;
    struct nr_table_config *tables;

    /* window */
    uint64_t sent_at[NR_SENT_RING];
    uint64_t sent_counter[NR_SENT_RING];
    uint64_t smoothed, variance, least; /* round trip, ns */
    double window;                      /* datagrams */
    bool steady;                        /* it was cut once: from then on it grows by one an epoch, before it doubles */
    uint32_t outstanding;
    uint32_t epoch_answers, epoch_lost; /* datagrams since the window was last judged */
    uint64_t epoch_least;               /* round trip since then, ns */
    uint64_t timed_until;               /* view.answer_time counts up to here, ns */
    uint64_t served_until;              /* view.serving_time counts up to here, ns of the server's clock */

    /* requests */
    struct nr_client_slot slots[NR_SLOTS];
    struct nr_request *stateless; /* list of PING, SETTLE, CLOSE on their way */
    struct nr_queue queue[NR_CLASSES];
    struct nr_request *free;
    uint32_t active[NR_CLASSES]; /* slots in use, settling ones included */
    uint32_t stateless_number;
    uint64_t age;
    uint32_t publication;
    struct nr_saved saved[NR_MAX_SETS];

    /* inserts */
    struct nr_logged *log;
    uint64_t log_mask;
    uint64_t tail, head;         /* undecided records */
    struct nr_position cursor;   /* next to be packed */
    uint64_t flush_to;           /* records below are not to wait for company */
    uint64_t waiting_bytes;      /* from the cursor on, as records */
    uint32_t waiting_items;
    uint32_t sequence;           /* of the next INSERT */
    struct nr_insert inserts[NR_INSERTS_ACTIVE]; /* by sequence % NR_INSERTS_ACTIVE */
    uint32_t insert_first;       /* sequence of the oldest not done */
    struct nr_client_stream *streams;
    uint32_t stream_count, stream_capacity;
    uint32_t unopened;           /* streams in use with status NR_PENDING */
    uint32_t unclosed;           /* ended streams not yet closed */
    uint32_t recovering;         /* of the unopened, those that had been open before */
    struct nr_decided *decided;
    uint64_t decided_mask, decided_head, decided_tail;
    struct nr_client_loss *losses;
    uint32_t loss_count, loss_capacity;

    struct nr_client_view view; /* counters only */
};

/* client_window.c */
void nr_window_sent(struct nr_client *client, uint64_t counter, uint64_t now);
/* Time from the sending of the answered datagram; 0: it is not known any more. */
uint64_t nr_window_answered(struct nr_client *client, const struct nr_wire_stamps *stamps, uint64_t now);
/* Adds an answer to view.answer_time and view.serving_time; `sent` is when the first datagram of its request left. */
void nr_window_time(struct nr_client *client, const struct nr_wire_stamps *stamps, uint64_t sent, uint64_t now);
void nr_window_lost(struct nr_client *client, uint32_t datagrams);
void nr_window_reset(struct nr_client *client);
uint32_t nr_window_room(const struct nr_client *client);
uint64_t nr_window_timeout(const struct nr_client *client, uint32_t repeats);

/* client_session.c */
void nr_session_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox);
void nr_session_welcome(struct nr_client *client, const struct nr_header *header, const uint8_t *body, uint64_t now);
void nr_session_lost(struct nr_client *client, uint64_t now);
void nr_session_fatal(struct nr_client *client, int status);

/* client_request.c */
struct nr_request *nr_request_new(struct nr_client *client, const struct nr_call *call);
void nr_request_release(struct nr_client *client, struct nr_request *request); /* to the free list */
void nr_request_begin(struct nr_client *client, struct nr_request *request);   /* queues it */
void nr_request_finish(struct nr_client *client, struct nr_request *request, int status, uint64_t now);
void nr_request_unsend(struct nr_client *client, struct nr_request *request); /* nothing of it counts as outstanding any more */
void nr_request_detach(struct nr_client *client, struct nr_request *request); /* out of its slot or list */
void nr_requests_start(struct nr_client *client, uint64_t now);
void nr_requests_expire(struct nr_client *client, uint64_t now);
void nr_requests_transmit(struct nr_client *client, uint64_t now, struct nr_outbox *outbox);
uint64_t nr_requests_due(const struct nr_client *client, uint64_t now);
void nr_request_answer(struct nr_client *client, struct nr_request *request, const struct nr_header *header, const uint8_t *body,
                       uint64_t now);
int nr_slot_take(struct nr_client *client, enum nr_class class); /* a free slot's number, or -1 */
/* Writes header and counter; the caller has put `length` bytes of body. */
void nr_emit(struct nr_client *client, uint8_t *datagram, const struct nr_header *header, uint64_t now, struct nr_outbox *outbox);
static inline uint64_t nr_fragments_all(uint32_t fragments)
{
    return fragments >= 64 ? UINT64_MAX : (1ull << fragments) - 1;
}

/* client_pull.c */
void nr_pull_reset(struct nr_client *client, struct nr_request *request); /* as if never asked */
void nr_pull_free(struct nr_request *request);
uint32_t nr_pull_first(struct nr_client *client, struct nr_request *request, uint64_t now); /* datagrams to want at once */
void nr_pull_unsend(struct nr_client *client, struct nr_request *request);
void nr_pull_data(struct nr_client *client, struct nr_request *request, const struct nr_header *header, const uint8_t *bytes,
                  uint32_t length, uint64_t now);
void nr_pulls_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox);
uint64_t nr_pull_due(const struct nr_client *client, const struct nr_request *request);
void nr_pull_expire(struct nr_client *client, struct nr_request *request, uint64_t now);

/* client_calls.c */
extern const struct nr_call nr_call_sample, nr_call_get, nr_call_histogram, nr_call_update, nr_call_publish, nr_call_fetch,
    nr_call_tables, nr_call_spec, nr_call_ping;
void nr_publish_again(struct nr_client *client);
void nr_keepalive(struct nr_client *client, uint64_t now);
bool nr_keepalive_wanted(const struct nr_client *client);

/* client_admin.c */
extern const struct nr_call nr_call_delete, nr_call_admin;

/* client_settle.c */
extern const struct nr_call nr_call_settle;
void nr_settle_due(struct nr_client *client, uint32_t slot, uint8_t settle, uint64_t now);
uint32_t nr_settle_collect(struct nr_client *client, struct nr_request *carrier);
void nr_settle_delivered(struct nr_client *client, struct nr_request *carrier);
void nr_settle_undelivered(struct nr_client *client, struct nr_request *carrier);
/* What is due waits no longer for a SAMPLE. */
void nr_settle_hurry(struct nr_client *client);
void nr_settle_send(struct nr_client *client, uint64_t now);
/* Sends what is still due in a datagram that nobody waits for: the session is about to end, and a batch that was taken counts. */
void nr_settle_last(struct nr_client *client, uint64_t now, struct nr_outbox *outbox);
uint64_t nr_settle_wakeup(const struct nr_client *client);

/* client_insert.c, client_stream.c */
extern const struct nr_call nr_call_insert, nr_call_streams, nr_call_close;
void nr_inserts_build(struct nr_client *client, uint64_t now);
void nr_inserts_reset(struct nr_client *client);
void nr_inserts_pop(struct nr_client *client);
int nr_log_reserve(struct nr_client *client, uint64_t records);
struct nr_logged *nr_log_front(struct nr_client *client); /* a new record before the tail; room was reserved */
void nr_streams_open(struct nr_client *client);
void nr_streams_close(struct nr_client *client);
void nr_streams_reset(struct nr_client *client);

/* Its message is rows, which the server leases until they are released. */
static inline bool nr_request_draws(const struct nr_request *request)
{
    return request->call == &nr_call_sample || request->call == &nr_call_get;
}

static inline uint64_t nr_client_random(struct nr_client *client)
{
    uint64_t z = (client->random += 0x9e3779b97f4a7c15ull); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

#endif
