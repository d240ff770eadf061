/* The server by hand-made datagrams: deletion, limits changed and tables reset while others wait, each done once. */
#include "server_driver.h"

/* INSERT of `count` one-step items into table 0, from `number` on, as the only datagram of its request. */
static uint32_t insert(struct driver *driver, uint32_t peer, uint32_t session, uint32_t request, uint32_t handle, uint64_t number,
                       uint16_t count)
{
    struct datagram datagram;

    start_insert(&datagram, session, 13, request, request - 1, count);
    for (uint16_t i = 0; i < count; i++) {
        add_small_step(&datagram, handle, number + i);
        add_item(&datagram, 0, handle, i, number + i, number + i, 1, 1.0);
    }
    return post(driver, &datagram, peer);
}

static void make_delete(struct datagram *datagram, uint32_t session, uint32_t request, const uint64_t *keys, uint16_t count,
                        uint16_t first, uint16_t part)
{
    struct nr_wire_update update = {.table = 0, .count = count, .first = first};

    start(datagram, NR_OP_DELETE, session, 1, request);
    add(datagram, &update, sizeof(update));
    add(datagram, keys + first, part * (uint32_t)sizeof(uint64_t));
}

static void make_admin(struct datagram *datagram, uint32_t session, uint8_t slot, uint32_t request, uint32_t kind, uint32_t table,
                       const struct nr_limits_change *change)
{
    struct nr_wire_admin admin = {.kind = kind, .table = table};

    start(datagram, NR_OP_ADMIN, session, slot, request);
    add(datagram, &admin, sizeof(admin));
    if (change != NULL)
        add(datagram, change, sizeof(*change));
}

static void deletions_are_done_once_per_datagram_and_told_at_the_end(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    struct datagram part[2], bad;
    uint64_t keys[7];

    expect(driver, insert(driver, 1, session, 1, handle, 0, 6), NR_OK);
    memcpy(keys, answer_result(driver, 0, 54), 6 * sizeof(keys[0]));
    keys[6] = keys[1];
    for (uint16_t fragment = 0; fragment < 2; fragment++) {
        make_delete(&part[fragment], session, 1, keys, 7, fragment * 4, fragment ? 3 : 4);
        head(&part[fragment])->fragment = fragment;
        head(&part[fragment])->fragments = 2;
    }
    expect(driver, post(driver, &part[1], 1), NR_PENDING);
    CHECK_EQUAL(table_info(driver, 0).size, 3);
    expect(driver, post(driver, &part[1], 1), NR_PENDING); /* a repeat does nothing, and hears the same */
    expect(driver, insert(driver, 1, session, 2, handle, 6, 3), NR_OK);
    expect(driver, post(driver, &part[0], 1), NR_OK);
    static const uint8_t outcome[7] = {NR_APPLIED, NR_OUTCOME_STALE, NR_APPLIED, NR_APPLIED, NR_APPLIED, NR_APPLIED, NR_APPLIED};
    CHECK(memcmp(answer_result(driver, 0, 7), outcome, 7) == 0);
    expect(driver, post(driver, &part[0], 1), NR_OK);
    CHECK(memcmp(answer_result(driver, 0, 7), outcome, 7) == 0);
    CHECK(table_info(driver, 0).size == 3 && table_info(driver, 0).evicted_deleted == 6 && counters(driver).deletes == 1 &&
          counters(driver).updates == 0);

    /* The same number for an update, other counts, half a key, none, too many, another table. */
    bad = part[0];
    head(&bad)->operation = NR_OP_UPDATE;
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    bad = part[0];
    ((struct nr_wire_update *)(bad.bytes + sizeof(struct nr_header)))->count = 8;
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    make_delete(&bad, session, 2, keys, 4, 0, 4);
    bad.length -= 4;
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    make_delete(&bad, session, 2, keys, 3, 0, 4);
    CHECK_EQUAL(post(driver, &bad, 1), 0);
    make_delete(&bad, session, 2, keys, 0, 0, 0);
    expect(driver, post(driver, &bad, 1), NR_BAD_COUNT);
    make_delete(&bad, session, 3, keys, NR_UPDATE_KEYS + 1, 0, 4);
    expect(driver, post(driver, &bad, 1), NR_BAD_COUNT);
    make_delete(&bad, session, 4, keys, 4, 0, 4);
    ((struct nr_wire_update *)(bad.bytes + sizeof(struct nr_header)))->table = 2;
    expect(driver, post(driver, &bad, 1), NR_NO_TABLE);
    CHECK_EQUAL(table_info(driver, 0).size, 3);
    driver_close(driver);
}

static void limits_change_once_and_those_who_wait_go_on(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1), other = open_session(driver, 2);
    struct datagram datagram, first;

    expect(driver, insert(driver, 1, session, 1, handle, 0, 2), NR_OK);
    make_sample(&datagram, session, 2, 1, 0, 2, 1);
    expect(driver, post(driver, &datagram, 1), NR_WAIT_LIMITER);
    make_admin(&first, other, 0, 1, NR_ADMIN_CONFIGURE, 0, &(struct nr_limits_change){.which = NR_LIMIT_MIN_SIZE, .min_size = 2});
    CHECK_EQUAL(post(driver, &first, 2), 2);
    CHECK_EQUAL(answer_head(driver, 0)->status, NR_OK);
    const struct nr_limits *limits = (const void *)(answer_state(driver, 0) + 1);
    CHECK(limits->min_size == 2 && limits->samples_per_insert == 0);
    CHECK(answer_head(driver, 1)->session == session && (answer_head(driver, 1)->flags & NR_FLAG_DATA));
    CHECK_EQUAL(counters(driver).parked, 0);

    /* A ratio: the second item more has to wait for what the sample took. */
    make_admin(&datagram, other, 0, 2, NR_ADMIN_CONFIGURE, 0,
               &(struct nr_limits_change){
                   .which = NR_LIMIT_SAMPLES_PER_INSERT | NR_LIMIT_ERROR_BUFFER, .samples_per_insert = 1, .error_buffer = 1});
    expect(driver, post(driver, &datagram, 2), NR_OK);
    CHECK(table_info(driver, 0).least == 1 && table_info(driver, 0).most == 3);
    expect(driver, insert(driver, 1, session, 2, handle, 2, 2), NR_WAIT_INSERTS);
    CHECK(answer_state(driver, 0)->reason == NR_WAIT_INSERTS && answer_state(driver, 0)->have == 0 &&
          answer_state(driver, 0)->need == 1 && answer_state(driver, 0)->table == 0);
    CHECK(counters(driver).parked == 1 && table_info(driver, 0).size == 3);
    make_settle(&datagram, session, 2, 1, NR_SETTLE_COMMIT);
    CHECK_EQUAL(post(driver, &datagram, 1), 2);
    CHECK(answer_head(driver, 1)->operation == (NR_OP_INSERT | NR_OP_RESPONSE) && answer_head(driver, 1)->status == NR_OK);
    expect(driver, insert(driver, 1, session, 3, handle, 4, 4), NR_WAIT_INSERTS);
    make_admin(&datagram, other, 0, 3, NR_ADMIN_CONFIGURE, 0,
               &(struct nr_limits_change){.which = NR_LIMIT_ERROR_BUFFER, .error_buffer = 50});
    CHECK_EQUAL(post(driver, &datagram, 2), 2);
    CHECK(counters(driver).parked == 0 && table_info(driver, 0).size == 8);
    /* A repeat of what was done, now that it would change something again. */
    uint64_t admins = counters(driver).admins;
    make_admin(&first, session, 0, 1, NR_ADMIN_CONFIGURE, 0,
               &(struct nr_limits_change){.which = NR_LIMIT_ERROR_BUFFER, .error_buffer = 2});
    expect(driver, post(driver, &first, 1), NR_OK);
    make_admin(&datagram, other, 0, 4, NR_ADMIN_CONFIGURE, 0,
               &(struct nr_limits_change){.which = NR_LIMIT_ERROR_BUFFER, .error_buffer = 9});
    expect(driver, post(driver, &datagram, 2), NR_OK);
    expect(driver, post(driver, &first, 1), NR_OK);
    CHECK_EQUAL(((const struct nr_limits *)answer_result(driver, 0, sizeof(struct nr_limits)))->most, 4);
    CHECK(table_info(driver, 0).most == 11 && counters(driver).admins == admins + 2);
    driver_close(driver);
}

static void what_cannot_be_done_is_answered_and_does_nothing(void)
{
    struct driver *driver = driver_open(8, 1472, 64);
    uint32_t session = open_session(driver, 1);
    struct datagram datagram;
    struct nr_limits_change change = {.which = NR_LIMIT_MIN_SIZE, .min_size = 65};

    make_admin(&datagram, session, 0, 1, NR_ADMIN_CONFIGURE, 0, &change);
    expect(driver, post(driver, &datagram, 1), NR_BAD_LIMITS);
    change = (struct nr_limits_change){.which = NR_LIMIT_SAMPLES_PER_INSERT, .samples_per_insert = 2};
    make_admin(&datagram, session, 0, 2, NR_ADMIN_CONFIGURE, 0, &change);
    expect(driver, post(driver, &datagram, 1), NR_BAD_LIMITS);
    change.which = 1 << 20;
    make_admin(&datagram, session, 0, 3, NR_ADMIN_CONFIGURE, 0, &change);
    expect(driver, post(driver, &datagram, 1), NR_BAD_LIMITS);
    make_admin(&datagram, session, 0, 4, NR_ADMIN_CONFIGURE, 2, &change);
    expect(driver, post(driver, &datagram, 1), NR_NO_TABLE);
    make_admin(&datagram, session, 0, 5, NR_ADMIN_RESET, 2, NULL);
    expect(driver, post(driver, &datagram, 1), NR_NO_TABLE);
    make_admin(&datagram, session, 0, 6, 77, 0, NULL); /* of a newer client */
    expect(driver, post(driver, &datagram, 1), NR_MALFORMED);
    CHECK(table_info(driver, 0).min_size == 4 && table_info(driver, 0).samples_per_insert == 0);

    uint64_t malformed = counters(driver).malformed;
    make_admin(&datagram, session, 0, 7, NR_ADMIN_RESET, 0, &change); /* too long, too short, in two, an operation of none */
    CHECK_EQUAL(post(driver, &datagram, 1), 0);
    make_admin(&datagram, session, 0, 7, NR_ADMIN_CONFIGURE, 0, NULL);
    CHECK_EQUAL(post(driver, &datagram, 1), 0);
    make_admin(&datagram, session, 0, 7, NR_ADMIN_RESET, 0, NULL);
    head(&datagram)->fragments = 2;
    CHECK_EQUAL(post(driver, &datagram, 1), 0);
    make_admin(&datagram, session, 0, 7, NR_ADMIN_RESET, 0, NULL);
    head(&datagram)->operation = NR_OP_LAST + 1;
    CHECK_EQUAL(post(driver, &datagram, 1), 0);
    CHECK_EQUAL(counters(driver).malformed, malformed + 4);
    driver_close(driver);
}

enum { MANY = 2048 }; /* several quanta */

static void a_reset_is_answered_when_all_have_left(void)
{
    struct driver *driver = driver_open(8, 1472, MANY);
    uint32_t session = open_session(driver, 1), handle = open_stream(driver, 1, session, 1, 0, 1);
    uint32_t other = open_session(driver, 2), third = open_session(driver, 3);
    struct datagram datagram, reset, sample;
    uint32_t request = 1;

    for (uint32_t i = 0; i < MANY / 32; i++)
        expect(driver, insert(driver, 1, session, request++, handle, i * 32, 32), NR_OK);
    CHECK_EQUAL(table_info(driver, 0).size, MANY);
    make_admin(&reset, other, 0, 1, NR_ADMIN_RESET, 0, NULL);
    expect(driver, post(driver, &reset, 2), NR_WAIT_LEAVING);
    uint64_t left = answer_state(driver, 0)->have;
    CHECK(left > 0 && left < MANY && answer_state(driver, 0)->need == 0 && answer_state(driver, 0)->table == 0);
    /* Another reset joins it; its session dies. Inserts and draws wait, datagrams alone do not go on with it. */
    make_admin(&datagram, third, 0, 1, NR_ADMIN_RESET, 0, NULL);
    expect(driver, post(driver, &datagram, 3), NR_WAIT_LEAVING);
    CHECK(answer_state(driver, 0)->have < left);
    left = answer_state(driver, 0)->have;
    start(&datagram, NR_OP_BYE, third, NR_STATELESS_SLOT, 1);
    expect(driver, post(driver, &datagram, 3), NR_OK);
    expect(driver, insert(driver, 1, session, request++, handle, MANY, 5), NR_WAIT_LEAVING);
    make_sample(&sample, session, 2, 1, 0, 1, 1);
    expect(driver, post(driver, &sample, 1), NR_WAIT_LEAVING);
    expect(driver, post(driver, &reset, 2), NR_WAIT_LEAVING); /* not begun anew */
    CHECK_EQUAL(answer_state(driver, 0)->have, left);
    CHECK_EQUAL(counters(driver).parked, 3);

    driver->count = 0;
    for (uint32_t quanta = 0; nr_engine_leaving(driver->engine); quanta++) {
        CHECK(quanta < 4 && driver->count == 0);
        nr_server_sweep(driver->server, driver->now, &driver->outbox);
        driver_flush(&driver->outbox);
    }
    CHECK_EQUAL(driver->count, 3);
    CHECK(answer_head(driver, 0)->operation == (NR_OP_ADMIN | NR_OP_RESPONSE) && answer_head(driver, 0)->status == NR_OK);
    CHECK(answer_head(driver, 1)->operation == (NR_OP_INSERT | NR_OP_RESPONSE) && answer_head(driver, 1)->status == NR_OK);
    CHECK(answer_head(driver, 2)->operation == (NR_OP_SAMPLE | NR_OP_RESPONSE) && (answer_head(driver, 2)->flags & NR_FLAG_DATA));
    CHECK(table_info(driver, 0).size == 5 && table_info(driver, 0).inserted == 5 && table_info(driver, 0).evicted_reset == MANY);

    expect(driver, post(driver, &reset, 2), NR_OK); /* a late copy resets nothing */
    CHECK(table_info(driver, 0).size == 5 && !nr_engine_leaving(driver->engine));
    make_admin(&reset, other, 0, 2, NR_ADMIN_RESET, 0, NULL); /* a small table is done at once */
    expect(driver, post(driver, &reset, 2), NR_OK);
    CHECK_EQUAL(table_info(driver, 0).size, 0);
    driver_close(driver);
}

int main(void)
{
    deletions_are_done_once_per_datagram_and_told_at_the_end();
    limits_change_once_and_those_who_wait_go_on();
    what_cannot_be_done_is_answered_and_does_nothing();
    a_reset_is_answered_when_all_have_left();
    return 0;
}
