/*
 * Packet I/O: UDP payloads in and out, to and from opaque peers.
 *
 * Everything above this line (protocol, server loop, clients) is the same on kernel sockets, on shared memory and on DPDK ports.
 * One thread at a time calls these functions: the owner, or whoever holds the owner's mutex. The exceptions are nr_io_arm() and
 * nr_io_disarm(), which the one thread that is about to sleep (waiter.h) calls beside them. Nothing here allocates after creation.
 */
#ifndef NR_IO_PACKET_IO_H
#define NR_IO_PACKET_IO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../protocol/datagram.h"
#include "../protocol/wire.h"

/* Room for the longest text of a peer, terminator included: "[v6 address%scope]:port". */
#define NR_PEER_TEXT 72

/*
 * What nr_peer.bytes hold; for implementations of packet I/O only: [0] family: 4, 6 or NR_PEER_LOCAL, [1] the link: which of the
 * loop's ios it came by (set and read by the loop alone), [2..3] port (network order) or index of the device, [4..7] or [4..19]
 * address or identity, IPv6: [20..23] scope (host order). Bytes beyond `length` say how to reach the peer, not who it is: a MAC on
 * Ethernet, else zero. A length of zero is no peer.
 */
#define NR_PEER_LENGTH_IP4 8
#define NR_PEER_LENGTH_IP6 24
#define NR_PEER_LENGTH_LOCAL 20
#define NR_PEER_LOCAL 1 /* family: a client of this host that shares memory */
#define NR_PEER_LINK 1  /* index of the byte that holds the link */

/* Called in the owner's thread, once for each accepted segment, when its bytes are no longer needed (sent or dropped). For segments
 * without token (NR_TOKEN_NONE) it may be called or not. */
typedef void (*nr_sent_fn)(void *context, uint64_t token);

/* What passed, since creation. Written by the owner only; others may read a slightly old value. */
struct nr_io_counters {
    uint64_t received; /* datagrams handed up */
    uint64_t received_bytes; /* their payload bytes */
    uint64_t sent; /* datagrams given to the wire */
    uint64_t sent_bytes; /* their payload bytes */
    uint64_t send_dropped; /* datagrams accepted but refused below (full queue, no route, ...); includes the next */
    uint64_t send_too_long; /* of these, datagrams that do not fit the path: ask max_payload again */
    uint64_t receive_truncated; /* datagrams longer than a receive buffer, dropped */
    uint64_t unreachable; /* reports that nobody listens at the peer or that there is no way to it */
    uint64_t empty_polls; /* receive_burst calls that found nothing */
    uint64_t receive_errors; /* receive_burst calls that failed for a reason not counted above */
    int32_t last_send_error; /* negative errno of the newest refusal, 0 for none */
    int32_t last_receive_error; /* negative errno of the newest receive error, 0 for none */
    int32_t last_unreachable; /* negative errno of the newest report counted in unreachable, 0 for none */
};

struct nr_packet_io;

/* What an implementation of packet I/O provides. See the nr_io_ functions below for the contracts. */
struct nr_packet_io_ops {
    uint32_t (*receive_burst)(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max);
    uint32_t (*send_burst)(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count);
    int (*descriptor)(struct nr_packet_io *io);
    bool (*arm)(struct nr_packet_io *io); /* NULL: the descriptor tells of everything, always */
    void (*disarm)(struct nr_packet_io *io); /* NULL where arm is */
    uint32_t (*max_payload)(struct nr_packet_io *io);
    uint32_t (*receive_capacity)(struct nr_packet_io *io);
    void (*close)(struct nr_packet_io *io);
};

/* The part that all implementations share; they embed it as their first member. */
struct nr_packet_io {
    const struct nr_packet_io_ops *ops; /* the implementation */
    nr_sent_fn sent; /* drops segment references; may be NULL where none are sent. The appliance's loop sets both
                                           when it takes the io over, so read them at each call */
    void *sent_context; /* first argument of sent */
    struct nr_io_counters counters; /* what passed */
};

/*
 * Takes up to `max` waiting datagrams without sleeping and returns how many. Payloads of the previous call become invalid. After a
 * return of `max` more may wait that the descriptor does not tell of: nr_io_arm() does, and who sleeps already must be woken.
 */
static inline uint32_t nr_io_receive_burst(struct nr_packet_io *io, struct nr_rx *rx, uint32_t max)
{
    return io->ops->receive_burst(io, rx, max);
}

/*
 * Sends without sleeping and returns how many of the first datagrams were accepted; the rest stays with the caller. The own bytes
 * of accepted ones, those of segments without token included, may be changed as soon as this returns, the other segments' only after
 * `sent` (perhaps called before this returns).
 * An accepted datagram may still be lost, here or further on. A connected io ignores the peer.
 */
static inline uint32_t nr_io_send_burst(struct nr_packet_io *io, const struct nr_tx *tx, uint32_t count)
{
    return io->ops->send_burst(io, tx, count);
}

/*
 * A descriptor, the same for life, that is readable while a datagram or a report may wait, or there is other work for
 * receive_burst; on ios with `arm` only once armed. -1: there is none, the io must be polled.
 */
static inline int nr_io_descriptor(struct nr_packet_io *io)
{
    return io->ops->descriptor(io);
}

/* Before a sleep on the descriptor: asks to be told. True when something waits already: then do not sleep. */
static inline bool nr_io_arm(struct nr_packet_io *io)
{
    return io->ops->arm != NULL && io->ops->arm(io);
}

/* After the sleep, also one that arm prevented: nobody needs to be told any more. */
static inline void nr_io_disarm(struct nr_packet_io *io)
{
    if (io->ops->disarm != NULL)
        io->ops->disarm(io);
}

/* The largest payload in bytes that the path takes now. May be a system call: ask at set-up and when send_too_long
 * grows. */
static inline uint32_t nr_io_max_payload(struct nr_packet_io *io)
{
    return io->ops->max_payload(io);
}

/*
 * Datagrams of the largest size that may wait to be received before some are lost, from all peers together; UINT32_MAX where none
 * is lost, as senders are held back. Credits are reckoned from it.
 */
static inline uint32_t nr_io_receive_capacity(struct nr_packet_io *io)
{
    return io->ops->receive_capacity(io);
}

/* Frees everything, after the last `sent` call. No thread may be in any function of this io. NULL is allowed. */
static inline void nr_io_close(struct nr_packet_io *io)
{
    if (io != NULL)
        io->ops->close(io);
}

/* Writes "10.0.0.7:7447", "[::1]:7447", "[fe80::1%2]:7447" or "vhost:3" (a device) into text, "-" for no peer, and returns text. */
const char *nr_peer_format(const struct nr_peer *peer, char text[NR_PEER_TEXT]);

/* The peer's UDP port in host order, of a device its index; 0 for no peer. */
uint16_t nr_peer_port(const struct nr_peer *peer);

#endif
