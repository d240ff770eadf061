/* A million datagrams, half of them damaged, some repeated and late: the server neither fails nor grows, and its and the engine's
 * invariants hold. usage: test_server_fuzz [SEED [DATAGRAMS]] */
#include <unistd.h>

#include "engine/random.h"
#include "server_driver.h"

enum { PEERS = 12, SESSIONS = 8, LATE = 64, STREAMS = 2 };

struct player {
    uint32_t session;
    uint32_t request[NR_SLOTS];
    uint32_t sequence;
    uint32_t handle[STREAMS]; /* of store 0, of store 1 */
    uint64_t step[STREAMS], item[STREAMS];
    uint32_t publication;
    uint32_t store; /* of the streams asked for last */
    uint64_t nonce;
};

static struct nr_random dice;
static struct player players[PEERS];
static uint64_t keys[1024];

static uint32_t below(uint32_t bound)
{
    return (uint32_t)nr_random_below(&dice, bound);
}

static bool one_in(uint32_t n)
{
    return below(n) == 0;
}

/* A new request of the slot, mostly; else the present one again. */
static uint32_t request_of(struct player *player, uint8_t slot)
{
    return one_in(8) ? player->request[slot] : ++player->request[slot];
}

static void make_insert(struct player *player, struct datagram *datagram, uint8_t slot)
{
    uint32_t which = below(8) == 0, total = which ? DRIVER_BIG_STEP : DRIVER_STEP, steps = 1 + below(which ? 2 : 6);
    uint16_t items = (uint16_t)below(steps + 1), index = 0;
    uint8_t bytes[DRIVER_BIG_STEP];

    memset(bytes, (int)below(256), sizeof(bytes));
    start_insert(datagram, player->session, slot, request_of(player, slot), player->sequence, items);
    for (uint32_t i = 0; i < steps; i++) {
        bool part = which && one_in(3);
        uint32_t length = part ? 1 + below(600) : total;
        uint32_t offset = part && one_in(2) ? below(total - length) : 0;

        add_step(datagram, player->handle[which], player->step[which], total, offset, bytes, length);
        if (!part || one_in(4))
            player->step[which]++;
        if (index < items)
            add_item(datagram, which, player->handle[which], index++, player->item[which]++,
                     player->step[which] - (player->step[which] > 1 ? 1 + below(2) : 0), (uint16_t)(1 + below(2)), below(5) * 0.5);
    }
    if (one_in(4)) {
        head(datagram)->fragments = (uint16_t)(1 + below(3));
        head(datagram)->fragment = (uint16_t)below(head(datagram)->fragments);
    }
}

static void make_update(struct player *player, struct datagram *datagram, uint8_t slot)
{
    uint32_t count = 1 + below(60);
    struct nr_wire_update update = {.table = below(2), .count = (uint16_t)count};

    start(datagram, NR_OP_UPDATE, player->session, slot, request_of(player, slot));
    add(datagram, &update, sizeof(update));
    for (uint32_t i = 0; i < count; i++) {
        struct nr_wire_priority priority = {.key = keys[below(1024)], .priority = below(9) * 0.25};
        add(datagram, &priority, sizeof(priority));
    }
}

static void make_delete(struct player *player, struct datagram *datagram, uint8_t slot)
{
    uint16_t count = (uint16_t)(1 + below(8));
    struct nr_wire_update update = {.table = below(2), .count = count};

    start(datagram, NR_OP_DELETE, player->session, slot, request_of(player, slot));
    add(datagram, &update, sizeof(update));
    for (uint32_t i = 0; i < count; i++)
        add(datagram, &keys[below(1024)], sizeof(keys[0]));
}

/* Limits that hold everybody back are soon changed again. */
static void make_admin(struct player *player, struct datagram *datagram, uint8_t slot)
{
    struct nr_wire_admin admin = {.kind = one_in(8) ? NR_ADMIN_RESET : NR_ADMIN_CONFIGURE, .table = below(2)};
    struct nr_limits_change change = {.which = below(NR_LIMIT_ALL + 2),
                                      .max_sampled = below(3),
                                      .min_size = below(5),
                                      .samples_per_insert = one_in(2) ? 0 : below(6) * 0.5,
                                      .error_buffer = below(100),
                                      .size = below(4),
                                      .max_age_ns = below(2) * 1000000000ull,
                                      .versions = below(3)};

    start(datagram, NR_OP_ADMIN, player->session, slot, request_of(player, slot));
    add(datagram, &admin, sizeof(admin));
    if (admin.kind == NR_ADMIN_CONFIGURE)
        add(datagram, &change, sizeof(change));
}

/* GETs of keys that may be there, and histograms. */
static void make_look(struct player *player, struct datagram *datagram, uint8_t slot)
{
    if (one_in(3)) {
        struct nr_wire_histogram histogram = {.table = below(3)};

        start(datagram, NR_OP_HISTOGRAM, player->session, slot, request_of(player, slot));
        add(datagram, &histogram, sizeof(histogram));
        return;
    }
    struct nr_wire_get get = {.table = below(3), .count = below(NR_GET_KEYS + 2)};

    start(datagram, NR_OP_GET, player->session, slot, request_of(player, slot));
    add(datagram, &get, sizeof(get));
    for (uint32_t i = 0; i < get.count; i++)
        add(datagram, &keys[below(1024)], sizeof(keys[0]));
    head(datagram)->fragments = (uint16_t)below(5);
}

static void make_parameters(struct player *player, struct datagram *datagram, uint8_t slot)
{
    if (one_in(2)) {
        struct nr_wire_fetch fetch = {.set = below(3)};

        start(datagram, NR_OP_FETCH, player->session, slot, request_of(player, slot));
        add(datagram, &fetch, sizeof(fetch));
        head(datagram)->fragments = (uint16_t)below(5);
        return;
    }
    struct nr_wire_publish publish = {.set = below(3),
                                      .publication = player->publication += one_in(3),
                                      .bytes = one_in(8) ? below(2000) : 800,
                                      .offset = below(2) * 400,
                                      .expect = UINT64_MAX};
    uint8_t bytes[400] = {0};
    start(datagram, NR_OP_PUBLISH, player->session, slot, request_of(player, slot));
    add(datagram, &publish, sizeof(publish));
    add(datagram, bytes, one_in(8) ? 0 : 400);
}

static void make_stateless(struct player *player, struct datagram *datagram)
{
    static const uint8_t settles[] = {1, 2, 3, 4, 5};
    uint8_t slot = (uint8_t)below(NR_SLOTS);

    switch (below(64)) {
    case 0:
        start(datagram, NR_OP_BYE, player->session, NR_STATELESS_SLOT, 1);
        break;
    case 1: {
        struct nr_wire_close close_request = {.count = 2};
        start(datagram, NR_OP_CLOSE, player->session, NR_STATELESS_SLOT, 1);
        add(datagram, &close_request, sizeof(close_request));
        add(datagram, player->handle, sizeof(player->handle));
        break;
    }
    case 2:
    case 3:
        start(datagram, NR_OP_PING, player->session, NR_STATELESS_SLOT, 1);
        memset(datagram->bytes + datagram->length, 1, 500);
        datagram->length += below(500);
        break;
    default:
        make_settle(datagram, player->session, slot, player->request[slot], settles[below(5)]);
    }
}

static void make_streams(struct player *player, struct datagram *datagram, uint8_t slot)
{
    struct nr_wire_streams streams = {.store = player->store = player->handle[0] == 0 ? 0 : below(2), .count = 1};
    uint8_t id[16] = {(uint8_t)(one_in(8) ? below(PEERS) : (uint32_t)(player - players))};

    start(datagram, NR_OP_STREAMS, player->session, slot, request_of(player, slot));
    add(datagram, &streams, sizeof(streams));
    add(datagram, id, sizeof(id));
}

/* Something that this player could say now. */
static void make(struct player *player, struct datagram *datagram)
{
    uint8_t slot = (uint8_t)below(NR_SLOTS);

    if (player->session == 0 || one_in(400)) {
        if (player->session == 0 && one_in(3))
            player->nonce = below(1000);
        make_hello(datagram, player->nonce, NR_MIN_DATAGRAM + 8 * below(30), one_in(2) ? 1472 : 8972);
        return;
    }
    switch (player->handle[0] == 0 && one_in(2) ? 0 : below(16)) {
    case 0:
        make_streams(player, datagram, slot);
        break;
    case 1:
    case 2:
    case 3:
    case 4:
        make_insert(player, datagram, slot);
        break;
    case 5:
    case 6:
    case 7:
        make_sample(datagram, player->session, slot, request_of(player, slot), below(8) == 0, 1 + below(one_in(4) ? 256 : 20),
                    (uint16_t)below(6));
        break;
    case 8:
        start(datagram, NR_OP_READ, player->session, slot, player->request[slot]);
        head(datagram)->offset = below(6) * 1408;
        head(datagram)->fragments = (uint16_t)below(20);
        break;
    case 9:
        make_update(player, datagram, slot);
        break;
    case 10:
        make_parameters(player, datagram, slot);
        break;
    case 12:
        if (one_in(4))
            make_admin(player, datagram, slot);
        else
            make_delete(player, datagram, slot);
        break;
    case 11:
        start(datagram, one_in(2) ? NR_OP_SPEC : NR_OP_TABLES, player->session, slot, request_of(player, slot));
        break;
    case 13:
        make_look(player, datagram, slot);
        break;
    default:
        make_stateless(player, datagram);
    }
}

static void damage(struct datagram *datagram)
{
    static const uint64_t favourites[] = {0, 1, 7, 8, 15, 16, 63, 64, 65, 255, 256, 0x7fffffff, 0x80000000, UINT32_MAX, UINT64_MAX};

    for (uint32_t times = 1 + below(3); times > 0; times--) {
        uint32_t width = 1u << below(4), at;

        switch (below(8)) {
        case 0:
            datagram->length = below(datagram->length + 1);
            break;
        case 1:
            at = below(64);
            if (datagram->length + at <= NR_MAX_DATAGRAM)
                datagram->length += at;
            break;
        case 2:
        case 3:
            at = below(100 < datagram->length ? 100 : datagram->length + 1);
            if (at < datagram->length)
                datagram->bytes[at] ^= (uint8_t)(1u << below(8));
            break;
        case 4: /* all of it */
            for (uint32_t i = sizeof(struct nr_header); i < datagram->length; i++)
                datagram->bytes[i] = (uint8_t)below(256);
            break;
        default: /* a field behind the magic, version and session, where the interesting ones are */
            at = 12 + below(120) / width * width;
            if (at + width <= datagram->length)
                memcpy(datagram->bytes + at, &favourites[below(15)], width);
        }
    }
}

static void learn(struct driver *driver, struct player *player)
{
    for (uint32_t i = 0; i < driver->count; i++) {
        const struct nr_header *header = answer_head(driver, i);
        const uint8_t *result = driver->caught[i].datagram.bytes + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state);
        uint32_t length = driver->caught[i].datagram.length;

        CHECK(length == sizeof(*header) + header->length);
        CHECK(header->operation & NR_OP_RESPONSE);
        if (header->status == NR_NO_SESSION && header->session == player->session)
            *player = (struct player){.nonce = player->nonce + 1};
        if (header->status != NR_OK || header->flags & NR_FLAG_DATA)
            continue;
        uint32_t bytes = length - (uint32_t)NR_RESPONSE_OVERHEAD - (uint32_t)sizeof(struct nr_wire_state);
        if (header->operation == (NR_OP_HELLO | NR_OP_RESPONSE)) {
            uint32_t session = ((const struct nr_wire_welcome *)result)->session;
            if (session != player->session)
                *player = (struct player){.nonce = player->nonce, .session = session};
        } else if (header->operation == (NR_OP_STREAMS | NR_OP_RESPONSE) && bytes >= sizeof(struct nr_wire_stream)) {
            const struct nr_wire_stream *stream = (const struct nr_wire_stream *)result;
            uint32_t which = player->store;
            if (stream->status == NR_OK) {
                player->handle[which] = stream->handle;
                player->step[which] = stream->next_step;
                player->item[which] = stream->next_item;
            }
        } else if (header->operation == (NR_OP_INSERT | NR_OP_RESPONSE) && bytes >= 9) {
            memcpy(&keys[below(1024)], result, 8);
            player->sequence++;
        }
    }
}

/* The audits allocate; the sanitizer would keep what they free. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "quarantine_size_mb=1:thread_local_quarantine_size_kb=64";
}

/* Items ever stored, whatever was reset. */
static uint64_t stored(const struct driver *driver, uint32_t table)
{
    struct nr_table_info info = table_info(driver, table);

    return info.size + info.evicted_capacity + info.evicted_steps + info.evicted_deleted + info.evicted_reset;
}

static long resident(void)
{
    long pages = 0, ignored;
    FILE *file = fopen("/proc/self/statm", "r");

    CHECK(file != NULL && fscanf(file, "%ld %ld", &ignored, &pages) == 2);
    fclose(file);
    return pages * sysconf(_SC_PAGESIZE);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t total = argc > 2 ? strtoull(argv[2], NULL, 0) : 1000000, intact = 0;
    struct driver *driver = driver_open(SESSIONS, 8972, 500);
    static struct datagram late[LATE], datagram;
    uint8_t *block = malloc(NR_MAX_DATAGRAM); /* datagrams lie at its end, so that a byte too far is seen */
    char message[256];
    long before = 0;

    nr_random_seed(&dice, seed);
    for (uint64_t i = 0; i < total; i++) {
        uint32_t peer = below(PEERS);
        struct player *player = &players[peer];

        if (one_in(12)) {
            datagram = late[below(LATE)];
        } else {
            make(player, &datagram);
            head(&datagram)->length = (uint16_t)(datagram.length - sizeof(struct nr_header));
            head(&datagram)->counter = i;
            late[below(LATE)] = datagram;
        }
        if (one_in(2)) {
            damage(&datagram);
            if (datagram.length >= sizeof(struct nr_header) && !one_in(8))
                head(&datagram)->length = (uint16_t)(datagram.length - sizeof(struct nr_header));
        } else {
            intact++;
        }
        uint8_t *bytes = block + NR_MAX_DATAGRAM - datagram.length;
        memcpy(bytes, datagram.bytes, datagram.length);
        struct nr_rx rx = {.data = bytes, .length = datagram.length, .peer = driver_peer(peer)};
        driver->count = 0;
        driver->now += below(100000);
        nr_server_receive(driver->server, &rx, driver->now, &driver->outbox);
        if (i % 64 == 0)
            nr_server_sweep(driver->server, driver->now, &driver->outbox);
        driver_flush(&driver->outbox);
        learn(driver, player);
        if (one_in(200000)) /* everybody falls silent */
            driver->now += 10001ull * DRIVER_MILLISECOND;
        if (i % 10000 == 0 && nr_server_audit(driver->server, message, sizeof(message)) != NR_OK) {
            fprintf(stderr, "audit after %llu datagrams of seed %llu: %s\n", (unsigned long long)i, (unsigned long long)seed,
                    message);
            return 1;
        }
        if (i == total / 2)
            before = resident();
    }
    CHECK(resident() - before < 1 << 20);

    /* It was a conversation, not only noise. */
    struct nr_server_counters seen = counters(driver);
    printf("%llu datagrams, %llu intact: %llu malformed, %llu no session, %llu wrong peer, %llu old, %llu repeats; %llu sessions, "
           "%llu inserts, %llu samples, %llu updates, %llu deletes, %llu admins, %llu gets, %llu histograms, %llu publishes, %llu "
           "fetches; %llu and %llu items "
           "in, %llu answers\n",
           (unsigned long long)total, (unsigned long long)intact, (unsigned long long)seen.malformed,
           (unsigned long long)seen.no_session, (unsigned long long)seen.wrong_peer, (unsigned long long)seen.old,
           (unsigned long long)seen.duplicates, (unsigned long long)seen.sessions_opened, (unsigned long long)seen.inserts,
           (unsigned long long)seen.samples, (unsigned long long)seen.updates, (unsigned long long)seen.deletes,
           (unsigned long long)seen.admins, (unsigned long long)seen.gets, (unsigned long long)seen.histograms,
           (unsigned long long)seen.publishes, (unsigned long long)seen.fetches, (unsigned long long)stored(driver, 0),
           (unsigned long long)stored(driver, 1), (unsigned long long)driver->sent);
    if (total >= 1000000)
        CHECK(seen.inserts > 1000 && seen.samples > 1000 && seen.updates > 1000 && seen.deletes > 1000 && seen.admins > 1000 &&
              seen.publishes > 0 && seen.fetches > 1000 && seen.gets > 300 && seen.histograms > 1000 && stored(driver, 0) > 1000 &&
              stored(driver, 1) > 10);
    free(block);
    driver_close(driver);
    return 0;
}
