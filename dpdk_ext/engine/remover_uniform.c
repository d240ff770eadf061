/* Any item leaves, all alike. The items that a walk has seen stand at the end of the array, so that none comes twice. */
#include "engine/remover.h"

static void init(struct nr_removal *remover, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    nr_dense_init(&remover->uniform, arena, slots, config->capacity);
}

static void insert(struct nr_removal *remover, uint32_t slot, double raw, uint64_t version)
{
    (void)raw;
    (void)version;
    nr_dense_add(&remover->uniform, slot);
}

static void drop(struct nr_removal *remover, uint32_t slot)
{
    nr_dense_remove(&remover->uniform, slot);
}

static uint32_t next(struct nr_removal *remover, struct nr_random *random)
{
    uint32_t left = remover->uniform.size - remover->walked;

    if (left == 0)
        return NR_NONE;
    nr_dense_swap(&remover->uniform, (uint32_t)nr_random_below(random, left), left - 1);
    remover->walked++;
    return remover->uniform.slots[left - 1];
}

static void end(struct nr_removal *remover)
{
    remover->walked = 0;
}

static const char *audit(const struct nr_removal *remover, uint8_t *held)
{
    return nr_dense_audit(&remover->uniform, held);
}

const struct nr_remover_ops nr_remover_uniform = {
    .init = init,
    .insert = insert,
    .remove = drop,
    .next = next,
    .end = end,
    .audit = audit,
};
