/* Whole conversations over a bad network: what is inserted is stored exactly once, what is sampled is what was inserted, and a
 * server that is killed loses exactly what the clients then name. Usage: test_simulator [seed [inserts]]. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "testing/simulator.h"

enum {
    STREAMS = 3,
    WINDOW = 4,
    FRAME = 40,                 /* bytes of a small observation */
    SMALL = 64,                 /* of a small step */
    LARGE = 20000,              /* of a large one: many datagrams */
    ROW_SMALL = 16 + 24 + 8 + WINDOW * FRAME,
    ROW_LARGE = 16 + 24 + LARGE,
    RING = 64,
    BATCH = 32,
};

struct columns {
    uint64_t stream, item, first;
};

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t z = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    return z ^ (z >> 27);
}

static void make_step(uint64_t stream, uint64_t number, uint64_t *words, uint32_t bytes)
{
    words[0] = stream;
    words[1] = number;
    for (uint32_t i = 2; i < bytes / 8; i++)
        words[i] = mix(stream, number, i);
}

static const struct nr_gather gathers[] = {
    {.delta = 0, .source = FRAME, .length = 8, .target = 40},
    {.delta = -1, .source = 0, .length = FRAME, .target = 48},
    {.delta = 0, .source = 0, .length = FRAME, .target = 48 + FRAME},
    {.delta = 1, .source = 0, .length = FRAME, .target = 48 + 2 * FRAME},
    {.delta = 2, .source = 0, .length = FRAME, .target = 48 + 3 * FRAME},
    {.delta = 0, .source = 0, .length = LARGE, .target = 40},
};
static const struct nr_store_config stores[] = {
    {.step_bytes = SMALL, .observation_bytes = FRAME, .steps = 300000, .window = WINDOW, .in_flight = 32, .streams = 64},
    {.step_bytes = LARGE, .observation_bytes = LARGE, .steps = 320, .window = 1, .in_flight = 8, .streams = 64},
};
static struct nr_table_config tables[] = {
    {.store = 0,
     .capacity = 200000,
     .exponent = 0.6,
     .limits.min_size = 100,
     .leases = 4096,
     .window = WINDOW,
     .row_bytes = ROW_SMALL,
     .item_bytes = 24,
     .gather_count = 5,
     .first_gather = 0},
    {.store = 1,
     .capacity = 16, /* places of the slab are used again while datagrams that had them are under way */
     .exponent = 1.0,
     .limits.min_size = 1,
     .leases = 256,
     .window = 1,
     .row_bytes = ROW_LARGE,
     .item_bytes = 24,
     .gather_count = 1,
     .first_gather = 5},
};
static const struct nr_set_config sets[] = {{.bytes = 1 << 20}};
static struct nr_engine_config engine = {.seed = 1,
                                         .lease_ns = 10000000000ull,
                                         .start_seconds = 1000,
                                         .store_count = 2,
                                         .table_count = 2,
                                         .set_count = 1,
                                         .stores = stores,
                                         .tables = tables,
                                         .gathers = gathers,
                                         .sets = sets};
static struct nr_server_config server = {.sessions = 16,
                                         .max_datagram = NR_MAX_DATAGRAM,
                                         .receive_buffer = 1024,
                                         .session_ns = 60000000000ull,
                                         .start_seconds = 1000,
                                         .spec = "{\"a spec of several datagrams\": 1}"};

/* ---- an actor: STREAMS streams of small or of large steps ---- */

struct actor {
    uint64_t base; /* of its streams' names */
    bool large, ready;
    bool settled;              /* after `last_word`: the server was heard, and holds the streams */
    bool last_word;            /* ask whether the server is still the same */
    struct nr_request *ping;
    uint64_t goal; /* items of each stream */
    uint32_t stream[STREAMS];
    uint64_t pushed[STREAMS], decided[STREAMS], lost[STREAMS];
    uint64_t duplicates;
    uint8_t *ring; /* [STREAMS][RING][bytes] */
    uint64_t *keys;
    uint64_t key_count;
};

static void actor_work(void *context, struct nr_client *client, uint64_t now)
{
    struct actor *actor = context;
    uint32_t bytes = actor->large ? LARGE : SMALL, window = actor->large ? 1 : WINDOW;
    if (!actor->ready) {
        if (nr_client_status(client) != NR_OK)
            return;
        CHECK_EQUAL(nr_client_layout(client, &engine), NR_OK);
        for (uint32_t s = 0; s < STREAMS; s++) {
            struct nr_client_stream_config config = {.store = actor->large, .ring = RING, .stride = bytes};
            uint64_t name = actor->base + s;
            memcpy(config.id, &name, sizeof(name));
            config.steps = actor->ring + (size_t)s * RING * bytes;
            actor->stream[s] = nr_client_stream_add(client, &config);
        }
        actor->ready = true;
    }
    struct nr_decided decided[64];
    uint32_t count;
    while ((count = nr_client_decided(client, 64, decided)) > 0)
        for (uint32_t i = 0; i < count; i++) {
            uint32_t s = (uint32_t)(decided[i].tag >> 32);
            CHECK_EQUAL((uint32_t)decided[i].tag, actor->decided[s]);
            actor->decided[s]++;
            if (decided[i].status == NR_DUPLICATE) {
                actor->duplicates++;
                continue;
            }
            CHECK_EQUAL(decided[i].status, NR_OK);
            actor->keys[actor->key_count++] = decided[i].key;
        }
    struct nr_client_loss losses[16];
    while ((count = nr_client_losses(client, 16, losses)) > 0)
        for (uint32_t i = 0; i < count; i++) {
            uint64_t name;
            memcpy(&name, losses[i].stream, sizeof(name));
            CHECK_EQUAL(losses[i].first_item, actor->lost[name - actor->base]); /* each named once */
            actor->lost[name - actor->base] = losses[i].first_item + losses[i].items;
        }
    for (uint32_t s = 0; s < STREAMS; s++)
        while (actor->pushed[s] < actor->goal && nr_client_stream_room(client, actor->stream[s]) > 0) {
            uint64_t step = nr_client_stream_next(client, actor->stream[s]);
            uint64_t words[LARGE / 8];
            make_step(actor->base + s, step, words, bytes);
            memcpy(actor->ring + ((size_t)s * RING + (step & (RING - 1))) * bytes, words, bytes);
            nr_client_step(client, actor->stream[s], step % 7 == 6 && !actor->large ? FRAME : bytes);
            if (step + 1 < window)
                continue;
            struct columns columns = {actor->base + s, actor->pushed[s], step + 1 - window};
            struct nr_item item = {.first_step = step + 1 - window,
                                   .steps = window,
                                   .anchor = actor->large ? 0 : 1,
                                   .length = actor->large ? 0 : 2,
                                   .priority = 1.0 + (double)(step % 10),
                                   .columns = &columns};
            CHECK_EQUAL(nr_client_item(client, actor->stream[s], actor->large, &item, (uint64_t)s << 32 | actor->pushed[s]), NR_OK);
            actor->pushed[s]++;
        }
    bool all = true;
    for (uint32_t s = 0; s < STREAMS; s++)
        all &= actor->pushed[s] == actor->goal;
    if (all)
        nr_client_flush(client);
    if (actor->last_word && actor->ping == NULL && !actor->settled)
        actor->ping = nr_client_ping(client, 0, now);
    if (actor->ping != NULL && nr_request_status(actor->ping) != NR_PENDING) {
        actor->settled = nr_client_status(client) == NR_OK;
        for (uint32_t s = 0; s < STREAMS; s++)
            actor->settled &= nr_client_stream_status(client, actor->stream[s]) == NR_OK;
        nr_request_free(client, actor->ping);
        actor->ping = NULL;
    }
}

static void actor_init(struct actor *actor, uint64_t base, bool large, uint64_t goal)
{
    memset(actor, 0, sizeof(*actor));
    actor->base = base;
    actor->large = large;
    actor->goal = goal;
    actor->ring = calloc((size_t)STREAMS * RING, large ? LARGE : SMALL);
    actor->keys = malloc(STREAMS * goal * sizeof(uint64_t));
    CHECK(actor->ring != NULL && actor->keys != NULL);
}

static void actor_free(struct actor *actor)
{
    free(actor->ring);
    free(actor->keys);
}

static bool actor_done(const struct actor *actor)
{
    for (uint32_t s = 0; s < STREAMS; s++)
        if (actor->decided[s] < actor->goal)
            return false;
    return true;
}

/* ---- a learner: two batches ahead, every byte checked, priorities set anew ---- */

struct learner {
    bool ready, large;
    struct nr_request *sample[2], *update;
    uint8_t *rows[2];
    uint64_t keys[BATCH];
    double priorities[BATCH];
    uint8_t outcome[BATCH];
    uint64_t batches, applied, stale, refused;
    struct nr_request *publish, *fetch;
    uint64_t published, fetched;
};

static void check_row(const struct learner *learner, const uint8_t *row)
{
    struct columns columns;
    uint64_t frame[LARGE / 8], expected[LARGE / 8], step_words[SMALL / 8];
    double probability;
    memcpy(&probability, row + 8, 8);
    CHECK(probability > 0 && probability <= 1);
    memcpy(&columns, row + 16, sizeof(columns));
    if (learner->large) {
        make_step(columns.stream, columns.first, expected, LARGE);
        CHECK(memcmp(row + 40, expected, LARGE) == 0);
        return;
    }
    for (uint32_t f = 0; f < WINDOW; f++) {
        memcpy(frame, row + 48 + f * FRAME, FRAME);
        make_step(columns.stream, columns.first + f, expected, FRAME);
        CHECK(memcmp(frame, expected, FRAME) == 0);
    }
    make_step(columns.stream, columns.first + 1, step_words, SMALL);
    uint64_t action;
    memcpy(&action, row + 40, 8);
    CHECK(action == ((columns.first + 1) % 7 == 6 ? 0 : step_words[FRAME / 8]));
}

static void learner_work(void *context, struct nr_client *client, uint64_t now)
{
    struct learner *learner = context;
    uint32_t row_bytes = learner->large ? ROW_LARGE : ROW_SMALL;
    if (nr_client_status(client) != NR_OK && !learner->ready)
        return;
    if (!learner->ready) {
        CHECK_EQUAL(nr_client_layout(client, &engine), NR_OK);
        learner->ready = true;
    }
    for (uint32_t b = 0; b < 2; b++) {
        if (learner->sample[b] != NULL && nr_request_status(learner->sample[b]) != NR_PENDING) {
            CHECK_EQUAL(nr_request_status(learner->sample[b]), NR_OK);
            for (uint32_t r = 0; r < BATCH; r++)
                check_row(learner, learner->rows[b] + (size_t)r * row_bytes);
            if (learner->update == NULL) {
                uint32_t distinct = 0;
                for (uint32_t r = 0; r < BATCH; r++) {
                    uint64_t key;
                    memcpy(&key, learner->rows[b] + (size_t)r * row_bytes, sizeof(key));
                    bool seen = false;
                    for (uint32_t i = 0; i < distinct; i++)
                        seen |= learner->keys[i] == key;
                    if (seen)
                        continue;
                    learner->keys[distinct] = key;
                    learner->priorities[distinct] = (double)(mix(key, learner->batches, 0) % 1000) / 100;
                    distinct++;
                }
                learner->update =
                    nr_client_update(client, learner->large, distinct, learner->keys, learner->priorities, learner->outcome, now);
                for (uint32_t i = 0; i < distinct; i++)
                    learner->outcome[i] = 0xff;
            }
            nr_client_settle(client, learner->sample[b], learner->batches % 5 != 4, now);
            learner->sample[b] = NULL;
            learner->batches++;
        }
        if (learner->sample[b] == NULL)
            learner->sample[b] = nr_client_sample(client, learner->large, BATCH, learner->rows[b], now);
    }
    if (learner->update != NULL && nr_request_status(learner->update) != NR_PENDING) {
        CHECK_EQUAL(nr_request_status(learner->update), NR_OK);
        for (uint32_t i = 0; i < BATCH && learner->outcome[i] != 0xff; i++) {
            learner->applied += learner->outcome[i] == NR_APPLIED;
            learner->stale += learner->outcome[i] == NR_OUTCOME_STALE;
            learner->refused += learner->outcome[i] == NR_OUTCOME_REFUSED;
        }
        nr_request_free(client, learner->update);
        learner->update = NULL;
    }
    if (learner->publish == NULL) {
        static uint8_t blob[150000];
        memset(blob, (int)(learner->published & 0xff), sizeof(blob));
        learner->publish = nr_client_publish(client, 0, blob, sizeof(blob), UINT64_MAX, now);
    } else if (nr_request_status(learner->publish) != NR_PENDING) {
        int status = nr_request_status(learner->publish);
        if (status != NR_CONFLICT) /* two learners publish to one set */
            CHECK_EQUAL(status, NR_OK);
        learner->published++;
        nr_request_free(client, learner->publish);
        learner->publish = NULL;
    }
    if (learner->fetch == NULL) {
        learner->fetch = nr_client_fetch(client, 0, 0, now);
    } else if (nr_request_status(learner->fetch) != NR_PENDING) {
        CHECK_EQUAL(nr_request_status(learner->fetch), NR_OK);
        uint64_t length;
        uint8_t *bytes = nr_request_take(learner->fetch, &length);
        if (bytes != NULL) {
            CHECK_EQUAL(length, 150000);
            for (uint64_t i = 1; i < length; i++)
                CHECK(bytes[i] == bytes[0]);
            learner->fetched++;
        }
        free(bytes);
        nr_request_free(client, learner->fetch);
        learner->fetch = NULL;
    }
}

static void learner_init(struct learner *learner, bool large)
{
    memset(learner, 0, sizeof(*learner));
    learner->large = large;
    for (uint32_t b = 0; b < 2; b++)
        CHECK((learner->rows[b] = malloc((size_t)BATCH * ROW_LARGE)) != NULL);
}

static void learner_free(struct learner *learner)
{
    free(learner->rows[0]);
    free(learner->rows[1]);
}

/* ---- a keeper of the large table: deletes, changes limits, resets, each again and again ---- */

struct keeper {
    struct actor *actor; /* who feeds the table */
    struct nr_request *request;
    bool ready;
    uint64_t keys[8], taken; /* of the deletion under way; the actor's keys below `taken` were named before */
    uint32_t count;
    uint8_t outcome[8];
    uint32_t turn, min_size;
    uint64_t deleted, stale, resets, configured; /* as answered */
};

static void keeper_answered(struct keeper *keeper)
{
    struct nr_limits limits;

    CHECK_EQUAL(nr_request_status(keeper->request), NR_OK);
    switch (keeper->turn % 3) {
    case 0:
        for (uint32_t i = 0; i < keeper->count; i++) {
            CHECK(keeper->outcome[i] == NR_APPLIED || keeper->outcome[i] == NR_OUTCOME_STALE);
            keeper->deleted += keeper->outcome[i] == NR_APPLIED;
            keeper->stale += keeper->outcome[i] == NR_OUTCOME_STALE;
        }
        break;
    case 1:
        nr_request_limits(keeper->request, &limits);
        CHECK_EQUAL(limits.min_size, keeper->min_size);
        keeper->configured++;
        break;
    default:
        keeper->resets++;
    }
}

static void keeper_work(void *context, struct nr_client *client, uint64_t now)
{
    struct keeper *keeper = context;

    if (!keeper->ready) {
        if (nr_client_status(client) != NR_OK)
            return;
        CHECK_EQUAL(nr_client_layout(client, &engine), NR_OK);
        keeper->ready = true;
    }
    if (keeper->request != NULL) {
        if (nr_request_status(keeper->request) == NR_PENDING)
            return;
        keeper_answered(keeper);
        nr_request_free(client, keeper->request);
        keeper->request = NULL;
        keeper->turn++;
    }
    keeper->turn += keeper->turn % 3 == 2 && keeper->turn % 30 != 2;
    if (keeper->turn % 3 == 0) {
        if (keeper->taken + 8 < keeper->actor->key_count) /* the older ones have left already */
            keeper->taken = keeper->actor->key_count - 8;
        for (keeper->count = 0; keeper->count < 8 && keeper->taken < keeper->actor->key_count; keeper->count++)
            keeper->keys[keeper->count] = keeper->actor->keys[keeper->taken++];
        if (keeper->count > 0) {
            keeper->request = nr_client_delete(client, 1, keeper->count, keeper->keys, keeper->outcome, now);
            return;
        }
        keeper->turn++; /* an idle client would not be called again */
    }
    if (keeper->turn % 3 == 1) {
        struct nr_limits_change change = {.which = NR_LIMIT_MIN_SIZE, .min_size = keeper->min_size = 1 + keeper->turn % 4};
        keeper->request = nr_client_configure(client, 1, &change, now);
    } else {
        keeper->request = nr_client_reset(client, 1, now);
    }
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void check_distinct(struct actor *actors, uint32_t count)
{
    uint64_t total = 0, at = 0;
    for (uint32_t a = 0; a < count; a++)
        total += actors[a].key_count;
    uint64_t *keys = malloc(total * sizeof(*keys) + 1);
    CHECK(keys != NULL);
    for (uint32_t a = 0; a < count; a++) {
        memcpy(keys + at, actors[a].keys, actors[a].key_count * sizeof(*keys));
        at += actors[a].key_count;
    }
    qsort(keys, total, sizeof(*keys), by_value);
    for (uint64_t i = 1; i < total; i++)
        CHECK(keys[i] != keys[i - 1]);
    free(keys);
}

static void audit(struct nr_simulator *simulator, uint32_t clients)
{
    char message[256];
    for (uint32_t c = 0; c < clients; c++)
        if (nr_client_audit(nr_simulator_client(simulator, c), message, sizeof(message)) != NR_OK) {
            fprintf(stderr, "audit of client %u: %s\n", c, message);
            exit(1);
        }
    if (nr_simulator_server(simulator) != NULL &&
        nr_server_audit(nr_simulator_server(simulator), message, sizeof(message)) != NR_OK) {
        fprintf(stderr, "audit: %s\n", message);
        exit(1);
    }
}

static bool is_empty(struct nr_simulator *simulator, uint32_t table)
{
    struct nr_table_info info = {0};
    return nr_simulator_engine(simulator) != NULL && nr_table_info(nr_simulator_engine(simulator), table, &info) == NR_OK &&
           info.size == 0;
}

/* `kills`: how many times the server dies on the way, with everything in it. `partitions`: how many times nothing passes for so
 * long that the sessions are swept while the server lives on. `ratio`: samples for each insert of the small table, 0: any. */
static void run(uint64_t seed, const struct nr_simulator_link *link, uint64_t inserts, uint32_t kills, uint32_t partitions,
                uint32_t max_datagram, double ratio)
{
    static const struct nr_simulator_link nothing = {.loss = 1.0};
    uint64_t partitioned = 0, until = 0;
    server.session_ns = partitions > 0 ? 100000000ull : 60000000000ull;
    enum { ACTORS = 4 };
    struct actor actors[ACTORS];
    struct learner learners[2];
    struct keeper keeper = {.actor = &actors[3]};
    struct nr_simulator *simulator = nr_simulator_create(seed, link);
    CHECK(simulator != NULL);
    engine.seed = seed;
    tables[0].limits.samples_per_insert = ratio;
    tables[0].limits.least = 100 * ratio - 2 * BATCH;
    tables[0].limits.most = 100 * ratio + 2 * BATCH;
    CHECK(nr_simulator_start_server(simulator, &engine, &server) != NULL);
    struct nr_client_config config = {.max_datagram = max_datagram};
    uint64_t small_goal = inserts / (3 * STREAMS), large_goal = 1000;
    for (uint32_t a = 0; a < ACTORS; a++) {
        actor_init(&actors[a], 100 * (a + 1), a == 3, a == 3 ? large_goal : small_goal);
        CHECK(nr_simulator_add_client(simulator, &config, actor_work, &actors[a]) != UINT32_MAX);
    }
    for (uint32_t l = 0; l < 2; l++) {
        learner_init(&learners[l], l == 1);
        CHECK(nr_simulator_add_client(simulator, &config, learner_work, &learners[l]) != UINT32_MAX);
    }
    CHECK(nr_simulator_add_client(simulator, &config, keeper_work, &keeper) != UINT32_MAX);
    uint64_t events = 0, killed = 0, down_until = 0;
    for (;;) {
        bool done = true;
        for (uint32_t a = 0; a < ACTORS; a++)
            done &= actor_done(&actors[a]);
        done &= learners[0].batches > 20 && learners[0].applied > 0;
        done &= learners[1].batches > 5 || is_empty(simulator, 1); /* a death after the last large item leaves none to draw */
        done &= learners[0].published + learners[1].published > 0 && learners[0].fetched + learners[1].fetched > 0;
        if (done && nr_simulator_server(simulator) != NULL)
            break;
        CHECK(nr_simulator_step(simulator));
        if (++events % 20000 == 0)
            audit(simulator, ACTORS + 3);
        if (events > 400000000) {
            fprintf(stderr, "no end in sight\n");
            exit(1);
        }
        uint64_t decided = actors[0].decided[0];
        if (killed < kills && decided >= (killed + 1) * small_goal / (kills + 1)) {
            nr_simulator_kill_server(simulator);
            killed++;
            down_until = nr_simulator_now(simulator) + 300000000ull;
        }
        if (partitioned < partitions && decided >= (partitioned + 1) * small_goal / (partitions + 1)) {
            nr_simulator_set_link(simulator, &nothing);
            partitioned++;
            until = nr_simulator_now(simulator) + 400000000ull;
        }
        if (until != 0 && nr_simulator_now(simulator) >= until) {
            nr_simulator_set_link(simulator, link);
            until = 0;
        }
        if (nr_simulator_server(simulator) == NULL && nr_simulator_now(simulator) >= down_until)
            CHECK(nr_simulator_start_server(simulator, &engine, &server) != NULL);
    }
    /* Losses are named when a stream is taken up again: an actor that had finished before the last death hears of it now. */
    for (uint32_t a = 0; a < ACTORS; a++) {
        actors[a].last_word = true;
        nr_simulator_wake(simulator, a);
        while (!actors[a].settled)
            CHECK(nr_simulator_step(simulator));
    }
    audit(simulator, ACTORS + 3);
    check_distinct(actors, ACTORS);
    struct nr_table_info info[2];
    for (uint32_t t = 0; t < 2; t++)
        CHECK_EQUAL(nr_table_info(nr_simulator_engine(simulator), t, &info[t]), NR_OK);
    uint64_t expected[2] = {0, 0}, lost = 0;
    for (uint32_t a = 0; a < ACTORS; a++)
        for (uint32_t s = 0; s < STREAMS; s++) {
            expected[actors[a].large] += actors[a].goal - actors[a].lost[s];
            lost += actors[a].lost[s];
        }
    CHECK_EQUAL(info[0].inserted, expected[0]);
    CHECK_EQUAL(info[1].size + info[1].evicted_capacity + info[1].evicted_steps + info[1].evicted_deleted + info[1].evicted_reset,
                expected[1]);
    /* Each was done once, whatever was lost and doubled; sessions that die take answers with them. */
    if (kills == 0 && partitions == 0) {
        struct nr_server_counters done;
        bool open = keeper.request != NULL && nr_request_status(keeper.request) == NR_PENDING;

        CHECK(info[1].evicted_deleted >= keeper.deleted && info[1].evicted_deleted <= keeper.deleted + (open ? 8 : 0));
        nr_server_counters(nr_simulator_server(simulator), &done);
        uint64_t answered = keeper.resets + keeper.configured;
        CHECK(done.admins >= answered && done.admins <= answered + open);
    }
    CHECK(keeper.deleted + keeper.stale > 0 && keeper.configured > 0);
    CHECK_EQUAL(info[0].size, expected[0]);
    double ahead = (double)info[0].inserted * ratio - (double)info[0].sampled;
    CHECK(ratio == 0 || kills > 0 || (ahead >= tables[0].limits.least && ahead <= tables[0].limits.most));
    CHECK((kills == 0) == (lost == 0));
    CHECK(learners[0].refused == 0 && learners[1].refused == 0);
    struct nr_server_counters server_counters;
    nr_server_counters(nr_simulator_server(simulator), &server_counters);
    CHECK(partitions == 0 || kills > 0 || server_counters.sessions_swept > 0);
    struct nr_simulator_counters counters;
    nr_simulator_counters(simulator, &counters);
    CHECK(counters.referred > 0); /* the large steps left from the slab */
    printf("seed %" PRIu64 ": %" PRIu64 " items, %" PRIu64 "+%" PRIu64 " batches, %" PRIu64 " stale, %" PRIu64
           " datagrams, %" PRIu64 " lost on the way, %" PRIu64 " doubled, %.3f s simulated, %" PRIu64
           " items lost with %u servers; %" PRIu64 " deleted, %" PRIu64 " resets\n",
           seed, info[0].size + info[1].size, learners[0].batches, learners[1].batches, learners[0].stale, counters.datagrams,
           counters.lost, counters.duplicated, (double)nr_simulator_now(simulator) / 1e9 - 1, lost, kills, keeper.deleted,
           keeper.resets);
    nr_simulator_destroy(simulator);
    for (uint32_t a = 0; a < ACTORS; a++)
        actor_free(&actors[a]);
    for (uint32_t l = 0; l < 2; l++)
        learner_free(&learners[l]);
}

int main(int argc, char **argv)
{
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    uint64_t inserts = argc > 2 ? strtoull(argv[2], NULL, 0) : 100000;
    struct nr_simulator_link clean = {.delay = 20000};
    struct nr_simulator_link bad = {
        .loss = 0.2, .duplication = 0.1, .reordering = 0.2, .truncation = 0.005, .delay = 20000, .jitter = 10000, .hold = 2000000};
    struct nr_simulator_link late = {.duplication = 0.5, .reordering = 0.3, .delay = 20000, .jitter = 10000, .hold = 50000000};
    setvbuf(stdout, NULL, _IOLBF, 0);
    run(seed, &clean, inserts / 10, 0, 0, NR_MAX_DATAGRAM, 0);
    run(seed, &bad, inserts, 0, 0, NR_ETHERNET_DATAGRAM, 0);
    run(seed + 1, &bad, inserts / 10, 0, 0, NR_MAX_DATAGRAM, 0);
    run(seed + 2, &bad, inserts / 5, 3, 0, NR_ETHERNET_DATAGRAM, 0);
    run(seed + 3, &bad, inserts / 5, 0, 3, NR_ETHERNET_DATAGRAM, 0);
    /* Copies that come long after the draw was settled still hold its steps. */
    run(seed + 5, &late, inserts / 100, 0, 0, NR_MAX_DATAGRAM, 0);
    run(seed + 4, &bad, inserts / 10, 2, 2, NR_MAX_DATAGRAM, 0);
    /* Actors and learners that wait for each other. */
    run(seed + 6, &clean, inserts / 10, 0, 0, NR_MAX_DATAGRAM, 1);
    run(seed + 7, &bad, inserts / 10, 0, 0, NR_ETHERNET_DATAGRAM, 2);
    run(seed + 8, &bad, inserts / 10, 1, 2, NR_ETHERNET_DATAGRAM, 0.5);
    return 0;
}
