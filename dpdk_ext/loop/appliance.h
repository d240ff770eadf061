/* The appliance's loop: one engine, one protocol server, one packet I/O, run to completion on the calling thread. */
#ifndef NR_LOOP_APPLIANCE_H
#define NR_LOOP_APPLIANCE_H

#include "../engine/engine.h"

struct nr_appliance;

struct nr_appliance_config {
    const char *host;      /* numeric address or name to bind */
    uint16_t port;         /* 0: any free one */
    uint16_t poll;         /* enum nr_poll of client/replay.h: 0 adaptive, 1 busy */
    uint32_t sessions;     /* at once */
    uint64_t session_ns;   /* a session silent for so long may be swept */
    uint32_t max_datagram; /* UDP payload bytes offered to clients, <= NR_MAX_DATAGRAM */
    uint32_t pad;
};

struct nr_appliance_counters {
    uint64_t polls, empty_polls, busy_ns, idle_ns;
    uint64_t datagrams_in, datagrams_out, bytes_in, bytes_out, dropped_out;
    uint64_t malformed, bad_version, no_session, wrong_peer, refused; /* datagrams in, by reason of refusal */
    uint64_t duplicates;                                             /* answered from what was already known */
    uint64_t sessions_open, sessions_opened, sessions_swept, streams_open;
    uint64_t sessions_bytes; /* memory of the session table */
    uint64_t longest_quantum_ns;
    uint64_t batches, sampled_bytes; /* SAMPLE requests answered in full; bytes of rows sent, first time and again */
    uint64_t inserts, updates, publishes, fetches, pings; /* requests completed */
};

/* Takes the engine over, unless it fails. NR_SYSTEM: *system_error has the errno (EADDRINUSE, EACCES, EADDRNOTAVAIL ...);
 * NR_BAD_ADDRESS: no such host. `spec` is copied. */
struct nr_appliance *nr_appliance_open(struct nr_engine *engine, const struct nr_engine_config *engine_config, const char *spec,
                                       const struct nr_appliance_config *config, int *status, int *system_error);
uint16_t nr_appliance_port(const struct nr_appliance *appliance);
uint64_t nr_appliance_session_bytes(const struct nr_appliance_config *config); /* what open will take beside the engine */
int nr_appliance_run(struct nr_appliance *appliance);   /* until stopped */
void nr_appliance_stop(struct nr_appliance *appliance); /* any thread, async-signal-safe */
void nr_appliance_counters(const struct nr_appliance *appliance, struct nr_appliance_counters *counters);
/* A relaxed copy of a table's numbers, refreshed by the loop at least every 100 ms while it runs. */
int nr_appliance_table(const struct nr_appliance *appliance, uint32_t table, struct nr_table_info *info);
void nr_appliance_close(struct nr_appliance *appliance);

#endif
