/*
 * For the benches: appliances in processes of their own, pinned, of which all but the measured one are stopped (SIGSTOP), so that
 * rows can be taken in turns on two cores; and the round trip of a cache line between these cores, to be stated beside each row.
 */
#ifndef NR_TESTS_SERVER_PROCESS_H
#define NR_TESTS_SERVER_PROCESS_H

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "client/replay.h"
#include "io/udp.h"
#include "io/vhost.h"
#include "loop/appliance.h"
#include "testing/tcp.h"

#define PATIENCE_NS UINT64_C(60000000000) /* until what should be quick counts as hung */

enum { CLIENT_CORE = 0, SERVER_CORE = 1 };

static inline uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void pin(int core)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(core, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0)
        fprintf(stderr, "cannot pin to core %d\n", core);
}

/* A child that ends with its parent. 0 in the child. */
static inline pid_t fork_child(void)
{
    pid_t parent = getpid(), pid = fork();

    CHECK(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
    }
    return pid;
}

static inline void halt(pid_t pid)
{
    int status;

    CHECK(kill(pid, SIGSTOP) == 0);
    CHECK(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
}

static inline void go_on(pid_t pid)
{
    CHECK(kill(pid, SIGCONT) == 0);
}

static inline int compare_numbers(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

/* Sorts. */
static inline uint64_t percentile(uint64_t *samples, uint32_t count, uint32_t percent)
{
    qsort(samples, count, sizeof(*samples), compare_numbers);
    return samples[(uint64_t)(count - 1) * percent / 100];
}

/* ---- The cache line ---- */

struct line {
    _Atomic uint32_t *turn; /* shared: odd numbers are written here, even ones by the partner */
    pid_t partner;          /* on the server's core, stopped while not in use */
};

static inline void line_open(struct line *line)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    CHECK(page != MAP_FAILED);
    line->turn = page;
    line->partner = fork_child();
    if (line->partner == 0) {
        pin(SERVER_CORE);
        for (;;) {
            uint32_t seen = atomic_load_explicit(line->turn, memory_order_acquire);

            if (seen % 2 == 1)
                atomic_store_explicit(line->turn, seen + 1, memory_order_release);
        }
    }
    halt(line->partner);
}

/* ns, the median of bursts. Everything else on the server's core must be stopped. */
static inline uint64_t line_ns(const struct line *line)
{
    enum { BURSTS = 64, TRIPS = 64 };
    uint64_t ns[BURSTS];

    go_on(line->partner);
    for (int burst = -1; burst < BURSTS; burst++) { /* the first wakes the partner */
        uint64_t begin = now_ns();

        for (int trip = 0; trip < TRIPS; trip++) {
            uint32_t next = atomic_load_explicit(line->turn, memory_order_relaxed) + 1;

            atomic_store_explicit(line->turn, next, memory_order_release);
            while (atomic_load_explicit(line->turn, memory_order_acquire) == next)
                ;
        }
        if (burst >= 0)
            ns[burst] = (now_ns() - begin) / TRIPS;
    }
    halt(line->partner);
    return percentile(ns, BURSTS, 50);
}

/* ---- Servers ---- */

enum path { PATH_VHOST, PATH_UDP, PATH_TCP, PATHS };

static const char *const path_names[PATHS] = {"vhost", "udp", "tcp"};

struct served {
    enum path path;
    int core;        /* of the server */
    bool busy;       /* both sides spin; else they sleep when nothing comes */
    pid_t pid;       /* stopped while not in use */
    uint16_t port;   /* of udp and tcp */
    char socket[80]; /* of vhost */
};

/* In the server's process. Returns when stopped, which nobody does: it is killed. */
static inline void serve(const struct served *served, const struct nr_engine_config *config, int ready)
{
    struct nr_packet_io *io = NULL;
    struct nr_udp_info udp;
    struct nr_tcp_info tcp;
    uint16_t port = 0;
    int error = 0, status;

    pin(served->core);
    switch (served->path) {
    case PATH_VHOST:
        io = nr_vhost_listen(&(struct nr_vhost_config){.path = served->socket}, &error);
        break;
    case PATH_UDP:
        io = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1"}, &error);
        break;
    default:
        io = nr_tcp_listen(&(struct nr_tcp_config){.host = "127.0.0.1"}, &error);
    }
    if (io == NULL) {
        fprintf(stderr, "%s: cannot listen: %s\n", path_names[served->path], strerror(-error));
        _exit(1);
    }
    if (served->path == PATH_UDP) {
        nr_udp_info(io, &udp);
        port = nr_peer_port(&udp.local);
    } else if (served->path == PATH_TCP) {
        nr_tcp_info(io, &tcp);
        port = nr_peer_port(&tcp.local);
    }
    const struct nr_appliance_config options = {
        .io = &io, .links = 1, .busy = served->busy, .sessions = 16, .session_ns = 600 * UINT64_C(1000000000)};
    struct nr_engine *engine = nr_engine_create(config, &status);
    CHECK(engine != NULL);
    struct nr_appliance *appliance = nr_appliance_open(engine, config, "spec", &options, &status);
    CHECK(appliance != NULL);
    CHECK(write(ready, &port, sizeof(port)) == sizeof(port));
    close(ready);
    nr_appliance_run(appliance);
}

/* Starts one that serves `config`, and stops it. `folder`: for sockets. Before any thread is started. */
static inline void served_start(struct served *served, const struct nr_engine_config *config, const char *folder)
{
    int ready[2];

    snprintf(served->socket, sizeof(served->socket), "%s/%d-%d.sock", folder, served->core, served->busy);
    CHECK(pipe(ready) == 0);
    served->pid = fork_child();
    if (served->pid == 0) {
        close(ready[0]);
        serve(served, config, ready[1]);
        _exit(1);
    }
    close(ready[1]);
    CHECK(read(ready[0], &served->port, sizeof(served->port)) == sizeof(served->port));
    close(ready[0]);
    halt(served->pid);
}

/* The server must run. */
static inline struct nr_replay *served_connect(const struct served *served, const struct nr_engine_config *config)
{
    const struct nr_connect_options options = {.poll = served->busy ? NR_POLL_BUSY : NR_POLL_ADAPTIVE};
    struct nr_replay *replay;
    int status;

    if (served->path == PATH_VHOST) {
        replay = nr_replay_vhost(served->socket, &options, &status);
    } else if (served->path == PATH_UDP) {
        replay = nr_replay_udp("127.0.0.1", served->port, &options, &status);
    } else {
        struct nr_packet_io *io = nr_tcp_connect(&(struct nr_tcp_config){.host = "127.0.0.1", .port = served->port}, &status);

        CHECK(io != NULL);
        replay = nr_replay_over(io, &options, &status);
    }
    CHECK(replay != NULL);
    CHECK_EQUAL(nr_replay_ready(replay, PATIENCE_NS), NR_OK);
    CHECK_EQUAL(nr_replay_layout(replay, config), NR_OK);
    return replay;
}

/* ---- Calls ---- */

static inline void settle(struct nr_replay *replay)
{
    struct nr_table_info info;
    struct nr_operation *operation;
    uint64_t begin = now_ns();

    do {
        CHECK_EQUAL(nr_tables(replay, &info, 1, PATIENCE_NS, &operation), NR_OK);
        CHECK(now_ns() - begin < PATIENCE_NS);
    } while (info.reserved != 0 || info.leased != 0);
}

/* What is committed is decided; its keys are thrown away. */
static inline void flush_all(struct nr_actor *actor)
{
    enum { AT_ONCE = 256 };
    static uint64_t keys[AT_ONCE];
    static int32_t statuses[AT_ONCE];
    struct nr_operation *operation;

    CHECK_EQUAL(nr_actor_flush(actor, PATIENCE_NS, &operation), NR_OK);
    while (nr_actor_keys(actor, AT_ONCE, keys, statuses) == AT_ONCE)
        ;
}

static inline void append_rows(struct nr_actor *actor, const struct nr_rows *rows)
{
    uint32_t items, row;

    CHECK_EQUAL(nr_actor_stage(actor, rows, NULL, PATIENCE_NS, &items, &row), NR_OK);
    CHECK_EQUAL(nr_actor_commit(actor, NULL), NR_OK);
}

#endif
