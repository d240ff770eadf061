/* The server of vhost devices against our own clients and against clients that break every rule: no DPDK, no privileges. */
#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "io/hello.h"
#include "io/link.h"
#include "io/vhost.h"
#include "io/vhost_user.h"
#include "io/vring.h"
#include "io/waiter.h"

#define BURST 32

static char folder[] = "/tmp/nrvhostXXXXXX";
static char path[64];
static uint64_t tokens;

static void count_sent(void *context, uint64_t token)
{
    (void)context;
    tokens += token;
}

static struct nr_packet_io *listen_at(uint32_t clients)
{
    int error = 1;
    struct nr_packet_io *io =
        nr_vhost_listen(&(struct nr_vhost_config){.path = path, .clients = clients, .sent = count_sent}, &error);

    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    return io;
}

static struct nr_packet_io *client_with(uint32_t descriptors, uint32_t slot)
{
    int error = 1;
    struct nr_packet_io *io =
        nr_vring_open(&(struct nr_vring_config){.path = path, .descriptors = descriptors, .slot = slot}, &error);

    CHECK_EQUAL(error, 0);
    CHECK(io != NULL);
    return io;
}

static struct nr_vhost_info info_of(struct nr_packet_io *server)
{
    struct nr_vhost_info info;

    nr_vhost_info(server, &info);
    return info;
}

static enum nr_vring_state state_of(struct nr_packet_io *client)
{
    struct nr_vring_info info;

    nr_vring_info(client, &info);
    return info.state;
}

/* Answers each datagram with itself, in segments when it is long. Returns how many. */
static uint32_t echo(struct nr_packet_io *server)
{
    struct nr_rx rx[BURST];
    struct nr_tx tx[BURST];
    uint32_t count = nr_io_receive_burst(server, rx, BURST);

    for (uint32_t i = 0; i < count; i++) {
        tx[i] = (struct nr_tx){.peer = rx[i].peer, .data = rx[i].data, .length = (uint16_t)rx[i].length};
        if (rx[i].length > 100) {
            tx[i].length = 50;
            tx[i].segments = 2;
            tx[i].segment[0] = (struct nr_segment){.base = rx[i].data + 50, .length = 50, .token = 1};
            tx[i].segment[1] = (struct nr_segment){.base = rx[i].data + 100, .length = rx[i].length - 100, .token = 2};
        }
    }
    CHECK_EQUAL(nr_io_send_burst(server, tx, count), count);
    return count;
}

static void idle(struct nr_packet_io *client)
{
    struct nr_rx rx[1];

    CHECK_EQUAL(nr_io_receive_burst(client, rx, 1), 0);
}

static void connect_to(struct nr_packet_io *client, struct nr_packet_io *server)
{
    while (state_of(client) != NR_VRING_READY) {
        idle(client);
        echo(server);
    }
}

static void fill(uint8_t *bytes, uint32_t length, uint32_t seed)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(seed + i * 7 + (i >> 8));
}

/* One datagram there and back in one thread. */
static void round_trip(struct nr_packet_io *client, struct nr_packet_io *server, uint32_t length, uint32_t seed)
{
    static uint8_t payload[NR_MAX_DATAGRAM];
    struct nr_rx rx[2];
    uint32_t count;

    fill(payload, length, seed);
    CHECK_EQUAL(nr_io_send_burst(client, &(struct nr_tx){.data = payload, .length = (uint16_t)length}, 1), 1);
    while ((count = nr_io_receive_burst(client, rx, 2)) == 0)
        echo(server);
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(rx[0].length, length);
    CHECK_EQUAL(rx[0].flags, NR_RX_CHECKSUM_VERIFIED);
    CHECK_EQUAL(memcmp(rx[0].data, payload, length), 0);
}

static uint32_t open_descriptors(void)
{
    uint32_t count = 0;

    for (int fd = 0; fd < 1024; fd++)
        count += fcntl(fd, F_GETFD) >= 0;
    return count;
}

static void test_every_length_comes_back(void)
{
    static const uint32_t slots[] = {1024, 2048, 16384};

    for (int s = 0; s < 3; s++) {
        struct nr_packet_io *server = listen_at(0), *client = client_with(32, slots[s]);
        uint64_t expected = 0;

        connect_to(client, server);
        tokens = 0;
        for (uint32_t length = 0; length <= NR_MAX_DATAGRAM; length += length < 2100 || length > 8950 ? 1 : 17) {
            round_trip(client, server, length, length);
            expected += length > 100 ? 3 : 0;
        }
        CHECK_EQUAL(tokens, expected);
        CHECK_EQUAL(server->counters.received_bytes, client->counters.sent_bytes);
        CHECK_EQUAL(server->counters.send_dropped + client->counters.receive_errors + server->counters.receive_errors, 0);
        nr_io_close(client);
        nr_io_close(server);
    }
}

/* Frames of 128 bytes fill the memory to send from exactly, lap after lap; a smaller one then has to start at its beginning. */
static void test_frames_may_end_where_the_memory_ends(void)
{
    int error;
    struct nr_packet_io *server = listen_at(0);
    struct nr_packet_io *client = nr_vring_open(&(struct nr_vring_config){.path = path, .tx_bytes = 1 << 15}, &error);

    CHECK(client != NULL);
    connect_to(client, server);
    for (int lap = 0; lap < 5; lap++) {
        for (uint32_t i = 0; i <= (1 << 15) / 128; i++)
            round_trip(client, server, 128 - NR_LINK_PREFIX, i);
        for (uint32_t i = 2; i < (1 << 15) / 64; i++)
            round_trip(client, server, 1, i);
    }
    CHECK_EQUAL(server->counters.receive_errors, 0);
    nr_io_close(client);
    nr_io_close(server);
}

static void test_windows_come_back_in_order(void)
{
    struct nr_packet_io *server = listen_at(0),
                        *client = client_with(512, 2048); /* two windows: one is held until the next receive */
    static uint8_t payload[NR_MAX_DATAGRAM];
    uint32_t sent = 0, came = 0;

    connect_to(client, server);
    while (came < 5000) {
        while (sent < came + 32 && sent < 5000) {
            memcpy(payload, &sent, sizeof(sent));
            if (nr_io_send_burst(client, &(struct nr_tx){.data = payload, .length = (uint16_t)(4 + sent * 37 % 8968)}, 1) == 0)
                break;
            sent++;
        }
        struct nr_rx rx[BURST];
        uint32_t count;

        echo(server);
        count = nr_io_receive_burst(client, rx, BURST);
        for (uint32_t i = 0; i < count; i++, came++) {
            CHECK_EQUAL(memcmp(rx[i].data, &came, sizeof(came)), 0);
            CHECK_EQUAL(rx[i].length, 4 + came * 37 % 8968);
        }
    }
    nr_io_close(client);
    nr_io_close(server);
}

static void test_a_full_ring_drops_and_unknown_peers_too(void)
{
    struct nr_packet_io *server = listen_at(0), *client = client_with(16, 2048);
    static uint8_t payload[NR_MAX_DATAGRAM + 1];
    struct nr_rx rx[BURST];
    struct nr_tx tx = {.data = payload, .length = 10, .segments = 1, .segment[0] = {.base = payload, .length = 10, .token = 5}};
    struct nr_vhost_client who;

    connect_to(client, server);
    CHECK_EQUAL(nr_io_send_burst(client, &(struct nr_tx){.data = payload, .length = 1}, 1), 1);
    while (nr_io_receive_burst(server, rx, 1) == 0)
        ;
    CHECK_EQUAL(rx[0].peer.bytes[0], NR_PEER_LOCAL);
    tx.peer = rx[0].peer;
    tokens = 0;
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
    CHECK_EQUAL(tokens, 100);
    CHECK_EQUAL(server->counters.send_dropped, 4);
    CHECK_EQUAL(server->counters.last_send_error, -ENOBUFS);
    CHECK(nr_vhost_client(server, 0, &who) && who.pid == getpid() && who.uid == getuid());
    CHECK_EQUAL(who.sent, 16);
    CHECK_EQUAL(who.dropped, 4);
    CHECK_EQUAL(nr_io_receive_burst(client, rx, BURST), 16);
    idle(client);
    tx.length = NR_MAX_DATAGRAM;
    CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
    CHECK_EQUAL(server->counters.send_too_long, 1);
    tx.length = 10;
    tx.peer.bytes[10] ^= 1;
    CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
    tx.peer.bytes[10] ^= 1;
    tx.peer.bytes[2] = 0xff;
    CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
    CHECK_EQUAL(server->counters.unreachable, 2);
    CHECK_EQUAL(tokens, 115);
    round_trip(client, server, 8000, 1);
    nr_io_close(client);
    nr_io_close(server);
}

#define CROWD 40

static void test_a_crowd_up_to_the_limit_and_no_further(void)
{
    struct nr_packet_io *server = listen_at(CROWD), *client[CROWD + 1];
    struct nr_vring_info info;
    uint32_t before = 0;

    for (int i = 0; i < CROWD; i++) {
        client[i] = client_with(64, 2048);
        connect_to(client[i], server);
    }
    for (uint32_t lap = 0; lap < 3; lap++)
        for (int i = 0; i < CROWD; i++)
            round_trip(client[i], server, 100 + 200u * (uint32_t)i, (uint32_t)i + lap);
    client[CROWD] = client_with(64, 2048);
    while (client[CROWD]->counters.last_unreachable != -EUSERS) {
        idle(client[CROWD]);
        echo(server);
    }
    nr_vring_info(client[CROWD], &info);
    CHECK_EQUAL(info.limit, CROWD);
    CHECK(info_of(server).refused_full >= 1);
    CHECK_EQUAL(info_of(server).clients, CROWD);
    nr_io_close(client[7]);
    connect_to(client[CROWD], server);
    round_trip(client[CROWD], server, 5000, 3);
    round_trip(client[39], server, 5000, 3);
    for (int i = 0; i <= CROWD; i++)
        if (i != 7)
            nr_io_close(client[i]);
    while (info_of(server).clients != 0)
        echo(server);
    CHECK_EQUAL(info_of(server).memory_bytes, 0);
    before = open_descriptors();
    for (int i = 0; i < 200; i++) {
        struct nr_packet_io *one = client_with(16, 2048);

        connect_to(one, server);
        nr_io_close(one);
    }
    while (open_descriptors() != before) /* the last may have left before it was ready here */
        echo(server);
    CHECK_EQUAL(info_of(server).misbehaved + info_of(server).refused_protocol, 0);
    nr_io_close(server);
}

static void test_a_client_outlives_its_server(void)
{
    struct nr_packet_io *client = client_with(64, 2048);

    while (client->counters.last_unreachable != -ENOENT)
        idle(client);
    for (int i = 0; i < 5; i++) {
        struct nr_packet_io *server = listen_at(0);

        connect_to(client, server);
        round_trip(client, server, 3000, 2);
        nr_io_close(server);
        while (state_of(client) != NR_VRING_DOWN)
            idle(client);
    }
    nr_io_close(client);
}

/* ---- Two processes ---- */

static void serve_asleep(uint32_t clients)
{
    int error;
    struct nr_packet_io *server = listen_at(clients);
    struct nr_waiter *waiter = nr_waiter_open(&server, 1, &error);

    for (;;)
        if (echo(server) == 0)
            nr_waiter_wait(waiter, NR_WAIT_FOREVER);
}

static pid_t start_server(void)
{
    pid_t child = fork();

    if (child == 0) {
        alarm(120); /* should the parent die */
        serve_asleep(4);
    }
    CHECK(child > 0);
    return child;
}

static void kill_child(pid_t child)
{
    CHECK_EQUAL(kill(child, SIGKILL), 0);
    CHECK_EQUAL(waitpid(child, NULL, 0), child);
}

/* Sleeps without a time limit until an answer has come: a wake-up that is lost hangs the test. */
static void ask_asleep(struct nr_packet_io *client, struct nr_waiter *waiter, uint32_t length)
{
    static uint8_t payload[NR_MAX_DATAGRAM];
    struct nr_rx rx[BURST];

    while (state_of(client) != NR_VRING_READY) {
        nr_waiter_wait(waiter, NR_WAIT_FOREVER);
        (void)nr_io_receive_burst(client, rx, BURST);
    }
    CHECK_EQUAL(nr_io_send_burst(client, &(struct nr_tx){.data = payload, .length = (uint16_t)length}, 1), 1);
    while (nr_io_receive_burst(client, rx, BURST) == 0) {
        if (state_of(client) != NR_VRING_READY)
            return;
        nr_waiter_wait(waiter, NR_WAIT_FOREVER);
    }
}

static void test_no_wake_up_is_lost(void)
{
    pid_t child = start_server();
    struct nr_packet_io *client = client_with(64, 2048);
    int error;
    struct nr_waiter *waiter = nr_waiter_open(&client, 1, &error);

    for (uint32_t i = 0; i < 20000; i++)
        ask_asleep(client, waiter, i % 64);
    CHECK_EQUAL(client->counters.received, 20000);
    nr_waiter_close(waiter);
    nr_io_close(client);
    kill_child(child);
}

static void test_a_client_goes_on_when_its_server_is_killed(void)
{
    pid_t child = start_server();
    struct nr_packet_io *client = client_with(64, 2048);
    int error;
    struct nr_waiter *waiter = nr_waiter_open(&client, 1, &error);
    struct nr_vring_info info;

    for (uint64_t i = 0; i < 5; i++) {
        do {
            ask_asleep(client, waiter, 100);
            nr_vring_info(client, &info);
        } while (info.connections <= i || client->counters.received < 50 * (i + 1));
        kill_child(child);
        child = start_server();
    }
    nr_waiter_close(waiter);
    nr_io_close(client);
    kill_child(child);
}

static void test_a_server_goes_on_when_clients_are_killed(void)
{
    struct nr_packet_io *server = listen_at(4), *other = client_with(64, 2048);
    uint32_t before;

    connect_to(other, server);
    while (info_of(server).clients != 1) /* both ends have what they keep */
        echo(server);
    before = open_descriptors();
    for (int i = 0; i < 20; i++) {
        uint64_t received = server->counters.received;
        pid_t child = fork();

        if (child == 0) {
            static uint8_t payload[5000];
            struct nr_rx rx[BURST];
            struct nr_packet_io *client = client_with(64, 2048);

            alarm(60);
            for (;;) {
                if (state_of(client) == NR_VRING_READY)
                    nr_io_send_burst(client, &(struct nr_tx){.data = payload, .length = sizeof(payload)}, 1);
                nr_io_receive_burst(client, rx, BURST);
            }
        }
        while (server->counters.received < received + 200)
            echo(server);
        kill_child(child);
        while (info_of(server).clients != 1)
            echo(server);
        round_trip(other, server, 1000, 9);
    }
    CHECK_EQUAL(open_descriptors(), before);
    CHECK_EQUAL(info_of(server).misbehaved, 0);
    nr_io_close(other);
    nr_io_close(server);
}

/* ---- Clients that break the rules ---- */

#define RAW_SIZE 64u
#define RAW_BYTES (1u << 20)

struct raw {
    int socket;
    int memory_fd, event_fd;
    uint8_t *memory;
};

static struct raw raw_open(bool sealed)
{
    struct raw raw = {.event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strcpy(address.sun_path, path);
    raw.socket = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK_EQUAL(connect(raw.socket, (struct sockaddr *)&address, sizeof(address)), 0);
    raw.memory_fd = memfd_create("raw", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQUAL(ftruncate(raw.memory_fd, RAW_BYTES), 0);
    if (sealed)
        CHECK_EQUAL(fcntl(raw.memory_fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    raw.memory = mmap(NULL, RAW_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, raw.memory_fd, 0);
    CHECK(raw.memory != MAP_FAILED);
    return raw;
}

static void raw_close(struct raw *raw)
{
    munmap(raw->memory, RAW_BYTES);
    close(raw->memory_fd);
    close(raw->event_fd);
    close(raw->socket);
}

static void raw_bytes(struct raw *raw, const void *bytes, size_t size, int fd)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = (void *)bytes, .iov_len = size};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    (void)!sendmsg(raw->socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static uint64_t random_state;

static uint64_t next_random(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void damage(void *bytes, size_t size)
{
    static const uint8_t edges[] = {0, 1, 2, 0x7f, 0x80, 0xff};

    ((uint8_t *)bytes)[next_random() % size] = next_random() % 2 ? edges[next_random() % sizeof(edges)] : (uint8_t)next_random();
}

static void raw_message(struct raw *raw, uint32_t request, const void *payload, uint32_t size, int fd, bool hurt)
{
    struct nr_vhost_message message = {.request = request, .flags = NR_VHOST_VERSION, .size = size};
    uint32_t bytes = NR_VHOST_HEADER + size;

    memcpy(&message.payload, payload, size);
    if (hurt) {
        switch (next_random() % 4) {
        case 0:
            fd = fd < 0 ? raw->memory_fd : next_random() % 2 ? raw->socket : -1;
            break;
        case 1:
            bytes = (uint32_t)(next_random() % sizeof(message));
            break;
        default:
            for (uint64_t i = next_random() % 3 + 1; i > 0; i--)
                damage(&message, bytes);
        }
    }
    raw_bytes(raw, &message, bytes, fd);
}

/* A right conversation, but that message number `hurt` is damaged and number `twice` said twice; none when they are none's. */
static void raw_converse(struct raw *raw, int hurt, int twice)
{
    struct nr_vhost_hello hello = {.magic = NR_VHOST_MAGIC, .version = NR_VHOST_HELLO_VERSION};
    const uint64_t features = NR_VIRTIO_VERSION_1 | NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_IN_ORDER;
    const struct nr_vhost_memory table = {.regions = 1, .guest_address = 4096, .size = RAW_BYTES, .user_address = 8192};
    int at = 0;

    for (uint32_t i = 0; i < 16; i++)
        hello.identity[i] = (uint8_t)next_random();
    if (hurt == at)
        damage(&hello, 8);
    raw_bytes(raw, &hello, sizeof(hello), -1);
#define SAY(request, payload, size, fd)                                                                                            \
    do {                                                                                                                           \
        at++;                                                                                                                      \
        for (int times = twice == at ? 2 : 1; times > 0; times--)                                                                  \
            raw_message(raw, request, payload, size, fd, hurt == at);                                                              \
    } while (0)
    SAY(NR_VHOST_SET_OWNER, "", 0, -1);
    SAY(NR_VHOST_GET_FEATURES, "", 0, -1);
    SAY(NR_VHOST_SET_FEATURES, &features, 8, -1);
    SAY(NR_VHOST_SET_MEM_TABLE, &table, sizeof(table), raw->memory_fd);
    for (uint32_t i = 0; i < NR_VHOST_RINGS; i++) {
        const struct nr_vhost_ring size = {.index = i, .value = RAW_SIZE}, base = {.index = i};
        const uint64_t number = i;
        const struct nr_vhost_address address = {
            .index = i, .descriptors = 8192 + i * 8192, .available = 8192 + i * 8192 + 2048, .used = 8192 + i * 8192 + 4096};

        SAY(NR_VHOST_SET_VRING_NUM, &size, sizeof(size), -1);
        SAY(NR_VHOST_SET_VRING_BASE, &base, sizeof(base), -1);
        SAY(NR_VHOST_SET_VRING_ADDR, &address, sizeof(address), -1);
        SAY(NR_VHOST_SET_VRING_CALL, &number, 8, raw->event_fd);
        SAY(NR_VHOST_SET_VRING_KICK, &number, 8, raw->event_fd);
    }
#undef SAY
}

/* Rings of a client that keeps to the rules, as far as the tests need: each descriptor once, buffers of 2 KB. */
struct ring {
    struct vring_desc *desc;
    struct vring_avail *avail;
    struct vring_used *used;
    uint8_t *buffer; /* of descriptor 0 */
};

static struct ring raw_ring(const struct raw *raw, uint32_t index)
{
    uint8_t *at = raw->memory + index * 8192;

    return (struct ring){.desc = (struct vring_desc *)at,
                         .avail = (struct vring_avail *)(at + 2048),
                         .used = (struct vring_used *)(at + 4096),
                         .buffer = raw->memory + 65536 + index * RAW_SIZE * 2048};
}

static uint16_t raw_used(const struct raw *raw, uint32_t index)
{
    return __atomic_load_n(&raw_ring(raw, index).used->idx, __ATOMIC_ACQUIRE);
}

static void raw_offer(const struct raw *raw, uint32_t index, uint16_t entry, uint32_t length, uint16_t flags)
{
    struct ring ring = raw_ring(raw, index);

    ring.desc[entry] =
        (struct vring_desc){.addr = 4096 + (uint64_t)(ring.buffer - raw->memory) + entry * 2048u, .len = length, .flags = flags};
    ring.avail->ring[entry] = entry;
    __atomic_store_n(&ring.avail->idx, (uint16_t)(entry + 1), __ATOMIC_RELEASE);
}

/* Sends `bytes` in entry `entry`, as its answer says that frames are to look. */
static void raw_say(const struct raw *raw, const struct nr_vhost_answer *answer, uint16_t entry, const char *bytes)
{
    uint8_t *at = raw_ring(raw, NR_VHOST_TX).buffer + entry * 2048u;
    uint32_t length = (uint32_t)strlen(bytes);
    struct nr_link link;

    nr_link_prepare(&link, &answer->client, &answer->server);
    nr_link_write(&link, at, length, 0);
    memcpy(at + NR_LINK_PREFIX, bytes, length);
    raw_offer(raw, NR_VHOST_TX, entry, NR_LINK_PREFIX + length, 0);
}

/* A client with this identity and its rings, all of its receive buffers offered. */
static struct raw raw_join(struct nr_packet_io *server, uint64_t identity, struct nr_vhost_answer *answer)
{
    const uint64_t before = info_of(server).connected;
    struct raw raw = raw_open(true);

    random_state = identity;
    raw_converse(&raw, -1, -1);
    while (info_of(server).connected == before)
        echo(server);
    CHECK_EQUAL(recv(raw.socket, answer, sizeof(*answer), MSG_WAITALL), sizeof(*answer));
    CHECK_EQUAL(answer->status, 0);
    for (uint16_t i = 0; i < RAW_SIZE; i++)
        raw_offer(&raw, NR_VHOST_RX, i, 2048, VRING_DESC_F_WRITE);
    return raw;
}

static struct nr_peer hear_from(struct nr_packet_io *server, const char *bytes)
{
    struct nr_rx rx[BURST];
    uint32_t count;

    while ((count = nr_io_receive_burst(server, rx, BURST)) == 0)
        ;
    CHECK_EQUAL(count, 1);
    CHECK_EQUAL(rx[0].length, strlen(bytes));
    CHECK_EQUAL(memcmp(rx[0].data, bytes, rx[0].length), 0);
    return rx[0].peer;
}

static void answer_to(struct nr_packet_io *server, const struct nr_peer *peer, const char *bytes)
{
    struct nr_tx tx = {.peer = *peer, .data = (const uint8_t *)bytes, .length = (uint16_t)strlen(bytes)};

    CHECK_EQUAL(nr_io_send_burst(server, &tx, 1), 1);
}

static void expect_hung_up(const struct raw *raw)
{
    uint8_t bytes[256];
    ssize_t length;

    while ((length = recv(raw->socket, bytes, sizeof(bytes), 0)) > 0)
        ;
    CHECK_EQUAL(length, 0);
}

/* A client that lost its connection comes again before the server has noticed: what it had is let go of. */
static void test_a_client_that_comes_again_replaces_itself(void)
{
    struct nr_packet_io *server = listen_at(8), *other = client_with(64, 2048);
    struct nr_vhost_answer answer;
    struct raw old, again;

    connect_to(other, server);
    while (info_of(server).clients != 1)
        echo(server);
    uint64_t memory = info_of(server).memory_bytes;
    uint32_t before = open_descriptors();

    old = raw_join(server, 7, &answer);
    raw_say(&old, &answer, 0, "first");
    struct nr_peer first = hear_from(server, "first");
    again = raw_join(server, 7, &answer);
    CHECK_EQUAL(info_of(server).clients, 2);
    CHECK_EQUAL(info_of(server).memory_bytes, memory + RAW_BYTES);
    expect_hung_up(&old);
    raw_say(&old, &answer, 1, "from beyond");
    raw_say(&again, &answer, 0, "second");
    struct nr_peer second = hear_from(server, "second");
    CHECK(memcmp(first.bytes + 4, second.bytes + 4, 16) == 0 && !nr_peer_equal(&first, &second));
    answer_to(server, &first, "for the first");
    CHECK_EQUAL(server->counters.unreachable, 1);
    answer_to(server, &second, "for the second");
    CHECK_EQUAL(raw_used(&old, NR_VHOST_RX), 0);
    CHECK_EQUAL(raw_used(&again, NR_VHOST_RX), 1);
    CHECK_EQUAL(memcmp(raw_ring(&again, NR_VHOST_RX).buffer + NR_LINK_PREFIX, "for the second", 14), 0);
    round_trip(other, server, 3000, 1);
    raw_close(&old);
    raw_close(&again);
    while (info_of(server).clients != 1)
        echo(server);

    /* The same when it had not come further than its hello. */
    old = raw_open(true);
    random_state = 9;
    struct nr_vhost_hello hello = {.magic = NR_VHOST_MAGIC, .version = NR_VHOST_HELLO_VERSION};
    for (uint32_t i = 0; i < 16; i++)
        hello.identity[i] = (uint8_t)next_random();
    raw_bytes(&old, &hello, sizeof(hello), -1);
    while (recv(old.socket, &answer, sizeof(answer), MSG_DONTWAIT) < 0)
        echo(server);
    again = raw_join(server, 9, &answer);
    expect_hung_up(&old);
    CHECK_EQUAL(info_of(server).clients, 2);
    raw_close(&old);
    raw_close(&again);
    while (info_of(server).clients != 1 || open_descriptors() != before)
        echo(server);
    CHECK_EQUAL(info_of(server).memory_bytes, memory);
    CHECK_EQUAL(info_of(server).misbehaved + info_of(server).refused_protocol, 0);
    nr_io_close(other);
    nr_io_close(server);
}

/* ---- Memory that faults ---- */

/* Where this process, being the server, has the client's memory. */
static uint8_t *server_mapping(const struct raw *raw)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    unsigned long start, inode;
    uint8_t *found = NULL;
    struct stat status;
    char line[512];

    CHECK(maps != NULL && fstat(raw->memory_fd, &status) == 0);
    while (fgets(line, sizeof(line), maps) != NULL)
        if (sscanf(line, "%lx-%*x %*s %*x %*x:%*x %lu", &start, &inode) == 2 && inode == status.st_ino &&
            (uint8_t *)start != raw->memory) {
            CHECK(found == NULL);
            found = (uint8_t *)start; /* NOLINT: an address is what the line says */
        }
    fclose(maps);
    CHECK(found != NULL);
    return found;
}

/* From `from` on the server's mapping has no pages any more, and none can be had: what it meets when the host has none to give. */
static void take_pages_away(const struct raw *raw, uint32_t from)
{
    int fd = memfd_create("gone", MFD_CLOEXEC);

    CHECK(fd >= 0 && ftruncate(fd, RAW_BYTES) == 0);
    CHECK(mmap(server_mapping(raw) + from, RAW_BYTES - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, from) !=
          MAP_FAILED);
    CHECK_EQUAL(ftruncate(fd, 0), 0);
    close(fd);
}

enum touch { POLLING, COPYING_IN, COPYING_OUT, ARMING, TOUCHES };

static void test_memory_that_faults_costs_its_client_only(void)
{
    struct nr_packet_io *server = listen_at(8), *other = client_with(64, 2048);

    connect_to(other, server);
    while (info_of(server).clients != 1)
        echo(server);
    uint64_t memory = info_of(server).memory_bytes;
    for (enum touch touch = POLLING; touch < TOUCHES; touch++) {
        struct nr_vhost_answer answer;
        struct raw raw = raw_join(server, 11 + touch, &answer);
        uint64_t faults = info_of(server).faults;

        raw_say(&raw, &answer, 0, "before");
        struct nr_peer peer = hear_from(server, "before");
        switch (touch) {
        case COPYING_IN: /* the rings stay */
            raw_say(&raw, &answer, 1, "what nobody reads");
            take_pages_away(&raw, 65536);
            break;
        case COPYING_OUT:
            take_pages_away(&raw, 65536);
            answer_to(server, &peer, "into nowhere");
            break;
        case ARMING:
            take_pages_away(&raw, 0);
            nr_io_arm(server);
            nr_io_disarm(server);
            break;
        default:
            take_pages_away(&raw, 0);
        }
        while (info_of(server).clients != 1)
            echo(server);
        CHECK(info_of(server).faults > faults);
        CHECK_EQUAL(info_of(server).misbehaved, touch + 1);
        CHECK_EQUAL(info_of(server).memory_bytes, memory);
        expect_hung_up(&raw);
        raw_close(&raw);
        round_trip(other, server, 4000, touch);
    }
    CHECK_EQUAL(server->counters.receive_errors, 1); /* the frame of zeros that COPYING_IN found */
    nr_io_close(other);
    nr_io_close(server);
}

static void leave_with_42(int signal)
{
    (void)signal;
    _exit(42);
}

static void leave_with_43(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    (void)context;
    _exit(info->si_code == BUS_ADRERR ? 43 : 1);
}

/* What becomes of a process with this handler that listens, and then touches memory of its own that has gone. */
static int fault_of_its_own(const struct sigaction *action)
{
    pid_t child = fork();
    int status;

    if (child == 0) {
        int fd = memfd_create("own", MFD_CLOEXEC);

        CHECK_EQUAL(sigaction(SIGBUS, action, NULL), 0);
        listen_at(2);
        CHECK_EQUAL(ftruncate(fd, 4096), 0);
        volatile uint8_t *own = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        CHECK_EQUAL(ftruncate(fd, 0), 0);
        own[0] = 1;
        _exit(0);
    }
    CHECK_EQUAL(waitpid(child, &status, 0), child);
    return status;
}

/* Must come before this process has listened: the handler is installed once. */
static void test_other_faults_go_to_who_was_there_before(void)
{
    int status = fault_of_its_own(&(struct sigaction){.sa_handler = leave_with_42});

    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    status = fault_of_its_own(&(struct sigaction){.sa_sigaction = leave_with_43, .sa_flags = SA_SIGINFO});
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 43);
    status = fault_of_its_own(&(struct sigaction){.sa_handler = SIG_DFL});
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    status = fault_of_its_own(&(struct sigaction){.sa_handler = SIG_IGN});
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
}

/* ---- No descriptors left ---- */

/* From now on `spare` more can be had. */
static struct rlimit leave_descriptors(uint32_t spare)
{
    struct rlimit before, tight;
    int fd[8], next;

    CHECK_EQUAL(getrlimit(RLIMIT_NOFILE, &before), 0);
    for (uint32_t i = 0; i < spare; i++)
        CHECK((fd[i] = dup(STDERR_FILENO)) >= 0);
    CHECK((next = dup(STDERR_FILENO)) >= 0); /* the first that cannot: all below are taken */
    close(next);
    for (uint32_t i = 0; i < spare; i++)
        close(fd[i]);
    tight = before;
    tight.rlim_cur = (rlim_t)next;
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &tight), 0);
    return before;
}

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void test_without_descriptors_the_others_are_served_and_nobody_spins(void)
{
    enum { PAUSES = 3 };
    struct nr_packet_io *server = listen_at(8), *other = client_with(64, 2048);
    int error;
    struct nr_waiter *waiter = nr_waiter_open(&server, 1, &error);

    connect_to(other, server);
    while (info_of(server).clients != 1)
        echo(server);
    CHECK_EQUAL(info_of(server).starved, 0);
    struct raw raw = raw_open(true); /* stands before the door */
    struct rlimit before = leave_descriptors(0);
    while (info_of(server).starved == 0)
        round_trip(other, server, 100, 1);

    uint64_t starved = info_of(server).starved, start = now_ns();
    uint32_t waits = 0;
    while (info_of(server).starved < starved + PAUSES) {
        nr_waiter_wait(waiter, NR_WAIT_FOREVER);
        echo(server);
        waits++;
    }
    CHECK(waits <= 4 * PAUSES); /* each time one wake-up by the timer and one by who stands before the door */
    CHECK(now_ns() - start >= (PAUSES - 1) * 100000000u);
    start = now_ns();
    starved = info_of(server).starved;
    while (now_ns() - start < 100000000u) /* nor when it is polled */
        round_trip(other, server, 5000, 2);
    CHECK(info_of(server).starved <= starved + 1 + (now_ns() - start) / 100000000u);

    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    raw_converse(&raw, -1, -1);
    while (info_of(server).clients != 2) {
        nr_waiter_wait(waiter, NR_WAIT_FOREVER);
        echo(server);
    }
    raw_close(&raw);
    while (info_of(server).clients != 1)
        echo(server);
    CHECK_EQUAL(info_of(server).refused_protocol + info_of(server).misbehaved, 0);

    /* Its connection gets the last descriptor, its memory none. It has to come again. */
    raw = raw_open(true);
    before = leave_descriptors(1);
    raw_converse(&raw, -1, -1);
    while (info_of(server).refused_protocol == 0)
        round_trip(other, server, 100, 3);
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &before), 0);
    raw_close(&raw);
    struct nr_vhost_answer answer;
    raw = raw_join(server, 21, &answer);
    CHECK_EQUAL(info_of(server).clients, 2);
    raw_close(&raw);
    nr_waiter_close(waiter);
    nr_io_close(other);
    nr_io_close(server);
}

static void test_only_memory_that_stays_is_taken(void)
{
    struct nr_packet_io *server = listen_at(2);
    struct raw raw = raw_open(false);

    raw_converse(&raw, -1, -1);
    while (info_of(server).refused_protocol != 1)
        echo(server);
    raw_close(&raw);
    raw = raw_open(true);
    raw_converse(&raw, -1, -1);
    while (info_of(server).connected != 1)
        echo(server);
    CHECK_EQUAL(fallocate(raw.memory_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, RAW_BYTES), 0);
    for (int i = 0; i < 1000; i++)
        echo(server);
    CHECK_EQUAL(info_of(server).clients, 1);
    raw_close(&raw);
    while (info_of(server).clients != 0)
        echo(server);
    CHECK_EQUAL(info_of(server).misbehaved, 0);
    nr_io_close(server);
}

static void test_broken_conversations_hurt_nobody_else(void)
{
    struct nr_packet_io *server = listen_at(8), *other = client_with(64, 2048);
    uint32_t before;

    connect_to(other, server);
    while (info_of(server).clients != 1) /* both ends have what they keep */
        echo(server);
    before = open_descriptors();
    for (uint64_t seed = 1; seed <= 1500; seed++) {
        random_state = seed * 0x9e3779b97f4a7c15u;
        struct raw raw = raw_open(true);

        raw_converse(&raw, (int)(seed % 15), seed % 7 == 0 ? (int)(next_random() % 15) : -1);
        shutdown(raw.socket, SHUT_WR); /* what waits for more has no more */
        for (int i = 0; i < 200; i++)
            echo(server);
        raw_close(&raw);
        if (seed % 50 == 0)
            round_trip(other, server, 500, (uint32_t)seed);
    }
    while (info_of(server).clients != 1 || open_descriptors() != before)
        echo(server);
    CHECK(info_of(server).refused_protocol > 500);
    nr_io_close(other);
    nr_io_close(server);
}

/* Rings that are right at first, then random bytes over them and over descriptors. */
static void scribble(uint64_t seed)
{
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    for (;;) {
        struct raw raw = raw_open(true);

        raw_converse(&raw, -1, -1);
        for (int ring = 0; ring < 2; ring++) {
            struct vring_desc *desc = (struct vring_desc *)(raw.memory + ring * 8192);

            for (uint32_t i = 0; i < RAW_SIZE; i++)
                desc[i] = (struct vring_desc){.addr = 4096 + 65536 + i * 2048, .len = 2048, .flags = ring == 0 ? 2 : 0};
        }
        for (int i = 0; i < 3000; i++) {
            uint8_t *ring = raw.memory + next_random() % 2 * 8192;
            uint64_t value = next_random();

            switch (value % 8) {
            case 0:
                memcpy(ring + next_random() % 1024 / 8 * 8, &value, 8);
                break;
            case 1:
                ((uint8_t *)ring)[2048 + next_random() % 140] = (uint8_t)(value >> 8);
                break;
            case 2:
                ((struct vring_desc *)ring)[next_random() % RAW_SIZE].len = (uint32_t)(value >> 16);
                break;
            case 3:
                raw.memory[next_random() % RAW_BYTES] = (uint8_t)(value >> 8);
                break;
            default: /* goes on as it should, so that the server does too */
                __atomic_fetch_add((uint16_t *)(ring + 2050), 1, __ATOMIC_RELEASE);
            }
        }
        raw_close(&raw);
    }
}

static void test_scribbling_hurts_nobody_else(void)
{
    struct nr_packet_io *server = listen_at(8), *other = client_with(64, 2048);
    uint32_t before;

    connect_to(other, server);
    while (info_of(server).clients != 1) /* both ends have what they keep */
        echo(server);
    before = open_descriptors();
    for (uint64_t seed = 1; seed <= 6; seed++) {
        uint64_t taken = info_of(server).misbehaved, end = now_ns() + 500000000u;
        pid_t child = fork();

        if (child == 0) {
            alarm(60);
            scribble(seed);
        }
        while (now_ns() < end || info_of(server).misbehaved < taken + 5)
            round_trip(other, server, 700, (uint32_t)seed);
        kill_child(child);
        while (info_of(server).clients != 1)
            echo(server);
    }
    while (open_descriptors() != before)
        echo(server);
    CHECK_EQUAL(info_of(server).faults, 0);
    nr_io_close(other);
    nr_io_close(server);
}

static void test_the_silent_are_hung_up_on(void)
{
    struct nr_packet_io *server = listen_at(2);
    struct raw silent = raw_open(true);
    int error;
    struct nr_waiter *waiter = nr_waiter_open(&server, 1, &error);

    while (info_of(server).refused_protocol == 0) {
        nr_waiter_wait(waiter, NR_WAIT_FOREVER);
        echo(server);
    }
    raw_close(&silent);
    nr_waiter_close(waiter);
    nr_io_close(server);
}

static void test_another_version_is_told_so(void)
{
    struct nr_packet_io *server = listen_at(2);
    struct raw raw = raw_open(true);
    struct nr_vhost_answer answer;

    raw_bytes(&raw, &(struct nr_vhost_hello){.magic = NR_VHOST_MAGIC, .version = 9}, sizeof(struct nr_vhost_hello), -1);
    while (recv(raw.socket, &answer, sizeof(answer), MSG_DONTWAIT) < 0)
        echo(server);
    CHECK_EQUAL(answer.magic, NR_VHOST_MAGIC);
    CHECK_EQUAL(answer.status, -EPROTONOSUPPORT);
    raw_close(&raw);
    nr_io_close(server);
}

static void test_socket_paths(void)
{
    struct nr_vhost_config config = {.path = path};
    struct nr_packet_io *server = listen_at(2);
    struct stat status;
    int error;
    pid_t child;

    CHECK_EQUAL(stat(path, &status), 0);
    CHECK_EQUAL(status.st_mode, S_IFSOCK | 0660);
    CHECK(nr_vhost_listen(&config, &error) == NULL && error == -EADDRINUSE);
    CHECK_EQUAL(stat(path, &status), 0);
    nr_io_close(server);
    CHECK_EQUAL(stat(path, &status), -1);

    child = fork(); /* one that dies leaves its socket behind */
    if (child == 0) {
        listen_at(2);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    CHECK_EQUAL(stat(path, &status), 0);
    server = listen_at(2);
    CHECK_EQUAL(unlink(path), 0); /* and what is not its own stays */
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    close(fd);
    nr_io_close(server);
    CHECK_EQUAL(stat(path, &status), 0);
    CHECK(nr_vhost_listen(&config, &error) == NULL && error == -EADDRINUSE);
    CHECK_EQUAL(unlink(path), 0);

    config.path = "relative";
    CHECK(nr_vhost_listen(&config, &error) == NULL && error == -EINVAL);
    config.path = "/nowhere/at/all";
    CHECK(nr_vhost_listen(&config, &error) == NULL && error == -ENOENT);
    char longer[200];
    memset(longer, 'a', sizeof(longer));
    longer[0] = '/', longer[199] = 0;
    config.path = longer;
    CHECK(nr_vhost_listen(&config, &error) == NULL && error == -ENAMETOOLONG);
}

int main(void)
{
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof(path), "%s/socket", folder);
    test_other_faults_go_to_who_was_there_before();
    test_socket_paths();
    test_every_length_comes_back();
    test_frames_may_end_where_the_memory_ends();
    test_windows_come_back_in_order();
    test_a_full_ring_drops_and_unknown_peers_too();
    test_a_crowd_up_to_the_limit_and_no_further();
    test_a_client_outlives_its_server();
    test_no_wake_up_is_lost();
    test_a_client_goes_on_when_its_server_is_killed();
    test_a_server_goes_on_when_clients_are_killed();
    test_a_client_that_comes_again_replaces_itself();
    test_only_memory_that_stays_is_taken();
    test_memory_that_faults_costs_its_client_only();
    test_without_descriptors_the_others_are_served_and_nobody_spins();
    test_broken_conversations_hurt_nobody_else();
    test_scribbling_hurts_nobody_else();
    test_the_silent_are_hung_up_on();
    test_another_version_is_told_so();
    unlink(path);
    rmdir(folder);
    return 0;
}
