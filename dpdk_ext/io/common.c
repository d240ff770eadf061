#include "common.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

static void sent_to_nobody(void *context, uint64_t token)
{
    (void)context;
    (void)token;
}

void nr_io_set_sent(struct nr_packet_io *io, nr_sent_fn sent, void *context)
{
    io->sent = sent != NULL ? sent : sent_to_nobody;
    io->sent_context = context;
}

int nr_epoll_add(int epoll_fd, int fd, uint32_t events, uint64_t data)
{
    struct epoll_event event = {.events = events, .data.u64 = data};

    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0 ? 0 : -errno;
}

int nr_epoll_open(int *epoll_fd, int *timer_fd, uint64_t timer_data)
{
    *epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    *timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (*epoll_fd < 0 || *timer_fd < 0)
        return -errno;
    return nr_epoll_add(*epoll_fd, *timer_fd, EPOLLIN, timer_data);
}

void nr_timer_set(int timer_fd, uint64_t at)
{
    const struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(at / 1000000000u), .tv_nsec = (long)(at % 1000000000u)},
    };

    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}
