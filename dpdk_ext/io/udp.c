#include "udp.h"

#include <errno.h>
#include <netinet/udp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "address.h"
#include "common.h"

/* Bytes of UDP header, and of IP header without options. */
#define UDP_HEADER 8
#define IP4_HEADER 20
#define IP6_HEADER 40

/*
 * Bytes that the kernel accounts for a waiting datagram besides its payload: at least so many on network cards; on the loopback it
 * takes a power of two that holds headers and its own record at the end, and a descriptor. Runs in one message take less.
 */
#define SOCKET_OVERHEAD 2048
#define SOCKET_HEADERS 384
#define SOCKET_DESCRIPTOR 256

/* What one message may carry to or from the kernel: bytes, and datagrams of equal length that it cuts (older kernels take no more). */
#define MESSAGE_BYTES 65507
#define MESSAGE_DATAGRAMS 64
/* Messages received at once. */
#define RX_MESSAGES 32
/* Receives of a single datagram in a row after which the kernel shall not coalesce any more, and after which surely it does not. */
#define LONE_RECEIVES 64
#define LONE_SURELY 128
/* From one receive buffer to the next. Not a multiple of a page: the first bytes of all must not compete for the same cache sets. */
#define RX_STRIDE (65536 + 2048 + 64)
/* Bytes of a receive buffer that are offered: more than any message has. */
#define RX_BYTES 65536

/* Room for one control message that says how long the datagrams of a message are. */
union control {
    struct cmsghdr header;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
};

/* Messages to send. */
struct sending {
    struct mmsghdr message[NR_UDP_BURST];
    uint32_t
        datagrams[NR_UDP_BURST]; /* in each message; more than one: all as long as the first but the last, which may be shorter */
    uint32_t count;                   /* messages */
};

struct udp {
    struct nr_packet_io io; /* first: the shared part */

    int fd;              /* the socket */
    int family;          /* AF_INET or AF_INET6, of the socket */
    bool connected;      /* send without addresses, one peer only */
    bool segmenting;     /* runs of datagrams go as one message; false for ever once the kernel would not */
    bool can_coalesce;   /* the kernel can hand up runs as one message */
    bool coalescing;     /* it may do so: see settle_coalescing() */
    uint32_t rx_flags;   /* NR_RX_* that every datagram gets */
    uint32_t clamp;      /* bytes, largest payload ever reported */
    uint32_t window;     /* messages that the next receive asks for at most: see receive_burst */
    uint32_t spread;     /* datagrams that a message brought lately, 1 or more */
    uint32_t lone;       /* receives in a row that brought a single datagram */
    struct nr_peer peer; /* the one that it is connected to */
    struct nr_peer local;
    uint64_t segmented;       /* messages of several datagrams sent */
    uint64_t segment_refused; /* of them, refused and sent again one by one */
    uint64_t coalesced;       /* messages of several datagrams received */

    /* Received messages that are not handed up yet. */
    uint32_t rx_next;         /* the first of them */
    uint32_t rx_end;          /* behind the last; equal to rx_next when there is none */
    uint32_t rx_offset;       /* bytes of the first that are handed up */
    _Atomic uint32_t rx_left; /* rx_end - rx_next, for the thread that is about to sleep */

    _Alignas(64) struct mmsghdr rx_message[RX_MESSAGES];
    struct iovec rx_vector[RX_MESSAGES];
    union nr_address rx_address[RX_MESSAGES];
    union control rx_control[RX_MESSAGES];

    struct sending tx;
    struct sending tx_plain; /* a refused message of `tx`, one datagram to a message */
    struct iovec tx_vector[NR_UDP_BURST * (1 + NR_TX_SEGMENTS)];
    uint32_t tx_vectors[NR_UDP_BURST]; /* of each datagram */
    union nr_address tx_address[NR_UDP_BURST];
    union control tx_control[NR_UDP_BURST];

    _Alignas(64) uint8_t rx_buffer[RX_MESSAGES][RX_STRIDE]; /* last: not touched before it is used */
};
static_assert(NR_UDP_BURST * (1 + NR_TX_SEGMENTS) <= 1024, "the kernel's limit for the parts of a message");

static bool is_unreachable(int error)
{
    return error == ECONNREFUSED || error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN;
}

/* A failed receive: most are late reports about what was sent, and clear themselves by being read. */
static void receive_failed(struct udp *udp, int error)
{
    struct nr_io_counters *counters = &udp->io.counters;

    if (error == EAGAIN || error == EINTR)
        return;
    if (is_unreachable(error))
        counters->unreachable++, counters->last_unreachable = -error;
    else if (error == EMSGSIZE)
        counters->send_too_long++, counters->send_dropped++;
    else
        counters->receive_errors++;
    counters->last_receive_error = -error;
}

/* Receives into the first `want` messages; how many, or -1 with errno. One alone goes the cheaper way. */
static int receive_messages(struct udp *udp, uint32_t want)
{
    struct mmsghdr *message = &udp->rx_message[0];

    if (want == 1 && !udp->coalescing) {
        socklen_t *name_length = udp->connected ? NULL : &message->msg_hdr.msg_namelen;

        message->msg_hdr.msg_namelen = udp->connected ? 0 : sizeof(udp->rx_address[0]);
        message->msg_hdr.msg_controllen = 0;
        ssize_t length = recvfrom(udp->fd, udp->rx_buffer[0], RX_BYTES, MSG_DONTWAIT, message->msg_hdr.msg_name, name_length);
        if (length < 0)
            return -1;
        message->msg_len = (unsigned int)length;
        message->msg_hdr.msg_flags = 0;
        return 1;
    }
    for (uint32_t i = 0; i < want; i++) {
        struct msghdr *header = &udp->rx_message[i].msg_hdr;

        header->msg_controllen = udp->coalescing ? sizeof(udp->rx_control[i]) : 0;
        if (!udp->connected)
            header->msg_namelen = sizeof(udp->rx_address[i]);
    }
    if (want > 1)
        return recvmmsg(udp->fd, message, want, MSG_DONTWAIT, NULL);
    ssize_t length = recvmsg(udp->fd, &message->msg_hdr, MSG_DONTWAIT);
    if (length < 0)
        return -1;
    message->msg_len = (unsigned int)length;
    return 1;
}

/* How long the datagrams of the message are; only the last may be shorter. */
static uint32_t datagram_length(struct msghdr *header, uint32_t message_length)
{
    struct cmsghdr *control = CMSG_FIRSTHDR(header);
    int length;

    if (control == NULL || control->cmsg_level != SOL_UDP || control->cmsg_type != UDP_GRO)
        return message_length;
    memcpy(&length, CMSG_DATA(control), sizeof(length));
    return length > 0 && (uint32_t)length < message_length ? (uint32_t)length : message_length;
}

/* Hands up as much of the received messages as there is and fits; how many datagrams. */
static uint32_t take_received(struct udp *udp, struct nr_rx *rx, uint32_t max)
{
    struct nr_io_counters *counters = &udp->io.counters;
    uint32_t good = 0;

    while (udp->rx_next < udp->rx_end) {
        struct mmsghdr *message = &udp->rx_message[udp->rx_next];
        uint32_t end = message->msg_len;
        uint32_t length = datagram_length(&message->msg_hdr, end);
        const uint8_t *data = udp->rx_buffer[udp->rx_next];
        uint32_t at = udp->rx_offset;
        struct nr_peer peer;

        if (udp->connected)
            peer = udp->peer;
        else
            nr_address_to_peer(&udp->rx_address[udp->rx_next], &peer);
        if (at == 0 && length < end) {
            udp->coalesced++;
            udp->spread = (end + length - 1) / length;
        }
        /* Once for a message without a byte, which is a datagram too. */
        do {
            uint32_t here = end - at < length ? end - at : length;

            if (here > NR_UDP_BUFFER || message->msg_hdr.msg_flags & MSG_TRUNC) {
                counters->receive_truncated++;
            } else if (good == max) {
                udp->rx_offset = at;
                goto full;
            } else {
                rx[good++] = (struct nr_rx){.data = data + at, .length = here, .flags = udp->rx_flags, .peer = peer};
                counters->received_bytes += here;
            }
            at += here;
        } while (at < end);
        udp->rx_offset = 0;
        udp->rx_next++;
    }
full:
    atomic_store_explicit(&udp->rx_left, udp->rx_end - udp->rx_next, memory_order_release);
    counters->received += good;
    return good;
}

/*
 * Who may get a run as one message must ask how long its datagrams are, and that makes the receive of a lone one a fifth slower. So
 * the kernel coalesces only since a receive found several, and until many in a row found one. What it coalesced before it was told
 * to stop may still wait, or be on its way into the queue: only an empty queue and many receives later none is expected.
 */
static void settle_coalescing(struct udp *udp, int count)
{
    const int on = 1, off = 0;

    if (!udp->can_coalesce)
        return;
    if (count > 1 || (count == 1 && udp->spread > 1)) {
        if (!udp->coalescing || udp->lone >= LONE_RECEIVES)
            udp->coalescing = setsockopt(udp->fd, SOL_UDP, UDP_GRO, &on, sizeof(on)) == 0 || udp->coalescing;
        udp->lone = 0;
    } else if (udp->coalescing && count == 1) {
        if (++udp->lone == LONE_RECEIVES)
            (void)setsockopt(udp->fd, SOL_UDP, UDP_GRO, &off, sizeof(off));
    } else if (udp->coalescing && udp->lone >= LONE_SURELY) {
        udp->coalescing = false;
    }
}

/*
 * A kernel receive that asks for more than there is pays for one look too many, which a lone request would wait for. So
 * the window starts at one message, doubles while bursts fill it, and returns to one when nothing waits.
 */
static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct udp *udp = (struct udp *)io;
    int count;

    if (max == 0)
        return 0;
    if (udp->rx_next < udp->rx_end) {
        count = (int)take_received(udp, rx, max);
        if (count > 0)
            return (uint32_t)count;
    }
    uint32_t want = udp->spread == 1 ? max : (max + udp->spread - 1) / udp->spread;
    if (want > udp->window)
        want = udp->window;
    count = receive_messages(udp, want);
    if (count < 0 && errno != EAGAIN) {
        /* What was reported is cleared now, and a datagram may wait behind it. */
        receive_failed(udp, errno);
        count = receive_messages(udp, want);
        if (count < 0)
            receive_failed(udp, errno);
    }
    if (count <= 0) {
        settle_coalescing(udp, 0);
        udp->window = 1;
        io->counters.empty_polls++;
        return 0;
    }
    if ((uint32_t)count == udp->window && udp->window < RX_MESSAGES)
        udp->window *= 2;
    udp->spread = 1;
    udp->rx_next = 0;
    udp->rx_end = (uint32_t)count;
    udp->rx_offset = 0;
    uint32_t good = take_received(udp, rx, max);
    settle_coalescing(udp, count);
    return good;
}

static void drop_send(struct udp *udp, uint32_t datagrams, int error)
{
    struct nr_io_counters *counters = &udp->io.counters;

    counters->send_dropped += datagrams;
    if (error == EMSGSIZE)
        counters->send_too_long += datagrams;
    else if (error != ECONNREFUSED && is_unreachable(error))
        counters->unreachable += datagrams, counters->last_unreachable = -error;
    counters->last_send_error = -error;
}

/* The parts of a datagram, from `vector` on; its length in bytes. */
static uint32_t gather(const struct nr_tx *tx, struct iovec *vector)
{
    uint32_t bytes = tx->length;

    vector[0] = (struct iovec){.iov_base = (void *)tx->data, .iov_len = tx->length};
    for (uint32_t s = 0; s < tx->segments; s++) {
        vector[1 + s] = (struct iovec){.iov_base = (void *)tx->segment[s].base, .iov_len = tx->segment[s].length};
        bytes += tx->segment[s].length;
    }
    return bytes;
}

/* Has the kernel cut the message into datagrams of `length` bytes; 0: it is one datagram. */
static void cut(struct msghdr *header, union control *control, uint32_t length)
{
    const uint16_t segment = (uint16_t)length;

    if (length == 0) {
        header->msg_control = NULL;
        header->msg_controllen = 0;
        return;
    }
    control->header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(segment)), .cmsg_level = SOL_UDP, .cmsg_type = UDP_SEGMENT};
    memcpy(CMSG_DATA(&control->header), &segment, sizeof(segment));
    header->msg_control = control;
    header->msg_controllen = CMSG_SPACE(sizeof(segment));
}

/*
 * Makes messages of datagrams, of as many as there are of one length to one peer; those that this socket cannot address are
 * dropped.
 */
static void prepare_send(struct udp *udp, const struct nr_tx *tx, uint32_t count)
{
    struct sending *sending = &udp->tx;
    struct iovec *vector = udp->tx_vector;
    const struct nr_peer *peer = NULL; /* of the newest message */
    struct msghdr *header = NULL;      /* the newest message */
    uint32_t segment = 0;              /* bytes of its datagrams; 0: it takes no more */
    uint32_t total = 0;                /* bytes of it */
    uint32_t number = 0;

    sending->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t bytes = gather(&tx[i], vector);
        uint32_t parts = 1u + tx[i].segments;
        uint32_t m = sending->count;

        if (bytes != 0 && bytes <= segment && total + bytes <= MESSAGE_BYTES &&
            (udp->connected || nr_peer_equal(peer, &tx[i].peer))) {
            if (sending->datagrams[m - 1]++ == 1)
                cut(header, &udp->tx_control[m - 1], segment);
            header->msg_iovlen += parts;
            total += bytes;
            if (bytes < segment || sending->datagrams[m - 1] == MESSAGE_DATAGRAMS)
                segment = 0;
        } else {
            header = &sending->message[m].msg_hdr;
            if (!udp->connected) {
                if (!nr_address_from_peer(&tx[i].peer, udp->family, &udp->tx_address[m])) {
                    drop_send(udp, 1, EAFNOSUPPORT);
                    segment = 0;
                    continue;
                }
                header->msg_namelen = nr_address_length(&udp->tx_address[m]);
            }
            header->msg_iov = vector;
            header->msg_iovlen = parts;
            cut(header, NULL, 0);
            sending->datagrams[m] = 1;
            sending->count++;
            peer = &tx[i].peer;
            segment = udp->segmenting ? bytes : 0;
            total = bytes;
        }
        udp->tx_vectors[number++] = parts;
        vector += parts;
    }
}

/* Sends messages from the first on; how many were sent, or -1 with errno. One alone goes the cheaper way. */
static int send_messages(struct udp *udp, struct mmsghdr *message, uint32_t count)
{
    ssize_t length;

    if (count > 1)
        return sendmmsg(udp->fd, message, count, MSG_DONTWAIT);
    if (message->msg_hdr.msg_iovlen == 1)
        length = sendto(udp->fd, message->msg_hdr.msg_iov->iov_base, message->msg_hdr.msg_iov->iov_len, MSG_DONTWAIT,
                        message->msg_hdr.msg_name, message->msg_hdr.msg_namelen);
    else
        length = sendmsg(udp->fd, &message->msg_hdr, MSG_DONTWAIT);
    if (length < 0)
        return -1;
    message->msg_len = (unsigned int)length;
    return 1;
}

static void send_prepared(struct udp *udp, struct sending *sending);

/*
 * The kernel would not cut message m, whose first datagram is the `number`th: its datagrams go one by one. If that is well, it is
 * the cutting that this kernel or device cannot do; else the datagrams do not fit the path, and were counted so.
 */
static void send_uncut(struct udp *udp, uint32_t m, uint32_t number, int error)
{
    const struct msghdr *whole = &udp->tx.message[m].msg_hdr;
    struct nr_io_counters *counters = &udp->io.counters;
    uint64_t too_long = counters->send_too_long;
    struct iovec *vector = whole->msg_iov;

    udp->segment_refused++;
    udp->tx_plain.count = udp->tx.datagrams[m];
    for (uint32_t i = 0; i < udp->tx_plain.count; i++) {
        udp->tx_plain.message[i].msg_hdr = (struct msghdr){.msg_name = whole->msg_name,
                                                           .msg_namelen = whole->msg_namelen,
                                                           .msg_iov = vector,
                                                           .msg_iovlen = udp->tx_vectors[number + i]};
        udp->tx_plain.datagrams[i] = 1;
        vector += udp->tx_vectors[number + i];
    }
    send_prepared(udp, &udp->tx_plain);
    if (counters->send_too_long != too_long)
        return;
    if (error == EMSGSIZE) /* a report about an earlier datagram, cleared by having been read */
        counters->send_too_long++, counters->send_dropped++, counters->last_send_error = -error;
    else
        udp->segmenting = false;
}

/* Sends the messages; what the kernel refuses is dropped and counted. */
static void send_prepared(struct udp *udp, struct sending *sending)
{
    struct nr_io_counters *counters = &udp->io.counters;
    bool retried = false;
    uint32_t done = 0;
    uint32_t number = 0; /* datagrams of the messages that are done */

    while (done < sending->count) {
        int sent = send_messages(udp, &sending->message[done], sending->count - done);

        if (sent > 0) {
            for (uint32_t last = done + (uint32_t)sent; done < last; done++) {
                counters->sent_bytes += sending->message[done].msg_len;
                counters->sent += sending->datagrams[done];
                udp->segmented += sending->datagrams[done] > 1;
                number += sending->datagrams[done];
            }
            retried = false;
            continue;
        }
        int error = errno;
        if (error == EINTR)
            continue;
        if (error == ECONNREFUSED) {
            /* A report about an earlier datagram, cleared by having been read; this one was not tried. */
            counters->unreachable++;
            counters->last_unreachable = -error;
            if (!retried) {
                retried = true;
                continue;
            }
        }
        retried = false;
        if (error == EAGAIN || error == ENOBUFS || error == ENOMEM) {
            /* The queue is full: the tail is dropped, in one go. */
            for (; done < sending->count; done++)
                drop_send(udp, sending->datagrams[done], error);
            return;
        }
        if (sending->datagrams[done] > 1 && (error == EIO || error == EINVAL || error == EOPNOTSUPP || error == EMSGSIZE))
            send_uncut(udp, done, number, error);
        else
            drop_send(udp, sending->datagrams[done], error);
        number += sending->datagrams[done];
        done++;
    }
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct udp *udp = (struct udp *)io;

    for (uint32_t first = 0, some; first < count; first += some) {
        some = count - first > NR_UDP_BURST ? NR_UDP_BURST : count - first;
        prepare_send(udp, tx + first, some);
        send_prepared(udp, &udp->tx);
        for (uint32_t i = first; i < first + some; i++)
            nr_io_give_back(io, &tx[i]);
    }
    return count;
}

/* What was received and not handed up is nothing that the socket tells of. */
static bool arm(struct nr_packet_io *io)
{
    return atomic_load_explicit(&((struct udp *)io)->rx_left, memory_order_acquire) != 0;
}

static void disarm(struct nr_packet_io *io)
{
    (void)io;
}

static int descriptor(struct nr_packet_io *io)
{
    return ((struct udp *)io)->fd;
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    struct udp *udp = (struct udp *)io;
    int mtu = 0;
    socklen_t length = sizeof(mtu);
    uint32_t payload = udp->clamp;

    if (!udp->connected)
        return payload;
    if (udp->family == AF_INET && getsockopt(udp->fd, IPPROTO_IP, IP_MTU, &mtu, &length) == 0)
        mtu -= IP4_HEADER + UDP_HEADER;
    else if (udp->family == AF_INET6 && getsockopt(udp->fd, IPPROTO_IPV6, IPV6_MTU, &mtu, &length) == 0)
        mtu -= IP6_HEADER + UDP_HEADER;
    if (mtu > 0 && (uint32_t)mtu < payload)
        payload = (uint32_t)mtu;
    return payload;
}

static uint32_t receive_capacity(struct nr_packet_io *io)
{
    struct udp *udp = (struct udp *)io;
    int bytes = 0;
    socklen_t length = sizeof(bytes);

    if (getsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &bytes, &length) != 0)
        bytes = 0;
    uint32_t each = 1;
    while (each < udp->clamp + SOCKET_HEADERS)
        each *= 2;
    each += SOCKET_DESCRIPTOR;
    if (each < udp->clamp + SOCKET_OVERHEAD)
        each = udp->clamp + SOCKET_OVERHEAD;
    return (uint32_t)bytes / each;
}

static void close_io(struct nr_packet_io *io)
{
    struct udp *udp = (struct udp *)io;

    if (udp->fd >= 0)
        close(udp->fd);
    free(udp);
}

static const struct nr_packet_io_ops udp_ops = {
    .receive_burst = receive_burst,
    .send_burst = send_burst,
    .descriptor = descriptor,
    .arm = arm,
    .disarm = disarm,
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_io,
};

static void prepare_buffers(struct udp *udp)
{
    for (int i = 0; i < RX_MESSAGES; i++) {
        struct msghdr *rx = &udp->rx_message[i].msg_hdr;

        udp->rx_vector[i] = (struct iovec){.iov_base = udp->rx_buffer[i], .iov_len = RX_BYTES};
        rx->msg_iov = &udp->rx_vector[i];
        rx->msg_iovlen = 1;
        rx->msg_control = &udp->rx_control[i];
        if (!udp->connected)
            rx->msg_name = &udp->rx_address[i];
    }
    for (int i = 0; i < NR_UDP_BURST && !udp->connected; i++)
        udp->tx.message[i].msg_hdr.msg_name = &udp->tx_address[i];
}

/* Asks the kernel to carry runs of datagrams in one message. What it cannot do goes one by one. */
static void prepare_runs(struct udp *udp)
{
    const int on = 1, off = 0;
    int segment = 0;
    socklen_t length = sizeof(segment);

    udp->segmenting = getsockopt(udp->fd, SOL_UDP, UDP_SEGMENT, &segment, &length) == 0;
    /* The first time on any socket is slow: now, not on the packet path. */
    udp->can_coalesce = setsockopt(udp->fd, SOL_UDP, UDP_GRO, &on, sizeof(on)) == 0 &&
                        setsockopt(udp->fd, SOL_UDP, UDP_GRO, &off, sizeof(off)) == 0;
}

static struct nr_packet_io *open_io(const struct nr_udp_config *config, bool connected, int *error)
{
    union nr_address address;
    struct udp *udp;
    uint32_t wanted = nr_or_default(config->socket_buffer, NR_UDP_SOCKET_BUFFER);

    *error = 0;
    if (connected && config->port == 0) {
        *error = -EINVAL;
        return NULL;
    }
    udp = aligned_alloc(64, sizeof(*udp));
    if (udp == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    memset(udp, 0, offsetof(struct udp, rx_buffer));
    udp->io.ops = &udp_ops;
    nr_io_set_sent(&udp->io, config->sent, config->sent_context);
    udp->connected = connected;
    udp->rx_flags = config->checksum_unverified ? 0 : NR_RX_CHECKSUM_VERIFIED;
    udp->clamp = config->max_payload != 0 && config->max_payload < NR_MAX_DATAGRAM ? config->max_payload : NR_MAX_DATAGRAM;
    udp->window = 1;
    udp->spread = 1;
    udp->fd = nr_address_socket(config->host, config->port, connected, &address);
    if (udp->fd < 0) {
        *error = udp->fd;
        close_io(&udp->io);
        return NULL;
    }
    udp->family = address.any.sa_family;
    if (connected)
        nr_address_to_peer(&address, &udp->peer);
    nr_address_buffers(udp->fd, wanted > INT32_MAX / 2 ? INT32_MAX / 2 : (int)wanted,
                       wanted > INT32_MAX / 2 ? INT32_MAX / 2 : (int)wanted);
    socklen_t length = sizeof(address);
    if (getsockname(udp->fd, &address.any, &length) < 0) {
        *error = -errno;
        close_io(&udp->io);
        return NULL;
    }
    nr_address_to_peer(&address, &udp->local);
    if (!config->plain)
        prepare_runs(udp);
    prepare_buffers(udp);
    return &udp->io;
}

struct nr_packet_io *nr_udp_listen(const struct nr_udp_config *config, int *error)
{
    return open_io(config, false, error);
}

struct nr_packet_io *nr_udp_connect(const struct nr_udp_config *config, int *error)
{
    return open_io(config, true, error);
}

void nr_udp_info(const struct nr_packet_io *io, struct nr_udp_info *info)
{
    const struct udp *udp = (const struct udp *)io;
    int value = 0;
    socklen_t length = sizeof(value);

    memset(info, 0, sizeof(*info));
    info->local = udp->local;
    info->remote = udp->peer;
    info->fd = udp->fd;
    info->segmenting = udp->segmenting;
    info->coalescing = udp->can_coalesce;
    info->segmented = udp->segmented;
    info->segment_refused = udp->segment_refused;
    info->coalesced = udp->coalesced;
    if (getsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0)
        info->receive_buffer = (uint32_t)value;
    length = sizeof(value);
    if (getsockopt(udp->fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0)
        info->send_buffer = (uint32_t)value;
}
