#include "waiter.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* Who may need a wake-up: nobody; one that sleeps (write the eventfd); one that has been woken and not yet said so. */
enum { AWAKE, SLEEPING, WOKEN };

struct nr_waiter {
    uint32_t count;         /* ios */
    uint32_t polled;        /* entries of fds: the wake-up and the descriptors that there are */
    uint64_t longest_ns;    /* that a sleep may last */
    struct pollfd *fds;     /* [0] the eventfd, written only while somebody sleeps */
    struct nr_packet_io **io;

    _Alignas(64) _Atomic int wakefulness; /* AWAKE, SLEEPING, WOKEN; on a line of its own, other threads write it */
};

struct nr_waiter *nr_waiter_open(struct nr_packet_io *const *ios, uint32_t count, int *error)
{
    struct nr_waiter *waiter = aligned_alloc(64, sizeof(*waiter));

    *error = -ENOMEM;
    if (waiter == NULL)
        return NULL;
    memset(waiter, 0, sizeof(*waiter));
    waiter->count = count;
    waiter->longest_ns = NR_WAIT_FOREVER;
    waiter->io = calloc(count, sizeof(struct nr_packet_io *));
    waiter->fds = calloc(1 + count, sizeof(*waiter->fds));
    if (waiter->io == NULL || waiter->fds == NULL) {
        nr_waiter_close(waiter);
        return NULL;
    }
    int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (fd < 0) {
        *error = -errno;
        nr_waiter_close(waiter);
        return NULL;
    }
    waiter->fds[waiter->polled++] = (struct pollfd){.fd = fd, .events = POLLIN};
    for (uint32_t i = 0; i < count; i++) {
        waiter->io[i] = ios[i];
        fd = nr_io_descriptor(ios[i]);
        if (fd < 0)
            waiter->longest_ns = NR_WAITER_POLL_NS;
        else
            waiter->fds[waiter->polled++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    *error = 0;
    return waiter;
}

static int sleep_armed(struct nr_waiter *waiter, uint64_t timeout_ns)
{
    struct timespec timeout;
    int result = 0;

    if (timeout_ns > waiter->longest_ns)
        timeout_ns = waiter->longest_ns;
    timeout = (struct timespec){.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    if (ppoll(waiter->fds, waiter->polled, timeout_ns == NR_WAIT_FOREVER ? NULL : &timeout, NULL) <= 0)
        return 0;
    for (uint32_t i = 1; i < waiter->polled; i++)
        if (waiter->fds[i].revents != 0)
            result = NR_WAITER_READABLE;
    if (waiter->fds[0].revents != 0) {
        uint64_t ignored;

        /* May be the late write of a wake-up that was already reported: then the result can be 0. */
        (void)!read(waiter->fds[0].fd, &ignored, sizeof(ignored));
    }
    return result;
}

int nr_waiter_wait(struct nr_waiter *waiter, uint64_t timeout_ns)
{
    int awake = AWAKE, result = 0;
    uint32_t armed = 0;
    bool ready = false;

    if (!atomic_compare_exchange_strong(&waiter->wakefulness, &awake, SLEEPING)) {
        atomic_store(&waiter->wakefulness, AWAKE);
        return NR_WAITER_WOKEN;
    }
    while (armed < waiter->count && !ready)
        ready = nr_io_arm(waiter->io[armed++]);
    result = ready ? NR_WAITER_READABLE : sleep_armed(waiter, timeout_ns);
    while (armed > 0)
        nr_io_disarm(waiter->io[--armed]);
    if (atomic_exchange(&waiter->wakefulness, AWAKE) == WOKEN)
        result |= NR_WAITER_WOKEN;
    return result;
}

void nr_waiter_wake(struct nr_waiter *waiter)
{
    if (atomic_exchange(&waiter->wakefulness, WOKEN) == SLEEPING) {
        const uint64_t one = 1;
        int saved = errno; /* a signal handler may be calling */

        (void)!write(waiter->fds[0].fd, &one, sizeof(one));
        errno = saved;
    }
}

void nr_waiter_close(struct nr_waiter *waiter)
{
    if (waiter == NULL)
        return;
    if (waiter->polled > 0)
        close(waiter->fds[0].fd);
    free(waiter->fds);
    free(waiter->io);
    free(waiter);
}
