/* What it costs to answer for Atari's rows, with frames copied into the datagram and with frames that leave from the slab. The sink
 * copies every datagram once, as a kernel socket or shared memory does. Rows of both kinds are taken in turns.
 * usage: bench_segments [BATCHES [STEPS [LEAST]]] */
#include <time.h>

#include "engine/random.h"
#include "server_driver.h"

enum {
    FRAME = 7056,
    STEP = FRAME + 16, /* with action, reward and flags */
    STACK = 4,
    COLUMNS = 24,
    ROW = NR_ROW_HEAD + COLUMNS + STACK * FRAME + 16,
    WINDOW = 4,
    BATCH = 32,
    ROUNDS = 9,
    BURST = 64,
    SINK = 2 << 20, /* bytes: sockets' buffers and rings are no smaller, so that its lines leave the first caches */
};

struct bench {
    struct nr_engine *engine;
    struct nr_server *server;
    struct nr_outbox outbox;
    struct nr_tx tx[BURST];
    uint8_t arena[BURST * NR_MAX_DATAGRAM] __attribute__((aligned(64)));
    uint8_t *sink;
    uint32_t at; /* of the sink */
    uint64_t datagrams, bytes, referred;
    uint8_t answer[NR_MAX_DATAGRAM] __attribute__((aligned(8))); /* the last */
    bool keep;
    uint64_t counter, now;
    uint32_t session, handle, request;
};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sink(struct nr_outbox *outbox)
{
    struct bench *bench = outbox->context;

    for (uint32_t i = 0; i < outbox->count; i++) {
        const struct nr_tx *tx = &outbox->tx[i];

        if (bench->at + NR_MAX_DATAGRAM > SINK)
            bench->at = 0;
        uint32_t length = nr_tx_copy(tx, bench->sink + bench->at);
        if (bench->keep)
            memcpy(bench->answer, bench->sink + bench->at, length);
        bench->at += (length + 63u) & ~63u;
        bench->datagrams++;
        bench->bytes += length;
        for (uint32_t s = 0; s < tx->segments; s++) {
            bench->referred += tx->segment[s].token != NR_TOKEN_NONE;
            nr_server_sent(bench->server, tx->segment[s].token);
        }
    }
    outbox->count = 0;
}

static void ask(struct bench *bench, struct datagram *datagram)
{
    struct nr_rx rx = {.data = datagram->bytes, .length = datagram->length, .peer = driver_peer(1)};

    head(datagram)->length = (uint16_t)(datagram->length - sizeof(struct nr_header));
    head(datagram)->counter = ++bench->counter;
    bench->now += 1000;
    nr_server_receive(bench->server, &rx, bench->now, &bench->outbox);
    sink(&bench->outbox);
}

static struct bench *bench_open(uint32_t steps, uint32_t max_datagram, uint32_t least)
{
    struct nr_gather gathers[STACK + 1];
    const struct nr_store_config store = {
        .step_bytes = STEP, .observation_bytes = FRAME, .steps = steps + 64, .window = WINDOW, .in_flight = 60, .streams = 1};
    const struct nr_table_config table = {.capacity = steps - WINDOW,
                                          .sampler = NR_SAMPLER_UNIFORM,
                                          .leases = 1024,
                                          .window = WINDOW,
                                          .row_bytes = ROW,
                                          .item_bytes = COLUMNS,
                                          .gather_count = STACK + 1};
    const struct nr_engine_config config = {.seed = 7,
                                            .lease_ns = 1ull << 40,
                                            .store_count = 1,
                                            .table_count = 1,
                                            .stores = &store,
                                            .tables = &table,
                                            .gathers = gathers};
    const struct nr_server_config server = {.sessions = 4,
                                            .max_datagram = max_datagram,
                                            .receive_buffer = 512,
                                            .session_ns = 1ull << 50,
                                            .incarnation = 5,
                                            .segment_least = least,
                                            .spec = ""};
    struct bench *bench = aligned_alloc(64, (sizeof(*bench) + 63) / 64 * 64);
    struct datagram hello;
    struct nr_stream_position position;
    uint8_t id[16] = {1}, *bytes = malloc(STEP);
    struct nr_wait wait;
    uint64_t key;
    int status;

    CHECK(bench != NULL && bytes != NULL);
    memset(bench, 0, sizeof(*bench));
    for (uint32_t i = 0; i < STACK; i++)
        gathers[i] =
            (struct nr_gather){.delta = (int32_t)i - (STACK - 1), .length = FRAME, .target = NR_ROW_HEAD + COLUMNS + i * FRAME};
    gathers[STACK] = (struct nr_gather){.source = FRAME, .length = STEP - FRAME, .target = NR_ROW_HEAD + COLUMNS + STACK * FRAME};
    CHECK((bench->engine = nr_engine_create(&config, &status)) != NULL);
    CHECK((bench->server = nr_server_create(bench->engine, &server, &status)) != NULL);
    CHECK((bench->sink = aligned_alloc(64, SINK)) != NULL);
    memset(bench->sink, 0, SINK);
    bench->outbox = (struct nr_outbox){
        .tx = bench->tx, .arena = bench->arena, .stride = NR_MAX_DATAGRAM, .capacity = BURST, .flush = sink, .context = bench};
    CHECK_EQUAL(nr_stream_open(bench->engine, 0, id, 77, &position), NR_OK);
    for (uint64_t number = 0; number < steps; number++) {
        uint8_t columns[COLUMNS] = {0};
        struct nr_item item = {
            .number = number, .first_step = number - (WINDOW - 1), .steps = WINDOW, .anchor = WINDOW - 1, .columns = columns};

        memset(bytes, (int)number, STEP);
        CHECK_EQUAL(nr_step_write(bench->engine, position.handle, 77, number, STEP, 0, bytes, STEP, 0, &wait), NR_OK);
        item.number = number;
        item.priority = 1;
        if (number + 1 >= WINDOW)
            CHECK_EQUAL(nr_item_insert(bench->engine, 0, position.handle, 77, &item, 0, &key, &wait), NR_OK);
    }
    free(bytes);
    make_hello(&hello, 1, max_datagram & ~7u, max_datagram & ~7u);
    bench->keep = true;
    ask(bench, &hello);
    bench->keep = false;
    bench->session =
        ((const struct nr_wire_welcome *)(bench->answer + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state)))->session;
    return bench;
}

static void bench_close(struct bench *bench)
{
    char message[200];

    CHECK_EQUAL(nr_server_audit(bench->server, message, sizeof(message)), NR_OK);
    nr_server_destroy(bench->server);
    nr_engine_destroy(bench->engine);
    free(bench->sink);
    free(bench);
}

/* One batch: its SAMPLE, then READs of a full window each. */
static void pull(struct bench *bench, uint32_t max_datagram)
{
    uint32_t full = (max_datagram & ~7u) - (uint32_t)NR_RESPONSE_OVERHEAD;
    uint64_t end = sizeof(struct nr_wire_message) + (uint64_t)BATCH * ROW;
    struct datagram datagram;
    struct nr_wire_sample sample = {.table = 0, .count = BATCH, .settles = bench->request != 0};
    struct nr_wire_settle settle = {.slot = 1, .settle = NR_SETTLE_RELEASE | NR_SETTLE_COMMIT, .request = bench->request};

    start(&datagram, NR_OP_SAMPLE, bench->session, 1, ++bench->request);
    add(&datagram, &sample, sizeof(sample));
    if (sample.settles)
        add(&datagram, &settle, sizeof(settle));
    head(&datagram)->fragments = 32;
    ask(bench, &datagram);
    for (uint64_t at = 32ull * full; at < end; at += 32ull * full) {
        start(&datagram, NR_OP_READ, bench->session, 1, bench->request);
        head(&datagram)->offset = (uint32_t)at;
        head(&datagram)->fragments = 32;
        ask(bench, &datagram);
    }
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    static const uint32_t sizes[] = {NR_ETHERNET_DATAGRAM, NR_MAX_DATAGRAM};
    uint64_t batches = argc > 1 ? strtoull(argv[1], NULL, 0) : 200;
    uint32_t steps = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 0) : 40000;
    uint32_t least = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 0) : 0;

    printf("%u steps of %u B, rows of %u B, batches of %u\n", steps, STEP, ROW, BATCH);
    printf("%-32s %9s %12s %12s %9s %11s\n", "", "best ns", "median ns", "GB/s median", "bytes", "references");
    for (uint32_t size = 0; size < 2; size++) {
        struct bench *bench[2] = {bench_open(steps, sizes[size], UINT32_MAX), bench_open(steps, sizes[size], least)};
        double ns[2][ROUNDS];

        for (uint32_t round = 0; round < ROUNDS; round++) {
            for (uint32_t kind = 0; kind < 2; kind++) {
                uint64_t before = bench[kind]->datagrams, began = clock_ns();

                for (uint64_t i = 0; i < batches; i++)
                    pull(bench[kind], sizes[size]);
                ns[kind][round] = (double)(clock_ns() - began) / (double)(bench[kind]->datagrams - before);
            }
        }
        for (uint32_t kind = 0; kind < 2; kind++) {
            double bytes = (double)bench[kind]->bytes / (double)bench[kind]->datagrams;

            qsort(ns[kind], ROUNDS, sizeof(double), compare);
            printf("%5u B datagrams, %-14s %9.0f %12.0f %12.2f %9.0f %11.2f\n", sizes[size], kind == 0 ? "copied" : "referred to",
                   ns[kind][0], ns[kind][ROUNDS / 2], bytes / ns[kind][ROUNDS / 2], bytes,
                   (double)bench[kind]->referred / (double)bench[kind]->datagrams);
            bench_close(bench[kind]);
        }
    }
    return 0;
}
