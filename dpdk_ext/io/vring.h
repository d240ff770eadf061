/*
 * Packet I/O over shared memory to an appliance of the same host: the front end of a vhost-user device. The back end is vhost.h's,
 * found by the path of its socket, or any other with the same features (a DPDK net_vhost port), found by a callback.
 *
 * The client owns the memory, a sealed memfd with two rings and their buffers. When it has no back end it dials for one, again and
 * again, so that either side may be killed and started anew; what was in flight is lost then. Frames are real: Ethernet, IPv4 and
 * UDP between two fixed ends. Nothing here starts a thread, and several may live in one process. Dialling happens, and a loss is
 * noticed, inside receive_burst only. After a fork only one process may go on.
 *
 * Why there is no connection stands in the counters, last_unreachable: -ENOENT (no socket there), -EACCES, -ECONNREFUSED (nobody
 * listens), -EUSERS (too many clients), -EPROTONOSUPPORT (another version, or a feature is missing), -ETIMEDOUT (no answer), -EPROTO.
 */
#ifndef NR_IO_VRING_H
#define NR_IO_VRING_H

#include "hello.h"
#include "packet_io.h"

/* Defaults of the configuration: 2 MiB to receive into, some 200 frames of 9 KB; 1 MiB to send from, some 100. */
#define NR_VRING_DESCRIPTORS 1024
#define NR_VRING_SLOT 2048
#define NR_VRING_TX_BYTES (1 << 20)

/*
 * A connected stream socket on which a vhost-user back end answers; the io closes it. Or a negative errno, -EAGAIN for not yet; then
 * it is called again. Must not block.
 */
typedef int (*nr_vring_dial_fn)(void *context);

/* How to open one. Zero means the default where one is named. Copied: nothing needs to outlive the call. */
struct nr_vring_config {
    const char *path;           /* of the socket of nr_vhost_listen(), which says which the ends are; or NULL and all of these: */
    nr_vring_dial_fn dial;      /* finds the back end */
    void *dial_context;         /* first argument of dial */
    struct nr_vhost_end local;  /* this end */
    struct nr_vhost_end remote; /* the appliance */
    uint32_t max_payload;       /* bytes; clamps what max_payload reports below NR_MAX_DATAGRAM */
    uint32_t descriptors;       /* of each ring, a power of two from 16 to 32768; default NR_VRING_DESCRIPTORS */
    uint32_t slot;              /* bytes of one receive buffer, a power of two from 1024 to 32768; default NR_VRING_SLOT */
    uint32_t tx_bytes;          /* bytes of buffers to send from; default NR_VRING_TX_BYTES */
    nr_sent_fn sent;            /* see nr_packet_io */
    void *sent_context;         /* see nr_packet_io */
};

/* Where the connection stands. */
enum nr_vring_state {
    NR_VRING_DOWN,    /* no appliance */
    NR_VRING_GREETED, /* connected, hello sent */
    NR_VRING_ASKED,   /* features asked for */
    NR_VRING_READY,   /* the appliance has the rings */
    NR_VRING_CLOSING, /* hung up on; waiting until it has let go of the memory */
};

/* What was got. */
struct nr_vring_info {
    enum nr_vring_state state;
    uint64_t connections;  /* that became ready, since creation */
    uint64_t refused;      /* connections closed because the back end lacks a feature or broke the protocol */
    uint64_t memory_bytes; /* shared with the appliance */
    uint32_t limit;        /* clients that the server takes at once, by its last answer; 0: not known */
};

/*
 * Takes the memory and returns; the first connection comes later, see nr_vring_info(). NULL on failure, with *error a negative
 * errno: -EINVAL (bad configuration), -ENAMETOOLONG (path), -ENOMEM, others from the system.
 */
struct nr_packet_io *nr_vring_open(const struct nr_vring_config *config, int *error);

/* Says what was got. The io must come from nr_vring_open(). */
void nr_vring_info(const struct nr_packet_io *io, struct nr_vring_info *info);

#endif
