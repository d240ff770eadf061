/*
 * Round trips of one small datagram over kernel UDP on the loopback, with packet I/O and with bare system calls beside it.
 * usage: ping_pong [io|bare] [spin|block] CLIENT_CORE SERVER_CORE [ROUNDS [BYTES]]
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "io/udp.h"

static atomic_bool stopping;
static bool blocking, bare;
static uint32_t bytes = 64;

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void pin(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (pthread_setaffinity_np(pthread_self(), sizeof(set), &set) != 0)
        fprintf(stderr, "cannot pin to core %d\n", core);
}

struct server {
    struct nr_packet_io *io;
    int core;
};

static void *serve(void *argument)
{
    struct server *server = argument;
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx[NR_UDP_BURST];
    struct nr_udp_info info;

    pin(server->core);
    nr_udp_info(server->io, &info);
    if (bare) {
        uint8_t buffer[NR_UDP_BUFFER];

        while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
            struct sockaddr_storage from;
            socklen_t length = sizeof(from);
            ssize_t got = recvfrom(info.fd, buffer, sizeof(buffer), MSG_DONTWAIT, (struct sockaddr *)&from, &length);

            if (got >= 0)
                sendto(info.fd, buffer, (size_t)got, 0, (struct sockaddr *)&from, length);
            else if (blocking)
                nr_io_wait(server->io, NR_IO_FOREVER);
        }
        return NULL;
    }
    while (!atomic_load_explicit(&stopping, memory_order_relaxed)) {
        uint32_t count = nr_io_receive_burst(server->io, rx, NR_UDP_BURST);

        if (count == 0) {
            if (blocking)
                nr_io_wait(server->io, NR_IO_FOREVER);
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            tx[i].peer = rx[i].peer;
            tx[i].data = rx[i].data;
            tx[i].length = (uint16_t)rx[i].length;
            tx[i].segments = 0;
        }
        nr_io_send_burst(server->io, tx, count);
    }
    return NULL;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    int error;

    if (argc < 5) {
        fprintf(stderr, "usage: ping_pong io|bare spin|block CLIENT_CORE SERVER_CORE [ROUNDS [BYTES]]\n");
        return 2;
    }
    bare = strcmp(argv[1], "bare") == 0;
    blocking = strcmp(argv[2], "block") == 0;
    uint32_t rounds = argc > 5 ? (uint32_t)atoi(argv[5]) : 100000;
    if (argc > 6)
        bytes = (uint32_t)atoi(argv[6]);

    struct nr_packet_io *server_io = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1"}, &error);
    if (server_io == NULL)
        return 1;
    struct nr_udp_info info;
    nr_udp_info(server_io, &info);
    struct nr_packet_io *client =
        nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = nr_peer_port(&info.local)}, &error);
    if (client == NULL)
        return 1;
    nr_udp_info(client, &info);

    struct server server = {.io = server_io, .core = atoi(argv[4])};
    pthread_t thread;
    pthread_create(&thread, NULL, serve, &server);
    pin(atoi(argv[3]));

    uint64_t *samples = calloc(rounds, sizeof(*samples));
    static uint8_t payload[NR_UDP_BUFFER];
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx = {.data = payload, .length = (uint16_t)bytes};
    uint64_t begin = now_ns();
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t start = now_ns();

        if (bare) {
            send(info.fd, payload, bytes, 0);
            while (recv(info.fd, payload, sizeof(payload), MSG_DONTWAIT) < 0) {
                if (blocking)
                    nr_io_wait(client, NR_IO_FOREVER);
            }
        } else {
            nr_io_send_burst(client, &tx, 1);
            if (blocking)
                nr_io_wait(client, NR_IO_FOREVER);
            while (nr_io_receive_burst(client, rx, NR_UDP_BURST) == 0) {
                if (blocking)
                    nr_io_wait(client, NR_IO_FOREVER);
            }
        }
        samples[i] = now_ns() - start;
    }
    uint64_t end = now_ns();
    atomic_store(&stopping, true);
    nr_io_wake(server_io);
    pthread_join(thread, NULL);
    qsort(samples, rounds, sizeof(*samples), compare);
    printf("%s %s cores %s,%s %u B: p50 %.2f  p90 %.2f  p99 %.2f  mean %.2f us\n", argv[1], argv[2], argv[3], argv[4], bytes,
           (double)samples[rounds / 2] / 1e3, (double)samples[rounds / 10 * 9] / 1e3, (double)samples[rounds / 100 * 99] / 1e3,
           (double)(end - begin) / rounds / 1e3);
    free(samples);
    nr_io_close(client);
    nr_io_close(server_io);
    return 0;
}
