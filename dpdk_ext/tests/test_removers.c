/* Every remover, against a model that searches: who leaves when places or steps run out, and that leased items are passed over when
 * steps do. usage: test_removers [OPERATIONS [SEED]] */
#include "choosing.h"

static const uint32_t capacities[] = {1, 2, 3, 5, 7, 31, 32, 33, 255, 256, 257, 1000};

static void random_operations_agree_with_the_model(uint32_t operations, uint64_t seed)
{
    for (uint32_t remover = 0; remover < NR_REMOVERS; remover++) {
        for (size_t capacity = 0; capacity < sizeof(capacities) / sizeof(capacities[0]); capacity++) {
            uint32_t count = capacities[capacity] < 100 ? operations : operations / 3;

            c_run(NR_SAMPLER_UNIFORM, remover, capacities[capacity], 0, 0, count, seed++);
            c_run(NR_SAMPLER_PRIORITIZED, remover, capacities[capacity], 2, 0, count, seed++);
        }
    }
}

enum { STEPS = 60, RING = 8 };

/* A table with more places than its store has steps, of which the stream's ring holds eight. */
static void open_short(struct choosing *c, uint32_t sampler, uint32_t remover)
{
    c_open(c, sampler, remover, 100, 3);
    c->store.steps = STEPS;
    c_start(c);
}

/* Whether a leaves before b. */
static bool leaves_before(uint32_t remover, const struct c_item *a, const struct c_item *b)
{
    if (remover == NR_REMOVER_LOWEST_PRIORITY && a->raw != b->raw)
        return a->raw < b->raw;
    if (remover == NR_REMOVER_OLDEST && a->version != b->version)
        return a->version < b->version;
    return a < b;
}

/* One insert more, for whose step items may have to leave: `leased` ones never, the others in the remover's order, and no more than
 * are needed, which is until one leaves whose step no ring holds. Item i has step i. */
static uint32_t push(struct choosing *c, const bool *leased, double raw, uint64_t version)
{
    const struct c_item *last = NULL;
    uint32_t left = 0, freed = 0;

    c_insert(c, raw, version);
    for (uint32_t i = 0; i < c->count; i++) {
        struct c_item *item = &c->items[i];

        if (item->gone || nr_table_find(&c->engine->tables[0], item->key) != NULL)
            continue;
        CHECK(!leased[i]);
        item->gone = true;
        left++;
        freed += i + RING < c->count;
        if (last == NULL || leaves_before(c->table.remover, last, item))
            last = item;
    }
    CHECK(freed <= 1);
    CHECK(left == 0 || c->table.remover == NR_REMOVER_UNIFORM || (uint32_t)(last - c->items) + RING < c->count || freed == 0);
    for (uint32_t i = 0; last != NULL && c->table.remover != NR_REMOVER_UNIFORM && i + 1 < c->count; i++)
        CHECK(c->items[i].gone || leased[i] || leaves_before(c->table.remover, last, &c->items[i]));
    c_audit(c);
    return left;
}

static void items_leave_in_order_when_steps_run_out(void)
{
    for (uint32_t remover = 0; remover < NR_REMOVERS; remover++) {
        static const bool leased[400];
        struct choosing c;
        uint64_t left = 0;

        open_short(&c, NR_SAMPLER_UNIFORM, remover);
        for (uint32_t i = 0; i < 400; i++)
            left += push(&c, leased, 0.25 * (double)c_pick(&c, 40), c_pick(&c, 20));
        CHECK(left >= 400 - STEPS);
        CHECK_EQUAL(c_info(&c).evicted_steps, left);
        CHECK_EQUAL(c_info(&c).evicted_capacity, 0);
        c_close(&c);
    }
}

static void leased_items_are_passed_over(void)
{
    for (uint32_t remover = 0; remover < NR_REMOVERS; remover++) {
        struct choosing c;
        struct nr_wait wait;
        struct nr_draw_entry entries[10];
        struct nr_draw draw = {.entries = entries};
        bool leased[200] = {false};
        uint64_t left = 0;

        open_short(&c, NR_SAMPLER_WITHOUT_REPLACEMENT, remover);
        for (uint32_t i = 0; i < 40; i++)
            c_insert(&c, 0.25 * (double)c_pick(&c, 8), c_pick(&c, 4));
        CHECK_EQUAL(nr_draw_open(c.engine, 0, 10, &draw, 0, &wait), NR_OK);
        for (uint32_t i = 0; i < 10; i++)
            leased[c_find(&c, entries[i].key) - c.items] = true;
        for (uint32_t i = 0; i < 150; i++)
            left += push(&c, leased, 0.25 * (double)c_pick(&c, 8), c_pick(&c, 4));
        CHECK(left >= 100);
        nr_draw_settle(c.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        c_audit(&c);
        c_close(&c);
    }
}

/* When all are leased nothing leaves: the stream lives on what its ring gives up. */
static void nothing_leaves_where_all_is_leased(void)
{
    for (uint32_t remover = 0; remover < NR_REMOVERS; remover++) {
        struct choosing c;
        struct nr_wait wait;
        struct nr_draw_entry entries[C_LEASES];
        struct nr_draw draw = {.entries = entries};
        int status;

        open_short(&c, NR_SAMPLER_WITHOUT_REPLACEMENT, remover);
        for (uint32_t i = 0; i < 40; i++)
            c_insert(&c, 1, i);
        CHECK_EQUAL(nr_draw_open(c.engine, 0, 40, &draw, 0, &wait), NR_OK);
        do
            status = nr_step_write(c.engine, c.handle, C_OWNER, c.number, 8, 0, &c.number, 8, 0, &wait);
        while (status == NR_OK && ++c.number < 200);
        CHECK_EQUAL(status, NR_OK);
        CHECK_EQUAL(c_info(&c).size, 40);
        nr_draw_settle(c.engine, &draw, NR_SETTLE_RELEASE | NR_SETTLE_COMMIT);
        c_audit(&c);
        c_close(&c);
    }
}

/* Two-sided: who leaves a table with the uniform remover is any item, all alike. */
static void the_uniform_remover_is_uniform(void)
{
    enum { N = 16, ROUNDS = 16000 };
    struct choosing c;
    double hits[N] = {0}, statistic = 0, expected = (double)ROUNDS / N;

    c_open(&c, NR_SAMPLER_UNIFORM, NR_REMOVER_UNIFORM, N, 11);
    c_start(&c);
    uint64_t keys[N];
    for (uint32_t i = 0; i < N; i++)
        keys[i] = c_insert(&c, 1, 0);
    for (int round = 0; round < ROUNDS; round++) {
        uint32_t victim = N;
        uint64_t key = c_insert(&c, 1, 0);

        for (uint32_t i = 0; i < N; i++) {
            if (nr_table_find(&c.engine->tables[0], keys[i]) == NULL) {
                CHECK_EQUAL(victim, N);
                victim = i;
            }
        }
        hits[victim]++;
        /* The newest stands last, so that places tell ages. */
        memmove(keys + victim, keys + victim + 1, (N - 1 - victim) * sizeof(keys[0]));
        keys[N - 1] = key;
        if (c.count > 400) {
            uint32_t kept = 0;

            for (uint32_t i = 0; i < c.count; i++) {
                if (!c.items[i].gone)
                    c.items[kept++] = c.items[i];
            }
            c.count = kept;
        }
    }
    for (int i = 0; i < N; i++)
        statistic += (hits[i] - expected) * (hits[i] - expected) / expected;
    CHECK(fabs(statistic - (N - 1)) < 5 * sqrt(2.0 * (N - 1)));
    CHECK(statistic > 2); /* the lower side: once in 10^5 or so, and the seed is fixed */
    c_close(&c);
}

/* Where items have no version all are as old, and the first inserted leaves. */
static void items_without_version_leave_in_order(void)
{
    for (uint32_t offset = 1; offset > 0; offset = offset == 1 ? UINT32_MAX : 0) {
        struct choosing c;

        c_open(&c, NR_SAMPLER_UNIFORM, NR_REMOVER_OLDEST, 5, 11);
        c.table.version_offset = offset; /* 1: a uint64 does not fit behind it */
        c_start(&c);
        uint64_t keys[20];
        for (uint32_t i = 0; i < 20; i++) {
            for (uint32_t j = 0; j < c.count; j++)
                c.items[j].version = 0;
            keys[i] = c_insert(&c, 1, 0x0101010101010101u * (20 - i));
            CHECK(i < 5 || nr_table_find(&c.engine->tables[0], keys[i - 5]) == NULL);
        }
        c_close(&c);
    }
}

int main(int argc, char **argv)
{
    atexit(c_say);
    items_leave_in_order_when_steps_run_out();
    leased_items_are_passed_over();
    nothing_leaves_where_all_is_leased();
    the_uniform_remover_is_uniform();
    items_without_version_leave_in_order();
    random_operations_agree_with_the_model(argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1500,
                                           argc > 2 ? strtoull(argv[2], NULL, 10) : 1);
    return 0;
}
