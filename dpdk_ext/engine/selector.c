#include "engine/selector.h"

const struct nr_selector_ops *nr_selector_find(uint32_t sampler)
{
    static const struct nr_selector_ops *const all[NR_SAMPLERS] = {
        [NR_SAMPLER_PRIORITIZED] = &nr_selector_prioritized,
        [NR_SAMPLER_UNIFORM] = &nr_selector_uniform,
        [NR_SAMPLER_FIFO] = &nr_selector_fifo,
        [NR_SAMPLER_LIFO] = &nr_selector_lifo,
        [NR_SAMPLER_STRATIFIED] = &nr_selector_stratified,
        [NR_SAMPLER_MAX_HEAP] = &nr_selector_max_heap,
        [NR_SAMPLER_MIN_HEAP] = &nr_selector_min_heap,
        [NR_SAMPLER_TOP_K] = &nr_selector_top,
        [NR_SAMPLER_WITHOUT_REPLACEMENT] = &nr_selector_without_replacement,
    };

    return sampler < NR_SAMPLERS ? all[sampler] : NULL;
}
