#include "vhost_internal.h"

#include <sys/epoll.h>

static void swap_places(struct vhost *vhost, uint32_t a, uint32_t b)
{
    uint32_t kept = vhost->order[a];

    vhost->order[a] = vhost->order[b];
    vhost->order[b] = kept;
    vhost->device[vhost->order[a]].place = a;
    vhost->device[vhost->order[b]].place = b;
}

void nr_vhost_make_active(struct vhost *vhost, struct device *device)
{
    device->idle = 0;
    if (device->place >= vhost->active)
        swap_places(vhost, device->place, vhost->active++);
}

void nr_vhost_make_idle(struct vhost *vhost, struct device *device)
{
    if (device->place < vhost->active)
        swap_places(vhost, device->place, --vhost->active);
}

/* The rings are whole: from now on they are polled. */
void nr_vhost_take_in(struct vhost *vhost, struct device *device)
{
    pthread_mutex_lock(&vhost->gate);
    device->state = READY;
    __atomic_store_n(&device->rx.used->flags, VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
    __atomic_store_n(&device->tx.used->flags, atomic_load(&vhost->armed) ? 0 : VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
    device->place = vhost->ready;
    vhost->order[vhost->ready++] = device->index;
    pthread_mutex_unlock(&vhost->gate);
    nr_vhost_make_active(vhost, device);
    vhost->setting_up--;
    vhost->info.connected++;
}

/* The memory goes before the connection: when the client sees the end of that, nobody else writes into it. */
void nr_vhost_take_away(struct vhost *vhost, struct device *device)
{
    if (device->state == READY) {
        nr_vhost_make_idle(vhost, device);
        pthread_mutex_lock(&vhost->gate);
        swap_places(vhost, device->place, --vhost->ready);
        device->state = FREE;
        pthread_mutex_unlock(&vhost->gate);
    } else {
        vhost->setting_up--;
    }
    device->state = FREE;
    nr_vhost_unmap(vhost, device);
    /* The client has these too, so that closing alone would not end what epoll tells of them. */
    if (device->kick_fd >= 0)
        epoll_ctl(vhost->epoll_fd, EPOLL_CTL_DEL, device->kick_fd, NULL);
    nr_close_fd(&device->kick_fd);
    nr_close_fd(&device->passed_fd);
    nr_close_fd(&device->socket_fd);
}

void nr_vhost_refuse(struct vhost *vhost, struct device *device)
{
    vhost->info.refused_protocol++;
    nr_vhost_take_away(vhost, device);
}

void nr_vhost_misbehaved(struct vhost *vhost, struct device *device)
{
    vhost->info.misbehaved++;
    nr_vhost_take_away(vhost, device);
}

/* Takes away those whose memory had gone. */
void nr_vhost_see_faults(struct vhost *vhost, uint32_t faults)
{
    vhost->faults_seen = faults;
    for (uint32_t i = 0; i < vhost->limit; i++) {
        struct device *device = &vhost->device[i];

        if (nr_vhost_faulted(device))
            nr_vhost_misbehaved(vhost, device);
    }
}
