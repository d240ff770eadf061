#include "engine/selector.h"

const struct nr_selector_ops *nr_selector_find(uint32_t sampler)
{
    switch (sampler) {
    case NR_SAMPLER_PRIORITIZED:
        return &nr_selector_prioritized;
    case NR_SAMPLER_UNIFORM:
        return &nr_selector_uniform;
    case NR_SAMPLER_FIFO:
        return &nr_selector_fifo;
    default:
        return NULL;
    }
}
