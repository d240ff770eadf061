/*
 * What goes over a vhost-user socket and where the rings lie, as far as netreplay uses it: the front end owns the memory and asks,
 * the back end (a DPDK net_vhost port) maps it and answers. No protocol features are negotiated, so rings start enabled and only
 * GET_FEATURES is answered. Everything is little-endian. The ring structs themselves are the kernel's <linux/virtio_ring.h>.
 */
#ifndef NR_IO_VHOST_USER_H
#define NR_IO_VHOST_USER_H

#include <assert.h>
#include <stdint.h>

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the rings are little-endian");

/* Requests, front end to back end. */
enum nr_vhost_request {
    NR_VHOST_GET_FEATURES = 1,   /* answered with `number` */
    NR_VHOST_SET_FEATURES = 2,   /* `number` */
    NR_VHOST_SET_OWNER = 3,      /* no payload */
    NR_VHOST_SET_MEM_TABLE = 5,  /* `memory`, with its descriptor */
    NR_VHOST_SET_VRING_NUM = 8,  /* `ring`: descriptors */
    NR_VHOST_SET_VRING_ADDR = 9, /* `address` */
    NR_VHOST_SET_VRING_BASE = 10, /* `ring`: index of the first descriptor to be used */
    NR_VHOST_SET_VRING_KICK = 12, /* `number`: the ring, with the eventfd that wakes the back end; the ring starts */
    NR_VHOST_SET_VRING_CALL = 13, /* `number`: the ring, with the eventfd that wakes the front end */
};

/* Bits of `flags`. */
#define NR_VHOST_VERSION 1u
#define NR_VHOST_VERSION_MASK 3u
#define NR_VHOST_REPLY 4u

/* Bits of the features. */
#define NR_VIRTIO_NET_MRG_RXBUF (1ull << 15) /* a received frame may fill several buffers */
#define NR_VIRTIO_VERSION_1 (1ull << 32)
#define NR_VIRTIO_IN_ORDER (1ull << 35) /* buffers come back in the order in which they were offered */

/* The rings of a port with one queue pair, named as the front end sees them. */
enum { NR_VHOST_RX, NR_VHOST_TX, NR_VHOST_RINGS };

struct nr_vhost_ring {
    uint32_t index; /* NR_VHOST_RX or NR_VHOST_TX */
    uint32_t value;
};

/* Addresses of one ring's parts, as user addresses of the memory table. */
struct nr_vhost_address {
    uint32_t index; /* NR_VHOST_RX or NR_VHOST_TX */
    uint32_t flags; /* 0 */
    uint64_t descriptors;
    uint64_t used;
    uint64_t available;
    uint64_t log; /* 0 */
};

/* A memory table of one region. */
struct nr_vhost_memory {
    uint32_t regions; /* 1 */
    uint32_t padding;
    uint64_t guest_address; /* what descriptors count in */
    uint64_t size;          /* bytes */
    uint64_t user_address;  /* what nr_vhost_address counts in */
    uint64_t offset;        /* of the region in its file, bytes */
};

#define NR_VHOST_HEADER 12 /* bytes before the payload */

struct nr_vhost_message {
    uint32_t request; /* enum nr_vhost_request */
    uint32_t flags;
    uint32_t size; /* of the payload, bytes */
    union {
        uint64_t number;
        struct nr_vhost_ring ring;
        struct nr_vhost_address address;
        struct nr_vhost_memory memory;
    } payload;
} __attribute__((packed));

static_assert(sizeof(struct nr_vhost_message) == NR_VHOST_HEADER + 40, "vhost-user message");

/* Before every frame in a buffer. */
struct nr_virtio_header {
    uint8_t flags;        /* 0: checksums are complete */
    uint8_t gso_type;     /* 0: one frame */
    uint16_t header_size; /* 0 */
    uint16_t gso_size;    /* 0 */
    uint16_t checksum_start;
    uint16_t checksum_offset;
    uint16_t buffers; /* that the frame fills, receiving; 0 sending */
};

static_assert(sizeof(struct nr_virtio_header) == 12, "virtio-net header of VERSION_1");

#endif
