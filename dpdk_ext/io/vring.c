#include "vring.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/virtio_ring.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "vhost_user.h"

/* Polls that found nothing between two looks at the socket, which is a system call each. */
#define POLLS_PER_LOOK 1024
/* Nanoseconds between two attempts at a connection. */
#define REDIAL_NS 10000000u
/* Where the shared memory begins in the back end's eyes; tells nothing of this process. */
#define BASE 0x10000000u
/* Bytes of virtio header and frame headers before a payload. */
#define PREFIX (sizeof(struct nr_virtio_header) + NR_VRING_HEADERS)
/* What both ends must have: the rings below are laid out for nothing else. */
#define FEATURES (NR_VIRTIO_VERSION_1 | NR_VIRTIO_NET_MRG_RXBUF | NR_VIRTIO_IN_ORDER)

/* Who may need a wake-up: nobody; one that sleeps (write the eventfd); one that has been woken and not yet said so. */
enum { AWAKE, SLEEPING, WOKEN };

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
    uint16_t last_used; /* index of the next descriptor to come back */
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

    uint8_t prefix[PREFIX]; /* of every frame sent, lengths and checksum zero */
    uint32_t ip_sum;        /* of the IPv4 header in prefix, not folded */
    uint8_t local[6];       /* address and port as they stand in a frame */
    struct nr_peer peer;    /* the appliance */
    uint32_t clamp;         /* bytes, largest payload ever reported */

    nr_vring_dial_fn dial; /* as configured */
    void *dial_context;
    uint64_t next_dial;    /* CLOCK_MONOTONIC, nanoseconds; not before */
    int socket_fd;         /* to the back end, or -1 */
    int wake_fd;           /* eventfd, written only while the owner sleeps */
    uint32_t reply_length; /* bytes of reply got so far */
    struct nr_vhost_message reply; /* to GET_FEATURES */

    int memory_fd;        /* sealed memfd */
    uint8_t *memory;      /* the whole file, its receive buffers once more behind it */
    size_t memory_bytes;  /* of the file */
    size_t mapping_bytes; /* of the address space */
    size_t rx_offset;     /* of rx_buffers in the file: they are last */
    uint64_t connections; /* see nr_vring_info */
    uint64_t refused;

    _Alignas(64) _Atomic int wakefulness; /* AWAKE, SLEEPING, WOKEN; on a line of its own, other threads write it */
};

/* ---- Rings ---- */

static uint64_t shared_address(const struct front *front, const void *at)
{
    return BASE + (uint64_t)((const uint8_t *)at - front->memory);
}

static void reset_ring(struct ring *ring)
{
    uint64_t ignored;

    ring->next = 0;
    ring->last_used = 0;
    ring->avail->flags = VRING_AVAIL_F_NO_INTERRUPT;
    ring->avail->idx = 0;
    ring->used->flags = 0;
    ring->used->idx = 0;
    for (uint32_t i = 0; i <= ring->mask; i++)
        ring->avail->ring[i] = (uint16_t)i;
    (void)!read(ring->kick_fd, &ignored, sizeof(ignored));
    (void)!read(ring->call_fd, &ignored, sizeof(ignored));
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
    return (uint16_t)(__atomic_load_n(&ring->used->idx, __ATOMIC_ACQUIRE) - ring->last_used);
}

/* ---- Connection ---- */

static void hang_up(struct front *front)
{
    if (front->socket_fd >= 0)
        close(front->socket_fd);
    front->socket_fd = -1;
    front->state = NR_VRING_DOWN;
}

/* Its end closes when it has let go of the memory, and not before may another back end have it. */
static void refuse(struct front *front, int error)
{
    front->refused++;
    front->io.counters.unreachable++;
    front->io.counters.last_unreachable = error;
    shutdown(front->socket_fd, SHUT_WR);
    front->state = NR_VRING_CLOSING;
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

static uint64_t clock_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void dial(struct front *front)
{
    uint64_t now = clock_ns();

    if (now < front->next_dial)
        return;
    front->next_dial = now + REDIAL_NS;
    int fd = front->dial(front->dial_context);
    if (fd < 0) {
        if (fd != -EAGAIN)
            front->io.counters.last_unreachable = fd;
        return;
    }
    front->socket_fd = fd;
    front->reply_length = 0;
    front->state = NR_VRING_ASKED;
    if (!send_message(front, NR_VHOST_SET_OWNER, NULL, 0, -1) || !send_message(front, NR_VHOST_GET_FEATURES, NULL, 0, -1))
        hang_up(front); /* it has no memory yet */
}

static void take_reply(struct front *front)
{
    const uint32_t whole = NR_VHOST_HEADER + sizeof(front->reply.payload.number);
    ssize_t length =
        recv(front->socket_fd, (uint8_t *)&front->reply + front->reply_length, whole - front->reply_length, MSG_DONTWAIT);

    if (length < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (length <= 0) {
        hang_up(front);
        return;
    }
    front->reply_length += (uint32_t)length;
    if (front->reply_length < whole)
        return;
    if (front->reply.request != NR_VHOST_GET_FEATURES || front->reply.size != sizeof(front->reply.payload.number) ||
        (front->reply.flags & NR_VHOST_VERSION_MASK) != NR_VHOST_VERSION || (front->reply.payload.number & FEATURES) != FEATURES) {
        refuse(front, -EPROTONOSUPPORT);
        return;
    }
    reset_rings(front);
    if (!send_rings(front)) {
        refuse(front, -EPROTO);
        return;
    }
    front->connections++;
    front->state = NR_VRING_READY;
}

/* The back end says nothing while all is well. When it dies, its end of the socket closes after its mappings have gone. */
static void notice_loss(struct front *front)
{
    uint8_t bytes[64];
    ssize_t length = recv(front->socket_fd, bytes, sizeof(bytes), MSG_DONTWAIT);

    if (length == 0 || (length < 0 && errno != EAGAIN && errno != EINTR))
        hang_up(front);
    else if (length > 0 && front->state == NR_VRING_READY)
        refuse(front, -EPROTO);
}

/* Takes the connection a step further, if it can. Not for each poll: a system call. */
static void look(struct front *front)
{
    front->polls = 0;
    if (front->state == NR_VRING_READY || front->state == NR_VRING_CLOSING)
        notice_loss(front);
    if (front->state == NR_VRING_DOWN)
        dial(front);
    if (front->state == NR_VRING_ASKED)
        take_reply(front);
}

/* ---- Packet I/O ---- */

static uint16_t get16(const uint8_t *at)
{
    return (uint16_t)(at[0] << 8 | at[1]);
}

static void put16(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)(value >> 8);
    at[1] = (uint8_t)value;
}

/* Finds the payload in a frame of `length` bytes. False for what is not UDP for us. */
static bool parse_frame(const struct front *front, const uint8_t *frame, uint32_t length, struct nr_rx *out)
{
    const uint8_t *ip = frame + 14, *udp = ip + 20;

    if (length < NR_VRING_HEADERS || get16(frame + 12) != 0x0800 || ip[0] != 0x45 || ip[9] != 17 || (get16(ip + 6) & 0x3fff) != 0)
        return false;
    uint32_t ip_length = get16(ip + 2), udp_length = get16(udp + 4);
    if (ip_length > length - 14 || udp_length < 8 || udp_length + 20 > ip_length)
        return false;
    if (memcmp(ip + 16, front->local, 4) != 0 || memcmp(udp + 2, front->local + 4, 2) != 0)
        return false;
    out->data = udp + 8;
    out->length = udp_length - 8;
    out->flags = NR_RX_CHECKSUM_VERIFIED; /* memory does not flip bits on the way */
    out->peer = front->peer;
    return true;
}

/*
 * Bytes of the frame at the head of the used ring with its virtio header, and how many buffers it fills; 0 when the back end broke
 * the rules. Every buffer but the last must be full, which makes the frame contiguous.
 */
static uint32_t measure_frame(const struct front *front, const uint8_t *at, uint16_t available, uint16_t *buffers)
{
    const struct ring *ring = &front->rx;
    uint16_t count = ((const struct nr_virtio_header *)at)->buffers;
    uint32_t total = 0;

    if (count == 0 || count > available)
        return 0;
    for (uint16_t i = 0; i < count; i++) {
        uint16_t place = (uint16_t)(ring->last_used + i) & ring->mask;
        uint32_t length = ring->used->ring[place].len;

        if (ring->used->ring[place].id != place || length > 1u << front->slot_shift ||
            (i + 1 < count && length != 1u << front->slot_shift))
            return 0;
        total += length;
    }
    *buffers = count;
    return total < sizeof(struct nr_virtio_header) ? 0 : total;
}

static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct front *front = (struct front *)io;
    struct ring *ring = &front->rx;
    uint32_t good = 0;
    uint16_t available;

    if (ring->next != (uint16_t)(ring->last_used + ring->mask + 1)) {
        /* Payloads of the previous call end here: their buffers go back. */
        ring->next = (uint16_t)(ring->last_used + ring->mask + 1);
        publish(ring);
    }
    if (front->state != NR_VRING_READY || (available = used_count(ring)) == 0) {
        io->counters.empty_polls++;
        if (++front->polls >= POLLS_PER_LOOK)
            look(front);
        return 0;
    }
    front->polls = 0;
    if (available > (uint16_t)(ring->next - ring->last_used)) {
        refuse(front, -EPROTO); /* more than it has */
        return 0;
    }
    while (good < max && available > 0) {
        const uint8_t *at = front->rx_buffers + ((size_t)(ring->last_used & ring->mask) << front->slot_shift);
        uint16_t buffers = 0;
        uint32_t length = measure_frame(front, at, available, &buffers);

        if (length == 0) {
            io->counters.receive_errors++;
            io->counters.last_receive_error = -EPROTO;
            refuse(front, -EPROTO);
            break;
        }
        ring->last_used = (uint16_t)(ring->last_used + buffers);
        available = (uint16_t)(available - buffers);
        length -= (uint32_t)sizeof(struct nr_virtio_header);
        if (parse_frame(front, at + sizeof(struct nr_virtio_header), length, &rx[good])) {
            io->counters.received_bytes += rx[good].length;
            good++;
        } else {
            io->counters.receive_errors++;
            io->counters.last_receive_error = -EBADMSG;
        }
    }
    io->counters.received += good;
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

static uint32_t payload_length(const struct nr_tx *tx)
{
    uint32_t length = tx->length;

    for (uint32_t s = 0; s < tx->segments; s++)
        length += tx->segment[s].length;
    return length;
}

/* Where the next frame of so many bytes goes, or NULL when the ring is full. Frames do not wrap. */
static uint8_t *place_frame(struct front *front, uint32_t bytes)
{
    struct ring *ring = &front->tx;
    uint32_t need = (bytes + 63u) & ~63u;
    uint32_t skipped = front->tx_head + need > front->tx_bytes ? front->tx_bytes - front->tx_head : 0;
    uint8_t *at;

    if ((uint16_t)(ring->next - ring->last_used) > ring->mask || need + skipped > front->tx_free)
        return NULL;
    if (skipped != 0)
        front->tx_head = 0;
    at = front->tx_buffers + front->tx_head;
    ring->desc[ring->next & ring->mask] = (struct vring_desc){.addr = shared_address(front, at), .len = bytes};
    front->tx_span[ring->next & ring->mask] = (uint16_t)((need + skipped) / 64);
    front->tx_head += need;
    front->tx_free -= need + skipped;
    ring->next++;
    return at;
}

static void write_frame(struct front *front, uint8_t *at, const struct nr_tx *tx, uint32_t payload)
{
    uint8_t *ip = at + sizeof(struct nr_virtio_header) + 14;
    uint32_t sum = front->ip_sum + payload + 28;

    memcpy(at, front->prefix, PREFIX);
    put16(ip + 2, payload + 28);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    put16(ip + 10, ~sum & 0xffff);
    put16(ip + 24, payload + 8);
    at += PREFIX;
    memcpy(at, tx->data, tx->length);
    at += tx->length;
    for (uint32_t s = 0; s < tx->segments; s++) {
        memcpy(at, tx->segment[s].base, tx->segment[s].length);
        at += tx->segment[s].length;
    }
}

static void drop_segments(const struct front *front, const struct nr_tx *tx)
{
    for (uint32_t s = 0; s < tx->segments; s++)
        front->io.sent(front->io.sent_context, tx->segment[s].token);
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct front *front = (struct front *)io;
    struct nr_io_counters *counters = &io->counters;
    uint32_t done;

    /* No look here: a new back end would write over payloads that were received and are still valid. */
    if (front->state != NR_VRING_READY) {
        for (uint32_t i = 0; i < count; i++)
            drop_segments(front, &tx[i]);
        counters->send_dropped += count;
        counters->unreachable += count;
        counters->last_send_error = counters->last_unreachable = -ECONNREFUSED;
        return count;
    }
    reclaim(front);
    for (done = 0; done < count; done++) {
        uint32_t payload = payload_length(&tx[done]);

        if (payload > front->clamp) {
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
        drop_segments(front, &tx[done]);
    }
    if (done != 0)
        publish(&front->tx);
    return done;
}

static int wait_io(struct nr_packet_io *io, uint64_t timeout_ns)
{
    struct front *front = (struct front *)io;
    struct timespec timeout;
    int result = 0;
    int awake = AWAKE;

    if (!atomic_compare_exchange_strong(&front->wakefulness, &awake, SLEEPING)) {
        atomic_store(&front->wakefulness, AWAKE);
        return NR_IO_WOKEN;
    }
    enum nr_vring_state before = front->state;
    look(front);
    if (front->state != before)
        timeout_ns = 0; /* what the caller waits for may be this */
    else if (front->state == NR_VRING_DOWN && timeout_ns > REDIAL_NS)
        timeout_ns = REDIAL_NS; /* and dial again */
    timeout = (struct timespec){.tv_sec = (time_t)(timeout_ns / 1000000000u), .tv_nsec = (long)(timeout_ns % 1000000000u)};
    struct pollfd fds[3] = {
        {.fd = front->socket_fd, .events = POLLIN},
        {.fd = front->wake_fd, .events = POLLIN},
        {.fd = front->rx.call_fd, .events = POLLIN},
    };

    /* The back end publishes, then looks at our flag; we set the flag, then look at what it published. */
    __atomic_store_n(&front->rx.avail->flags, 0, __ATOMIC_RELAXED);
    atomic_thread_fence(memory_order_seq_cst);
    if (front->state == NR_VRING_READY && used_count(&front->rx) != 0) {
        result |= NR_IO_READABLE;
    } else if (ppoll(fds, 3, timeout_ns == NR_IO_FOREVER ? NULL : &timeout, NULL) > 0) {
        uint64_t ignored;

        if (fds[0].revents != 0)
            look(front);
        if (fds[1].revents != 0)
            (void)!read(front->wake_fd, &ignored, sizeof(ignored));
        if (fds[2].revents != 0)
            (void)!read(front->rx.call_fd, &ignored, sizeof(ignored));
        if (front->state == NR_VRING_READY && used_count(&front->rx) != 0)
            result |= NR_IO_READABLE;
    }
    __atomic_store_n(&front->rx.avail->flags, VRING_AVAIL_F_NO_INTERRUPT, __ATOMIC_RELAXED);
    if (atomic_exchange(&front->wakefulness, AWAKE) == WOKEN)
        result |= NR_IO_WOKEN;
    return result;
}

static void wake_io(struct nr_packet_io *io)
{
    struct front *front = (struct front *)io;

    if (atomic_exchange(&front->wakefulness, WOKEN) == SLEEPING) {
        const uint64_t one = 1;
        int saved = errno; /* a signal handler may be calling */

        (void)!write(front->wake_fd, &one, sizeof(one));
        errno = saved;
    }
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    return ((struct front *)io)->clamp;
}

static void close_fd(int fd)
{
    if (fd >= 0)
        close(fd);
}

static void close_io(struct nr_packet_io *io)
{
    struct front *front = (struct front *)io;

    close_fd(front->socket_fd);
    close_fd(front->wake_fd);
    close_fd(front->memory_fd);
    close_fd(front->rx.kick_fd);
    close_fd(front->rx.call_fd);
    close_fd(front->tx.kick_fd);
    close_fd(front->tx.call_fd);
    if (front->memory != NULL)
        munmap(front->memory, front->mapping_bytes);
    free(front->tx_span);
    free(front);
}

static const struct nr_packet_io_ops vring_ops = {
    .receive_burst = receive_burst,
    .send_burst = send_burst,
    .wait = wait_io,
    .wake = wake_io,
    .max_payload = max_payload,
    .close = close_io,
};

/* ---- Opening ---- */

static void sent_to_nobody(void *context, uint64_t token)
{
    (void)context;
    (void)token;
}

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

static void prepare_prefix(struct front *front, const struct nr_vring_config *config)
{
    uint8_t *frame = front->prefix + sizeof(struct nr_virtio_header), *ip = frame + 14, *udp = ip + 20;

    memcpy(frame, config->remote.mac, 6);
    memcpy(frame + 6, config->local.mac, 6);
    put16(frame + 12, 0x0800);
    ip[0] = 0x45;
    put16(ip + 6, 0x4000); /* DF */
    ip[8] = 64;
    ip[9] = 17;
    memcpy(ip + 12, config->local.address, 4);
    memcpy(ip + 16, config->remote.address, 4);
    put16(udp, config->local.port);
    put16(udp + 2, config->remote.port); /* the checksum stays zero: none */
    for (int i = 0; i < 20; i += 2)
        front->ip_sum += get16(ip + i);

    memcpy(front->local, config->local.address, 4);
    put16(front->local + 4, config->local.port);
    front->peer.length = NR_PEER_LENGTH_IP4;
    front->peer.bytes[0] = 4;
    put16(front->peer.bytes + 2, config->remote.port);
    memcpy(front->peer.bytes + 4, config->remote.address, 4);
}

static uint32_t or_default(uint32_t value, uint32_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static bool power_of_two(uint32_t value, uint32_t least, uint32_t most)
{
    return value >= least && value <= most && (value & (value - 1)) == 0;
}

struct nr_packet_io *nr_vring_open(const struct nr_vring_config *config, int *error)
{
    const uint32_t descriptors = or_default(config->descriptors, NR_VRING_DESCRIPTORS);
    const uint32_t slot = or_default(config->slot, NR_VRING_SLOT);
    const uint32_t clamp = or_default(config->max_payload, NR_MAX_DATAGRAM);
    const uint32_t tx_bytes = or_default(config->tx_bytes, NR_VRING_TX_BYTES) & ~63u;
    const size_t frame = PREFIX + NR_MAX_DATAGRAM;
    struct front *front;

    *error = -EINVAL;
    if (config->dial == NULL || !power_of_two(descriptors, 16, 32768) || !power_of_two(slot, 1024, 32768) ||
        (size_t)descriptors * slot < 2 * frame || (size_t)descriptors * slot % (size_t)sysconf(_SC_PAGESIZE) != 0 ||
        tx_bytes < 2 * frame || tx_bytes > 1u << 30)
        return NULL;
    front = aligned_alloc(64, sizeof(*front));
    if (front == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    memset(front, 0, sizeof(*front));
    front->io.ops = &vring_ops;
    front->io.sent = config->sent != NULL ? config->sent : sent_to_nobody;
    front->io.sent_context = config->sent_context;
    front->socket_fd = front->wake_fd = front->memory_fd = -1;
    front->rx.kick_fd = front->rx.call_fd = front->tx.kick_fd = front->tx.call_fd = -1;
    front->dial = config->dial;
    front->dial_context = config->dial_context;
    front->clamp = clamp < NR_MAX_DATAGRAM ? clamp : NR_MAX_DATAGRAM;
    front->slot_shift = (uint32_t)__builtin_ctz(slot);
    front->tx_bytes = tx_bytes;
    prepare_prefix(front, config);
    *error = take_memory(front, descriptors, slot);
    if (*error == 0) {
        reset_rings(front);
        front->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        *error = front->wake_fd < 0 ? -errno : 0;
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
    };
}
