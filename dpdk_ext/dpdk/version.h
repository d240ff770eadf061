/* Which DPDK this process runs with. Needs no EAL. */
#ifndef NR_DPDK_VERSION_H
#define NR_DPDK_VERSION_H

/* The version of the librte_eal loaded at run time, e.g. "DPDK 22.11.11"; static storage. */
const char *nr_dpdk_version(void);

/* The version of the headers this extension was compiled with; static storage. */
const char *nr_dpdk_build_version(void);

#endif
