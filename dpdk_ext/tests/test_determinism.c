/* Determinism: the generator is the published one, and a seed with the same operations gives the same draws in every engine. */
#include "check.h"
#include "choosing.h"

/* splitmix64, from the seed 1234567: the numbers that Vigna's C gives. */
static void the_seeding_is_splitmix64(void)
{
    static const uint64_t expected[4] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u};
    struct nr_random random;

    nr_random_seed(&random, 1234567);
    for (int i = 0; i < 4; i++)
        CHECK_EQUAL(random.state[i], expected[i]);
}

/* xoshiro256++, from the state 1, 2, 3, 4: the test vector of the reference implementation's ports. */
static void the_generator_is_xoshiro256plusplus(void)
{
    static const uint64_t expected[] = {41943041u,
                                        58720359u,
                                        3588806011781223u,
                                        3591011842654386u,
                                        9228616714210784205u,
                                        9973669472204895162u,
                                        14011001112246962877u,
                                        12406186145184390807u,
                                        15849039046786891736u,
                                        10450023813501588000u};
    struct nr_random random = {{1, 2, 3, 4}};

    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        CHECK_EQUAL(nr_random_next(&random), expected[i]);
}

static void open_one(struct choosing *c, uint32_t sampler, uint32_t remover, uint32_t max_sampled, uint64_t seed)
{
    c_open(c, sampler, remover, 40, seed);
    c->table.limits.max_sampled = max_sampled;
    c_start(c);
}

static bool same_draws(const struct choosing *a, const struct choosing *b)
{
    for (uint32_t d = 0; d < C_DRAWS; d++) {
        const struct c_draw *x = &a->draws[d], *y = &b->draws[d];

        if (x->used != y->used || x->draw.count != y->draw.count)
            return false;
        if (x->used && memcmp(x->entries, y->entries, x->draw.count * sizeof(x->entries[0])) != 0)
            return false;
    }
    return true;
}

/* Keys (and with them slots and generations), draws with their probabilities, and the generator's state. */
static bool same(const struct choosing *a, const struct choosing *b)
{
    if (a->count != b->count || memcmp(&a->engine->random, &b->engine->random, sizeof(struct nr_random)) != 0)
        return false;
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->items[i].key != b->items[i].key || a->items[i].gone != b->items[i].gone)
            return false;
    }
    return same_draws(a, b);
}

/* The same random calls on both: inserts, evictions, updates, draws, commits and refunds. */
static void one_seed_gives_the_same_draws(uint32_t sampler, uint32_t remover, uint32_t max_sampled)
{
    static struct choosing a, b;

    open_one(&a, sampler, remover, max_sampled, 77);
    open_one(&b, sampler, remover, max_sampled, 77);
    c_trace.seed = 77;
    c_trace.sampler = sampler;
    c_trace.remover = remover;
    c_trace.capacity = 40;
    c_trace.max_sampled = max_sampled;
    c_trace.running = true;
    for (uint32_t i = 0; i < 3000; i++) {
        c_trace.operation = i;
        c_operate(&a);
        c_operate(&b);
        CHECK(same(&a, &b));
    }
    c_trace.running = false;
    CHECK(a.evicted_capacity + a.evicted_sampled > 100);
    c_close(&a);
    c_close(&b);
}

/* Another seed of the engine, and the same calls: other generations, other draws. */
static void another_seed_gives_others(void)
{
    static struct choosing a, b;
    uint32_t other = 0;

    open_one(&a, NR_SAMPLER_UNIFORM, NR_REMOVER_FIFO, 0, 77);
    open_one(&b, NR_SAMPLER_UNIFORM, NR_REMOVER_FIFO, 0, 77);
    c_close(&b);
    c_open(&b, NR_SAMPLER_UNIFORM, NR_REMOVER_FIFO, 40, 77);
    b.config.seed = 78;
    c_start(&b);
    for (int i = 0; i < 40; i++) {
        c_insert(&a, 1, 0);
        c_insert(&b, 1, 0);
        other += a.items[i].key != b.items[i].key;
    }
    CHECK(other >= 39);
    struct nr_draw_entry entries[2][32];
    struct nr_draw draws[2] = {{.entries = entries[0]}, {.entries = entries[1]}};
    struct nr_wait wait;

    CHECK_EQUAL(nr_draw_open(a.engine, 0, 32, &draws[0], 1, &wait), NR_OK);
    CHECK_EQUAL(nr_draw_open(b.engine, 0, 32, &draws[1], 1, &wait), NR_OK);
    uint32_t alike = 0;
    for (int i = 0; i < 32; i++)
        alike += nr_table_slot(&a.engine->tables[0], entries[0][i].key) == nr_table_slot(&b.engine->tables[0], entries[1][i].key);
    CHECK(alike < 12); /* 32 x 1/40 expected */
    nr_draw_settle(a.engine, &draws[0], NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    nr_draw_settle(b.engine, &draws[1], NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
    c_close(&a);
    c_close(&b);
}

/* A reset leaves the generator where it is: two engines that were reset alike go on alike, and not from the beginning. */
static void the_generator_goes_on_over_a_reset(void)
{
    static struct choosing c[2];
    struct nr_draw_entry first[2][32], again[2][32];
    struct nr_wait wait;

    for (int e = 0; e < 2; e++) {
        open_one(&c[e], NR_SAMPLER_PRIORITIZED, NR_REMOVER_FIFO, 0, 5);
        for (int round = 0; round < 2; round++) {
            struct nr_draw draw = {.entries = round == 0 ? first[e] : again[e]};

            for (int i = 0; i < 20; i++)
                c_insert(&c[e], 1 + i % 4, 0);
            CHECK_EQUAL(nr_draw_open(c[e].engine, 0, 32, &draw, 1, &wait), NR_OK);
            nr_draw_settle(c[e].engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
            struct nr_random before = c[e].engine->random;
            CHECK_EQUAL(nr_table_reset(c[e].engine, 0), NR_OK);
            while (nr_engine_leave(c[e].engine, 64))
                ;
            CHECK(memcmp(&before, &c[e].engine->random, sizeof(before)) == 0);
            c[e].count = 0; /* of the model: all have left */
        }
    }
    CHECK(memcmp(first[0], first[1], sizeof(first[0])) == 0 && memcmp(again[0], again[1], sizeof(again[0])) == 0);
    uint32_t alike = 0;
    for (int i = 0; i < 32; i++)
        alike += (uint32_t)(first[0][i].probability == again[0][i].probability);
    CHECK(alike < 32);
    c_close(&c[0]);
    c_close(&c[1]);
}

int main(void)
{
    atexit(c_say);
    the_seeding_is_splitmix64();
    the_generator_is_xoshiro256plusplus();
    for (uint32_t sampler = NR_SAMPLER_PRIORITIZED; sampler <= NR_SAMPLER_WITHOUT_REPLACEMENT; sampler++) {
        for (uint32_t remover = NR_REMOVER_FIFO; remover <= NR_REMOVER_OLDEST; remover++) {
            one_seed_gives_the_same_draws(sampler, remover, 0);
            one_seed_gives_the_same_draws(sampler, remover, 3);
        }
    }
    another_seed_gives_others();
    the_generator_goes_on_over_a_reset();
    return 0;
}
