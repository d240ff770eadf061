/* The whole wire format and every limit of it. docs/protocol.md says it in prose; Python's constants are tested against this.
 * All integers are little-endian, all structs are naturally aligned and without padding of the compiler's own.
 *
 * Every datagram is one header and `length` bytes of body. A request names a slot and a request number that rises within the
 * slot; the server keeps the last request of each slot, so that a repeat is answered and never done twice. A response carries
 * the request's operation | NR_OP_RESPONSE and the same session, slot and request. */
#ifndef NR_PROTOCOL_WIRE_H
#define NR_PROTOCOL_WIRE_H

#include <assert.h>
#include <stdint.h>

#include "../engine/engine.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the structs below are read in place: little-endian only"
#endif

enum nr_wire_limits {
    NR_MAGIC = 0x724e, /* "Nr" on the wire */
    NR_VERSION = 1,

    NR_MAX_DATAGRAM = 8972,     /* bytes of UDP payload: MTU 9000 less IPv4 and UDP */
    NR_ETHERNET_DATAGRAM = 1472, /* MTU 1500 over IPv4 */
    NR_MIN_DATAGRAM = 1200,     /* every path must take it; HELLO is padded to at least this */
    NR_DEFAULT_PORT = 7447,

    NR_SLOTS = 15,           /* numbered 0..14: requests that the server remembers */
    NR_STATELESS_SLOT = 15,  /* HELLO, PING, SETTLE, CLOSE, BYE: repeating them does no harm, nothing is kept */
    NR_SLOT_BYTES = 4096,    /* what a slot can remember */
    NR_SESSION_BYTES = 65536, /* of one session in all */

    NR_MAX_FRAGMENTS = 64,      /* datagrams of one request: the bits of a received map */
    NR_INSERT_ITEMS = 48,       /* items of one INSERT */
    NR_SAMPLE_ROWS = 256,       /* rows of one SAMPLE: 16 bytes each are kept in the slot */
    NR_GET_KEYS = 128,          /* keys of one GET: it is one datagram, of any session */
    NR_UPDATE_KEYS = 1024,      /* keys of one UPDATE or DELETE */
    NR_STREAMS_PER_REQUEST = 32,
    NR_SETTLES_PER_REQUEST = 15,
    NR_MAX_WANTED = 64,         /* datagrams of response that one request may ask for */
    NR_PARKED_PER_DATAGRAM = 4, /* waiting requests that one datagram may set free */
};

enum nr_operation_code {
    NR_OP_HELLO = 1,
    NR_OP_BYE = 2,
    NR_OP_STREAMS = 3,
    NR_OP_CLOSE = 4,
    NR_OP_INSERT = 5,
    NR_OP_SAMPLE = 6,
    NR_OP_READ = 7,
    NR_OP_SETTLE = 8,
    NR_OP_UPDATE = 9,
    NR_OP_PUBLISH = 10,
    NR_OP_FETCH = 11,
    NR_OP_SPEC = 12,
    NR_OP_TABLES = 13,
    NR_OP_PING = 14,
    NR_OP_DELETE = 15,
    NR_OP_GET = 16,
    NR_OP_ADMIN = 17,
    NR_OP_HISTOGRAM = 18,
    NR_OP_LAST = 18,
    NR_OP_RESPONSE = 0x80,
};

enum nr_header_flags {
    NR_FLAG_DATA = 1, /* response: the body after the stamps is bytes of a message at `offset`, not a struct nr_wire_state */
};

struct nr_header {
    uint16_t magic;     /* NR_MAGIC */
    uint8_t version;    /* NR_VERSION */
    uint8_t operation;  /* enum nr_operation_code */
    uint32_t session;   /* server's choice; 0 in HELLO */
    uint8_t slot;       /* 0..14, or NR_STATELESS_SLOT */
    uint8_t flags;      /* NR_FLAG_* */
    uint16_t length;    /* bytes of body */
    uint32_t request;   /* number within the slot, from 1; compared modulo 2^32 */
    uint32_t offset;    /* byte offset within the message of a READ, or of a data response; else 0 */
    uint16_t fragment;  /* request: this datagram's place among the request's; response: that of the datagram it answers */
    uint16_t fragments; /* request: how many the request has. READ: datagrams wanted. SAMPLE, GET, FETCH, SPEC, TABLES have
                           one datagram, and `fragments` is the number of response datagrams wanted at once; 0: only the state */
    uint64_t counter;   /* rises with every datagram of a direction of a session */
    uint64_t tag;       /* SipHash-2-4 over the header; 0 while auth is "off" */
    uint32_t crc32c;    /* of the body where the path does not verify one; 0 = not used */
    uint16_t status;    /* response: enum nr_status; request: 0 */
    uint16_t credits;   /* response: datagrams this session may have outstanding, requests and wanted responses together */
};
static_assert(sizeof(struct nr_header) == 48, "header");

/* ---- Responses ---- */

/* Every response body starts with it. */
struct nr_wire_stamps {
    uint64_t received; /* server's clock when the answered datagram came in, ns */
    uint32_t residence; /* ns from then until this response was made; UINT32_MAX when longer */
    uint32_t echo;      /* lower half of the counter of the datagram that is answered */
};
static_assert(sizeof(struct nr_wire_stamps) == 16, "stamps");

/* Follows the stamps when NR_FLAG_DATA is not set: how far the slot's request is. header.status: NR_PENDING while fragments are
 * missing or earlier inserts have not committed, NR_WAIT_* with `wait` when it is held back, NR_OK when done (the result
 * follows), else the refusal of the whole request. A fragment answered NR_WAIT_SPACE was not taken: its bit stays 0. */
struct nr_wire_state {
    uint64_t fragments; /* bit i: fragment i has been taken */
    uint32_t reason;    /* enum nr_status, NR_WAIT_*; 0: none */
    uint32_t table;
    uint64_t have;
    uint64_t need;
};
static_assert(sizeof(struct nr_wire_state) == 32, "state");

/* SAMPLE, GET, FETCH, SPEC and TABLES make a message that the client pulls: this head, then `bytes` bytes. Data responses carry
 * header.offset and any part of it; all but the last are full datagrams. Offsets that a client reads are its own choice. */
struct nr_wire_message {
    uint64_t bytes;  /* that follow the head */
    uint64_t number; /* SAMPLE: of the draw; GET: of the next; FETCH: version; SPEC: incarnation; TABLES: how many */
    uint64_t size, total, max_leaf, min_leaf; /* SAMPLE, GET: struct nr_draw_head; else 0 */
};
static_assert(sizeof(struct nr_wire_message) == 48, "message head");

#define NR_RESPONSE_OVERHEAD (sizeof(struct nr_header) + sizeof(struct nr_wire_stamps)) /* of a data response */

/* ---- Requests: bodies, and results after the state ---- */

/* HELLO (stateless slot, session 0): padded with zeros to the datagram size that the client proposes. The same nonce from the
 * same peer gets the same session. The response is smaller than the request. */
struct nr_wire_hello {
    uint64_t nonce;
    uint16_t version_min, version_max;
    uint32_t max_datagram; /* bytes of UDP payload that the client can receive */
};
static_assert(sizeof(struct nr_wire_hello) == 16, "hello");

/* Result of HELLO. A response to an unknown session is a bare header with stamps and state, status NR_NO_SESSION; one to an
 * unknown version carries this server's version in header.version and status NR_BAD_VERSION. Either is the header alone when the
 * request was too short for stamps and state: nobody unknown gets more bytes than he sent. A HELLO repeated in another size gets
 * the first answer: another size needs another nonce. */
struct nr_wire_welcome {
    uint64_t nonce;
    uint64_t incarnation; /* random, new at each start of the server */
    uint64_t start_seconds; /* Unix time of that start */
    uint32_t session;
    uint32_t max_datagram; /* min of both sides' and of the HELLO's own size, rounded down to a multiple of 8 */
    uint32_t credits;
    uint32_t spec_bytes;
};
static_assert(sizeof(struct nr_wire_welcome) == 40, "welcome");

/* STREAMS: opens `count` streams; ids of 16 bytes follow. Result: one struct nr_wire_stream each. */
struct nr_wire_streams {
    uint32_t store;
    uint32_t count;
};
struct nr_wire_stream {
    uint32_t status; /* NR_OK, NR_STREAM_OWNED, NR_TOO_MANY */
    uint32_t handle;
    uint64_t next_step; /* see struct nr_stream_position */
    uint64_t next_item;
    uint32_t known;
    uint32_t pad;
};
static_assert(sizeof(struct nr_wire_stream) == 32, "stream");

/* CLOSE (stateless): ends `count` streams by handle, at most NR_STREAMS_PER_REQUEST; uint32 handles follow. */
struct nr_wire_close {
    uint32_t count;
    uint32_t pad;
};

/* INSERT: every datagram of it starts with this, then records follow one another, each padded to 8 bytes. Datagrams of one
 * INSERT may arrive in any order; step bytes are placed at once. INSERTs of a session commit in the order of `sequence`, and
 * their items in the order of `index`. Result: uint64 keys[items], then uint8 statuses[items] (enum nr_status; NR_BAD_COUNT for
 * an index that no datagram brought). A datagram is repeated byte for byte. A step or item record whose bytes do not fit the store
 * or table refuses the whole request, in its turn; the sequence goes on. An INSERT that another datagram let commit is answered
 * unasked. One whose sequence has passed commits at once. A slot must not be used anew before its INSERT is final: the sequence
 * would stop there. */
struct nr_wire_insert {
    uint32_t sequence; /* of the session, from 0; the session's next INSERT has the next number */
    uint16_t items; /* of the whole request, <= NR_INSERT_ITEMS */
    uint16_t pad;
};
static_assert(sizeof(struct nr_wire_insert) == 8, "insert");

enum nr_record { NR_RECORD_STEP = 1, NR_RECORD_ITEM = 2 };

struct nr_wire_step {
    uint8_t type; /* NR_RECORD_STEP */
    uint8_t pad;
    uint16_t length; /* bytes of the step that follow */
    uint32_t handle;
    uint64_t number;
    uint32_t total; /* bytes of the step: whole, or observation-only */
    uint32_t offset; /* of these bytes within it */
};
static_assert(sizeof(struct nr_wire_step) == 24, "step record");

struct nr_wire_item {
    uint8_t type; /* NR_RECORD_ITEM */
    uint8_t flags; /* NR_ITEM_* */
    uint16_t table;
    uint32_t handle;
    uint64_t number;
    uint64_t first_step;
    double priority;
    uint16_t index; /* among the items of the INSERT */
    uint16_t steps; /* of the window */
    uint16_t anchor;
    uint16_t columns; /* bytes that follow: the table's item_bytes. length = steps - 1 - anchor */
};
static_assert(sizeof(struct nr_wire_item) == 40, "item record");

/* SAMPLE: draws `count` rows; first ends earlier draws of this session. One that has to wait is answered with the reason at once,
 * and with its first data when it can be served; settling it meanwhile ends it, with NR_STALE. */
struct nr_wire_settle {
    uint8_t slot;
    uint8_t settle; /* NR_SETTLE_* */
    uint16_t pad;
    uint32_t request; /* the draw's: a settlement of any other request of the slot is ignored */
};
static_assert(sizeof(struct nr_wire_settle) == 8, "settle");

struct nr_wire_sample {
    uint32_t table;
    uint32_t count;
    uint32_t settles; /* struct nr_wire_settle that follow */
    uint32_t pad;
};
static_assert(sizeof(struct nr_wire_sample) == 16, "sample");

/* GET: looks at items without drawing them; `count` uint64 keys follow, and no more. The message is a SAMPLE's, a row for each key;
 * that of an item that is not in the table is NR_KEY_NONE and zeros. It holds leases, as a SAMPLE does, and nothing else: they end
 * by a settlement of NR_SETTLE_RELEASE. NR_WAIT_LEASES: ask again; it waits in no queue. */
struct nr_wire_get {
    uint32_t table;
    uint32_t count; /* <= NR_GET_KEYS */
};
static_assert(sizeof(struct nr_wire_get) == 8, "get");

/* HISTOGRAM: one datagram. Result: struct nr_histograms, once the server has looked at every item, which it does between other
 * work: NR_PENDING until then, and the result comes unasked. */
struct nr_wire_histogram {
    uint32_t table;
    uint32_t pad;
};

/* SETTLE (stateless): `settles` struct nr_wire_settle follow. The answer is the bare state, NR_OK. */
struct nr_wire_settlement {
    uint32_t settles;
    uint32_t pad;
};

/* READ: the slot's present request, named by slot and request, header only. Of a message: `fragments` datagrams from `offset`
 * on. Of anything else, and of a message that is not ready: its state. Of a request the slot does not hold: state NR_PENDING
 * with no fragments, and the client sends the request again. */

/* UPDATE: struct nr_wire_priority follow; `first` says the place of the first among the request's `count`. Each datagram is
 * applied when it comes. Result: uint8 outcome[count] (enum nr_outcome). */
struct nr_wire_update {
    uint32_t table;
    uint16_t count;
    uint16_t first;
};
struct nr_wire_priority {
    uint64_t key;
    double priority;
};
static_assert(sizeof(struct nr_wire_priority) == 16, "priority");

/* DELETE: struct nr_wire_update, then uint64 keys; else as UPDATE. */

/* ADMIN: what changes a table as a whole, in one datagram. The kind says what follows; the result is the kind's too. A kind that the
 * server does not know is answered NR_MALFORMED and does nothing. */
enum nr_admin_kind {
    NR_ADMIN_CONFIGURE = 1, /* struct nr_limits_change. Result: struct nr_limits, in force from then on. NR_BAD_LIMITS */
    NR_ADMIN_RESET = 2, /* nothing. Waits (NR_WAIT_LEAVING) until every item has left. No result */
};
struct nr_wire_admin {
    uint32_t kind; /* enum nr_admin_kind */
    uint32_t table;
};
static_assert(sizeof(struct nr_wire_admin) == 8, "admin");
static_assert(sizeof(struct nr_limits_change) == 56 && sizeof(struct nr_limits) == 48, "limits go on the wire as they are");

/* PUBLISH: bytes [offset, offset + rest of body) of a publication of `bytes`. A publication may take several PUBLISH requests;
 * (session, set, publication) names it, and the numbers rise within session and set. Result: struct nr_wire_version, 0 while
 * bytes are missing. NR_WAIT_TURN: the datagram was not taken. NR_CONFLICT: `expect` was not the present version, or a later
 * publication has taken the buffer. */
struct nr_wire_publish {
    uint32_t set;
    uint32_t publication;
    uint64_t bytes;
    uint64_t offset;
    uint64_t expect; /* UINT64_MAX: whatever is there */
};
static_assert(sizeof(struct nr_wire_publish) == 32, "publish");
struct nr_wire_version {
    uint64_t version;
};

/* FETCH: message of the set's bytes, empty when the present version is not above newer_than. A READ of a version that was
 * replaced answers NR_RESTART. */
struct nr_wire_fetch {
    uint32_t set;
    uint32_t pad;
    uint64_t newer_than;
};
static_assert(sizeof(struct nr_wire_fetch) == 16, "fetch");

/* SPEC: no body; message of the server's spec (UTF-8 JSON). TABLES: no body; message of struct nr_table_info for each table.
 * PING (stateless): any body; the response has the stamps, the state and as many bytes of zeros as make it no longer than
 * the request. BYE (stateless): no body; ends the session, its streams keep their places. */

static_assert(sizeof(struct nr_table_info) % 8 == 0, "table info goes on the wire as it is");
static_assert(NR_SAMPLE_ROWS * sizeof(struct nr_draw_entry) <= NR_SLOT_BYTES, "a draw fits its slot");
static_assert(NR_GET_KEYS * (sizeof(struct nr_draw_entry) + sizeof(uint64_t)) <= NR_SLOT_BYTES, "a GET fits its slot");
static_assert(sizeof(struct nr_header) + sizeof(struct nr_wire_get) + NR_GET_KEYS * sizeof(uint64_t) <= NR_MIN_DATAGRAM,
              "a GET fits the smallest datagram");
static_assert(sizeof(struct nr_histograms) == 792, "histograms go on the wire as they are");
static_assert(NR_UPDATE_KEYS <= NR_SLOT_BYTES, "outcomes fit the slot");
static_assert(NR_STREAMS_PER_REQUEST * sizeof(struct nr_wire_stream) <= NR_SLOT_BYTES, "streams fit the slot");
static_assert(sizeof(struct nr_header) + sizeof(struct nr_wire_stamps) + sizeof(struct nr_wire_state) +
                          NR_STREAMS_PER_REQUEST * sizeof(struct nr_wire_stream) <=
                      NR_MIN_DATAGRAM &&
                  sizeof(struct nr_header) + sizeof(struct nr_wire_stamps) + sizeof(struct nr_wire_state) + NR_UPDATE_KEYS <=
                      NR_MIN_DATAGRAM &&
                  sizeof(struct nr_header) + sizeof(struct nr_wire_stamps) + sizeof(struct nr_wire_state) +
                          sizeof(struct nr_histograms) <=
                      NR_MIN_DATAGRAM,
              "results fit the smallest datagram");

#endif
