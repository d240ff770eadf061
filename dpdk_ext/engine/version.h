/* The version of the C core. */
#ifndef NR_VERSION_H
#define NR_VERSION_H

/* The project version, e.g. "0.1.0"; static storage. */
const char *nr_version(void);

#endif
