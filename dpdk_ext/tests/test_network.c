/* The replay behind the protocol: a server on another thread, kernel UDP between, good and bad networks, restarts. */
#include "replay_behaviour.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

#include "io/udp.h"
#include "loop/appliance.h"
#include "protocol/wire.h"
#include "testing/forwarder.h"

struct server {
    struct nr_appliance *appliance;
    pthread_t thread;
    uint16_t port;
};

static uint32_t poll_of_all = NR_POLL_ADAPTIVE;

static void *serve(void *argument)
{
    nr_appliance_run(argument);
    return NULL;
}

static void server_start(struct server *server, const struct nr_engine_config *config, uint16_t port)
{
    int status, error;
    struct nr_packet_io *io = nr_udp_listen(&(struct nr_udp_config){.host = "127.0.0.1", .port = port}, &error);
    const struct nr_appliance_config options = {.io = &io, .links = 1, .sessions = 16, .session_ns = 2000 * MILLISECOND};
    struct nr_engine *engine = nr_engine_create(config, &status);
    struct nr_udp_info info;

    CHECK(io != NULL && engine != NULL);
    nr_udp_info(io, &info);
    server->port = nr_peer_port(&info.local);
    server->appliance = nr_appliance_open(engine, config, "the spec", &options, &status);
    CHECK(server->appliance != NULL);
    CHECK(pthread_create(&server->thread, NULL, serve, server->appliance) == 0);
}

static void server_stop(struct server *server)
{
    nr_appliance_stop(server->appliance);
    CHECK(pthread_join(server->thread, NULL) == 0);
    nr_appliance_close(server->appliance);
}

static struct nr_replay *connect_to(uint16_t port, const struct nr_engine_config *config)
{
    const struct nr_connect_options options = {.poll = poll_of_all};
    int status;
    struct nr_replay *replay = nr_replay_udp("127.0.0.1", port, &options, &status);

    CHECK(replay != NULL);
    CHECK_EQUAL(nr_replay_ready(replay, LONG), NR_OK);
    CHECK(strcmp(nr_replay_spec(replay), "the spec") == 0);
    CHECK_EQUAL(nr_replay_layout(replay, config), NR_OK);
    return replay;
}

static void world_open(struct world *world)
{
    struct server *server = calloc(1, sizeof(*server));

    CHECK(server != NULL);
    server_start(server, &world->spec.config, 0);
    world->replay = connect_to(server->port, &world->spec.config);
    world->server = server;
}

static void world_close(struct world *world)
{
    nr_replay_free(world->replay);
    server_stop(world->server);
    free(world->server);
}

static void nobody_answers(void)
{
    const struct nr_connect_options options = {0};
    struct nr_blocked blocked;
    struct nr_operation *operation;
    struct nr_ping ping;
    int status;
    uint64_t before = clock_now();
    struct nr_replay *replay = nr_replay_udp("127.0.0.1", 9, &options, &status);

    CHECK(replay != NULL);
    CHECK_EQUAL(nr_replay_ready(replay, 100 * MILLISECOND), NR_PENDING);
    CHECK(clock_now() - before >= 100 * MILLISECOND);
    nr_replay_blocked(replay, &blocked);
    CHECK(blocked.silent_ns == UINT64_MAX);
    CHECK_EQUAL(blocked.unreachable, ECONNREFUSED);
    CHECK_EQUAL(nr_ping(replay, 0, &ping, 10 * MILLISECOND, &operation), NR_PENDING);
    nr_operation_blocked(operation, &blocked);
    CHECK_EQUAL(blocked.wait.reason, 0);
    nr_operation_cancel(operation);
    nr_replay_free(replay);

    CHECK(nr_replay_udp("no such host.invalid", 7447, &options, &status) == NULL);
    CHECK_EQUAL(status, NR_BAD_ADDRESS);
    CHECK(nr_replay_udp("127.0.0.1", 0, &options, &status) == NULL);
    CHECK_EQUAL(status, NR_BAD_ADDRESS);
}

static void a_batch_larger_than_a_session_may_hold(void)
{
    struct world world;
    static struct toy_rows toy;
    static struct toy_row rows[3500];
    struct nr_sample *sample;
    struct nr_draw_head heads[14];
    int status;

    toy_spec(&world.spec, 500, 400, 1, 64, NR_AUTORESET_NEXT_STEP);
    world_open(&world);
    struct nr_actor *actor = nr_actor_open(world.replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t i = 0; i < 8; i++) {
        for (uint32_t r = 0; r < 64; r++)
            toy_fill(&toy, r, i, false, false);
        append(actor, &toy, false);
    }
    CHECK_EQUAL(nr_sample_start(world.replay, 0, 3500, rows, &sample), NR_OK);
    CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);
    CHECK_EQUAL(nr_sample_heads(sample, heads), 14);
    for (uint32_t i = 0; i < 3500; i++)
        CHECK(rows[i].next_observation[0] == rows[i].observation[0] + 4);
    nr_sample_settle(sample, 1);
    settled(world.replay);
    world_close(&world);
}

/* The shares of a call are the growth of the counters over it; moments with several requests open count once. */
static void the_time_of_a_call_is_told(void)
{
    struct world world;
    static struct toy_rows toy;
    static struct toy_row rows[512];
    struct nr_replay_counters before, after;
    struct nr_operation *operation;
    struct nr_sample *sample;
    struct nr_ping ping;
    int status;
    uint64_t begin = clock_now();

    toy_spec(&world.spec, 500, 100, 1, 64, NR_AUTORESET_NEXT_STEP);
    world_open(&world);
    struct nr_actor *actor = nr_actor_open(world.replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t call = 0; call < 8; call++) {
        nr_replay_counters(world.replay, &before);
        if (call < 6) {
            for (uint32_t r = 0; r < 64; r++)
                toy_fill(&toy, r, call, false, false);
            append(actor, &toy, false);
            CHECK_EQUAL(nr_actor_flush(actor, LONG, &operation), NR_OK);
        } else if (call == 6) { /* in two parts, which overlap */
            CHECK_EQUAL(nr_sample_start(world.replay, 0, 512, rows, &sample), NR_OK);
            CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);
        } else {
            CHECK_EQUAL(nr_ping(world.replay, 0, &ping, LONG, &operation), NR_OK);
            CHECK(ping.server_ns <= ping.round_trip_ns);
        }
        nr_replay_counters(world.replay, &after);
        if (call < 5)
            continue; /* the first steps complete no item */
        CHECK(after.answers > before.answers);
        CHECK(after.answer_ns > before.answer_ns && after.answer_ns <= clock_now() - begin);
        CHECK(after.serving_ns > before.serving_ns && after.serving_ns <= after.answer_ns);
    }
    nr_sample_settle(sample, 1);
    world_close(&world);
}

/* Items inserted over the network, then all looked at: each was stored once, with its own bytes. */
static void insert_and_compare(struct nr_replay *replay, const struct toy_spec *spec, uint32_t calls)
{
    static struct toy_rows toy;
    static struct toy_row rows[512];
    const uint32_t streams = spec->actor.streams;
    int status;
    struct nr_actor *actor = nr_actor_open(replay, &spec->actor, &status);
    struct nr_sample *sample;

    CHECK(actor != NULL);
    toy_rows(&toy);
    for (uint32_t i = 0; i < calls; i++) {
        for (uint32_t r = 0; r < streams; r++)
            toy_fill(&toy, r, i, i % 20 == 18, false);
        append(actor, &toy, false);
    }
    flush(actor);

    uint64_t items = (uint64_t)calls / 20 * 19 * streams;
    uint64_t *keys = malloc(items * sizeof(*keys));
    int32_t *statuses = malloc(items * sizeof(*statuses));

    CHECK_EQUAL(nr_actor_keys(actor, items, keys, statuses), items);
    for (uint64_t i = 0; i < items; i++)
        CHECK_EQUAL(statuses[i], NR_OK);
    CHECK_EQUAL(size_of(replay), items);
    for (int i = 0; i < 20; i++) {
        CHECK_EQUAL(nr_sample_start(replay, 0, 512, rows, &sample), NR_OK);
        CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);
        for (int j = 0; j < 512; j++) {
            CHECK_EQUAL((int)rows[j].observation[0], rows[j].action * 4);
            CHECK(rows[j].next_observation[0] == rows[j].observation[0] + 4 * (float)rows[j].length);
        }
        nr_sample_settle(sample, i & 1);
    }
    struct nr_table_info info = settled(replay);
    CHECK_EQUAL(info.sampled, 10 * 512);
    CHECK_EQUAL(info.inserted, items);
    free(keys);
    free(statuses);
    nr_actor_close(actor);
}

static void *run_forwarder(void *argument)
{
    CHECK_EQUAL(nr_forwarder_run(argument), 0);
    return NULL;
}

static void a_bad_network_loses_nothing(void)
{
    struct toy_spec spec;
    struct server server;
    const struct nr_forwarder_faults faults = {.loss = 0.2, .duplicate = 0.1, .reorder = 0.1};
    struct nr_forwarder_config config = {
        .listen_host = "127.0.0.1", .server_host = "127.0.0.1", .seed = 3, .faults = {faults, faults}};
    int error;

    toy_spec(&spec, 4000, 100, 3, 10, NR_AUTORESET_NEXT_STEP);
    server_start(&server, &spec.config, 0);
    config.server_port = server.port;
    struct nr_forwarder *forwarder = nr_forwarder_open(&config, &error);
    pthread_t thread;

    CHECK(forwarder != NULL);
    CHECK(pthread_create(&thread, NULL, run_forwarder, forwarder) == 0);
    struct nr_replay *replay = connect_to(nr_forwarder_port(forwarder), &spec.config);
    insert_and_compare(replay, &spec, 200);
    struct nr_replay_counters counters;
    nr_replay_counters(replay, &counters);
    CHECK(counters.retransmissions > 0);
    nr_replay_free(replay);
    nr_forwarder_stop(forwarder);
    CHECK(pthread_join(thread, NULL) == 0);
    nr_forwarder_close(forwarder);
    server_stop(&server);
}

static void a_restarted_server_is_taken_up_again(void)
{
    struct toy_spec spec;
    struct server server;
    static struct toy_rows toy;
    static struct toy_row rows[64];
    struct nr_operation *operation;
    struct nr_sample *sample;
    struct nr_actor_counters counters;
    struct nr_fetched fetched;
    struct nr_loss losses[8];
    uint64_t version, lost = 0, keys[64], before;
    int32_t statuses[64];
    int status;

    toy_spec(&spec, 1000, 1, 3, 2, NR_AUTORESET_NEXT_STEP);
    server_start(&server, &spec.config, 0);
    struct nr_replay *replay = connect_to(server.port, &spec.config);
    struct nr_actor *actor = nr_actor_open(replay, &spec.actor, &status);
    CHECK_EQUAL(nr_publish(replay, 0, "weights", 7, UINT64_MAX, &version, LONG, &operation), NR_OK);
    toy_rows(&toy);
    for (uint32_t i = 0; i < 20; i++) {
        toy_fill(&toy, 0, i, false, false);
        toy_fill(&toy, 1, i, false, false);
        append(actor, &toy, false);
    }
    flush(actor);
    CHECK_EQUAL(nr_actor_keys(actor, 64, keys, statuses), 34);
    /* A batch is held over the restart. */
    CHECK_EQUAL(nr_sample_start(replay, 0, 32, rows, &sample), NR_OK);
    CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);

    server_stop(&server);
    for (uint32_t i = 20; i < 30; i++) {
        toy_fill(&toy, 0, i, false, false);
        toy_fill(&toy, 1, i, false, false);
        append(actor, &toy, false);
    }
    CHECK_EQUAL(nr_actor_flush(actor, 20 * MILLISECOND, &operation), NR_PENDING);
    server_start(&server, &spec.config, server.port);
    CHECK_EQUAL(nr_operation_wait(operation, LONG), NR_OK);
    CHECK_EQUAL(nr_actor_keys(actor, 64, keys, statuses), 20);
    for (int i = 0; i < 20; i++)
        CHECK_EQUAL(statuses[i], NR_OK);
    nr_sample_settle(sample, 1);
    CHECK_EQUAL(size_of(replay), 20);
    nr_actor_counters(actor, &counters);
    CHECK_EQUAL(counters.acknowledged, 54);
    CHECK_EQUAL(counters.lost, 34);
    CHECK_EQUAL(counters.reconnects, 1);
    uint32_t count = nr_replay_losses(replay, 8, losses);
    CHECK_EQUAL(count, 2);
    for (uint32_t i = 0; i < count; i++)
        lost += losses[i].items;
    CHECK_EQUAL(lost, 34);
    CHECK_EQUAL(nr_replay_losses(replay, 8, losses), 0);

    before = clock_now();
    do {
        CHECK_EQUAL(nr_fetch(replay, 0, 0, &fetched, LONG, &operation), NR_OK);
        CHECK(clock_now() - before < LONG);
    } while (fetched.data == NULL);
    CHECK(fetched.length == 7 && memcmp(fetched.data, "weights", 7) == 0);
    nr_fetched_free(&fetched);
    CHECK_EQUAL(nr_sample_start(replay, 0, 64, rows, &sample), NR_OK);
    CHECK_EQUAL(nr_sample_wait(sample, LONG), NR_OK);
    for (int i = 0; i < 64; i++)
        CHECK(rows[i].next_observation[0] == rows[i].observation[0] + 12);
    nr_sample_settle(sample, 1);
    nr_actor_close(actor);
    nr_replay_free(replay);
    server_stop(&server);
}

/* Nobody waits, and yet prefetched rows come, appends are acknowledged and settlements arrive. */
static void work_goes_on_while_nobody_waits(void)
{
    struct world world;
    static struct toy_rows toy;
    static struct toy_row rows[512];
    struct nr_sample *sample;
    struct nr_actor_counters counters;
    int status;
    uint64_t before;

    toy_spec(&world.spec, 4000, 100, 1, 64, NR_AUTORESET_NEXT_STEP);
    world_open(&world);
    struct nr_actor *actor = nr_actor_open(world.replay, &world.spec.actor, &status);
    toy_rows(&toy);
    CHECK_EQUAL(nr_sample_start(world.replay, 0, 512, rows, &sample), NR_OK);
    for (uint32_t i = 0; i < 10; i++)
        append(actor, &toy, false);
    before = clock_now();
    do {
        nr_actor_counters(actor, &counters);
        CHECK(clock_now() - before < LONG);
        usleep(1000);
    } while (counters.acknowledged != 9 * 64);
    while (nr_sample_wait(sample, 0) == NR_PENDING) {
        CHECK(clock_now() - before < LONG);
        usleep(1000);
    }
    CHECK(rows[511].key != 0);
    nr_sample_settle(sample, 1);
    nr_actor_close(actor);
    settled(world.replay);
    world_close(&world);
}

static void close_ends_every_wait(void)
{
    struct toy_spec spec;
    struct server server;
    struct nr_sample *sample;
    static struct toy_row rows[32];
    pthread_t thread[3];

    toy_spec(&spec, 1000, 500, 1, 1, NR_AUTORESET_NONE);
    server_start(&server, &spec.config, 0);
    struct race race = {.replay = connect_to(server.port, &spec.config), .spec = &spec};
    CHECK_EQUAL(nr_sample_start(race.replay, 0, 32, rows, &sample), NR_OK);
    pthread_barrier_init(&race.barrier, NULL, 4);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&thread[i], NULL, sample_for_long, &race) == 0);
    pthread_barrier_wait(&race.barrier);
    usleep(20000); /* all asleep, most likely */
    uint64_t before = clock_now();
    nr_replay_close(race.replay);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(thread[i], NULL) == 0);
    CHECK(clock_now() - before < 500 * MILLISECOND);
    nr_sample_settle(sample, 0);
    nr_replay_free(race.replay);
    pthread_barrier_destroy(&race.barrier);
    server_stop(&server);
}

/* Answers the next datagram at the port as a server does that does not know the session, and no other. */
static void forget_session(uint16_t port, struct nr_replay *replay)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t length = sizeof(from);
    struct {
        struct nr_header header;
        struct nr_wire_stamps stamps;
        struct nr_wire_state state;
    } answer = {.header = {0}};
    struct nr_operation *operation;
    struct nr_ping ping;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);

    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0);
    CHECK_EQUAL(nr_ping(replay, 0, &ping, MILLISECOND, &operation), NR_PENDING);
    CHECK(recvfrom(fd, &answer.header, sizeof(answer.header), 0, (struct sockaddr *)&from, &length) > 0);
    answer.header.operation |= NR_OP_RESPONSE;
    answer.header.status = NR_NO_SESSION;
    answer.header.length = sizeof(answer.stamps) + sizeof(answer.state);
    answer.header.counter = 0;
    CHECK(sendto(fd, &answer, sizeof(answer), 0, (struct sockaddr *)&from, length) == sizeof(answer));
    CHECK_EQUAL(nr_operation_wait(operation, 20 * MILLISECOND), NR_PENDING);
    nr_operation_cancel(operation);
    close(fd);
}

static void an_actor_may_be_closed_between_two_sessions(void)
{
    struct toy_spec spec;
    struct server server;
    static struct toy_rows toy;
    int status;

    toy_spec(&spec, 1000, 1, 3, 40, NR_AUTORESET_NEXT_STEP);
    server_start(&server, &spec.config, 0);
    struct nr_replay *replay = connect_to(server.port, &spec.config);
    struct nr_actor *actor = nr_actor_open(replay, &spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t i = 0; i < 10; i++)
        append(actor, &toy, false);
    flush(actor);
    server_stop(&server);
    forget_session(server.port, replay);
    nr_actor_close(actor);
    server_start(&server, &spec.config, server.port);
    CHECK_EQUAL(nr_replay_ready(replay, LONG), NR_OK);
    CHECK_EQUAL(size_of(replay), 0);
    actor = nr_actor_open(replay, &spec.actor, &status);
    for (uint32_t i = 0; i < 10; i++)
        append(actor, &toy, false);
    flush(actor);
    CHECK_EQUAL(size_of(replay), 40 * 7);
    nr_actor_close(actor);
    nr_replay_free(replay);
    server_stop(&server);
}

int main(void)
{
    nobody_answers();
    for (poll_of_all = NR_POLL_ADAPTIVE; poll_of_all <= NR_POLL_BUSY; poll_of_all++) {
        all_replays_behave();
        a_batch_larger_than_a_session_may_hold();
        work_goes_on_while_nobody_waits();
        the_time_of_a_call_is_told();
        close_ends_every_wait();
    }
    poll_of_all = NR_POLL_ADAPTIVE;
    a_restarted_server_is_taken_up_again();
    an_actor_may_be_closed_between_two_sessions();
    a_bad_network_loses_nothing();
    return 0;
}
