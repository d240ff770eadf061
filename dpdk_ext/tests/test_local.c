/* The replay in this process. */
#include "replay_behaviour.h"

static void world_open(struct world *world)
{
    int status;
    struct nr_engine *engine = nr_engine_create(&world->spec.config, &status);

    CHECK(engine != NULL);
    world->server = NULL;
    world->replay = nr_replay_local(engine, &world->spec.config, "the spec", &status);
    CHECK(world->replay != NULL);
    CHECK(strcmp(nr_replay_spec(world->replay), "the spec") == 0);
    CHECK_EQUAL(nr_replay_ready(world->replay, 0), NR_OK);
    CHECK_EQUAL(nr_replay_layout(world->replay, &world->spec.config), NR_OK);
}

static void world_close(struct world *world)
{
    nr_replay_free(world->replay);
}

/* A slab that one stream fills: the other's calls pipeline, then wait, and go on when the first is gone. */
static void appends_wait_for_space(void)
{
    struct world world;
    struct toy_rows toy;
    struct nr_operation *operation;
    struct nr_blocked blocked;
    int status;
    uint32_t items, row, taken = 0;

    toy_spec(&world.spec, 128, 1, 1, 1, NR_AUTORESET_NONE);
    world.spec.store.steps = world.spec.store.window - 1 + world.spec.store.in_flight;
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *first = nr_actor_open(replay, &world.spec.actor, &status);
    struct nr_actor *second = nr_actor_open(replay, &world.spec.actor, &status);
    struct nr_actor *third = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t i = 0; i < 200; i++)
        append(first, &toy, false);
    flush(first);
    append(third, &toy, false);
    for (;;) {
        status = nr_actor_stage(second, &toy.rows, NULL, MILLISECOND, &items, &row);
        if (status != NR_OK)
            break;
        CHECK_EQUAL(nr_actor_commit(second, NULL), NR_OK);
        taken++;
    }
    CHECK_EQUAL(status, NR_PENDING);
    CHECK(taken >= 8 && taken <= 20);
    nr_replay_blocked(replay, &blocked);
    CHECK_EQUAL(blocked.wait.reason, NR_WAIT_SPACE);
    CHECK_EQUAL(nr_actor_flush(second, MILLISECOND, &operation), NR_PENDING);
    CHECK_EQUAL(nr_operation_wait(operation, MILLISECOND), NR_PENDING);
    nr_operation_blocked(operation, &blocked);
    CHECK_EQUAL(blocked.wait.reason, NR_WAIT_SPACE);
    nr_actor_close(first);
    CHECK_EQUAL(nr_operation_wait(operation, 0), NR_OK);
    CHECK_EQUAL(nr_actor_keys(second, 0, NULL, NULL), taken - 1);
    append(second, &toy, false);
    flush(second);
    flush(third);
    nr_actor_close(third);
    nr_actor_close(second);
    world_close(&world);
}

static void keys_that_nobody_takes_are_bounded(void)
{
    struct world world;
    static struct toy_rows toy;
    int status;
    const uint32_t calls = NR_KEPT_KEYS / TOY_STREAMS + 10;

    toy_spec(&world.spec, 128, 1, 1, TOY_STREAMS, NR_AUTORESET_NEXT_STEP);
    world_open(&world);
    struct nr_replay *replay = world.replay;
    struct nr_actor *actor = nr_actor_open(replay, &world.spec.actor, &status);
    toy_rows(&toy);
    for (uint32_t i = 0; i <= calls; i++)
        append(actor, &toy, false);

    struct nr_actor_counters counters;
    nr_actor_counters(actor, &counters);
    CHECK_EQUAL(counters.acknowledged, calls * TOY_STREAMS);
    uint64_t held = nr_actor_keys(actor, 0, NULL, NULL);
    CHECK(held <= NR_KEPT_KEYS && held > NR_KEPT_KEYS - 4 * TOY_STREAMS);
    CHECK_EQUAL(held + counters.keys_dropped, counters.acknowledged);
    nr_actor_close(actor);
    world_close(&world);
}

int main(void)
{
    all_replays_behave();
    appends_wait_for_space();
    keys_that_nobody_takes_are_bounded();
    return 0;
}
