/*
 * The floor for benchmarks: an echo over a path, without engine or protocol. Both ends spin unless told to sleep.
 * usage: echo serve URL [--core N] [--blocking]
 *        echo ask URL --request BYTES[xN] --response BYTES[xN] --rounds R [--core N] [--peer-core N] [--blocking]
 *        echo line      the round trip of the cache line alone, between cores 0 and 1
 * URL: udp://HOST:PORT, tcp://HOST:PORT or vhost:///PATH. Each round sends N datagrams in one burst and waits for the answer's.
 * Prints one line of JSON: microseconds, and the round trip of a cache line between the two cores just before, in nanoseconds.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "io/udp.h"
#include "io/vhost.h"
#include "io/vring.h"
#include "io/waiter.h"
#include "testing/tcp.h"

#define BURST 64
#define LINE_ROUNDS 20000

/* First bytes of a request of so many datagrams; the answer's follow from the last of them. */
struct request {
    uint32_t last;      /* of the request: answer it */
    uint32_t length;    /* of each datagram of the answer, bytes */
    uint32_t datagrams; /* of the answer */
};

static uint8_t payload[NR_MAX_DATAGRAM];

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
    if (core >= 0 && sched_setaffinity(0, sizeof(set), &set) != 0)
        fprintf(stderr, "cannot pin to core %d\n", core);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* ---- The round trip of a cache line ---- */

static struct {
    _Alignas(64) _Atomic uint32_t ping;
    _Alignas(64) _Atomic uint32_t pong;
    _Alignas(64) int core;
} line;

static void *answer_line(void *argument)
{
    (void)argument;
    pin(line.core);
    for (uint32_t i = 1; i <= LINE_ROUNDS; i++) {
        while (atomic_load_explicit(&line.ping, memory_order_acquire) != i)
            ;
        atomic_store_explicit(&line.pong, i, memory_order_release);
    }
    return NULL;
}

/* The median in ns, 0 on one core. */
static uint64_t measure_line(int core, int peer_core)
{
    static uint64_t sample[LINE_ROUNDS];
    pthread_t thread;

    line.core = peer_core;
    if (core == peer_core || pthread_create(&thread, NULL, answer_line, NULL) != 0)
        return 0;
    for (uint32_t i = 1; i <= LINE_ROUNDS; i++) {
        uint64_t start = now_ns();

        atomic_store_explicit(&line.ping, i, memory_order_release);
        while (atomic_load_explicit(&line.pong, memory_order_acquire) != i)
            ;
        sample[i - 1] = now_ns() - start;
    }
    pthread_join(thread, NULL);
    qsort(sample, LINE_ROUNDS, sizeof(*sample), compare);
    return sample[LINE_ROUNDS / 2];
}

/* ---- The path ---- */

static struct nr_packet_io *open_path(const char *url, bool serve)
{
    char host[128];
    unsigned port;
    int error = -EINVAL;
    struct nr_packet_io *io = NULL;

    if (strncmp(url, "vhost://", 8) == 0) {
        io = serve ? nr_vhost_listen(&(struct nr_vhost_config){.path = url + 8}, &error)
                   : nr_vring_open(&(struct nr_vring_config){.path = url + 8}, &error);
    } else if (sscanf(url, "udp://%127[^:]:%u", host, &port) == 2) {
        struct nr_udp_config config = {.host = host, .port = (uint16_t)port};

        io = serve ? nr_udp_listen(&config, &error) : nr_udp_connect(&config, &error);
    } else if (sscanf(url, "tcp://%127[^:]:%u", host, &port) == 2) {
        struct nr_tcp_config config = {.host = host, .port = (uint16_t)port};

        io = serve ? nr_tcp_listen(&config, &error) : nr_tcp_connect(&config, &error);
    }
    if (io == NULL) {
        fprintf(stderr, "cannot open %s: %s\n", url, strerror(-error));
        exit(1);
    }
    return io;
}

static void serve(struct nr_packet_io *io, struct nr_waiter *waiter)
{
    struct nr_rx rx[BURST];
    struct nr_tx tx[BURST];
    struct request request;

    for (;;) {
        uint32_t count = nr_io_receive_burst(io, rx, BURST);

        if (count == 0 && waiter != NULL)
            nr_waiter_wait(waiter, NR_WAIT_FOREVER);
        for (uint32_t i = 0; i < count; i++) {
            if (rx[i].length < sizeof(request))
                continue;
            memcpy(&request, rx[i].data, sizeof(request));
            if (!request.last || request.length > sizeof(payload) || request.datagrams > BURST)
                continue;
            for (uint32_t k = 0; k < request.datagrams; k++)
                tx[k] = (struct nr_tx){.peer = rx[i].peer, .data = payload, .length = (uint16_t)request.length};
            nr_io_send_burst(io, tx, request.datagrams);
        }
    }
}

/* Sends one request and waits for its answer, in part at least for a second. False when some did not come. */
static bool round_trip(struct nr_packet_io *io, struct nr_waiter *waiter, const struct nr_tx *tx, uint32_t count, uint32_t answers)
{
    struct nr_rx rx[BURST];
    uint32_t got = 0, empty = 0;
    uint64_t end = 0;

    nr_io_send_burst(io, tx, count);
    while (got < answers) {
        uint32_t some = nr_io_receive_burst(io, rx, BURST);

        got += some;
        if (some != 0)
            continue;
        if (waiter != NULL)
            nr_waiter_wait(waiter, 1000000000u);
        if (++empty % (waiter != NULL ? 4 : 4096) == 0) {
            uint64_t now = now_ns();

            if (end == 0)
                end = now + 1000000000u;
            else if (now > end)
                return false;
        }
    }
    return true;
}

static int ask(struct nr_packet_io *io, struct nr_waiter *waiter, const uint32_t request[2], const uint32_t response[2],
               uint32_t rounds, uint64_t line_ns)
{
    static uint8_t data[BURST][NR_MAX_DATAGRAM];
    struct nr_tx tx[BURST];
    uint64_t *sample = calloc(rounds, sizeof(*sample)), sum = 0, lost = 0;
    uint64_t end = now_ns() + 10000000000u;

    for (uint32_t i = 0; i < request[1]; i++) {
        struct request head = {.last = i + 1 == request[1], .length = response[0], .datagrams = response[1]};

        memcpy(data[i], &head, sizeof(head));
        tx[i] = (struct nr_tx){.data = data[i], .length = (uint16_t)request[0]};
    }
    /* Until it is connected. */
    while (!round_trip(io, waiter, tx, request[1], response[1])) {
        if (now_ns() > end) {
            fprintf(stderr, "no answer\n");
            return 1;
        }
    }
    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t start = now_ns();

        lost += !round_trip(io, waiter, tx, request[1], response[1]);
        sum += sample[i] = now_ns() - start;
    }
    qsort(sample, rounds, sizeof(*sample), compare);
    printf("{\"p50\": %.3f, \"p99\": %.3f, \"min\": %.3f, \"mean\": %.3f, \"rounds\": %u, \"lost\": %llu, \"bytes\": %llu, "
           "\"line_ns\": %llu}\n",
           (double)sample[rounds / 2] / 1e3, (double)sample[(uint64_t)rounds * 99 / 100] / 1e3, (double)sample[0] / 1e3,
           (double)sum / rounds / 1e3, rounds, (unsigned long long)lost,
           (unsigned long long)(request[0] * request[1] + response[0] * response[1]), (unsigned long long)line_ns);
    free(sample);
    return 0;
}

static int usage(void)
{
    fprintf(stderr, "usage: echo serve URL [--core N] [--blocking]\n"
                    "       echo ask URL --request BYTES[xN] --response BYTES[xN] --rounds R [--core N] [--peer-core N] "
                    "[--blocking]\n"
                    "       echo line\n");
    return 2;
}

static bool parse_size(const char *text, uint32_t size[2])
{
    size[1] = 1;
    return sscanf(text, "%ux%u", &size[0], &size[1]) >= 1 && size[0] <= NR_MAX_DATAGRAM && size[1] >= 1 && size[1] <= BURST;
}

int main(int argc, char **argv)
{
    uint32_t request[2] = {64, 1}, response[2] = {64, 1}, rounds = 10000;
    bool serving = argc > 1 && strcmp(argv[1], "serve") == 0, blocking = false;
    int core = -1, peer_core = -1, error;

    if (argc > 1 && strcmp(argv[1], "line") == 0) {
        pin(0);
        printf("{\"line_ns\": %llu}\n", (unsigned long long)measure_line(0, 1));
        return 0;
    }
    if (argc < 3 || (!serving && strcmp(argv[1], "ask") != 0))
        return usage();
    for (int i = 3; i < argc; i++) {
        if (strcmp(argv[i], "--blocking") == 0)
            blocking = true;
        else if (i + 1 == argc)
            return usage();
        else if (strcmp(argv[i], "--core") == 0)
            core = atoi(argv[++i]);
        else if (strcmp(argv[i], "--peer-core") == 0)
            peer_core = atoi(argv[++i]);
        else if (strcmp(argv[i], "--rounds") == 0)
            rounds = (uint32_t)atoi(argv[++i]);
        else if (strcmp(argv[i], "--request") == 0 ? !parse_size(argv[++i], request)
                                                   : strcmp(argv[i], "--response") != 0 || !parse_size(argv[++i], response))
            return usage();
    }
    if (request[0] < sizeof(struct request) || rounds == 0)
        return usage();
    pin(core);
    uint64_t line_ns = serving || core < 0 || peer_core < 0 ? 0 : measure_line(core, peer_core);
    struct nr_packet_io *io = open_path(argv[2], serving);
    struct nr_waiter *waiter = blocking ? nr_waiter_open(&io, 1, &error) : NULL;
    if (serving)
        serve(io, waiter);
    int result = ask(io, waiter, request, response, rounds, line_ns);
    nr_waiter_close(waiter);
    nr_io_close(io);
    return result;
}
