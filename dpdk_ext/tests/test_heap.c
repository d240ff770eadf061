/* The heap: what comes out first is what a search finds, whatever was pushed, changed, removed and set aside. */
#include "engine/heap.h"

#include "check.h"
#include "engine/random.h"

static const uint32_t capacities[] = {1, 2, 3, 4, 5, 6, 7, 20, 21, 22, 63, 64, 65, 1000, 1023, 1024, 1025};

#define CAPACITIES (sizeof(capacities) / sizeof(capacities[0]))
enum { MOST = 1025, OPERATIONS = 4000 };

struct model {
    struct nr_heap heap;
    struct nr_arena arena;
    struct nr_random random;
    bool held[MOST];
    uint64_t keys[MOST], sequences[MOST];
    uint32_t capacity, size;
    uint64_t next;
};

static struct model model;

static void open(uint32_t capacity)
{
    struct nr_arena reckoned = {0};

    model = (struct model){.capacity = capacity};
    nr_heap_init(&model.heap, &reckoned, capacity, capacity);
    CHECK(nr_arena_open(&model.arena, reckoned.used));
    nr_heap_init(&model.heap, &model.arena, capacity, capacity);
    CHECK(model.arena.used == reckoned.used);
    nr_random_seed(&model.random, capacity);
}

static bool before(uint32_t a, uint32_t b)
{
    return model.keys[a] < model.keys[b] || (model.keys[a] == model.keys[b] && model.sequences[a] < model.sequences[b]);
}

/* The first slot of those that are not aside. */
static uint32_t search(const bool *aside)
{
    uint32_t least = NR_NONE;

    for (uint32_t i = 0; i < model.capacity; i++) {
        if (model.held[i] && !aside[i] && (least == NR_NONE || before(i, least)))
            least = i;
    }
    return least;
}

static void check(void)
{
    static uint8_t held[MOST];

    memset(held, 0, sizeof(held));
    CHECK(nr_heap_audit(&model.heap, held) == NULL);
    CHECK_EQUAL(model.heap.size, model.size);
    for (uint32_t i = 0; i < model.capacity; i++) {
        CHECK_EQUAL(held[i], model.held[i]);
        CHECK_EQUAL(nr_heap_has(&model.heap, i), model.held[i]);
        if (model.held[i])
            CHECK(nr_heap_entry(&model.heap, i)->key == model.keys[i] &&
                  nr_heap_entry(&model.heap, i)->sequence == model.sequences[i]);
    }
}

/* Few different keys, so that sequences decide; now and then the extremes. */
static uint64_t key(void)
{
    uint64_t any = nr_random_below(&model.random, 12);

    return any == 0 ? 0 : any == 1 ? UINT64_MAX : any;
}

static void operate(void)
{
    uint32_t slot = (uint32_t)nr_random_below(&model.random, model.capacity), kind = (uint32_t)nr_random_below(&model.random, 10);

    if (!model.held[slot]) {
        model.keys[slot] = key();
        model.sequences[slot] = model.next++;
        nr_heap_push(&model.heap, slot, model.keys[slot], model.sequences[slot]);
        model.held[slot] = true;
        model.size++;
    } else if (kind < 4) {
        nr_heap_remove(&model.heap, slot);
        model.held[slot] = false;
        model.size--;
    } else {
        model.keys[slot] = key();
        nr_heap_change(&model.heap, slot, model.keys[slot]);
    }
}

static void what_is_first_is_what_a_search_finds(void)
{
    for (size_t c = 0; c < CAPACITIES; c++) {
        open(capacities[c]);
        for (int i = 0; i < OPERATIONS; i++) {
            bool aside[MOST] = {false};
            uint32_t count = (uint32_t)nr_random_below(&model.random, 9);

            operate();
            if (capacities[c] > 100 && i % 16 != 0)
                continue;
            count = count < model.size ? count : model.size;
            for (uint32_t j = 0; j < count; j++) {
                uint32_t first = nr_heap_first(&model.heap)->slot;

                CHECK_EQUAL(first, search(aside));
                nr_heap_set_aside(&model.heap);
                aside[first] = true;
            }
            nr_heap_put_back(&model.heap, count);
            check();
        }
        nr_arena_close(&model.arena);
    }
}

static void all_come_out_in_order(void)
{
    for (size_t c = 0; c < CAPACITIES; c++) {
        open(capacities[c]);
        for (uint32_t i = 0; i < capacities[c]; i++)
            nr_heap_push(&model.heap, i, nr_random_below(&model.random, 50), i);
        for (uint32_t i = 0; i < capacities[c]; i++) {
            struct nr_heap_entry first = *nr_heap_first(&model.heap);

            nr_heap_remove(&model.heap, first.slot);
            if (model.heap.size > 0)
                CHECK(nr_heap_before(&first, nr_heap_first(&model.heap)));
        }
        CHECK_EQUAL(model.heap.size, 0);
        nr_arena_close(&model.arena);
    }
}

static void keys_rise_with_priorities(void)
{
    static const double raws[] = {0, 5e-324, 1e-300, 1e-7, 0.37, 1, 1e38, 1e300, 1.7976931348623157e308};

    for (size_t i = 1; i < sizeof(raws) / sizeof(raws[0]); i++)
        CHECK(nr_heap_key(raws[i - 1]) < nr_heap_key(raws[i]));
    CHECK_EQUAL(nr_heap_key(0.0), 0);
}

int main(void)
{
    what_is_first_is_what_a_search_finds();
    all_come_out_in_order();
    keys_rise_with_priorities();
    return 0;
}
