/*
 * Packet I/O to clients of the same host over shared memory: the back ends of vhost-user devices, one per client, behind one
 * listening socket. No DPDK, no privileges, no hugepages.
 *
 * A client connects to the socket, says who it is (hello.h), hands over a sealed memory and two rings (vhost_user.h), and from then
 * on frames go through the memory; the connection is its life line. Everything, connecting too, happens inside receive_burst on the
 * owner's thread. What stands in the shared memory may change at any moment and is never trusted: each index, address and length is
 * read once and checked, and what is handed up is a copy. A client that breaks the rules loses its device; no other notices.
 */
#ifndef NR_IO_VHOST_H
#define NR_IO_VHOST_H

#include "packet_io.h"

#define NR_VHOST_CLIENTS 64        /* default of the configuration */
#define NR_VHOST_MOST_CLIENTS 1024 /* its limit */

/* How to open one. Zero means the default where one is named. Copied: nothing needs to outlive the call. */
struct nr_vhost_config {
    const char *path;     /* of the socket, absolute; a socket left behind by a dead server is replaced */
    uint32_t mode;        /* of the socket's file; default 0660 */
    uint32_t clients;     /* at once; default NR_VHOST_CLIENTS; one more is told so and refused */
    uint32_t max_payload; /* bytes; clamps what max_payload reports below NR_MAX_DATAGRAM */
    nr_sent_fn sent;      /* see nr_packet_io */
    void *sent_context;   /* see nr_packet_io */
};

/* What became of clients, since creation. */
struct nr_vhost_info {
    uint32_t clients;          /* now */
    uint32_t limit;            /* as configured */
    uint64_t connected;        /* devices that became ready */
    uint64_t refused_full;     /* told that there are too many */
    uint64_t starved;          /* times that somebody was not let in for want of descriptors or kernel memory */
    uint64_t refused_protocol; /* a broken hello, vhost-user message, memory table or ring at set-up, or too slow with it */
    uint64_t misbehaved;       /* devices taken away as their rings broke the rules */
    uint64_t faults;           /* pages of shared memory that had gone when they were touched */
    uint64_t memory_bytes;     /* of clients, mapped now */
};

/*
 * Listens. NULL on failure, with *error a negative errno: -EADDRINUSE (another server answers there, or it is no socket), -ENOENT
 * (no such folder), -EACCES, -ENAMETOOLONG, -EINVAL (bad configuration), -ENOMEM. Installs a process-wide SIGBUS handler, which
 * hands on what is not its own.
 */
struct nr_packet_io *nr_vhost_listen(const struct nr_vhost_config *config, int *error);

/* One client's device. */
struct nr_vhost_client {
    int32_t pid;      /* who connected, by the kernel's word */
    uint32_t uid;     /* the same */
    uint64_t received; /* datagrams from it, since it connected */
    uint64_t sent;     /* datagrams to it */
    uint64_t dropped;  /* datagrams to it that found its receive ring full */
};

/* Says what became of clients; from the owner's thread. The io must come from nr_vhost_listen(). */
void nr_vhost_info(const struct nr_packet_io *io, struct nr_vhost_info *info);

/* Of the ready device with this index (nr_peer.bytes[2..3], below the limit); false: there is none. As nr_vhost_info(). */
bool nr_vhost_client(const struct nr_packet_io *io, uint32_t index, struct nr_vhost_client *client);

#endif
