/* DPDK ports: one case per process, named by the argument. 77: skipped, for the reason printed. */
#include <errno.h>
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_ring.h>

#include "eal_process.h"
#include "tests/check.h"

#define SKIPPED 77
#define SERVER_PORT 7447
#define CLIENT_PORT 40000

static const uint8_t server_ip4[4] = {10, 0, 0, 2}, client_ip4[4] = {10, 0, 0, 1};
static const uint8_t server_ip6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 2}, client_ip6[16] = {0x20, 0x01, 0x0d, 0xb8, [15] = 1};

/* A bad argument is told in text, nothing is printed, and there is no second try. */
static int test_eal(void)
{
    static const char *const arguments[] = {"test_port", "--no-such-option"};
    static char text[NR_EAL_TEXT];
    int output[2], saved = dup(STDOUT_FILENO), saved_error = dup(STDERR_FILENO);
    char byte;

    CHECK_EQUAL(pipe(output), 0);
    dup2(output[1], STDOUT_FILENO);
    dup2(output[1], STDERR_FILENO);
    int result = nr_eal_start(2, arguments, text);
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    dup2(saved_error, STDERR_FILENO);
    close(output[1]);
    CHECK(result < 0 && result != -EALREADY);
    CHECK(strstr(text, "no-such-option") != NULL);
    CHECK_EQUAL(read(output[0], &byte, 1), 0);
    CHECK_EQUAL(start_eal(NULL, "128", text), -EALREADY);
    CHECK_EQUAL(text[0], 0);
    return 0;
}

/* Frames of net_null are zeros, addressed to the port's MAC of zeros and of no known type. */
static int test_null(void)
{
    enum { ROUNDS = 100000, BURST = 32 };
    static uint8_t bytes[1024];
    struct nr_port_config config = {.device = "net_null0", .udp_port = SERVER_PORT};
    struct nr_port_counters counters;
    struct nr_port_info info;
    struct nr_rx rx[BURST];
    struct nr_tx tx[BURST];
    cpu_set_t before, after;
    char text[256];
    int error;

    CHECK_EQUAL(sched_getaffinity(0, sizeof(before), &before), 0);
    must_start("net_null0,size=64", "128");
    CHECK_EQUAL(sched_getaffinity(0, sizeof(after), &after), 0);
    CHECK(CPU_EQUAL(&before, &after));

    config.device = "net_null7";
    CHECK(nr_port_open(&config, &error, text) == NULL);
    CHECK_EQUAL(error, -ENODEV);
    CHECK(strstr(text, "net_null7") != NULL && strstr(text, "net_null0") != NULL);
    config.device = "net_null0";
    config.descriptors = 65000;
    config.mtu = 9000;
    CHECK(nr_port_open(&config, &error, text) == NULL);
    CHECK_EQUAL(error, -ENOMEM);
    CHECK(strstr(text, "mbufs") != NULL);

    config.descriptors = 0;
    config.mtu = 0;
    memcpy(config.ip4, server_ip4, 4);
    struct nr_packet_io *io = must_open(&config);
    nr_port_info(io, &info);
    CHECK(strcmp(info.driver, "net_null") == 0);
    CHECK_EQUAL(info.mtu, 1500);
    CHECK_EQUAL(nr_io_max_payload(io), 1472);
    CHECK_EQUAL(nr_io_descriptor(io), -1);

    for (int i = 0; i < BURST; i++) {
        tx[i] = (struct nr_tx){.peer = {.bytes = {4, 0, 1, 2, 10, 0, 0, 1}, .length = NR_PEER_LENGTH_IP4}, .data = bytes};
        tx[i].length = sizeof(bytes);
    }
    for (int i = 0; i < ROUNDS; i++) {
        CHECK_EQUAL(nr_io_receive_burst(io, rx, BURST), 0);
        CHECK_EQUAL(nr_io_send_burst(io, tx, BURST), BURST);
    }
    nr_port_counters(io, &counters);
    CHECK_EQUAL(counters.not_ours, (uint64_t)ROUNDS * BURST);
    CHECK_EQUAL(counters.no_mbuf, 0);
    CHECK_EQUAL(io->counters.sent, (uint64_t)ROUNDS * BURST);
    CHECK_EQUAL(io->counters.sent_bytes, (uint64_t)ROUNDS * BURST * sizeof(bytes));
    CHECK_EQUAL(io->counters.send_dropped, 0);
    nr_io_close(io);
    return 0;
}

/* ---- Two ports, each the other's wire ---- */

enum { TOKENS = 4096, SLAB = 1 << 20 };

/* What became of the references to segments. */
struct references {
    uint32_t returned[TOKENS]; /* times each token came back */
    uint64_t all;
};

struct link {
    struct rte_ring *ring[2];     /* to the server, to the client */
    struct nr_packet_io *io[2];   /* server, client */
    struct references references; /* of the server */
    struct nr_peer peer;          /* the server */
};

static uint8_t slab[SLAB] __attribute__((aligned(1 << 12)));

static void came_back(void *context, uint64_t token)
{
    struct references *references = context;

    CHECK(token != NR_TOKEN_NONE && token < TOKENS);
    references->returned[token]++;
    references->all++;
}

static void make_rings(struct link *link)
{
    for (int i = 0; i < 2; i++) {
        link->ring[i] = rte_ring_create(i == 0 ? "to_server" : "to_client", 1024, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
        CHECK(link->ring[i] != NULL);
    }
    /* Both have a MAC of zeros, which the driver will not change, and so the same link-local address: that is test_frame's. */
    for (int i = 0; i < 2; i++)
        CHECK(rte_eth_from_rings(i == 0 ? "server" : "client", &link->ring[i], 1, &link->ring[1 - i], 1, 0) >= 0);
}

static void open_link(struct link *link, const char *server, const char *client, const void *segments)
{
    struct nr_port_config config = {.device = server, .udp_port = SERVER_PORT, .mtu = 9000};

    memcpy(config.ip4, server_ip4, 4);
    memcpy(config.ip6, server_ip6, 16);
    config.sent = came_back;
    config.sent_context = &link->references;
    config.slab = segments;
    config.slab_bytes = segments != NULL ? SLAB : 0;
    link->io[0] = must_open(&config);
    config.slab = NULL;
    config.device = client;
    config.udp_port = CLIENT_PORT;
    memcpy(config.ip4, client_ip4, 4);
    memcpy(config.ip6, client_ip6, 16);
    link->io[1] = must_open(&config);
}

static void send_one(struct nr_packet_io *io, const struct nr_tx *tx)
{
    uint64_t dropped = io->counters.send_dropped;

    CHECK_EQUAL(nr_io_send_burst(io, tx, 1), 1);
    CHECK_EQUAL(io->counters.send_dropped, dropped);
}

static void receive_one(struct nr_packet_io *io, struct nr_rx *rx)
{
    for (int i = 0; i < 1000; i++) {
        if (nr_io_receive_burst(io, rx, 1) == 1)
            return;
    }
    fprintf(stderr, "nothing came\n");
    exit(1);
}

static void fill(uint8_t *bytes, uint32_t length, uint32_t seed)
{
    for (uint32_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)(seed + i * 31 + (i >> 8));
}

/* There and back with payloads of every kind of length. */
static void echo_sizes(struct link *link, const uint8_t *address, uint32_t address_bytes, uint32_t largest)
{
    static uint8_t payload[NR_MAX_DATAGRAM];
    struct nr_port_info info;
    struct nr_rx rx;
    struct nr_tx tx = {.data = payload};

    nr_port_info(link->io[0], &info);
    make_peer(&tx.peer, address, address_bytes, SERVER_PORT, info.mac);
    for (uint32_t length = 0; length <= largest; length += length < 70 ? 1 : length < largest - 400 ? 389 : 1) {
        fill(payload, length, length);
        tx.length = (uint16_t)length;
        send_one(link->io[1], &tx);
        receive_one(link->io[0], &rx);
        CHECK_EQUAL(rx.length, length);
        CHECK_EQUAL(rx.flags, NR_RX_CHECKSUM_VERIFIED);
        CHECK_EQUAL(nr_peer_port(&rx.peer), CLIENT_PORT);

        struct nr_tx back = {.peer = rx.peer, .data = rx.data, .length = (uint16_t)rx.length};
        send_one(link->io[0], &back);
        receive_one(link->io[1], &rx);
        CHECK_EQUAL(rx.length, length);
        CHECK(memcmp(rx.data, payload, length) == 0);
        CHECK(nr_peer_equal(&rx.peer, &tx.peer));
    }
    tx.length = (uint16_t)(largest + 1);
    uint64_t too_long = link->io[1]->counters.send_too_long;
    CHECK_EQUAL(nr_io_send_burst(link->io[1], &tx, 1), 1);
    CHECK_EQUAL(link->io[1]->counters.send_too_long, too_long + 1);
}

/* Segments arrive in order behind the own bytes, and every reference comes back once. */
static void send_segments(struct link *link, const uint8_t *address, uint32_t address_bytes)
{
    struct nr_port_info info;
    uint8_t own[8] = "own byte", whole[NR_MAX_DATAGRAM], mine[NR_TX_SEGMENTS][64];
    uint64_t sent = 0, before = link->references.all;
    struct nr_rx rx;

    nr_port_info(link->io[1], &info);
    memset(&link->references.returned, 0, sizeof(link->references.returned));
    fill(slab, SLAB, 5);
    for (uint32_t round = 0; round < 500; round++) {
        struct nr_tx tx = {.data = own, .length = (uint16_t)(round % 9), .segments = (uint16_t)(round % (NR_TX_SEGMENTS + 1))};
        uint32_t length = tx.length;

        make_peer(&tx.peer, address, address_bytes, CLIENT_PORT, info.mac);
        memcpy(whole, own, length);
        for (uint32_t i = 0; i < tx.segments; i++) {
            struct nr_segment *segment = &tx.segment[i];

            segment->base = slab + (round * 7919 + i * 65537) % (SLAB - 4096);
            segment->length = 1 + (round * 97 + i * 331) % 2200;
            segment->token = (round + i) % 3 == 0 ? NR_TOKEN_NONE : 1 + sent++;
            if (segment->token == NR_TOKEN_NONE) { /* own bytes, the sender's again when send returns */
                segment->length = 1 + segment->length % 50;
                segment->base = memcpy(mine[i], segment->base, segment->length);
            }
            memcpy(whole + length, segment->base, segment->length);
            length += segment->length;
        }
        send_one(link->io[0], &tx);
        memset(mine, 0xee, sizeof(mine));
        receive_one(link->io[1], &rx);
        CHECK_EQUAL(rx.length, length);
        CHECK(memcmp(rx.data, whole, length) == 0);
    }
    CHECK_EQUAL(nr_io_receive_burst(link->io[1], &rx, 1), 0);
    CHECK_EQUAL(nr_io_receive_burst(link->io[0], &rx, 1), 0); /* those that came back after send returned */
    CHECK_EQUAL(link->references.all - before, sent);
    for (uint32_t i = 1; i <= sent; i++)
        CHECK_EQUAL(link->references.returned[i], 1);
}

/* Frames with copied segments between references, which nobody takes: the send pool is empty before the queue is full. What then
 * is dropped gives its references back at once, the rest when it is taken; and all goes on. */
static void empty_send_pool(struct link *link)
{
    enum { SENT = 1000, EACH = 50 };
    struct nr_io_counters *counters = &link->io[0]->counters;
    uint64_t dropped = counters->send_dropped, before = link->references.all, taken = 0;
    struct nr_port_counters port, after;
    struct nr_port_info info;
    struct nr_tx tx[EACH];
    struct nr_rx rx[32];
    uint32_t count;

    nr_port_counters(link->io[0], &port);
    nr_port_info(link->io[1], &info);
    memset(tx, 0, sizeof(tx));
    for (uint32_t i = 0; i < EACH; i++) {
        make_peer(&tx[i].peer, client_ip4, 4, CLIENT_PORT, info.mac);
        tx[i].data = slab;
        tx[i].length = 10;
        tx[i].segments = NR_TX_SEGMENTS;
        for (uint32_t s = 0; s < NR_TX_SEGMENTS; s++)
            tx[i].segment[s] = (struct nr_segment){
                .base = slab + 64 * i, .length = s % 2 == 0 ? 1500 : 30, .token = s % 2 == 0 ? i + 1 : NR_TOKEN_NONE};
    }
    for (uint32_t round = 0; round < SENT / EACH; round++)
        CHECK_EQUAL(nr_io_send_burst(link->io[0], tx, EACH), EACH);
    dropped = counters->send_dropped - dropped;
    nr_port_counters(link->io[0], &after);
    CHECK(dropped > 0 && dropped < SENT && after.no_mbuf - port.no_mbuf >= dropped);
    CHECK_EQUAL(counters->last_send_error, -ENOBUFS);
    CHECK_EQUAL(link->references.all - before, 2 * dropped);
    while ((count = nr_io_receive_burst(link->io[1], rx, 32)) > 0)
        taken += count;
    CHECK_EQUAL(taken, SENT - dropped);
    CHECK_EQUAL(link->references.all - before, 2 * dropped); /* all mbufs are free, and the owner has not called yet */
    CHECK_EQUAL(nr_io_receive_burst(link->io[0], rx, 1), 0);
    CHECK_EQUAL(link->references.all - before, 2 * SENT);
    send_one(link->io[0], tx);
    receive_one(link->io[1], rx);
    CHECK_EQUAL(nr_io_receive_burst(link->io[1], rx, 1), 0);
    CHECK_EQUAL(nr_io_receive_burst(link->io[0], rx, 1), 0);
    CHECK_EQUAL(link->references.all - before, 2 * SENT + 2);
}

/* A full queue drops, counts, and gives the references back; a port closed with frames in its queue does too. */
static void fill_queue(struct link *link)
{
    enum { SENT = 2000 };
    struct nr_io_counters *counters = &link->io[0]->counters;
    uint64_t dropped = counters->send_dropped, sent = counters->sent, before = link->references.all;
    struct nr_port_info info;
    struct nr_tx tx[SENT / 20];

    nr_port_info(link->io[1], &info);
    memset(tx, 0, sizeof(tx));
    for (uint32_t round = 0; round < 20; round++) {
        for (uint32_t i = 0; i < SENT / 20; i++) {
            make_peer(&tx[i].peer, client_ip4, 4, CLIENT_PORT, info.mac);
            tx[i].data = slab;
            tx[i].length = 10;
            tx[i].segments = 1;
            tx[i].segment[0] = (struct nr_segment){.base = slab + 64 * i, .length = 2000, .token = i + 1};
        }
        CHECK_EQUAL(nr_io_send_burst(link->io[0], tx, SENT / 20), SENT / 20);
    }
    CHECK(counters->send_dropped > dropped);
    CHECK_EQUAL(counters->send_dropped - dropped + counters->sent - sent, SENT);
    nr_port_info(link->io[0], &info);
    CHECK_EQUAL(link->references.all - before, info.zero_copy ? counters->send_dropped - dropped : SENT);
    nr_io_close(link->io[0]);
    CHECK_EQUAL(link->references.all - before, SENT);
    nr_io_close(link->io[1]);
}

/* The frame goes to the server as it is; its answer comes back in `answer`, and its length. */
static uint32_t ask(struct link *link, struct rte_mempool *pool, const uint8_t *frame, uint32_t length, uint8_t *answer)
{
    struct rte_mbuf *mbuf = rte_pktmbuf_alloc(pool);
    struct nr_rx rx;
    void *got;

    CHECK(mbuf != NULL);
    memcpy(rte_pktmbuf_append(mbuf, (uint16_t)length), frame, length);
    CHECK_EQUAL(rte_ring_enqueue(link->ring[0], mbuf), 0);
    CHECK_EQUAL(nr_io_receive_burst(link->io[0], &rx, 1), 0);
    if (rte_ring_dequeue(link->ring[1], &got) != 0)
        return 0;
    mbuf = got;
    length = mbuf->data_len;
    memcpy(answer, rte_pktmbuf_mtod(mbuf, uint8_t *), length);
    rte_pktmbuf_free(mbuf);
    return length;
}

static const uint8_t asker_mac[6] = {2, 0, 0, 0, 0, 1};

static uint64_t words(const uint8_t *bytes, uint32_t length)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < length; i++)
        sum += (uint64_t)bytes[i] << (i % 2 == 0 ? 8 : 0);
    return sum;
}

/* The Internet checksum, as it stands in the packet; 0 where one that is in the bytes already is right. */
static uint16_t checksum(uint64_t sum)
{
    while (sum >> 16 != 0)
        sum = (sum & 0xffff) + (sum >> 16);
    return (uint16_t)~sum;
}

/* Of ICMPv6 at frame + 54, with its pseudo-header. */
static uint16_t checksum6(const uint8_t *frame, uint32_t length)
{
    return checksum(words(frame + 22, 32) + length + 58 + words(frame + 54, length));
}

/* Ethernet and IPv6 headers of `length` bytes of ICMPv6 to come at out + 54; its checksum field is filled in. */
static void finish6(uint8_t *out, const uint8_t *to_mac, const uint8_t *from, const uint8_t *to, uint32_t length)
{
    static const uint8_t start[10] = {0x86, 0xdd, 0x60, [8] = 58, [9] = 255};

    memcpy(out, to_mac, 6);
    memcpy(out + 6, asker_mac, 6);
    memcpy(out + 12, start, sizeof(start));
    out[18] = (uint8_t)(length >> 8);
    out[19] = (uint8_t)length;
    memcpy(out + 22, from, 16);
    memcpy(out + 38, to, 16);
    out[56] = out[57] = 0;
    uint16_t sum = checksum6(out, length);
    out[56] = (uint8_t)(sum >> 8);
    out[57] = (uint8_t)sum;
}

static void ask_arp(struct link *link, struct rte_mempool *pool)
{
    uint8_t question[60] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 1};
    uint8_t answer[128];
    struct nr_port_counters counters;

    memcpy(question + 28, client_ip4, 4);
    memcpy(question + 38, server_ip4, 4);
    CHECK_EQUAL(ask(link, pool, question, sizeof(question), answer), 42);
    CHECK(memcmp(answer, question + 6, 6) == 0 && memcmp(answer + 28, server_ip4, 4) == 0 && answer[21] == 2);
    question[41] ^= 1;
    CHECK_EQUAL(ask(link, pool, question, sizeof(question), answer), 0);
    nr_port_counters(link->io[0], &counters);
    CHECK_EQUAL(counters.arp, 1);
}

/* Somebody asks who has the address, or whether anybody has (from no address, which all are told then). */
static void ask_neighbour(struct link *link, struct rte_mempool *pool, const uint8_t *from, const uint8_t *told)
{
    static const uint8_t group_mac[6] = {0x33, 0x33, 0xff, 0, 0, 2}, none[16];
    static const uint8_t group[16] = {0xff, 0x02, [11] = 1, [12] = 0xff, [15] = 2};
    bool is_probe = memcmp(from, none, 16) == 0;
    uint32_t length = is_probe ? 24 : 32;
    uint8_t question[86] = {[54] = 135}, answer[128];
    struct nr_port_counters before, after;

    nr_port_counters(link->io[0], &before);
    memcpy(question + 62, server_ip6, 16);
    if (!is_probe) {
        question[78] = question[79] = 1; /* its own MAC */
        memcpy(question + 80, asker_mac, 6);
    }
    finish6(question, group_mac, from, group, length);
    CHECK_EQUAL(ask(link, pool, question, 54 + length, answer), 86);
    CHECK(memcmp(answer + 22, server_ip6, 16) == 0 && memcmp(answer + 38, told, 16) == 0);
    CHECK(answer[54] == 136 && answer[58] == (is_probe ? 0x20 : 0x60) && answer[21] == 255);
    CHECK(memcmp(answer + 62, server_ip6, 16) == 0);
    CHECK(answer[78] == 2 && answer[79] == 1 && memcmp(answer + 80, answer + 6, 6) == 0);
    CHECK_EQUAL(checksum6(answer, 32), 0);

    question[77] ^= 1; /* of another address */
    finish6(question, group_mac, from, group, length);
    CHECK_EQUAL(ask(link, pool, question, 54 + length, answer), 0);
    question[77] ^= 1;
    finish6(question, group_mac, from, group, length);
    question[57] ^= 1;
    CHECK_EQUAL(ask(link, pool, question, 54 + length, answer), 0);
    nr_port_counters(link->io[0], &after);
    CHECK_EQUAL(after.neighbour - before.neighbour, 1);
    CHECK_EQUAL(after.bad_checksum - before.bad_checksum, 1);
}

/* Echo requests of `size` bytes of data come back whole, of both families, jumbo ones too. */
static void ask_ping(struct link *link, struct rte_mempool *pool, uint32_t size)
{
    static uint8_t question[9014], answer[9100];
    static const uint8_t start[24] = {8, 0, 0x45, [10] = 64, [11] = 1};
    struct nr_port_info info;
    uint32_t length = 8 + size;
    uint16_t sum;

    nr_port_info(link->io[0], &info);
    memset(question, 0, sizeof(question));
    memcpy(question, info.mac, 6);
    memcpy(question + 6, asker_mac, 6);
    memcpy(question + 12, start, sizeof(start));
    question[16] = (uint8_t)((20 + length) >> 8);
    question[17] = (uint8_t)(20 + length);
    memcpy(question + 26, client_ip4, 4);
    memcpy(question + 30, server_ip4, 4);
    sum = checksum(words(question + 14, 20));
    question[24] = (uint8_t)(sum >> 8);
    question[25] = (uint8_t)sum;
    question[34] = 8;
    fill(question + 38, 4 + size, size);
    sum = checksum(words(question + 34, length));
    question[36] = (uint8_t)(sum >> 8);
    question[37] = (uint8_t)sum;
    CHECK_EQUAL(ask(link, pool, question, 34 + length, answer), 34 + length);
    CHECK(memcmp(answer, asker_mac, 6) == 0 && memcmp(answer + 26, server_ip4, 4) == 0 && memcmp(answer + 30, client_ip4, 4) == 0);
    CHECK(answer[34] == 0 && memcmp(answer + 38, question + 38, 4 + size) == 0);
    CHECK_EQUAL(checksum(words(answer + 14, 20)), 0);
    CHECK_EQUAL(checksum(words(answer + 34, length)), 0);

    question[54] = 128;
    question[55] = 0;
    fill(question + 58, 4 + size, size + 1);
    finish6(question, info.mac, client_ip6, server_ip6, length);
    CHECK_EQUAL(ask(link, pool, question, 54 + length, answer), 54 + length);
    CHECK(memcmp(answer, asker_mac, 6) == 0 && memcmp(answer + 22, server_ip6, 16) == 0 &&
          memcmp(answer + 38, client_ip6, 16) == 0);
    CHECK(answer[54] == 129 && memcmp(answer + 58, question + 58, 4 + size) == 0);
    CHECK_EQUAL(checksum6(answer, length), 0);
}

static void ask_everything(struct link *link, struct rte_mempool *pool)
{
    static const uint8_t none[16], all_nodes[16] = {0xff, 0x02, [15] = 1};
    struct nr_port_counters before, after;

    ask_arp(link, pool);
    ask_neighbour(link, pool, client_ip6, client_ip6);
    ask_neighbour(link, pool, none, all_nodes);
    nr_port_counters(link->io[0], &before);
    ask_ping(link, pool, 0);
    ask_ping(link, pool, 57);
    ask_ping(link, pool, 9000 - 48);
    nr_port_counters(link->io[0], &after);
    CHECK_EQUAL(after.ping - before.ping, 6);
}

static int test_ring(void)
{
    static struct link link;
    struct nr_port_info info;
    struct nr_port_counters counters;

    must_start(NULL, "128");
    make_rings(&link);
    open_link(&link, "net_ring_server", "net_ring_client", slab);
    nr_port_info(link.io[0], &info);
    CHECK_EQUAL(info.zero_copy, 1);
    CHECK_EQUAL(nr_io_max_payload(link.io[0]), 9000 - 48);
    struct rte_mempool *pool = rte_pktmbuf_pool_create("asker", 63, 0, 0, 9216, SOCKET_ID_ANY);
    CHECK(pool != NULL);

    echo_sizes(&link, server_ip4, 4, 9000 - 28);
    echo_sizes(&link, server_ip6, 16, 9000 - 48);
    send_segments(&link, client_ip4, 4);
    send_segments(&link, client_ip6, 16);
    nr_port_counters(link.io[0], &counters);
    CHECK(counters.external_segments > 0 && counters.copied_segments > 0);
    CHECK_EQUAL(counters.bad_checksum + counters.bad_length + counters.no_mbuf, 0);
    ask_everything(&link, pool);
    empty_send_pool(&link);
    fill_queue(&link);
    return 0;
}

/* Not a test by itself: echoes on the device of the arguments until a datagram says "end". */
static int serve(const char *vdev, const char *device, uint16_t mtu)
{
    struct nr_port_config config = {.device = device, .udp_port = SERVER_PORT, .mtu = mtu};
    struct nr_rx rx[32];
    struct nr_tx tx[32];
    bool ended = false;

    must_start(vdev, "128");
    memcpy(config.ip4, server_ip4, 4);
    memcpy(config.ip6, server_ip6, 16);
    struct nr_packet_io *io = must_open(&config);
    printf("ready\n");
    fflush(stdout);
    while (!ended) {
        uint32_t count = nr_io_receive_burst(io, rx, 32);

        for (uint32_t i = 0; i < count; i++) {
            tx[i] = (struct nr_tx){.peer = rx[i].peer, .data = rx[i].data, .length = (uint16_t)rx[i].length};
            ended = ended || (rx[i].length == 3 && memcmp(rx[i].data, "end", 3) == 0);
        }
        if (count > 0)
            nr_io_send_burst(io, tx, count);
        else
            sched_yield();
    }
    struct nr_port_counters counters;
    nr_port_counters(io, &counters);
    printf("received %" PRIu64 ", ARP %" PRIu64 ", neighbour %" PRIu64 ", ping %" PRIu64 ", bad checksum %" PRIu64 "\n",
           io->counters.received, counters.arp, counters.neighbour, counters.ping, counters.bad_checksum);
    nr_io_close(io);
    return 0;
}

int main(int argc, char **argv)
{
    const struct {
        const char *name;
        int (*run)(void);
    } cases[] = {{"eal", test_eal}, {"null", test_null}, {"ring", test_ring}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0)
            return cases[i].run();
    }
    if (argc == 5 && strcmp(argv[1], "serve") == 0)
        return serve(argv[2], argv[3], (uint16_t)atoi(argv[4]));
    fprintf(stderr, "which case?\n");
    return 2;
}
