#include "engine/version.h"

#include <stdio.h>
#include <string.h>

int main(void)
{
    if (strcmp(nr_version(), NR_PACKAGE_VERSION) != 0) {
        fprintf(stderr, "nr_version() is %s, the build says %s\n", nr_version(), NR_PACKAGE_VERSION);
        return 1;
    }
    return 0;
}
