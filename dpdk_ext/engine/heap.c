#include "engine/heap.h"

void nr_heap_init(struct nr_heap *heap, struct nr_arena *arena, uint32_t slots, uint32_t capacity)
{
    heap->entries = nr_arena_take(arena, capacity, sizeof(struct nr_heap_entry));
    heap->positions = nr_arena_take(arena, slots, sizeof(uint32_t));
    heap->size = 0;
}

static inline void place(struct nr_heap *heap, uint32_t at, struct nr_heap_entry entry)
{
    heap->entries[at] = entry;
    heap->positions[entry.slot] = at + 1;
}

/* Puts the entry at `at`, a hole, or above it. */
static void rise(struct nr_heap *heap, uint32_t at, struct nr_heap_entry entry)
{
    while (at > 0) {
        uint32_t parent = (at - 1) / NR_HEAP_FANOUT;

        if (!nr_heap_before(&entry, &heap->entries[parent]))
            break;
        place(heap, at, heap->entries[parent]);
        at = parent;
    }
    place(heap, at, entry);
}

/* Puts the entry at `at`, a hole, or below it. */
static void sink(struct nr_heap *heap, uint32_t at, struct nr_heap_entry entry)
{
    for (;;) {
        uint64_t child = (uint64_t)at * NR_HEAP_FANOUT + 1, end = child + NR_HEAP_FANOUT;

        if (child >= heap->size)
            break;
        uint32_t least = (uint32_t)child;
        for (child++; child < end && child < heap->size; child++) {
            if (nr_heap_before(&heap->entries[child], &heap->entries[least]))
                least = (uint32_t)child;
        }
        if (!nr_heap_before(&heap->entries[least], &entry))
            break;
        place(heap, at, heap->entries[least]);
        at = least;
    }
    place(heap, at, entry);
}

static void settle(struct nr_heap *heap, uint32_t at, struct nr_heap_entry entry)
{
    if (at > 0 && nr_heap_before(&entry, &heap->entries[(at - 1) / NR_HEAP_FANOUT]))
        rise(heap, at, entry);
    else
        sink(heap, at, entry);
}

void nr_heap_push(struct nr_heap *heap, uint32_t slot, uint64_t key, uint64_t sequence)
{
    rise(heap, heap->size++, (struct nr_heap_entry){.key = key, .sequence = sequence, .slot = slot});
}

void nr_heap_remove(struct nr_heap *heap, uint32_t slot)
{
    uint32_t at = heap->positions[slot] - 1;
    struct nr_heap_entry last = heap->entries[--heap->size];

    heap->positions[slot] = 0;
    if (at < heap->size)
        settle(heap, at, last);
}

void nr_heap_change(struct nr_heap *heap, uint32_t slot, uint64_t key)
{
    uint32_t at = heap->positions[slot] - 1;
    struct nr_heap_entry entry = heap->entries[at];

    entry.key = key;
    settle(heap, at, entry);
}

void nr_heap_set_aside(struct nr_heap *heap)
{
    struct nr_heap_entry first = heap->entries[0], last = heap->entries[--heap->size];

    heap->entries[heap->size] = first;
    if (heap->size > 0)
        sink(heap, 0, last);
}

void nr_heap_put_back(struct nr_heap *heap, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = heap->size++;

        rise(heap, at, heap->entries[at]);
    }
}

const char *nr_heap_audit(const struct nr_heap *heap, uint8_t *held)
{
    for (uint32_t i = 0; i < heap->size; i++) {
        const struct nr_heap_entry *entry = &heap->entries[i];

        if (heap->positions[entry->slot] != i + 1)
            return "a heap's position";
        if (i > 0 && !nr_heap_before(&heap->entries[(i - 1) / NR_HEAP_FANOUT], entry))
            return "a heap's order";
        held[entry->slot]++;
    }
    return NULL;
}
