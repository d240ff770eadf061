/* DPDK's environment abstraction layer: once per process, for the process's life. */
#ifndef NR_DPDK_EAL_H
#define NR_DPDK_EAL_H

#include <stdint.h>

/* Room for what EAL said, terminator included. */
#define NR_EAL_TEXT 4096

/*
 * rte_eal_init with these arguments (argv[0] is the program's name), on the calling thread, whose affinity is restored afterwards.
 * 0, or a negative errno, then `text` holds what EAL logged, for translation into a line that helps. -EALREADY: it was started
 * before, also when that failed. Nothing is printed unless it succeeds.
 */
int nr_eal_start(int argc, const char *const *argv, char text[NR_EAL_TEXT]);

/* Where the DPDK that this was built with has its drivers; static storage. Empty: they are linked in. */
const char *nr_eal_driver_folder(void);

#endif
