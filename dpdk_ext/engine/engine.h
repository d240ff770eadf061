/* The replay engine: stores of steps, tables of items over them, parameter sets. What a client sees of it is docs/semantics.md.
 *
 * One thread at a time owns an engine. It knows no clock (the caller passes `now`, nanoseconds on any monotonic scale), no
 * network and no Python; all memory is taken by nr_engine_create, nothing is allocated afterwards, and every call is O(1) or
 * O(log n) per step, item or key that it names. */
#ifndef NR_ENGINE_ENGINE_H
#define NR_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "segment.h"
#include "status.h"

struct nr_engine;

/* ---- Configuration (flat; names and dtypes stay with Python, which reckons the layouts) ---- */

enum {
    NR_MAX_STORES = 64,
    NR_MAX_TABLES = 256,
    NR_MAX_SETS = 64,
    NR_MAX_GATHERS = 1024,     /* of one row */
    NR_MAX_WINDOW = 4096,      /* steps of one item */
    NR_ROW_HEAD = 16,          /* every row starts with its key (uint64) and probability (float64) */
    NR_MAX_ITEM_COLUMNS = 40,  /* bytes of an item's own columns; the wire's item record has room for as many */
    NR_MAX_VERSIONS = 16384,   /* publications that nr_limits.versions can tell apart */
    NR_PRIORITY_UNIT_BITS = 24 /* leaves are integers in units of 2^-24 of a weight */
};

struct nr_store_config {
    uint32_t step_bytes;        /* bytes of a whole step */
    uint32_t observation_bytes; /* its first bytes: what an observation-only step has; the rest is zero there */
    uint32_t steps;             /* steps in the slab */
    uint32_t window;            /* steps of the longest item of any table of the store, >= 1 */
    uint32_t in_flight;         /* steps a stream may have sent beyond what is committed */
    uint32_t streams;           /* streams that may exist at once */
};

/* Pieces of a row: `length` bytes from `source` within one step of the window to `target` within the row, and as many of each of
 * the `more` steps that follow, one behind the other.
 * The first step is clamp((from_end ? anchor + length_of_item : anchor) + delta, 0, anchor + length_of_item), the others are
 * clamped alike, so that a stack that reaches before the first observation repeats it, and what lies past the end of an episode
 * repeats the last. */
struct nr_gather {
    int32_t delta;
    uint32_t from_end; /* 0: counted from the item's anchor; 1: from its last step */
    uint32_t source;   /* bytes into the step */
    uint32_t length;   /* bytes of one step */
    uint32_t target;   /* bytes into the row */
    uint32_t more;     /* steps after the first; 0: one step only */
    uint32_t inside;   /* 1: zeros, not a neighbour, where the step is none of the item's `length` steps from its anchor on */
};

enum nr_sampler {
    NR_SAMPLER_PRIORITIZED = 0,
    NR_SAMPLER_UNIFORM = 1,
    NR_SAMPLER_FIFO = 2,
    NR_SAMPLER_LIFO = 3,
    NR_SAMPLER_STRATIFIED = 4,          /* prioritized, draw i of n from the i-th of n equal parts of the mass */
    NR_SAMPLER_MAX_HEAP = 5,            /* the largest raw priorities, first inserted first among equals */
    NR_SAMPLER_MIN_HEAP = 6,            /* the least */
    NR_SAMPLER_TOP_K = 7,               /* uniformly among the `top` largest raw priorities */
    NR_SAMPLER_WITHOUT_REPLACEMENT = 8, /* uniformly among those not yet drawn in this pass over the table */
    NR_SAMPLERS
};
enum nr_remover {
    NR_REMOVER_FIFO = 0,
    NR_REMOVER_UNIFORM = 1,
    NR_REMOVER_LOWEST_PRIORITY = 2, /* least raw priority, first inserted first among equals */
    NR_REMOVER_OLDEST = 3,          /* least policy version (of the item's columns), first inserted first among equals */
    NR_REMOVERS
};

/* When a table lets its callers insert and sample; all of it can be changed on a live table. With i items ever inserted and s
 * samples ever taken, i x samples_per_insert - s is kept between least and most: inserts wait above it (never below min_size
 * items), draws below it. */
struct nr_limits {
    uint64_t min_size;         /* items before anything is drawn; at least 1 is understood */
    double samples_per_insert; /* > 0; 0: no ratio, and the two that follow are not looked at */
    double least, most;        /* samples; least <= most */
    uint32_t max_sampled;      /* draws of one item, then it leaves; 0: no limit; <= INT32_MAX */
    uint32_t versions;         /* newest publications of the set `version_set` that an item may be of, 1: the present; at most
                                   NR_MAX_VERSIONS; 0: all */
    uint64_t max_age_ns;       /* since its insertion; 0: no limit */
};

/* Some of them changed. Without `error_buffer` or `size` a ratio keeps its error buffer. */
enum nr_limit {
    NR_LIMIT_MIN_SIZE = 1,
    NR_LIMIT_SAMPLES_PER_INSERT = 2, /* 0: no ratio any more */
    NR_LIMIT_ERROR_BUFFER = 4,       /* least, most = min_size x samples_per_insert -+ error_buffer */
    NR_LIMIT_SIZE = 8,               /* of a queue: least = 0, most = size */
    NR_LIMIT_MAX_SAMPLED = 16,
    NR_LIMIT_VERSIONS = 32,
    NR_LIMIT_MAX_AGE = 64,
    NR_LIMIT_ALL = 127
};
struct nr_limits_change {
    uint32_t which;            /* NR_LIMIT_*: of the others below nothing is looked at */
    uint32_t max_sampled;      /* as in struct nr_limits, as are all that have its names */
    uint64_t min_size;
    double samples_per_insert;
    double error_buffer;       /* samples */
    uint64_t size;             /* items */
    uint64_t max_age_ns;
    uint32_t versions;
    uint32_t pad;              /* 0 */
};

struct nr_table_config {
    uint32_t store;        /* index */
    uint32_t capacity;     /* items */
    uint32_t sampler;      /* enum nr_sampler */
    uint32_t remover;      /* enum nr_remover */
    double exponent;       /* of the priority; >= 0 */
    struct nr_limits limits;
    uint32_t top;            /* NR_SAMPLER_TOP_K: items of the largest priorities that are drawn from */
    uint32_t passes;         /* NR_SAMPLER_WITHOUT_REPLACEMENT: passes over the table, then draws wait; 0: endless */
    uint32_t version_set;    /* index: parameter set whose publications limits.versions counts */
    uint32_t version_offset; /* bytes into the item's columns where its uint64 version stands; UINT32_MAX: nowhere */
    uint32_t leases;       /* drawn items that may be held at once, all sessions together */
    uint32_t window;       /* steps of its longest item */
    uint32_t row_bytes;    /* a multiple of 8 */
    uint32_t item_bytes;   /* of an item's own columns, <= NR_MAX_ITEM_COLUMNS, at row offset NR_ROW_HEAD */
    uint32_t gather_count; /* what its rows are made of: gathers[first_gather ...] */
    uint32_t first_gather;
};

struct nr_set_config {
    uint64_t bytes; /* the largest publication; two buffers of it are kept */
};

struct nr_engine_config {
    uint64_t seed;          /* of the draws and of the first generations */
    uint64_t lease_ns;      /* how long a draw may hold its steps before it can be reclaimed */
    uint64_t start_seconds; /* Unix time; upper half of parameter versions */
    uint32_t first_version; /* lower half before the first: a part of that second, so that a quick restart goes on upwards */
    uint32_t shard;         /* upper 8 bits of every key */
    uint32_t store_count;
    uint32_t table_count;
    uint32_t set_count;
    const struct nr_store_config *stores;
    const struct nr_table_config *tables;
    const struct nr_gather *gathers;
    const struct nr_set_config *sets;
};

/* Bytes that nr_engine_create would take, or 0 with *status = NR_BAD_CONFIG. */
uint64_t nr_engine_bytes(const struct nr_engine_config *config, int *status);
struct nr_engine *nr_engine_create(const struct nr_engine_config *config, int *status);
void nr_engine_destroy(struct nr_engine *engine);
/* The one mapping that holds everything of the engine, its steps too: for packet I/O that must register what it sends from. */
const void *nr_engine_memory(const struct nr_engine *engine, uint64_t *bytes);
uint32_t nr_engine_store_count(const struct nr_engine *engine);
uint32_t nr_engine_table_count(const struct nr_engine *engine);
uint32_t nr_engine_set_count(const struct nr_engine *engine);
uint32_t nr_engine_streams(const struct nr_engine *engine); /* open now, of all stores */
uint32_t nr_engine_lent(const struct nr_engine *engine); /* references that datagrams on their way hold now, of all stores */

/* ---- Streams ---- */

/* A stream as its session knows it. `handle` is valid until the stream is closed or evicted; a stale handle is
 * answered NR_STREAM_GONE (it carries a generation). */
struct nr_stream_position {
    uint32_t handle;
    uint32_t known;     /* 1 when the stream existed already */
    uint64_t next_step; /* lowest step number of its tail that is not held whole (0 for a new stream) */
    uint64_t next_item; /* lowest item number not yet decided */
};

/* Opens or takes up the stream `id` (16 bytes) for `owner` (a session, never 0). When all places are taken the least recently
 * used stream without owner and without unfinished item makes room, else NR_TOO_MANY. NR_STREAM_OWNED if another owner lives. */
int nr_stream_open(struct nr_engine *engine, uint32_t store, const uint8_t id[16], uint32_t owner,
                   struct nr_stream_position *position);
/* Ends the stream: its steps stay only as long as items use them. */
int nr_stream_close(struct nr_engine *engine, uint32_t handle, uint32_t owner);
/* The owner is gone: incomplete steps are dropped, the stream can be taken up by another. All streams of the owner. */
void nr_stream_release_owner(struct nr_engine *engine, uint32_t owner);

/* Writes bytes [offset, offset + length) of step `number`, which has `total` bytes (step_bytes or observation_bytes). The caller
 * passes each part once; a step that is whole already answers NR_DUPLICATE and is not written. NR_OK: the part was taken, whether
 * or not others are missing. NR_WAIT_SPACE (of no table) leaves no trace.
 * With span = window - 1 + in_flight and h the highest number seen: h - span + 1 to h + span are accepted, older ones answer
 * NR_DUPLICATE, those further ahead NR_BAD_WINDOW (the first step of a fresh stream may have any number below 2^63).
 * NR_BAD_LENGTH: no bytes, bytes beyond the step, more bytes than are missing, or another total than the step's first part had.
 * NR_STREAM_GONE: not open, or not the owner's. */
int nr_step_write(struct nr_engine *engine, uint32_t handle, uint32_t owner, uint64_t number, uint32_t total, uint32_t offset,
                  const void *bytes, uint32_t length, uint64_t now, struct nr_wait *wait);

/* ---- Items ---- */

#define NR_KEY_NONE UINT64_MAX /* no key: a duplicate or a refused item */

struct nr_item {
    uint64_t number;     /* within its stream, over all tables, from 0 upwards */
    uint64_t first_step; /* number of the window's first step */
    uint32_t steps;      /* of the window */
    uint32_t anchor;     /* position in the window of the step whose action is trained */
    uint32_t length;     /* k: steps from the anchor to the end of the window; anchor + length == steps - 1 */
    uint32_t flags;      /* NR_ITEM_* */
    double priority;     /* raw, unless NR_ITEM_DEFAULT_PRIORITY */
    const void *columns; /* item_bytes */
};
enum { NR_ITEM_DEFAULT_PRIORITY = 1 }; /* the largest raw priority in the table when the item becomes drawable, 1.0 when empty */

/* Makes the item drawable, evicting by the remover when the table is full. Every outcome but NR_WAIT_* and NR_STREAM_GONE decides
 * the item: its number, and those skipped before it, are used up, and a repeat answers NR_DUPLICATE (NR_BAD_PRIORITY where its
 * priority is bad). *key is set for NR_OK, else NR_KEY_NONE; also for NR_OK where the item's version is too old already: it is
 * counted as inserted and as one that left, and takes no place. The default priority is asked for before an item makes room.
 * NR_NO_TABLE: none, or not over the stream's store. */
int nr_item_insert(struct nr_engine *engine, uint32_t table, uint32_t handle, uint32_t owner, const struct nr_item *item,
                   uint64_t now, uint64_t *key, struct nr_wait *wait);

enum nr_outcome { NR_APPLIED = 0, NR_OUTCOME_STALE = 1, NR_OUTCOME_REFUSED = 2, NR_SUPERSEDED = 3 };

/* Sets raw priorities; outcome[i] is an enum nr_outcome (never NR_SUPERSEDED: the client resolves repeats). */
int nr_priorities_update(struct nr_engine *engine, uint32_t table, uint32_t count, const uint64_t *keys, const double *priorities,
                         uint8_t *outcome);

/* Items leave at once; outcome[i] is NR_APPLIED or NR_OUTCOME_STALE. Of a key named twice the second is stale. A draw that holds the
 * item keeps it readable. */
int nr_items_delete(struct nr_engine *engine, uint32_t table, uint32_t count, const uint64_t *keys, uint8_t *outcome);

/* ---- Limits, resets ---- */

/* Limits that a table of this capacity can have: finite, not contradicting each other, and never such that both inserts and a draw
 * of one item would have to wait. */
bool nr_limits_valid(const struct nr_limits *limits, uint64_t capacity);
/* Items of the largest draw that inserts can always make possible, whatever else is drawn. */
double nr_limits_rows(const struct nr_limits *limits);
/* Changes them; NR_BAD_LIMITS: a ratio that is new wants an error buffer or a size, which nothing else may have. Whether the result
 * is valid is not looked at. */
int nr_limits_merge(struct nr_limits *limits, const struct nr_limits_change *change);

/* In force. NR_NO_TABLE. */
int nr_table_limits(const struct nr_engine *engine, uint32_t table, struct nr_limits *limits);
/* Puts all limits of the table in force at once; what was counted so far stays. NR_NO_TABLE, NR_BAD_LIMITS. */
int nr_table_configure(struct nr_engine *engine, uint32_t table, const struct nr_limits *limits);

/* Begins to let every item leave, unless that is going on; the limiter's counts begin anew and open draws count for nothing any
 * more. Streams, the number of the draws and the random state go on. */
int nr_table_reset(struct nr_engine *engine, uint32_t table);
/* NR_OK, or NR_WAIT_LEAVING while a reset is going on. */
int nr_table_left(const struct nr_engine *engine, uint32_t table, struct nr_wait *wait);
/* Goes on with the resets of all tables, up to `budget` items; true while any is left. */
bool nr_engine_leave(struct nr_engine *engine, uint32_t budget);
bool nr_engine_leaving(const struct nr_engine *engine);

/* ---- Draws ---- */

struct nr_draw_entry {
    uint64_t key;
    double probability; /* of this draw, that of the integer leaf */
};

/* The table at the moment of a draw: what weights and shards need. */
struct nr_draw_head {
    uint64_t number;    /* of the draw in its table, from 1 */
    uint64_t size;      /* items */
    uint64_t total;     /* sum of the leaves (units) */
    uint64_t max_leaf;  /* units */
    uint64_t min_leaf;  /* least positive leaf, units */
};

/* A draw lives in its caller's memory (a server's slot, a local call). All fields but `entries` are the engine's. */
struct nr_draw {
    struct nr_draw *earlier, *later; /* open draws, by age */
    struct nr_draw_entry *entries;   /* room for `count`, set by the caller before nr_draw_open */
    uint32_t table;
    uint32_t count;
    uint64_t due; /* may be reclaimed from then on */
    uint64_t resets; /* of the table before it was opened */
    uint32_t leased;
    uint32_t reserved;
    uint64_t pass; /* that its first entry was drawn in; NR_SAMPLER_WITHOUT_REPLACEMENT */
    struct nr_draw_head head;
};

enum { NR_SETTLE_RELEASE = 1, NR_SETTLE_COMMIT = 2, NR_SETTLE_REFUND = 4 };

/* Draws `count` items, one after the other, leases and reserves them. All or none: NR_WAIT_* says why not. The entries must stay
 * as they are until the draw is settled. FIFO, LIFO and heaps give `count` different items, the same at every call, and wait
 * (NR_WAIT_EMPTY, have = drawable items, need = count) while there are fewer. With limits.max_sampled an item is withheld with the
 * last draw that it may have, and leaves when these are committed; NR_WAIT_EMPTY then has what draws the items have left.
 * NR_BAD_COUNT: none, more than the table's leases, or, of different items, more than its capacity. */
int nr_draw_open(struct nr_engine *engine, uint32_t table, uint32_t count, struct nr_draw *draw, uint64_t now,
                 struct nr_wait *wait);
/* Copies bytes [offset, offset + length) of the rows (row_bytes each, in draw order). NR_LEASE_EXPIRED when reclaimed. */
int nr_draw_copy(struct nr_engine *engine, const struct nr_draw *draw, uint64_t offset, void *target, uint32_t length);
/* The same bytes as pieces of a datagram: runs within a step of at least pieces->least bytes become references where there is room
 * for them and the store lends its step, all else is copied. Each reference holds its step, whatever becomes of the draw and the
 * item, until nr_step_sent drops it. Where a status is returned no piece was added. */
int nr_draw_gather(struct nr_engine *engine, const struct nr_draw *draw, uint64_t offset, uint32_t length,
                   struct nr_pieces *pieces);
/* Drops the reference of a segment, once for each. NR_TOKEN_NONE is allowed. */
void nr_step_sent(struct nr_engine *engine, uint64_t token);
/* Ends the lease and/or the reservation, as NR_SETTLE_* says. Repeats do nothing. A settled draw's memory is the caller's again
 * when both `leased` and `reserved` are 0. */
void nr_draw_settle(struct nr_engine *engine, struct nr_draw *draw, uint32_t settle);

/* ---- Looking ---- */

/* Leases the items of the keys, without drawing them: nothing is reserved or counted, and no limiter is asked. Entry i is key i's,
 * with the probability that a draw would have; of an item that is not in the table it has NR_KEY_NONE and probability 0, and the
 * row is zeros. Then as a draw: nr_draw_copy, nr_draw_gather, nr_draw_settle with NR_SETTLE_RELEASE. NR_WAIT_LEASES, NR_BAD_COUNT. */
int nr_draw_open_keys(struct nr_engine *engine, uint32_t table, uint32_t count, const uint64_t *keys, struct nr_draw *draw,
                      uint64_t now, struct nr_wait *wait);

struct nr_table_info {
    uint64_t size, capacity, min_size;
    uint64_t inserted, sampled, reserved;     /* since the last reset: items; draws taken; draws neither taken nor refunded */
    uint64_t updated, stale, refused;
    uint64_t evicted_capacity, evicted_steps; /* because items, or steps, ran out */
    uint64_t evicted_sampled;                 /* because they were sampled limits.max_sampled times */
    uint64_t evicted_deleted, evicted_reset;  /* because a client said so */
    uint64_t evicted_age, evicted_version;    /* because they had become too old */
    uint64_t max_age_ns;                      /* limits in force, as struct nr_limits has them, as are the next four */
    double samples_per_insert, least, most;
    uint32_t max_sampled, versions;
    uint64_t saturated;                       /* priorities cut to the largest or raised to the least leaf */
    uint64_t leased;                          /* drawn items held now */
    uint64_t total, max_leaf, min_leaf;       /* units of 2^-24 */
    double max_priority;                      /* raw; 0 when empty */
    uint64_t steps, steps_capacity;           /* of its store: in use, in all */
    uint64_t item_bytes_held, step_bytes_held; /* bytes used by its items' records, by its store's steps */
};
int nr_table_info(const struct nr_engine *engine, uint32_t table, struct nr_table_info *info);
uint32_t nr_table_row_bytes(const struct nr_engine *engine, uint32_t table); /* 0 for no such table */
uint32_t nr_table_item_bytes(const struct nr_engine *engine, uint32_t table); /* of an item's columns; 0 for no such table */

/* How the items of a table are distributed. Filled by a scan over its slots that may be interrupted: zero it, then call
 * nr_table_histograms until it does not say NR_PENDING. An item that stays meanwhile is counted once. */
enum {
    NR_PRIORITY_BUCKETS = 96, /* 0: zeros; 1 + b: from 2^(NR_PRIORITY_BINADE + b) to its double, the outermost all beyond them */
    NR_PRIORITY_BINADE = -47,
    NR_AGE_BUCKETS = 64,     /* b: from 2^b ns to its double; 0: below 2 ns */
    NR_SAMPLED_BUCKETS = 34, /* 0, 1, 2, 3 to 4, 5 to 8, ...: b >= 2 ends at 2^(b - 1) times */
};
struct nr_histograms {
    uint64_t items;  /* counted */
    uint32_t cursor; /* slot that the scan looks at next */
    uint32_t pad;    /* 0 */
    uint32_t priority[NR_PRIORITY_BUCKETS]; /* items by raw priority */
    uint32_t age[NR_AGE_BUCKETS];           /* by time since their insertion */
    uint32_t sampled[NR_SAMPLED_BUCKETS];   /* by times drawn, refunds taken off */
};
/* Looks at `budget` slots more. NR_OK when that was the last, else NR_PENDING. */
int nr_table_histograms(const struct nr_engine *engine, uint32_t table, uint64_t now, uint32_t budget,
                        struct nr_histograms *histograms);

/* Rises whenever a waiting call on the table could succeed: an insert, a settled draw, an update, freed space. */
uint64_t nr_table_progress(const struct nr_engine *engine, uint32_t table);

/* Everything that must hold between calls (tests, simulator): NR_OK, or NR_MALFORMED with a message. O(everything). */
int nr_engine_audit(const struct nr_engine *engine, char *message, size_t size);

/* ---- Parameters ---- */

/* Publishing: begin, any number of writes that cover [0, bytes) exactly once, finish. `writer` names the publisher (never 0).
 * Begin answers NR_WAIT_TURN while another writes (for at most 1 s of its silence) or while the older buffer is being read: within
 * 50 ms of the last read (for at most 1 s since it was first refused for that); NR_CONFLICT when expect is neither UINT64_MAX ("whatever")
 * nor the present version. A write renews the writer. The writer's own begin starts anew. Write and finish answer NR_RESTART to
 * one who lost the turn; finish answers NR_PENDING while bytes are missing. */
int nr_parameters_begin(struct nr_engine *engine, uint32_t set, uint64_t writer, uint64_t bytes, uint64_t expect, uint64_t now,
                        struct nr_wait *wait);
int nr_parameters_write(struct nr_engine *engine, uint32_t set, uint64_t writer, uint64_t offset, const void *bytes,
                        uint32_t length, uint64_t now);
int nr_parameters_finish(struct nr_engine *engine, uint32_t set, uint64_t writer, uint64_t *version);
/* The present version (0: none yet) and its bytes. */
int nr_parameters_version(const struct nr_engine *engine, uint32_t set, uint64_t *version, uint64_t *bytes);
/* NR_RESTART when `version` has been replaced by a later publication's bytes. */
int nr_parameters_read(struct nr_engine *engine, uint32_t set, uint64_t version, uint64_t offset, void *target, uint32_t length,
                       uint64_t now);

#endif
