/* The server by hand-made datagrams: sessions, streams, inserts. Sampling and the rest: test_server_answers.c. */
#include "server_driver.h"

static void hello_is_answered_once_and_never_with_more(void)
{
    struct driver *driver = driver_open(8, 8972, 64);
    struct datagram hello;

    make_hello(&hello, 5, NR_MIN_DATAGRAM - 8, NR_MIN_DATAGRAM);
    CHECK_EQUAL(post(driver, &hello, 1), 0);
    make_hello(&hello, 5, NR_MIN_DATAGRAM, NR_MIN_DATAGRAM - 1);
    CHECK_EQUAL(post(driver, &hello, 1), 0);
    CHECK_EQUAL(counters(driver).malformed, 2);

    make_hello(&hello, 5, 1472, 8972);
    expect(driver, post(driver, &hello, 1), NR_OK);
    CHECK(driver->caught[0].datagram.length < NR_MIN_DATAGRAM);
    const struct nr_wire_welcome *answer = answer_result(driver, 0, sizeof(*answer));
    struct nr_wire_welcome first = *answer;
    CHECK(first.session != 0 && first.nonce == 5 && first.incarnation == 0x1234567 && first.start_seconds == 1000);
    CHECK_EQUAL(first.max_datagram, 1472);
    CHECK_EQUAL(first.credits, 256);
    CHECK_EQUAL(first.spec_bytes, strlen(driver_spec));

    make_hello(&hello, 5, 1200, 1200);
    expect(driver, post(driver, &hello, 1), NR_OK);
    CHECK(memcmp(answer_result(driver, 0, sizeof(first)), &first, sizeof(first)) == 0);
    CHECK_EQUAL(counters(driver).sessions_open, 1);
    expect(driver, post(driver, &hello, 2), NR_OK); /* the same nonce of another peer */
    CHECK(((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(first)))->session != first.session);
    make_hello(&hello, 6, 8971, 8972);
    expect(driver, post(driver, &hello, 1), NR_OK);
    CHECK_EQUAL(((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(first)))->max_datagram, 8968);
    CHECK_EQUAL(answer_head(driver, 0)->credits, 512 / 3);

    ((struct nr_wire_hello *)(hello.bytes + sizeof(struct nr_header)))->version_min = NR_VERSION + 1;
    expect(driver, post(driver, &hello, 1), NR_BAD_VERSION);
    CHECK_EQUAL(counters(driver).sessions_open, 3);
    driver_close(driver);
}

static void only_its_peer_speaks_for_a_session(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram ping;

    start(&ping, NR_OP_PING, session, NR_STATELESS_SLOT, 9);
    CHECK_EQUAL(post(driver, &ping, 2), 0);
    CHECK_EQUAL(counters(driver).wrong_peer, 1);
    expect(driver, post(driver, &ping, 1), NR_OK);
    CHECK_EQUAL(answer_head(driver, 0)->operation, NR_OP_PING | NR_OP_RESPONSE);
    CHECK_EQUAL(answer_head(driver, 0)->request, 9);
    for (uint32_t size = 96; size <= 1472; size += 344) {
        start(&ping, NR_OP_PING, session, NR_STATELESS_SLOT, 9);
        memset(ping.bytes + 48, 0xee, size - 48);
        ping.length = size;
        expect(driver, post(driver, &ping, 1), NR_OK);
        CHECK_EQUAL(driver->caught[0].datagram.length, size);
        for (uint32_t i = 64; i < size; i++)
            CHECK_EQUAL(driver->caught[0].datagram.bytes[i], 0);
        const struct nr_wire_stamps *stamps = (const struct nr_wire_stamps *)(driver->caught[0].datagram.bytes + 48);
        CHECK(stamps->received == driver->now && stamps->residence == 0 && stamps->echo == (uint32_t)driver->counter);
    }

    /* Nobody who is unknown is answered with more than he sent. */
    for (uint32_t size = 48; size <= 200; size += 8) {
        start(&ping, NR_OP_PING, session ^ 0x80000000u, NR_STATELESS_SLOT, 9);
        memset(ping.bytes + 48, 0, size - 48);
        ping.length = size;
        expect(driver, post(driver, &ping, 1), NR_NO_SESSION);
        CHECK(driver->caught[0].datagram.length <= size);
        head(&ping)->version = NR_VERSION + 1;
        expect(driver, post(driver, &ping, 1), NR_BAD_VERSION);
        CHECK(driver->caught[0].datagram.length <= size);
        CHECK_EQUAL(answer_head(driver, 0)->version, NR_VERSION);
    }
    driver_close(driver);
}

static void what_is_malformed_is_counted_and_not_answered(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram good, bad;
    uint64_t malformed = 0;

    make_transition(&good, session, 0, 1, 0, handle, 0);
#define DROPPED(change)                                                                                                            \
    do {                                                                                                                           \
        bad = good;                                                                                                                \
        head(&bad)->length = (uint16_t)(bad.length - sizeof(struct nr_header));                                                    \
        change;                                                                                                                    \
        CHECK_EQUAL(give(driver, &bad, 1), 0);                                                                                     \
        CHECK_EQUAL(counters(driver).malformed, ++malformed);                                                                      \
    } while (0)
    DROPPED(bad.length = 47);
    DROPPED(bad.length = 0);
    DROPPED(head(&bad)->magic++);
    DROPPED(head(&bad)->length++);
    DROPPED(head(&bad)->length--);
    DROPPED(head(&bad)->operation = 0);
    DROPPED(head(&bad)->operation = NR_OP_LAST + 1);
    DROPPED(head(&bad)->operation |= NR_OP_RESPONSE);
    DROPPED((head(&bad)->operation |= NR_OP_RESPONSE, head(&bad)->version = 9));
    DROPPED(head(&bad)->flags = NR_FLAG_DATA);
    DROPPED(head(&bad)->status = 1);
    DROPPED(head(&bad)->crc32c = 1);
    DROPPED(head(&bad)->slot = NR_STATELESS_SLOT);
    DROPPED(head(&bad)->slot = 255);
    DROPPED(head(&bad)->fragments = 0);
    DROPPED(head(&bad)->fragments = NR_MAX_FRAGMENTS + 1);
    DROPPED(head(&bad)->fragment = 1);
    DROPPED(head(&bad)->offset = 8);
    DROPPED((head(&bad)->operation = NR_OP_PING));
    struct nr_wire_insert *insert = (struct nr_wire_insert *)(bad.bytes + sizeof(struct nr_header));
    struct nr_wire_step *step = (struct nr_wire_step *)(insert + 1);
    DROPPED(insert->items = NR_INSERT_ITEMS + 1);
    DROPPED(step->type = 3);
    DROPPED(step->length = 0);
    DROPPED(step->length = DRIVER_STEP + 1);
    DROPPED(step->offset = 1);
    DROPPED(step->offset = UINT32_MAX);
    DROPPED((bad.length -= 8, head(&bad)->length -= 8));
#undef DROPPED
    bad = good;
    head(&bad)->tag = 1;
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    CHECK_EQUAL(counters(driver).refused, 1);
    CHECK_EQUAL(table_info(driver, 0).steps, 0);

    /* A bad record behind good ones: they have no effect either. */
    start_insert(&bad, session, 0, 1, 0, 1);
    add_small_step(&bad, handle, 0);
    add_small_step(&bad, handle, 1);
    add_item(&bad, 0, handle, 1, 0, 0, 2, 1.0); /* index 1 of 1 */
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    start_insert(&bad, session, 0, 1, 0, 2);
    add_small_step(&bad, handle, 0);
    add_item(&bad, 0, handle, 1, 0, 0, 1, 1.0);
    add_item(&bad, 0, handle, 1, 1, 0, 1, 1.0); /* index 1 twice */
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    CHECK_EQUAL(table_info(driver, 0).steps, 0);
    CHECK_EQUAL(counters(driver).malformed, malformed + 2);
    expect(driver, post(driver, &good, 1), NR_OK);
    driver_close(driver);
}

static void streams_are_opened_once_and_owned(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t one = open_session(driver, 1), two = open_session(driver, 2);
    uint32_t handle = open_stream(driver, 1, one, 1, 0, 7);
    struct datagram datagram;
    struct nr_wire_streams request = {.store = 0, .count = 1};
    uint8_t name[16] = {7, 1};

    CHECK_EQUAL(open_stream(driver, 1, one, 1, 0, 7), handle); /* a repeat */
    CHECK_EQUAL(counters(driver).duplicates, 1);
    CHECK_EQUAL(open_stream(driver, 1, one, 2, 0, 7), handle); /* again, of the same session */
    start(&datagram, NR_OP_STREAMS, two, 0, 1);
    add(&datagram, &request, sizeof(request));
    add(&datagram, name, sizeof(name));
    expect(driver, post(driver, &datagram, 2), NR_OK);
    CHECK_EQUAL(((const struct nr_wire_stream *)answer_result(driver, 0, sizeof(struct nr_wire_stream)))->status, NR_STREAM_OWNED);
    request.store = 2;
    start(&datagram, NR_OP_STREAMS, two, 0, 2);
    add(&datagram, &request, sizeof(request));
    add(&datagram, name, sizeof(name));
    expect(driver, post(driver, &datagram, 2), NR_NO_STORE);
    request.count = 0;
    start(&datagram, NR_OP_STREAMS, two, 0, 3);
    add(&datagram, &request, sizeof(request));
    expect(driver, post(driver, &datagram, 2), NR_BAD_COUNT);
    request.count = UINT32_MAX;
    start(&datagram, NR_OP_STREAMS, two, 0, 4);
    add(&datagram, &request, sizeof(request));
    CHECK_EQUAL(post(driver, &datagram, 2), 0);

    struct nr_wire_close close_request = {.count = 1};
    start(&datagram, NR_OP_CLOSE, one, NR_STATELESS_SLOT, 1);
    add(&datagram, &close_request, sizeof(close_request));
    add(&datagram, &handle, sizeof(handle));
    datagram.length -= 4; /* one handle, unpadded */
    expect(driver, post(driver, &datagram, 1), NR_OK);
    expect(driver, post(driver, &datagram, 1), NR_OK); /* harmless */
    CHECK(open_stream(driver, 2, two, 9, 0, 7) != handle);
    driver_close(driver);
}

static void an_insert_is_stored_once(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram datagram, old;
    uint8_t first[27];

    start_insert(&datagram, session, 3, 1, 0, 3);
    for (uint64_t step = 0; step < 4; step++)
        add_small_step(&datagram, handle, step);
    for (uint16_t i = 0; i < 3; i++)
        add_item(&datagram, 0, handle, i, i, i, 2, 1.0);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    memcpy(first, answer_result(driver, 0, sizeof(first)), sizeof(first));
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 1);
    CHECK(first[24] == NR_OK && first[25] == NR_OK && first[26] == NR_OK);
    old = datagram;
    for (int i = 0; i < 3; i++) {
        expect(driver, post(driver, &datagram, 1), NR_OK);
        CHECK(memcmp(answer_result(driver, 0, sizeof(first)), first, sizeof(first)) == 0);
    }
    CHECK_EQUAL(table_info(driver, 0).size, 3);
    CHECK_EQUAL(counters(driver).duplicates, 3);
    CHECK_EQUAL(counters(driver).inserts, 1);

    /* The next request of the slot ends this one; repeats that come late are dropped. */
    start_insert(&datagram, session, 3, 2, 1, 5);
    add_small_step(&datagram, handle, 4);
    add_item(&datagram, 0, handle, 0, 3, 3, 2, -1.0);
    add_item(&datagram, 0, handle, 1, 4, 3, 9, 1.0);
    add_item(&datagram, 0, handle, 2, 5, 3, 2, 1.0);
    add_item(&datagram, 77, handle, 3, 6, 3, 2, 1.0);
    expect(driver, post(driver, &datagram, 1), NR_OK); /* item 4 never comes */
    const uint8_t *statuses = (const uint8_t *)answer_result(driver, 0, 45) + 40;
    CHECK(statuses[0] == NR_BAD_PRIORITY && statuses[1] == NR_BAD_WINDOW && statuses[2] == NR_OK && statuses[3] == NR_NO_TABLE &&
          statuses[4] == NR_BAD_COUNT);
    CHECK_EQUAL(post(driver, &old, 1), 0);
    CHECK_EQUAL(counters(driver).old, 1);
    CHECK_EQUAL(table_info(driver, 0).size, 4);

    /* The same items in another request: each is known. */
    start_insert(&datagram, session, 4, 1, 2, 1);
    add_small_step(&datagram, handle, 1);
    add_item(&datagram, 0, handle, 0, 0, 0, 2, 1.0);
    expect(driver, post(driver, &datagram, 1), NR_OK);
    CHECK_EQUAL(((const uint8_t *)answer_result(driver, 0, 9))[8], NR_DUPLICATE);

    /* Request numbers go round. */
    for (uint32_t request = 0x7fffffff; request != 0x7ffffffe; request += 0x7fffffff) {
        start(&datagram, NR_OP_SPEC, session, 5, request);
        CHECK_EQUAL(post(driver, &datagram, 1), 1);
        if (request == 0xfffffffc)
            break;
    }
    driver_close(driver);
}

static void fragments_and_sequences_come_in_any_order(void)
{
    for (uint32_t order = 0; order < 24; order++) {
        struct driver *driver = driver_open(8, 1472, 64);
        uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
        struct datagram part[4]; /* sequence 0: two fragments; sequence 1: two fragments */
        uint32_t left[4] = {0, 1, 2, 3}, code = order;
        uint64_t keys[2];
        int keyed = 0;

        for (uint32_t i = 0; i < 4; i++) {
            uint32_t sequence = i / 2;
            start_insert(&part[i], session, (uint8_t)(7 - sequence), 1, sequence, 1);
            head(&part[i])->fragment = i % 2;
            head(&part[i])->fragments = 2;
            if (i % 2 == 0)
                add_item(&part[i], 0, handle, 0, sequence, sequence, 2, 1.0);
            else
                add_small_step(&part[i], handle, sequence);
            if (i == 1)
                add_small_step(&part[i], handle, 2); /* of the second's window */
        }
        for (uint32_t i = 4; i > 0; code /= i, i--) {
            uint32_t pick = left[code % i];
            for (uint32_t j = code % i; j + 1 < i; j++)
                left[j] = left[j + 1];
            uint32_t answers = post(driver, &part[pick], 1);
            for (uint32_t a = 0; a < answers; a++) {
                if (answer_head(driver, a)->status != NR_OK)
                    continue;
                const uint8_t *result = answer_result(driver, a, 9);
                CHECK_EQUAL(result[8], NR_OK);
                memcpy(&keys[7 - answer_head(driver, a)->slot], result, 8);
                keyed++;
                CHECK_EQUAL(answer_head(driver, a)->operation, NR_OP_INSERT | NR_OP_RESPONSE);
            }
        }
        CHECK_EQUAL(keyed, 2);
        CHECK_EQUAL(table_info(driver, 0).size, 2);
        /* In their order: the first item of all has the first slot of the table. */
        struct nr_table_info info = table_info(driver, 0);
        CHECK_EQUAL(info.inserted, 2);
        CHECK(keys[0] != keys[1]);
        uint64_t lowest = keys[0] < keys[1] ? keys[0] : keys[1];
        CHECK_EQUAL(keys[0], lowest);
        driver_close(driver);
    }
}

static void an_insert_waits_for_steps_of_a_later_one(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram first, second, read;

    start_insert(&first, session, 0, 1, 0, 1);
    add_small_step(&first, handle, 0);
    add_item(&first, 0, handle, 0, 0, 0, 2, 1.0);
    expect(driver, post(driver, &first, 1), NR_WAIT_STEPS);
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 1);
    CHECK_EQUAL(answer_state(driver, 0)->have, 1);
    CHECK_EQUAL(answer_state(driver, 0)->need, 2);
    start(&read, NR_OP_READ, session, 0, 1);
    expect(driver, post(driver, &read, 1), NR_WAIT_STEPS);
    make_transition(&second, session, 1, 1, 1, handle, 1);
    head(&second)->fragments = 2; /* its other fragment never comes */
    CHECK_EQUAL(post(driver, &second, 1), 2);
    CHECK(answer_head(driver, 0)->slot == 0 && answer_head(driver, 0)->status == NR_OK);
    CHECK(answer_head(driver, 1)->slot == 1 && answer_head(driver, 1)->status == NR_PENDING);
    expect(driver, post(driver, &read, 1), NR_OK);
    start(&read, NR_OP_READ, session, 2, 1); /* a request that the slot does not hold */
    expect(driver, post(driver, &read, 1), NR_PENDING);
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 0);
    driver_close(driver);
}

static void a_step_that_does_not_fit_refuses_the_insert_in_its_turn(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram zero, one;
    uint8_t bytes[40] = {0};

    start_insert(&one, session, 1, 1, 1, 1);
    add_step(&one, handle, 1, 40, 0, bytes, 40);
    add_item(&one, 0, handle, 0, 0, 0, 2, 1.0);
    expect(driver, post(driver, &one, 1), NR_PENDING);
    make_transition(&zero, session, 0, 1, 0, handle, 0);
    CHECK_EQUAL(post(driver, &zero, 1), 2);
    CHECK(answer_head(driver, 0)->slot == 1 && answer_head(driver, 0)->status == NR_BAD_LENGTH);
    CHECK(answer_head(driver, 1)->slot == 0 && answer_head(driver, 1)->status == NR_OK);
    make_transition(&one, session, 1, 2, 2, handle, 1);
    expect(driver, post(driver, &one, 1), NR_OK);
    start_insert(&one, session, 1, 3, 3, 1); /* the columns of another table */
    add_item(&one, 1, handle, 0, 1, 0, 2, 1.0);
    ((struct nr_wire_item *)(one.bytes + 56))->table = 0;
    expect(driver, post(driver, &one, 1), NR_BAD_LENGTH);
    start_insert(&one, session, 1, 4, 4, 2); /* a stream that is not there: item by item */
    add_small_step(&one, handle + 1, 7);
    add_item(&one, 0, handle + 1, 0, 0, 7, 1, 1.0);
    add_item(&one, 0, handle, 1, 1, 0, 2, 1.0);
    expect(driver, post(driver, &one, 1), NR_OK);
    const uint8_t *statuses = (const uint8_t *)answer_result(driver, 0, 18) + 16;
    CHECK(statuses[0] == NR_STREAM_GONE && statuses[1] == NR_OK);
    driver_close(driver);
}

static void fill_big(uint8_t *bytes, uint64_t number)
{
    for (uint32_t i = 0; i < DRIVER_BIG_STEP; i++)
        bytes[i] = (uint8_t)(i * 7 + number * 31 + i / 256);
}

static void an_insert_without_space_goes_on_where_it_stopped(void)
{
    struct driver *driver = driver_open(8, 8972, 64);
    struct datagram hello, datagram, filler, third;
    uint8_t big[DRIVER_BIG_STEP];

    make_hello(&hello, 99, 8972, 8972);
    post(driver, &hello, 1);
    uint32_t one = ((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(struct nr_wire_welcome)))->session;
    uint32_t two = open_session(driver, 2);
    uint32_t handle = open_stream(driver, 1, one, 1, 1, 1), other = open_stream(driver, 2, two, 1, 1, 2);

    /* The other's unfinished steps take all places but one. */
    for (uint32_t i = 0; i + 1 < DRIVER_BIG_STEPS; i++) {
        if (i == 6)
            other = open_stream(driver, 2, two, 2, 1, 3);
        start_insert(&filler, two, 0, i + 1, i, 0);
        add_step(&filler, other, i % 6, DRIVER_BIG_STEP, 0, big, 8);
        expect(driver, post(driver, &filler, 2), NR_OK);
    }

    /* Steps 0 and 1 in two fragments, each with a part of both: the second step finds no place. */
    for (uint32_t fragment = 0; fragment < 2; fragment++) {
        uint32_t from = fragment * 2000;

        start_insert(&datagram, one, 0, 1, 0, 2);
        head(&datagram)->fragment = (uint16_t)fragment;
        head(&datagram)->fragments = 2;
        for (uint64_t step = 0; step < 2; step++) {
            fill_big(big, step);
            add_step(&datagram, handle, step, DRIVER_BIG_STEP, from, big + from, 2000);
            add_item(&datagram, 1, handle, (uint16_t)step, step, step, 1, 1.0);
            if (fragment == 1)
                datagram.length -= sizeof(struct nr_wire_item) + 8; /* items come with the first */
        }
        expect(driver, post(driver, &datagram, 1), NR_WAIT_SPACE);
        CHECK_EQUAL(answer_state(driver, 0)->fragments, 0);
        expect(driver, post(driver, &datagram, 1), NR_WAIT_SPACE);
        if (fragment == 0)
            third = datagram;
    }
    /* The other leaves: its unfinished steps go, and repeats go on. */
    start(&filler, NR_OP_BYE, two, NR_STATELESS_SLOT, 1);
    expect(driver, post(driver, &filler, 2), NR_OK);
    expect(driver, post(driver, &datagram, 1), NR_PENDING);
    CHECK_EQUAL(answer_state(driver, 0)->fragments, 2);
    expect(driver, post(driver, &third, 1), NR_OK);
    const uint8_t *result = answer_result(driver, 0, 18);
    CHECK(result[16] == NR_OK && result[17] == NR_OK);

    /* And every byte is where it belongs. */
    make_sample(&datagram, one, 1, 1, 1, 1, 64);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    const uint8_t *row = driver->caught[0].datagram.bytes + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_message);
    fill_big(big, row[16]); /* the column says the item's number, which is its step's */
    CHECK(memcmp(row + 24, big, DRIVER_BIG_STEP) == 0);
    driver_close(driver);
}

static void steps_leave_from_the_slab_and_stay_until_sent(void)
{
    struct driver *driver = driver_open(8, 8972, 64);
    struct datagram hello, datagram;
    uint8_t big[DRIVER_BIG_STEP];

    make_hello(&hello, 99, 8972, 8972);
    post(driver, &hello, 1);
    uint32_t session = ((const struct nr_wire_welcome *)answer_result(driver, 0, sizeof(struct nr_wire_welcome)))->session;
    uint32_t handle = open_stream(driver, 1, session, 1, 1, 1);

    for (uint64_t number = 0; number < 2; number++) {
        start_insert(&datagram, session, 0, (uint32_t)number + 1, (uint32_t)number, 1);
        fill_big(big, number);
        add_step(&datagram, handle, number, DRIVER_BIG_STEP, 0, big, DRIVER_BIG_STEP);
        add_item(&datagram, 1, handle, 0, number, number, 1, 1.0);
        expect(driver, post(driver, &datagram, 1), NR_OK);
    }
    /* Two rows: the first's step is all that a store of so few steps lends, the second's is copied. */
    driver->slow = true;
    make_sample(&datagram, session, 1, 1, 1, 2, 64);
    CHECK_EQUAL(post(driver, &datagram, 1), 1);
    CHECK(driver->waiting == DRIVER_BIG_STEPS / 8 && driver->referred == 1 && driver->token[0] != NR_TOKEN_NONE);
    CHECK_EQUAL(driver->caught[0].datagram.length, NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_message) + 2 * DRIVER_BIG_ROW);
    for (uint32_t row = 0; row < 2; row++) {
        const uint8_t *at =
            driver->caught[0].datagram.bytes + NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_message) + row * DRIVER_BIG_ROW;

        fill_big(big, at[16]);
        CHECK(memcmp(at + 24, big, DRIVER_BIG_STEP) == 0);
    }
    char message[200];
    CHECK_EQUAL(nr_server_audit(driver->server, message, sizeof(message)), NR_OK);

    /* The session goes, its draw and its stream with it, while the datagram is under way. */
    start(&datagram, NR_OP_BYE, session, NR_STATELESS_SLOT, 1);
    post(driver, &datagram, 1);
    CHECK_EQUAL(nr_server_audit(driver->server, message, sizeof(message)), NR_OK);
    driver_let_go(driver);
    driver->slow = false;
    nr_server_sent(driver->server, NR_TOKEN_NONE);
    driver_close(driver);
}

int main(void)
{
    hello_is_answered_once_and_never_with_more();
    only_its_peer_speaks_for_a_session();
    what_is_malformed_is_counted_and_not_answered();
    streams_are_opened_once_and_owned();
    an_insert_is_stored_once();
    fragments_and_sequences_come_in_any_order();
    an_insert_waits_for_steps_of_a_later_one();
    a_step_that_does_not_fit_refuses_the_insert_in_its_turn();
    an_insert_without_space_goes_on_where_it_stopped();
    steps_leave_from_the_slab_and_stay_until_sent();
    return 0;
}
