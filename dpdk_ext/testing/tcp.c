#include "tcp.h"

#include <errno.h>
#include <netinet/tcp.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "../io/address.h"

enum {
    BURST = 64,                  /* datagrams of one system call */
    RETRY_NS = 10 * 1000 * 1000, /* between two attempts to connect */
    LOOK = 32,                   /* receives of a server with one connection between two looks at everything */
    PREFIX = sizeof(uint32_t),
    SOCKET_BUFFER = 4 << 20, /* bytes asked for in each direction, before connecting: it decides about the window */
    LONGEST = 1 << 16, /* bytes of a datagram that make sense */
};

/* Marks of what an event of the epoll is about, besides a link. */
enum { EVENT_LISTENER = NR_TCP_CLIENTS, EVENT_TIMER };

/* One connection. */
struct link {
    int fd;              /* -1: none */
    bool connecting;     /* not established yet */
    bool readable;       /* the epoll said so and the socket has not been emptied since */
    bool watching_write; /* the epoll tells of room to send */
    struct nr_peer peer;
    uint8_t *rx;       /* [NR_TCP_BUFFER] */
    uint32_t rx_start; /* bytes handed up */
    uint32_t rx_end;   /* bytes received */
    uint8_t *tx;       /* [NR_TCP_BUFFER], what the kernel would not take yet */
    uint32_t tx_start; /* bytes sent */
    uint32_t tx_end;   /* bytes kept */
};

struct tcp {
    struct nr_packet_io io; /* first: the shared part */

    int epoll;
    int listener;          /* -1: a client */
    int timer;             /* of a client: when to connect again, so that sleepers wake; else -1 */
    uint32_t busy_poll_us; /* 0: not asked for */
    uint32_t clamp;        /* bytes, largest payload ever reported */
    uint32_t turn;         /* the link looked at first */
    uint32_t asked;        /* times that only one connection was asked */
    uint32_t used;         /* links that were ever in use */
    union nr_address address; /* of the server */
    struct nr_tcp_info info;
    _Atomic bool left; /* whole datagrams wait in buffers, or a readable mark does */
    struct link link[NR_TCP_CLIENTS];
};

static void watch(struct tcp *tcp, uint32_t index, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.u32 = index};

    (void)epoll_ctl(tcp->epoll, operation, tcp->link[index].fd, &event);
}

static void retry_later(struct tcp *tcp)
{
    const struct itimerspec when = {.it_value.tv_nsec = RETRY_NS};

    if (tcp->timer >= 0)
        (void)timerfd_settime(tcp->timer, 0, &when, NULL);
}

static void lose(struct tcp *tcp, struct link *link)
{
    if (link->fd < 0)
        return;
    close(link->fd);
    link->fd = -1;
    link->readable = false;
    if (!link->connecting) {
        tcp->info.lost++;
        tcp->info.connections--;
    }
    link->rx_start = link->rx_end = link->tx_start = link->tx_end = 0;
    retry_later(tcp);
}

static bool begin(struct tcp *tcp, struct link *link, int fd)
{
    const int on = 1, busy = (int)tcp->busy_poll_us;

    if (link->rx == NULL)
        link->rx = malloc(NR_TCP_BUFFER);
    if (link->tx == NULL)
        link->tx = malloc(NR_TCP_BUFFER);
    if (link->rx == NULL || link->tx == NULL) {
        close(fd);
        return false;
    }
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    if (busy != 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &busy, sizeof(busy));
    link->fd = fd;
    link->connecting = tcp->listener < 0;
    link->watching_write = link->connecting;
    link->readable = false;
    link->rx_start = link->rx_end = link->tx_start = link->tx_end = 0;
    watch(tcp, (uint32_t)(link - tcp->link), EPOLL_CTL_ADD, EPOLLIN | (link->connecting ? (uint32_t)EPOLLOUT : 0));
    return true;
}

static void established(struct tcp *tcp, struct link *link)
{
    link->connecting = false;
    tcp->info.connected++;
    tcp->info.connections++;
}

static void dial(struct tcp *tcp)
{
    struct link *link = &tcp->link[0];
    int fd = socket(tcp->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);

    if (fd < 0) {
        retry_later(tcp);
        return;
    }
    nr_address_buffers(fd, SOCKET_BUFFER, SOCKET_BUFFER);
    int result = connect(fd, &tcp->address.any, nr_address_length(&tcp->address));
    if (result != 0 && errno != EINPROGRESS) {
        tcp->io.counters.unreachable++;
        tcp->io.counters.last_unreachable = -errno;
        close(fd);
        retry_later(tcp);
        return;
    }
    if (!begin(tcp, link, fd))
        retry_later(tcp);
}

static void accept_all(struct tcp *tcp)
{
    union nr_address address;
    socklen_t length = sizeof(address);
    int fd;

    while ((fd = accept4(tcp->listener, &address.any, &length, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        uint32_t index = 0;

        while (index < NR_TCP_CLIENTS && tcp->link[index].fd >= 0)
            index++;
        if (index == NR_TCP_CLIENTS)
            close(fd);
        else if (begin(tcp, &tcp->link[index], fd)) {
            nr_address_to_peer(&address, &tcp->link[index].peer);
            established(tcp, &tcp->link[index]);
            if (tcp->used <= index)
                tcp->used = index + 1;
        }
        length = sizeof(address);
    }
}

/* ---- Sending ---- */

static void watch_write(struct tcp *tcp, struct link *link, bool wanted)
{
    if (link->watching_write == wanted)
        return;
    link->watching_write = wanted;
    watch(tcp, (uint32_t)(link - tcp->link), EPOLL_CTL_MOD, EPOLLIN | (wanted ? (uint32_t)EPOLLOUT : 0));
}

/* Sends what was kept. False when some is left. */
static bool send_kept(struct tcp *tcp, struct link *link)
{
    while (link->tx_start < link->tx_end) {
        ssize_t sent = send(link->fd, link->tx + link->tx_start, link->tx_end - link->tx_start, MSG_DONTWAIT | MSG_NOSIGNAL);

        if (sent > 0) {
            link->tx_start += (uint32_t)sent;
        } else if (errno != EINTR) {
            if (errno != EAGAIN)
                lose(tcp, link);
            else
                watch_write(tcp, link, true);
            return false;
        }
    }
    link->tx_start = link->tx_end = 0;
    watch_write(tcp, link, false);
    return true;
}

/* Keeps the parts of one datagram from byte `skip` on. False when there is no room for it. */
static bool keep(struct link *link, const struct iovec *vector, uint32_t parts, size_t skip)
{
    size_t bytes = 0;

    for (uint32_t i = 0; i < parts; i++)
        bytes += vector[i].iov_len;
    bytes -= skip;
    if (link->tx_end + bytes > NR_TCP_BUFFER) {
        memmove(link->tx, link->tx + link->tx_start, link->tx_end - link->tx_start);
        link->tx_end -= link->tx_start;
        link->tx_start = 0;
        if (link->tx_end + bytes > NR_TCP_BUFFER)
            return false;
    }
    for (uint32_t i = 0; i < parts; i++) {
        size_t from = skip < vector[i].iov_len ? skip : vector[i].iov_len;

        memcpy(link->tx + link->tx_end, (uint8_t *)vector[i].iov_base + from, vector[i].iov_len - from);
        link->tx_end += (uint32_t)(vector[i].iov_len - from);
        skip -= from;
    }
    return true;
}

static void drop(struct tcp *tcp, uint32_t datagrams, int error)
{
    tcp->io.counters.send_dropped += datagrams;
    tcp->io.counters.last_send_error = -error;
}

/* Sends up to BURST datagrams to one peer. */
static void send_to(struct tcp *tcp, struct link *link, const struct nr_tx *tx, uint32_t count)
{
    struct nr_io_counters *counters = &tcp->io.counters;
    struct iovec vector[BURST * (2 + NR_TX_SEGMENTS)];
    uint32_t length[BURST], parts[BURST], used = 0;
    ssize_t sent = 0;

    if (link->fd < 0 || link->connecting) {
        drop(tcp, count, ENOTCONN);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = used++;

        length[i] = tx[i].length;
        vector[used++] = (struct iovec){(void *)tx[i].data, tx[i].length};
        for (uint32_t s = 0; s < tx[i].segments; s++) {
            vector[used++] = (struct iovec){(void *)tx[i].segment[s].base, tx[i].segment[s].length};
            length[i] += tx[i].segment[s].length;
        }
        vector[first] = (struct iovec){&length[i], PREFIX};
        parts[i] = used - first;
    }
    if (link->tx_start == link->tx_end || send_kept(tcp, link)) {
        do
            sent = sendmsg(link->fd, &(struct msghdr){.msg_iov = vector, .msg_iovlen = used}, MSG_DONTWAIT | MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent < 0 && errno != EAGAIN)
            lose(tcp, link);
        if (sent < 0)
            sent = 0;
    }
    if (link->fd < 0) {
        drop(tcp, count, ENOTCONN);
        return;
    }
    size_t done = (size_t)sent;
    struct iovec *at = vector;
    for (uint32_t i = 0; i < count; at += parts[i++]) {
        size_t whole = PREFIX + length[i];
        size_t skip = done < whole ? done : whole;

        done -= skip;
        /* One that has begun must end: there is always room for it, as nothing is kept then. */
        if (skip < whole && !keep(link, at, parts[i], skip)) {
            drop(tcp, 1, EAGAIN);
            continue;
        }
        counters->sent++;
        counters->sent_bytes += length[i];
    }
    if (link->tx_start != link->tx_end)
        watch_write(tcp, link, true);
}

static struct link *link_of(struct tcp *tcp, const struct nr_peer *peer)
{
    if (tcp->listener < 0)
        return &tcp->link[0];
    for (uint32_t i = 0; i < tcp->used; i++)
        if (tcp->link[i].fd >= 0 && nr_peer_equal(&tcp->link[i].peer, peer))
            return &tcp->link[i];
    return NULL;
}

static uint32_t send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    struct tcp *tcp = (struct tcp *)io;

    for (uint32_t first = 0, last; first < count; first = last) {
        struct link *link = link_of(tcp, &tx[first].peer);

        for (last = first + 1; last < count && last - first < BURST; last++)
            if (tcp->listener >= 0 && !nr_peer_equal(&tx[first].peer, &tx[last].peer))
                break;
        if (link == NULL)
            drop(tcp, last - first, ENOTCONN);
        else
            send_to(tcp, link, tx + first, last - first);
        for (uint32_t i = first; i < last; i++)
            for (uint32_t s = 0; s < tx[i].segments && io->sent != NULL; s++)
                io->sent(io->sent_context, tx[i].segment[s].token);
    }
    return count;
}

/* ---- Receiving ---- */

/* Hands up whole datagrams of the link's buffer. */
static uint32_t take(struct tcp *tcp, struct link *link, struct nr_rx *rx, uint32_t max)
{
    uint32_t good = 0, length;

    while (good < max && link->rx_end - link->rx_start >= PREFIX) {
        memcpy(&length, link->rx + link->rx_start, PREFIX);
        if (length > LONGEST) {
            tcp->info.malformed++;
            lose(tcp, link);
            break;
        }
        if (link->rx_end - link->rx_start - PREFIX < length)
            break;
        rx[good++] = (struct nr_rx){
            .data = link->rx + link->rx_start + PREFIX, .length = length, .flags = NR_RX_CHECKSUM_VERIFIED, .peer = link->peer};
        link->rx_start += PREFIX + length;
        tcp->io.counters.received_bytes += length;
    }
    tcp->io.counters.received += good;
    return good;
}

static bool holds_whole(const struct link *link)
{
    uint32_t length;

    if (link->fd < 0 || link->rx_end - link->rx_start < PREFIX)
        return false;
    memcpy(&length, link->rx + link->rx_start, PREFIX);
    return length > LONGEST || link->rx_end - link->rx_start - PREFIX >= length;
}

/* Takes what the socket has. The buffer holds no whole datagram. */
static void fill(struct tcp *tcp, struct link *link)
{
    uint32_t rest = link->rx_end - link->rx_start;

    if (link->rx_start != 0) {
        memmove(link->rx, link->rx + link->rx_start, rest);
        link->rx_start = 0;
        link->rx_end = rest;
    }
    ssize_t got = recv(link->fd, link->rx + rest, NR_TCP_BUFFER - rest, MSG_DONTWAIT);
    if (got > 0)
        link->rx_end += (uint32_t)got;
    else if (got == 0 || (errno != EAGAIN && errno != EINTR))
        lose(tcp, link);
    link->readable = got == (ssize_t)(NR_TCP_BUFFER - rest);
}

static void look(struct tcp *tcp)
{
    struct epoll_event event[BURST];
    int count = epoll_wait(tcp->epoll, event, BURST, 0);

    for (int i = 0; i < count; i++) {
        uint32_t index = event[i].data.u32;

        if (index == EVENT_LISTENER) {
            accept_all(tcp);
        } else if (index == EVENT_TIMER) {
            uint64_t ignored;

            (void)!read(tcp->timer, &ignored, sizeof(ignored));
            if (tcp->link[0].fd < 0)
                dial(tcp);
        } else {
            struct link *link = &tcp->link[index];

            if (link->connecting && event[i].events & (EPOLLERR | EPOLLHUP)) {
                tcp->io.counters.unreachable++;
                tcp->io.counters.last_unreachable = -ECONNREFUSED;
                lose(tcp, link);
                continue;
            }
            if (link->connecting && event[i].events & EPOLLOUT)
                established(tcp, link);
            if (event[i].events & EPOLLOUT)
                send_kept(tcp, link);
            if (link->fd >= 0 && event[i].events & (EPOLLIN | EPOLLERR | EPOLLHUP))
                link->readable = true;
        }
    }
}

static uint32_t gather_links(struct tcp *tcp, struct nr_rx *rx, uint32_t max, bool from_sockets)
{
    uint32_t good = 0;

    for (uint32_t i = 0; i < tcp->used && good < max; i++) {
        struct link *link = &tcp->link[(tcp->turn + i) % tcp->used];

        if (link->fd < 0)
            continue;
        if (from_sockets && link->readable)
            fill(tcp, link);
        if (link->fd >= 0)
            good += take(tcp, link, rx + good, max - good);
    }
    if (tcp->used != 0)
        tcp->turn = (tcp->turn + 1) % tcp->used;
    return good;
}

/*
 * The only connection, if there is one that is up and has nothing to send: asking it is cheaper than asking who has something. A
 * server must see others come, so now and then there is none.
 */
static struct link *only_link(struct tcp *tcp)
{
    if (tcp->info.connections != 1 || (tcp->listener >= 0 && ++tcp->asked % LOOK == 0))
        return NULL;
    for (uint32_t i = 0; i < tcp->used; i++) {
        struct link *link = &tcp->link[i];

        if (link->fd >= 0 && !link->connecting)
            return link->tx_start == link->tx_end ? link : NULL;
    }
    return NULL;
}

static uint32_t receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    struct tcp *tcp = (struct tcp *)io;
    bool left = false;

    if (max == 0)
        return 0;
    uint32_t good = gather_links(tcp, rx, max, false);
    if (good == 0) {
        struct link *only = only_link(tcp);

        if (only != NULL)
            only->readable = true;
        else
            look(tcp);
        good = gather_links(tcp, rx, max, true);
    }
    for (uint32_t i = 0; i < tcp->used && good == max && !left; i++)
        left = holds_whole(&tcp->link[i]) || tcp->link[i].readable;
    atomic_store_explicit(&tcp->left, left, memory_order_release);
    if (good == 0)
        io->counters.empty_polls++;
    return good;
}

static bool arm(struct nr_packet_io *io)
{
    return atomic_load_explicit(&((struct tcp *)io)->left, memory_order_acquire);
}

static void disarm(struct nr_packet_io *io)
{
    (void)io;
}

static int descriptor(struct nr_packet_io *io)
{
    return ((struct tcp *)io)->epoll;
}

static uint32_t max_payload(struct nr_packet_io *io)
{
    return ((struct tcp *)io)->clamp;
}

static uint32_t receive_capacity(struct nr_packet_io *io)
{
    (void)io;
    return UINT32_MAX;
}

static void close_io(struct nr_packet_io *io)
{
    struct tcp *tcp = (struct tcp *)io;

    for (uint32_t i = 0; i < NR_TCP_CLIENTS; i++) {
        if (tcp->link[i].fd >= 0)
            close(tcp->link[i].fd);
        free(tcp->link[i].rx);
        free(tcp->link[i].tx);
    }
    if (tcp->listener >= 0)
        close(tcp->listener);
    if (tcp->timer >= 0)
        close(tcp->timer);
    if (tcp->epoll >= 0)
        close(tcp->epoll);
    free(tcp);
}

static const struct nr_packet_io_ops tcp_ops = {
    .receive_burst = receive_burst,
    .send_burst = send_burst,
    .descriptor = descriptor,
    .arm = arm,
    .disarm = disarm,
    .max_payload = max_payload,
    .receive_capacity = receive_capacity,
    .close = close_io,
};

static int open_listener(struct tcp *tcp)
{
    const int on = 1, off = 0;
    socklen_t length = nr_address_length(&tcp->address);

    tcp->listener = socket(tcp->address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
    if (tcp->listener < 0)
        return -errno;
    nr_address_buffers(tcp->listener, SOCKET_BUFFER, SOCKET_BUFFER);
    /* So that a server may come back to its port while old connections of it linger. */
    (void)setsockopt(tcp->listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (tcp->address.any.sa_family == AF_INET6)
        (void)setsockopt(tcp->listener, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    if (bind(tcp->listener, &tcp->address.any, length) < 0 || listen(tcp->listener, NR_TCP_CLIENTS) < 0 ||
        getsockname(tcp->listener, &tcp->address.any, &length) < 0)
        return -errno;
    nr_address_to_peer(&tcp->address, &tcp->info.local);
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = EVENT_LISTENER};
    return epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->listener, &event) < 0 ? -errno : 0;
}

static int open_client(struct tcp *tcp)
{
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = EVENT_TIMER};

    tcp->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (tcp->timer < 0 || epoll_ctl(tcp->epoll, EPOLL_CTL_ADD, tcp->timer, &event) < 0)
        return -errno;
    nr_address_to_peer(&tcp->address, &tcp->link[0].peer);
    tcp->used = 1;
    dial(tcp);
    return 0;
}

static struct nr_packet_io *open_io(const struct nr_tcp_config *config, bool client, int *error)
{
    union nr_address found[NR_ADDRESSES];
    struct tcp *tcp;
    int count = client && config->port == 0 ? -EINVAL : nr_address_resolve(config->host, config->port, found);

    *error = count < 0 ? count : 0;
    if (count < 0)
        return NULL;
    tcp = calloc(1, sizeof(*tcp));
    if (tcp == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    tcp->io.ops = &tcp_ops;
    tcp->io.sent = config->sent;
    tcp->io.sent_context = config->sent_context;
    tcp->clamp = config->max_payload != 0 && config->max_payload < NR_MAX_DATAGRAM ? config->max_payload : NR_MAX_DATAGRAM;
    tcp->busy_poll_us = config->busy_poll_us;
    tcp->address = found[0];
    tcp->listener = tcp->timer = -1;
    for (uint32_t i = 0; i < NR_TCP_CLIENTS; i++)
        tcp->link[i].fd = -1;
    tcp->epoll = epoll_create1(EPOLL_CLOEXEC);
    *error = tcp->epoll < 0 ? -errno : client ? open_client(tcp) : open_listener(tcp);
    if (*error != 0) {
        close_io(&tcp->io);
        return NULL;
    }
    return &tcp->io;
}

struct nr_packet_io *nr_tcp_listen(const struct nr_tcp_config *config, int *error)
{
    return open_io(config, false, error);
}

struct nr_packet_io *nr_tcp_connect(const struct nr_tcp_config *config, int *error)
{
    return open_io(config, true, error);
}

void nr_tcp_info(const struct nr_packet_io *io, struct nr_tcp_info *info)
{
    *info = ((const struct tcp *)io)->info;
}
