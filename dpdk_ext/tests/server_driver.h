/* A server, its engine, and datagrams made by hand: for the tests and the benchmark of the server. */
#ifndef NR_TESTS_SERVER_DRIVER_H
#define NR_TESTS_SERVER_DRIVER_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "protocol/server.h"

enum {
    DRIVER_CAUGHT = 2048, /* datagrams of the server that can be looked at */
    DRIVER_TOKENS = 1024,
    DRIVER_BURST = 4,     /* datagrams of the outbox, so that it is flushed in the middle of things */
    DRIVER_STEP = 32,     /* bytes of a step of store 0: 16 of observation, then action, reward and flags */
    DRIVER_OBSERVATION = 16,
    DRIVER_COLUMNS = 24,
    DRIVER_ROW = 72,
    DRIVER_BIG_STEP = 4000, /* store 1 */
    DRIVER_BIG_OBSERVATION = 3600,
    DRIVER_BIG_ROW = 4024,
    DRIVER_BIG_STEPS = 8,
    DRIVER_SET_BYTES = 100000,
    DRIVER_MILLISECOND = 1000000,
};

struct datagram {
    uint8_t bytes[NR_MAX_DATAGRAM + 64] __attribute__((aligned(64)));
    uint32_t length;
};

struct caught {
    struct datagram datagram;
    struct nr_peer peer;
};

struct driver {
    struct nr_engine *engine;
    struct nr_server *server;
    struct nr_outbox outbox;
    struct nr_tx tx[DRIVER_BURST];
    uint8_t arena[DRIVER_BURST * NR_MAX_DATAGRAM] __attribute__((aligned(64)));
    struct caught caught[DRIVER_CAUGHT];
    uint32_t count;  /* caught */
    uint64_t sent;   /* datagrams of the server since the start */
    uint64_t now;
    uint64_t counter;
    bool deaf; /* datagrams are counted, not kept */
    bool slow; /* references into the slab stay out until driver_let_go */
    uint32_t waiting;                    /* tokens that are out */
    uint64_t token[DRIVER_TOKENS];
    uint64_t referred;                   /* segments with a token since the start */
};

static const char driver_spec[] = "{\"store\": \"what the clients reckon their layouts from\", \"tables\": [1, 2, 3]}";

/* As packet I/O that has sent everything. */
static inline void driver_let_go(struct driver *driver)
{
    while (driver->waiting > 0)
        nr_server_sent(driver->server, driver->token[--driver->waiting]);
}

static inline void driver_sent(struct driver *driver, const struct nr_tx *tx)
{
    for (uint32_t s = 0; s < tx->segments; s++) {
        driver->referred += tx->segment[s].token != NR_TOKEN_NONE;
        if (!driver->slow) {
            nr_server_sent(driver->server, tx->segment[s].token);
        } else if (tx->segment[s].token != NR_TOKEN_NONE) {
            CHECK(driver->waiting < DRIVER_TOKENS);
            driver->token[driver->waiting++] = tx->segment[s].token;
        }
    }
}

static void driver_flush(struct nr_outbox *outbox)
{
    struct driver *driver = outbox->context;

    for (uint32_t i = 0; i < outbox->count; i++) {
        const struct nr_tx *tx = &outbox->tx[i];

        CHECK(nr_tx_length(tx) <= NR_MAX_DATAGRAM);
        driver->sent++;
        if (driver->deaf) {
            driver_sent(driver, tx);
            continue;
        }
        CHECK(driver->count < DRIVER_CAUGHT);
        struct caught *caught = &driver->caught[driver->count++];
        caught->datagram.length = nr_tx_copy(tx, caught->datagram.bytes);
        driver_sent(driver, tx);
        caught->peer = tx->peer;
    }
    outbox->count = 0;
}

static inline struct driver *driver_open(uint32_t sessions, uint32_t max_datagram, uint32_t capacity)
{
    static const struct nr_gather gathers[] = {
        {.delta = 0, .from_end = 0, .source = 0, .length = 16, .target = 40},
        {.delta = 0, .from_end = 1, .source = 0, .length = 16, .target = 56},
        {.delta = 0, .from_end = 0, .source = 0, .length = DRIVER_BIG_STEP, .target = 24},
    };
    const struct nr_store_config stores[] = {
        {.step_bytes = DRIVER_STEP,
         .observation_bytes = DRIVER_OBSERVATION,
         .steps = capacity * 2 + 256,
         .window = 4,
         .in_flight = 61,
         .streams = 8},
        {.step_bytes = DRIVER_BIG_STEP,
         .observation_bytes = DRIVER_BIG_OBSERVATION,
         .steps = DRIVER_BIG_STEPS,
         .window = 2,
         .in_flight = 5,
         .streams = 4},
    };
    const struct nr_table_config tables[] = {
        {.store = 0,
         .capacity = capacity,
         .sampler = NR_SAMPLER_PRIORITIZED,
         .exponent = 1,
         .limits.min_size = 4,
         .leases = 2048,
         .window = 4,
         .row_bytes = DRIVER_ROW,
         .item_bytes = DRIVER_COLUMNS,
         .gather_count = 2,
         .first_gather = 0},
        {.store = 1,
         .capacity = 4,
         .sampler = NR_SAMPLER_UNIFORM,
         .limits.min_size = 1,
         .leases = 16,
         .window = 2,
         .row_bytes = DRIVER_BIG_ROW,
         .item_bytes = 8,
         .gather_count = 1,
         .first_gather = 2},
    };
    const struct nr_set_config sets[] = {{.bytes = DRIVER_SET_BYTES}, {.bytes = 16}};
    const struct nr_engine_config config = {.seed = 7,
                                            .lease_ns = 1000ull * DRIVER_MILLISECOND,
                                            .start_seconds = 1000,
                                            .store_count = 2,
                                            .table_count = 2,
                                            .set_count = 2,
                                            .stores = stores,
                                            .tables = tables,
                                            .gathers = gathers,
                                            .sets = sets};
    const struct nr_server_config server_config = {.sessions = sessions,
                                                   .max_datagram = max_datagram,
                                                   .receive_buffer = 512,
                                                   .session_ns = 10000ull * DRIVER_MILLISECOND,
                                                   .incarnation = 0x1234567,
                                                   .start_seconds = 1000,
                                                   .spec = driver_spec};
    struct driver *driver = aligned_alloc(64, (sizeof(*driver) + 63) / 64 * 64);
    int status;

    CHECK(driver != NULL);
    memset(driver, 0, sizeof(*driver));
    driver->now = 1000ull * DRIVER_MILLISECOND;
    driver->engine = nr_engine_create(&config, &status);
    CHECK_EQUAL(status, NR_OK);
    driver->server = nr_server_create(driver->engine, &server_config, &status);
    CHECK_EQUAL(status, NR_OK);
    driver->outbox = (struct nr_outbox){.tx = driver->tx,
                                        .arena = driver->arena,
                                        .stride = NR_MAX_DATAGRAM,
                                        .capacity = DRIVER_BURST,
                                        .flush = driver_flush,
                                        .context = driver};
    return driver;
}

static inline void driver_close(struct driver *driver)
{
    char message[256] = "";

    driver_let_go(driver);
    if (nr_server_audit(driver->server, message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
    nr_server_destroy(driver->server);
    nr_engine_destroy(driver->engine);
    free(driver);
}

static inline struct nr_peer driver_peer(uint32_t number)
{
    struct nr_peer peer = {.length = 8};

    memcpy(peer.bytes, &number, sizeof(number));
    peer.bytes[7] = 1;
    return peer;
}

/* ---- Making datagrams ---- */

static inline void start(struct datagram *datagram, uint8_t operation, uint32_t session, uint8_t slot, uint32_t request)
{
    struct nr_header header = {.magic = NR_MAGIC,
                               .version = NR_VERSION,
                               .operation = operation,
                               .session = session,
                               .slot = slot,
                               .request = request,
                               .fragments = 1};

    memcpy(datagram->bytes, &header, sizeof(header));
    datagram->length = sizeof(header);
}

static inline struct nr_header *head(struct datagram *datagram)
{
    return (struct nr_header *)datagram->bytes;
}

static inline void add(struct datagram *datagram, const void *bytes, uint32_t length)
{
    uint32_t padded = (length + 7) & ~7u;

    CHECK(datagram->length + padded <= sizeof(datagram->bytes));
    memset(datagram->bytes + datagram->length, 0, padded);
    if (length > 0)
        memcpy(datagram->bytes + datagram->length, bytes, length);
    datagram->length += padded;
}

/* Hands the datagram over; answers are caught from 0 on. Returns how many. */
static inline uint32_t give(struct driver *driver, const struct datagram *datagram, uint32_t peer)
{
    struct nr_rx rx = {.data = datagram->bytes, .length = datagram->length, .peer = driver_peer(peer)};

    driver->count = 0;
    nr_server_receive(driver->server, &rx, driver->now, &driver->outbox);
    driver_flush(&driver->outbox);
    return driver->count;
}

/* The same with length and counter filled in. */
static inline uint32_t post(struct driver *driver, struct datagram *datagram, uint32_t peer)
{
    head(datagram)->length = (uint16_t)(datagram->length - sizeof(struct nr_header));
    head(datagram)->counter = ++driver->counter;
    return give(driver, datagram, peer);
}

static inline void make_hello(struct datagram *datagram, uint64_t nonce, uint32_t size, uint32_t max_datagram)
{
    struct nr_wire_hello hello = {
        .nonce = nonce, .version_min = NR_VERSION, .version_max = NR_VERSION, .max_datagram = max_datagram};

    start(datagram, NR_OP_HELLO, 0, NR_STATELESS_SLOT, 1);
    add(datagram, &hello, sizeof(hello));
    memset(datagram->bytes + datagram->length, 0, size - datagram->length);
    datagram->length = size;
}

/* ---- Reading answers ---- */

static inline struct nr_header *answer_head(struct driver *driver, uint32_t i)
{
    CHECK(i < driver->count);
    return (struct nr_header *)driver->caught[i].datagram.bytes;
}

static inline const struct nr_wire_state *answer_state(struct driver *driver, uint32_t i)
{
    CHECK((answer_head(driver, i)->flags & NR_FLAG_DATA) == 0);
    CHECK(driver->caught[i].datagram.length >= NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state));
    return (const struct nr_wire_state *)(driver->caught[i].datagram.bytes + NR_RESPONSE_OVERHEAD);
}

static inline const void *answer_result(struct driver *driver, uint32_t i, uint32_t bytes)
{
    CHECK_EQUAL(driver->caught[i].datagram.length, NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state) + bytes);
    return answer_state(driver, i) + 1;
}

/* One answer came, of this status. */
static inline void expect(struct driver *driver, uint32_t count, int status)
{
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(answer_head(driver, 0)->status, status);
}

static inline uint32_t open_session(struct driver *driver, uint32_t peer)
{
    struct datagram hello;

    make_hello(&hello, 0x1000 + peer, NR_ETHERNET_DATAGRAM, NR_ETHERNET_DATAGRAM);
    expect(driver, post(driver, &hello, peer), NR_OK);
    return ((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(struct nr_wire_welcome)))->session;
}

static inline uint32_t open_stream(struct driver *driver, uint32_t peer, uint32_t session, uint32_t request, uint32_t store,
                                   uint8_t id)
{
    struct datagram datagram;
    struct nr_wire_streams streams = {.store = store, .count = 1};
    uint8_t name[16] = {id, 1};

    start(&datagram, NR_OP_STREAMS, session, 14, request);
    add(&datagram, &streams, sizeof(streams));
    add(&datagram, name, sizeof(name));
    expect(driver, post(driver, &datagram, peer), NR_OK);
    const struct nr_wire_stream *stream = answer_result(driver, 0, sizeof(*stream));
    CHECK_EQUAL(stream->status, NR_OK);
    return stream->handle;
}

static inline void start_insert(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint32_t sequence,
                                uint16_t items)
{
    struct nr_wire_insert insert = {.sequence = sequence, .items = items};

    start(datagram, NR_OP_INSERT, session, slot, request);
    add(datagram, &insert, sizeof(insert));
}

static inline void add_step(struct datagram *datagram, uint32_t handle, uint64_t number, uint32_t total, uint32_t offset,
                            const void *bytes, uint32_t length)
{
    struct nr_wire_step step = {
        .type = NR_RECORD_STEP, .length = (uint16_t)length, .handle = handle, .number = number, .total = total, .offset = offset};

    add(datagram, &step, sizeof(step));
    add(datagram, bytes, length);
}

/* A step of store 0 whose every byte tells its number. */
static inline void add_small_step(struct datagram *datagram, uint32_t handle, uint64_t number)
{
    uint8_t bytes[DRIVER_STEP];

    memset(bytes, (int)(number * 3 + 1), sizeof(bytes));
    add_step(datagram, handle, number, DRIVER_STEP, 0, bytes, DRIVER_STEP);
}

/* An item over steps [first, first + steps), its anchor the first of them. */
static inline void add_item(struct datagram *datagram, uint32_t table, uint32_t handle, uint16_t index, uint64_t number,
                            uint64_t first, uint16_t steps, double priority)
{
    uint8_t columns[DRIVER_COLUMNS];
    uint32_t bytes = table == 0 ? DRIVER_COLUMNS : 8;
    struct nr_wire_item item = {.type = NR_RECORD_ITEM,
                                .table = (uint16_t)table,
                                .handle = handle,
                                .number = number,
                                .first_step = first,
                                .priority = priority,
                                .index = index,
                                .steps = steps,
                                .columns = (uint16_t)bytes};

    memset(columns, (int)number, sizeof(columns));
    add(datagram, &item, sizeof(item));
    add(datagram, columns, bytes);
}

/* INSERT of step `number` and the item that ends with it (from number 1 on): CartPole's daily bread. */
static inline void make_transition(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint32_t sequence,
                                   uint32_t handle, uint64_t number)
{
    start_insert(datagram, session, slot, request, sequence, number > 0);
    add_small_step(datagram, handle, number);
    if (number > 0)
        add_item(datagram, 0, handle, 0, number - 1, number - 1, 2, 1.0);
}

static inline void make_sample(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint32_t table,
                               uint32_t count, uint16_t wanted)
{
    struct nr_wire_sample sample = {.table = table, .count = count};

    start(datagram, NR_OP_SAMPLE, session, slot, request);
    add(datagram, &sample, sizeof(sample));
    head(datagram)->fragments = wanted;
}

static inline void make_settle(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint8_t settle)
{
    struct nr_wire_settlement settlement = {.settles = 1};
    struct nr_wire_settle one = {.slot = slot, .settle = settle, .request = request};

    start(datagram, NR_OP_SETTLE, session, NR_STATELESS_SLOT, 1);
    add(datagram, &settlement, sizeof(settlement));
    add(datagram, &one, sizeof(one));
}

static inline struct nr_server_counters counters(const struct driver *driver)
{
    struct nr_server_counters counters;

    nr_server_counters(driver->server, &counters);
    return counters;
}

static inline struct nr_table_info table_info(const struct driver *driver, uint32_t table)
{
    struct nr_table_info info;

    CHECK_EQUAL(nr_table_info(driver->engine, table, &info), NR_OK);
    return info;
}

#endif
