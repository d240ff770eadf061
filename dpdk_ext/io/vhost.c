#include "vhost.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <linux/virtio_ring.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "link.h"

/* Datagrams that one receive_burst hands up at most; each has room for the largest. */
#define BURST 64
/* Bytes between two payloads in the private buffer, at most. */
#define ROOM ((NR_LINK_PREFIX + NR_MAX_DATAGRAM + 63u) / 64 * 64 + 64)
/* Calls between two looks at the clock, and nanoseconds between two at the sockets, which is a system call. */
#define POLLS_PER_CLOCK 64
#define LOOK_NS 100000u
/* Rounds without a frame after which a device is looked at only every IDLE_STRIDE rounds (a power of two). */
#define IDLE_ROUNDS 4096
#define IDLE_STRIDE 16
/* Nanoseconds that a client may take from its connection to its rings. */
#define SETUP_NS 2000000000u
/* Nanoseconds for which nobody is let in after the process ran out of descriptors. */
#define PAUSE_NS 100000000u
/* Most bytes that one client may make us map. */
#define MOST_MEMORY (256u << 20)
/* Least bytes of a receive buffer, and how many of those the largest frame fills. */
#define LEAST_BUFFER 1024u
#define MOST_BUFFERS ((NR_LINK_PREFIX + NR_MAX_DATAGRAM + LEAST_BUFFER - 1) / LEAST_BUFFER)
/* Bytes copied to a client after which it is told, although the burst goes on. */
#define PUBLISH_BYTES 8192u
/* Messages taken from one client, and clients let in, in one look. */
#define MOST_MESSAGES 32
#define MOST_ACCEPTS 64
#define FEATURES (NR_VIRTIO_VERSION_1 | NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_IN_ORDER)
/* What epoll tells: a kind, and the index of a device in the low half. */
#define TELL(kind, index) ((uint64_t)(kind) << 32 | (index))

enum { LISTENER, TIMER, CONNECTION, KICK };
enum state { FREE, GREETING, SETUP, READY };

/*
 * One split virtqueue of a client, all of it in memory that changes under our hands: indices of ours are never read back from it,
 * and each of the client's values is read once, by load16() and the like, and checked.
 */
struct ring {
    const struct vring_desc *desc; /* [size] */
    struct vring_avail *avail;     /* the client's */
    struct vring_used *used;       /* ours to write */
    uint16_t size;                 /* descriptors, a power of two; 0: not said yet */
    uint16_t next;                 /* index of the next available entry to take; who arms reads it */
    uint16_t known;                /* the client's index of available entries as last read */
    uint16_t done;                 /* what used->idx becomes */
    bool addressed, kicked;        /* SET_VRING_ADDR and SET_VRING_KICK came */
    struct nr_vhost_address address; /* as the client gave it */
};

struct device {
    enum state state;
    uint32_t index;     /* of this device */
    struct ring rx, tx; /* named as the client sees them: we take from tx and fill rx */

    uint8_t *memory;        /* the client's, mapped; NULL: not yet */
    uint64_t memory_bytes;  /* of it */
    uint64_t guest_address; /* what descriptors count from */
    uint64_t user_address;  /* what ring addresses count from */
    uint32_t region;        /* index of the memory in `regions` */

    struct nr_link link; /* both ends */
    struct nr_peer peer; /* the client */

    uint32_t idle;           /* rounds without a frame */
    uint32_t place;          /* in vhost.order */
    uint32_t unpublished;    /* bytes copied to it and not yet shown */
    bool touched;            /* listed in vhost.touched */
    struct nr_vhost_client client; /* for telemetry */

    int socket_fd;       /* its connection */
    int kick_fd;         /* eventfd, the client wakes us; in the epoll set */
    uint64_t deadline;   /* CLOCK_MONOTONIC, nanoseconds: to be READY by */
    uint32_t got;        /* bytes of hello or message got so far */
    int passed_fd;       /* that came with the message, or -1 */
    union {
        struct nr_vhost_hello hello;     /* GREETING */
        struct nr_vhost_message message; /* SETUP */
    };
};

struct vhost {
    struct nr_packet_io io; /* first: the shared part */

    struct device *device; /* [limit] */
    uint32_t *order;       /* [limit] ready devices: first the active ones, then the idle */
    uint32_t *touched;     /* [limit] devices that got something in this burst */
    uint32_t limit;        /* devices */
    uint32_t ready;        /* of them */
    uint32_t active;       /* of these, looked at each round */
    uint32_t start;        /* place in order where the next round begins */
    uint32_t round;        /* counts rounds */
    uint32_t polls;        /* calls since the clock was read */
    uint32_t faults_seen;  /* of all_faults, below */
    uint64_t looked;       /* CLOCK_MONOTONIC, nanoseconds, of the last look */
    uint8_t *buffer;       /* BURST * ROOM bytes: what was handed up */

    uint32_t setting_up;  /* devices in GREETING or SETUP */
    uint64_t closed_till; /* the same clock; nobody is let in before; 0: open */
    uint32_t clamp;       /* bytes, largest payload */
    int listen_fd, epoll_fd, timer_fd;
    struct sockaddr_un address;
    dev_t socket_device; /* of the socket's file, which at the end is removed if it still is this one */
    ino_t socket_inode;
    struct nr_vhost_info info;

    pthread_mutex_t gate; /* over `armed` and which rings are ready: the sleeper's arm and disarm against take_in and take_away */
    _Alignas(64) atomic_bool armed; /* somebody sleeps or is about to */
    atomic_bool woken;              /* somebody slept since the last look */
};

static uint16_t load16(const void *at)
{
    return __atomic_load_n((const uint16_t *)at, __ATOMIC_RELAXED);
}

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* ---- Memory that may go away ---- */

/*
 * What is mapped of clients in this process, for the SIGBUS handler. A seal keeps a client from shrinking its memory, and holes that
 * it punches are filled when touched. But the kernel may have no page to fill them with (where it does not overcommit, any client can
 * bring that about), or none any more (a page that was swapped out cannot be read, or its memory is broken): then who touches it gets
 * the signal. Entries are taken and given back under the lock, read by the handler.
 */
static struct region {
    _Atomic(uint8_t *) base; /* NULL: a free entry. Written last, taken away first */
    _Atomic size_t bytes;
    _Atomic uint32_t faults; /* pages of it that had gone */
} regions[2 * NR_VHOST_MOST_CLIENTS];

static pthread_mutex_t regions_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint32_t all_faults; /* sum of faults, ever */
static struct sigaction previous_action;
static bool handler_installed; /* under regions_lock */
static size_t page_bytes;

/* Puts a page of zeros where the memory had gone. Any other fault goes to who was there before. */
static void on_bus_error(int signal, siginfo_t *info, void *context)
{
    uint8_t *at = info->si_addr;
    int saved = errno;

    for (uint32_t i = 0; i < sizeof(regions) / sizeof(regions[0]); i++) {
        uint8_t *base = atomic_load(&regions[i].base);

        if (base == NULL || at < base || at >= base + atomic_load(&regions[i].bytes))
            continue;
        uint8_t *page = (uint8_t *)((uintptr_t)at & ~(uintptr_t)(page_bytes - 1));
        if (mmap(page, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
            break;
        atomic_fetch_add(&regions[i].faults, 1);
        atomic_fetch_add(&all_faults, 1);
        errno = saved;
        return;
    }
    errno = saved;
    if (previous_action.sa_flags & SA_SIGINFO)
        previous_action.sa_sigaction(signal, info, context);
    else if (previous_action.sa_handler != SIG_DFL && previous_action.sa_handler != SIG_IGN)
        previous_action.sa_handler(signal);
    else
        sigaction(SIGBUS, &(struct sigaction){.sa_handler = SIG_DFL}, NULL); /* and faults again */
}

static int install_handler(void)
{
    struct sigaction action = {.sa_flags = SA_SIGINFO | SA_ONSTACK, .sa_sigaction = on_bus_error};
    int result = 0;

    pthread_mutex_lock(&regions_lock);
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    if (!handler_installed) {
        sigemptyset(&action.sa_mask);
        result = sigaction(SIGBUS, &action, &previous_action) == 0 ? 0 : -errno;
        handler_installed = result == 0;
    }
    pthread_mutex_unlock(&regions_lock);
    return result;
}

static bool enter_region(uint8_t *base, size_t bytes, uint32_t *index)
{
    bool found = false;

    pthread_mutex_lock(&regions_lock);
    for (uint32_t i = 0; i < sizeof(regions) / sizeof(regions[0]) && !found; i++) {
        if (atomic_load(&regions[i].base) != NULL)
            continue;
        atomic_store(&regions[i].bytes, bytes);
        atomic_store(&regions[i].faults, 0);
        atomic_store(&regions[i].base, base);
        *index = i;
        found = true;
    }
    pthread_mutex_unlock(&regions_lock);
    return found;
}

/* How many of its pages had gone. */
static uint32_t leave_region(uint32_t index)
{
    pthread_mutex_lock(&regions_lock);
    uint32_t faults = atomic_load(&regions[index].faults);
    atomic_store(&regions[index].base, NULL);
    pthread_mutex_unlock(&regions_lock);
    return faults;
}

/* ---- Coming and going ---- */

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void swap_places(struct vhost *vhost, uint32_t a, uint32_t b)
{
    uint32_t kept = vhost->order[a];

    vhost->order[a] = vhost->order[b];
    vhost->order[b] = kept;
    vhost->device[vhost->order[a]].place = a;
    vhost->device[vhost->order[b]].place = b;
}

static void make_active(struct vhost *vhost, struct device *device)
{
    device->idle = 0;
    if (device->place >= vhost->active)
        swap_places(vhost, device->place, vhost->active++);
}

static void make_idle(struct vhost *vhost, struct device *device)
{
    if (device->place < vhost->active)
        swap_places(vhost, device->place, --vhost->active);
}

/* The rings are whole: from now on they are polled. */
static void take_in(struct vhost *vhost, struct device *device)
{
    pthread_mutex_lock(&vhost->gate);
    device->state = READY;
    __atomic_store_n(&device->rx.used->flags, VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
    __atomic_store_n(&device->tx.used->flags, atomic_load(&vhost->armed) ? 0 : VRING_USED_F_NO_NOTIFY, __ATOMIC_RELAXED);
    device->place = vhost->ready;
    vhost->order[vhost->ready++] = device->index;
    pthread_mutex_unlock(&vhost->gate);
    make_active(vhost, device);
    vhost->setting_up--;
    vhost->info.connected++;
}

/* The memory goes before the connection: when the client sees the end of that, nobody else writes into it. */
static void take_away(struct vhost *vhost, struct device *device)
{
    if (device->state == READY) {
        make_idle(vhost, device);
        pthread_mutex_lock(&vhost->gate);
        swap_places(vhost, device->place, --vhost->ready);
        device->state = FREE;
        pthread_mutex_unlock(&vhost->gate);
    } else {
        vhost->setting_up--;
    }
    device->state = FREE;
    if (device->memory != NULL) {
        vhost->info.faults += leave_region(device->region);
        munmap(device->memory, device->memory_bytes);
        vhost->info.memory_bytes -= device->memory_bytes;
        device->memory = NULL;
    }
    /* The client has these too, so that closing alone would not end what epoll tells of them. */
    if (device->kick_fd >= 0)
        epoll_ctl(vhost->epoll_fd, EPOLL_CTL_DEL, device->kick_fd, NULL);
    close_fd(&device->kick_fd);
    close_fd(&device->passed_fd);
    close_fd(&device->socket_fd);
}

static void refuse(struct vhost *vhost, struct device *device)
{
    vhost->info.refused_protocol++;
    take_away(vhost, device);
}

static void misbehaved(struct vhost *vhost, struct device *device)
{
    vhost->info.misbehaved++;
    take_away(vhost, device);
}

/* ---- What is said before the rings ---- */

static void answer_hello(const struct vhost *vhost, int fd, int32_t status, const struct nr_vhost_answer *ends)
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
        refuse(vhost, device);
        return false;
    }
    if (hello->version != NR_VHOST_HELLO_VERSION) {
        answer_hello(vhost, device->socket_fd, -EPROTONOSUPPORT, &ends);
        refuse(vhost, device);
        return false;
    }
    /* The same client once more has lost its old connection, whether or not that has been noticed. */
    for (uint32_t i = 0; i < vhost->limit; i++) {
        struct device *other = &vhost->device[i];

        if (other != device && other->state >= SETUP && memcmp(other->peer.bytes + 4, hello->identity, 16) == 0)
            take_away(vhost, other);
    }
    device->peer = (struct nr_peer){.length = NR_PEER_LENGTH_LOCAL};
    device->peer.bytes[0] = NR_PEER_LOCAL;
    nr_link_put16(device->peer.bytes + 2, device->index);
    memcpy(device->peer.bytes + 4, hello->identity, sizeof(hello->identity));
    nr_link_prepare(&device->link, &ends.server, &ends.client);
    answer_hello(vhost, device->socket_fd, 0, &ends);
    device->state = SETUP;
    return true;
}

/* Maps the client's memory, if it cannot be taken away and is of a sensible size. */
static bool map_memory(struct vhost *vhost, struct device *device, struct nr_vhost_memory table, int fd)
{
    struct stat status;
    struct statfs system;
    int seals = fcntl(fd, F_GET_SEALS);

    if (device->memory != NULL || table.regions != 1 || seals < 0 || !(seals & F_SEAL_SHRINK) || fstatfs(fd, &system) != 0 ||
        system.f_type != TMPFS_MAGIC || fstat(fd, &status) != 0)
        return false; /* pages of hugetlbfs are not of the size that the handler puts in their place */
    if (table.size == 0 || table.size > MOST_MEMORY || table.offset % page_bytes != 0 || table.offset > (uint64_t)status.st_size ||
        table.size > (uint64_t)status.st_size - table.offset || table.guest_address > UINT64_MAX - table.size ||
        table.user_address > UINT64_MAX - table.size)
        return false;
    void *memory = mmap(NULL, table.size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)table.offset);
    if (memory == MAP_FAILED)
        return false;
    if (!enter_region(memory, table.size, &device->region)) {
        munmap(memory, table.size);
        return false;
    }
    device->memory = memory;
    device->memory_bytes = table.size;
    device->guest_address = table.guest_address;
    device->user_address = table.user_address;
    vhost->info.memory_bytes += table.size;
    return true;
}

/* So many bytes at a user address, aligned as they must be; NULL when they are not all in the memory. */
static void *at_user(const struct device *device, uint64_t address, uint64_t bytes, uint64_t alignment)
{
    uint64_t offset = address - device->user_address;

    if (address < device->user_address || bytes > device->memory_bytes || offset > device->memory_bytes - bytes ||
        offset % alignment != 0)
        return NULL;
    return device->memory + offset;
}

static bool place_ring(const struct device *device, struct ring *ring)
{
    const uint64_t size = ring->size;

    ring->desc = at_user(device, ring->address.descriptors, size * sizeof(struct vring_desc), 16);
    ring->avail = at_user(device, ring->address.available, 6 + 2 * size, 2);
    ring->used = at_user(device, ring->address.used, 6 + sizeof(struct vring_used_elem) * size, 4);
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
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = TELL(KICK, device->index)};

    if (number > NR_VHOST_TX || ring->kicked || !ring->addressed)
        return false;
    if (number == NR_VHOST_TX) {
        if (!is_eventfd(device->passed_fd) || epoll_ctl(vhost->epoll_fd, EPOLL_CTL_ADD, device->passed_fd, &event) != 0)
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
               map_memory(vhost, device, message->payload.memory, device->passed_fd);
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
        refuse(vhost, device);
    if (result <= 0)
        return false;
    memset(&device->message, 0, sizeof(device->message));
    device->got = 0;
    close_fd(&device->passed_fd);
    if (device->rx.kicked && device->tx.kicked) {
        take_in(vhost, device);
        return false;
    }
    return true;
}

/* Something came on the connection, or it ended. */
static void hear(struct vhost *vhost, struct device *device)
{
    uint8_t byte;

    if (device->state == READY) {
        ssize_t length = recv(device->socket_fd, &byte, 1, MSG_DONTWAIT);

        if (length > 0)
            misbehaved(vhost, device); /* everything has been said */
        else if (length == 0 || (errno != EAGAIN && errno != EINTR))
            take_away(vhost, device);
        return;
    }
    for (int i = 0; i < MOST_MESSAGES && device->state != FREE && step_set_up(vhost, device); i++)
        ;
}

static struct device *free_device(struct vhost *vhost)
{
    for (uint32_t i = 0; i < vhost->limit; i++)
        if (vhost->device[i].state == FREE)
            return &vhost->device[i];
    return NULL;
}

static void start_device(struct vhost *vhost, struct device *device, int fd)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = TELL(CONNECTION, device->index)};
    struct ucred credentials = {.pid = 0, .uid = UINT32_MAX};
    socklen_t length = sizeof(credentials);

    if (epoll_ctl(vhost->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
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
    struct epoll_event event = {.events = on ? EPOLLIN : 0, .data.u64 = TELL(LISTENER, 0)};

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
            answer_hello(vhost, fd, -EUSERS, &(struct nr_vhost_answer){0});
            close(fd);
            vhost->info.refused_full++;
        }
    }
}

/* Sets the timer for the next thing that has to happen without anybody telling. */
static void set_timer(struct vhost *vhost)
{
    uint64_t next = vhost->closed_till != 0 ? vhost->closed_till : UINT64_MAX;
    struct itimerspec when = {0};

    for (uint32_t i = 0; i < vhost->limit && vhost->setting_up != 0; i++) {
        const struct device *device = &vhost->device[i];

        if ((device->state == GREETING || device->state == SETUP) && device->deadline < next)
            next = device->deadline;
    }
    if (next != UINT64_MAX) {
        when.it_value.tv_sec = (time_t)(next / 1000000000u);
        when.it_value.tv_nsec = (long)(next % 1000000000u);
    }
    timerfd_settime(vhost->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void hang_up_on_the_slow(struct vhost *vhost)
{
    for (uint32_t i = 0; i < vhost->limit && vhost->setting_up != 0; i++) {
        struct device *device = &vhost->device[i];

        if ((device->state == GREETING || device->state == SETUP) && vhost->looked >= device->deadline)
            refuse(vhost, device);
    }
}

/* Takes away those whose memory had gone. */
static void see_faults(struct vhost *vhost, uint32_t faults)
{
    vhost->faults_seen = faults;
    for (uint32_t i = 0; i < vhost->limit; i++) {
        struct device *device = &vhost->device[i];

        if (device->memory != NULL && atomic_load(&regions[device->region].faults) != 0)
            misbehaved(vhost, device);
    }
}

/* Everything that epoll tells of. A few system calls. */
static void look(struct vhost *vhost)
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
        knock |= kind == LISTENER;
        timer |= kind == TIMER;
        if (kind == CONNECTION && device->state != FREE)
            hear(vhost, device);
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

/* ---- Packet I/O ---- */

/*
 * Reads the descriptor that stands next in the ring, once. NULL when it breaks the rules: our clients use no chains and no
 * indirect tables, and `flags` is all that it may be.
 */
static uint8_t *read_descriptor(const struct device *device, const struct ring *ring, uint16_t flags, uint16_t *head,
                                uint32_t *length)
{
    const uint16_t id = load16(&ring->avail->ring[ring->next & (ring->size - 1)]);

    if (id >= ring->size)
        return NULL;
    const uint64_t *at = (const uint64_t *)&ring->desc[id];
    const uint64_t offset = __atomic_load_n(&at[0], __ATOMIC_RELAXED) - device->guest_address;
    const uint64_t rest = __atomic_load_n(&at[1], __ATOMIC_RELAXED);

    *head = id;
    *length = (uint32_t)rest;
    if ((uint16_t)(rest >> 32) != flags || *length > device->memory_bytes || offset > device->memory_bytes - *length)
        return NULL;
    return device->memory + offset;
}

static bool refresh(struct ring *ring)
{
    ring->known = __atomic_load_n(&ring->avail->idx, __ATOMIC_ACQUIRE);
    return (uint16_t)(ring->known - ring->next) <= ring->size;
}

/* Copies up to `max` frames out of the ring to *into, and moves that on. False when the client broke the rules. */
static bool drain(struct vhost *vhost, struct device *device, struct nr_rx *rx, uint32_t max, uint8_t **into, uint32_t *good)
{
    struct ring *ring = &device->tx;
    uint16_t count = (uint16_t)(ring->known - ring->next), head = 0;
    struct nr_io_counters *counters = &vhost->io.counters;
    uint32_t taken = 0;

    for (uint32_t i = 0; i < max && count > 0; i++, count--) {
        uint32_t length;
        const uint8_t *from = read_descriptor(device, ring, 0, &head, &length);
        struct nr_rx *out = &rx[taken];

        if (from == NULL || length < sizeof(struct nr_virtio_header) || length > NR_LINK_PREFIX + NR_MAX_DATAGRAM)
            return false;
        /* The payload comes to stand at the beginning of a cache line. */
        uint8_t *to = *into + 64 - NR_LINK_PREFIX;
        memcpy(to, from, length);
        __atomic_store_n(&ring->next, (uint16_t)(ring->next + 1), __ATOMIC_RELAXED);
        if (!nr_link_parse(&device->link, to + sizeof(struct nr_virtio_header), length - (uint32_t)sizeof(struct nr_virtio_header),
                           &out->data, &out->length)) {
            counters->receive_errors++;
            counters->last_receive_error = -EBADMSG;
            continue;
        }
        out->flags = NR_RX_CHECKSUM_VERIFIED; /* memory does not flip bits on the way */
        out->peer = device->peer;
        counters->received_bytes += out->length;
        *into += (64 + out->length + 63u) / 64 * 64;
        taken++;
    }
    /* In order: the last entry stands for all before it. Nobody waits for these, so nobody is told. */
    ring->done = ring->next;
    struct vring_used_elem *used = &ring->used->ring[(uint16_t)(ring->done - 1) & (ring->size - 1)];
    __atomic_store_n(&used->id, head, __ATOMIC_RELAXED);
    __atomic_store_n(&used->len, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&ring->used->idx, ring->done, __ATOMIC_RELEASE);
    device->client.received += taken;
    *good += taken;
    return true;
}

/* Goes once round the devices at [first, end) of the order, from `start` on. */
static void go_round(struct vhost *vhost, uint32_t first, uint32_t end, uint32_t start, struct nr_rx *rx, uint32_t max,
                     uint8_t **into, uint32_t *good)
{
    uint32_t count = end - first;

    for (uint32_t i = 0, at = start; i < count && *good < max; i++, at++) {
        if (at >= end)
            at = first;
        if (at >= vhost->ready)
            return; /* some have gone meanwhile; the next round finds those that this one missed */
        struct device *device = &vhost->device[vhost->order[at]];
        struct ring *ring = &device->tx;

        if (ring->known == ring->next && load16(&ring->avail->idx) == ring->next) {
            device->idle++;
            continue;
        }
        vhost->start = at + 1;
        device->idle = 0;
        if ((ring->known == ring->next && !refresh(ring)) || !drain(vhost, device, rx + *good, max - *good, into, good))
            misbehaved(vhost, device);
    }
}

/* Sorts those at [from, end) of the order into active and idle ones. */
static void sort_idle(struct vhost *vhost)
{
    for (uint32_t at = vhost->active; at < vhost->ready; at++)
        if (vhost->device[vhost->order[at]].idle == 0)
            make_active(vhost, &vhost->device[vhost->order[at]]);
    for (uint32_t at = vhost->active; at > 0; at--)
        if (vhost->device[vhost->order[at - 1]].idle >= IDLE_ROUNDS)
            make_idle(vhost, &vhost->device[vhost->order[at - 1]]);
}

static uint32_t poll_devices(struct vhost *vhost, struct nr_rx *rx, uint32_t max, bool all)
{
    uint8_t *into = vhost->buffer;
    uint32_t good = 0;

    all |= ++vhost->round % IDLE_STRIDE == 0;
    if (vhost->start >= vhost->active)
        vhost->start = 0;
    if (all && vhost->active < vhost->ready) /* first: they have waited */
        go_round(vhost, vhost->active, vhost->ready, vhost->active, rx, max, &into, &good);
    if (vhost->active != 0)
        go_round(vhost, 0, vhost->active, vhost->start, rx, max, &into, &good);
    if (all)
        sort_idle(vhost);
    return good;
}

static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct vhost *vhost = (struct vhost *)io;
    uint32_t faults = atomic_load_explicit(&all_faults, memory_order_relaxed), good;
    bool woken = atomic_load_explicit(&vhost->woken, memory_order_relaxed);

    if (max > BURST)
        max = BURST;
    if (faults != vhost->faults_seen)
        see_faults(vhost, faults);
    good = poll_devices(vhost, rx, max, woken || atomic_load_explicit(&vhost->armed, memory_order_relaxed));
    if (++vhost->polls >= POLLS_PER_CLOCK || (woken && good == 0)) {
        uint64_t now = clock_ns();

        vhost->polls = 0;
        if ((woken && good == 0) || now - vhost->looked >= LOOK_NS) {
            vhost->looked = now;
            look(vhost);
            /* What was told of by an event that is gone now has no other teller. */
            if (good == 0)
                good = poll_devices(vhost, rx, max, true);
        }
    }
    io->counters.received += good;
    io->counters.empty_polls += good == 0;
    return good;
}

/* Shows the client what was written since. */
static void publish(struct device *device)
{
    device->unpublished = 0;
    __atomic_store_n(&device->rx.used->idx, device->rx.done, __ATOMIC_RELEASE);
}

/* Rings the bell if the client asked for that. */
static void ring_bell(struct device *device)
{
    atomic_thread_fence(memory_order_seq_cst); /* the client sets its flag, then looks at idx */
    if (!(load16(&device->rx.avail->flags) & VRING_AVAIL_F_NO_INTERRUPT))
        (void)!send(device->socket_fd, "", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static uint32_t payload_length(const struct nr_tx *tx)
{
    uint32_t length = tx->length;

    for (uint32_t s = 0; s < tx->segments; s++)
        length += tx->segment[s].length;
    return length;
}

/* A place in the buffers of one frame. */
struct cursor {
    struct iovec *piece; /* the present one */
    size_t at;           /* bytes of it that are written */
};

static void write_bytes(struct cursor *cursor, const uint8_t *from, size_t bytes)
{
    while (bytes != 0) {
        size_t room = cursor->piece->iov_len - cursor->at, count = bytes < room ? bytes : room;

        memcpy((uint8_t *)cursor->piece->iov_base + cursor->at, from, count);
        from += count;
        bytes -= count;
        cursor->at += count;
        if (cursor->at == cursor->piece->iov_len) {
            cursor->piece++;
            cursor->at = 0;
        }
    }
}

/* Copies a frame into the client's buffers. 0, -ENOBUFS (too few of them), or -EPROTO (the client broke the rules). */
static int fill(struct device *device, const struct nr_tx *tx, uint32_t payload)
{
    struct ring *ring = &device->rx;
    const uint16_t mask = (uint16_t)(ring->size - 1), first = ring->next;
    struct iovec piece[MOST_BUFFERS];
    uint32_t total = NR_LINK_PREFIX + payload, room = 0;
    uint16_t buffers = 0;

    while (room < total) {
        uint32_t length;
        uint16_t head;

        if (ring->known == ring->next) {
            if (!refresh(ring))
                return -EPROTO;
            if (ring->known == ring->next) {
                ring->next = first;
                return -ENOBUFS;
            }
        }
        uint8_t *at = read_descriptor(device, ring, VRING_DESC_F_WRITE, &head, &length);
        if (at == NULL || length < LEAST_BUFFER)
            return -EPROTO;
        piece[buffers].iov_base = at;
        piece[buffers].iov_len = length < total - room ? length : total - room;
        struct vring_used_elem *used = &ring->used->ring[ring->next & mask];
        __atomic_store_n(&used->id, head, __ATOMIC_RELAXED);
        __atomic_store_n(&used->len, (uint32_t)piece[buffers].iov_len, __ATOMIC_RELAXED);
        room += length;
        buffers++;
        ring->next++;
    }
    struct cursor cursor = {.piece = piece, .at = NR_LINK_PREFIX};
    nr_link_write(&device->link, piece[0].iov_base, payload, buffers);
    if (cursor.at == piece[0].iov_len)
        cursor = (struct cursor){.piece = piece + 1};
    write_bytes(&cursor, tx->data, tx->length);
    for (uint32_t s = 0; s < tx->segments; s++)
        write_bytes(&cursor, tx->segment[s].base, tx->segment[s].length);
    ring->done = ring->next;
    return 0;
}

static void drop(struct nr_io_counters *counters, int error)
{
    counters->send_dropped++;
    counters->last_send_error = error;
}

/* The device of a peer, or NULL when it is not there any more. */
static struct device *find_device(struct vhost *vhost, const struct nr_peer *peer)
{
    uint32_t index = nr_link_get16(peer->bytes + 2);

    if (peer->length != NR_PEER_LENGTH_LOCAL || peer->bytes[0] != NR_PEER_LOCAL || index >= vhost->limit)
        return NULL;
    struct device *device = &vhost->device[index];
    return device->state == READY && memcmp(peer->bytes + 4, device->peer.bytes + 4, 16) == 0 ? device : NULL;
}

static void send_one(struct vhost *vhost, const struct nr_tx *tx, uint32_t *touched)
{
    struct nr_io_counters *counters = &vhost->io.counters;
    struct device *device = find_device(vhost, &tx->peer);
    uint32_t payload = payload_length(tx);
    int error;

    if (device == NULL) {
        counters->unreachable++;
        counters->last_unreachable = -EHOSTUNREACH;
        drop(counters, -EHOSTUNREACH);
        return;
    }
    if (payload > vhost->clamp) {
        counters->send_too_long++;
        drop(counters, -EMSGSIZE);
        return;
    }
    error = fill(device, tx, payload);
    if (error != 0) {
        drop(counters, error);
        device->client.dropped++;
        if (error == -EPROTO)
            misbehaved(vhost, device);
        return;
    }
    counters->sent++;
    counters->sent_bytes += payload;
    device->client.sent++;
    device->unpublished += payload;
    if (device->unpublished >= PUBLISH_BYTES)
        publish(device);
    if (!device->touched) {
        device->touched = true;
        vhost->touched[(*touched)++] = device->index;
    }
}

/* A full receive ring drops: its client asks again, and the others must not wait for it. */
static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct vhost *vhost = (struct vhost *)io;
    uint32_t touched = 0;

    for (uint32_t i = 0; i < count; i++) {
        send_one(vhost, &tx[i], &touched);
        for (uint32_t s = 0; s < tx[i].segments; s++)
            io->sent(io->sent_context, tx[i].segment[s].token);
    }
    for (uint32_t i = 0; i < touched; i++) {
        struct device *device = &vhost->device[vhost->touched[i]];

        device->touched = false;
        if (device->state == READY)
            publish(device);
    }
    for (uint32_t i = 0; i < touched; i++) {
        struct device *device = &vhost->device[vhost->touched[i]];

        if (device->state == READY)
            ring_bell(device);
    }
    return count;
}

static int descriptor(struct nr_packet_io *io)
{
    return ((struct vhost *)io)->epoll_fd;
}

/* The gate keeps the rings there meanwhile. */
static void ask_for_kicks(struct vhost *vhost, uint16_t flags)
{
    for (uint32_t i = 0; i < vhost->ready; i++)
        __atomic_store_n(&vhost->device[vhost->order[i]].tx.used->flags, flags, __ATOMIC_RELAXED);
}

/* Clients publish, then look at our flag; we set the flag, then look at what they published. */
static bool arm(struct nr_packet_io *io)
{
    struct vhost *vhost = (struct vhost *)io;
    bool ready = false;

    pthread_mutex_lock(&vhost->gate);
    atomic_store(&vhost->armed, true);
    ask_for_kicks(vhost, 0);
    atomic_thread_fence(memory_order_seq_cst);
    for (uint32_t i = 0; i < vhost->ready && !ready; i++) {
        const struct ring *ring = &vhost->device[vhost->order[i]].tx;

        ready = load16(&ring->avail->idx) != load16(&ring->next);
    }
    pthread_mutex_unlock(&vhost->gate);
    return ready;
}

static void disarm(struct nr_packet_io *io)
{
    struct vhost *vhost = (struct vhost *)io;

    pthread_mutex_lock(&vhost->gate);
    ask_for_kicks(vhost, VRING_USED_F_NO_NOTIFY);
    atomic_store(&vhost->armed, false);
    atomic_store(&vhost->woken, true);
    pthread_mutex_unlock(&vhost->gate);
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
            take_away(vhost, &vhost->device[i]);
    if (vhost->socket_inode != 0 && lstat(vhost->address.sun_path, &status) == 0 && status.st_dev == vhost->socket_device &&
        status.st_ino == vhost->socket_inode)
        unlink(vhost->address.sun_path);
    close_fd(&vhost->listen_fd);
    close_fd(&vhost->epoll_fd);
    close_fd(&vhost->timer_fd);
    pthread_mutex_destroy(&vhost->gate);
    free(vhost->device);
    free(vhost->order);
    free(vhost->touched);
    free(vhost->buffer);
    free(vhost);
}

static const struct nr_packet_io_ops vhost_ops = {
    .receive_burst = receive_burst,
    .send_burst = send_burst,
    .descriptor = descriptor,
    .arm = arm,
    .disarm = disarm,
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_io,
};

/* ---- Opening ---- */

static void sent_to_nobody(void *context, uint64_t token)
{
    (void)context;
    (void)token;
}

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

static int prepare_sleep(struct vhost *vhost)
{
    struct epoll_event listener = {.events = EPOLLIN, .data.u64 = TELL(LISTENER, 0)};
    struct epoll_event timer = {.events = EPOLLIN, .data.u64 = TELL(TIMER, 0)};

    vhost->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    vhost->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (vhost->epoll_fd < 0 || vhost->timer_fd < 0 || epoll_ctl(vhost->epoll_fd, EPOLL_CTL_ADD, vhost->listen_fd, &listener) != 0 ||
        epoll_ctl(vhost->epoll_fd, EPOLL_CTL_ADD, vhost->timer_fd, &timer) != 0)
        return -errno;
    return 0;
}

static int open_socket(struct vhost *vhost, mode_t mode)
{
    int folder = lock_folder(vhost->address.sun_path);
    int error = bind_path(vhost, mode);

    close_fd(&folder);
    return error != 0 ? error : prepare_sleep(vhost);
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

struct nr_packet_io *nr_vhost_listen(const struct nr_vhost_config *config, int *error)
{
    const uint32_t limit = or_default(config->clients, NR_VHOST_CLIENTS);
    const uint32_t clamp = or_default(config->max_payload, NR_MAX_DATAGRAM);
    const uint32_t mode = or_default(config->mode, 0660);
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
    vhost->io.sent = config->sent != NULL ? config->sent : sent_to_nobody;
    vhost->io.sent_context = config->sent_context;
    vhost->limit = limit;
    vhost->clamp = clamp < NR_MAX_DATAGRAM ? clamp : NR_MAX_DATAGRAM;
    vhost->listen_fd = vhost->epoll_fd = vhost->timer_fd = -1;
    vhost->address.sun_family = AF_UNIX;
    memcpy(vhost->address.sun_path, config->path, strlen(config->path));
    pthread_mutex_init(&vhost->gate, NULL);
    vhost->device = calloc(limit, sizeof(*vhost->device));
    vhost->order = calloc(limit, sizeof(*vhost->order));
    vhost->touched = calloc(limit, sizeof(*vhost->touched));
    vhost->buffer = aligned_alloc(64, BURST * ROOM);
    if (vhost->device != NULL && vhost->order != NULL && vhost->touched != NULL && vhost->buffer != NULL) {
        for (uint32_t i = 0; i < limit; i++)
            vhost->device[i].index = i;
        *error = install_handler();
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
