#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "testing/tcp.h"
#include "waiting.h"

#define SECOND 1000000000ull
#define BURST 64

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

static struct nr_packet_io *listen_on(uint16_t port)
{
    int error;
    struct nr_packet_io *io = nr_tcp_listen(&(struct nr_tcp_config){.host = "127.0.0.1", .port = port}, &error);

    CHECK_EQUAL(error, 0);
    return io;
}

static uint16_t port_of(struct nr_packet_io *io)
{
    struct nr_tcp_info info;

    nr_tcp_info(io, &info);
    return nr_peer_port(&info.local);
}

static struct nr_packet_io *connect_to(uint16_t port)
{
    int error;
    struct nr_packet_io *io = nr_tcp_connect(&(struct nr_tcp_config){.host = "127.0.0.1", .port = port}, &error);

    CHECK_EQUAL(error, 0);
    return io;
}

/* Both ends look until `io` has `connections`. */
static void until_connections(struct nr_packet_io *io, struct nr_packet_io *other, uint32_t connections)
{
    uint64_t end = now_ns() + 10 * SECOND;
    struct nr_tcp_info info;
    struct nr_rx rx[1];

    for (nr_tcp_info(io, &info); info.connections != connections; nr_tcp_info(io, &info)) {
        CHECK(now_ns() < end);
        CHECK_EQUAL(nr_io_receive_burst(io, rx, 1), 0);
        if (other != NULL)
            CHECK_EQUAL(nr_io_receive_burst(other, rx, 1), 0);
        wait_on(io, SECOND / 1000);
    }
}

static uint32_t receive_some(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    uint64_t end = now_ns() + 10 * SECOND;

    while (now_ns() < end) {
        uint32_t count = nr_io_receive_burst(io, rx, max);

        if (count > 0)
            return count;
        wait_on(io, SECOND);
    }
    CHECK(!"nothing came in 10 s");
    return 0;
}

static void test_echo(void)
{
    struct nr_packet_io *server = listen_on(0), *client = connect_to(port_of(server));
    struct nr_rx rx[BURST];
    struct nr_tx tx = {.data = (const uint8_t *)"ques", .length = 4, .segments = 1, .segment = {{"tion", 4, 0}}};

    until_connections(client, server, 1);
    CHECK_EQUAL(nr_io_send_burst(client, &tx, 1), 1);
    CHECK_EQUAL(receive_some(server, rx, BURST), 1);
    CHECK_EQUAL(rx[0].length, 8);
    CHECK(memcmp(rx[0].data, "question", 8) == 0);
    struct nr_tx answer = {.peer = rx[0].peer, .data = rx[0].data, .length = 8};
    nr_io_send_burst(server, &answer, 1);
    CHECK_EQUAL(receive_some(client, rx, BURST), 1);
    CHECK(memcmp(rx[0].data, "question", 8) == 0);
    nr_io_close(client);
    until_connections(server, NULL, 0);
    nr_io_close(server);
}

/* More than the sockets hold: what was accepted arrives whole and in order, what found no room is counted. */
static void test_bulk(uint32_t max)
{
    struct nr_packet_io *server = listen_on(0), *client = connect_to(port_of(server));
    static uint8_t bytes[BURST][NR_MAX_DATAGRAM];
    struct nr_rx rx[BURST];
    struct nr_tx tx[BURST];
    uint32_t last = 0, got = 0;

    until_connections(client, server, 1);
    for (uint32_t round = 0; round < 40; round++) {
        for (uint32_t i = 0; i < BURST; i++) {
            uint32_t number = 1 + round * BURST + i;

            memset(bytes[i], (int)number & 0xff, sizeof(bytes[i]));
            memcpy(bytes[i], &number, 4);
            tx[i] = (struct nr_tx){.data = bytes[i], .length = (uint16_t)(NR_MAX_DATAGRAM - i * 100)};
        }
        CHECK_EQUAL(nr_io_send_burst(client, tx, BURST), BURST);
    }
    CHECK_EQUAL(client->counters.sent + client->counters.send_dropped, 40 * BURST);
    CHECK(client->counters.send_dropped > 0);
    while (got < client->counters.sent) {
        CHECK_EQUAL(nr_io_receive_burst(client, rx, 1), 0); /* sends what was kept */
        uint32_t count = nr_io_receive_burst(server, rx, max);

        for (uint32_t i = 0; i < count; i++) {
            uint32_t number;

            memcpy(&number, rx[i].data, 4);
            CHECK(number > last);
            last = number;
            CHECK_EQUAL(rx[i].length, NR_MAX_DATAGRAM - (number - 1) % BURST * 100);
            CHECK_EQUAL(rx[i].data[rx[i].length - 1], number & 0xff);
        }
        got += count;
    }
    nr_io_close(client);
    nr_io_close(server);
}

static void test_many_clients(void)
{
    struct nr_packet_io *server = listen_on(0), *client[40];
    struct nr_rx rx[BURST];

    for (uint8_t i = 0; i < 40; i++) {
        client[i] = connect_to(port_of(server));
        until_connections(client[i], NULL, 1);
        CHECK_EQUAL(nr_io_send_burst(client[i], &(struct nr_tx){.data = &i, .length = 1}, 1), 1);
    }
    for (uint32_t got = 0; got < 40;) {
        uint32_t count = receive_some(server, rx, 7);
        struct nr_tx tx[7];

        for (uint32_t i = 0; i < count; i++)
            tx[i] = (struct nr_tx){.peer = rx[i].peer, .data = rx[i].data, .length = 1};
        nr_io_send_burst(server, tx, count);
        got += count;
    }
    for (uint8_t i = 0; i < 40; i++) {
        CHECK_EQUAL(receive_some(client[i], rx, BURST), 1);
        CHECK_EQUAL(rx[0].data[0], i);
        nr_io_close(client[i]);
    }
    until_connections(server, NULL, 0);
    nr_io_close(server);
}

static void test_reconnect(void)
{
    struct nr_packet_io *server = listen_on(0), *client = connect_to(port_of(server));
    uint16_t port = port_of(server);
    struct nr_rx rx[BURST];
    struct nr_tx tx = {.data = (const uint8_t *)"x", .length = 1};

    until_connections(client, server, 1);
    nr_io_close(server);
    until_connections(client, NULL, 0);
    CHECK_EQUAL(nr_io_send_burst(client, &tx, 1), 1);
    CHECK_EQUAL(client->counters.send_dropped, 1);
    server = listen_on(port);
    until_connections(client, server, 1);
    nr_io_send_burst(client, &tx, 1);
    CHECK_EQUAL(receive_some(server, rx, BURST), 1);
    nr_io_close(client);
    nr_io_close(server);
}

/* A bare socket that sends a message in pieces, and then a length that makes no sense. */
static void test_pieces_and_garbage(void)
{
    struct nr_packet_io *server = listen_on(0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port_of(server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    static const uint8_t message[] = {5, 0, 0, 0, 'h', 'e', 'l', 'l', 'o', 0, 0, 0, 0, 0xff, 0xff, 0xff, 0x7f};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct nr_tcp_info info;
    struct nr_rx rx[BURST];

    CHECK_EQUAL(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    until_connections(server, NULL, 1);
    for (uint32_t i = 0; i < 8; i++) {
        CHECK_EQUAL(send(fd, message + i, 1, 0), 1);
        CHECK_EQUAL(nr_io_receive_burst(server, rx, BURST), 0);
    }
    CHECK_EQUAL(send(fd, message + 8, 1, 0), 1);
    CHECK_EQUAL(receive_some(server, rx, BURST), 1);
    CHECK(rx[0].length == 5 && memcmp(rx[0].data, "hello", 5) == 0);
    CHECK_EQUAL(send(fd, message + 9, 8, 0), 8);
    CHECK_EQUAL(receive_some(server, rx, BURST), 1);
    CHECK_EQUAL(rx[0].length, 0);
    until_connections(server, NULL, 0);
    nr_tcp_info(server, &info);
    CHECK_EQUAL(info.malformed, 1);
    close(fd);
    nr_io_close(server);
}

int main(void)
{
    test_echo();
    test_bulk(BURST);
    test_bulk(3);
    test_many_clients();
    test_reconnect();
    test_pieces_and_garbage();
    return 0;
}
