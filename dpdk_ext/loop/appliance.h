/* The appliance's loop: one engine, one protocol server, one or more packet I/Os, run to completion on the calling thread. */
#ifndef NR_LOOP_APPLIANCE_H
#define NR_LOOP_APPLIANCE_H

#include "../engine/engine.h"
#include "../io/packet_io.h"
#include "checkpointer.h"

struct nr_appliance;

/* At most so many packet I/Os to one loop. */
#define NR_APPLIANCE_LINKS 8

struct nr_appliance_config {
    struct nr_packet_io *const *io; /* [links] */
    uint32_t links;        /* 1 to NR_APPLIANCE_LINKS */
    bool busy;             /* keep the core; else spin, yield and sleep as it grows quiet */
    uint32_t sessions;     /* at once */
    uint64_t session_ns;   /* a session silent for so long may be swept */
    uint32_t max_datagram; /* UDP payload bytes offered to clients, <= NR_MAX_DATAGRAM */
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

/* Takes the engine and the packet I/Os over, unless it fails: NR_NO_MEMORY, NR_BAD_CONFIG. `spec` is copied; checkpoints hold it. */
struct nr_appliance *nr_appliance_open(struct nr_engine *engine, const struct nr_engine_config *engine_config, const char *spec,
                                       const struct nr_appliance_config *config, int *status);
uint64_t nr_appliance_session_bytes(const struct nr_appliance_config *config); /* what open will take beside the engine */
int nr_appliance_run(struct nr_appliance *appliance);   /* until stopped */
void nr_appliance_stop(struct nr_appliance *appliance); /* any thread, async-signal-safe */
void nr_appliance_counters(const struct nr_appliance *appliance, struct nr_appliance_counters *counters);
/* A relaxed copy of a table's numbers, refreshed by the loop at least every 100 ms while it runs. */
int nr_appliance_table(const struct nr_appliance *appliance, uint32_t table, struct nr_table_info *info);
/* Asks the loop for a checkpoint at `path`, which it makes beside its work. Any thread; as nr_checkpointer_begin. */
int nr_appliance_checkpoint(struct nr_appliance *appliance, const char *path, int *error);
/* Any thread. */
void nr_appliance_checkpoint_progress(const struct nr_appliance *appliance, struct nr_checkpoint_progress *progress);
/* When the loop has ended: closes the packet I/Os, so that clients notice. */
void nr_appliance_leave(struct nr_appliance *appliance);
/* Does the loop's part of a checkpoint when the loop has ended: until it is over (NR_OK, however it ended), or NR_PENDING after
 * wait_ns. */
int nr_appliance_checkpoint_finish(struct nr_appliance *appliance, uint64_t wait_ns);
void nr_appliance_close(struct nr_appliance *appliance);

#endif
