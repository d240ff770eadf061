/* The server's side of the protocol, sans I/O: datagrams and a clock go in, datagrams come out. It has no timers: it answers what
 * it is asked, and what a datagram set free, and sweeps dead sessions a few at a time. It owns the sessions and their slots; the
 * engine's operations hold all meaning. */
#ifndef NR_PROTOCOL_SERVER_H
#define NR_PROTOCOL_SERVER_H

#include "datagram.h"
#include "wire.h"

struct nr_server;

/* Shorter runs are cheaper copied than referred to (docs/architecture.md, "Segments"). */
#define NR_SEGMENT_LEAST 1024

struct nr_server_config {
    uint32_t sessions;       /* at once */
    uint32_t max_datagram;   /* UDP payload bytes that this side can send and receive */
    uint32_t receive_buffer; /* datagrams that packet I/O can hold: all sessions' credits together stay within */
    uint32_t segment_least;  /* bytes of a step that leave by reference, not copied; 0: NR_SEGMENT_LEAST, UINT32_MAX: never */
    uint64_t session_ns;     /* a session silent for longer may be swept */
    uint64_t incarnation;    /* random, never 0 */
    uint64_t start_seconds;  /* Unix time */
    const char *spec;        /* copied */
};

struct nr_server_counters {
    uint64_t datagrams_in, datagrams_out, bytes_in, bytes_out;
    uint64_t malformed, bad_version, no_session, wrong_peer, refused;
    uint64_t old, duplicates; /* of an earlier request of the slot (dropped); repeats (answered, not done again) */
    uint64_t sessions_opened, sessions_swept, sessions_open;
    uint64_t parked;                                            /* requests waiting now */
    uint64_t inserts, samples, updates, deletes, publishes, fetches, pings, gets, histograms; /* requests completed */
    uint64_t admins;                                            /* ADMIN requests begun */
    uint64_t rows_bytes;                                        /* of rows sent, first time and again */
};

uint64_t nr_server_bytes(const struct nr_server_config *config);
struct nr_server *nr_server_create(struct nr_engine *engine, const struct nr_server_config *config, int *status);
void nr_server_destroy(struct nr_server *server);

/* Takes one datagram; answers, and what it set free, are put into the outbox (at most NR_MAX_WANTED datagrams for each). */
void nr_server_receive(struct nr_server *server, const struct nr_rx *rx, uint64_t now, struct nr_outbox *outbox);
/* Drops the reference of a sent segment, once for each: what packet I/O calls back (nr_sent_fn), `server` being its context. Every
 * token that came out of the outbox must come back here before the server is destroyed, or never. */
void nr_server_sent(void *server, uint64_t token);
/* Looks at a few sessions for ones that died, and goes on with what takes longer than one call may: items that must leave,
 * histograms. Call it now and then (every millisecond or every thousand datagrams), and as often as can be while
 * nr_engine_leaving. True: more is to be done, so that whoever has nothing else to do calls it again. */
bool nr_server_sweep(struct nr_server *server, uint64_t now, struct nr_outbox *outbox);
void nr_server_counters(const struct nr_server *server, struct nr_server_counters *counters);
/* Invariants of sessions, slots and queues, then the engine's: NR_OK or NR_MALFORMED with a message. */
int nr_server_audit(const struct nr_server *server, char *message, size_t size);

#endif
