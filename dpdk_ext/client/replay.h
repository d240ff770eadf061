/* What the Python clients call: one replay memory, in this process ("local:") or behind the protocol, with the same meaning.
 *
 * A replay may be used from several threads. Calls that can block are operations: starting one does as much as can be done at
 * once (network: up to a first wait of `wait_ns`) and answers NR_PENDING with *operation set when it is not finished; then
 * nr_operation_wait(operation, wait_ns) continues it, so that Python looks at its signals between slices. Any other status is
 * final and leaves *operation NULL. nr_operation_cancel gives one up. nr_replay_close makes every blocked call return NR_CLOSED
 * within milliseconds.
 * Network: whoever waits drives the socket; a progress thread does it while nobody waits and work is open (prefetched samples,
 * unflushed appends, unsent settlements). */
#ifndef NR_CLIENT_REPLAY_H
#define NR_CLIENT_REPLAY_H

#include "../engine/engine.h"

struct nr_replay;
struct nr_operation;
struct nr_actor;
struct nr_packet_io;
struct nr_checkpoint_progress; /* loop/checkpointer.h */

enum nr_poll { NR_POLL_ADAPTIVE = 0, NR_POLL_BUSY = 1 }; /* adaptive: spin some tens of microseconds, then sleep in the kernel */

struct nr_connect_options {
    uint32_t poll;         /* enum nr_poll */
    uint32_t max_datagram; /* bytes of UDP payload at most; 0: what the path takes */
    uint64_t seed;         /* of session nonces; 0: from the operating system */
};

/* Takes the engine over: it is destroyed with the replay (not when the answer is NULL). `spec` (UTF-8, copied) is what
 * nr_replay_spec answers. */
struct nr_replay *nr_replay_local(struct nr_engine *engine, const struct nr_engine_config *config, const char *spec, int *status);
/* A checkpoint of a replay in this process, written beside other calls: begin, then wait until it is over. NR_REFUSED: the replay is
 * another process's, whose server has checkpoints of its own; NR_WAIT_TURN: one is running; NR_SYSTEM with *error. */
int nr_replay_checkpoint_begin(struct nr_replay *replay, const char *path, int *error);
/* How it ended, or NR_PENDING after wait_ns. Only whoever began. The checkpoint goes on only while it is waited for. */
int nr_replay_checkpoint_wait(struct nr_replay *replay, uint64_t wait_ns, struct nr_checkpoint_progress *progress);
/* Ends it early; the file that was there stays. */
void nr_replay_checkpoint_cancel(struct nr_replay *replay);
/* Resolves the host, opens a socket and sends HELLO; nr_replay_ready waits for the answer. NR_BAD_ADDRESS: no such host;
 * NR_SYSTEM: no way to it. */
struct nr_replay *nr_replay_udp(const char *host, uint16_t port, const struct nr_connect_options *options, int *status);
/* `path`: of the socket of a server on this host, see io/vhost.h. */
struct nr_replay *nr_replay_vhost(const char *path, const struct nr_connect_options *options, int *status);
/* Over any packet I/O that is connected to a server; takes it over, also when it fails. */
struct nr_replay *nr_replay_over(struct nr_packet_io *io, const struct nr_connect_options *options, int *status);
/* NR_OK when connected and the spec is here; NR_PENDING after wait_ns without; NR_BAD_VERSION, NR_TOO_MANY, NR_REFUSED. */
int nr_replay_ready(struct nr_replay *replay, uint64_t wait_ns);
const char *nr_replay_spec(const struct nr_replay *replay);
/* The layouts that the caller reckoned from the spec; needed once before actors, samples and updates (network; local has
 * them). Later calls change nothing. */
int nr_replay_layout(struct nr_replay *replay, const struct nr_engine_config *config);
void nr_replay_close(struct nr_replay *replay); /* any thread, more than once */
void nr_replay_free(struct nr_replay *replay);  /* when no other call is inside; also what is open of it */

/* Why the last answer of an operation, or an actor's append, was a wait; and how long the server has been silent. */
struct nr_blocked {
    struct nr_wait wait;      /* reason 0: no reason heard from the server */
    uint64_t silent_ns;       /* since the last datagram from the server; UINT64_MAX: never heard */
    int32_t unreachable;      /* errno that the network, or the server's socket, answered last; 0: none since a datagram came */
    uint32_t outstanding;     /* datagrams sent and unanswered */
    uint32_t credits;         /* datagrams that may be outstanding */
    uint32_t pad;
};
void nr_replay_blocked(struct nr_replay *replay, struct nr_blocked *blocked);

int nr_operation_wait(struct nr_operation *operation, uint64_t wait_ns); /* NR_PENDING, or final (the operation is freed) */
void nr_operation_blocked(struct nr_operation *operation, struct nr_blocked *blocked);
void nr_operation_cancel(struct nr_operation *operation);

/* ---- Actor ---- */

enum nr_autoreset { NR_AUTORESET_NONE = 0, NR_AUTORESET_NEXT_STEP = 1, NR_AUTORESET_SAME_STEP = 2 };

enum nr_window_kind {
    NR_WINDOW_NSTEP = 0,    /* one item per step: that and the n - 1 after it, fewer at an episode's end */
    NR_WINDOW_SEQUENCE = 1, /* n steps in a row, every `stride` steps */
};

/* What becomes of steps at an episode's end that no full sequence holds. */
enum nr_window_end {
    NR_END_PAD = 0,   /* a shorter sequence, from where the next would have begun */
    NR_END_DROP = 1,  /* nothing */
    NR_END_SHIFT = 2, /* a sequence that ends with the episode and reaches back as far as n and `start` allow */
};

/* How items of one table are formed from a stream's steps. */
struct nr_former_config {
    uint32_t table;
    uint32_t stack; /* S >= 1 */
    uint32_t n;     /* steps, >= 1 */
    uint32_t kind;  /* enum nr_window_kind */
    double gamma;   /* NSTEP: discount per step */
    /* where the item columns lie among its item_bytes; UINT32_MAX: not there */
    uint32_t reward_offset, discount_offset; /* NSTEP: float32, float32 */
    uint32_t length_offset, version_offset;  /* int32, uint64 */
    uint32_t timestep_offset; /* SEQUENCE: int32, the first step's position in its episode */
    uint32_t stride;          /* SEQUENCE: steps from one's first to the next one's, >= 1 */
    uint32_t start;           /* SEQUENCE: the first one's position in its episode */
    uint32_t end;             /* SEQUENCE: enum nr_window_end */
};

struct nr_actor_config {
    uint32_t store;
    uint32_t streams;            /* environments */
    uint32_t autoreset;          /* enum nr_autoreset */
    uint32_t column_count;       /* of the step, observation columns first */
    uint32_t observation_columns;
    uint32_t former_count;
    const uint32_t *column_offset; /* within the step */
    const uint32_t *column_bytes;
    uint32_t reward_offset, terminated_offset, truncated_offset; /* float32, bool, bool within the step */
    uint32_t pad;
    const struct nr_former_config *formers;
};

struct nr_actor *nr_actor_open(struct nr_replay *replay, const struct nr_actor_config *config, int *status);

/* One row per stream. Column c of row r is at column[c] + r * row_stride[c] (contiguous within the row). */
struct nr_rows {
    const void *const *column;    /* column_count pointers; those of the action columns may be NULL for nr_actor_end */
    const uint64_t *row_stride;   /* bytes */
    const float *reward;          /* [streams] */
    const uint8_t *terminated;    /* [streams] */
    const uint8_t *truncated;     /* [streams] */
    const void *const *final;     /* SAME_STEP: observation columns of the final observations, or NULL */
    const uint64_t *final_stride; /* bytes */
    const uint8_t *final_mask;    /* [streams], with `final` */
};

/* Stages one call: steps take their positions and items are formed, in the order row, anchor, table; nothing is sent before
 * nr_actor_commit. NR_PENDING: no credits; repeat (nothing was taken). NR_BAD_COUNT with *row: a row contradicts the autoreset
 * mode (a done row in SAME_STEP without final observation, or a final one without done). *items = items formed.
 * On the streams whose mask is set in `end_mask` (NULL: none) the row is only a final observation (nr_actor_end of one stream). */
int nr_actor_stage(struct nr_actor *actor, const struct nr_rows *rows, const uint8_t *end_mask, uint64_t wait_ns, uint32_t *items,
                   uint32_t *row);
/* The staged items as a sampled batch would show them: table, row in the call, rows as of that table (key and probability 0). */
int nr_actor_staged(struct nr_actor *actor, uint32_t *table, uint32_t *row);
int nr_actor_staged_rows(struct nr_actor *actor, uint32_t table, void *rows); /* those of one table, in order */
/* Sends the staged call, or as much as the window and the store have room for now, and the rest by itself. priority[items] may be
 * NULL (the table's default for all); NaN in it is sent and refused by the server. */
int nr_actor_commit(struct nr_actor *actor, const double *priority);
void nr_actor_rollback(struct nr_actor *actor); /* as if the staged call had not been made */

/* Waits until every item committed so far is decided. Then nr_actor_keys says how many (capacity 0), and takes up to `capacity` of
 * them: key (NR_KEY_NONE when refused, or when its acknowledgement was lost with a session) and status (enum nr_status) per item,
 * in the order formed. The newest NR_KEPT_KEYS are kept until taken. Returns how many were there, or were taken.
 * Network: a flush fails with the status of the first stream that the server refused (NR_TOO_MANY, NR_STREAM_OWNED). */
enum { NR_KEPT_KEYS = 1 << 20 };
int nr_actor_flush(struct nr_actor *actor, uint64_t wait_ns, struct nr_operation **operation);
uint64_t nr_actor_keys(struct nr_actor *actor, uint64_t capacity, uint64_t *keys, int32_t *statuses);

struct nr_actor_counters {
    uint64_t steps, items, acknowledged, refused;
    uint64_t episodes;
    uint64_t truncated_dropped; /* anchors without item: truncated with n < stack, or an end that NR_END_DROP leaves out */
    uint64_t lost; /* acknowledged items that a restarted server no longer has */
    uint64_t reconnects; /* sessions beyond the first */
    uint64_t streams_replaced; /* new ids after NR_STREAM_GONE */
    uint64_t keys_dropped; /* never taken by nr_actor_keys, and older than the newest NR_KEPT_KEYS */
};
void nr_actor_counters(struct nr_actor *actor, struct nr_actor_counters *counters);
void nr_actor_version(struct nr_actor *actor, uint64_t version); /* the `version` column of items formed from now on */
void nr_actor_close(struct nr_actor *actor); /* frees; flush first */

/* What a reconnect lost: items of a stream acknowledged by an earlier server and absent from this one. */
struct nr_loss {
    uint8_t stream[16];
    uint64_t first_item, items; /* numbers within the stream */
    uint64_t incarnation; /* of the server that is here now */
};
uint32_t nr_replay_losses(struct nr_replay *replay, uint32_t capacity, struct nr_loss *losses); /* takes them */

/* ---- Learner ---- */

/* Draws `count` rows of the table into `rows` (count * row_bytes, which must stay until the sample is final or settled). `heads`
 * has one entry per part of NR_SAMPLE_PART rows. The sample handle must be settled, whatever nr_sample_wait says. Over the network
 * the parts of a sample of more than 2,048 rows are committed as they come: a session holds no more draws open. */
struct nr_sample;
enum { NR_SAMPLE_PART = 256 };
int nr_sample_start(struct nr_replay *replay, uint32_t table, uint32_t count, void *rows, struct nr_sample **sample);
/* The same for the items of `count` keys, which must stay as the rows must: nothing is drawn. Row i is key i's, zeros but for the key
 * NR_KEY_NONE when its item is not in the table. The heads have NR_GET_PART rows, or the
 * table's leases where those are fewer. */
enum { NR_GET_PART = 128 };
int nr_get_start(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, void *rows,
                 struct nr_sample **sample);
int nr_sample_wait(struct nr_sample *sample, uint64_t wait_ns); /* NR_OK: all bytes are here and the lease is ended */
void nr_sample_blocked(struct nr_sample *sample, struct nr_blocked *blocked);
uint32_t nr_sample_heads(const struct nr_sample *sample, struct nr_draw_head *heads);
/* Ends it: taken (1, commit) or untaken (0, refund); also cancels one that is not complete. Frees the handle. */
void nr_sample_settle(struct nr_sample *sample, int taken);

/* Repeated keys are resolved here: the last value wins (NR_SUPERSEDED for the earlier ones); when it is refused none applies.
 * The arrays must stay until final; outcome[count] (enum nr_outcome) is whole when NR_OK. */
int nr_update(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, const double *priorities,
              uint8_t *outcome, uint64_t wait_ns, struct nr_operation **operation);

/* Lets items leave. Repeated keys as in nr_update: the last one's outcome counts, the earlier ones are NR_SUPERSEDED. */
int nr_delete(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, uint8_t *outcome, uint64_t wait_ns,
              struct nr_operation **operation);

/* ---- Tables as a whole ---- */

/* Changes limits of a table; whoever waits for them takes notice. *limits is what is in force then, set when final; it must stay valid
 * until then. NR_BAD_LIMITS: nothing was changed. */
int nr_configure(struct nr_replay *replay, uint32_t table, const struct nr_limits_change *change, struct nr_limits *limits,
                 uint64_t wait_ns, struct nr_operation **operation);
/* Lets every item of a table leave; final when all have. Given up, it goes on nevertheless. */
int nr_reset(struct nr_replay *replay, uint32_t table, uint64_t wait_ns, struct nr_operation **operation);

/* ---- Parameters, looking ---- */

/* `bytes` must stay until final. The replay keeps a copy and publishes it again to a new incarnation of the server.
 * *version is set when final; it must stay valid until then. */
int nr_publish(struct nr_replay *replay, uint32_t set, const void *bytes, uint64_t length, uint64_t expect, uint64_t *version,
               uint64_t wait_ns, struct nr_operation **operation);
/* A fetched publication; data is NULL and version the present one when there is none newer. Free it with nr_fetched_free. */
struct nr_fetched {
    uint64_t version;
    uint64_t length;
    uint8_t *data;
};
int nr_fetch(struct nr_replay *replay, uint32_t set, uint64_t newer_than, struct nr_fetched *fetched, uint64_t wait_ns,
             struct nr_operation **operation);
void nr_fetched_free(struct nr_fetched *fetched);

/* Of the first `capacity` tables. */
int nr_tables(struct nr_replay *replay, struct nr_table_info *tables, uint32_t capacity, uint64_t wait_ns,
              struct nr_operation **operation);

/* *histograms must stay until final. */
int nr_histograms(struct nr_replay *replay, uint32_t table, struct nr_histograms *histograms, uint64_t wait_ns,
                  struct nr_operation **operation);

/* Where the time of one round trip went. */
struct nr_ping {
    uint64_t round_trip_ns;
    uint64_t server_ns; /* from its receive to its send stamp; 0 for local */
};
int nr_ping(struct nr_replay *replay, uint32_t payload_bytes, struct nr_ping *ping, uint64_t wait_ns,
            struct nr_operation **operation);

struct nr_replay_counters {
    uint64_t datagrams_sent, datagrams_received, bytes_sent, bytes_received;
    uint64_t retransmissions, round_trips, stalls; /* stalls: appends that had to wait for credits */
    /* For the shares of a call: their growth over it. See struct nr_client_view; all 0 for local. */
    uint64_t answers;    /* datagrams that answered a request, settlements apart */
    uint64_t answer_ns;  /* from a request's first datagram to each of its answers, each moment once */
    uint64_t serving_ns; /* of it, between the server's receive and send stamps, each moment once */
    uint64_t smoothed_round_trip_ns, least_round_trip_ns;
    uint64_t reconnects, incarnation;
    uint32_t window, credits, max_datagram, pad;
};
void nr_replay_counters(struct nr_replay *replay, struct nr_replay_counters *counters);

#endif
