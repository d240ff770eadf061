/*
 * Round trips of one datagram over kernel UDP on the loopback between two processes: through packet I/O, and with bare system calls
 * on the same sockets beside it, in turns, so that a busy machine hurts both alike. And over shared memory (vring.h to vhost.h),
 * beside a cache line that goes there and back between the same two cores: the host moves those, and each figure with them.
 * usage: ping_pong [BYTES [ROUND_TRIPS [TURNS]]]
 */
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "io/udp.h"
#include "io/vhost.h"
#include "io/vring.h"
#include "waiting.h"

struct placement {
    const char *name;
    bool blocking;   /* sleep in the kernel instead of polling */
    int server_core; /* the client's is 0 */
};

static const struct placement placements[] = {
    {"spinning on two cores", false, 1},
    {"blocking on one core", true, 0},
    {"blocking on two cores", true, 1},
};

#define PLACEMENTS 3
#define KINDS 2 /* bare, packet I/O */

static uint8_t payload[NR_UDP_BUFFER];

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
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        fprintf(stderr, "cannot pin to core %d\n", core);
}

/* Bare sockets block in recv; packet I/O's never do. */
static int bare_socket(struct nr_packet_io *io, bool blocking)
{
    struct nr_udp_info info;

    nr_udp_info(io, &info);
    if (blocking)
        fcntl(info.fd, F_SETFL, fcntl(info.fd, F_GETFL) & ~O_NONBLOCK);
    return info.fd;
}

/* Echoes until an empty datagram comes. */
static void serve_bare(struct nr_packet_io *io, bool blocking)
{
    int fd = bare_socket(io, blocking);

    for (;;) {
        struct sockaddr_storage from;
        socklen_t length = sizeof(from);
        ssize_t got = recvfrom(fd, payload, sizeof(payload), 0, (struct sockaddr *)&from, &length);

        if (got == 0)
            return;
        if (got > 0)
            sendto(fd, payload, (size_t)got, 0, (struct sockaddr *)&from, length);
    }
}

static void serve_io(struct nr_packet_io *io, bool blocking)
{
    struct nr_rx rx[NR_UDP_BURST];
    struct nr_tx tx[NR_UDP_BURST];

    for (;;) {
        uint32_t count = nr_io_receive_burst(io, rx, NR_UDP_BURST);

        if (count == 0) {
            if (blocking)
                wait_on(io, NR_WAIT_FOREVER);
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            if (rx[i].length == 0)
                return;
            tx[i].peer = rx[i].peer;
            tx[i].data = rx[i].data;
            tx[i].length = (uint16_t)rx[i].length;
            tx[i].segments = 0;
        }
        nr_io_send_burst(io, tx, count);
    }
}

static void ask_bare(struct nr_packet_io *io, bool blocking, uint16_t bytes, uint32_t rounds, uint64_t *samples)
{
    int fd = bare_socket(io, blocking);

    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t start = now_ns();

        send(fd, payload, bytes, 0);
        while (recv(fd, payload, sizeof(payload), 0) < 0)
            ;
        samples[i] = now_ns() - start;
    }
}

static void ask_io(struct nr_packet_io *io, bool blocking, uint16_t bytes, uint32_t rounds, uint64_t *samples)
{
    struct nr_tx tx = {.data = payload, .length = bytes};
    struct nr_rx rx[NR_UDP_BURST];

    for (uint32_t i = 0; i < rounds; i++) {
        uint64_t start = now_ns();

        nr_io_send_burst(io, &tx, 1);
        do {
            if (blocking)
                wait_on(io, NR_WAIT_FOREVER);
        } while (nr_io_receive_burst(io, rx, NR_UDP_BURST) == 0);
        samples[i] = now_ns() - start;
    }
}

static void one_turn(bool with_io, const struct placement *placement, uint16_t bytes, uint32_t rounds, uint64_t *samples)
{
    struct nr_udp_info info;
    int error = 0;
    struct nr_packet_io *server = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1"}, &error);

    if (server == NULL) {
        fprintf(stderr, "cannot listen: %s\n", strerror(-error));
        exit(1);
    }
    nr_udp_info(server, &info);
    pid_t child = fork();
    if (child == 0) {
        alarm(60); /* should the parent die */
        pin(placement->server_core);
        (with_io ? serve_io : serve_bare)(server, placement->blocking);
        _exit(0);
    }
    nr_io_close(server);
    struct nr_packet_io *client =
        nr_udp_connect(&(struct nr_udp_config){.host = "127.0.0.1", .port = nr_peer_port(&info.local)}, &error);
    if (child < 0 || client == NULL) {
        fprintf(stderr, "cannot start\n");
        exit(1);
    }
    (with_io ? ask_io : ask_bare)(client, placement->blocking, bytes, rounds, samples);
    nr_io_send_burst(client, &(struct nr_tx){.data = payload}, 1);
    waitpid(child, NULL, 0);
    nr_io_close(client);
}

/* Where a cache line goes there and back. */
struct line {
    _Alignas(128) _Atomic uint32_t there;
    _Alignas(128) _Atomic uint32_t back;
};

static void line_turn(uint32_t rounds, uint64_t *samples)
{
    struct line *line = mmap(NULL, sizeof(*line), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child;

    if (line == MAP_FAILED || (child = fork()) < 0)
        exit(1);
    if (child == 0) {
        alarm(60);
        pin(1);
        for (uint32_t i = 1; i <= rounds; i++) {
            while (atomic_load_explicit(&line->there, memory_order_acquire) != i)
                ;
            atomic_store_explicit(&line->back, i, memory_order_release);
        }
        _exit(0);
    }
    for (uint32_t i = 1; i <= rounds; i++) {
        uint64_t start = now_ns();

        atomic_store_explicit(&line->there, i, memory_order_release);
        while (atomic_load_explicit(&line->back, memory_order_acquire) != i)
            ;
        samples[i - 1] = now_ns() - start;
    }
    waitpid(child, NULL, 0);
    munmap(line, sizeof(*line));
}

static void shared_turn(const char *path, bool blocking, uint16_t bytes, uint32_t rounds, uint64_t *samples)
{
    int error = 0;
    struct nr_packet_io *server = nr_vhost_listen(&(struct nr_vhost_config){.path = path}, &error);
    struct nr_packet_io *client = nr_vring_open(&(struct nr_vring_config){.path = path}, &error);
    struct nr_vring_info info = {0};
    struct nr_rx rx[1];
    pid_t child;

    if (server == NULL || client == NULL || (child = fork()) < 0) {
        fprintf(stderr, "cannot listen: %s\n", strerror(-error));
        exit(1);
    }
    if (child == 0) {
        alarm(60);
        pin(1);
        serve_io(server, blocking);
        nr_io_close(server);
        _exit(0);
    }
    while (info.state != NR_VRING_READY) {
        nr_io_receive_burst(client, rx, 1);
        nr_vring_info(client, &info);
    }
    ask_io(client, blocking, bytes, rounds, samples);
    nr_io_send_burst(client, &(struct nr_tx){.data = payload}, 1);
    waitpid(child, NULL, 0);
    nr_io_close(client);
    nr_io_close(server);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void print_row(const char *placement, const char *kind, uint64_t *samples, size_t count)
{
    qsort(samples, count, sizeof(*samples), compare);
    printf("%-24s %-14s %8.2f %8.2f %8.2f %8.2f\n", placement, kind, (double)samples[count / 100] / 1e3,
           (double)samples[count / 10] / 1e3, (double)samples[count / 2] / 1e3, (double)samples[count / 100 * 99] / 1e3);
}

/* One row for each turn, not one for all: the cores may be near in one and far in the next. */
static void shared_memory(uint16_t bytes, uint32_t rounds, uint32_t turns)
{
    uint64_t *samples = calloc(rounds, sizeof(uint64_t));
    char folder[] = "/tmp/nrpingXXXXXX", path[64];

    if (samples == NULL || mkdtemp(folder) == NULL)
        exit(1);
    snprintf(path, sizeof(path), "%s/socket", folder);
    for (uint32_t turn = 0; turn < turns; turn++) {
        line_turn(rounds, samples);
        print_row("spinning on two cores", "cache line", samples, rounds);
        shared_turn(path, false, bytes, rounds, samples);
        print_row("spinning on two cores", "shared memory", samples, rounds);
    }
    shared_turn(path, true, bytes, rounds, samples);
    print_row("blocking on two cores", "shared memory", samples, rounds);
    rmdir(folder);
    free(samples);
}

int main(int argc, char **argv)
{
    uint16_t bytes = (uint16_t)(argc > 1 ? atoi(argv[1]) : 64);
    uint32_t rounds = (uint32_t)(argc > 2 ? atoi(argv[2]) : 10000);
    uint32_t turns = (uint32_t)(argc > 3 ? atoi(argv[3]) : 5);
    uint64_t *samples[PLACEMENTS][KINDS];

    if (bytes == 0 || bytes > NR_MAX_DATAGRAM || rounds == 0 || turns == 0) {
        fprintf(stderr, "usage: ping_pong [BYTES [ROUND_TRIPS [TURNS]]]\n");
        return 2;
    }
    alarm(300);
    pin(0);
    for (int p = 0; p < PLACEMENTS; p++) {
        for (int kind = 0; kind < KINDS; kind++)
            samples[p][kind] = calloc((size_t)rounds * turns, sizeof(uint64_t));
    }
    for (uint32_t turn = 0; turn < turns; turn++) {
        for (int p = 0; p < PLACEMENTS; p++) {
            for (int kind = 0; kind < KINDS; kind++)
                one_turn(kind == 1, &placements[p], bytes, rounds, samples[p][kind] + (size_t)turn * rounds);
        }
    }
    printf("round trip of %u bytes, microseconds    %8s %8s %8s %8s\n", bytes, "p1", "p10", "p50", "p99");
    for (int p = 0; p < PLACEMENTS; p++) {
        for (int kind = 0; kind < KINDS; kind++) {
            print_row(placements[p].name, kind == 1 ? "packet I/O" : "bare", samples[p][kind], (size_t)rounds * turns);
            free(samples[p][kind]);
        }
    }
    shared_memory(bytes, rounds, turns);
    return 0;
}
