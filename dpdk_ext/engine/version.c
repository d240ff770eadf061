#include "engine/version.h"

const char *nr_version(void)
{
    return NR_VERSION;
}
