/* What is said before the rings: hello, then vhost-user messages. */
#include "vhost_internal.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

/* Messages taken from one client in one look. */
#define MOST_MESSAGES 32
#define FEATURES (NR_VIRTIO_VERSION_1 | NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_IN_ORDER)

void nr_vhost_answer_hello(const struct vhost *vhost, int fd, int32_t status, const struct nr_vhost_answer *ends)
{
    struct nr_vhost_answer answer = *ends;

    answer.magic = NR_VHOST_MAGIC;
    answer.version = NR_VHOST_HELLO_VERSION;
    answer.status = status;
    answer.limit = vhost->limit;
    answer.max_payload = vhost->clamp;
    (void)!send(fd, &answer, sizeof(answer), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Two ends that no other device has. */
static struct nr_vhost_answer choose_ends(uint32_t index)
{
    const uint8_t high = (uint8_t)(index >> 8), low = (uint8_t)index;

    return (struct nr_vhost_answer){
        .client = {.mac = {2, 0, 0, 1, high, low}, .address = {10, 1, high, low}, .port = 16385},
        .server = {.mac = {2, 0, 0, 0, 0, 2}, .address = {10, 0, 0, 2}, .port = 7447},
    };
}

/* False when the device is gone. */
static bool take_hello(struct vhost *vhost, struct device *device)
{
    const struct nr_vhost_hello *hello = &device->hello;
    const struct nr_vhost_answer ends = choose_ends(device->index);

    if (hello->magic != NR_VHOST_MAGIC || device->passed_fd >= 0) {
        nr_vhost_refuse(vhost, device);
        return false;
    }
    if (hello->version != NR_VHOST_HELLO_VERSION) {
        nr_vhost_answer_hello(vhost, device->socket_fd, -EPROTONOSUPPORT, &ends);
        nr_vhost_refuse(vhost, device);
        return false;
    }
    /* The same client once more has lost its old connection, whether or not that has been noticed. */
    for (uint32_t i = 0; i < vhost->limit; i++) {
        struct device *other = &vhost->device[i];

        if (other != device && other->state >= SETUP && memcmp(other->peer.bytes + 4, hello->identity, 16) == 0)
            nr_vhost_take_away(vhost, other);
    }
    device->peer = (struct nr_peer){.length = NR_PEER_LENGTH_LOCAL};
    device->peer.bytes[0] = NR_PEER_LOCAL;
    nr_link_put16(device->peer.bytes + 2, device->index);
    memcpy(device->peer.bytes + 4, hello->identity, sizeof(hello->identity));
    nr_link_prepare(&device->link, &ends.server, &ends.client);
    nr_vhost_answer_hello(vhost, device->socket_fd, 0, &ends);
    device->state = SETUP;
    return true;
}

/* The ring lies where the client said, whole and in its memory. */
static bool place_ring(const struct device *device, struct ring *ring)
{
    const uint64_t size = ring->size;

    ring->desc = nr_vhost_at_user(device, ring->address.descriptors, size * sizeof(struct vring_desc), 16);
    ring->avail = nr_vhost_at_user(device, ring->address.available, 6 + 2 * size, 2);
    ring->used = nr_vhost_at_user(device, ring->address.used, 6 + sizeof(struct vring_used_elem) * size, 4);
    return ring->desc != NULL && ring->avail != NULL && ring->used != NULL;
}

/* A file that a client hands over as an eventfd could be anything, and some things cost who polls them. */
static bool is_eventfd(int fd)
{
    static const char wanted[] = "anon_inode:[eventfd]";
    char path[32], link[sizeof(wanted) + 1];

    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    ssize_t length = readlink(path, link, sizeof(link));
    return length == (ssize_t)sizeof(wanted) - 1 && memcmp(link, wanted, sizeof(wanted) - 1) == 0;
}

static bool take_kick(struct vhost *vhost, struct device *device, struct ring *ring, uint64_t number)
{
    if (number > NR_VHOST_TX || ring->kicked || !ring->addressed)
        return false;
    if (number == NR_VHOST_TX) {
        if (!is_eventfd(device->passed_fd) ||
            nr_epoll_add(vhost->epoll_fd, device->passed_fd, EPOLLIN | EPOLLET, NR_VHOST_TELL(NR_VHOST_KICK, device->index)) != 0)
            return false;
        device->kick_fd = device->passed_fd;
        device->passed_fd = -1;
    }
    ring->kicked = true;
    return true;
}

/* False when it breaks the rules. Memory, sizes, addresses and kicks are each given once, a ring's parts in that order. */
static bool take_message(struct vhost *vhost, struct device *device)
{
    struct nr_vhost_message *message = &device->message;
    /* The first four bytes of the payload are the ring's index in all that name one. */
    const struct nr_vhost_ring said = message->payload.ring;
    const bool names_ring = said.index <= NR_VHOST_TX;
    struct ring *ring = said.index == NR_VHOST_TX ? &device->tx : &device->rx;

    switch (message->request) {
    case NR_VHOST_GET_FEATURES:
        message->flags = NR_VHOST_VERSION | NR_VHOST_REPLY;
        message->size = sizeof(message->payload.number);
        message->payload.number = FEATURES;
        return send(device->socket_fd, message, NR_VHOST_HEADER + 8, MSG_DONTWAIT | MSG_NOSIGNAL) == NR_VHOST_HEADER + 8;
    case NR_VHOST_SET_FEATURES:
        return message->size == 8 && message->payload.number == FEATURES;
    case NR_VHOST_SET_OWNER:
        return message->size == 0;
    case NR_VHOST_SET_MEM_TABLE:
        return message->size == sizeof(message->payload.memory) && device->passed_fd >= 0 &&
               nr_vhost_map(vhost, device, message->payload.memory, device->passed_fd);
    case NR_VHOST_SET_VRING_NUM:
        if (message->size != sizeof(said) || !names_ring || ring->size != 0 || said.value < 16 || said.value > 32768 ||
            (said.value & (said.value - 1)) != 0)
            return false;
        ring->size = (uint16_t)said.value;
        return true;
    case NR_VHOST_SET_VRING_BASE:
        return message->size == sizeof(said) && names_ring && said.value == 0;
    case NR_VHOST_SET_VRING_ADDR:
        if (message->size != sizeof(message->payload.address) || !names_ring || ring->addressed || ring->size == 0 ||
            device->memory == NULL)
            return false;
        ring->address = message->payload.address;
        ring->addressed = place_ring(device, ring);
        return ring->addressed;
    case NR_VHOST_SET_VRING_CALL:
        return message->size == 8 && message->payload.number <= NR_VHOST_TX; /* see hello.h */
    case NR_VHOST_SET_VRING_KICK:
        return message->size == 8 && device->passed_fd >= 0 && take_kick(vhost, device, ring, message->payload.number);
    default:
        return false;
    }
}

/*
 * Receives up to `whole` bytes of the present hello or message, with at most one descriptor. 1: whole, 0: not yet, -1: the
 * connection has ended or breaks the rules.
 */
static int gather(struct device *device, uint32_t whole)
{
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(4 * sizeof(int))];
    } control;

    while (device->got < whole) {
        struct iovec vector = {.iov_base = (uint8_t *)&device->message + device->got, .iov_len = whole - device->got};
        struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control)};
        ssize_t length = recvmsg(device->socket_fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        bool bad = false;

        if (length < 0 && (errno == EAGAIN || errno == EINTR))
            return 0;
        if (length <= 0)
            return -1;
        for (struct cmsghdr *at = CMSG_FIRSTHDR(&header); at != NULL; at = CMSG_NXTHDR(&header, at)) {
            uint32_t count = at->cmsg_level == SOL_SOCKET && at->cmsg_type == SCM_RIGHTS
                                 ? (uint32_t)((at->cmsg_len - CMSG_LEN(0)) / sizeof(int))
                                 : 0;

            for (uint32_t i = 0; i < count; i++) {
                int fd;

                memcpy(&fd, CMSG_DATA(at) + i * sizeof(fd), sizeof(fd));
                if (device->passed_fd < 0) {
                    device->passed_fd = fd;
                } else {
                    close(fd);
                    bad = true;
                }
            }
        }
        if (bad || header.msg_flags & MSG_CTRUNC)
            return -1;
        device->got += (uint32_t)length;
    }
    return 1;
}

/* Takes one message, if it is whole. False when there is nothing more to do for this device. */
static bool step_set_up(struct vhost *vhost, struct device *device)
{
    const struct nr_vhost_message *message = &device->message;
    int result;

    if (device->state == GREETING) {
        result = gather(device, sizeof(device->hello));
        if (result > 0 && !take_hello(vhost, device))
            return false;
    } else {
        result = gather(device, NR_VHOST_HEADER);
        if (result > 0 && (message->flags != NR_VHOST_VERSION || message->size > sizeof(message->payload)))
            result = -1;
        if (result > 0)
            result = gather(device, NR_VHOST_HEADER + message->size);
        if (result > 0 && !take_message(vhost, device))
            result = -1;
    }
    if (result < 0)
        nr_vhost_refuse(vhost, device);
    if (result <= 0)
        return false;
    memset(&device->message, 0, sizeof(device->message));
    device->got = 0;
    nr_close_fd(&device->passed_fd);
    if (device->rx.kicked && device->tx.kicked) {
        nr_vhost_take_in(vhost, device);
        return false;
    }
    return true;
}

/* Something came on the connection, or it ended. */
void nr_vhost_hear(struct vhost *vhost, struct device *device)
{
    uint8_t byte;

    if (device->state == READY) {
        ssize_t length = recv(device->socket_fd, &byte, 1, MSG_DONTWAIT);

        if (length > 0)
            nr_vhost_misbehaved(vhost, device); /* everything has been said */
        else if (length == 0 || (errno != EAGAIN && errno != EINTR))
            nr_vhost_take_away(vhost, device);
        return;
    }
    for (int i = 0; i < MOST_MESSAGES && device->state != FREE && step_set_up(vhost, device); i++)
        ;
}
