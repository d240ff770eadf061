#include "dpdk/eal.h"
#include "dpdk/port.h"
#include "dpdk/version.h"
