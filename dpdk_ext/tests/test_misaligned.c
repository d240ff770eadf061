/* One conversation of the client with the server, every operation in it, with each datagram placed at every address modulo 8, as
 * packet I/O may hand it up (behind the headers of a frame it begins 2 bytes past a multiple of 8), and written to every address
 * modulo 8. Both sides say the same, byte for byte, wherever the bytes lie. What is wrong with an access, sanitizers say. */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "protocol/client.h"
#include "protocol/server.h"

enum {
    SMALL = 37, /* bytes of a step of store 0; odd, so that what lies behind is misaligned too */
    FRAME = 21, /* of its observation */
    LARGE = 4003,
    COLUMNS = 24,
    ROW_SMALL = NR_ROW_HEAD + COLUMNS + 2 * FRAME + 6,
    ROW_LARGE = NR_ROW_HEAD + COLUMNS + LARGE + 5,
    RING = 64,
    ITEMS = 48, /* of each stream */
    BATCH = 256, /* rows: more than a SAMPLE may ask for at once, so that READs follow */
    LOOKED_AT = 100, /* keys */
    PARAMETERS = 5001,
    TX = 16, /* datagrams of an outbox */
    STRIDE = 9216,
};

static const struct nr_gather gathers[] = {
    {.delta = 0, .source = 0, .length = FRAME, .target = NR_ROW_HEAD + COLUMNS},
    {.delta = 1, .source = 0, .length = FRAME, .target = NR_ROW_HEAD + COLUMNS + FRAME},
    {.delta = 0, .source = 0, .length = LARGE, .target = NR_ROW_HEAD + COLUMNS},
};
static const struct nr_store_config stores[] = {
    {.step_bytes = SMALL, .observation_bytes = FRAME, .steps = 512, .window = 2, .in_flight = 16, .streams = 4},
    {.step_bytes = LARGE, .observation_bytes = LARGE, .steps = 128, .window = 1, .in_flight = 8, .streams = 4},
};
static const struct nr_table_config tables[] = {
    {.store = 0,
     .capacity = 64,
     .exponent = 0.6,
     .limits.min_size = 2,
     .leases = BATCH,
     .window = 2,
     .row_bytes = ROW_SMALL,
     .item_bytes = COLUMNS,
     .gather_count = 2},
    {.store = 1,
     .capacity = 64,
     .exponent = 1,
     .limits.min_size = 2,
     .leases = BATCH,
     .window = 1,
     .row_bytes = ROW_LARGE,
     .item_bytes = COLUMNS,
     .gather_count = 1,
     .first_gather = 2},
};
static const struct nr_set_config sets[] = {{.bytes = PARAMETERS}};
static const struct nr_engine_config engine_config = {.seed = 3,
                                                      .lease_ns = 10000000000ull,
                                                      .start_seconds = 1000,
                                                      .store_count = 2,
                                                      .table_count = 2,
                                                      .set_count = 1,
                                                      .stores = stores,
                                                      .tables = tables,
                                                      .gathers = gathers,
                                                      .sets = sets};

/* ---- What was said ---- */

struct transcript {
    uint8_t *bytes;
    size_t length, capacity;
};

static void note(struct transcript *transcript, const void *bytes, size_t length)
{
    if (transcript->length + length > transcript->capacity) {
        transcript->capacity = 2 * (transcript->length + length);
        transcript->bytes = realloc(transcript->bytes, transcript->capacity);
        CHECK(transcript->bytes != NULL);
    }
    memcpy(transcript->bytes + transcript->length, bytes, length);
    transcript->length += length;
}

/* ---- A line without misfortune ---- */

struct parcel {
    struct parcel *next;
    bool to_server;
    uint32_t length;
    uint8_t bytes[NR_MAX_DATAGRAM];
};

struct side {
    struct nr_outbox outbox;
    struct nr_tx tx[TX];
    uint8_t arena[TX * STRIDE + 8] __attribute__((aligned(64)));
    struct line *line; /* that it sends into */
};

struct line {
    uint32_t place; /* of a datagram received, modulo 8 */
    uint64_t now;   /* ns */
    struct nr_engine *engine;
    struct nr_server *server;
    struct nr_client *client;
    struct side from_client, from_server;
    struct parcel *first, **last;
    struct transcript said;
    uint32_t requests;  /* bit: operation that the client asked for */
    uint32_t responses; /* bit: operation that the server answered */
    uint32_t segments;  /* that left from the slab */
};

static void flush(struct nr_outbox *outbox)
{
    struct side *side = outbox->context;
    struct line *line = side->line;

    for (uint32_t i = 0; i < outbox->count; i++) {
        const struct nr_tx *tx = &outbox->tx[i];
        struct parcel *parcel = malloc(sizeof(*parcel));
        struct nr_header header;

        CHECK(parcel != NULL && nr_tx_length(tx) <= NR_MAX_DATAGRAM);
        parcel->next = NULL;
        parcel->to_server = side == &line->from_client;
        parcel->length = nr_tx_copy(tx, parcel->bytes);
        for (uint32_t s = 0; s < tx->segments; s++) {
            line->segments += tx->segment[s].token != NR_TOKEN_NONE;
            nr_server_sent(line->server, tx->segment[s].token);
        }
        memcpy(&header, parcel->bytes, sizeof(header));
        if (parcel->to_server)
            line->requests |= 1u << header.operation;
        else
            line->responses |= 1u << (header.operation & ~NR_OP_RESPONSE);
        note(&line->said, &parcel->length, sizeof(parcel->length));
        note(&line->said, parcel->bytes, parcel->length);
        *line->last = parcel;
        line->last = &parcel->next;
    }
    outbox->count = 0;
}

static void open_side(struct side *side, struct line *line, uint32_t place)
{
    side->line = line;
    side->outbox = (struct nr_outbox){
        .tx = side->tx, .arena = side->arena + place, .stride = STRIDE, .capacity = TX, .flush = flush, .context = side};
}

/* Each datagram ends where its memory ends. */
static void deliver(struct line *line, const struct parcel *parcel)
{
    uint8_t *memory = malloc(line->place + parcel->length);
    struct nr_rx rx = {.data = memory + line->place, .length = parcel->length, .peer = {.length = 4, .bytes = {1}}};

    CHECK(memory != NULL);
    CHECK_EQUAL((uintptr_t)rx.data % 8, line->place);
    memcpy(memory + line->place, parcel->bytes, parcel->length);
    if (parcel->to_server) {
        nr_server_receive(line->server, &rx, line->now, &line->from_server.outbox);
        flush(&line->from_server.outbox);
    } else {
        nr_client_receive(line->client, &rx, line->now);
    }
    free(memory);
}

/* One datagram, or the next moment at which the client has something to do. */
static void step(struct line *line)
{
    nr_client_send(line->client, line->now, &line->from_client.outbox);
    flush(&line->from_client.outbox);
    struct parcel *parcel = line->first;
    line->now += 1000;
    if (parcel != NULL) {
        line->first = parcel->next;
        if (line->first == NULL)
            line->last = &line->first;
        deliver(line, parcel);
        free(parcel);
        return;
    }
    nr_server_sweep(line->server, line->now, &line->from_server.outbox);
    flush(&line->from_server.outbox);
    if (line->first != NULL)
        return;
    uint64_t wakeup = nr_client_wakeup(line->client, line->now);
    CHECK(wakeup != UINT64_MAX); /* else it would wait for ever */
    if (wakeup > line->now)
        line->now = wakeup;
}

static void open_line(struct line *line, uint32_t rx_place, uint32_t tx_place, uint32_t max_datagram)
{
    static char spec[4000]; /* several datagrams */
    const struct nr_client_config client_config = {.max_datagram = max_datagram, .seed = 11};
    int status;

    memset(spec, 'x', sizeof(spec) - 1);
    const struct nr_server_config server_config = {.sessions = 4,
                                                   .max_datagram = NR_MAX_DATAGRAM,
                                                   .receive_buffer = 256,
                                                   .session_ns = 60000000000ull,
                                                   .incarnation = 77,
                                                   .start_seconds = 1000,
                                                   .spec = spec};
    memset(line, 0, sizeof(*line));
    line->place = rx_place;
    line->now = 1000000000u;
    line->last = &line->first;
    open_side(&line->from_client, line, tx_place);
    open_side(&line->from_server, line, tx_place);
    line->engine = nr_engine_create(&engine_config, &status);
    CHECK_EQUAL(status, NR_OK);
    line->server = nr_server_create(line->engine, &server_config, &status);
    CHECK_EQUAL(status, NR_OK);
    line->client = nr_client_create(&client_config, &status);
    CHECK_EQUAL(status, NR_OK);
}

static void close_line(struct line *line)
{
    char message[256] = "";

    nr_client_bye(line->client, line->now, &line->from_client.outbox);
    flush(&line->from_client.outbox);
    while (line->first != NULL)
        step(line);
    CHECK_EQUAL(nr_client_audit(line->client, message, sizeof(message)), NR_OK);
    CHECK_EQUAL(nr_server_audit(line->server, message, sizeof(message)), NR_OK);
    nr_client_destroy(line->client);
    nr_server_destroy(line->server);
    nr_engine_destroy(line->engine);
}

/* ---- The conversation ---- */

static void fill(uint8_t *bytes, uint32_t length, uint64_t seed)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static void finish(struct line *line, struct nr_request *request)
{
    CHECK(request != NULL);
    while (nr_request_status(request) == NR_PENDING)
        step(line);
    CHECK_EQUAL(nr_request_status(request), NR_OK);
}

static void insert(struct line *line, uint32_t store)
{
    static uint8_t ring[RING * LARGE + 8];
    const uint32_t bytes = store == 0 ? SMALL : LARGE, window = stores[store].window;
    const struct nr_client_stream_config config = {
        .id = {(uint8_t)(store + 1)}, .store = store, .ring = RING, .steps = ring + line->place, .stride = bytes};
    uint32_t stream = nr_client_stream_add(line->client, &config), pushed = 0, decided = 0;
    struct nr_decided of[8];

    while (decided < ITEMS) {
        while (pushed < ITEMS && nr_client_stream_room(line->client, stream) > 0) {
            uint64_t number = nr_client_stream_next(line->client, stream);
            uint8_t columns[COLUMNS];
            struct nr_item item = {.first_step = number + 1 - window,
                                   .steps = window,
                                   .length = window - 1,
                                   .priority = 1 + (double)(number % 5),
                                   .columns = columns};

            fill(ring + line->place + (number & (RING - 1)) * bytes, bytes, number);
            CHECK_EQUAL(nr_client_step(line->client, stream, bytes), NR_OK);
            if (number + 1 < window)
                continue;
            fill(columns, COLUMNS, number + 1000);
            CHECK_EQUAL(nr_client_item(line->client, stream, store, &item, pushed++), NR_OK);
        }
        nr_client_flush(line->client);
        step(line);
        uint32_t count = nr_client_decided(line->client, 8, of);
        for (uint32_t i = 0; i < count; i++, decided++) {
            CHECK_EQUAL(of[i].status, NR_OK);
            CHECK_EQUAL(of[i].tag, decided);
            note(&line->said, &of[i].key, sizeof(of[i].key));
        }
    }
    nr_client_stream_end(line->client, stream);
    while (!nr_client_stream_done(line->client, stream))
        step(line);
}

/* Draws rows, notes them, and sets the priorities of those drawn anew. */
static void sample_and_update(struct line *line, uint32_t table)
{
    static uint8_t memory[BATCH * ROW_LARGE + 8];
    const uint32_t bytes = tables[table].row_bytes;
    uint8_t *rows = memory + line->place, outcome[BATCH];
    struct nr_request *request = nr_client_sample(line->client, table, BATCH, rows, line->now);
    uint64_t keys[BATCH];
    double priorities[BATCH];
    uint32_t distinct = 0;

    finish(line, request);
    note(&line->said, rows, (size_t)BATCH * bytes);
    for (uint32_t r = 0; r < BATCH; r++) {
        bool seen = false;

        memcpy(&keys[distinct], rows + (size_t)r * bytes, sizeof(keys[0]));
        for (uint32_t i = 0; i < distinct; i++)
            seen |= keys[i] == keys[distinct];
        priorities[distinct] = 0.5 + r;
        distinct += !seen;
    }
    nr_client_settle(line->client, request, true, line->now);
    request = nr_client_update(line->client, table, distinct, keys, priorities, outcome, line->now);
    finish(line, request);
    for (uint32_t i = 0; i < distinct; i++)
        CHECK_EQUAL(outcome[i], NR_APPLIED);
    nr_request_free(line->client, request);
}

/* Looks at what a sample of the table drew, counts the table, changes a limit, and lets one item leave, then all. */
static void look_and_remove(struct line *line, uint32_t table)
{
    static uint8_t memory[BATCH * ROW_LARGE + 8];
    const uint32_t bytes = tables[table].row_bytes;
    uint8_t *rows = memory + line->place, outcome[1];
    uint64_t keys[BATCH];
    struct nr_histograms histograms = {0};
    const struct nr_limits_change change = {.which = NR_LIMIT_MAX_SAMPLED, .max_sampled = 9};
    struct nr_limits limits;

    struct nr_request *request = nr_client_sample(line->client, table, BATCH, rows, line->now);
    finish(line, request);
    for (uint32_t r = 0; r < BATCH; r++)
        memcpy(&keys[r], rows + (size_t)r * bytes, sizeof(keys[0]));
    nr_client_settle(line->client, request, true, line->now);
    request = nr_client_get(line->client, table, LOOKED_AT, keys, rows, line->now);
    finish(line, request);
    note(&line->said, rows, (size_t)LOOKED_AT * bytes);
    nr_request_free(line->client, request);
    request = nr_client_histograms(line->client, table, &histograms, line->now);
    finish(line, request);
    note(&line->said, histograms.sampled, sizeof(histograms.sampled));
    nr_request_free(line->client, request);
    request = nr_client_configure(line->client, table, &change, line->now);
    finish(line, request);
    nr_request_limits(request, &limits);
    CHECK_EQUAL(limits.max_sampled, 9);
    nr_request_free(line->client, request);
    request = nr_client_delete(line->client, table, 1, keys, outcome, line->now);
    finish(line, request);
    CHECK_EQUAL(outcome[0], NR_APPLIED);
    nr_request_free(line->client, request);
    request = nr_client_reset(line->client, table, line->now);
    finish(line, request);
    nr_request_free(line->client, request);
}

static void publish_and_fetch(struct line *line)
{
    static uint8_t memory[PARAMETERS + 8];
    struct nr_request *request;
    uint64_t length;

    fill(memory + line->place, PARAMETERS, 5);
    request = nr_client_publish(line->client, 0, memory + line->place, PARAMETERS, UINT64_MAX, line->now);
    finish(line, request);
    nr_request_free(line->client, request);
    request = nr_client_fetch(line->client, 0, 0, line->now);
    finish(line, request);
    uint8_t *bytes = nr_request_take(request, &length);
    CHECK_EQUAL(length, PARAMETERS);
    CHECK_EQUAL(memcmp(bytes, memory + line->place, PARAMETERS), 0);
    free(bytes);
    nr_request_free(line->client, request);
}

static void ask_the_rest(struct line *line)
{
    struct nr_request *request = nr_client_tables(line->client, line->now);
    uint64_t length;

    finish(line, request);
    uint8_t *bytes = nr_request_take(request, &length);
    CHECK_EQUAL(length, 2 * sizeof(struct nr_table_info));
    note(&line->said, bytes, length);
    free(bytes);
    nr_request_free(line->client, request);
    request = nr_client_ping(line->client, 333, line->now);
    finish(line, request);
    nr_request_free(line->client, request);
}

static struct transcript converse(uint32_t rx_place, uint32_t tx_place, uint32_t max_datagram)
{
    const uint32_t all = (1u << (NR_OP_LAST + 1)) - 2;
    struct line *line = aligned_alloc(64, (sizeof(*line) + 63) / 64 * 64);

    CHECK(line != NULL);
    open_line(line, rx_place, tx_place, max_datagram);
    while (nr_client_status(line->client) != NR_OK)
        step(line);
    CHECK_EQUAL(nr_client_layout(line->client, &engine_config), NR_OK);
    for (uint32_t store = 0; store < 2; store++)
        insert(line, store);
    for (uint32_t table = 0; table < 2; table++)
        sample_and_update(line, table);
    for (uint32_t table = 0; table < 2; table++)
        look_and_remove(line, table);
    publish_and_fetch(line);
    ask_the_rest(line);
    close_line(line);
    CHECK_EQUAL(line->requests & all, all);
    CHECK_EQUAL(line->responses & all, all);
    CHECK(line->segments > BATCH / 2);
    struct transcript said = line->said;
    free(line);
    return said;
}

int main(void)
{
    static const uint32_t sizes[] = {NR_MIN_DATAGRAM, NR_ETHERNET_DATAGRAM, NR_MAX_DATAGRAM};

    for (uint32_t s = 0; s < 3; s++) {
        struct transcript aligned = converse(0, 0, sizes[s]);

        for (uint32_t places = 1; places < 64; places++) {
            struct transcript said = converse(places % 8, places / 8, sizes[s]);

            if (said.length != aligned.length || memcmp(said.bytes, aligned.bytes, said.length) != 0) {
                fprintf(stderr, "received at %u, sent at %u, %u bytes: another conversation\n", places % 8, places / 8, sizes[s]);
                return 1;
            }
            free(said.bytes);
        }
        free(aligned.bytes);
    }
    return 0;
}
