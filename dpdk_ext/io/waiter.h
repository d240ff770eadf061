/*
 * Sleeping until one of several packet I/Os has something, and being woken from elsewhere.
 *
 * One thread waits at a time; any thread or signal handler may wake it until close. Nothing here allocates after creation. After a
 * fork only one process may go on.
 */
#ifndef NR_IO_WAITER_H
#define NR_IO_WAITER_H

#include "packet_io.h"

/* nr_waiter_wait() without an end. */
#define NR_WAIT_FOREVER UINT64_MAX
/* nr_waiter_wait() results, ORed; zero means that time ran out, a signal came, or the wake-up was spurious. */
#define NR_WAITER_READABLE 1
#define NR_WAITER_WOKEN 2
/* How long a sleep lasts at most beside an io that has no descriptor and must be polled. */
#define NR_WAITER_POLL_NS 50000

struct nr_waiter;

/* For these ios, which stay the caller's and must outlive it. NULL on failure, with *error a negative errno. */
struct nr_waiter *nr_waiter_open(struct nr_packet_io *const *ios, uint32_t count, int *error);

/* Sleeps until one of the ios may have something, nr_waiter_wake() was called since the last wait, or the time is over. */
int nr_waiter_wait(struct nr_waiter *waiter, uint64_t timeout_ns);

/* Ends the present or else the next nr_waiter_wait(). Cheap when nobody sleeps. */
void nr_waiter_wake(struct nr_waiter *waiter);

/* No thread may be in any function of it. NULL is allowed. */
void nr_waiter_close(struct nr_waiter *waiter);

#endif
