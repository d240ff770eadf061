/*
 * An appliance on a net_vhost port and clients with our own vring driver, each a process of its own, in jumbo frames: ping, insert,
 * sample and update, byte by byte; and each side killed at work. No root, no hugepages.
 */
#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "eal_process.h"
#include "io/vring.h"
#include "tests/server_process.h"

enum {
    OBSERVATION = 20000, /* bytes, which no datagram holds */
    STEP = OBSERVATION + 16,
    COLUMNS = 24,
    ROW_HEAD = NR_ROW_HEAD + COLUMNS,
    ROW = ROW_HEAD + 2 * OBSERVATION + 8,
    CAPACITY = 2000,
    APPENDS = 40, /* of a round */
    ROWS = 64,    /* that a round draws */
    MTU = 9000,
    PORT = 7447,
    CLIENT_PORT = 16385,
};

static const uint8_t server_ip4[4] = {10, 0, 0, 2}, client_ip4[4] = {10, 0, 0, 1}, client_mac[6] = {2, 0, 0, 0, 0, 1};

static const struct nr_store_config store = {
    .step_bytes = STEP, .observation_bytes = OBSERVATION, .steps = 3 * CAPACITY, .window = 2, .in_flight = 64, .streams = 8};
static const struct nr_gather gathers[] = {
    {.length = OBSERVATION, .target = ROW_HEAD},
    {.from_end = 1, .length = OBSERVATION, .target = ROW_HEAD + OBSERVATION},
    {.source = OBSERVATION, .length = 8, .target = ROW_HEAD + 2 * OBSERVATION},
};
static const struct nr_table_config table = {
    .capacity = CAPACITY, .exponent = 1, .leases = 512, .window = 2, .row_bytes = ROW, .item_bytes = COLUMNS, .gather_count = 3};
static const struct nr_engine_config config = {.seed = 7,
                                               .lease_ns = 1000000000,
                                               .start_seconds = 77,
                                               .store_count = 1,
                                               .table_count = 1,
                                               .stores = &store,
                                               .tables = &table,
                                               .gathers = gathers};
static const struct nr_former_config former = {
    .stack = 1, .n = 1, .gamma = 0.99, .reward_offset = 0, .discount_offset = 4, .length_offset = 8, .version_offset = 16};
static const uint32_t column_offset[2] = {0, OBSERVATION}, column_bytes[2] = {OBSERVATION, 8};
static const struct nr_actor_config actor_config = {.streams = 1,
                                                    .column_count = 2,
                                                    .observation_columns = 1,
                                                    .former_count = 1,
                                                    .column_offset = column_offset,
                                                    .column_bytes = column_bytes,
                                                    .reward_offset = OBSERVATION + 8,
                                                    .terminated_offset = OBSERVATION + 12,
                                                    .truncated_offset = OBSERVATION + 13,
                                                    .formers = &former};

static char folder[] = "/tmp/nrportXXXXXX";
static char path[64]; /* of the client's socket */

/* What a process tells of itself. */
struct word {
    uint8_t mac[6];         /* server: of its port */
    uint8_t zero_copy;      /* server: rows leave as references */
    uint32_t rounds;        /* client: whole ones */
    uint64_t lost;          /* client: acknowledged items that a new server does not have */
    uint64_t largest;       /* client: mean bytes of the datagrams that a sample came in */
};

struct process {
    pid_t pid;
    int said; /* it writes words here */
    int told; /* a byte: it shall end */
};

static void hear(const struct process *process, struct word *word)
{
    struct pollfd fd = {.fd = process->said, .events = POLLIN};

    CHECK_EQUAL(poll(&fd, 1, (int)(PATIENCE_NS / 1000000)), 1);
    CHECK_EQUAL(read(process->said, word, sizeof(*word)), (ssize_t)sizeof(*word));
}

static void say(int fd, const struct word *word)
{
    CHECK_EQUAL(write(fd, word, sizeof(*word)), (ssize_t)sizeof(*word));
}

static struct process start(void (*work)(int said, int told, const struct word *given), const struct word *given)
{
    struct process process;
    int said[2], told[2];

    CHECK_EQUAL(pipe(said), 0);
    CHECK_EQUAL(pipe(told), 0);
    process.pid = fork_child();
    if (process.pid == 0) {
        close(said[0]);
        close(told[1]);
        work(said[1], told[0], given);
        exit(0);
    }
    close(said[1]);
    close(told[0]);
    process.said = said[0];
    process.told = told[1];
    return process;
}

static void drop(struct process *process)
{
    close(process->said);
    close(process->told);
}

static void kill_at_once(struct process *process)
{
    int status;

    CHECK_EQUAL(kill(process->pid, SIGKILL), 0);
    CHECK_EQUAL(waitpid(process->pid, &status, 0), process->pid);
    CHECK(WIFSIGNALED(status)); /* it lived until now */
    drop(process);
}

/* By word, or by a signal where one is given. What it still says is heard: it must not end of a closed pipe. */
static void end(struct process *process, int signal)
{
    struct word ignored;
    int status;

    if (signal != 0)
        CHECK_EQUAL(kill(process->pid, signal), 0);
    else
        CHECK_EQUAL(write(process->told, "", 1), 1);
    while (read(process->said, &ignored, sizeof(ignored)) > 0)
        ;
    drop(process);
    CHECK_EQUAL(waitpid(process->pid, &status, 0), process->pid);
    CHECK(WIFEXITED(status));
    CHECK_EQUAL(WEXITSTATUS(status), 0);
}

/* ---- The server ---- */

static struct nr_appliance *appliance;

static void stop(int signal)
{
    (void)signal;
    nr_appliance_stop(appliance);
}

static void serve_port(int said, int told, const struct word *given)
{
    struct nr_port_config port = {.device = "net_vhost0", .udp_port = PORT, .mtu = MTU};
    struct nr_port_info info;
    struct word word = {0};
    char vdev[128];
    int status;

    (void)told;
    (void)given;
    snprintf(vdev, sizeof(vdev), "net_vhost0,iface=%s,client=1", path);
    must_start(vdev, "128");
    struct nr_engine *engine = nr_engine_create(&config, &status);
    CHECK_EQUAL(status, NR_OK);
    memcpy(port.ip4, server_ip4, 4);
    port.slab = nr_engine_memory(engine, &port.slab_bytes);
    struct nr_packet_io *io = must_open(&port);
    nr_port_info(io, &info);
    memcpy(word.mac, info.mac, 6);
    word.zero_copy = info.zero_copy;
    const struct nr_appliance_config options = {.io = &io, .links = 1, .sessions = 8, .session_ns = 2000000000};
    appliance = nr_appliance_open(engine, &config, "spec", &options, &status);
    CHECK_EQUAL(status, NR_OK);
    signal(SIGTERM, stop);
    say(said, &word);
    CHECK_EQUAL(nr_appliance_run(appliance), NR_OK);
    nr_appliance_close(appliance);
}

/* ---- The client ---- */

static void make_observation(uint64_t number, uint8_t bytes[OBSERVATION])
{
    uint64_t state = number * 0x9e3779b97f4a7c15u + 1;

    for (uint32_t i = 0; i < OBSERVATION; i += 8) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        memcpy(bytes + i, &state, 8);
    }
}

/* The port connects to this socket, once a second until somebody listens. */
static int listen_for_port(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    memcpy(address.sun_path, path, sizeof(path));
    unlink(path);
    CHECK(fd >= 0);
    CHECK_EQUAL(bind(fd, (const struct sockaddr *)&address, sizeof(address)), 0);
    CHECK_EQUAL(listen(fd, 1), 0);
    return fd;
}

static int take_connection(void *context)
{
    int fd = accept4(*(int *)context, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

    return fd < 0 ? -errno : fd;
}

static void append_one(struct nr_actor *actor, uint64_t number)
{
    static const uint64_t stride[2] = {OBSERVATION, 8};
    static const uint8_t no = 0;
    static uint8_t bytes[OBSERVATION];
    const float reward = 1;
    const void *column[2] = {bytes, &number};

    make_observation(number, bytes);
    append_rows(actor,
                &(struct nr_rows){.column = column, .row_stride = stride, .reward = &reward, .terminated = &no, .truncated = &no});
}

/* The rows are what some client appended, and their priorities can be set. Tells the mean size of their datagrams. */
static uint64_t draw(struct nr_replay *replay)
{
    static uint8_t rows[ROWS * ROW] __attribute__((aligned(8))), wanted[OBSERVATION];
    struct nr_replay_counters before, after;
    struct nr_operation *operation;
    struct nr_sample *sample;
    uint64_t keys[ROWS];
    uint8_t outcomes[ROWS];
    double priorities[ROWS];

    nr_replay_counters(replay, &before);
    CHECK_EQUAL(nr_sample_start(replay, 0, ROWS, rows, &sample), NR_OK);
    CHECK_EQUAL(nr_sample_wait(sample, PATIENCE_NS), NR_OK);
    nr_replay_counters(replay, &after);
    nr_sample_settle(sample, 1);
    for (uint32_t i = 0; i < ROWS; i++) {
        const uint8_t *row = rows + (size_t)i * ROW;
        uint64_t number;

        memcpy(&keys[i], row, 8);
        memcpy(&number, row + ROW_HEAD + 2 * OBSERVATION, 8);
        make_observation(number, wanted);
        CHECK(memcmp(row + ROW_HEAD, wanted, OBSERVATION) == 0);
        make_observation(number + 1, wanted);
        CHECK(memcmp(row + ROW_HEAD + OBSERVATION, wanted, OBSERVATION) == 0);
        priorities[i] = 1 + (double)i;
    }
    CHECK_EQUAL(nr_update(replay, 0, ROWS, keys, priorities, outcomes, PATIENCE_NS, &operation), NR_OK);
    return (after.bytes_received - before.bytes_received) / (after.datagrams_received - before.datagrams_received);
}

/* Works until it is killed, or told to end. */
static void work(int said, int told, const struct word *given)
{
    struct pollfd fd = {.fd = told, .events = POLLIN};
    int listening = listen_for_port(), error, status;
    struct nr_vring_config link = {
        .dial = take_connection, .dial_context = &listening, .local.port = CLIENT_PORT, .remote.port = PORT};
    struct nr_actor_counters counters;
    struct nr_operation *operation;
    struct word word = {0};
    struct nr_ping ping;
    struct nr_loss losses[8];
    uint64_t number = 0;

    memcpy(link.local.mac, client_mac, 6);
    memcpy(link.local.address, client_ip4, 4);
    memcpy(link.remote.mac, given->mac, 6);
    memcpy(link.remote.address, server_ip4, 4);
    struct nr_packet_io *io = nr_vring_open(&link, &error);
    CHECK_EQUAL(error, 0);
    struct nr_replay *replay = nr_replay_over(io, &(struct nr_connect_options){.poll = NR_POLL_ADAPTIVE}, &status);
    CHECK(replay != NULL);
    CHECK_EQUAL(nr_replay_ready(replay, PATIENCE_NS), NR_OK);
    CHECK_EQUAL(nr_replay_layout(replay, &config), NR_OK);
    struct nr_actor *actor = nr_actor_open(replay, &actor_config, &status);
    CHECK(actor != NULL);
    while (poll(&fd, 1, 0) == 0) {
        CHECK_EQUAL(nr_ping(replay, 1000, &ping, PATIENCE_NS, &operation), NR_OK);
        for (uint32_t i = 0; i < APPENDS; i++)
            append_one(actor, number++);
        flush_all(actor);
        word.largest = draw(replay);
        for (uint32_t i = nr_replay_losses(replay, 8, losses); i > 0; i--)
            word.lost += losses[i - 1].items;
        nr_actor_counters(actor, &counters);
        CHECK_EQUAL(counters.refused, 0);
        word.rounds++;
        say(said, &word);
    }
    nr_actor_close(actor);
    nr_replay_close(replay);
    nr_replay_free(replay);
}

/* The word of the client's round of this number, or a later one. */
static struct word hear_rounds(const struct process *client, uint32_t rounds)
{
    struct word word = {0};

    while (word.rounds < rounds)
        hear(client, &word);
    return word;
}

int main(void)
{
    struct word server_is, server_was, client_is;

    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/port.sock", folder);
    struct process server = start(serve_port, NULL);
    hear(&server, &server_was);
    CHECK_EQUAL(server_was.zero_copy, 1);

    struct process client = start(work, &server_was);
    client_is = hear_rounds(&client, 2);
    CHECK(client_is.largest > 8000); /* jumbo frames: rows of 40 KB in datagrams of 8,968 B, and few small answers */
    kill_at_once(&client);

    client = start(work, &server_was);
    hear_rounds(&client, 2);
    kill_at_once(&server);
    server = start(serve_port, NULL);
    hear(&server, &server_is);
    CHECK(memcmp(server_is.mac, server_was.mac, 6) == 0);
    do
        hear(&client, &client_is);
    while (client_is.lost == 0); /* it has met the new server, and named what the old one had */
    hear_rounds(&client, client_is.rounds + 2);

    end(&client, 0);
    end(&server, SIGTERM);
    unlink(path);
    rmdir(folder);
    return 0;
}
