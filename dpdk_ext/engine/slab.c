#include "engine/slab.h"

void nr_slab_init(struct nr_slab *slab, struct nr_arena *arena, uint32_t count, uint32_t step_bytes, uint32_t observation_bytes)
{
    slab->stride = nr_arena_stride(step_bytes);
    slab->bytes = nr_arena_take(arena, count, slab->stride);
    slab->steps = nr_arena_take(arena, count, sizeof(struct nr_step));
    slab->numbers = nr_arena_take(arena, count, sizeof(uint32_t));
    slab->count = count;
    slab->step_bytes = step_bytes;
    slab->observation_bytes = observation_bytes;
    slab->free = NR_NONE;
}
