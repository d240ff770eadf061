/* A sleep on one packet I/O, for tests: with a waiter of its own. */
#ifndef NR_TESTS_WAITING_H
#define NR_TESTS_WAITING_H

#include "check.h"
#include "io/waiter.h"

static inline int wait_on(struct nr_packet_io *io, uint64_t timeout_ns)
{
    int error;
    struct nr_waiter *waiter = nr_waiter_open(&io, 1, &error);

    CHECK(waiter != NULL);
    int result = nr_waiter_wait(waiter, timeout_ns);
    nr_waiter_close(waiter);
    return result;
}

#endif
