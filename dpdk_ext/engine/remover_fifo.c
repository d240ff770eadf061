/* The first inserted leaves first: the table's order is all that is needed. */
#include "engine/remover.h"

static void init(struct nr_removal *remover, struct nr_arena *arena, const struct nr_table_config *config, uint32_t slots)
{
    (void)remover;
    (void)arena;
    (void)config;
    (void)slots;
}

static uint32_t next(struct nr_removal *remover, struct nr_random *random)
{
    uint32_t before = remover->walked;

    (void)random;
    remover->walked = before != NR_NONE ? remover->order->links[before].after : remover->order->oldest;
    return remover->walked;
}

static void end(struct nr_removal *remover)
{
    remover->walked = NR_NONE;
}

const struct nr_remover_ops nr_remover_fifo = {
    .init = init,
    .next = next,
    .end = end,
};
