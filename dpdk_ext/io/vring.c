#include "vring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common.h"
#include "link.h"
#include "vhost_user.h"

/* Polls that found nothing between two looks at the socket, which is a system call each. */
#define POLLS_PER_LOOK 1024
/* Nanoseconds between two attempts at a connection. */
#define REDIAL_NS 10000000u
/* The same after the server said that it has too many clients. */
#define REDIAL_FULL_NS 200000000u
/* Nanoseconds that a back end may take for each of its answers. */
#define ANSWER_NS 2000000000u
/* Where the shared memory begins in the back end's eyes; tells nothing of this process. */
#define BASE 0x10000000u
#define PREFIX NR_LINK_PREFIX
/* What both ends must have: the rings below are laid out for nothing else. */
#define FEATURES (NR_VIRTIO_VERSION_1 | NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_IN_ORDER)

/*
 * One split virtqueue. avail->ring[i] is i for ever, so descriptor i is always in place i of both rings, and IN_ORDER makes the
 * used ring's order the same.
 */
struct ring {
    struct vring_desc *desc;
    struct vring_avail *avail;
    struct vring_used *used;
    uint16_t mask;      /* descriptors - 1 */
    uint16_t next;      /* index of the next descriptor to offer; what avail->idx becomes */
    uint16_t last_used; /* index of the next descriptor to come back; the owner writes, who arms reads */
    int kick_fd;        /* eventfd, wakes the back end */
    int call_fd;        /* eventfd, the back end wakes us */
};

struct front {
    struct nr_packet_io io; /* first: the shared part */

    enum nr_vring_state state;
    uint32_t polls; /* that found nothing since the last look at the socket */
    struct ring rx, tx;

    uint8_t *rx_buffers; /* [descriptors * slot], mapped twice in a row: a frame over the end is contiguous */
    uint32_t slot_shift; /* log2 of the bytes of a receive buffer */

    uint8_t *tx_buffers; /* frames one behind the other, in order of descriptors */
    uint32_t tx_bytes;   /* of tx_buffers */
    uint32_t tx_head;    /* offset of the next frame */
    uint32_t tx_free;    /* bytes not in flight */
    uint16_t *tx_span;   /* [descriptors] units of 64 bytes to free when the descriptor comes back */

    struct nr_link link;    /* both ends, as in every frame */
    struct nr_peer peer;    /* the appliance */
    uint32_t largest;       /* bytes of payload that the server takes */
    uint32_t clamp;         /* bytes, largest payload ever reported */

    struct sockaddr_un address;    /* of the server's socket, when it is found by path */
    struct nr_vhost_hello hello;   /* what is said first then */
    nr_vring_dial_fn dial;         /* as configured, NULL with a path */
    void *dial_context;
    uint64_t next_dial;            /* CLOCK_MONOTONIC, nanoseconds; DOWN: not before */
    uint64_t deadline;             /* the same; GREETED, ASKED: give up then */
    int socket_fd;                 /* to the back end, or -1 */
    int epoll_fd;                  /* holds the socket, the receive ring's call eventfd (by edge) and the timer */
    int timer_fd;                  /* goes off at next_dial or deadline */
    uint32_t limit;                /* see nr_vring_info */
    uint32_t answer_length;        /* bytes of the answer or reply got so far */
    union {
        struct nr_vhost_answer answer; /* GREETED: to the hello */
        struct nr_vhost_message reply; /* ASKED: to GET_FEATURES */
    };

    int memory_fd;        /* sealed memfd */
    uint8_t *memory;      /* the whole file, its receive buffers once more behind it */
    size_t memory_bytes;  /* of the file */
    size_t mapping_bytes; /* of the address space */
    size_t rx_offset;     /* of rx_buffers in the file: they are last */
    uint64_t connections; /* see nr_vring_info */
    uint64_t refused;

    _Alignas(64) atomic_bool woken; /* somebody slept on epoll_fd since the last look; other threads write it */
};

/* ---- Rings ---- */

static uint64_t shared_address(const struct front *front, const void *at)
{
    return BASE + (uint64_t)((const uint8_t *)at - front->memory);
}

/* The interrupt flag stays: another thread may be asleep on it, through a loss too. */
static void reset_ring(struct ring *ring)
{
    uint64_t ignored;

    ring->next = 0;
    __atomic_store_n(&ring->last_used, 0, __ATOMIC_RELAXED);
    ring->avail->idx = 0;
    ring->used->flags = 0;
    __atomic_store_n(&ring->used->idx, 0, __ATOMIC_RELAXED);
    for (uint32_t i = 0; i <= ring->mask; i++)
        ring->avail->ring[i] = (uint16_t)i;
    (void)!read(ring->kick_fd, &ignored, sizeof(ignored));
}

/* Nobody else may have the rings: frames in flight are lost. */
static void reset_rings(struct front *front)
{
    reset_ring(&front->rx);
    reset_ring(&front->tx);
    for (uint32_t i = 0; i <= front->rx.mask; i++) {
        front->rx.desc[i] = (struct vring_desc){
            .addr = shared_address(front, front->rx_buffers + ((size_t)i << front->slot_shift)),
            .len = 1u << front->slot_shift,
            .flags = VRING_DESC_F_WRITE,
        };
        front->tx.desc[i] = (struct vring_desc){0};
    }
    front->rx.next = (uint16_t)(front->rx.mask + 1);
    __atomic_store_n(&front->rx.avail->idx, front->rx.next, __ATOMIC_RELEASE);
    front->tx_head = 0;
    front->tx_free = front->tx_bytes;
}

/* Offers what was added since, and wakes the back end if it asked for that. */
static void publish(struct ring *ring)
{
    const uint64_t one = 1;

    __atomic_store_n(&ring->avail->idx, ring->next, __ATOMIC_RELEASE);
    atomic_thread_fence(memory_order_seq_cst); /* the back end sets its flag, then looks at idx */
    if (!(__atomic_load_n(&ring->used->flags, __ATOMIC_RELAXED) & VRING_USED_F_NO_NOTIFY))
        (void)!write(ring->kick_fd, &one, sizeof(one));
}

static uint16_t used_count(const struct ring *ring)
{
    return (uint16_t)(__atomic_load_n(&ring->used->idx, __ATOMIC_ACQUIRE) - __atomic_load_n(&ring->last_used, __ATOMIC_RELAXED));
}

/* ---- Connection ---- */

static void unreachable(struct front *front, int error)
{
    front->io.counters.unreachable++;
    front->io.counters.last_unreachable = error;
}

/* The timer is set for the next attempt: a sleeper must come back for it. */
static void hang_up(struct front *front)
{
    close(front->socket_fd); /* and leaves the epoll set with it */
    front->socket_fd = -1;
    front->state = NR_VRING_DOWN;
    nr_timer_set(front->timer_fd, front->next_dial);
}

/* Its end closes when it has let go of the memory, and not before may another back end have it. */
static void refuse(struct front *front, int error)
{
    front->refused++;
    unreachable(front, error);
    shutdown(front->socket_fd, SHUT_WR);
    front->state = NR_VRING_CLOSING;
    nr_timer_set(front->timer_fd, 0);
}

/* The socket's buffer takes all messages of a start; one that does not fit is a failure. */
static bool send_message(struct front *front, uint32_t request, const void *payload, uint32_t size, int fd)
{
    struct nr_vhost_message message = {.request = request, .flags = NR_VHOST_VERSION, .size = size};
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec vector = {.iov_base = &message, .iov_len = NR_VHOST_HEADER + size};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

    if (size != 0)
        memcpy(&message.payload, payload, size);
    if (fd >= 0) {
        header.msg_control = control.bytes;
        header.msg_controllen = sizeof(control.bytes);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
    }
    return sendmsg(front->socket_fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)vector.iov_len;
}

static bool send_ring(struct front *front, uint32_t index, const struct ring *ring)
{
    const struct nr_vhost_ring descriptors = {.index = index, .value = ring->mask + 1u};
    const struct nr_vhost_ring base = {.index = index};
    const uint64_t number = index;
    const struct nr_vhost_address address = {
        .index = index,
        .descriptors = shared_address(front, ring->desc),
        .used = shared_address(front, ring->used),
        .available = shared_address(front, ring->avail),
    };

    return send_message(front, NR_VHOST_SET_VRING_NUM, &descriptors, sizeof(descriptors), -1) &&
           send_message(front, NR_VHOST_SET_VRING_BASE, &base, sizeof(base), -1) &&
           send_message(front, NR_VHOST_SET_VRING_ADDR, &address, sizeof(address), -1) &&
           send_message(front, NR_VHOST_SET_VRING_CALL, &number, sizeof(number), ring->call_fd) &&
           send_message(front, NR_VHOST_SET_VRING_KICK, &number, sizeof(number), ring->kick_fd);
}

/* Everything after the features needs no answer. */
static bool send_rings(struct front *front)
{
    const uint64_t features = FEATURES;
    const struct nr_vhost_memory memory = {
        .regions = 1,
        .guest_address = BASE,
        .size = front->memory_bytes,
        .user_address = BASE,
    };

    return send_message(front, NR_VHOST_SET_FEATURES, &features, sizeof(features), -1) &&
           send_message(front, NR_VHOST_SET_MEM_TABLE, &memory, sizeof(memory), front->memory_fd) &&
           send_ring(front, NR_VHOST_RX, &front->rx) && send_ring(front, NR_VHOST_TX, &front->tx);
}

static void ask(struct front *front)
{
    front->answer_length = 0;
    front->state = NR_VRING_ASKED;
    front->deadline = nr_clock_ns() + ANSWER_NS;
    nr_timer_set(front->timer_fd, front->deadline);
    if (!send_message(front, NR_VHOST_SET_OWNER, NULL, 0, -1) || !send_message(front, NR_VHOST_GET_FEATURES, NULL, 0, -1))
        hang_up(front); /* it has no memory yet */
}

/* A connected socket to the path, or a negative errno. */
static int dial_path(struct front *front)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -errno;
    if (connect(fd, (struct sockaddr *)&front->address, sizeof(front->address)) != 0) {
        int error = -errno; /* EAGAIN: its queue is full */

        close(fd);
        return error;
    }
    return fd;
}

static void dial(struct front *front)
{
    uint64_t now = nr_clock_ns();

    if (now < front->next_dial)
        return;
    front->next_dial = now + REDIAL_NS;
    int fd = front->dial != NULL ? front->dial(front->dial_context) : dial_path(front);
    int error = fd >= 0 ? nr_epoll_add(front->epoll_fd, fd, EPOLLIN, 0) : 0;
    if (error != 0) {
        close(fd);
        fd = error;
    }
    if (fd < 0) {
        if (fd != -EAGAIN)
            unreachable(front, fd);
        nr_timer_set(front->timer_fd, front->next_dial);
        return;
    }
    front->socket_fd = fd;
    if (front->dial != NULL) {
        ask(front);
        return;
    }
    front->answer_length = 0;
    front->state = NR_VRING_GREETED;
    front->deadline = now + ANSWER_NS;
    nr_timer_set(front->timer_fd, front->deadline);
    /* A server that is full answers and closes before it hears; an end of the connection shows when the answer is looked for. */
    (void)!send(fd, &front->hello, sizeof(front->hello), MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* True once there are `whole` bytes of the answer; may hang up. */
static bool gather_answer(struct front *front, uint32_t whole)
{
    uint8_t *into = front->state == NR_VRING_GREETED ? (uint8_t *)&front->answer : (uint8_t *)&front->reply;
    ssize_t length = recv(front->socket_fd, into + front->answer_length, whole - front->answer_length, MSG_DONTWAIT);

    if (length < 0 && (errno == EAGAIN || errno == EINTR)) {
        if (nr_clock_ns() >= front->deadline) {
            unreachable(front, -ETIMEDOUT);
            hang_up(front);
        }
        return false;
    }
    if (length <= 0) {
        unreachable(front, -ECONNRESET);
        hang_up(front);
        return false;
    }
    front->answer_length += (uint32_t)length;
    return front->answer_length == whole;
}

static void take_answer(struct front *front)
{
    const struct nr_vhost_answer *answer = &front->answer;
    int status;

    if (!gather_answer(front, sizeof(*answer)))
        return;
    status = answer->status;
    if (answer->magic != NR_VHOST_MAGIC)
        status = -EPROTO;
    else if (status == 0 && answer->version != NR_VHOST_HELLO_VERSION)
        status = -EPROTONOSUPPORT;
    else if (status == 0 && (answer->max_payload == 0 || answer->max_payload > NR_MAX_DATAGRAM))
        status = -EPROTO;
    if (answer->magic == NR_VHOST_MAGIC)
        front->limit = answer->limit;
    if (status != 0) {
        if (status == -EUSERS)
            front->next_dial = nr_clock_ns() + REDIAL_FULL_NS;
        else
            front->refused++;
        unreachable(front, status);
        hang_up(front); /* it has no memory */
        return;
    }
    front->largest = answer->max_payload;
    nr_link_prepare(&front->link, &answer->client, &answer->server);
    ask(front);
}

static void take_reply(struct front *front)
{
    const struct nr_vhost_message *reply = &front->reply;

    if (!gather_answer(front, NR_VHOST_HEADER + sizeof(reply->payload.number)))
        return;
    if (reply->request != NR_VHOST_GET_FEATURES || reply->size != sizeof(reply->payload.number) ||
        (reply->flags & NR_VHOST_VERSION_MASK) != NR_VHOST_VERSION || (reply->payload.number & FEATURES) != FEATURES) {
        refuse(front, -EPROTONOSUPPORT);
        return;
    }
    reset_rings(front);
    if (!send_rings(front)) {
        refuse(front, -EPROTO);
        return;
    }
    nr_timer_set(front->timer_fd, 0);
    front->connections++;
    front->state = NR_VRING_READY;
}

/*
 * The back end says nothing while all is well, but that ours rings bells. When it dies, its end of the socket closes after its
 * mappings have gone.
 */
static void notice_loss(struct front *front)
{
    uint8_t bytes[256];
    ssize_t length = recv(front->socket_fd, bytes, sizeof(bytes), MSG_DONTWAIT);

    if (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR))
        hang_up(front);
    else if (length > 0 && front->state == NR_VRING_READY && front->dial != NULL)
        refuse(front, -EPROTO);
}

/* Ends the readiness of epoll_fd: edges are gone once seen, levels once their cause is seen to. */
static void consume_events(struct front *front)
{
    struct epoll_event events[3];
    uint64_t ignored;

    atomic_store_explicit(&front->woken, false, memory_order_relaxed);
    (void)epoll_wait(front->epoll_fd, events, 3, 0);
    (void)!read(front->timer_fd, &ignored, sizeof(ignored));
}

/* Takes the connection a step further, if it can. Not for each poll while all is well: a few system calls. */
static void look(struct front *front)
{
    front->polls = 0;
    if (front->state == NR_VRING_READY || front->state == NR_VRING_CLOSING)
        notice_loss(front);
    if (front->state == NR_VRING_DOWN)
        dial(front);
    if (front->state == NR_VRING_GREETED)
        take_answer(front);
    if (front->state == NR_VRING_ASKED)
        take_reply(front);
}

/* ---- Packet I/O ---- */

/*
 * Bytes of the frame at the head of the used ring with its virtio header, and how many buffers it fills; 0 when the back end broke
 * the rules. Every buffer but the last must be full, which makes the frame contiguous.
 */
static uint32_t measure_frame(const struct front *front, const uint8_t *at, uint16_t last, uint16_t available, uint16_t *buffers)
{
    const struct ring *ring = &front->rx;
    uint16_t count = ((const struct nr_virtio_header *)at)->buffers;
    uint32_t total = 0;

    if (count == 0 || count > available)
        return 0;
    for (uint16_t i = 0; i < count; i++) {
        uint16_t place = (uint16_t)(last + i) & ring->mask;
        uint32_t length = ring->used->ring[place].len;

        if (ring->used->ring[place].id != place || length > 1u << front->slot_shift ||
            (i + 1 < count && length != 1u << front->slot_shift))
            return 0;
        total += length;
    }
    *buffers = count;
    return total < sizeof(struct nr_virtio_header) ? 0 : total;
}

/* Takes what has come, without a system call. */
static uint32_t take_frames(struct front *front, struct nr_rx *rx, uint32_t max)
{
    struct nr_io_counters *counters = &front->io.counters;
    struct ring *ring = &front->rx;
    uint16_t available = used_count(ring), last = ring->last_used;
    uint32_t good = 0;

    if (available > (uint16_t)(ring->next - last)) {
        refuse(front, -EPROTO); /* more than it has */
        return 0;
    }
    while (good < max && available > 0) {
        const uint8_t *at = front->rx_buffers + ((size_t)(last & ring->mask) << front->slot_shift);
        uint16_t buffers = 0;
        uint32_t length = measure_frame(front, at, last, available, &buffers);

        if (length == 0) {
            counters->receive_errors++;
            counters->last_receive_error = -EPROTO;
            refuse(front, -EPROTO);
            break;
        }
        last = (uint16_t)(last + buffers);
        available = (uint16_t)(available - buffers);
        length -= (uint32_t)sizeof(struct nr_virtio_header);
        if (nr_link_parse(&front->link, at + sizeof(struct nr_virtio_header), length, &rx[good].data, &rx[good].length)) {
            rx[good].flags = NR_RX_CHECKSUM_VERIFIED; /* memory does not flip bits on the way */
            rx[good].peer = front->peer;
            counters->received_bytes += rx[good].length;
            good++;
        } else {
            counters->receive_errors++;
            counters->last_receive_error = -EBADMSG;
        }
    }
    __atomic_store_n(&ring->last_used, last, __ATOMIC_RELAXED);
    counters->received += good;
    return good;
}

static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct front *front = (struct front *)io;
    struct ring *ring = &front->rx;
    uint32_t good = 0;

    if (ring->next != (uint16_t)(ring->last_used + ring->mask + 1)) {
        /* Payloads of the previous call end here: their buffers go back. */
        ring->next = (uint16_t)(ring->last_used + ring->mask + 1);
        publish(ring);
    }
    if (front->state == NR_VRING_READY && (good = take_frames(front, rx, max)) != 0) {
        front->polls = 0;
        return good;
    }
    io->counters.empty_polls++;
    if (atomic_load_explicit(&front->woken, memory_order_relaxed)) {
        consume_events(front);
        front->polls = POLLS_PER_LOOK;
    }
    if (front->state != NR_VRING_READY || ++front->polls >= POLLS_PER_LOOK) {
        look(front);
        /* What was told of by an event that is gone now has no other teller. */
        if (front->state == NR_VRING_READY)
            good = take_frames(front, rx, max);
    }
    return good;
}

static void reclaim(struct front *front)
{
    struct ring *ring = &front->tx;

    for (uint16_t count = used_count(ring); count > 0 && ring->last_used != ring->next; count--) {
        front->tx_free += 64u * front->tx_span[ring->last_used & ring->mask];
        ring->last_used++;
    }
}

/* Where the next frame of so many bytes goes, or NULL when the ring is full. Frames do not wrap. */
static uint8_t *place_frame(struct front *front, uint32_t bytes)
{
    struct ring *ring = &front->tx;
    uint32_t need = (bytes + 63u) & ~63u;
    bool wraps = front->tx_head + need > front->tx_bytes; /* also from the very end, where nothing is skipped */
    uint32_t skipped = wraps ? front->tx_bytes - front->tx_head : 0;
    uint8_t *at;

    if ((uint16_t)(ring->next - ring->last_used) > ring->mask || need + skipped > front->tx_free)
        return NULL;
    if (wraps)
        front->tx_head = 0;
    at = front->tx_buffers + front->tx_head;
    ring->desc[ring->next & ring->mask] = (struct vring_desc){.addr = shared_address(front, at), .len = bytes};
    front->tx_span[ring->next & ring->mask] = (uint16_t)((need + skipped) / 64);
    front->tx_head += need;
    front->tx_free -= need + skipped;
    ring->next++;
    return at;
}

static void write_frame(const struct front *front, uint8_t *at, const struct nr_tx *tx, uint32_t payload)
{
    nr_link_write(&front->link, at, payload, 0);
    nr_tx_copy(tx, at + PREFIX);
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    const struct front *front = (struct front *)io;

    return front->clamp < front->largest ? front->clamp : front->largest;
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct front *front = (struct front *)io;
    struct nr_io_counters *counters = &io->counters;
    uint32_t done;

    /* No look here: a new back end would write over payloads that were received and are still valid. */
    if (front->state != NR_VRING_READY) {
        for (uint32_t i = 0; i < count; i++)
            nr_io_give_back(&front->io, &tx[i]);
        counters->send_dropped += count;
        counters->unreachable += count;
        counters->last_send_error = counters->last_unreachable = -ECONNREFUSED;
        return count;
    }
    reclaim(front);
    for (done = 0; done < count; done++) {
        uint32_t payload = nr_tx_length(&tx[done]);

        if (payload > max_payload(io)) {
            counters->send_dropped++;
            counters->send_too_long++;
            counters->last_send_error = -EMSGSIZE;
        } else {
            uint8_t *at = place_frame(front, (uint32_t)PREFIX + payload);
            if (at == NULL)
                break;
            write_frame(front, at, &tx[done], payload);
            counters->sent++;
            counters->sent_bytes += payload;
        }
        nr_io_give_back(&front->io, &tx[done]);
    }
    if (done != 0)
        publish(&front->tx);
    return done;
}

static int descriptor(struct nr_packet_io *io)
{
    return ((struct front *)io)->epoll_fd;
}

/* The back end publishes, then looks at our flag; we set the flag, then look at what it published. */
static bool arm(struct nr_packet_io *io)
{
    struct front *front = (struct front *)io;

    __atomic_store_n(&front->rx.avail->flags, 0, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_seq_cst);
    return used_count(&front->rx) != 0;
}

static void disarm(struct nr_packet_io *io)
{
    __atomic_store_n(&((struct front *)io)->rx.avail->flags, VRING_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
    atomic_store_explicit(&((struct front *)io)->woken, true, memory_order_relaxed);
}

/* Frames of the largest size that the receive ring holds; the appliance drops what finds it full. */
static uint32_t receive_capacity(struct nr_packet_io *io)
{
    const struct front *front = (struct front *)io;

    return (front->rx.mask + 1u) / ((PREFIX + front->clamp + (1u << front->slot_shift) - 1) >> front->slot_shift);
}

static void close_io(struct nr_packet_io *io)
{
    struct front *front = (struct front *)io;

    nr_close_fd(&front->socket_fd);
    nr_close_fd(&front->epoll_fd);
    nr_close_fd(&front->timer_fd);
    nr_close_fd(&front->memory_fd);
    nr_close_fd(&front->rx.kick_fd);
    nr_close_fd(&front->rx.call_fd);
    nr_close_fd(&front->tx.kick_fd);
    nr_close_fd(&front->tx.call_fd);
    if (front->memory != NULL)
        munmap(front->memory, front->mapping_bytes);
    free(front->tx_span);
    free(front);
}

static const struct nr_packet_io_ops vring_ops = {
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

/* Reserves `bytes` of the file behind *end, on cache lines of their own (two: the processor fetches pairs). */
static size_t lay_out(size_t *end, size_t bytes)
{
    size_t at = *end;

    *end = (at + bytes + 127) & ~(size_t)127;
    return at;
}

/* Takes the memory, maps it and puts the rings into it. 0 or a negative errno. */
static int take_memory(struct front *front, uint32_t descriptors, uint32_t slot)
{
    const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL; /* the appliance does not take memory that could go away */
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), rx_bytes = (size_t)descriptors * slot;
    struct ring *rings[NR_VHOST_RINGS] = {&front->rx, &front->tx};
    size_t desc[NR_VHOST_RINGS], avail[NR_VHOST_RINGS], used[NR_VHOST_RINGS], buffers, end = 0;

    for (int i = 0; i < NR_VHOST_RINGS; i++) {
        desc[i] = lay_out(&end, descriptors * sizeof(struct vring_desc));
        avail[i] = lay_out(&end, sizeof(struct vring_avail) + (descriptors + 1) * sizeof(uint16_t));
        used[i] = lay_out(&end, sizeof(struct vring_used) + descriptors * sizeof(struct vring_used_elem) + sizeof(uint16_t));
    }
    buffers = lay_out(&end, front->tx_bytes);
    front->rx_offset = (end + page - 1) / page * page;
    front->memory_bytes = front->rx_offset + rx_bytes;
    front->mapping_bytes = front->memory_bytes + rx_bytes;
    front->memory_fd = memfd_create("netreplay", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (front->memory_fd < 0 || ftruncate(front->memory_fd, (off_t)front->memory_bytes) != 0 ||
        fcntl(front->memory_fd, F_ADD_SEALS, seals) != 0)
        return -errno;

    uint8_t *memory = mmap(NULL, front->mapping_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return -errno;
    front->memory = memory;
    if (mmap(memory, front->memory_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE, front->memory_fd, 0) ==
            MAP_FAILED ||
        mmap(memory + front->memory_bytes, rx_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
             front->memory_fd, (off_t)front->rx_offset) == MAP_FAILED)
        return -errno;

    for (int i = 0; i < NR_VHOST_RINGS; i++) {
        rings[i]->desc = (struct vring_desc *)(memory + desc[i]);
        rings[i]->avail = (struct vring_avail *)(memory + avail[i]);
        rings[i]->used = (struct vring_used *)(memory + used[i]);
        rings[i]->mask = (uint16_t)(descriptors - 1);
        rings[i]->kick_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        rings[i]->call_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (rings[i]->kick_fd < 0 || rings[i]->call_fd < 0)
            return -errno;
    }
    front->tx_buffers = memory + buffers;
    front->rx_buffers = memory + front->rx_offset;
    front->tx_span = calloc(descriptors, sizeof(*front->tx_span));
    return front->tx_span == NULL ? -ENOMEM : 0;
}

/* Who the two ends are: the configuration says, or the server will. */
static int prepare_ends(struct front *front, const struct nr_vring_config *config)
{
    if (config->path == NULL) {
        nr_link_prepare(&front->link, &config->local, &config->remote);
        front->peer.length = NR_PEER_LENGTH_IP4;
        front->peer.bytes[0] = 4;
        nr_link_put16(front->peer.bytes + 2, config->remote.port);
        memcpy(front->peer.bytes + 4, config->remote.address, 4);
        return 0;
    }
    if (strlen(config->path) >= sizeof(front->address.sun_path))
        return -ENAMETOOLONG;
    front->address.sun_family = AF_UNIX;
    memcpy(front->address.sun_path, config->path, strlen(config->path));
    front->peer.length = NR_PEER_LENGTH_LOCAL;
    front->peer.bytes[0] = NR_PEER_LOCAL;
    front->hello = (struct nr_vhost_hello){.magic = NR_VHOST_MAGIC, .version = NR_VHOST_HELLO_VERSION};
    if (getrandom(front->hello.identity, sizeof(front->hello.identity), 0) != sizeof(front->hello.identity))
        return -EIO;
    return 0;
}

/* The descriptor to sleep on, with what never leaves it. */
static int prepare_sleep(struct front *front)
{
    int error = nr_epoll_open(&front->epoll_fd, &front->timer_fd, 0);

    if (error == 0)
        error = nr_epoll_add(front->epoll_fd, front->rx.call_fd, EPOLLIN | EPOLLET, 0);
    if (error == 0)
        nr_timer_set(front->timer_fd, 1); /* long past: dial */
    return error;
}

static bool power_of_two(uint32_t value, uint32_t least, uint32_t most)
{
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

struct nr_packet_io *nr_vring_open(const struct nr_vring_config *config, int *error)
{
    const uint32_t descriptors = nr_or_default(config->descriptors, NR_VRING_DESCRIPTORS);
    const uint32_t slot = nr_or_default(config->slot, NR_VRING_SLOT);
    const uint32_t clamp = nr_or_default(config->max_payload, NR_MAX_DATAGRAM);
    const uint32_t tx_bytes = nr_or_default(config->tx_bytes, NR_VRING_TX_BYTES) & ~63u;
    const size_t frame = PREFIX + NR_MAX_DATAGRAM;
    struct front *front;

    *error = -EINVAL;
    if ((config->dial == NULL) == (config->path == NULL) || !power_of_two(descriptors, 16, 32768) ||
        !power_of_two(slot, 1024, 32768) || (size_t)descriptors * slot < 2 * frame ||
        (size_t)descriptors * slot % (size_t)sysconf(_SC_PAGESIZE) != 0 || tx_bytes < 2 * frame || tx_bytes > 1u << 30)
        return NULL;
    front = aligned_alloc(64, sizeof(*front));
    if (front == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    memset(front, 0, sizeof(*front));
    front->io.ops = &vring_ops;
    nr_io_set_sent(&front->io, config->sent, config->sent_context);
    front->socket_fd = front->epoll_fd = front->timer_fd = front->memory_fd = -1;
    front->rx.kick_fd = front->rx.call_fd = front->tx.kick_fd = front->tx.call_fd = -1;
    front->dial = config->dial;
    front->dial_context = config->dial_context;
    front->clamp = clamp < NR_MAX_DATAGRAM ? clamp : NR_MAX_DATAGRAM;
    front->largest = NR_MAX_DATAGRAM;
    front->slot_shift = (uint32_t)__builtin_ctz(slot);
    front->tx_bytes = tx_bytes;
    *error = prepare_ends(front, config);
    if (*error == 0)
        *error = take_memory(front, descriptors, slot);
    if (*error == 0) {
        front->rx.avail->flags = front->tx.avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
        reset_rings(front);
        *error = prepare_sleep(front);
    }
    if (*error != 0) {
        close_io(&front->io);
        return NULL;
    }
    return &front->io;
}

void nr_vring_info(const struct nr_packet_io *io, struct nr_vring_info *info)
{
    const struct front *front = (const struct front *)io;

    *info = (struct nr_vring_info){
        .state = front->state,
        .connections = front->connections,
        .refused = front->refused,
        .memory_bytes = front->memory_bytes,
        .limit = front->limit,
    };
}
