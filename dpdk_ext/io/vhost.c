#include "vhost_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- Packet I/O ---- */

static int descriptor(struct nr_packet_io *io)
{
    return ((struct vhost *)io)->epoll_fd;
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    return ((struct vhost *)io)->clamp;
}

/* A client whose ring is full waits. */
static uint32_t receive_capacity(struct nr_packet_io *io)
{
    (void)io;
    return UINT32_MAX;
}

static void close_io(struct nr_packet_io *io)
{
    struct vhost *vhost = (struct vhost *)io;
    struct stat status;

    for (uint32_t i = 0; vhost->device != NULL && i < vhost->limit; i++)
        if (vhost->device[i].state != FREE)
            nr_vhost_take_away(vhost, &vhost->device[i]);
    if (vhost->socket_inode != 0 && lstat(vhost->address.sun_path, &status) == 0 && status.st_dev == vhost->socket_device &&
        status.st_ino == vhost->socket_inode)
        unlink(vhost->address.sun_path);
    nr_close_fd(&vhost->listen_fd);
    nr_close_fd(&vhost->epoll_fd);
    nr_close_fd(&vhost->timer_fd);
    pthread_mutex_destroy(&vhost->gate);
    free(vhost->device);
    free(vhost->order);
    free(vhost->touched);
    free(vhost->buffer);
    free(vhost);
}

static const struct nr_packet_io_ops vhost_ops = {
    .receive_burst = nr_vhost_receive_burst,
    .send_burst = nr_vhost_send_burst,
    .descriptor = descriptor,
    .arm = nr_vhost_arm,
    .disarm = nr_vhost_disarm,
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_io,
};

/* ---- Opening ---- */

/* Removes the socket that a dead server left at the path. 0: the path is free. */
static int clear_path(const struct sockaddr_un *address)
{
    struct stat status;
    int fd, error = 0;

    if (lstat(address->sun_path, &status) != 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(status.st_mode))
        return -EADDRINUSE;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno == EAGAIN || errno == EPROTOTYPE)
        error = -EADDRINUSE;
    else if (errno == ECONNREFUSED)
        error = unlink(address->sun_path) == 0 || errno == ENOENT ? 0 : -errno;
    else if (errno != ENOENT)
        error = -errno;
    close(fd);
    return error;
}

/* The folder, locked against other servers of netreplay that start at this moment; -1 when that cannot be had: then without. */
static int lock_folder(const char *path)
{
    char folder[sizeof(((struct sockaddr_un *)0)->sun_path)];
    const char *slash = strrchr(path, '/');
    size_t length = slash == path ? 1 : (size_t)(slash - path);

    memcpy(folder, path, length);
    folder[length] = 0;
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (int tries = 0; fd >= 0 && tries < 100 && flock(fd, LOCK_EX | LOCK_NB) != 0; tries++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return fd;
}

/* The file never has a mode wider than the wished, and nobody is answered before it has that. */
static int bind_path(struct vhost *vhost, mode_t mode)
{
    struct stat status;
    int error = clear_path(&vhost->address);

    if (error != 0)
        return error;
    vhost->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (vhost->listen_fd < 0 || fchmod(vhost->listen_fd, mode) != 0 ||
        bind(vhost->listen_fd, (struct sockaddr *)&vhost->address, sizeof(vhost->address)) != 0)
        return -errno;
    if (lstat(vhost->address.sun_path, &status) != 0)
        return -errno;
    vhost->socket_device = status.st_dev;
    vhost->socket_inode = status.st_ino;
    if (chmod(vhost->address.sun_path, mode) != 0 || listen(vhost->listen_fd, 128) != 0)
        return -errno;
    return 0;
}

static int open_socket(struct vhost *vhost, mode_t mode)
{
    int folder = lock_folder(vhost->address.sun_path);
    int error = bind_path(vhost, mode);

    nr_close_fd(&folder);
    if (error == 0)
        error = nr_epoll_open(&vhost->epoll_fd, &vhost->timer_fd, NR_VHOST_TELL(NR_VHOST_TIMER, 0));
    if (error == 0)
        error = nr_epoll_add(vhost->epoll_fd, vhost->listen_fd, EPOLLIN, NR_VHOST_TELL(NR_VHOST_LISTENER, 0));
    return error;
}

struct nr_packet_io *nr_vhost_listen(const struct nr_vhost_config *config, int *error)
{
    const uint32_t limit = nr_or_default(config->clients, NR_VHOST_CLIENTS);
    const uint32_t clamp = nr_or_default(config->max_payload, NR_MAX_DATAGRAM);
    const uint32_t mode = nr_or_default(config->mode, 0660);
    struct vhost *vhost;

    *error = -EINVAL;
    if (config->path == NULL || config->path[0] != '/' || limit > NR_VHOST_MOST_CLIENTS || (mode & ~0777u) != 0)
        return NULL;
    *error = -ENAMETOOLONG;
    if (strlen(config->path) >= sizeof(vhost->address.sun_path))
        return NULL;
    *error = -ENOMEM;
    vhost = aligned_alloc(64, (sizeof(*vhost) + 63) & ~(size_t)63);
    if (vhost == NULL)
        return NULL;
    memset(vhost, 0, sizeof(*vhost));
    vhost->io.ops = &vhost_ops;
    nr_io_set_sent(&vhost->io, config->sent, config->sent_context);
    vhost->limit = limit;
    vhost->clamp = clamp < NR_MAX_DATAGRAM ? clamp : NR_MAX_DATAGRAM;
    vhost->listen_fd = vhost->epoll_fd = vhost->timer_fd = -1;
    vhost->address.sun_family = AF_UNIX;
    memcpy(vhost->address.sun_path, config->path, strlen(config->path));
    pthread_mutex_init(&vhost->gate, NULL);
    vhost->device = calloc(limit, sizeof(*vhost->device));
    vhost->order = calloc(limit, sizeof(*vhost->order));
    vhost->touched = calloc(limit, sizeof(*vhost->touched));
    vhost->buffer = aligned_alloc(64, NR_VHOST_BURST * NR_VHOST_ROOM);
    if (vhost->device != NULL && vhost->order != NULL && vhost->touched != NULL && vhost->buffer != NULL) {
        for (uint32_t i = 0; i < limit; i++)
            vhost->device[i].index = i;
        *error = nr_vhost_catch_faults();
        if (*error == 0)
            *error = open_socket(vhost, mode);
    }
    if (*error != 0) {
        close_io(&vhost->io);
        return NULL;
    }
    return &vhost->io;
}

void nr_vhost_info(const struct nr_packet_io *io, struct nr_vhost_info *info)
{
    const struct vhost *vhost = (const struct vhost *)io;

    *info = vhost->info;
    info->clients = vhost->ready;
    info->limit = vhost->limit;
}

bool nr_vhost_client(const struct nr_packet_io *io, uint32_t index, struct nr_vhost_client *client)
{
    const struct vhost *vhost = (const struct vhost *)io;

    if (index >= vhost->limit || vhost->device[index].state != READY)
        return false;
    *client = vhost->device[index].client;
    return true;
}
