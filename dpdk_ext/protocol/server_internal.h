/* What the server's files share. Only server*.c include it. */
#ifndef NR_PROTOCOL_SERVER_INTERNAL_H
#define NR_PROTOCOL_SERVER_INTERNAL_H

#include <stddef.h>

#include "../engine/maintain.h"
#include "../engine/random.h"
#include "server.h"

enum {
    NR_NOWHERE = UINT32_MAX,            /* no place in a queue or chain */
    NR_MAX_SESSIONS = 1 << 16,          /* 16 bits of a session's id stay random */
    NR_SESSION_HEAD = 4096,             /* bytes of a session before the memory of its slots: one page */
    NR_RETRY_NS = 10 * 1000 * 1000,     /* a queue's head is tried again after it, though nothing seems to have changed */
    NR_SWEEP_SESSIONS = 64,             /* that one sweep looks at */
    NR_SWEEP_DEATHS = 4,                /* that one sweep ends */
    NR_SWEEP_ACCESSES = 2048,           /* of memory, about, that one sweep spends on items that must leave */
    NR_LEAVE_ITEMS = 512,               /* of a table being reset: that leave at once */
    NR_LOOK_SLOTS = 8192,               /* of a table that one sweep counts for a histogram */
    NR_ITEM_MEMORY = sizeof(struct nr_wire_item) + NR_MAX_ITEM_COLUMNS, /* of an item that waits for its turn */
    NR_STATUSES_AT = NR_INSERT_ITEMS * NR_ITEM_MEMORY,                  /* uint8 of each decided item */
    NR_APPLIED_AT = NR_STATUSES_AT + NR_INSERT_ITEMS,                   /* uint16 of each fragment: records applied */
};
static_assert(NR_APPLIED_AT % 8 == 0 && NR_APPLIED_AT + NR_MAX_FRAGMENTS * sizeof(uint16_t) <= NR_SLOT_BYTES,
              "an INSERT fits its slot");

/* Whom a response goes to and what it answers: taken from the datagram, or from a slot that was set free. */
struct nr_answer {
    const struct nr_peer *peer;
    struct nr_session *session; /* NULL: none; the counter is 0 then */
    uint64_t received;          /* ns, of the answered datagram */
    uint32_t echo;              /* lower half of its counter */
    uint32_t session_id;
    uint32_t request;
    uint16_t fragment, fragments;
    uint8_t operation;
    uint8_t slot;
};

/* One datagram being handled. */
struct nr_arrival {
    struct nr_header header; /* aligned copy */
    const uint8_t *body;
    uint32_t length; /* of body, bytes */
    uint32_t size;   /* of the datagram, bytes */
    uint64_t now;
    struct nr_outbox *outbox;
    struct nr_session *session;
    const struct nr_peer *peer;
};

/* What a request waits in: one queue of its table and kind. */
enum nr_waiting {
    NR_NOT_WAITING = 0,
    NR_WAITING_INSERT = 1,
    NR_WAITING_SAMPLE = 2,
    NR_WAITING_ADMIN = 3,
    NR_WAITING_HISTOGRAM = 4,
    NR_WAITING_KINDS = 4
};

/* The last request of a slot. Its memory (NR_SLOT_BYTES) holds, by operation: INSERT: items that are not decided, keys of those
 * that are, their statuses, and the counts of applied records; SAMPLE: struct nr_draw_entry; GET: the same, then the keys;
 * HISTOGRAM: struct nr_histograms; UPDATE and DELETE: outcomes; STREAMS, PUBLISH and ADMIN: the result. */
struct nr_slot {
    uint32_t request;      /* number; 0 and operation 0: none yet */
    uint8_t operation;     /* enum nr_operation_code */
    uint8_t waiting;       /* enum nr_waiting */
    uint16_t fragments;    /* of the request */
    uint64_t taken;        /* bit i: fragment i has been taken */
    uint16_t status;       /* as struct nr_wire_state says it */
    uint16_t result_bytes; /* at the start of the memory, once status is NR_OK */
    uint32_t table;        /* whose queue it waits in; of a SAMPLE, GET, HISTOGRAM and ADMIN also else */
    uint32_t earlier, later; /* neighbours in that queue, by place; NR_NOWHERE: none */
    uint64_t received;       /* ns, of the last datagram of the request */
    uint32_t echo;           /* of the same */
    uint16_t fragment;       /* of the same */
    uint16_t wanted;         /* datagrams that a SAMPLE asked for at once */
    struct nr_wait wait;     /* when status is NR_WAIT_* and it is in no queue */
    union {
        struct {
            uint64_t seen; /* bit i: item i is in the memory */
            uint32_t sequence;
            uint16_t items;
            uint16_t cursor;  /* items below it are decided */
            uint16_t refusal; /* of the whole request, told when its turn comes; 0: none */
        } insert;
        struct {
            struct nr_draw draw;
            uint64_t bytes;  /* of the rows */
            uint32_t count;  /* of the rows */
            bool complete;   /* all of them have been sent once */
        } sample; /* and of a GET */
        struct {
            uint64_t bytes;   /* of the message, without its head */
            uint64_t version; /* FETCH */
            uint32_t set;
        } message;
        struct {
            uint32_t table;
            uint16_t count;
        } update;
        struct {
            uint64_t bytes;
            uint32_t set;
            uint32_t publication;
        } publish;
    };
};

struct nr_session {
    union {
        struct {
            uint32_t id;           /* never 0 while it lives; the owner of its streams */
            uint32_t index;        /* among the sessions */
            uint32_t max_datagram; /* bytes of UDP payload */
            uint32_t sequence;     /* of the INSERT whose turn it is */
            uint64_t counter;      /* of the last datagram sent */
            struct nr_peer peer;
            uint16_t inserts; /* bit: the slot holds an INSERT that is not finished */
            uint32_t publication[NR_MAX_SETS]; /* the latest that was begun */
            struct nr_slot slot[NR_SLOTS];
        };
        uint8_t page[NR_SESSION_HEAD];
    };
    uint8_t memory[NR_SLOTS][NR_SLOT_BYTES];
};
static_assert(offsetof(struct nr_session, memory) == NR_SESSION_HEAD, "a session that only looks touches one page");
static_assert(sizeof(struct nr_session) <= NR_SESSION_BYTES, "session");

/* What is looked at without touching the session. */
struct nr_directory {
    uint32_t id;     /* 0: free */
    uint32_t next;   /* in the chain of its nonce, or among the free; NR_NOWHERE: last */
    uint64_t heard;  /* ns, of its last datagram */
    uint64_t nonce;  /* of its HELLO */
};

/* Waiting requests of one table and kind, first come first served. A place is session index * 16 + slot. */
struct nr_waiters {
    uint32_t first, last;
    uint64_t progress; /* nr_table_progress when the first was tried last */
    uint64_t tried;    /* ns, when that was */
    struct nr_wait wait; /* what it was told then: all behind it wait for the same */
};

/* A publication being taken. */
struct nr_publication {
    uint64_t writer;   /* session id << 32 | publication; 0: none yet */
    uint64_t bytes;    /* in all */
    uint64_t received; /* bytes */
    uint64_t version;  /* 0 while bytes are missing */
};

struct nr_server {
    struct nr_engine *engine; /* not owned */
    struct nr_session *sessions; /* [config.sessions], one mapping, touched by those in use only */
    struct nr_directory *directory; /* [config.sessions] */
    uint32_t *chains;               /* [chain_mask + 1]: first session of each chain of nonces */
    struct nr_waiters (*waiters)[NR_WAITING_KINDS]; /* [tables] */
    struct nr_publication *publications;            /* [sets] */
    char *spec;
    uint32_t tables, sets;
    uint32_t index_mask; /* of a session's id: its index */
    uint32_t chain_mask;
    uint32_t free_first; /* of the free sessions: the one that became free last, so that memory once touched is used again */
    uint32_t sweep_next;
    uint32_t spec_bytes;
    uint64_t nonce_key; /* so that nobody can aim at one chain */
    uint64_t waiting[NR_MAX_TABLES / 64]; /* bit: a queue of the table is not empty */
    struct nr_random random;
    struct nr_server_config config;
    struct nr_server_counters counters;
    uint64_t keys[NR_UPDATE_KEYS]; /* of one UPDATE or DELETE datagram */
    double priorities[NR_UPDATE_KEYS];
};

static inline uint64_t nr_server_fragments(uint32_t fragments)
{
    return fragments >= 64 ? UINT64_MAX : (1ull << fragments) - 1;
}

static inline uint8_t *nr_server_memory(struct nr_session *session, const struct nr_slot *slot)
{
    return session->memory[slot - session->slot];
}

static inline uint32_t nr_server_place(const struct nr_session *session, const struct nr_slot *slot)
{
    return session->index * 16 + (uint32_t)(slot - session->slot);
}

/* server.c: answers. `result` follows the state. */
uint16_t nr_server_credits(const struct nr_server *server);
struct nr_answer nr_server_answer_to(const struct nr_arrival *arrival);
struct nr_answer nr_server_answer_late(struct nr_session *session, const struct nr_slot *slot);
void nr_server_send_state(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                          int status, const struct nr_wire_state *state, const void *result, uint32_t result_bytes);
/* How far the slot's request is. */
void nr_server_send_slot(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                         const struct nr_slot *slot);
/* The same for a fragment that was not taken because of `wait`. */
void nr_server_send_wait(struct nr_server *server, const struct nr_arrival *arrival, const struct nr_slot *slot,
                         const struct nr_wait *wait);
/* A response that is no longer than the request: stamps and state only where it had room for them. */
void nr_server_send_bare(struct nr_server *server, const struct nr_arrival *arrival, int status);
/* Writes header and stamps of a response of `length` bytes of body into the outbox's next place and pushes it. Its last bytes are
 * in so many segments, which have been filled. */
void nr_server_push(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now, int status,
                    uint8_t flags, uint32_t offset, uint32_t length, uint16_t segments);
void nr_server_malformed(struct nr_server *server);

/* The slot for a request whose datagram has been found well formed. NULL: of an earlier request, or of another operation under
 * the same number (counted). *fresh: it is new, and the slot has been recycled for it. */
struct nr_slot *nr_server_slot(struct nr_server *server, struct nr_arrival *arrival, bool *fresh);

/* server_session.c */
uint64_t nr_server_session_bytes(const struct nr_server_config *config);
int nr_server_sessions_open(struct nr_server *server);
void nr_server_sessions_close(struct nr_server *server);
struct nr_session *nr_server_session(struct nr_server *server, uint32_t id);
struct nr_session *nr_server_session_by_nonce(struct nr_server *server, uint64_t nonce, const struct nr_peer *peer);
struct nr_session *nr_server_session_new(struct nr_server *server, uint64_t nonce, const struct nr_peer *peer, uint64_t now);
void nr_server_session_end(struct nr_server *server, struct nr_session *session);
void nr_server_slot_clear(struct nr_server *server, struct nr_session *session, struct nr_slot *slot); /* ends a draw, a wait */
void nr_server_bye(struct nr_server *server, struct nr_arrival *arrival);
int nr_server_sessions_audit(const struct nr_server *server, char *message, size_t size);

/* server_park.c */
static inline struct nr_waiters *nr_server_waiters(struct nr_server *server, uint32_t table, enum nr_waiting kind)
{
    return &server->waiters[table][kind - 1];
}
void nr_server_park(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, enum nr_waiting kind,
                    uint32_t table);
void nr_server_unpark(struct nr_server *server, struct nr_session *session, struct nr_slot *slot);
/* The first of the queue was tried in vain. */
void nr_server_parked_again(struct nr_server *server, uint32_t table, enum nr_waiting kind, const struct nr_wait *wait,
                            uint64_t now);
/* Serves waiting requests whose tables made progress. */
void nr_server_pump(struct nr_server *server, uint64_t now, struct nr_outbox *outbox);
int nr_server_park_audit(const struct nr_server *server, char *message, size_t size);

/* one for each event */
void nr_server_hello(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_ping(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_streams(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_close(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_insert(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_sample(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_settle(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_read(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_message(struct nr_server *server, struct nr_arrival *arrival); /* FETCH, SPEC, TABLES */
void nr_server_update(struct nr_server *server, struct nr_arrival *arrival); /* UPDATE, DELETE */
void nr_server_admin(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_get(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_histogram(struct nr_server *server, struct nr_arrival *arrival);
void nr_server_publish(struct nr_server *server, struct nr_arrival *arrival);

/* server_insert.c: goes on with an INSERT whose turn it is. True when it left the queue that it stood first in. */
bool nr_server_insert_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                            struct nr_outbox *outbox);
/* server_sample.c: tries a draw. True unless it has to wait. */
bool nr_server_sample_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                            struct nr_outbox *outbox);

/* server_admin.c: looks whether it is done. True unless it has to wait. */
bool nr_server_admin_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                           struct nr_outbox *outbox);

/* server_look.c: a quantum of one histogram. True while there are more to be made. */
bool nr_server_look(struct nr_server *server, uint64_t now, struct nr_outbox *outbox);

/* The slot is one with a draw of its own. */
static inline bool nr_server_is_draw(const struct nr_slot *slot)
{
    return slot->operation == NR_OP_SAMPLE || slot->operation == NR_OP_GET;
}

/* server_read.c */
static inline bool nr_server_is_message(const struct nr_slot *slot)
{
    return nr_server_is_draw(slot) || slot->operation == NR_OP_FETCH || slot->operation == NR_OP_SPEC ||
           slot->operation == NR_OP_TABLES;
}
/* Up to `wanted` datagrams of the slot's message from `offset` on, or its state when there is none (yet), or nothing wanted. */
void nr_server_send_message(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                            struct nr_slot *slot, uint32_t offset, uint32_t wanted);

/* server.c: writes the message (two %llu), returns NR_MALFORMED. */
int nr_server_audit_says(char *message, size_t size, const char *format, uint64_t a, uint64_t b);

#endif
