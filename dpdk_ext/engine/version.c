#include "engine/version.h"

const char *nr_version(void)
{
    return NR_PACKAGE_VERSION;
}
