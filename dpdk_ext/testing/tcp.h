/*
 * Packet I/O over kernel TCP, for tests and benchmarks only: the same engine, protocol and server behind TCP are the fair baseline.
 *
 * A datagram travels as its length in four bytes (host order) and its bytes. A burst to one peer is one system call, and what is
 * received is handed up where it was received. Peers are those of UDP: address and port. A connection whose length makes no sense is
 * closed. A client whose connection is lost connects again by itself, at most every 10 ms, inside receive_burst; what was on its way
 * is lost. Nothing is allocated after creation, except the memory of a client that a server accepts.
 */
#ifndef NR_TESTING_TCP_H
#define NR_TESTING_TCP_H

#include "../io/packet_io.h"

/* Connections that a server has at once; a further one is closed. */
#define NR_TCP_CLIENTS 256
/* Bytes of a connection that wait to be received, and to be sent when the kernel takes no more; datagrams beyond are dropped. */
#define NR_TCP_BUFFER (1 << 20)

/* How to open one. Zero means the default everywhere but host. Copied: nothing needs to outlive the call. */
struct nr_tcp_config {
    const char *host;     /* numeric IPv4 or IPv6 address, or a host name */
    uint16_t port;        /* TCP port; 0 when listening: the kernel chooses */
    uint32_t max_payload; /* bytes; clamps what max_payload reports below NR_MAX_DATAGRAM */
    uint32_t busy_poll_us; /* SO_BUSY_POLL where the system allows it; 0 leaves it */
    nr_sent_fn sent;      /* see nr_packet_io */
    void *sent_context;   /* see nr_packet_io */
};

/* What was got. */
struct nr_tcp_info {
    struct nr_peer local;     /* the address and port that a listening one is bound to */
    uint32_t connections;     /* now */
    uint64_t connected;       /* connections that were made */
    uint64_t lost;            /* connections that ended */
    uint64_t malformed;       /* of these, closed because of a length that makes no sense */
};

/* NULL on failure, with *error a negative errno, as nr_udp_listen(). */
struct nr_packet_io *nr_tcp_listen(const struct nr_tcp_config *config, int *error);

/* NULL on failure, with *error a negative errno, as nr_udp_connect(). That nobody listens is no failure: it tries again. */
struct nr_packet_io *nr_tcp_connect(const struct nr_tcp_config *config, int *error);

/* Says what was got. The io must come from nr_tcp_listen() or nr_tcp_connect(). */
void nr_tcp_info(const struct nr_packet_io *io, struct nr_tcp_info *info);

#endif
