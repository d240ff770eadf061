#include "engine/priority.h"

_Static_assert(FLT_EVAL_METHOD == 0, "rounding by adding 2^52 needs doubles evaluated as doubles");

void nr_priority_init(struct nr_priority *priority, double exponent, uint32_t items)
{
    priority->exponent = exponent;
    priority->cap = UINT64_MAX / items;
    priority->cap_double = (double)priority->cap;
    priority->path = exponent == 0     ? NR_PRIORITY_FLAT
                     : exponent == 0.5 ? NR_PRIORITY_ROOT
                     : exponent == 1   ? NR_PRIORITY_LINEAR
                                       : NR_PRIORITY_POWER;
}
