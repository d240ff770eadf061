#include "dpdk/version.h"
