#include "engine/remover.h"

const struct nr_remover_ops *nr_remover_find(uint32_t remover)
{
    static const struct nr_remover_ops *const all[NR_REMOVERS] = {
        [NR_REMOVER_FIFO] = &nr_remover_fifo,
        [NR_REMOVER_UNIFORM] = &nr_remover_uniform,
        [NR_REMOVER_LOWEST_PRIORITY] = &nr_remover_lowest_priority,
        [NR_REMOVER_OLDEST] = &nr_remover_oldest,
    };

    return remover < NR_REMOVERS ? all[remover] : NULL;
}
