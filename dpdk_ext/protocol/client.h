/* The client's side of the protocol, sans I/O: datagrams and a clock go in, datagrams and finished requests come out. All timers
 * of the protocol are here. It survives the server: when the server answers that it does not know the session, the client says
 * HELLO again, takes its streams up, sends again what was not acknowledged (with as much of each stream's past as its windows
 * need), starts unfinished requests anew, publishes its last parameters again to a new incarnation, and records what that
 * incarnation has lost.
 *
 * Not thread-safe. After any call, and when nr_client_wakeup is due, call nr_client_send and send what it put out. */
#ifndef NR_PROTOCOL_CLIENT_H
#define NR_PROTOCOL_CLIENT_H

#include "datagram.h"
#include "wire.h"

struct nr_client;
struct nr_request;

struct nr_client_config {
    uint32_t max_datagram;  /* UDP payload bytes that the path is believed to take */
    uint32_t window;        /* first congestion window, datagrams; 0: 32 */
    uint64_t seed;          /* of nonces */
    uint64_t least_timeout; /* of a retransmission, ns; 0: 3 ms */
};

struct nr_client *nr_client_create(const struct nr_client_config *config, int *status);
void nr_client_destroy(struct nr_client *client); /* frees every request as well */

void nr_client_receive(struct nr_client *client, const struct nr_rx *rx, uint64_t now);
void nr_client_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox);
uint64_t nr_client_wakeup(const struct nr_client *client, uint64_t now); /* when to call nr_client_send next; UINT64_MAX: never */
void nr_client_bye(struct nr_client *client, uint64_t now, struct nr_outbox *outbox); /* one farewell, unanswered */

/* NR_OK: a session is open and the spec is here. NR_PENDING: not yet, or between two sessions. Else fatal: NR_BAD_VERSION,
 * NR_TOO_MANY, NR_REFUSED, NR_BAD_CONFIG (a restarted server has another spec); nothing more will be sent. */
int nr_client_status(const struct nr_client *client);
const char *nr_client_spec(const struct nr_client *client); /* NULL before the first NR_OK */
/* What the spec says of tables and stores; needed before streams, samples and updates. Copied. */
int nr_client_layout(struct nr_client *client, const struct nr_engine_config *config);

/* True while something is unfinished that only nr_client_receive or nr_client_send can advance. */
bool nr_client_busy(const struct nr_client *client);
/* Rises whenever a request became final, an item was decided, room came free, or nr_client_status changed. */
uint64_t nr_client_progress(const struct nr_client *client);

struct nr_client_view {
    uint64_t heard;       /* `now` of the last datagram from the server; 0: never */
    uint64_t incarnation; /* 0: no session yet */
    uint64_t sessions;    /* opened so far */
    uint64_t datagrams_sent, datagrams_received, bytes_sent, bytes_received, retransmissions, round_trips, ignored;
    /* Where the time went since the client began, ns; settlements, which nobody waits for, are left out. */
    uint64_t answers;      /* datagrams that answered a request */
    uint64_t answer_time;  /* from a request's first datagram to each of its answers; moments of several requests count once */
    uint64_t serving_time; /* between the server's stamps of those answers, by its clock; moments of several answers count once */
    uint64_t smoothed_round_trip, least_round_trip; /* ns */
    uint32_t window, credits, outstanding, max_datagram;
};
void nr_client_look(const struct nr_client *client, struct nr_client_view *view);

/* Invariants between calls (tests, simulator): NR_OK, or NR_MALFORMED with a message. */
int nr_client_audit(const struct nr_client *client, char *message, size_t size);

/* ---- Requests. Each is the caller's until nr_request_free, which also cancels. ---- */

int nr_request_status(const struct nr_request *request); /* NR_PENDING, or final */
void nr_request_wait(const struct nr_request *request, struct nr_wait *wait); /* the server's last reason; reason 0: none */
void nr_request_free(struct nr_client *client, struct nr_request *request);

/* Up to NR_SAMPLE_ROWS rows straight into `rows` (count * row_bytes), which must stay until the request is final or freed.
 * Final NR_OK: all bytes are here and the lease is being ended. Then nr_client_settle ends it: taken (commit) or not (refund);
 * it frees the request, finished or not. */
struct nr_request *nr_client_sample(struct nr_client *client, uint32_t table, uint32_t count, void *rows, uint64_t now);
/* The rows of up to NR_GET_KEYS keys, which must stay, as `rows`, until the request is final or freed; see nr_draw_open_keys.
 * nr_request_draw says what the table was. nr_request_free ends it. */
struct nr_request *nr_client_get(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys, void *rows,
                                 uint64_t now);
/* *histograms is written when NR_OK. */
struct nr_request *nr_client_histograms(struct nr_client *client, uint32_t table, struct nr_histograms *histograms, uint64_t now);
/* Somebody waits for this sample now. Draws asked for in advance leave some places of a session to those. */
void nr_client_urge(struct nr_client *client, struct nr_request *request);
void nr_request_draw(const struct nr_request *request, struct nr_draw_head *head);
void nr_client_settle(struct nr_client *client, struct nr_request *request, bool taken, uint64_t now);

/* Up to NR_UPDATE_KEYS distinct keys. The arrays must stay until final; outcome[count] is written when NR_OK. */
struct nr_request *nr_client_update(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys,
                                    const double *priorities, uint8_t *outcome, uint64_t now);

/* The same for keys whose items are to leave. */
struct nr_request *nr_client_delete(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys,
                                    uint8_t *outcome, uint64_t now);

/* One whose answer is lost with its session is asked for again in the next. */
struct nr_request *nr_client_configure(struct nr_client *client, uint32_t table, const struct nr_limits_change *change,
                                       uint64_t now);
void nr_request_limits(const struct nr_request *request, struct nr_limits *limits); /* in force, when NR_OK */
struct nr_request *nr_client_reset(struct nr_client *client, uint32_t table, uint64_t now); /* final when every item has left */

/* `bytes` are copied (and kept for a new incarnation). */
struct nr_request *nr_client_publish(struct nr_client *client, uint32_t set, const void *bytes, uint64_t length, uint64_t expect,
                                     uint64_t now);
uint64_t nr_request_version(const struct nr_request *request); /* of a publish or fetch, when NR_OK */

struct nr_request *nr_client_fetch(struct nr_client *client, uint32_t set, uint64_t newer_than, uint64_t now);
struct nr_request *nr_client_tables(struct nr_client *client, uint64_t now);
/* The message of a fetch or tables request that is NR_OK: malloc'ed bytes that are now the caller's, NULL when empty. */
uint8_t *nr_request_take(struct nr_request *request, uint64_t *length);

struct nr_request *nr_client_ping(struct nr_client *client, uint32_t payload_bytes, uint64_t now);
void nr_request_ping(const struct nr_request *request, uint64_t *round_trip, uint64_t *server); /* ns */

/* ---- Streams and what is inserted ---- */

struct nr_client_stream_config {
    uint8_t id[16];
    uint32_t store;
    uint32_t ring;        /* steps that `steps` has room for, a power of two >= window + in_flight of the store */
    const uint8_t *steps; /* step n lies at (n & (ring - 1)) * stride; the owner fills it before nr_client_step */
    uint32_t stride;      /* bytes */
    uint32_t pad;
};
/* The stream's number in this client, or UINT32_MAX without memory. It is opened at the server by itself. */
uint32_t nr_client_stream_add(struct nr_client *client, const struct nr_client_stream_config *config);
/* No more of it will come; when all its items are decided it is closed at the server. `steps` must stay until
 * nr_client_stream_done. */
void nr_client_stream_end(struct nr_client *client, uint32_t stream);
bool nr_client_stream_done(const struct nr_client *client, uint32_t stream);
/* NR_OK, NR_PENDING, or why the server refused it in this session: NR_STREAM_OWNED, NR_TOO_MANY. The items of a refused stream are
 * decided by that status without being sent; the next session asks for it again. */
int nr_client_stream_status(const struct nr_client *client, uint32_t stream);

/* Steps that may be pushed now before the stream's credits (in_flight of the store) end, and the number the next has. The ring
 * place of that many next steps may be overwritten. */
uint32_t nr_client_stream_room(const struct nr_client *client, uint32_t stream);
uint64_t nr_client_stream_next(const struct nr_client *client, uint32_t stream);

/* Step nr_client_stream_next() is in its ring place, `total` bytes of it (step_bytes or observation_bytes). Needs room.
 * NR_NO_MEMORY: not taken. */
int nr_client_step(struct nr_client *client, uint32_t stream, uint32_t total);

/* An item over steps already pushed; `item->number` is set here. `tag` comes back in nr_client_decided. NR_NO_MEMORY possible. */
int nr_client_item(struct nr_client *client, uint32_t stream, uint32_t table, const struct nr_item *item, uint64_t tag);
/* Send what waits for company as soon as the window lets it: until all items pushed so far are decided. */
void nr_client_flush(struct nr_client *client);

/* Why the server holds back the oldest insert that it holds back; reason 0: none. */
void nr_client_insert_wait(const struct nr_client *client, struct nr_wait *wait);

/* Items decided since the last call, in the order they were pushed. NR_DUPLICATE: stored, but its acknowledgement and key were
 * lost with a session. */
struct nr_decided {
    uint64_t tag;
    uint64_t key; /* NR_KEY_NONE unless NR_OK */
    int32_t status; /* enum nr_status */
    uint32_t stream;
};
uint32_t nr_client_decided(struct nr_client *client, uint32_t capacity, struct nr_decided *decided);

struct nr_client_loss {
    uint8_t stream[16];
    uint32_t number; /* of the stream in this client */
    uint32_t replaced; /* 1: the server forgot the stream though it was not restarted; it begins anew */
    uint64_t first_item; /* items [first_item, first_item + items) were acknowledged and are gone */
    uint64_t items;
    uint64_t incarnation;
};
uint32_t nr_client_losses(struct nr_client *client, uint32_t capacity, struct nr_client_loss *losses);

#endif
