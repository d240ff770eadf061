#include "udp.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#include "address.h"

/* Bytes of UDP header, and of IP header without options. */
#define UDP_HEADER 8
#define IP4_HEADER 20
#define IP6_HEADER 40

/* Bytes that the kernel accounts for a waiting datagram besides its payload, about. */
#define SOCKET_OVERHEAD 2048

struct udp {
    struct nr_packet_io io; /* first: the shared part */

    int fd;              /* the socket */
    int family;          /* AF_INET or AF_INET6, of the socket */
    bool connected;      /* send without addresses, one peer only */
    uint32_t rx_flags;   /* NR_RX_* that every datagram gets */
    uint32_t clamp;      /* bytes, largest payload ever reported */
    uint32_t window;     /* datagrams that the next receive asks for: see receive_burst */
    struct nr_peer peer; /* the one that it is connected to */
    struct nr_peer local;

    _Alignas(64) struct mmsghdr rx_message[NR_UDP_BURST];
    struct iovec rx_vector[NR_UDP_BURST];
    union nr_address rx_address[NR_UDP_BURST];
    struct mmsghdr tx_message[NR_UDP_BURST];
    struct iovec tx_vector[NR_UDP_BURST][1 + NR_TX_SEGMENTS];
    union nr_address tx_address[NR_UDP_BURST];
    _Alignas(64) uint8_t rx_buffer[NR_UDP_BURST][NR_UDP_BUFFER];
};

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
    if (want > 1)
        return recvmmsg(udp->fd, udp->rx_message, want, MSG_DONTWAIT, NULL);

    struct mmsghdr *message = &udp->rx_message[0];
    socklen_t *name_length = udp->connected ? NULL : &message->msg_hdr.msg_namelen;
    ssize_t length =
        recvfrom(udp->fd, udp->rx_buffer[0], NR_UDP_BUFFER, MSG_DONTWAIT | MSG_TRUNC, message->msg_hdr.msg_name, name_length);
    if (length < 0)
        return -1;
    message->msg_len = (unsigned int)length;
    message->msg_hdr.msg_flags = length > NR_UDP_BUFFER ? MSG_TRUNC : 0;
    return 1;
}

/*
 * A kernel receive that asks for more than there is pays for one look too many, which a lone request would wait for. So
 * the window starts at one datagram, doubles while bursts fill it, and returns to one when nothing waits.
 */
static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct udp *udp = (struct udp *)io;
    uint32_t want = max < udp->window ? max : udp->window;
    uint32_t good = 0;
    int count;

    if (max == 0)
        return 0;
    count = receive_messages(udp, want);
    if (count < 0 && errno != EAGAIN) {
        /* What was reported is cleared now, and a datagram may wait behind it. */
        receive_failed(udp, errno);
        count = receive_messages(udp, want);
        if (count < 0)
            receive_failed(udp, errno);
    }
    if (count <= 0) {
        udp->window = 1;
        io->counters.empty_polls++;
        return 0;
    }
    if ((uint32_t)count == udp->window && udp->window < NR_UDP_BURST)
        udp->window *= 2;

    for (int i = 0; i < count; i++) {
        struct msghdr *header = &udp->rx_message[i].msg_hdr;
        struct nr_rx *out = &rx[good];

        if (header->msg_flags & MSG_TRUNC) {
            io->counters.receive_truncated++;
        } else {
            out->data = udp->rx_buffer[i];
            out->length = udp->rx_message[i].msg_len;
            out->flags = udp->rx_flags;
            if (udp->connected)
                out->peer = udp->peer;
            else
                nr_address_to_peer(&udp->rx_address[i], &out->peer);
            io->counters.received_bytes += out->length;
            good++;
        }
        if (!udp->connected)
            header->msg_namelen = sizeof(udp->rx_address[i]);
    }
    io->counters.received += good;
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

/* Fills message i from the datagram. False when this socket cannot address its peer. */
static bool prepare_send(struct udp *udp, uint32_t i, const struct nr_tx *tx)
{
    struct msghdr *header = &udp->tx_message[i].msg_hdr;
    struct iovec *vector = udp->tx_vector[i];

    if (!udp->connected) {
        if (!nr_address_from_peer(&tx->peer, udp->family, &udp->tx_address[i]))
            return false;
        header->msg_namelen = nr_address_length(&udp->tx_address[i]);
    }
    vector[0].iov_base = (void *)tx->data;
    vector[0].iov_len = tx->length;
    for (uint32_t s = 0; s < tx->segments; s++) {
        vector[1 + s].iov_base = (void *)tx->segment[s].base;
        vector[1 + s].iov_len = tx->segment[s].length;
    }
    header->msg_iovlen = 1u + tx->segments;
    return true;
}

/* Sends `count` messages from the first on; how many were sent, or -1 with errno. One alone goes the cheaper way. */
static int send_messages(struct udp *udp, uint32_t first, uint32_t count)
{
    struct mmsghdr *message = &udp->tx_message[first];
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

/* Sends the prepared messages [0, count); what the kernel refuses is dropped and counted. */
static void send_prepared(struct udp *udp, uint32_t count)
{
    struct nr_io_counters *counters = &udp->io.counters;
    bool retried = false;
    uint32_t done = 0;

    while (done < count) {
        int sent = send_messages(udp, done, count - done);

        if (sent > 0) {
            for (int i = 0; i < sent; i++)
                counters->sent_bytes += udp->tx_message[done + (uint32_t)i].msg_len;
            counters->sent += (uint32_t)sent;
            done += (uint32_t)sent;
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
            drop_send(udp, count - done, error);
            return;
        }
        drop_send(udp, 1, error);
        done++;
    }
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct udp *udp = (struct udp *)io;
    uint32_t first = 0;

    while (first < count) {
        uint32_t last = count - first > NR_UDP_BURST ? first + NR_UDP_BURST : count;
        uint32_t ready = 0;

        for (uint32_t i = first; i < last; i++) {
            if (prepare_send(udp, ready, &tx[i]))
                ready++;
            else
                drop_send(udp, 1, EAFNOSUPPORT);
        }
        send_prepared(udp, ready);
        for (uint32_t i = first; i < last; i++) {
            for (uint32_t s = 0; s < tx[i].segments; s++)
                io->sent(io->sent_context, tx[i].segment[s].token);
        }
        first = last;
    }
    return count;
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
    return (uint32_t)bytes / (udp->clamp + SOCKET_OVERHEAD);
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
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_io,
};

static void sent_to_nobody(void *context, uint64_t token)
{
    (void)context;
    (void)token;
}

static void prepare_buffers(struct udp *udp)
{
    for (int i = 0; i < NR_UDP_BURST; i++) {
        struct msghdr *rx = &udp->rx_message[i].msg_hdr;
        struct msghdr *tx = &udp->tx_message[i].msg_hdr;

        udp->rx_vector[i] = (struct iovec){.iov_base = udp->rx_buffer[i], .iov_len = NR_UDP_BUFFER};
        rx->msg_iov = &udp->rx_vector[i];
        rx->msg_iovlen = 1;
        tx->msg_iov = udp->tx_vector[i];
        if (!udp->connected) {
            rx->msg_name = &udp->rx_address[i];
            rx->msg_namelen = sizeof(udp->rx_address[i]);
            tx->msg_name = &udp->tx_address[i];
        }
    }
}

static struct nr_packet_io *open_io(const struct nr_udp_config *config, bool connected, int *error)
{
    union nr_address address;
    struct udp *udp;
    uint32_t wanted = config->socket_buffer != 0 ? config->socket_buffer : NR_UDP_SOCKET_BUFFER;

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
    memset(udp, 0, sizeof(*udp));
    udp->io.ops = &udp_ops;
    udp->io.sent = config->sent != NULL ? config->sent : sent_to_nobody;
    udp->io.sent_context = config->sent_context;
    udp->connected = connected;
    udp->rx_flags = config->checksum_unverified ? 0 : NR_RX_CHECKSUM_VERIFIED;
    udp->clamp = config->max_payload != 0 && config->max_payload < NR_MAX_DATAGRAM ? config->max_payload : NR_MAX_DATAGRAM;
    udp->window = 1;
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
    if (getsockopt(udp->fd, SOL_SOCKET, SO_RCVBUF, &value, &length) == 0)
        info->receive_buffer = (uint32_t)value;
    length = sizeof(value);
    if (getsockopt(udp->fd, SOL_SOCKET, SO_SNDBUF, &value, &length) == 0)
        info->send_buffer = (uint32_t)value;
}
