#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/udp.h"
#include "waiting.h"

#define SECOND 1000000000u

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static struct nr_packet_io *listen_on(const char *host, nr_sent_fn sent, void *context)
{
    int error = 1;
    struct nr_packet_io *io = nr_udp_listen(&(struct nr_udp_config){.host = host, .sent = sent, .sent_context = context}, &error);

    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    return io;
}

static uint16_t port_of(struct nr_packet_io *io)
{
    struct nr_udp_info info;

    nr_udp_info(io, &info);
    return nr_peer_port(&info.local);
}

static struct nr_packet_io *connect_to(const char *host, uint16_t port, nr_sent_fn sent, void *context)
{
    int error = 1;
    struct nr_packet_io *io =
        nr_udp_connect(&(struct nr_udp_config){.host = host, .port = port, .sent = sent, .sent_context = context}, &error);

    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    return io;
}

/* Waits up to 5 s for datagrams. */
static uint32_t receive_some(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    uint64_t end = now_ns() + 5ull * SECOND;

    while (now_ns() < end) {
        uint32_t count = nr_io_receive_burst(io, rx, max);

        if (count > 0)
            return count;
        wait_on(io, SECOND);
    }
    CHECK(!"nothing came in 5 s");
    return 0;
}

static void test_echo(const char *host, const char *expected_prefix)
{
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    struct nr_packet_io *client = connect_to(host, port_of(server), NULL, NULL);
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_udp_info info;
    char text[NR_PEER_TEXT];

    struct nr_tx tx = {.data = (const uint8_t *)"question", .length = 8};
    CHECK_EQUAL(nr_io_send_burst(client, &tx, 1), 1);
    CHECK_EQUAL(receive_some(server, rx, NR_UDP_BURST), 1);
    CHECK_EQUAL(rx[0].length, 8);
    CHECK(memcmp(rx[0].data, "question", 8) == 0);
    CHECK(rx[0].flags & NR_RX_CHECKSUM_VERIFIED);
    nr_udp_info(client, &info);
    CHECK(nr_peer_equal(&rx[0].peer, &info.local));
    CHECK(strncmp(nr_peer_format(&rx[0].peer, text), expected_prefix, strlen(expected_prefix)) == 0);

    struct nr_tx answer = {.peer = rx[0].peer, .data = (const uint8_t *)"answer", .length = 6};
    CHECK_EQUAL(nr_io_send_burst(server, &answer, 1), 1);
    CHECK_EQUAL(receive_some(client, rx, NR_UDP_BURST), 1);
    CHECK_EQUAL(rx[0].length, 6);
    CHECK(memcmp(rx[0].data, "answer", 6) == 0);
    nr_udp_info(server, &info);
    CHECK(nr_peer_equal(&rx[0].peer, &info.local));
    CHECK(info.receive_buffer > 100000);
    CHECK(info.send_buffer > 100000);

    CHECK_EQUAL(server->counters.received, 1);
    CHECK_EQUAL(server->counters.received_bytes, 8);
    CHECK_EQUAL(server->counters.sent, 1);
    CHECK_EQUAL(server->counters.sent_bytes, 6);
    CHECK_EQUAL(server->counters.send_dropped, 0);
    uint64_t empty = client->counters.empty_polls;
    CHECK_EQUAL(nr_io_receive_burst(client, rx, 1), 0);
    CHECK_EQUAL(nr_io_receive_burst(client, rx, 0), 0);
    CHECK_EQUAL(client->counters.empty_polls, empty + 1);
    nr_io_close(client);
    nr_io_close(server);
}

/* A socket on "::" answers IPv4 clients too, and their peers look like any IPv4 peer. */
static void test_dual_stack(void)
{
    struct nr_packet_io *server = listen_on("::", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), NULL, NULL);
    struct nr_rx rx[1];
    char text[NR_PEER_TEXT];

    struct nr_tx tx = {.data = (const uint8_t *)"x", .length = 1};
    nr_io_send_burst(client, &tx, 1);
    CHECK_EQUAL(receive_some(server, rx, 1), 1);
    CHECK(strncmp(nr_peer_format(&rx[0].peer, text), "127.0.0.1:", 10) == 0);
    tx.peer = rx[0].peer;
    nr_io_send_burst(server, &tx, 1);
    CHECK_EQUAL(receive_some(client, rx, 1), 1);
    CHECK_EQUAL(server->counters.send_dropped, 0);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_peer_format(void)
{
    char text[NR_PEER_TEXT];
    struct nr_peer peer = {.bytes = {4, 0, 0x1d, 0x17, 10, 0, 0, 7}, .length = NR_PEER_LENGTH_IP4};

    CHECK(strcmp(nr_peer_format(&peer, text), "10.0.0.7:7447") == 0);
    CHECK_EQUAL(nr_peer_port(&peer), 7447);
    struct nr_peer six = {.bytes = {6, 0, 0xff, 0xff}, .length = NR_PEER_LENGTH_IP6};
    six.bytes[19] = 1;
    CHECK(strcmp(nr_peer_format(&six, text), "[::1]:65535") == 0);
    uint32_t scope = 4294967295u;
    memset(six.bytes + 4, 0xfe, 16);
    memcpy(six.bytes + 20, &scope, 4);
    CHECK(strcmp(nr_peer_format(&six, text), "[fefe:fefe:fefe:fefe:fefe:fefe:fefe:fefe%4294967295]:65535") == 0);
    CHECK(!nr_peer_equal(&peer, &six));
    memset(&peer, 0, sizeof(peer));
    CHECK(strcmp(nr_peer_format(&peer, text), "-") == 0);
}

struct tokens {
    uint64_t sum;
    uint32_t calls;
};

static void note_sent(void *context, uint64_t token)
{
    struct tokens *tokens = context;

    tokens->sum += token;
    tokens->calls++;
}

static void test_segments_are_gathered(void)
{
    struct tokens tokens = {0};
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), note_sent, &tokens);
    static uint8_t slab[4][2000];
    uint8_t expected[8 + 2000 + 1 + 0 + 1999];
    struct nr_rx rx[NR_UDP_BURST];

    for (int i = 0; i < 4; i++)
        memset(slab[i], 'a' + i, sizeof(slab[i]));
    struct nr_tx tx[100];
    for (int i = 0; i < 100; i++) {
        tx[i] = (struct nr_tx){
            .data = (const uint8_t *)"headers:",
            .length = 8,
            .segments = 4,
            .segment = {{slab[0], 2000, 1}, {slab[1], 1, 10}, {slab[2], 0, 100}, {slab[3], 1999, 1000}},
        };
    }
    memcpy(expected, "headers:", 8);
    memset(expected + 8, 'a', 2000);
    memset(expected + 2008, 'b', 1);
    memset(expected + 2009, 'd', 1999);
    /* More than one system call's worth. */
    CHECK_EQUAL(nr_io_send_burst(client, tx, 100), 100);
    CHECK_EQUAL(tokens.calls, 400);
    CHECK_EQUAL(tokens.sum, 111100);
    for (uint32_t got = 0; got < 100;) {
        uint32_t count = receive_some(server, rx, NR_UDP_BURST);

        for (uint32_t i = 0; i < count; i++) {
            CHECK_EQUAL(rx[i].length, sizeof(expected));
            CHECK(memcmp(rx[i].data, expected, sizeof(expected)) == 0);
        }
        got += count;
    }
    CHECK_EQUAL(client->counters.sent_bytes, 100 * sizeof(expected));
    /* Nothing but references, and nothing at all. */
    tx[0].length = 0;
    tx[0].segments = 1;
    tx[1] = (struct nr_tx){0};
    CHECK_EQUAL(nr_io_send_burst(client, tx, 2), 2);
    uint32_t count = receive_some(server, rx, NR_UDP_BURST);
    CHECK_EQUAL(rx[0].length, 2000);
    if (count == 1)
        CHECK_EQUAL(receive_some(server, rx + 1, NR_UDP_BURST - 1), 1);
    CHECK_EQUAL(rx[1].length, 0);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_bursts_keep_order(void)
{
    struct nr_packet_io *server = listen_on("::1", NULL, NULL);
    struct nr_packet_io *client = connect_to("::1", port_of(server), NULL, NULL);
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx[48];
    uint32_t number[48], next = 0, largest = 0;

    for (uint32_t round = 0; round < 50; round++) {
        for (uint32_t i = 0; i < 48; i++) {
            number[i] = round * 48 + i;
            tx[i] = (struct nr_tx){.data = (const uint8_t *)&number[i], .length = 4};
        }
        CHECK_EQUAL(nr_io_send_burst(client, tx, 48), 48);
        while (next < (round + 1) * 48) {
            uint32_t count = receive_some(server, rx, NR_UDP_BURST);

            largest = count > largest ? count : largest;
            for (uint32_t i = 0; i < count; i++) {
                CHECK_EQUAL(rx[i].length, 4);
                CHECK(memcmp(rx[i].data, &next, 4) == 0);
                next++;
            }
        }
    }
    CHECK(largest >= 16); /* the window opened */
    CHECK_EQUAL(server->counters.received, 2400);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_max_payload(const char *host)
{
    struct tokens tokens = {0};
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    struct nr_packet_io *client = connect_to(host, port_of(server), note_sent, &tokens);
    static uint8_t big[65000];
    struct nr_rx rx[4];
    int error;

    for (size_t i = 0; i < sizeof(big); i++)
        big[i] = (uint8_t)(i * 7);
    CHECK_EQUAL(nr_io_max_payload(client), NR_MAX_DATAGRAM);
    CHECK_EQUAL(nr_io_max_payload(server), NR_MAX_DATAGRAM);
    struct nr_tx tx = {.data = big, .length = NR_MAX_DATAGRAM};
    nr_io_send_burst(client, &tx, 1);
    CHECK_EQUAL(receive_some(server, rx, 4), 1);
    CHECK_EQUAL(rx[0].length, NR_MAX_DATAGRAM);
    CHECK(memcmp(rx[0].data, big, NR_MAX_DATAGRAM) == 0);

    /* Longer than a receive buffer: dropped, and what follows is not hurt. */
    struct nr_tx pair[2] = {{.data = big, .length = NR_UDP_BUFFER + 1}, {.data = big, .length = 5}};
    nr_io_send_burst(client, pair, 2);
    uint64_t end = now_ns() + 5ull * SECOND;
    while (nr_io_receive_burst(server, rx, 4) == 0)
        CHECK(now_ns() < end);
    CHECK_EQUAL(rx[0].length, 5);
    CHECK_EQUAL(server->counters.receive_truncated, 1);
    CHECK_EQUAL(server->counters.received, 2);

    /* Also when it comes alone, after an empty poll. */
    CHECK_EQUAL(nr_io_receive_burst(server, rx, 4), 0);
    nr_io_send_burst(client, pair, 1);
    CHECK(wait_on(server, 5ull * SECOND) & NR_WAITER_READABLE);
    CHECK_EQUAL(nr_io_receive_burst(server, rx, 4), 0);
    CHECK_EQUAL(server->counters.receive_truncated, 2);

    /* Longer than UDP can carry: refused, counted, its references dropped, the rest of the burst sent. */
    struct nr_tx too_long[3] = {
        {.data = big, .length = 1},
        {.data = big, .length = 60000, .segments = 1, .segment = {{big, 60000, 5}}},
        {.data = big, .length = 2},
    };
    CHECK_EQUAL(nr_io_send_burst(client, too_long, 3), 3);
    CHECK_EQUAL(client->counters.send_too_long, 1);
    CHECK_EQUAL(client->counters.send_dropped, 1);
    CHECK_EQUAL(client->counters.last_send_error, -EMSGSIZE);
    CHECK_EQUAL(tokens.sum, 5);
    CHECK_EQUAL(receive_some(server, rx, 1), 1);
    CHECK_EQUAL(rx[0].length, 1);
    CHECK_EQUAL(receive_some(server, rx, 1), 1);
    CHECK_EQUAL(rx[0].length, 2);
    nr_io_close(client);

    client = nr_udp_connect(&(struct nr_udp_config){.host = host, .port = port_of(server), .max_payload = 1400}, &error);
    CHECK_EQUAL(nr_io_max_payload(client), 1400);
    nr_io_close(client);
    nr_io_close(server);
}

/* IP must never fragment; IPv4-mapped peers of an IPv6 socket included. */
static void test_fragments_are_forbidden(const char *host)
{
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    struct nr_udp_info info;
    int mode = -1;
    socklen_t length = sizeof(mode);

    nr_udp_info(server, &info);
    CHECK_EQUAL(getsockopt(info.fd, IPPROTO_IP, IP_MTU_DISCOVER, &mode, &length), 0);
    CHECK_EQUAL(mode, IP_PMTUDISC_DO);
    if (info.local.bytes[0] == 6) {
        CHECK_EQUAL(getsockopt(info.fd, IPPROTO_IPV6, IPV6_MTU_DISCOVER, &mode, &length), 0);
        CHECK_EQUAL(mode, IPV6_PMTUDISC_DO);
    }
    CHECK(fcntl(info.fd, F_GETFD) & FD_CLOEXEC);
    nr_io_close(server);
}

static void test_port_in_use(const char *host)
{
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    uint16_t port = port_of(server);
    int error = 0;

    CHECK(nr_udp_listen(&(struct nr_udp_config){.host = host, .port = port}, &error) == NULL);
    CHECK_EQUAL(error, -EADDRINUSE);
    nr_io_close(server);
    server = nr_udp_listen(&(struct nr_udp_config){.host = host, .port = port}, &error);
    CHECK_EQUAL(error, 0);
    nr_io_close(server);
}

static void test_bad_addresses(void)
{
    int error = 0;

    CHECK(nr_udp_listen(&(struct nr_udp_config){.host = "192.0.2.77"}, &error) == NULL);
    CHECK_EQUAL(error, -EADDRNOTAVAIL);
    CHECK(nr_udp_listen(&(struct nr_udp_config){.host = NULL}, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    CHECK(nr_udp_listen(&(struct nr_udp_config){.host = ""}, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    CHECK(nr_udp_listen(&(struct nr_udp_config){.host = "no such host"}, &error) == NULL);
    CHECK(error == -ENOENT || error == -EAGAIN);
    CHECK(nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1"}, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    struct nr_packet_io *io = nr_udp_listen(&(struct nr_udp_config){.host = "localhost"}, &error);
    CHECK(io != NULL);
    struct nr_udp_info info;
    nr_udp_info(io, &info);
    CHECK_EQUAL(info.local.bytes[0], 4);
    nr_io_close(io);
    nr_io_close(NULL);
}

static void test_unreachable(const char *host)
{
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    uint16_t port = port_of(server);
    struct nr_packet_io *client = connect_to(host, port, NULL, NULL);
    struct nr_rx rx[4];
    struct nr_tx tx[3] = {{.data = (const uint8_t *)"a", .length = 1},
                          {.data = (const uint8_t *)"b", .length = 1},
                          {.data = (const uint8_t *)"c", .length = 1}};

    nr_io_close(server);
    CHECK_EQUAL(nr_io_send_burst(client, tx, 1), 1);
    CHECK(wait_on(client, 5ull * SECOND) & NR_WAITER_READABLE); /* the report wakes */
    CHECK_EQUAL(nr_io_receive_burst(client, rx, 4), 0);
    CHECK_EQUAL(client->counters.unreachable, 1);
    CHECK_EQUAL(client->counters.last_receive_error, -ECONNREFUSED);
    CHECK_EQUAL(client->counters.last_unreachable, -ECONNREFUSED);
    CHECK_EQUAL(nr_io_send_burst(client, tx, 3), 3);
    nr_io_receive_burst(client, rx, 4);
    CHECK(client->counters.unreachable >= 2);

    /* A server that comes back gets the very next datagram, whatever reports are still unread. */
    nr_io_send_burst(client, tx, 1);
    int error;
    server = nr_udp_listen(&(struct nr_udp_config){.host = host, .port = port}, &error);
    CHECK_EQUAL(error, 0);
    nr_io_send_burst(client, tx, 1);
    CHECK_EQUAL(receive_some(server, rx, 4), 1);
    nr_io_close(server);
    nr_io_close(client);
}

/* A peer of the other family cannot be sent to; its references come back all the same. */
static void test_wrong_family(void)
{
    struct tokens tokens = {0};
    struct nr_packet_io *server = listen_on("127.0.0.1", note_sent, &tokens);
    struct nr_peer six = {.bytes = {6, 0, 0, 9}, .length = NR_PEER_LENGTH_IP6};
    struct nr_tx tx = {.peer = six, .segments = 1, .segment = {{"x", 1, 3}}};

    CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
    CHECK_EQUAL(server->counters.send_dropped, 1);
    CHECK_EQUAL(server->counters.last_send_error, -EAFNOSUPPORT);
    CHECK_EQUAL(tokens.sum, 3);
    nr_io_close(server);
}

static void test_full_queue_drops(void)
{
    struct tokens tokens = {0};
    int error;
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = nr_udp_connect(
        &(struct nr_udp_config){
            .host = "127.0.0.1", .port = port_of(server), .socket_buffer = 1, .sent = note_sent, .sent_context = &tokens},
        &error);
    static uint8_t big[NR_MAX_DATAGRAM];
    struct nr_tx tx = {.data = big, .length = 10, .segments = 1, .segment = {{big, 8000, 1}}};

    /* The smallest send buffer holds less than one of these. */
    for (int i = 0; i < 10; i++)
        CHECK_EQUAL(nr_io_send_burst(client, &tx, 1), 1);
    CHECK_EQUAL(tokens.calls, 10);
    CHECK_EQUAL(client->counters.sent + client->counters.send_dropped, 10);
    nr_io_close(client);
    nr_io_close(server);
}

struct waker {
    struct nr_waiter *waiter;
    atomic_int turn; /* odd: wake, then make it even */
    atomic_bool stop;
};

static void *wake_on_turn(void *argument)
{
    struct waker *waker = argument;

    while (!atomic_load(&waker->stop)) {
        if (atomic_load(&waker->turn) % 2 == 1) {
            nr_waiter_wake(waker->waiter);
            atomic_fetch_add(&waker->turn, 1);
        } else {
            sched_yield();
        }
    }
    return NULL;
}

static void test_wake(void)
{
    struct nr_packet_io *io = listen_on("127.0.0.1", NULL, NULL);
    int error;
    struct waker waker = {.waiter = nr_waiter_open(&io, 1, &error)};
    pthread_t thread;

    /* Time over: nothing to report, and not early. */
    uint64_t start = now_ns();
    CHECK_EQUAL(nr_waiter_wait(waker.waiter, 20000000), 0);
    CHECK(now_ns() - start >= 20000000);
    CHECK_EQUAL(nr_waiter_wait(waker.waiter, 0), 0);

    /* A wake before the wait counts, once however many there were. */
    nr_waiter_wake(waker.waiter);
    nr_waiter_wake(waker.waiter);
    CHECK_EQUAL(nr_waiter_wait(waker.waiter, NR_WAIT_FOREVER), NR_WAITER_WOKEN);
    CHECK_EQUAL(nr_waiter_wait(waker.waiter, 0), 0);

    /* From another thread, racing with the start of the wait: none is lost. */
    CHECK_EQUAL(pthread_create(&thread, NULL, wake_on_turn, &waker), 0);
    for (int i = 0; i < 2000; i++) {
        atomic_fetch_add(&waker.turn, 1);
        start = now_ns();
        while (!(nr_waiter_wait(waker.waiter, 10ull * SECOND) & NR_WAITER_WOKEN))
            CHECK(now_ns() - start < 5ull * SECOND);
        while (atomic_load(&waker.turn) % 2 == 1)
            sched_yield();
    }
    atomic_store(&waker.stop, true);
    pthread_join(thread, NULL);
    nr_waiter_close(waker.waiter);
    nr_io_close(io);
}

static void test_checksum_flag_can_be_withheld(void)
{
    int error;
    struct nr_packet_io *server = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1", .checksum_unverified = true}, &error);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), NULL, NULL);
    struct nr_rx rx[1];
    struct nr_tx tx = {.data = (const uint8_t *)"x", .length = 1};

    nr_io_send_burst(client, &tx, 1);
    CHECK_EQUAL(receive_some(server, rx, 1), 1);
    CHECK_EQUAL(rx[0].flags, 0);
    nr_io_close(client);
    nr_io_close(server);
}

/* ---- Runs of datagrams that cross the kernel as one message ---- */

static uint8_t pattern(uint32_t datagram, uint32_t byte)
{
    return (uint8_t)(datagram * 131 + byte * 7 + byte / 251);
}

#define MOST 256
static uint8_t sent_bytes[MOST][NR_UDP_BUFFER];

/* Fills datagrams numbered from `first` on, whose own bytes end at `split` and the rest stands in a segment. */
static void fill(struct nr_tx *tx, uint32_t first, const uint32_t *lengths, uint32_t count, uint32_t split)
{
    for (uint32_t i = 0; i < count; i++) {
        uint8_t *bytes = sent_bytes[first + i];
        uint32_t own = lengths[i] < split ? lengths[i] : split;

        for (uint32_t b = 0; b < lengths[i]; b++)
            bytes[b] = pattern(first + i, b);
        tx[i] = (struct nr_tx){.data = bytes, .length = (uint16_t)own};
        if (own < lengths[i]) {
            tx[i].segments = 1;
            tx[i].segment[0] = (struct nr_segment){bytes + own, lengths[i] - own, 1};
        }
    }
}

static void check_received(const struct nr_rx *rx, uint32_t datagram, uint32_t length)
{
    CHECK_EQUAL(rx->length, length);
    CHECK(memcmp(rx->data, sent_bytes[datagram], length) == 0);
}

/* Receives in bites of `max`, sleeping in between, and checks them against what fill() made. */
static void expect(struct nr_packet_io *io, uint32_t first, const uint32_t *lengths, uint32_t count, uint32_t max)
{
    struct nr_rx rx[NR_UDP_BURST];

    for (uint32_t got = 0; got < count;) {
        uint32_t some = receive_some(io, rx, max);

        CHECK(some <= max && got + some <= count);
        for (uint32_t i = 0; i < some; i++)
            check_received(&rx[i], first + got + i, lengths[got + i]);
        got += some;
    }
    CHECK_EQUAL(nr_io_receive_burst(io, rx, max), 0);
    CHECK(!nr_io_arm(io));
    nr_io_disarm(io);
}

static void test_runs(const char *host, uint32_t length, uint32_t last, uint32_t split, uint32_t max, bool plain_sender)
{
    struct tokens tokens = {0};
    struct nr_packet_io *server = listen_on(host, NULL, NULL);
    int error;
    struct nr_packet_io *client = nr_udp_connect(
        &(struct nr_udp_config){
            .host = host, .port = port_of(server), .plain = plain_sender, .sent = note_sent, .sent_context = &tokens},
        &error);
    struct nr_udp_info info;
    struct nr_tx tx[64];
    uint32_t lengths[64];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < 64; i++)
        bytes += lengths[i] = i == 63 ? last : length;
    for (uint32_t round = 0; round < 4; round++) {
        fill(tx, round * 64, lengths, 64, split);
        CHECK_EQUAL(nr_io_send_burst(client, tx, 64), 64);
        expect(server, round * 64, lengths, 64, max);
    }
    CHECK_EQUAL(client->counters.sent, 256);
    CHECK_EQUAL(client->counters.sent_bytes, 4 * bytes);
    CHECK_EQUAL(client->counters.send_dropped, 0);
    CHECK_EQUAL(server->counters.received, 256);
    CHECK_EQUAL(server->counters.received_bytes, 4 * bytes);
    nr_udp_info(client, &info);
    CHECK_EQUAL(info.segment_refused, 0);
    if (plain_sender)
        CHECK(!info.segmenting && info.segmented == 0);
    else if (info.segmenting)
        CHECK(info.segmented >= 4 && info.segmented <= 4 * 12);
    nr_udp_info(server, &info);
    if (!plain_sender && info.coalescing && max > 1)
        CHECK(info.coalesced > 0);
    CHECK_EQUAL(tokens.calls, split < last ? 256 : split < length ? 252 : 0);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_mixed_lengths(void)
{
    static const uint32_t some[] = {100, 100, 50, 100, 0, 0, 8972, 8972, 8972, 8971, 8972, 1, 1, 1, 2, 2, 1, 9000, 9000, 64, 64};
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), note_sent, &(struct tokens){0});
    uint32_t count = sizeof(some) / sizeof(some[0]);
    struct nr_tx tx[64];

    for (uint32_t round = 0; round < 6; round++) {
        fill(tx, 0, some, count, round % 2 == 0 ? NR_UDP_BUFFER : 40);
        CHECK_EQUAL(nr_io_send_burst(client, tx, count), count);
        expect(server, 0, some, count, round % 3 == 0 ? 64 : round % 3 == 1 ? 3 : 1);
    }
    CHECK_EQUAL(client->counters.sent, 6 * count);
    CHECK_EQUAL(client->counters.send_dropped, 0);
    nr_io_close(client);
    nr_io_close(server);
}

/* One burst to several peers, in runs and in turns; one of them cannot be addressed. */
static void test_mixed_peers(void)
{
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client[3];
    struct nr_peer peer[3];
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx[60], hello = {.data = (const uint8_t *)"hi", .length = 2};
    uint32_t next[3] = {0};
    uint8_t number[60];

    for (int i = 0; i < 3; i++) {
        client[i] = connect_to("127.0.0.1", port_of(server), NULL, NULL);
        nr_io_send_burst(client[i], &hello, 1);
        CHECK_EQUAL(receive_some(server, rx, 1), 1);
        peer[i] = rx[0].peer;
    }
    for (uint32_t i = 0; i < 60; i++) {
        uint32_t to = i < 30 ? i / 10 : i % 3;

        number[i] = (uint8_t)next[to]++;
        tx[i] = (struct nr_tx){.peer = peer[to], .data = &number[i], .length = 1};
    }
    struct nr_peer six = {.bytes = {6, 0, 0, 9}, .length = NR_PEER_LENGTH_IP6};
    tx[5].peer = six;
    CHECK_EQUAL(nr_io_send_burst(server, tx, 60), 60);
    CHECK_EQUAL(server->counters.send_dropped, 1);
    CHECK_EQUAL(server->counters.sent, 59);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t want = 0; want < 20;) {
            uint32_t count = receive_some(client[i], rx, NR_UDP_BURST);

            for (uint32_t k = 0; k < count; k++, want++) {
                want += i == 0 && want == 5;
                CHECK_EQUAL(rx[k].length, 1);
                CHECK_EQUAL(rx[k].data[0], want);
            }
        }
        nr_io_close(client[i]);
    }
    nr_io_close(server);
}

/* What is left of a message stays as it was while more comes, and wakes a sleeper that the socket would not wake. */
static void test_leftovers(void)
{
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), NULL, NULL);
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_udp_info info;
    struct nr_tx tx[64];
    uint32_t lengths[64];

    for (uint32_t i = 0; i < 64; i++)
        lengths[i] = 500;
    fill(tx, 0, lengths, 64, 500);
    /* Bursts come: the kernel coalesces from now on. */
    nr_io_send_burst(client, tx, 64);
    expect(server, 0, lengths, 64, NR_UDP_BURST);
    nr_udp_info(server, &info);
    uint64_t coalesced = info.coalesced;

    nr_io_send_burst(client, tx, 64);
    uint32_t got = receive_some(server, rx, 3);
    nr_udp_info(server, &info);
    if (info.coalesced > coalesced) {
        CHECK_EQUAL(got, 3);
        CHECK(nr_io_arm(server));
        nr_io_disarm(server);
    }
    fill(tx, 64, lengths, 64, 500);
    nr_io_send_burst(client, tx, 64);
    for (uint32_t i = 0; i < got; i++)
        check_received(&rx[i], i, 500);
    while (got < 128) {
        CHECK(wait_on(server, 5ull * SECOND) & NR_WAITER_READABLE);
        uint32_t count = nr_io_receive_burst(server, rx, 5);

        for (uint32_t i = 0; i < count; i++)
            check_received(&rx[i], got + i, 500);
        got += count;
    }
    CHECK_EQUAL(server->counters.received, 192);
    nr_io_close(client);
    nr_io_close(server);
}

/* Lone datagrams and bursts in turns, so that the receiver changes its way again and again: nothing is lost or glued together. */
static void test_lone_and_bursts(void)
{
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), NULL, NULL);
    static const uint32_t turns[] = {200, 63, 64, 65, 127, 128, 129, 0, 300};
    struct nr_rx rx[1];
    struct nr_tx tx[64];
    uint32_t lengths[64];

    for (uint32_t i = 0; i < 64; i++)
        lengths[i] = 40;
    fill(tx, 0, lengths, 64, 40);
    for (uint32_t turn = 0; turn < sizeof(turns) / sizeof(turns[0]); turn++) {
        for (uint32_t i = 0; i < turns[turn]; i++) {
            nr_io_send_burst(client, tx, 1);
            CHECK_EQUAL(receive_some(server, rx, 1), 1);
            check_received(&rx[0], 0, 40);
            CHECK_EQUAL(nr_io_receive_burst(server, rx, 1), 0);
        }
        for (int burst = 0; burst < 2; burst++) {
            nr_io_send_burst(client, tx, 64);
            expect(server, 0, lengths, 64, NR_UDP_BURST);
        }
    }
    nr_io_close(client);
    nr_io_close(server);
}

/* A socket without checksums cannot be cut for: the datagrams go one by one, from then on all. */
static void test_refused_runs(void)
{
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), note_sent, &(struct tokens){0});
    struct nr_udp_info info;
    struct nr_tx tx[64];
    uint32_t lengths[64];
    const int on = 1;

    nr_udp_info(client, &info);
    bool able = info.segmenting;
    CHECK_EQUAL(setsockopt(info.fd, SOL_SOCKET, SO_NO_CHECK, &on, sizeof(on)), 0);
    for (uint32_t i = 0; i < 64; i++)
        lengths[i] = 1000 + i / 32;
    for (int round = 0; round < 2; round++) {
        fill(tx, 0, lengths, 64, 10);
        nr_io_send_burst(client, tx, 64);
        expect(server, 0, lengths, 64, NR_UDP_BURST);
    }
    nr_udp_info(client, &info);
    CHECK(!info.segmenting);
    CHECK_EQUAL(info.segmented, 0);
    CHECK(!able || (info.segment_refused >= 1 && info.segment_refused <= 2));
    CHECK_EQUAL(client->counters.sent, 128);
    CHECK_EQUAL(client->counters.send_dropped, 0);
    nr_io_close(client);
    nr_io_close(server);
}

/* In a network of its own, whose loopback takes no more than MTU 1500. False where the system gives none. */
static bool small_network(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_mtu = 1500};

    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0)
        return false;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    CHECK_EQUAL(ioctl(fd, SIOCSIFMTU, &request), 0);
    request.ifr_flags = IFF_UP | IFF_LOOPBACK;
    CHECK_EQUAL(ioctl(fd, SIOCSIFFLAGS, &request), 0);
    close(fd);
    return true;
}

/* Runs of datagrams that do not fit the path are counted as such and say nothing against runs. */
static void too_long_runs(void)
{
    struct nr_packet_io *server = listen_on("127.0.0.1", NULL, NULL);
    struct nr_packet_io *client = connect_to("127.0.0.1", port_of(server), NULL, NULL);
    struct nr_udp_info info;
    struct nr_tx tx[30];
    uint32_t lengths[30];

    CHECK_EQUAL(nr_io_max_payload(client), NR_ETHERNET_DATAGRAM);
    for (uint32_t i = 0; i < 30; i++)
        lengths[i] = i < 10 ? 1473 : i < 20 ? 1472 : 8972;
    fill(tx, 0, lengths, 30, NR_UDP_BUFFER);
    nr_io_send_burst(client, tx, 30);
    expect(server, 10, lengths + 10, 10, 10);
    CHECK_EQUAL(client->counters.sent, 10);
    CHECK_EQUAL(client->counters.send_too_long, 20);
    CHECK_EQUAL(client->counters.send_dropped, 20);
    CHECK_EQUAL(client->counters.last_send_error, -EMSGSIZE);
    nr_udp_info(client, &info);
    CHECK(!info.segmenting || info.segmented == 1);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_runs_too_long_for_the_path(void)
{
    int status;
    pid_t child = fork();

    CHECK(child >= 0);
    if (child == 0) {
        if (!small_network())
            fprintf(stderr, "no network namespace here: runs too long for the path are not tested\n");
        else
            too_long_runs();
        exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
}

/* A queue of the reckoned capacity holds so many datagrams that come one by one. */
static void test_receive_capacity(uint32_t length)
{
    int error;
    struct nr_packet_io *server =
        nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1", .max_payload = length, .socket_buffer = 400000}, &error);
    struct nr_packet_io *client =
        nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = port_of(server), .plain = true}, &error);
    uint32_t capacity = nr_io_receive_capacity(server);
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx = {.data = sent_bytes[0], .length = (uint16_t)length};

    CHECK(capacity >= 10);
    for (uint32_t i = 0; i < capacity; i++)
        nr_io_send_burst(client, &tx, 1);
    for (uint32_t got = 0; got < capacity;)
        got += receive_some(server, rx, NR_UDP_BURST);
    nr_io_close(client);
    nr_io_close(server);
}

int main(void)
{
    test_peer_format();
    test_echo("127.0.0.1", "127.0.0.1:");
    test_echo("::1", "[::1]:");
    test_dual_stack();
    test_segments_are_gathered();
    test_bursts_keep_order();
    test_max_payload("127.0.0.1");
    test_max_payload("::1");
    test_fragments_are_forbidden("127.0.0.1");
    test_fragments_are_forbidden("::1");
    test_port_in_use("127.0.0.1");
    test_port_in_use("::1");
    test_bad_addresses();
    test_unreachable("127.0.0.1");
    test_unreachable("::1");
    test_wrong_family();
    test_full_queue_drops();
    test_wake();
    test_checksum_flag_can_be_withheld();
    for (uint32_t max = 64; max > 0; max /= 4) {
        test_runs("127.0.0.1", 8972, 8972, NR_UDP_BUFFER, max, false);
        test_runs("::1", 1472, 100, 64, max, false);
        test_runs("127.0.0.1", 64, 1, NR_UDP_BUFFER, max, false);
        test_runs("127.0.0.1", 1472, 1472, 64, max, true);
    }
    test_mixed_lengths();
    test_mixed_peers();
    test_leftovers();
    test_lone_and_bursts();
    test_refused_runs();
    test_runs_too_long_for_the_path();
    test_receive_capacity(NR_MAX_DATAGRAM);
    test_receive_capacity(NR_ETHERNET_DATAGRAM);
    return 0;
}
