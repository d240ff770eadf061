/*
 * Packet I/O over kernel UDP sockets: what a host without DPDK uses, and the baseline for every claim about kernel
 * bypass.
 *
 * Runs of datagrams of one length to one peer cross the kernel as one message where it can do that (UDP_SEGMENT, UDP_GRO). All
 * buffers are taken at creation. Datagrams carry DF. Descriptors are close-on-exec; after a fork only one process may go on.
 */
#ifndef NR_IO_UDP_H
#define NR_IO_UDP_H

#include "packet_io.h"

/* Datagrams per system call at least. */
#define NR_UDP_BURST 64
/* Bytes of the longest datagram handed up; what is longer is dropped as truncated. */
#define NR_UDP_BUFFER 9216
/* Socket buffers asked for where the configuration says 0, in bytes. */
#define NR_UDP_SOCKET_BUFFER (4 << 20)

/* How to open one. Zero means the default everywhere but host. Copied: nothing needs to outlive the call. */
struct nr_udp_config {
    const char *host;         /* numeric IPv4 or IPv6 address, or a host name */
    uint16_t port;            /* UDP port; 0 when listening: the kernel chooses, see nr_udp_info() */
    bool checksum_unverified; /* withhold NR_RX_CHECKSUM_VERIFIED: the path changes payloads (a proxy, a fault injector)
                               */
    uint32_t max_payload;     /* bytes; clamps what max_payload reports below NR_MAX_DATAGRAM */
    uint32_t socket_buffer;   /* bytes to ask for in each direction; default NR_UDP_SOCKET_BUFFER */
    bool plain;               /* one message for each datagram, both ways */
    nr_sent_fn sent;          /* see nr_packet_io */
    void *sent_context;       /* see nr_packet_io */
};

/* What was got. */
struct nr_udp_info {
    struct nr_peer local;    /* the address and port that it is bound to */
    struct nr_peer remote;   /* the peer that it is connected to; no peer for a listening one */
    uint32_t receive_buffer; /* bytes, as the kernel counts them (its own overhead included) */
    uint32_t send_buffer;    /* bytes, likewise */
    int fd;                  /* the socket; owned by the io */
    bool segmenting;         /* runs are sent as one message; ends when the kernel refuses to cut what fits the path */
    bool coalescing;         /* the kernel can hand up runs as one message; done while bursts come */
    uint64_t segmented;       /* messages of several datagrams sent */
    uint64_t segment_refused; /* messages of several datagrams that the kernel refused; they went one by one */
    uint64_t coalesced;       /* messages of several datagrams received */
};

/*
 * Opens a socket bound to host and port that receives from anyone. NULL on failure, with *error a negative errno:
 * -EADDRINUSE, -EADDRNOTAVAIL (not an address of this host), -EACCES (privileged port), or those of
 * nr_address_resolve().
 */
struct nr_packet_io *nr_udp_listen(const struct nr_udp_config *config, int *error);

/*
 * Opens a socket connected to host and port; that nobody listens there is seen in counters.unreachable once something
 * was sent. NULL on failure, with *error a negative errno: -ENETUNREACH (no route), -EINVAL (port 0), or those of
 * nr_address_resolve().
 */
struct nr_packet_io *nr_udp_connect(const struct nr_udp_config *config, int *error);

/* Says what was got. The io must come from nr_udp_listen() or nr_udp_connect(). */
void nr_udp_info(const struct nr_packet_io *io, struct nr_udp_info *info);

#endif
