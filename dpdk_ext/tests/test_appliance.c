/* The appliance's loop over kernel UDP on the loopback: opening, answering, counting, stopping, with both polling policies. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "io/udp.h"
#include "loop/appliance.h"
#include "protocol/wire.h"

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

static struct nr_appliance *open_at(const char *host, uint16_t port, uint16_t poll, int *status, int *system_error)
{
    struct nr_engine *engine = nr_engine_create(&config, status);
    CHECK_EQUAL(*status, NR_OK);
    struct nr_appliance *appliance = nr_appliance_open(
        engine, &config, "{}",
        &(struct nr_appliance_config){
            .host = host, .port = port, .poll = poll, .sessions = 4, .session_ns = 50000000, .max_datagram = NR_ETHERNET_DATAGRAM},
        status, system_error);
    if (appliance == NULL)
        nr_engine_destroy(engine);
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
            nr_io_wait(io, 10000000);
        }
    }
    CHECK(!"no answer");
    return rx;
}

static void it_serves_counts_and_stops(uint16_t poll)
{
    int status, error;
    struct nr_appliance *appliance = open_at("127.0.0.1", 0, poll, &status, &error);
    uint8_t datagram[NR_ETHERNET_DATAGRAM] __attribute__((aligned(8))) = {0};
    struct nr_header *header = (struct nr_header *)datagram;
    struct nr_appliance_counters counters;
    struct nr_table_info info;
    pthread_t thread;

    CHECK_EQUAL(status, NR_OK);
    uint16_t port = nr_appliance_port(appliance);
    CHECK(port != 0);
    CHECK(open_at("127.0.0.1", port, poll, &status, &error) == NULL);
    CHECK_EQUAL(status, NR_SYSTEM);
    CHECK_EQUAL(error, EADDRINUSE);
    CHECK(open_at("no.such.host.invalid", 0, poll, &status, &error) == NULL);
    CHECK_EQUAL(status, NR_BAD_ADDRESS);
    CHECK(open_at("192.0.2.1", 0, poll, &status, &error) == NULL);
    CHECK_EQUAL(status, NR_SYSTEM);
    CHECK_EQUAL(error, EADDRNOTAVAIL);

    CHECK_EQUAL(pthread_create(&thread, NULL, run, appliance), 0);
    struct nr_packet_io *io = nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = port}, &error);
    CHECK(io != NULL);
    *header = (struct nr_header){.magic = NR_MAGIC,
                                 .version = NR_VERSION,
                                 .operation = NR_OP_HELLO,
                                 .slot = NR_STATELESS_SLOT,
                                 .request = 1,
                                 .length = sizeof(datagram) - sizeof(*header)};
    struct nr_wire_hello hello = {.nonce = 3, .version_min = 1, .version_max = 1, .max_datagram = sizeof(datagram)};
    memcpy(header + 1, &hello, sizeof(hello));
    struct nr_rx rx = ask(io, datagram, sizeof(datagram));
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
    CHECK(counters.sessions_opened >= 1 && counters.datagrams_in >= 2 && counters.datagrams_out == counters.datagrams_in);
    CHECK(counters.longest_quantum_ns > 0 && counters.busy_ns > 0 && counters.sessions_bytes > 4 * 65536);
    CHECK_EQUAL(nr_appliance_table(appliance, 0, &info), NR_OK);
    CHECK_EQUAL(info.capacity, 16);
    CHECK_EQUAL(nr_appliance_table(appliance, 1, &info), NR_NO_TABLE);

    before = clock_ns();
    nr_appliance_stop(appliance);
    CHECK_EQUAL(pthread_join(thread, NULL), 0);
    CHECK(clock_ns() - before < 1000000000);
    nr_io_close(io);
    nr_appliance_close(appliance);
}

int main(void)
{
    it_serves_counts_and_stops(0);
    it_serves_counts_and_stops(1);
    nr_appliance_close(NULL);
    return 0;
}
