/* The appliance's loop over kernel UDP on the loopback: opening, answering, counting, stopping, with both polling policies; and over an
 * io that refuses datagrams. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "io/udp.h"
#include "loop/appliance.h"
#include "protocol/wire.h"
#include "waiting.h"

static const struct nr_store_config store = {
    .step_bytes = 16, .observation_bytes = 8, .steps = 64, .window = 1, .in_flight = 8, .streams = 2};
static const struct nr_table_config table = {.capacity = 16, .leases = 16, .window = 1, .row_bytes = 16, .exponent = 1};
static const struct nr_engine_config config = {
    .seed = 1, .lease_ns = 1, .start_seconds = 77, .store_count = 1, .table_count = 1, .stores = &store, .tables = &table};

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Opens one that listens on so many free ports. */
static struct nr_appliance *open_on(uint32_t links, uint16_t *ports, bool busy)
{
    struct nr_packet_io *io[NR_APPLIANCE_LINKS];
    struct nr_udp_info info;
    int status, error;

    for (uint32_t i = 0; i < links; i++) {
        io[i] = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1", .max_payload = NR_ETHERNET_DATAGRAM}, &error);
        CHECK(io[i] != NULL);
        nr_udp_info(io[i], &info);
        ports[i] = nr_peer_port(&info.local);
    }
    struct nr_engine *engine = nr_engine_create(&config, &status);
    CHECK_EQUAL(status, NR_OK);
    struct nr_appliance_config options = {
        .io = io, .links = 0, .busy = busy, .sessions = 4, .session_ns = 50000000, .max_datagram = NR_ETHERNET_DATAGRAM};
    CHECK(nr_appliance_open(engine, &config, "{}", &options, &status) == NULL);
    CHECK_EQUAL(status, NR_BAD_CONFIG);
    options.links = links;
    struct nr_appliance *appliance = nr_appliance_open(engine, &config, "{}", &options, &status);
    CHECK_EQUAL(status, NR_OK);
    return appliance;
}

static void *run(void *appliance)
{
    CHECK_EQUAL(nr_appliance_run(appliance), NR_OK);
    return NULL;
}

/* Sends and waits for the answer, again and again for up to five seconds. */
static struct nr_rx ask(struct nr_packet_io *io, const uint8_t *datagram, uint16_t length)
{
    struct nr_tx tx = {.data = datagram, .length = length};
    struct nr_rx rx;

    for (int tries = 0; tries < 50; tries++) {
        nr_io_send_burst(io, &tx, 1);
        for (uint64_t end = clock_ns() + 100000000; clock_ns() < end;) {
            if (nr_io_receive_burst(io, &rx, 1) == 1)
                return rx;
            wait_on(io, 10000000);
        }
    }
    CHECK(!"no answer");
    return rx;
}

static struct nr_rx hello(struct nr_packet_io *io, uint8_t *datagram, uint32_t length)
{
    struct nr_header *header = (struct nr_header *)datagram;
    struct nr_wire_hello hello = {.nonce = 3, .version_min = 1, .version_max = 1, .max_datagram = (uint16_t)length};

    *header = (struct nr_header){.magic = NR_MAGIC,
                                 .version = NR_VERSION,
                                 .operation = NR_OP_HELLO,
                                 .slot = NR_STATELESS_SLOT,
                                 .request = 1,
                                 .length = (uint16_t)(length - sizeof(*header))};
    memcpy(header + 1, &hello, sizeof(hello));
    return ask(io, datagram, (uint16_t)length);
}

static void it_serves_counts_and_stops(bool busy)
{
    uint16_t ports[2];
    int error;
    struct nr_appliance *appliance = open_on(2, ports, busy);
    uint8_t datagram[NR_ETHERNET_DATAGRAM] __attribute__((aligned(8))) = {0};
    struct nr_header *header = (struct nr_header *)datagram;
    struct nr_appliance_counters counters;
    struct nr_table_info info;
    pthread_t thread;

    CHECK_EQUAL(pthread_create(&thread, NULL, run, appliance), 0);
    struct nr_packet_io *io = nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = ports[0]}, &error);
    struct nr_packet_io *other = nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = ports[1]}, &error);
    CHECK(io != NULL && other != NULL);
    hello(other, datagram, sizeof(datagram));
    struct nr_rx rx = hello(io, datagram, sizeof(datagram));
    const struct nr_wire_welcome *welcome =
        (const struct nr_wire_welcome *)(rx.data + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state));
    CHECK(welcome->nonce == 3 && welcome->start_seconds == 77 && welcome->credits >= 4 && welcome->max_datagram == 1472);

    header->session = welcome->session;
    header->operation = NR_OP_PING;
    header->length = 96 - sizeof(*header);
    uint64_t before = clock_ns();
    rx = ask(io, datagram, 96);
    uint64_t after = clock_ns();
    struct nr_wire_stamps stamps;
    memcpy(&stamps, rx.data + sizeof(*header), sizeof(stamps));
    CHECK(stamps.received > before && stamps.received < after);
    CHECK(stamps.residence > 0 && stamps.residence < after - before);

    /* What other threads see follows soon; the silent session is swept though nothing comes. */
    uint64_t end = clock_ns() + 5000000000u;
    do {
        nr_appliance_counters(appliance, &counters);
        CHECK(clock_ns() < end);
    } while (counters.pings == 0 || counters.sessions_swept == 0);
    CHECK(counters.sessions_opened >= 2 && counters.datagrams_in >= 3 && counters.datagrams_out == counters.datagrams_in);
    CHECK(counters.longest_quantum_ns > 0 && counters.busy_ns > 0 && counters.sessions_bytes > 4 * 65536);
    CHECK_EQUAL(nr_appliance_table(appliance, 0, &info), NR_OK);
    CHECK_EQUAL(info.capacity, 16);
    CHECK_EQUAL(nr_appliance_table(appliance, 1, &info), NR_NO_TABLE);

    before = clock_ns();
    nr_appliance_stop(appliance);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK(clock_ns() - before < 1000000000);
    nr_io_close(io);
    nr_io_close(other);
    nr_appliance_close(appliance);
}

/* ---- An io that takes only some datagrams, and is slow to give references back ---- */

enum { SLOW_STEP = 4000, SLOW_ROW = 16 + SLOW_STEP, SLOW_STEPS = 64, SLOW_ROWS = 8 };

struct slow_io {
    struct nr_packet_io io;
    struct nr_appliance *appliance;
    const struct nr_engine *engine;
    uint32_t turn; /* what comes next: HELLO, SAMPLE, the end */
    uint32_t accept; /* datagrams that each burst takes */
    uint32_t taken, refused; /* references */
    uint64_t token[64]; /* taken and not given back */
    uint32_t session;
    uint8_t datagram[NR_MAX_DATAGRAM] __attribute__((aligned(8)));
};

static uint32_t slow_receive(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct slow_io *slow = (struct slow_io *)io;
    struct nr_header *header = (struct nr_header *)slow->datagram;
    uint32_t length = NR_MAX_DATAGRAM & ~7u;

    CHECK(max > 0);
    memset(slow->datagram, 0, sizeof(slow->datagram));
    *header = (struct nr_header){.magic = NR_MAGIC, .version = NR_VERSION, .request = 1, .session = slow->session};
    if (slow->turn == 0) {
        struct nr_wire_hello hello = {.nonce = 3, .version_min = 1, .version_max = 1, .max_datagram = length};

        header->operation = NR_OP_HELLO;
        header->slot = NR_STATELESS_SLOT;
        memcpy(header + 1, &hello, sizeof(hello));
    } else if (slow->turn == 1) {
        struct nr_wire_sample sample = {.table = 0, .count = SLOW_ROWS};

        header->operation = NR_OP_SAMPLE;
        header->fragments = 64;
        memcpy(header + 1, &sample, sizeof(sample));
        length = sizeof(*header) + sizeof(sample);
    } else {
        nr_appliance_stop(slow->appliance);
        return 0;
    }
    slow->turn++;
    header->length = (uint16_t)(length - sizeof(*header));
    *rx = (struct nr_rx){.data = slow->datagram, .length = length, .peer = {.bytes = {4}, .length = NR_PEER_LENGTH_IP4}};
    return 1;
}

static uint32_t slow_send(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct slow_io *slow = (struct slow_io *)io;

    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t s = 0; s < tx[i].segments; s++) {
            if (tx[i].segment[s].token == NR_TOKEN_NONE)
                continue;
            if (i < slow->accept)
                slow->token[slow->taken++] = tx[i].segment[s].token;
            else
                slow->refused++;
        }
    }
    if (slow->session == 0) {
        struct nr_wire_welcome welcome;

        memcpy(&welcome, tx[0].data + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state), sizeof(welcome));
        slow->session = welcome.session;
    }
    return count < slow->accept ? count : slow->accept;
}

static int slow_descriptor(struct nr_packet_io *io)
{
    (void)io;
    return -1;
}

static uint32_t slow_amount(struct nr_packet_io *io)
{
    (void)io;
    return NR_MAX_DATAGRAM;
}

/* The last references come back here, with the server and the engine still there. */
static void slow_close(struct nr_packet_io *io)
{
    struct slow_io *slow = (struct slow_io *)io;

    while (slow->taken > 0)
        io->sent(io->sent_context, slow->token[--slow->taken]);
    CHECK_EQUAL(nr_engine_lent(slow->engine), 0);
}

static const struct nr_packet_io_ops slow_ops = {.receive_burst = slow_receive,
                                                 .send_burst = slow_send,
                                                 .descriptor = slow_descriptor,
                                                 .max_payload = slow_amount,
                                                 .receive_capacity = slow_amount,
                                                 .close = slow_close};

static void references_of_refused_datagrams_come_back(void)
{
    static const struct nr_gather gather = {.length = SLOW_STEP, .target = 16};
    static const struct nr_store_config slow_store = {
        .step_bytes = SLOW_STEP, .observation_bytes = SLOW_STEP, .steps = SLOW_STEPS, .window = 1, .in_flight = 16, .streams = 1};
    static const struct nr_table_config slow_table = {.capacity = SLOW_ROWS,
                                                      .sampler = NR_SAMPLER_FIFO,
                                                      .leases = SLOW_ROWS,
                                                      .window = 1,
                                                      .row_bytes = SLOW_ROW,
                                                      .gather_count = 1};
    static const struct nr_engine_config slow_config = {.lease_ns = 1ull << 50,
                                                        .store_count = 1,
                                                        .table_count = 1,
                                                        .stores = &slow_store,
                                                        .tables = &slow_table,
                                                        .gathers = &gather};
    static struct slow_io slow = {.io = {.ops = &slow_ops}, .accept = 2};
    static uint8_t step[SLOW_STEP];
    struct nr_packet_io *io = &slow.io;
    struct nr_appliance_config options = {.io = &io, .links = 1, .busy = true, .sessions = 4, .session_ns = 1ull << 50};
    struct nr_stream_position position;
    struct nr_wait wait;
    char message[200];
    uint8_t id[16] = {1};
    uint64_t key;
    int status;

    struct nr_engine *engine = nr_engine_create(&slow_config, &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_stream_open(engine, 0, id, 1000, &position), NR_OK);
    for (uint64_t number = 0; number < SLOW_ROWS; number++) {
        struct nr_item item = {.number = number, .first_step = number, .steps = 1, .priority = 1};

        CHECK_EQUAL(nr_step_write(engine, position.handle, 1000, number, SLOW_STEP, 0, step, SLOW_STEP, 0, &wait), NR_OK);
        CHECK_EQUAL(nr_item_insert(engine, 0, position.handle, 1000, &item, 0, &key, &wait), NR_OK);
    }
    slow.engine = engine;
    slow.appliance = nr_appliance_open(engine, &slow_config, "{}", &options, &status);
    CHECK_EQUAL(status, NR_OK);
    CHECK_EQUAL(nr_appliance_run(slow.appliance), NR_OK);
    CHECK(slow.taken > 0 && slow.refused > 0);
    CHECK_EQUAL(nr_engine_lent(engine), slow.taken);
    CHECK_EQUAL(nr_engine_audit(engine, message, sizeof(message)), NR_OK);
    nr_appliance_close(slow.appliance);
    CHECK_EQUAL(slow.taken, 0);
}

int main(void)
{
    references_of_refused_datagrams_come_back();
    it_serves_counts_and_stops(false);
    it_serves_counts_and_stops(true);
    nr_appliance_close(NULL);
    return 0;
}
