#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "check.h"
#include "io/udp.h"
#include "testing/forwarder.h"
#include "waiting.h"

#define SECOND 1000000000ull

static uint64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * SECOND + (uint64_t)now.tv_nsec;
}

/* One client, the forwarder in a thread, one server. */
struct setting {
    struct nr_packet_io *server, *client;
    struct nr_forwarder *forwarder;
    const char *host;
    pthread_t thread;
};

static void *run(void *argument)
{
    struct setting *s = argument;

    CHECK_EQUAL(nr_forwarder_run(s->forwarder), 0);
    return NULL;
}

static struct nr_packet_io *client_of(struct setting *s)
{
    int error;
    struct nr_packet_io *io =
        nr_udp_connect(&(struct nr_udp_config){.host = s->host, .port = nr_forwarder_port(s->forwarder)}, &error);

    CHECK(io != NULL);
    return io;
}

static void set_up(struct setting *s, const char *host, struct nr_forwarder_config config)
{
    struct nr_udp_info info;
    int error = 1;

    s->host = host;
    s->server = nr_udp_listen(&(struct nr_udp_config){.host = host}, &error);
    CHECK(s->server != NULL);
    nr_udp_info(s->server, &info);
    config.listen_host = config.server_host = host;
    config.server_port = nr_peer_port(&info.local);
    s->forwarder = nr_forwarder_open(&config, &error);
    CHECK_EQUAL(error, 0);
    CHECK(s->forwarder != NULL);
    s->client = client_of(s);
    CHECK_EQUAL(pthread_create(&s->thread, NULL, run, s), 0);
}

static void tear_down(struct setting *s)
{
    nr_forwarder_stop(s->forwarder);
    pthread_join(s->thread, NULL);
    nr_forwarder_close(s->forwarder);
    nr_io_close(s->client);
    nr_io_close(s->server);
}

static struct nr_forwarder_counters counters_of(struct setting *s, int direction)
{
    struct nr_forwarder_counters counters;

    nr_forwarder_counters(s->forwarder, direction, &counters);
    return counters;
}

static void send_number(struct nr_packet_io *io, const struct nr_peer *peer, uint32_t number)
{
    uint8_t bytes[64] = {0};
    struct nr_tx tx = {.data = bytes, .length = sizeof(bytes)};

    memcpy(bytes, &number, 4);
    if (peer != NULL)
        tx.peer = *peer;
    CHECK_EQUAL(nr_io_send_burst(io, &tx, 1), 1);
}

/* The number in the next datagram, UINT32_MAX when none comes in time. */
static uint32_t receive_number(struct nr_packet_io *io, struct nr_peer *peer, uint64_t timeout_ns)
{
    uint64_t end = now_ns() + timeout_ns;
    struct nr_rx rx;
    uint32_t number;

    while (nr_io_receive_burst(io, &rx, 1) == 0) {
        uint64_t now = now_ns();

        if (now >= end)
            return UINT32_MAX;
        wait_on(io, end - now);
    }
    CHECK_EQUAL(rx.length, 64);
    memcpy(&number, rx.data, 4);
    if (peer != NULL)
        *peer = rx.peer;
    return number;
}

/* Until the forwarder has dealt with `received` datagrams and holds none. */
static struct nr_forwarder_counters settled(struct setting *s, int direction, uint64_t received)
{
    uint64_t end = now_ns() + 10 * SECOND;

    for (;;) {
        struct nr_forwarder_counters c = counters_of(s, direction);

        if (c.received >= received && c.received + c.duplicated == c.forwarded + c.lost + c.overflowed + c.refused)
            return c;
        CHECK(now_ns() < end);
        wait_on(s->client, 100000);
    }
}

/* Sends [0, count) in steps that no socket buffer overflows, and notes in order what the server gets. Returns how many. */
static uint32_t exchange(struct setting *s, uint32_t count, uint32_t *order, uint32_t room)
{
    uint32_t got = 0;

    for (uint32_t i = 0; i < count; i++) {
        send_number(s->client, NULL, i);
        if (i % 32 == 31 || i + 1 == count) {
            uint64_t end = now_ns() + 10 * SECOND;

            while (counters_of(s, NR_FORWARDER_TO_SERVER).received < i + 1)
                CHECK(now_ns() < end);
        }
        for (uint32_t number; (number = receive_number(s->server, NULL, 0)) != UINT32_MAX;) {
            CHECK(got < room);
            order[got++] = number;
        }
    }
    uint64_t forwarded = settled(s, NR_FORWARDER_TO_SERVER, count).forwarded;
    while (got < forwarded) {
        CHECK(got < room);
        order[got] = receive_number(s->server, NULL, 5 * SECOND);
        CHECK(order[got++] != UINT32_MAX);
    }
    CHECK_EQUAL(receive_number(s->server, NULL, 0), UINT32_MAX);
    return got;
}

#define ROUNDS 5000
static uint32_t order_a[2 * ROUNDS], order_b[2 * ROUNDS];

static void test_clean_path(const char *host)
{
    struct setting s;
    struct nr_peer peer;

    set_up(&s, host, (struct nr_forwarder_config){.seed = 1});
    CHECK_EQUAL(exchange(&s, ROUNDS, order_a, ROUNDS), ROUNDS);
    for (uint32_t i = 0; i < ROUNDS; i++)
        CHECK_EQUAL(order_a[i], i);
    /* And back, to the client that asked. */
    send_number(s.client, NULL, 7);
    CHECK_EQUAL(receive_number(s.server, &peer, 5 * SECOND), 7);
    for (uint32_t i = 0; i < 100; i++) {
        send_number(s.server, &peer, i);
        CHECK_EQUAL(receive_number(s.client, NULL, 5 * SECOND), i);
    }
    CHECK_EQUAL(settled(&s, NR_FORWARDER_TO_CLIENT, 100).forwarded_bytes, 6400);
    CHECK_EQUAL(nr_forwarder_clients(s.forwarder), 1);
    tear_down(&s);
}

static void test_loss(void)
{
    struct setting s;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 2, .faults = {{.loss = 0.1}}});
    uint32_t got = exchange(&s, ROUNDS, order_a, ROUNDS);
    struct nr_forwarder_counters c = counters_of(&s, NR_FORWARDER_TO_SERVER);
    CHECK_EQUAL(c.lost, ROUNDS - got);
    CHECK(c.lost > ROUNDS * 8 / 100 && c.lost < ROUNDS * 12 / 100);
    for (uint32_t i = 1; i < got; i++)
        CHECK(order_a[i] > order_a[i - 1]);
    tear_down(&s);
}

/* Faults change while it runs: what is sent after set() returns meets the new ones. */
static void test_partition_and_heal(void)
{
    struct setting s;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 3});
    for (uint32_t i = 0; i < 50; i++) {
        CHECK_EQUAL(nr_forwarder_set(s.forwarder, NR_FORWARDER_BOTH, &(struct nr_forwarder_faults){.loss = 1}), 0);
        send_number(s.client, NULL, 1000 + i);
        CHECK_EQUAL(settled(&s, NR_FORWARDER_TO_SERVER, 2 * i + 1).lost, i + 1);
        CHECK_EQUAL(nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &(struct nr_forwarder_faults){0}), 0);
        send_number(s.client, NULL, i);
        CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), i);
    }
    CHECK_EQUAL(nr_forwarder_set(s.forwarder, 3, &(struct nr_forwarder_faults){0}), -EINVAL);
    CHECK_EQUAL(nr_forwarder_set(s.forwarder, 0, &(struct nr_forwarder_faults){.loss = 1.5}), -EINVAL);
    CHECK_EQUAL(nr_forwarder_set(s.forwarder, 0, &(struct nr_forwarder_faults){.loss = __builtin_nan("")}), -EINVAL);
    tear_down(&s);
}

static void test_duplication(void)
{
    struct setting s;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 4, .faults = {{.duplicate = 0.25}}});
    uint32_t got = exchange(&s, ROUNDS, order_a, 2 * ROUNDS);
    struct nr_forwarder_counters c = counters_of(&s, NR_FORWARDER_TO_SERVER);
    CHECK_EQUAL(got, ROUNDS + c.duplicated);
    CHECK(c.duplicated > ROUNDS * 22 / 100 && c.duplicated < ROUNDS * 28 / 100);
    tear_down(&s);
}

/* A held datagram goes after exactly reorder_depth others, and at the timeout when none come. */
static void test_reordering(void)
{
    struct nr_forwarder_faults faults = {.reorder = 0.2, .reorder_depth = 3, .reorder_timeout_ns = 100000000};
    struct setting s;
    uint32_t late = 0;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 5, .faults = {faults}});
    CHECK_EQUAL(exchange(&s, ROUNDS, order_a, ROUNDS), ROUNDS);
    struct nr_forwarder_counters c = counters_of(&s, NR_FORWARDER_TO_SERVER);
    CHECK(c.reordered > ROUNDS * 17 / 100 && c.reordered < ROUNDS * 23 / 100);
    memset(order_b, 0, sizeof(order_b));
    for (uint32_t i = 0; i < ROUNDS; i++) {
        CHECK(order_a[i] < ROUNDS && order_b[order_a[i]]++ == 0); /* each once */
        late += i > 0 && order_a[i] < order_a[i - 1];
    }
    CHECK(late > ROUNDS / 20);
    faults.reorder = 1;
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &faults);
    uint64_t start = now_ns();
    send_number(s.client, NULL, 9);
    CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), 9);
    CHECK(now_ns() - start >= 100000000);
    tear_down(&s);
}

/* The same seed gives the same arrivals through sockets and threads. */
static void test_seed_reproduces(void)
{
    struct nr_forwarder_faults faults = {.loss = 0.1, .duplicate = 0.1, .reorder = 0.1, .reorder_timeout_ns = SECOND};
    uint32_t count[2];

    for (int i = 0; i < 2; i++) {
        struct setting s;

        set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 6, .faults = {faults}});
        count[i] = exchange(&s, ROUNDS, i == 0 ? order_a : order_b, 2 * ROUNDS);
        tear_down(&s);
    }
    CHECK_EQUAL(count[0], count[1]);
    CHECK(memcmp(order_a, order_b, count[0] * sizeof(*order_a)) == 0);
}

static void test_decisions(void)
{
    struct nr_forwarder_faults many = {.loss = 0.5, .duplicate = 0.5, .reorder = 0.5, .corrupt = 0.5, .jitter_ns = 1000};
    struct nr_forwarder_faults fewer = {.loss = 0, .duplicate = 0.5, .reorder = 0.5, .corrupt = 1};
    struct nr_fault_stream a, b, other, back, reseeded;
    uint32_t same_other = 0, same_back = 0, same_reseeded = 0;

    nr_fault_stream_init(&a, 42, 0, NR_FORWARDER_TO_SERVER);
    nr_fault_stream_init(&b, 42, 0, NR_FORWARDER_TO_SERVER);
    nr_fault_stream_init(&other, 42, 1, NR_FORWARDER_TO_SERVER);
    nr_fault_stream_init(&back, 42, 0, NR_FORWARDER_TO_CLIENT);
    nr_fault_stream_init(&reseeded, 43, 0, NR_FORWARDER_TO_SERVER);
    for (int i = 0; i < 10000; i++) {
        struct nr_fault x = nr_fault_next(&a, &many, 100), y = nr_fault_next(&b, &fewer, 100);
        struct nr_fault z = nr_fault_next(&other, &many, 100), w = nr_fault_next(&back, &many, 100);

        CHECK(!y.lost && y.corrupted);
        CHECK(x.duplicated == y.duplicated && x.reordered == y.reordered);
        CHECK(x.corrupt_bits != 0 && x.corrupt_offset < 100 && x.corrupt_offset == y.corrupt_offset);
        CHECK(x.jitter_ns[0] < 1000 && x.jitter_ns[1] < 1000 && y.jitter_ns[0] == 0);
        same_other += x.lost == z.lost;
        same_back += x.lost == w.lost;
        same_reseeded += x.lost == nr_fault_next(&reseeded, &many, 100).lost;
    }
    CHECK(same_other > 4700 && same_other < 5300);
    CHECK(same_back > 4700 && same_back < 5300);
    CHECK(same_reseeded > 4700 && same_reseeded < 5300);
    CHECK(!nr_fault_next(&a, &fewer, 0).corrupted); /* no byte to change */
}

static void test_corruption(void)
{
    struct setting s;
    struct nr_rx rx;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 8, .faults = {{.corrupt = 1}}});
    for (uint32_t i = 0; i < 200; i++) {
        uint8_t sent[300];
        uint32_t changed = 0;

        memset(sent, (int)i, sizeof(sent));
        struct nr_tx tx = {.data = sent, .length = sizeof(sent)};
        nr_io_send_burst(s.client, &tx, 1);
        uint64_t end = now_ns() + 5 * SECOND;
        while (nr_io_receive_burst(s.server, &rx, 1) == 0) {
            CHECK(now_ns() < end);
            wait_on(s.server, SECOND);
        }
        CHECK_EQUAL(rx.length, sizeof(sent));
        for (uint32_t b = 0; b < sizeof(sent); b++)
            changed += rx.data[b] != sent[b];
        CHECK_EQUAL(changed, 1);
    }
    CHECK_EQUAL(counters_of(&s, NR_FORWARDER_TO_SERVER).corrupted, 200);
    tear_down(&s);
}

static void test_delay(void)
{
    struct setting s;
    struct nr_forwarder_faults faults = {.delay_ns = 20000000};

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 9, .faults = {faults}});
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < 20; i++)
        send_number(s.client, NULL, i);
    for (uint32_t i = 0; i < 20; i++) {
        CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), i);
        if (i == 0)
            CHECK(now_ns() - start >= 20000000);
    }
    faults.jitter_ns = 5000000;
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &faults);
    bool seen[20] = {false};
    for (uint32_t i = 0; i < 20; i++)
        send_number(s.client, NULL, i);
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t number = receive_number(s.server, NULL, 5 * SECOND);

        CHECK(number < 20 && !seen[number]);
        seen[number] = true;
    }
    tear_down(&s);
}

/* 64 kB/s: 32 datagrams of 64 bytes take 32 ms, and no more than the queue's bytes wait. */
static void test_rate_limit(void)
{
    struct nr_forwarder_faults faults = {.rate = 64000, .rate_queue_bytes = 2048};
    struct setting s;
    uint32_t got = 0;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 10, .faults = {faults}});
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < 30; i++)
        send_number(s.client, NULL, i);
    for (uint32_t i = 0; i < 30; i++)
        CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), i);
    CHECK(now_ns() - start >= 28000000);
    for (uint32_t i = 0; i < 400; i++)
        send_number(s.client, NULL, i);
    struct nr_forwarder_counters c = settled(&s, NR_FORWARDER_TO_SERVER, 430);
    while (receive_number(s.server, NULL, 0) != UINT32_MAX)
        got++;
    CHECK(c.overflowed > 0);
    CHECK_EQUAL(got + c.overflowed, 400);
    tear_down(&s);
}

static void test_queue_is_bounded(void)
{
    struct setting s;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 11, .queue_datagrams = 16, .faults = {{.delay_ns = 300000000}}});
    for (uint32_t i = 0; i < 64; i++)
        send_number(s.client, NULL, i);
    struct nr_forwarder_counters c = settled(&s, NR_FORWARDER_TO_SERVER, 64);
    CHECK_EQUAL(c.overflowed + c.forwarded, 64);
    CHECK(c.overflowed > 0);
    CHECK(c.forwarded >= 16);
    tear_down(&s);
}

/* The one silent longest loses its place, with what was held for it; when it speaks again it is a new client. */
static void test_clients_are_replaced(void)
{
    struct setting s;
    struct nr_packet_io *more[3];
    struct nr_peer peers[3], again;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 12, .max_clients = 2});
    for (uint32_t i = 0; i < 3; i++) {
        more[i] = client_of(&s);
        send_number(more[i], NULL, i);
        CHECK_EQUAL(receive_number(s.server, &peers[i], 5 * SECOND), i);
    }
    CHECK_EQUAL(nr_forwarder_clients(s.forwarder), 3);
    send_number(more[1], NULL, 11);
    CHECK_EQUAL(receive_number(s.server, &again, 5 * SECOND), 11);
    CHECK(nr_peer_equal(&again, &peers[1]));
    for (uint32_t i = 1; i < 3; i++) {
        send_number(s.server, &peers[i], i);
        CHECK_EQUAL(receive_number(more[i], NULL, 5 * SECOND), i);
    }
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER,
                     &(struct nr_forwarder_faults){.reorder = 1, .reorder_timeout_ns = 3000 * SECOND});
    send_number(more[1], NULL, 99); /* held for long */
    send_number(more[2], NULL, 99);
    uint64_t end = now_ns() + 5 * SECOND;
    while (counters_of(&s, NR_FORWARDER_TO_SERVER).reordered < 2)
        CHECK(now_ns() < end);
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &(struct nr_forwarder_faults){.delay_ns = 1000000});
    send_number(more[0], NULL, 20);
    CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), 20);
    send_number(s.client, NULL, 21);
    CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), 21);
    CHECK_EQUAL(nr_forwarder_clients(s.forwarder), 5);
    CHECK_EQUAL(settled(&s, NR_FORWARDER_TO_SERVER, 8).overflowed, 2);
    /* Nor does what was delayed for one leave under the name of the client in its place. */
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &(struct nr_forwarder_faults){.delay_ns = 400000000});
    send_number(s.client, NULL, 30);
    end = now_ns() + 5 * SECOND;
    while (counters_of(&s, NR_FORWARDER_TO_SERVER).received < 9)
        CHECK(now_ns() < end);
    nr_forwarder_set(s.forwarder, NR_FORWARDER_TO_SERVER, &(struct nr_forwarder_faults){0});
    for (uint32_t i = 1; i < 3; i++) {
        send_number(more[i], NULL, 30 + i);
        CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), 30 + i);
    }
    CHECK_EQUAL(settled(&s, NR_FORWARDER_TO_SERVER, 11).overflowed, 3);
    CHECK_EQUAL(receive_number(s.server, NULL, 0), UINT32_MAX);
    for (uint32_t i = 0; i < 3; i++)
        nr_io_close(more[i]);
    tear_down(&s);
}

/* A server that goes away and comes back on its port is found again. */
static void test_server_restarts(void)
{
    struct setting s;
    struct nr_udp_info info;
    int error;

    set_up(&s, "127.0.0.1", (struct nr_forwarder_config){.seed = 13});
    nr_udp_info(s.server, &info);
    nr_io_close(s.server);
    for (uint32_t i = 0; i < 10; i++)
        send_number(s.client, NULL, i);
    settled(&s, NR_FORWARDER_TO_SERVER, 10);
    s.server = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1", .port = nr_peer_port(&info.local)}, &error);
    CHECK(s.server != NULL);
    send_number(s.client, NULL, 77);
    CHECK_EQUAL(receive_number(s.server, NULL, 5 * SECOND), 77);
    tear_down(&s);
}

static void test_bad_settings(void)
{
    int error = 0;
    struct nr_forwarder_config good = {.listen_host = "127.0.0.1", .server_host = "127.0.0.1", .server_port = 9, .max_clients = 1};
    struct nr_forwarder_config bad = good;

    bad.faults[1].corrupt = -0.1;
    CHECK(nr_forwarder_open(&bad, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    bad = good;
    bad.server_port = 0;
    CHECK(nr_forwarder_open(&bad, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    bad = good;
    bad.max_clients = NR_FORWARDER_CLIENTS + 1;
    CHECK(nr_forwarder_open(&bad, &error) == NULL);
    CHECK_EQUAL(error, -EINVAL);
    struct nr_forwarder *first = nr_forwarder_open(&good, &error);
    CHECK(first != NULL);
    bad = good;
    bad.listen_port = nr_forwarder_port(first);
    CHECK(nr_forwarder_open(&bad, &error) == NULL);
    CHECK_EQUAL(error, -EADDRINUSE);
    /* Stopped before it ran: it ends at once. */
    nr_forwarder_stop(first);
    CHECK_EQUAL(nr_forwarder_run(first), 0);
    nr_forwarder_close(first);
    nr_forwarder_close(NULL);
}

int main(void)
{
    test_decisions();
    test_bad_settings();
    test_clean_path("127.0.0.1");
    test_clean_path("::1");
    test_loss();
    test_partition_and_heal();
    test_duplication();
    test_reordering();
    test_seed_reproduces();
    test_corruption();
    test_delay();
    test_rate_limit();
    test_queue_is_bounded();
    test_clients_are_replaced();
    test_server_restarts();
    return 0;
}
