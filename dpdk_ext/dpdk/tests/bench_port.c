/*
 * Cycles per datagram through a DPDK port: the appliance's own loop on a net_ring port, with a client in the same thread that puts
 * frames into the ring and takes the answers out of it while the clock stands; and the port alone on net_null.
 *
 * Bursts during which another process got the core are left out. Not in the rows of net_ring: what a driver itself does for each frame (descriptors, new mbufs). The raw rows of net_null tell it.
 * Prints a JSON object per line. usage: bench_port [BURSTS]
 */
#include <pthread.h>
#include <sys/resource.h>

#include <rte_bus_vdev.h>
#include <rte_cycles.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "eal_process.h"
#include "engine/random.h"
#include "io/frame.h"
#include "loop/appliance.h"
#include "tests/server_driver.h"

enum {
    SMALL = 100000, /* items of the first table: 32 B steps, 72 B rows */
    ATARI = 20000,  /* items of the second */
    FRAME = 7056,
    STEP = FRAME + 16, /* with action, reward and flags */
    STACK = 4,
    COLUMNS = 24,
    ROW = NR_ROW_HEAD + COLUMNS + STACK * FRAME + 16,
    WINDOW = 4,
    TOGETHER = 4, /* Atari steps of one INSERT: its datagrams are full but for the last */
    ROWS = 32,    /* of a draw */
    BURST = 32,   /* frames of one burst at most, as the loop takes them */
    ROUNDS = 5,
    PATIENCE = 50, /* bursts that may be disturbed, for each that counts */
    TURNS = 16,   /* bursts of net_null between two looks at the clock */
    INSERT_SLOTS = 8, /* 0 to 7 */
    SAMPLE_SLOT = 8,
    UPDATE_SLOT = 9,
    PORT = 7447,
    CLIENT = 40000,
};

static const uint8_t server_ip4[4] = {10, 0, 0, 2}, client_ip4[4] = {10, 0, 0, 1}, client_mac[6] = {2, 0, 0, 0, 0, 1};

/* What one or more bursts cost. */
struct cost {
    uint64_t all;     /* cycles from one look at the port to the next */
    uint64_t receive; /* of these, in the port's receive_burst */
    uint64_t send;    /* of these, in its send_burst */
    uint64_t in, out; /* datagrams */
    uint64_t bytes;   /* of payload in answers */
};

struct bench {
    struct nr_packet_io io;    /* what the loop sees: the port behind it, and the client that runs before each look at it */
    struct nr_packet_io *port; /* owned */
    struct nr_appliance *appliance;
    struct rte_ring *ring[2];  /* to the server, to the client */
    struct rte_mempool *pool;  /* of the client's frames */
    struct nr_frame_host client;
    struct nr_peer server;
    enum nr_frame_checksum checksum; /* of the client's frames */
    uint32_t mtu;
    uint32_t max_datagram;

    const struct phase *phase;
    uint64_t bursts; /* of a round of the phase, asked for on the command line */
    uint64_t burst;  /* of the phase */
    uint64_t disturbed; /* bursts of the phase that do not count */
    bool running;    /* a burst is under way */
    uint64_t began;  /* cycles */
    long switches;   /* of this thread away from the core, when the burst began */
    struct cost cost, round[ROUNDS]; /* of this burst; of the rounds of this phase */

    struct rte_mbuf *frame[BURST]; /* of the client's next burst */
    uint32_t frames;
    uint32_t expected, finals;     /* answers of this burst; of them, those that are not NR_PENDING */

    uint32_t session, small_handle, atari_handle;
    uint64_t counter, small_number, atari_number;
    uint32_t requests[NR_SLOTS], sequence;
    uint64_t offset; /* of the next READ of the draw under way */
    uint64_t keys[SMALL];
    uint64_t key_count;
    struct nr_random dice;
};

struct phase {
    const char *name; /* NULL: prepares others, is not told */
    void (*make)(struct bench *bench); /* queues a burst */
    void (*take)(struct bench *bench, const uint8_t *result, uint32_t length); /* one answer's result; NULL: not looked at */
    uint64_t share;   /* of the bursts asked for, one in so many; of a preparing phase the bursts */
    uint32_t only_mtu; /* 0: any */
};

static struct datagram scratch;

/* Times that the core was taken away from this thread. */
static long switches(void)
{
    struct rusage usage;

    CHECK_EQUAL(getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nivcsw;
}

/* ---- The client ---- */

static void queue(struct bench *bench, struct datagram *datagram, uint32_t answers, uint32_t finals)
{
    struct nr_tx tx = {.peer = bench->server, .data = datagram->bytes, .length = (uint16_t)datagram->length};
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(bench->pool);
    uint8_t *at;

    CHECK(mbuf != NULL && bench->frames < BURST && datagram->length <= bench->max_datagram);
    head(datagram)->length = (uint16_t)(datagram->length - sizeof(struct nr_header));
    head(datagram)->counter = ++bench->counter;
    at = rte_pktmbuf_mtod(mbuf, uint8_t *);
    uint32_t headers = nr_frame_headers(&bench->client, &tx, datagram->length, bench->checksum, at);
    CHECK_EQUAL(headers, NR_FRAME_HEADERS_IP4);
    memcpy(at + headers, datagram->bytes, datagram->length);
    mbuf->data_len = (uint16_t)(headers + datagram->length);
    mbuf->pkt_len = mbuf->data_len;
    bench->frame[bench->frames++] = mbuf;
    bench->expected += answers;
    bench->finals += finals;
}

static void hello(struct bench *bench)
{
    make_hello(&scratch, 1, bench->max_datagram, bench->max_datagram);
    queue(bench, &scratch, 1, 1);
}

static void take_hello(struct bench *bench, const uint8_t *result, uint32_t length)
{
    const struct nr_wire_welcome *welcome = (const void *)result;

    CHECK_EQUAL(length, sizeof(*welcome));
    bench->session = welcome->session;
    bench->max_datagram = welcome->max_datagram;
}

static void streams(struct bench *bench)
{
    for (uint32_t store = 0; store < 2; store++) {
        struct nr_wire_streams streams = {.store = store, .count = 1};
        uint8_t name[16] = {(uint8_t)(store + 1), 1};

        start(&scratch, NR_OP_STREAMS, bench->session, 14, store + 1);
        add(&scratch, &streams, sizeof(streams));
        add(&scratch, name, sizeof(name));
        queue(bench, &scratch, 1, 1);
    }
}

static void take_stream(struct bench *bench, const uint8_t *result, uint32_t length)
{
    const struct nr_wire_stream *stream = (const void *)result;

    CHECK_EQUAL(length, sizeof(*stream));
    CHECK_EQUAL(stream->status, NR_OK);
    *(bench->small_handle == 0 ? &bench->small_handle : &bench->atari_handle) = stream->handle;
}

static void ping(struct bench *bench)
{
    for (uint32_t i = 0; i < BURST; i++) {
        start(&scratch, NR_OP_PING, bench->session, NR_STATELESS_SLOT, 1);
        memset(scratch.bytes + scratch.length, 0, 64);
        scratch.length += 64;
        queue(bench, &scratch, 1, 1);
    }
}

static uint8_t insert_slot(const struct bench *bench)
{
    return (uint8_t)(bench->sequence % INSERT_SLOTS);
}

static void insert_small(struct bench *bench)
{
    for (uint32_t i = 0; i < BURST; i++) {
        uint8_t slot = insert_slot(bench);

        make_transition(&scratch, bench->session, slot, ++bench->requests[slot], bench->sequence++, bench->small_handle,
                        bench->small_number++);
        queue(bench, &scratch, 1, 1);
    }
}

static void take_key(struct bench *bench, const uint8_t *result, uint32_t length)
{
    if (length == 0)
        return; /* the very first step has no item */
    CHECK_EQUAL(length, sizeof(uint64_t) + 1);
    CHECK_EQUAL(result[8], NR_OK);
    if (bench->key_count < SMALL)
        memcpy(&bench->keys[bench->key_count++], result, sizeof(uint64_t));
}

static void start_atari(struct bench *bench, uint8_t slot, uint16_t fragment, uint16_t fragments, uint16_t items)
{
    start_insert(&scratch, bench->session, slot, bench->requests[slot], bench->sequence, items);
    head(&scratch)->fragment = fragment;
    head(&scratch)->fragments = fragments;
}

/* Goes through the records of an INSERT of TOGETHER steps and their items; `fragments` 0: only counts the datagrams. */
static uint16_t walk_atari(struct bench *bench, uint8_t slot, uint16_t fragments, uint16_t items)
{
    static uint8_t bytes[STEP], columns[COLUMNS];
    uint16_t fragment = 0, index = 0;

    start_atari(bench, slot, fragment, fragments, items);
    for (uint32_t i = 0; i < TOGETHER; i++) {
        uint64_t number = bench->atari_number + i;

        for (uint32_t offset = 0, length; offset < STEP; offset += length) {
            uint32_t room = (bench->max_datagram & ~7u) - scratch.length;

            if (room <= sizeof(struct nr_wire_step)) {
                if (fragments > 0)
                    queue(bench, &scratch, 1, fragment + 1 == fragments);
                start_atari(bench, slot, ++fragment, fragments, items);
                length = 0;
                continue;
            }
            room -= (uint32_t)sizeof(struct nr_wire_step);
            length = STEP - offset < room ? STEP - offset : room;
            add_step(&scratch, bench->atari_handle, number, STEP, offset, bytes + offset, length);
        }
        if (number + 1 < WINDOW)
            continue;
        struct nr_wire_item item = {.type = NR_RECORD_ITEM,
                                    .table = 1,
                                    .handle = bench->atari_handle,
                                    .number = number - (WINDOW - 1),
                                    .first_step = number - (WINDOW - 1),
                                    .priority = 1,
                                    .index = index++,
                                    .steps = WINDOW,
                                    .anchor = WINDOW - 1,
                                    .columns = COLUMNS};

        if ((bench->max_datagram & ~7u) - scratch.length < sizeof(item) + COLUMNS) {
            if (fragments > 0)
                queue(bench, &scratch, 1, fragment + 1 == fragments);
            start_atari(bench, slot, ++fragment, fragments, items);
        }
        add(&scratch, &item, sizeof(item));
        add(&scratch, columns, COLUMNS);
    }
    if (fragments > 0)
        queue(bench, &scratch, 1, fragment + 1 == fragments);
    return fragment + 1;
}

static void insert_atari(struct bench *bench)
{
    uint8_t slot = insert_slot(bench);
    uint16_t items = bench->atari_number == 0 ? TOGETHER - (WINDOW - 1) : TOGETHER;

    bench->requests[slot]++;
    walk_atari(bench, slot, walk_atari(bench, slot, 0, items), items);
    bench->sequence++;
    bench->atari_number += TOGETHER;
}

/* The draw carries the settlement of the one before, as the client's do. */
static uint32_t sample(struct bench *bench, uint32_t table, uint32_t row_bytes, uint32_t most)
{
    struct nr_wire_sample sample = {.table = table, .count = ROWS, .settles = 1};
    struct nr_wire_settle settle = {
        .slot = SAMPLE_SLOT, .settle = NR_SETTLE_RELEASE | NR_SETTLE_COMMIT, .request = bench->requests[SAMPLE_SLOT]};
    uint32_t full = bench->max_datagram - (uint32_t)NR_RESPONSE_OVERHEAD;
    uint32_t wanted = ((uint32_t)sizeof(struct nr_wire_message) + ROWS * row_bytes + full - 1) / full;

    wanted = wanted < most ? wanted : most;
    start(&scratch, NR_OP_SAMPLE, bench->session, SAMPLE_SLOT, ++bench->requests[SAMPLE_SLOT]);
    add(&scratch, &sample, sizeof(sample));
    add(&scratch, &settle, sizeof(settle));
    head(&scratch)->fragments = (uint16_t)wanted;
    queue(bench, &scratch, wanted, wanted);
    return wanted * full;
}

static void sample_small(struct bench *bench)
{
    for (uint32_t i = 0; i < 8; i++)
        sample(bench, 0, DRIVER_ROW, 32);
}

/* One request: a SAMPLE, or a READ of the next 32 datagrams of its rows. */
static void read_atari(struct bench *bench)
{
    uint64_t end = sizeof(struct nr_wire_message) + (uint64_t)ROWS * ROW;
    uint32_t full = bench->max_datagram - (uint32_t)NR_RESPONSE_OVERHEAD;

    if (bench->offset == 0 || bench->offset >= end) {
        bench->offset = sample(bench, 1, ROW, 32);
        return;
    }
    uint64_t left = (end - bench->offset + full - 1) / full;
    uint32_t wanted = left < 32 ? (uint32_t)left : 32;

    start(&scratch, NR_OP_READ, bench->session, SAMPLE_SLOT, bench->requests[SAMPLE_SLOT]);
    head(&scratch)->offset = (uint32_t)bench->offset;
    head(&scratch)->fragments = (uint16_t)wanted;
    queue(bench, &scratch, wanted, wanted);
    bench->offset += (uint64_t)wanted * full;
}

static void update(struct bench *bench)
{
    uint32_t parts = bench->mtu == 1500 ? 6 : 1, requests = bench->mtu == 1500 ? 5 : 4, each = 512 / parts;

    for (uint32_t request = 0; request < requests; request++) {
        bench->requests[UPDATE_SLOT]++;
        for (uint32_t part = 0; part < parts; part++) {
            uint32_t first = part * each, count = part + 1 < parts ? each : 512 - first;
            struct nr_wire_update update = {.table = 0, .count = 512, .first = (uint16_t)first};

            start(&scratch, NR_OP_UPDATE, bench->session, UPDATE_SLOT, bench->requests[UPDATE_SLOT]);
            head(&scratch)->fragment = (uint16_t)part;
            head(&scratch)->fragments = (uint16_t)parts;
            add(&scratch, &update, sizeof(update));
            for (uint32_t i = 0; i < count; i++) {
                struct nr_wire_priority priority = {.key = bench->keys[nr_random_below(&bench->dice, SMALL)],
                                                    .priority = (double)(1 + nr_random_below(&bench->dice, 1000)) * 0.01};
                add(&scratch, &priority, sizeof(priority));
            }
            queue(bench, &scratch, 1, part + 1 == parts);
        }
    }
}

/* Looks at one answer's beginning, which lies in the first mbuf, and frees it. */
static void take(struct bench *bench, struct rte_mbuf *mbuf, uint32_t *finals)
{
    const uint8_t *datagram = rte_pktmbuf_mtod_offset(mbuf, const uint8_t *, NR_FRAME_HEADERS_IP4);
    const uint32_t overhead = NR_RESPONSE_OVERHEAD + (uint32_t)sizeof(struct nr_wire_state);
    struct nr_header header;

    CHECK(mbuf->data_len >= NR_FRAME_HEADERS_IP4 + sizeof(header));
    memcpy(&header, datagram, sizeof(header));
    CHECK_EQUAL(header.magic, NR_MAGIC);
    CHECK(header.status == NR_OK || header.status == NR_PENDING);
    *finals += header.status == NR_OK;
    bench->cost.bytes += mbuf->pkt_len - NR_FRAME_HEADERS_IP4;
    if (bench->phase->take != NULL && header.status == NR_OK)
        bench->phase->take(bench, datagram + overhead, mbuf->data_len - NR_FRAME_HEADERS_IP4 - overhead);
    rte_pktmbuf_free(mbuf);
}

/* The answers of the last burst: all of them, and nothing else. */
static void take_answers(struct bench *bench)
{
    uint32_t answers = 0, finals = 0;
    void *got;

    while (rte_ring_dequeue(bench->ring[1], &got) == 0) {
        take(bench, got, &finals);
        answers++;
    }
    CHECK_EQUAL(answers, bench->expected);
    CHECK_EQUAL(finals, bench->finals);
    bench->cost.in = bench->frames;
    bench->cost.out = answers;
}

/* ---- The phases ---- */

static const struct phase phases[] = {
    {NULL, hello, take_hello, 1, 0},
    {NULL, streams, take_stream, 1, 0},
    {NULL, insert_small, take_key, SMALL / BURST + 1, 0},
    {NULL, insert_atari, NULL, ATARI / TOGETHER + 1, 0},
    {"ping of 112 B", ping, NULL, 1, 1500},
    {"update of 512 in six", update, NULL, 8, 1500},
    {"update of 512 in one", update, NULL, 8, 9000},
    {"sample of 32 rows of 72 B", sample_small, NULL, 2, 0},
    {"rows of 28 KB, batches of 32", read_atari, NULL, 1, 0},
    {"insert of one 32 B step", insert_small, NULL, 2, 1500},
    {"insert of 7 KB steps, four at once", insert_atari, NULL, 2, 0},
    {NULL, NULL, NULL, 0, 0},
};

static uint64_t rounds_of(const struct bench *bench)
{
    return bench->phase->name != NULL ? ROUNDS : 1;
}

static uint64_t bursts_of(const struct bench *bench)
{
    return bench->phase->name != NULL ? bench->bursts / bench->phase->share + 1 : bench->phase->share;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Of the rounds' cycles per datagram, in the direction that has more. */
static double median_of(const struct bench *bench, size_t field)
{
    double value[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        const struct cost *round = &bench->round[i];
        uint64_t most = round->in > round->out ? round->in : round->out, cycles;

        CHECK(most > 0);
        memcpy(&cycles, (const uint8_t *)round + field, sizeof(cycles));
        value[i] = (double)cycles / (double)most;
    }
    qsort(value, ROUNDS, sizeof(*value), compare);
    return value[ROUNDS / 2];
}

static void tell(const struct bench *bench)
{
    double cycles = median_of(bench, offsetof(struct cost, all));
    uint64_t in = 0, out = 0, bytes = 0;

    for (int i = 0; i < ROUNDS; i++) {
        in += bench->round[i].in;
        out += bench->round[i].out;
        bytes += bench->round[i].bytes;
    }
    printf("{\"row\": \"%s\", \"mtu\": %u, \"software\": %s, \"cycles\": %.0f, \"ns\": %.0f, \"receive\": %.0f, \"send\": %.0f, "
           "\"answers\": %.2f, \"bytes\": %.0f}\n",
           bench->phase->name, bench->mtu, bench->checksum == NR_FRAME_CHECKSUM_WHOLE ? "true" : "false", cycles,
           1e9 * cycles / (double)rte_get_tsc_hz(), median_of(bench, offsetof(struct cost, receive)),
           median_of(bench, offsetof(struct cost, send)), (double)out / (double)in, (double)bytes / (double)out);
    fflush(stdout);
}

static void start_phase(struct bench *bench, const struct phase *phase)
{
    while (phase->only_mtu != 0 && phase->only_mtu != bench->mtu)
        phase++;
    bench->phase = phase;
    bench->burst = bench->disturbed = 0;
    memset(bench->round, 0, sizeof(bench->round));
}

/* After a burst: its cost, its answers, perhaps the next phase. */
static void end_burst(struct bench *bench, uint64_t now)
{
    struct cost *round = &bench->round[bench->burst / bursts_of(bench)], *cost = &bench->cost;
    bool undisturbed = switches() == bench->switches;

    cost->all = now - bench->began;
    take_answers(bench);
    if (!undisturbed && bench->phase->name != NULL) {
        CHECK(++bench->disturbed < PATIENCE * bursts_of(bench)); /* else the core is never ours */
        return;
    }
    round->all += cost->all;
    round->receive += cost->receive;
    round->send += cost->send;
    round->in += cost->in;
    round->out += cost->out;
    round->bytes += cost->bytes;
    if (++bench->burst < bursts_of(bench) * rounds_of(bench))
        return;
    if (bench->phase->name != NULL)
        tell(bench);
    start_phase(bench, bench->phase + 1);
}

/* ---- What the loop sees ---- */

static uint32_t bench_receive(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct bench *bench = (struct bench *)io;
    uint64_t now = rte_rdtsc();

    if (bench->running)
        end_burst(bench, now);
    bench->frames = bench->expected = bench->finals = 0;
    bench->cost = (struct cost){0};
    bench->port->sent = io->sent;
    bench->port->sent_context = io->sent_context;
    bench->running = bench->phase->make != NULL;
    if (!bench->running) {
        nr_appliance_stop(bench->appliance);
        return 0;
    }
    bench->phase->make(bench);
    CHECK_EQUAL(rte_ring_enqueue_bulk(bench->ring[0], (void *const *)bench->frame, bench->frames, NULL), bench->frames);
    bench->switches = switches();
    bench->began = rte_rdtsc();
    uint32_t count = nr_io_receive_burst(bench->port, rx, max);
    bench->cost.receive = rte_rdtsc() - bench->began;
    CHECK_EQUAL(count, bench->frames);
    return count;
}

static uint32_t bench_send(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct bench *bench = (struct bench *)io;
    uint64_t began = rte_rdtsc();
    uint32_t sent = nr_io_send_burst(bench->port, tx, count);

    bench->cost.send += rte_rdtsc() - began;
    return sent;
}

static int bench_descriptor(struct nr_packet_io *io)
{
    return nr_io_descriptor(((struct bench *)io)->port);
}

static uint32_t bench_max_payload(struct nr_packet_io *io)
{
    return nr_io_max_payload(((struct bench *)io)->port);
}

static uint32_t bench_capacity(struct nr_packet_io *io)
{
    return nr_io_receive_capacity(((struct bench *)io)->port);
}

static void bench_close(struct nr_packet_io *io)
{
    nr_io_close(((struct bench *)io)->port);
}

static const struct nr_packet_io_ops bench_ops = {
    .receive_burst = bench_receive,
    .send_burst = bench_send,
    .descriptor = bench_descriptor,
    .max_payload = bench_max_payload,
    .receive_capacity = bench_capacity,
    .close = bench_close,
};

/* ---- The loop on a ring ---- */

static struct nr_engine *make_engine(struct nr_engine_config *config)
{
    static struct nr_gather gathers[2 + STACK + 1] = {{.source = 0, .length = 16, .target = 40},
                                                      {.from_end = 1, .source = 0, .length = 16, .target = 56}};
    static const struct nr_store_config stores[] = {{.step_bytes = DRIVER_STEP,
                                                     .observation_bytes = DRIVER_OBSERVATION,
                                                     .steps = SMALL * 2 + 256,
                                                     .window = 4,
                                                     .in_flight = 61,
                                                     .streams = 8},
                                                    {.step_bytes = STEP,
                                                     .observation_bytes = FRAME,
                                                     .steps = ATARI + ATARI / 8 + 2048,
                                                     .window = WINDOW,
                                                     .in_flight = 60,
                                                     .streams = 1}};
    static const struct nr_table_config tables[] = {{.store = 0,
                                                     .capacity = SMALL,
                                                     .sampler = NR_SAMPLER_PRIORITIZED,
                                                     .exponent = 1,
                                                     .leases = 2048,
                                                     .window = 4,
                                                     .row_bytes = DRIVER_ROW,
                                                     .item_bytes = DRIVER_COLUMNS,
                                                     .gather_count = 2},
                                                    {.store = 1,
                                                     .capacity = ATARI,
                                                     .sampler = NR_SAMPLER_PRIORITIZED,
                                                     .exponent = 1,
                                                     .leases = 256,
                                                     .window = WINDOW,
                                                     .row_bytes = ROW,
                                                     .item_bytes = COLUMNS,
                                                     .gather_count = STACK + 1,
                                                     .first_gather = 2}};
    struct nr_engine *engine;
    int status;

    for (int i = 0; i < STACK; i++)
        gathers[2 + i] =
            (struct nr_gather){.delta = i - (STACK - 1), .length = FRAME, .target = NR_ROW_HEAD + COLUMNS + (uint32_t)i * FRAME};
    gathers[2 + STACK] =
        (struct nr_gather){.source = FRAME, .length = STEP - FRAME, .target = NR_ROW_HEAD + COLUMNS + STACK * FRAME};
    *config = (struct nr_engine_config){.seed = 7,
                                        .lease_ns = 1ull << 40,
                                        .store_count = 2,
                                        .table_count = 2,
                                        .stores = stores,
                                        .tables = tables,
                                        .gathers = gathers};
    engine = nr_engine_create(config, &status);
    CHECK_EQUAL(status, NR_OK);
    return engine;
}

static void serve(uint32_t mtu, enum nr_frame_checksum checksum, uint64_t bursts)
{
    static struct bench *bench;
    static uint32_t number;
    char name[2][16], device[32], text[256];
    struct nr_engine_config engine_config;
    struct nr_engine *engine = make_engine(&engine_config);
    struct nr_port_config port = {.udp_port = PORT, .mtu = (uint16_t)mtu, .zero_checksum = checksum == NR_FRAME_CHECKSUM_NONE};
    struct nr_appliance_config config = {.links = 1, .busy = true, .sessions = 4, .session_ns = 1ull << 50};
    struct nr_port_info info;
    struct nr_packet_io *io;
    int status;

    bench = calloc(1, sizeof(*bench));
    CHECK(bench != NULL);
    number++;
    for (int i = 0; i < 2; i++) {
        snprintf(name[i], sizeof(name[i]), "ring%u_%d", number, i);
        bench->ring[i] = rte_ring_create(name[i], 1024, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
        CHECK(bench->ring[i] != NULL);
    }
    snprintf(text, sizeof(text), "server%u", number);
    CHECK(rte_eth_from_rings(text, &bench->ring[0], 1, &bench->ring[1], 1, 0) >= 0);
    snprintf(device, sizeof(device), "net_ring_server%u", number);
    port.device = device;
    memcpy(port.ip4, server_ip4, 4);
    port.slab = nr_engine_memory(engine, &port.slab_bytes);
    bench->port = must_open(&port);
    nr_port_info(bench->port, &info);
    CHECK_EQUAL(info.zero_copy, 1);

    snprintf(text, sizeof(text), "client%u", number);
    bench->pool = rte_pktmbuf_pool_create(text, 1023, 64, 0, (uint16_t)info.mbuf_bytes, SOCKET_ID_ANY);
    CHECK(bench->pool != NULL);
    bench->client.udp_port = CLIENT;
    memcpy(bench->client.ip4, client_ip4, 4);
    memcpy(bench->client.mac, client_mac, 6);
    make_peer(&bench->server, server_ip4, 4, PORT, info.mac);
    bench->checksum = checksum;
    bench->mtu = mtu;
    bench->max_datagram = nr_io_max_payload(bench->port) & ~7u;
    bench->bursts = bursts;
    nr_random_seed(&bench->dice, 3);
    bench->io.ops = &bench_ops;
    start_phase(bench, phases);

    io = &bench->io;
    config.io = &io;
    bench->appliance = nr_appliance_open(engine, &engine_config, driver_spec, &config, &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_appliance_run(bench->appliance), NR_OK);
    nr_appliance_close(bench->appliance);
    CHECK(rte_mempool_full(bench->pool));
    rte_mempool_free(bench->pool);
    for (int i = 0; i < 2; i++)
        rte_ring_free(bench->ring[i]);
    free(bench);
}

/* ---- The port alone, on net_null ---- */

struct null_port {
    struct nr_packet_io *io;
    uint16_t id;
    struct rte_mempool *pool; /* like the port's */
    const uint8_t *slab;
    uint64_t bytes;           /* of it */
    struct nr_tx tx[BURST];
};

static void receive_raw(struct null_port *null)
{
    struct rte_mbuf *frames[BURST];
    uint16_t count = rte_eth_rx_burst(null->id, 0, frames, BURST);

    CHECK_EQUAL(count, BURST);
    rte_pktmbuf_free_bulk(frames, count);
}

static void receive(struct null_port *null)
{
    struct nr_rx rx[BURST];

    CHECK_EQUAL(nr_io_receive_burst(null->io, rx, BURST), 0); /* zeros, which are not ours */
}

static void send_raw(struct null_port *null)
{
    struct rte_mbuf *frames[BURST];

    CHECK_EQUAL(rte_pktmbuf_alloc_bulk(null->pool, frames, BURST), 0);
    CHECK_EQUAL(rte_eth_tx_burst(null->id, 0, frames, BURST), BURST);
}

static void send_burst(struct null_port *null)
{
    CHECK_EQUAL(nr_io_send_burst(null->io, null->tx, BURST), BURST);
}

static void alloc_and_free(struct null_port *null)
{
    struct rte_mbuf *frames[BURST];

    CHECK_EQUAL(rte_pktmbuf_alloc_bulk(null->pool, frames, BURST), 0);
    rte_pktmbuf_free_bulk(frames, BURST);
}

static void measure(struct null_port *null, const char *name, uint32_t mtu, bool software, void (*work)(struct null_port *),
                    uint64_t bursts)
{
    double value[ROUNDS];

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t sum = 0, frames = 0, wanted = (bursts / TURNS + 1) * TURNS * BURST;

        for (uint64_t tries = 0; frames < wanted; tries++) {
            long away = switches();
            uint64_t began = rte_rdtsc();

            CHECK(tries < PATIENCE * wanted);
            for (int turn = 0; turn < TURNS; turn++)
                work(null);
            uint64_t cycles = rte_rdtsc() - began;
            if (switches() == away) {
                sum += cycles;
                frames += TURNS * BURST;
            }
        }
        value[round] = (double)sum / (double)frames;
    }
    qsort(value, ROUNDS, sizeof(*value), compare);
    printf("{\"null\": \"%s\", \"mtu\": %u, \"software\": %s, \"cycles\": %.0f, \"ns\": %.0f}\n", name, mtu,
           software ? "true" : "false", value[ROUNDS / 2], 1e9 * value[ROUNDS / 2] / (double)rte_get_tsc_hz());
    fflush(stdout);
}

/* Datagrams of `length` own bytes. */
static void make_own(struct null_port *null, uint32_t length)
{
    for (uint32_t i = 0; i < BURST; i++) {
        null->tx[i] = (struct nr_tx){.data = null->slab + i * NR_MAX_DATAGRAM, .length = (uint16_t)length};
        make_peer(&null->tx[i].peer, client_ip4, 4, CLIENT, client_mac);
    }
}

/* As rows of frames are sent: the head, the end of one frame, what stands between two, the start of the next. */
static void make_pieces(struct null_port *null, uint32_t length)
{
    make_own(null, 64);
    for (uint32_t i = 0; i < BURST; i++) {
        const uint8_t *at = null->slab + null->bytes / BURST * i;
        uint32_t first = (length - 64 - 48) / 2;

        null->tx[i].segments = 3;
        null->tx[i].segment[0] = (struct nr_segment){.base = at, .length = first, .token = 1};
        null->tx[i].segment[1] = (struct nr_segment){.base = at, .length = 48, .token = NR_TOKEN_NONE};
        null->tx[i].segment[2] = (struct nr_segment){.base = at + FRAME, .length = length - 64 - 48 - first, .token = 1};
    }
}

/* A thread of its own, which EAL does not know: first without, then with a number of its own and the pools' caches. */
static void *be_unknown(void *context)
{
    struct null_port *null = context;

    CHECK_EQUAL(rte_lcore_id(), LCORE_ID_ANY);
    measure(null, "alloc and free, unregistered thread", 1500, false, alloc_and_free, 10000);
    measure(null, "send 96 B, unregistered thread", 1500, false, send_burst, 10000);
    CHECK_EQUAL(rte_thread_register(), 0);
    measure(null, "alloc and free, registered thread", 1500, false, alloc_and_free, 10000);
    measure(null, "send 96 B, registered thread", 1500, false, send_burst, 10000);
    rte_thread_unregister();
    return NULL;
}

/* One open port a device: a closed one is gone. */
static void bench_null(const char *device, uint32_t mtu, bool software, uint64_t bursts)
{
    enum { SLAB = 64 << 20 }; /* no cache holds it */
    struct null_port *null = calloc(1, sizeof(*null));
    struct nr_port_config config = {.device = device, .udp_port = PORT, .mtu = (uint16_t)mtu, .zero_checksum = !software};
    struct nr_port_info info;
    uint8_t *slab = aligned_alloc(4096, SLAB);

    CHECK(null != NULL && slab != NULL);
    memset(slab, 7, SLAB);
    memcpy(config.ip4, server_ip4, 4);
    config.slab = slab;
    config.slab_bytes = SLAB;
    null->io = must_open(&config);
    null->slab = slab;
    null->bytes = SLAB;
    nr_port_info(null->io, &info);
    null->id = info.port_id;
    null->pool = rte_pktmbuf_pool_create(device, 1023, 64, 0, (uint16_t)info.mbuf_bytes, SOCKET_ID_ANY);
    CHECK(null->pool != NULL);
    if (mtu == 1500 && !software) {
        measure(null, "raw: receive and free", mtu, software, receive_raw, bursts);
        measure(null, "port: receive and drop", mtu, software, receive, bursts);
        measure(null, "raw: alloc and send", mtu, software, send_raw, bursts);
    }
    make_own(null, 96);
    if (mtu == 1500)
        measure(null, "port: send 96 B", mtu, software, send_burst, bursts);
    if (mtu == 1500 && !software) {
        pthread_t thread;

        CHECK_EQUAL(pthread_create(&thread, NULL, be_unknown, null), 0);
        pthread_join(thread, NULL);
    }
    make_own(null, mtu - 28);
    measure(null, "port: send full, copied", mtu, software, send_burst, bursts / 4 + 1);
    make_pieces(null, mtu - 28);
    measure(null, "port: send full, two references", mtu, software, send_burst, bursts / 4 + 1);
    nr_io_close(null->io);
    CHECK(rte_mempool_full(null->pool));
    rte_mempool_free(null->pool);
    free(null);
    free(slab);
}

int main(int argc, char **argv)
{
    uint64_t bursts = argc > 1 ? strtoull(argv[1], NULL, 0) : 2000;

    must_start("net_null0,size=64", "512");
    for (int i = 0; i < 4; i++) {
        char device[16];

        snprintf(device, sizeof(device), "net_null%d", i);
        if (i > 0)
            CHECK_EQUAL(rte_vdev_init(device, "size=64"), 0);
        bench_null(device, i < 2 ? 1500 : 9000, i % 2 == 1, bursts);
    }
    serve(1500, NR_FRAME_CHECKSUM_NONE, bursts);
    serve(1500, NR_FRAME_CHECKSUM_WHOLE, bursts);
    serve(9000, NR_FRAME_CHECKSUM_NONE, bursts);
    serve(9000, NR_FRAME_CHECKSUM_WHOLE, bursts);
    return 0;
}
