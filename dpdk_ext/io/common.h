/* What the implementations of packet I/O do alike: defaults, the clock, and an epoll set with a timer to sleep on. */
#ifndef NR_IO_COMMON_H
#define NR_IO_COMMON_H

#include <time.h>
#include <unistd.h>

#include "packet_io.h"

static inline uint32_t nr_or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

/* CLOCK_MONOTONIC, nanoseconds. */
static inline uint64_t nr_clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static inline void nr_close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* The datagram's segments are not needed any more. */
static inline void nr_io_give_back(const struct nr_packet_io *io, const struct nr_tx *tx)
{
    for (uint32_t s = 0; s < tx->segments; s++)
        io->sent(io->sent_context, tx->segment[s].token);
}

/* Sets what the configuration says, or, where it says nothing, a callback to nobody. */
void nr_io_set_sent(struct nr_packet_io *io, nr_sent_fn sent, void *context);

/* An epoll set with a timer in it, told of by `timer_data`. 0 or a negative errno; what was opened is the caller's in both cases. */
int nr_epoll_open(int *epoll_fd, int *timer_fd, uint64_t timer_data);

/* Adds a descriptor for these events. 0 or a negative errno. */
int nr_epoll_add(int epoll_fd, int fd, uint32_t events, uint64_t data);

/* The timer goes off at this time of nr_clock_ns(), at once when that has passed; 0: never. */
void nr_timer_set(int timer_fd, uint64_t at);

#endif
