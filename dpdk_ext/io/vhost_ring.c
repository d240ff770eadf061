/* Frames out of and into the rings of ready devices. */
#include "vhost_internal.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/uio.h>

/* Calls between two looks at the clock, and nanoseconds between two at the sockets, which is a system call. */
#define POLLS_PER_CLOCK 64
#define LOOK_NS 100000u
/* Rounds without a frame after which a device is looked at only every IDLE_STRIDE rounds (a power of two). */
#define IDLE_ROUNDS 4096
#define IDLE_STRIDE 16
/* Least bytes of a receive buffer, and how many of those the largest frame fills. */
#define LEAST_BUFFER 1024u
#define MOST_BUFFERS ((NR_LINK_PREFIX + NR_MAX_DATAGRAM + LEAST_BUFFER - 1) / LEAST_BUFFER)
/* Bytes copied to a client after which it is told, although the burst goes on. */
#define PUBLISH_BYTES 8192u

static uint16_t load16(const void *at)
{
    return __atomic_load_n((const uint16_t *)at, __ATOMIC_RELAXED);
}

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

/* ---- Receiving ---- */

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
            nr_vhost_misbehaved(vhost, device);
    }
}

/* Sorts the ready ones into active and idle. Apart, as every poll else would save the registers that only this needs. */
__attribute__((noinline)) static void sort_idle(struct vhost *vhost)
{
    for (uint32_t at = vhost->active; at < vhost->ready; at++)
        if (vhost->device[vhost->order[at]].idle == 0)
            nr_vhost_make_active(vhost, &vhost->device[vhost->order[at]]);
    for (uint32_t at = vhost->active; at > 0; at--)
        if (vhost->device[vhost->order[at - 1]].idle >= IDLE_ROUNDS)
            nr_vhost_make_idle(vhost, &vhost->device[vhost->order[at - 1]]);
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

uint32_t nr_vhost_receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct vhost *vhost = (struct vhost *)io;
    uint32_t faults = atomic_load_explicit(&nr_vhost_all_faults, memory_order_relaxed), good;
    bool woken = atomic_load_explicit(&vhost->woken, memory_order_relaxed);

    if (max > NR_VHOST_BURST)
        max = NR_VHOST_BURST;
    if (faults != vhost->faults_seen)
        nr_vhost_see_faults(vhost, faults);
    good = poll_devices(vhost, rx, max, woken || atomic_load_explicit(&vhost->armed, memory_order_relaxed));
    if (++vhost->polls >= POLLS_PER_CLOCK || (woken && good == 0)) {
        uint64_t now = nr_clock_ns();

        vhost->polls = 0;
        if ((woken && good == 0) || now - vhost->looked >= LOOK_NS) {
            vhost->looked = now;
            nr_vhost_look(vhost);
            /* What was told of by an event that is gone now has no other teller. */
            if (good == 0)
                good = poll_devices(vhost, rx, max, true);
        }
    }
    io->counters.received += good;
    io->counters.empty_polls += good == 0;
    return good;
}

/* ---- Sending ---- */

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
    uint32_t payload = nr_tx_length(tx);
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
            nr_vhost_misbehaved(vhost, device);
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
uint32_t nr_vhost_send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct vhost *vhost = (struct vhost *)io;
    uint32_t touched = 0;

    for (uint32_t i = 0; i < count; i++) {
        send_one(vhost, &tx[i], &touched);
        nr_io_give_back(io, &tx[i]);
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

/* ---- Sleeping ---- */

/* The gate keeps the rings there meanwhile. */
static void ask_for_kicks(struct vhost *vhost, uint16_t flags)
{
    for (uint32_t i = 0; i < vhost->ready; i++)
        __atomic_store_n(&vhost->device[vhost->order[i]].tx.used->flags, flags, __ATOMIC_RELAXED);
}

/* Clients publish, then look at our flag; we set the flag, then look at what they published. */
bool nr_vhost_arm(struct nr_packet_io *io)
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

void nr_vhost_disarm(struct nr_packet_io *io)
{
    struct vhost *vhost = (struct vhost *)io;

    pthread_mutex_lock(&vhost->gate);
    ask_for_kicks(vhost, VRING_USED_F_NO_NOTIFY);
    atomic_store(&vhost->armed, false);
    atomic_store(&vhost->woken, true);
    pthread_mutex_unlock(&vhost->gate);
}
