/* The appliance's loop over kernel UDP on the loopback: opening, answering, counting, stopping, with both polling policies. */
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

int main(void)
{
    it_serves_counts_and_stops(false);
    it_serves_counts_and_stops(true);
    nr_appliance_close(NULL);
    return 0;
}
