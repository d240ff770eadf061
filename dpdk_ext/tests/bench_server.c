/* What a request costs in the server alone: parse, check, do, answer; no network, answers are thrown away.
 * usage: bench_server [REQUESTS] */
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "engine/random.h"
#include "server_driver.h"

enum { CAPACITY = 100000, ROUNDS = 5 };

static struct driver *driver;
static uint32_t session, handle;
static uint32_t requests[NR_SLOTS];
static uint32_t sequence;
static uint64_t number;
static uint64_t keys[CAPACITY];
static struct nr_random dice;
static struct datagram datagrams[16];

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t cycles(void)
{
#if defined(__x86_64__)
    return __rdtsc();
#else
    return 0;
#endif
}

static uint32_t make_ping(void)
{
    start(&datagrams[0], NR_OP_PING, session, NR_STATELESS_SLOT, 1);
    memset(datagrams[0].bytes + datagrams[0].length, 0, 64);
    datagrams[0].length += 64;
    return 1;
}

static uint32_t make_insert(void)
{
    make_transition(&datagrams[0], session, 0, ++requests[0], sequence++, handle, number++);
    return 1;
}

/* What the same 48 transitions cost in one request. */
static uint32_t make_inserts(void)
{
    struct datagram *datagram = &datagrams[0];

    start_insert(datagram, session, 0, ++requests[0], sequence++, 48);
    for (uint16_t i = 0; i < 48; i++) {
        add_small_step(datagram, handle, number);
        add_item(datagram, 0, handle, i, number - 1, number - 1, 2, 1.0);
        number++;
    }
    return 1;
}

/* The draw carries the settlement of the one before, as the client's do. */
static uint32_t make_sample_of(uint32_t count, uint16_t wanted)
{
    struct nr_wire_sample sample = {.table = 0, .count = count, .settles = 1};
    struct nr_wire_settle settle = {.slot = 1, .settle = NR_SETTLE_RELEASE | NR_SETTLE_COMMIT, .request = requests[1]};

    start(&datagrams[0], NR_OP_SAMPLE, session, 1, ++requests[1]);
    add(&datagrams[0], &sample, sizeof(sample));
    add(&datagrams[0], &settle, sizeof(settle));
    head(&datagrams[0])->fragments = wanted;
    return 1;
}

static uint32_t make_sample_32(void)
{
    return make_sample_of(32, 2);
}

static uint32_t make_sample_256(void)
{
    return make_sample_of(256, 14);
}

static uint32_t make_update_of(uint32_t parts)
{
    uint32_t each = 512 / parts;

    requests[2]++;
    for (uint32_t part = 0; part < parts; part++) {
        uint32_t first = part * each, count = part + 1 < parts ? each : 512 - first;
        struct nr_wire_update update = {.table = 0, .count = 512, .first = (uint16_t)first};

        start(&datagrams[part], NR_OP_UPDATE, session, 2, requests[2]);
        head(&datagrams[part])->fragment = (uint16_t)part;
        head(&datagrams[part])->fragments = (uint16_t)parts;
        add(&datagrams[part], &update, sizeof(update));
        for (uint32_t i = 0; i < count; i++) {
            struct nr_wire_priority priority = {.key = keys[nr_random_below(&dice, CAPACITY)],
                                                .priority = (double)(1 + nr_random_below(&dice, 1000)) * 0.01};
            add(&datagrams[part], &priority, sizeof(priority));
        }
    }
    return parts;
}

static uint32_t make_update_ethernet(void)
{
    return make_update_of(6);
}

static uint32_t make_update_jumbo(void)
{
    return make_update_of(1);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* Best and median of ROUNDS; making the datagrams is not counted, nor the clock's own cost. The outbox flushes when full. */
static void measure(const char *name, uint32_t (*make)(void), uint64_t count)
{
    double ns[ROUNDS], ticks[ROUNDS];
    uint64_t in = 0, out = driver->sent;

    for (int round = 0; round < ROUNDS; round++) {
        uint64_t sum = 0, clock_sum = 0, began = clock_ns(), tsc = cycles();
        for (int i = 0; i < 1000; i++)
            (void)cycles();
        uint64_t clock_cost = (cycles() - tsc) / 1000;

        began = clock_ns(), tsc = cycles();
        for (uint64_t i = 0; i < count; i++) {
            uint32_t parts = make();
            for (uint32_t part = 0; part < parts; part++) {
                head(&datagrams[part])->length = (uint16_t)(datagrams[part].length - sizeof(struct nr_header));
                struct nr_rx rx = {.data = datagrams[part].bytes, .length = datagrams[part].length, .peer = driver_peer(1)};
                driver->now += 1000;
                uint64_t from = cycles();
                nr_server_receive(driver->server, &rx, driver->now, &driver->outbox);
                sum += cycles() - from;
                clock_sum += clock_cost;
                in++;
            }
        }
        double per_tick = (double)(clock_ns() - began) / (double)(cycles() - tsc);
        driver_flush(&driver->outbox);
        ticks[round] = (double)(sum - clock_sum) / (double)count;
        ns[round] = ticks[round] * per_tick;
    }
    qsort(ns, ROUNDS, sizeof(*ns), compare);
    qsort(ticks, ROUNDS, sizeof(*ticks), compare);
    printf("%-34s %9.0f %9.0f %11.0f %11.2f %12.2f\n", name, ns[0], ns[ROUNDS / 2], ticks[ROUNDS / 2],
           (double)in / (double)(count * ROUNDS), (double)(driver->sent - out) / (double)(count * ROUNDS));
}

int main(int argc, char **argv)
{
    uint64_t count = argc > 1 ? strtoull(argv[1], NULL, 0) : 20000;
    struct datagram hello;

    driver = driver_open(64, NR_MAX_DATAGRAM, CAPACITY);
    nr_random_seed(&dice, 3);
    make_hello(&hello, 1, NR_ETHERNET_DATAGRAM, NR_ETHERNET_DATAGRAM);
    post(driver, &hello, 1);
    session = ((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(struct nr_wire_welcome)))->session;
    handle = open_stream(driver, 1, session, 1, 0, 1);
    for (uint32_t i = 0; i <= CAPACITY; i++) {
        make_insert();
        expect(driver, post(driver, &datagrams[0], 1), NR_OK);
        if (i > 0)
            memcpy(&keys[i - 1], answer_result(driver, 0, 9), 8);
    }
    driver->deaf = true;

    printf("%-34s %9s %9s %11s %11s %12s\n", "request (100,000 items of 32 B steps)", "best ns", "median", "cycles", "datagrams",
           "answers");
    measure("ping of 112 B", make_ping, count);
    measure("update of 512 (1472 B datagrams)", make_update_ethernet, count / 20 + 1);
    measure("update of 512 (one datagram)", make_update_jumbo, count / 20 + 1);
    measure("sample of 32 (72 B rows)", make_sample_32, count / 4 + 1);
    measure("sample of 256 (72 B rows)", make_sample_256, count / 20 + 1);
    measure("insert of one transition", make_insert, count);
    measure("insert of 48 transitions", make_inserts, count / 40 + 1);
    driver_close(driver);
    return 0;
}
