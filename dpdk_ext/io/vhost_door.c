/* Who is let in, who is hung up on, and what epoll tells of. */
#include "vhost_internal.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/socket.h>

/* Nanoseconds that a client may take from its connection to its rings. */
#define SETUP_NS 2000000000u
/* Nanoseconds for which nobody is let in after the process ran out of descriptors. */
#define PAUSE_NS 100000000u
/* Clients let in, in one look. */
#define MOST_ACCEPTS 64

static struct device *free_device(struct vhost *vhost)
{
    for (uint32_t i = 0; i < vhost->limit; i++)
        if (vhost->device[i].state == FREE)
            return &vhost->device[i];
    return NULL;
}

static void start_device(struct vhost *vhost, struct device *device, int fd)
{
    struct ucred credentials = {.pid = 0, .uid = UINT32_MAX};
    socklen_t length = sizeof(credentials);

    if (nr_epoll_add(vhost->epoll_fd, fd, EPOLLIN, NR_VHOST_TELL(NR_VHOST_CONNECTION, device->index)) != 0) {
        close(fd);
        vhost->info.starved++;
        return;
    }
    (void)getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length);
    *device = (struct device){
        .state = GREETING,
        .index = device->index,
        .client = {.pid = credentials.pid, .uid = credentials.uid},
        .socket_fd = fd,
        .kick_fd = -1,
        .passed_fd = -1,
        .deadline = vhost->looked + SETUP_NS,
    };
    vhost->setting_up++;
}

static void set_accepting(struct vhost *vhost, bool on)
{
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.u64 = NR_VHOST_TELL(NR_VHOST_LISTENER, 0)};

    vhost->closed_till = on ? 0 : vhost->looked + PAUSE_NS;
    epoll_ctl(vhost->epoll_fd, EPOLL_CTL_MOD, vhost->listen_fd, &event);
}

static void let_in(struct vhost *vhost)
{
    for (int i = 0; i < MOST_ACCEPTS; i++) {
        int fd = accept4(vhost->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);

        if (fd < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)) {
            set_accepting(vhost, false); /* else it would be told of again at once */
            vhost->info.starved++;
        }
        if (fd < 0)
            return;
        struct device *device = free_device(vhost);
        if (device != NULL) {
            start_device(vhost, device, fd);
        } else {
            nr_vhost_answer_hello(vhost, fd, -EUSERS, &(struct nr_vhost_answer){0});
            close(fd);
            vhost->info.refused_full++;
        }
    }
}

/* Sets the timer for the next thing that has to happen without anybody telling. */
static void set_timer(struct vhost *vhost)
{
    uint64_t next = vhost->closed_till;

    for (uint32_t i = 0; i < vhost->limit && vhost->setting_up != 0; i++) {
        const struct device *device = &vhost->device[i];

        if ((device->state == GREETING || device->state == SETUP) && (next == 0 || device->deadline < next))
            next = device->deadline;
    }
    nr_timer_set(vhost->timer_fd, next);
}

static void hang_up_on_the_slow(struct vhost *vhost)
{
    for (uint32_t i = 0; i < vhost->limit && vhost->setting_up != 0; i++) {
        struct device *device = &vhost->device[i];

        if ((device->state == GREETING || device->state == SETUP) && vhost->looked >= device->deadline)
            nr_vhost_refuse(vhost, device);
    }
}

/* Everything that epoll tells of. A few system calls. */
void nr_vhost_look(struct vhost *vhost)
{
    struct epoll_event events[64];
    uint32_t set_up_before = vhost->setting_up;
    bool knock = false, timer = false;
    uint64_t ignored;

    atomic_store_explicit(&vhost->woken, false, memory_order_relaxed);
    int count = epoll_wait(vhost->epoll_fd, events, 64, 0);
    for (int i = 0; i < count; i++) {
        struct device *device = &vhost->device[(uint32_t)events[i].data.u64];
        uint32_t kind = (uint32_t)(events[i].data.u64 >> 32);

        /* Kicks need no more than to have been seen. */
        knock |= kind == NR_VHOST_LISTENER;
        timer |= kind == NR_VHOST_TIMER;
        if (kind == NR_VHOST_CONNECTION && device->state != FREE)
            nr_vhost_hear(vhost, device);
    }
    if (timer)
        (void)!read(vhost->timer_fd, &ignored, sizeof(ignored));
    if (vhost->setting_up != 0)
        hang_up_on_the_slow(vhost);
    if (vhost->closed_till != 0 && vhost->looked >= vhost->closed_till)
        set_accepting(vhost, true);
    if (knock)
        let_in(vhost); /* after those who left */
    if (timer || vhost->setting_up != set_up_before || vhost->closed_till != 0)
        set_timer(vhost);
}
