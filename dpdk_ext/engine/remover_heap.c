/* The item of the least raw priority leaves first, or that of the least version; of equal ones the first inserted. */
#include "engine/remover.h"

static void init(struct nr_removal *remover, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_heap_init(&remover->heap.items, arena, slots, config->capacity);
    remover->heap.next = 0;
}

static void insert_priority(struct nr_removal *remover, uint32_t slot, double raw, uint64_t version)
{
    (void)version;
    nr_heap_push(&remover->heap.items, slot, nr_heap_key(raw), remover->heap.next++);
}

static void insert_version(struct nr_removal *remover, uint32_t slot, double raw, uint64_t version)
{
    (void)raw;
    nr_heap_push(&remover->heap.items, slot, version, remover->heap.next++);
}

static void drop(struct nr_removal *remover, uint32_t slot)
{
    nr_heap_remove(&remover->heap.items, slot);
}

static void update_priority(struct nr_removal *remover, uint32_t slot, double raw)
{
    nr_heap_change(&remover->heap.items, slot, nr_heap_key(raw));
}

static uint32_t next(struct nr_removal *remover, struct nr_random *random)
{
    struct nr_heap *items = &remover->heap.items;

    (void)random;
    if (items->size == 0)
        return NR_NONE;
    uint32_t slot = nr_heap_first(items)->slot;
    nr_heap_set_aside(items);
    remover->walked++;
    return slot;
}

static void end(struct nr_removal *remover)
{
    nr_heap_put_back(&remover->heap.items, remover->walked);
    remover->walked = 0;
}

static const char *audit(const struct nr_removal *remover, uint8_t *held)
{
    return nr_heap_audit(&remover->heap.items, held);
}

const struct nr_remover_ops nr_remover_lowest_priority = {
    .init = init,
    .insert = insert_priority,
    .remove = drop,
    .update = update_priority,
    .next = next,
    .end = end,
    .audit = audit,
};

const struct nr_remover_ops nr_remover_oldest = {
    .init = init,
    .insert = insert_version,
    .remove = drop,
    .next = next,
    .end = end,
    .audit = audit,
};
