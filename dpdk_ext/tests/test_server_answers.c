/* The server by hand-made datagrams: samples and their ends, waiting, updates, parameters, messages, sessions that die. */
#include "server_driver.h"

/* Items that nr_item_insert has to hold back (linked with --wrap): this engine's limiter never holds back an insert by itself. */
static uint32_t held_back;
int __real_nr_item_insert(struct nr_engine *engine, uint32_t table, uint32_t handle, uint32_t owner, const struct nr_item *item,
                          uint64_t now, uint64_t *key, struct nr_wait *wait);
int __wrap_nr_item_insert(struct nr_engine *engine, uint32_t table, uint32_t handle, uint32_t owner, const struct nr_item *item,
                          uint64_t now, uint64_t *key, struct nr_wait *wait);
int __wrap_nr_item_insert(struct nr_engine *engine, uint32_t table, uint32_t handle, uint32_t owner, const struct nr_item *item,
                          uint64_t now, uint64_t *key, struct nr_wait *wait)
{
    if (held_back == 0 || table != 0)
        return __real_nr_item_insert(engine, table, handle, owner, item, now, key, wait);
    held_back--;
    *wait = (struct nr_wait){.reason = NR_WAIT_LIMITER, .table = table, .have = held_back, .need = 1};
    return NR_WAIT_LIMITER;
}

/* `count` items of steps 0.. by session 1 of peer 1, slot 13. */
static uint32_t fill(struct driver *driver, uint32_t session, uint32_t count)
{
    uint32_t handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram datagram;

    for (uint32_t step = 0; step <= count; step++) {
        make_transition(&datagram, session, 13, step + 1, step, handle, step);
        CHECK(post(driver, &datagram, 1) >= 1);
    }
    return handle;
}

/* The rows of a message, put together from all data answers to one slot and request that were caught. */
static uint64_t assemble(struct driver *driver, uint8_t *message, uint64_t capacity)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < driver->count; i++) {
        const struct nr_header *header = answer_head(driver, i);
        uint32_t length = driver->caught[i].datagram.length - (uint32_t)NR_RESPONSE_OVERHEAD;

        if (!(header->flags & NR_FLAG_DATA))
            continue;
        CHECK(header->offset + (uint64_t)length <= capacity);
        memcpy(message + header->offset, driver->caught[i].datagram.bytes + NR_RESPONSE_OVERHEAD, length);
        bytes += length;
    }
    return bytes;
}

static void check_rows(const uint8_t *message, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint8_t *row = message + sizeof(struct nr_wire_message) + i * DRIVER_ROW;
        double probability;

        memcpy(&probability, row + 8, sizeof(probability));
        CHECK(probability > 0 && probability <= 1);
        for (uint32_t b = 0; b < 24; b++)
            CHECK_EQUAL(row[16 + b], row[16]);
        for (uint32_t b = 0; b < 16; b++) {
            CHECK_EQUAL(row[40 + b], (uint8_t)(row[16] * 3 + 1));
            CHECK_EQUAL(row[56 + b], (uint8_t)((row[16] + 1) * 3 + 1));
        }
    }
}

static void a_sample_is_drawn_once_and_read_in_any_ranges(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram datagram, read;
    uint8_t whole[48 + 256 * DRIVER_ROW], again[sizeof(whole)];

    fill(driver, session, 40);
    make_sample(&datagram, session, 2, 1, 0, 256, 5);
    CHECK_EQUAL(post(driver, &datagram, 1), 5);
    uint64_t bytes = assemble(driver, whole, sizeof(whole));
    CHECK_EQUAL(bytes, 5 * (1472 - 64));
    CHECK_EQUAL(table_info(driver, 0).leased, 256);
    CHECK_EQUAL(counters(driver).samples, 0);
    for (uint32_t offset = 0; offset < sizeof(whole);) {
        start(&read, NR_OP_READ, session, 2, 1);
        head(&read)->offset = offset;
        head(&read)->fragments = 3;
        CHECK(post(driver, &read, 1) >= 1);
        CHECK_EQUAL(answer_head(driver, 0)->operation, NR_OP_READ | NR_OP_RESPONSE);
        CHECK_EQUAL(answer_head(driver, 0)->offset, offset);
        offset += (uint32_t)assemble(driver, again, sizeof(again));
    }
    CHECK(memcmp(whole, again, bytes) == 0);
    memcpy(whole, again, sizeof(whole));
    CHECK_EQUAL(counters(driver).samples, 1);
    const struct nr_wire_message *message = (const struct nr_wire_message *)whole;
    CHECK_EQUAL(message->bytes, 256 * DRIVER_ROW);
    CHECK_EQUAL(message->number, 1);
    CHECK_EQUAL(message->size, 40);
    check_rows(whole, 256);
    for (uint32_t offset = 1; offset < sizeof(whole); offset += 611) { /* any offset is a client's own choice */
        start(&read, NR_OP_READ, session, 2, 1);
        head(&read)->offset = offset;
        CHECK_EQUAL(post(driver, &read, 1), 1);
        uint32_t length = driver->caught[0].datagram.length - 64;
        CHECK_EQUAL(length, sizeof(whole) - offset < 1408 ? sizeof(whole) - offset : 1408);
        CHECK(memcmp(driver->caught[0].datagram.bytes + 64, whole + offset, length) == 0);
    }
    head(&read)->offset = sizeof(whole);
    CHECK_EQUAL(post(driver, &read, 1), 0);
    head(&read)->fragments = 0; /* only the state */
    head(&read)->offset = 0;
    expect(driver, post(driver, &read, 1), NR_OK);
    CHECK_EQUAL(answer_head(driver, 0)->flags, 0);

    /* A repeat draws nothing new. */
    CHECK_EQUAL(post(driver, &datagram, 1), 5);
    memset(again, 0, sizeof(again));
    bytes = assemble(driver, again, sizeof(again));
    CHECK(memcmp(whole, again, bytes) == 0);
    CHECK_EQUAL(table_info(driver, 0).leased, 256);

    /* The lease ends; the reservation stays until it is committed. */
    make_settle(&datagram, session, 2, 9, NR_SETTLE_RELEASE); /* of another request: ignored */
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK_EQUAL(table_info(driver, 0).leased, 256);
    make_settle(&datagram, session, 2, 1, NR_SETTLE_RELEASE);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK_EQUAL(table_info(driver, 0).leased, 0);
    CHECK_EQUAL(table_info(driver, 0).reserved, 256);
    head(&read)->fragments = 1;
    expect(driver, post(driver, &read, 1), NR_LEASE_EXPIRED);
    make_settle(&datagram, session, 2, 1, NR_SETTLE_COMMIT);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK_EQUAL(table_info(driver, 0).reserved, 0);
    CHECK_EQUAL(table_info(driver, 0).sampled, 256);
    make_settle(&datagram, session, 2, 1, NR_SETTLE_COMMIT | NR_SETTLE_REFUND);
    CHECK_EQUAL(post(driver, &datagram, 1), 0);
    driver_close(driver);
}

static void a_recycled_slot_refunds_its_draw_unless_settled_before(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram datagram;
    struct nr_wire_sample sample = {.table = 0, .count = 8, .settles = 1};
    struct nr_wire_settle settle = {.slot = 0, .settle = NR_SETTLE_RELEASE | NR_SETTLE_COMMIT, .request = 2};

    fill(driver, session, 10);
    make_sample(&datagram, session, 0, 1, 0, 16, 1);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    make_sample(&datagram, session, 0, 2, 0, 4, 1);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK_EQUAL(table_info(driver, 0).leased, 4);
    CHECK_EQUAL(table_info(driver, 0).reserved, 4);
    CHECK_EQUAL(table_info(driver, 0).sampled, 0);
    start(&datagram, NR_OP_SAMPLE, session, 0, 3); /* carries its predecessor's settlement */
    add(&datagram, &sample, sizeof(sample));
    add(&datagram, &settle, sizeof(settle));
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK_EQUAL(table_info(driver, 0).sampled, 4);
    CHECK_EQUAL(table_info(driver, 0).leased, 8);
    start(&datagram, NR_OP_SPEC, session, 0, 4);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK_EQUAL(table_info(driver, 0).leased, 0);

    make_sample(&datagram, session, 0, 5, 0, 257, 1);
    expect(driver, post(driver, &datagram, 1), NR_BAD_COUNT);
    make_sample(&datagram, session, 0, 6, 0, 0, 1);
    expect(driver, post(driver, &datagram, 1), NR_BAD_COUNT);
    make_sample(&datagram, session, 0, 7, 2, 1, 1);
    expect(driver, post(driver, &datagram, 1), NR_NO_TABLE);
    make_sample(&datagram, session, 0, 8, UINT32_MAX, 1, 1);
    expect(driver, post(driver, &datagram, 1), NR_NO_TABLE);
    make_sample(&datagram, session, 0, 9, 0, 1, NR_MAX_WANTED + 1);
    CHECK_EQUAL(post(driver, &datagram, 1), 0);

    /* A lease past due whose space is wanted: the client reads so, and begins anew. */
    for (uint8_t slot = 1; slot <= 8; slot++) {
        make_sample(&datagram, session, slot, 1, 0, 256, 1);
        CHECK_EQUAL(post(driver, &datagram, 1), 1);
    }
    make_sample(&datagram, session, 9, 1, 0, 256, 1);
    expect(driver, post(driver, &datagram, 1), NR_WAIT_LEASES);
    CHECK_EQUAL(answer_state(driver, 0)->have, 2048);
    driver->now += 1001ull * DRIVER_MILLISECOND;
    start(&datagram, NR_OP_PING, session, NR_STATELESS_SLOT, 1);
    CHECK_EQUAL(post(driver, &datagram, 1), 2); /* the waiting one is served on whatever comes */
    CHECK_EQUAL(answer_head(driver, 1)->slot, 9);
    start(&datagram, NR_OP_READ, session, 1, 1);
    expect(driver, post(driver, &datagram, 1), NR_LEASE_EXPIRED);
    expect(driver, post(driver, &datagram, 1), NR_LEASE_EXPIRED);
    driver_close(driver);
}

static void waiting_samples_are_served_in_order_by_whoever_brings_items(void)
{
    struct driver *driver = driver_open(16, 1472, 64);
    uint32_t actor = open_session(driver, 1), handle = open_stream(driver, 1, actor, 1, 0, 1);
    struct datagram datagram;

    for (uint32_t peer = 2; peer <= 8; peer++) {
        uint32_t session = open_session(driver, peer);
        make_sample(&datagram, session, 5, 1, 0, 2, 3);
        expect(driver, post(driver, &datagram, peer), NR_WAIT_LIMITER);
        CHECK(answer_state(driver, 0)->have == 0 && answer_state(driver, 0)->need == 4);
        expect(driver, post(driver, &datagram, peer), NR_WAIT_LIMITER);
        if (peer == 3) { /* it gives up */
            make_settle(&datagram, session, 5, 1, NR_SETTLE_REFUND);
            expect(driver, post(driver, &datagram, 3), NR_OK);
            make_sample(&datagram, session, 5, 1, 0, 2, 3);
            expect(driver, post(driver, &datagram, 3), NR_STALE);
        }
        if (peer == 4) { /* it is taken for something else */
            start(&datagram, NR_OP_SPEC, session, 5, 2);
            CHECK_EQUAL(post(driver, &datagram, 4), 1);
            make_sample(&datagram, session, 6, 1, 0, 2, 3);
            expect(driver, post(driver, &datagram, 4), NR_WAIT_LIMITER);
        }
        if (peer == 7) { /* it leaves */
            start(&datagram, NR_OP_BYE, session, NR_STATELESS_SLOT, 1);
            expect(driver, post(driver, &datagram, 7), NR_OK);
            expect(driver, post(driver, &datagram, 7), NR_NO_SESSION);
        }
    }
    CHECK_EQUAL(counters(driver).parked, 5);
    for (uint64_t step = 0; step < 4; step++) {
        make_transition(&datagram, actor, 0, (uint32_t)step + 1, (uint32_t)step, handle, step);
        expect(driver, post(driver, &datagram, 1), NR_OK);
    }
    driver->now += 3 * DRIVER_MILLISECOND;
    make_transition(&datagram, actor, 0, 5, 4, handle, 4);
    CHECK_EQUAL(post(driver, &datagram, 1), 1 + NR_PARKED_PER_DATAGRAM); /* the fourth item */
    static const uint32_t order[] = {1, 2, 4, 5, 6, 8};
    for (uint32_t i = 0; i < 5; i++) {
        struct nr_peer peer = driver_peer(order[i]);
        CHECK(nr_peer_equal(&driver->caught[i].peer, &peer));
    }
    const struct nr_wire_stamps *stamps = (const struct nr_wire_stamps *)(driver->caught[1].datagram.bytes + 48);
    CHECK_EQUAL(stamps->residence, 3 * DRIVER_MILLISECOND);
    CHECK_EQUAL(answer_head(driver, 1)->operation, NR_OP_SAMPLE | NR_OP_RESPONSE);
    CHECK_EQUAL(answer_head(driver, 1)->flags, NR_FLAG_DATA);
    CHECK_EQUAL(counters(driver).parked, 1);
    start(&datagram, NR_OP_PING, actor, NR_STATELESS_SLOT, 1); /* the next datagram goes on */
    CHECK_EQUAL(post(driver, &datagram, 1), 2);
    struct nr_peer last = driver_peer(8);
    CHECK(nr_peer_equal(&driver->caught[1].peer, &last));
    CHECK_EQUAL(counters(driver).parked, 0);
    driver_close(driver);
}

static void inserts_held_back_go_on_in_order(void)
{
    struct driver *driver = driver_open(16, 1472, 64);
    uint32_t one = open_session(driver, 1), two = open_session(driver, 2);
    uint32_t handle = open_stream(driver, 1, one, 1, 0, 1), other = open_stream(driver, 2, two, 1, 0, 2);
    struct datagram datagram;

    start_insert(&datagram, one, 0, 1, 0, 3);
    for (uint64_t step = 0; step < 4; step++)
        add_small_step(&datagram, handle, step);
    for (uint16_t i = 0; i < 3; i++)
        add_item(&datagram, 0, handle, i, i, i, 2, 1.0);
    held_back = 2;
    expect(driver, post(driver, &datagram, 1), NR_WAIT_LIMITER);
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 1);
    CHECK_EQUAL(counters(driver).parked, 1);

    /* The session's next, and another session's: behind it. */
    make_transition(&datagram, one, 1, 1, 1, handle, 4);
    ((struct nr_wire_item *)(datagram.bytes + 56 + 56))->number = 3;
    expect(driver, post(driver, &datagram, 1), NR_PENDING);
    start_insert(&datagram, two, 0, 1, 0, 1);
    add_small_step(&datagram, other, 0);
    add_item(&datagram, 0, other, 0, 0, 0, 1, 1.0);
    expect(driver, post(driver, &datagram, 2), NR_WAIT_LIMITER);
    CHECK_EQUAL(counters(driver).parked, 2);
    CHECK_EQUAL(table_info(driver, 0).size, 0);

    driver->now += 11 * DRIVER_MILLISECOND; /* tried again: held back once more */
    start(&datagram, NR_OP_PING, two, NR_STATELESS_SLOT, 1);
    CHECK_EQUAL(post(driver, &datagram, 2), 1);
    driver->now += 11 * DRIVER_MILLISECOND;
    CHECK_EQUAL(post(driver, &datagram, 2), 4);
    CHECK_EQUAL(answer_head(driver, 1)->session, one);
    CHECK_EQUAL(answer_head(driver, 1)->slot, 0);
    CHECK(memcmp((const uint8_t *)answer_result(driver, 1, 27) + 24, "\0\0\0", 3) == 0);
    CHECK_EQUAL(answer_head(driver, 2)->session, two);
    CHECK_EQUAL(answer_head(driver, 3)->session, one); /* its turn came only now: behind the other */
    CHECK_EQUAL(answer_head(driver, 3)->slot, 1);
    CHECK_EQUAL(table_info(driver, 0).size, 5);
    CHECK_EQUAL(counters(driver).parked, 0);
    driver_close(driver);
}

static void updates_are_applied_per_datagram_and_told_at_the_end(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram datagram, part[2];
    uint64_t keys[4];

    fill(driver, session, 0);
    start_insert(&datagram, session, 0, 1, 1, 4);
    uint32_t handle = open_stream(driver, 1, session, 2, 0, 1);
    for (uint64_t step = 0; step < 5; step++)
        add_small_step(&datagram, handle, step);
    for (uint16_t i = 0; i < 4; i++)
        add_item(&datagram, 0, handle, i, i, i, 2, 1.0);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    memcpy(keys, answer_result(driver, 0, 36), sizeof(keys));

    for (uint16_t fragment = 0; fragment < 2; fragment++) {
        struct nr_wire_update update = {.table = 0, .count = 6, .first = (uint16_t)(fragment * 4)};
        struct nr_wire_priority priority[4] = {{keys[0], 2.0}, {keys[1], -1.0}, {keys[2] ^ 1, 3.0}, {keys[3], 0.5}};

        start(&part[fragment], NR_OP_UPDATE, session, 1, 1);
        head(&part[fragment])->fragment = fragment;
        head(&part[fragment])->fragments = 2;
        add(&part[fragment], &update, sizeof(update));
        add(&part[fragment], priority, (fragment ? 2 : 4) * sizeof(priority[0]));
    }
    expect(driver, post(driver, &part[1], 1), NR_PENDING);
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 2);
    expect(driver, post(driver, &part[1], 1), NR_PENDING);
    CHECK_EQUAL(table_info(driver, 0).updated, 1); /* once */
    expect(driver, post(driver, &part[0], 1), NR_OK);
    static const uint8_t outcome[6] = {NR_APPLIED, NR_OUTCOME_REFUSED, NR_OUTCOME_STALE,
                                       NR_APPLIED, NR_APPLIED,         NR_OUTCOME_REFUSED};
    CHECK(memcmp(answer_result(driver, 0, 6), outcome, 6) == 0);
    start(&datagram, NR_OP_READ, session, 1, 1);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK(memcmp(answer_result(driver, 0, 6), outcome, 6) == 0);
    CHECK_EQUAL(counters(driver).updates, 1);

    struct nr_wire_update *update = (struct nr_wire_update *)(part[1].bytes + sizeof(struct nr_header));
    update->first = 5; /* 2 keys from 5 of 6 */
    CHECK_EQUAL(post(driver, &part[1], 1), 0);
    head(&part[1])->request = 2;
    update->first = 4;
    update->table = 9;
    expect(driver, post(driver, &part[1], 1), NR_NO_TABLE);
    head(&part[1])->request = 3;
    update->count = NR_UPDATE_KEYS + 1;
    expect(driver, post(driver, &part[1], 1), NR_BAD_COUNT);
    driver_close(driver);
}

static void make_publish(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint32_t publication,
                         uint64_t bytes, uint64_t offset, uint32_t length, uint64_t expected)
{
    struct nr_wire_publish publish = {.publication = publication, .bytes = bytes, .offset = offset, .expect = expected};
    uint8_t chunk[1400];

    for (uint32_t i = 0; i < length; i++)
        chunk[i] = (uint8_t)((offset + i) * 13 + publication);
    start(datagram, NR_OP_PUBLISH, session, slot, request);
    add(datagram, &publish, sizeof(publish));
    add(datagram, chunk, length);
    datagram->length -= ((length + 7) & ~7u) - length;
}

static void parameters_are_published_in_parts_and_fetched_whole(void)
{
    enum { BYTES = 5003, PART = 1000 };
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t one = open_session(driver, 1), two = open_session(driver, 2);
    struct datagram datagram, fetch;
    uint8_t message[48 + BYTES];
    struct nr_wire_fetch request = {.set = 0};
    uint64_t version = 0;

    start(&fetch, NR_OP_FETCH, two, 0, 1);
    add(&fetch, &request, sizeof(request));
    head(&fetch)->fragments = 64;
    CHECK_EQUAL(post(driver, &fetch, 2), 1); /* nothing yet: an empty message */
    CHECK_EQUAL(assemble(driver, message, sizeof(message)), 48);
    CHECK(((struct nr_wire_message *)message)->bytes == 0 && ((struct nr_wire_message *)message)->number == 0);

    /* Two requests of three parts, backwards. */
    for (int i = 5; i >= 0; i--) {
        uint32_t offset = (uint32_t)i * PART, length = i == 5 ? BYTES - 5 * PART : PART;

        make_publish(&datagram, one, (uint8_t)(i / 3), 1, 1, BYTES, offset, length, UINT64_MAX);
        head(&datagram)->fragment = (uint16_t)(i % 3);
        head(&datagram)->fragments = 3;
        expect(driver, post(driver, &datagram, 1), i % 3 == 0 ? NR_OK : NR_PENDING);
        if (i % 3 == 0)
            memcpy(&version, answer_result(driver, 0, 8), 8);
        CHECK_EQUAL(version != 0, i == 0);
        if (i == 2) {
            make_publish(&datagram, two, 1, 1, 1, 100, 0, 100, UINT64_MAX);
            expect(driver, post(driver, &datagram, 2), NR_WAIT_TURN);
            CHECK_EQUAL(answer_state(driver, 0)->fragments, 0);
        }
    }
    start(&datagram, NR_OP_READ, one, 1, 1); /* the other request learns the version too, on a repeat */
    expect(driver, post(driver, &datagram, 1), NR_OK);
    make_publish(&datagram, one, 1, 1, 1, BYTES, 3 * PART, PART, UINT64_MAX);
    head(&datagram)->fragments = 3;
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK(memcmp(answer_result(driver, 0, 8), &version, 8) == 0);

    head(&fetch)->request = 2;
    CHECK_EQUAL(post(driver, &fetch, 2), 4);
    CHECK_EQUAL(assemble(driver, message, sizeof(message)), sizeof(message));
    CHECK_EQUAL(((struct nr_wire_message *)message)->number, version);
    for (uint32_t i = 0; i < BYTES; i++)
        CHECK_EQUAL(message[48 + i], (uint8_t)(i * 13 + 1));

    make_publish(&datagram, two, 1, 2, 2, 100, 0, 100, version + 1);
    expect(driver, post(driver, &datagram, 2), NR_CONFLICT);
    make_publish(&datagram, two, 1, 3, 3, 100, 0, 100, version);
    expect(driver, post(driver, &datagram, 2), NR_OK); /* the first fetch's version has never been read */
    make_publish(&datagram, two, 1, 4, 4, 100, 0, 40, UINT64_MAX);
    expect(driver, post(driver, &datagram, 2), NR_WAIT_TURN); /* ours is being read */
    driver->now += 1001ull * DRIVER_MILLISECOND;
    expect(driver, post(driver, &datagram, 2), NR_OK);
    CHECK_EQUAL(*(const uint64_t *)answer_result(driver, 0, 8), 0); /* bytes are missing */
    start(&datagram, NR_OP_READ, two, 0, 2);
    expect(driver, post(driver, &datagram, 2), NR_RESTART);
    make_publish(&datagram, two, 1, 5, 4, 100, 30, 71, UINT64_MAX); /* beyond its end */
    expect(driver, post(driver, &datagram, 2), NR_BAD_LENGTH);
    make_publish(&datagram, two, 1, 6, 3, 100, 40, 60, UINT64_MAX); /* an earlier one */
    expect(driver, post(driver, &datagram, 2), NR_CONFLICT);
    make_publish(&datagram, one, 2, 1, 2, DRIVER_SET_BYTES + 1, 0, 100, UINT64_MAX);
    expect(driver, post(driver, &datagram, 1), NR_BAD_LENGTH);
    ((struct nr_wire_publish *)(datagram.bytes + 48))->set = 2;
    head(&datagram)->request = 2;
    expect(driver, post(driver, &datagram, 1), NR_NO_SET);
    request.set = 1000;
    start(&fetch, NR_OP_FETCH, two, 0, 4);
    add(&fetch, &request, sizeof(request));
    expect(driver, post(driver, &fetch, 2), NR_NO_SET);
    driver_close(driver);
}

static void spec_and_tables_are_messages(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram datagram;
    uint8_t message[4096];

    fill(driver, session, 12);
    start(&datagram, NR_OP_SPEC, session, 0, 1);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK_EQUAL(assemble(driver, message, sizeof(message)), 48 + strlen(driver_spec));
    CHECK(memcmp(message + 48, driver_spec, strlen(driver_spec)) == 0);
    CHECK_EQUAL(((struct nr_wire_message *)message)->number, 0x1234567);
    start(&datagram, NR_OP_TABLES, session, 0, 2);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK_EQUAL(assemble(driver, message, sizeof(message)), 48 + 2 * sizeof(struct nr_table_info));
    struct nr_table_info info = table_info(driver, 0);
    CHECK(memcmp(message + 48, &info, sizeof(info)) == 0);
    CHECK_EQUAL(((struct nr_wire_message *)message)->number, 2);
    head(&datagram)->fragments = 0;
    head(&datagram)->request = 3;
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK_EQUAL(answer_head(driver, 0)->flags, 0);
    driver_close(driver);
}

static void dead_sessions_give_everything_back(void)
{
    struct driver *driver = driver_open(3, 1472, 64);
    uint32_t one = open_session(driver, 1), two = open_session(driver, 2);
    struct datagram datagram, hello;

    fill(driver, one, 10);
    make_sample(&datagram, two, 0, 1, 0, 64, 1);
    CHECK_EQUAL(post(driver, &datagram, 2), 1);
    make_sample(&datagram, two, 1, 1, 1, 1, 1);
    expect(driver, post(driver, &datagram, 2), NR_WAIT_LIMITER);
    open_session(driver, 3);
    make_hello(&hello, 4, 1472, 1472);
    expect(driver, post(driver, &hello, 4), NR_TOO_MANY);
    CHECK_EQUAL(answer_head(driver, 0)->credits, 512 / 3);

    driver->now += 10000ull * DRIVER_MILLISECOND;
    start(&datagram, NR_OP_PING, one, NR_STATELESS_SLOT, 1);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    nr_server_sweep(driver->server, driver->now, &driver->outbox);
    CHECK_EQUAL(counters(driver).sessions_open, 3);
    driver->now++;
    nr_server_sweep(driver->server, driver->now, &driver->outbox);
    CHECK_EQUAL(counters(driver).sessions_open, 1);
    CHECK_EQUAL(counters(driver).sessions_swept, 2);
    CHECK_EQUAL(counters(driver).parked, 0);
    CHECK_EQUAL(table_info(driver, 0).leased, 0);
    CHECK_EQUAL(table_info(driver, 0).reserved, 0);
    expect(driver, post(driver, &hello, 4), NR_OK);
    make_sample(&datagram, two, 0, 1, 0, 64, 1);
    expect(driver, post(driver, &datagram, 2), NR_NO_SESSION);

    /* A hello finds the place of a dead one by itself. */
    open_session(driver, 5);
    driver->now += 10001ull * DRIVER_MILLISECOND;
    open_session(driver, 6);
    CHECK_EQUAL(counters(driver).sessions_open, 1);
    driver_close(driver);
}

int main(void)
{
    a_sample_is_drawn_once_and_read_in_any_ranges();
    a_recycled_slot_refunds_its_draw_unless_settled_before();
    waiting_samples_are_served_in_order_by_whoever_brings_items();
    inserts_held_back_go_on_in_order();
    updates_are_applied_per_datagram_and_told_at_the_end();
    parameters_are_published_in_parts_and_fetched_whole();
    spec_and_tables_are_messages();
    dead_sessions_give_everything_back();
    return 0;
}
