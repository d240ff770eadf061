#include "dpdk/version.h"

#include <rte_version.h>

#if RTE_VERSION < RTE_VERSION_NUM(22, 11, 0, 0)
#error "DPDK 22.11 or newer is needed"
#endif

const char *nr_dpdk_version(void)
{
    return rte_version();
}

const char *nr_dpdk_build_version(void)
{
    return RTE_VER_PREFIX;
}
