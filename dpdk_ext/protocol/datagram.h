/* A UDP payload and whom it comes from or goes to: all that the protocol and packet I/O share. */
#ifndef NR_PROTOCOL_DATAGRAM_H
#define NR_PROTOCOL_DATAGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* Opaque to the protocol: address, port, and what packet I/O needs to answer (a MAC on Ethernet ports). */
struct nr_peer {
    uint8_t bytes[32];
    uint8_t length;
};

static inline bool nr_peer_equal(const struct nr_peer *a, const struct nr_peer *b)
{
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

enum { NR_RX_CHECKSUM_VERIFIED = 1 }; /* the UDP checksum was there and right */

struct nr_rx {
    const uint8_t *data; /* valid until the next receive */
    uint32_t length;     /* bytes */
    uint32_t flags;      /* NR_RX_* */
    struct nr_peer peer;
};

/* Bytes in the slab that leave without being copied first; `token` goes back through the `sent` callback. */
struct nr_segment {
    const void *base;
    uint32_t length; /* bytes */
    uint64_t token;
};

enum { NR_TX_SEGMENTS = 4 };

struct nr_tx {
    struct nr_peer peer;
    const uint8_t *data; /* own bytes */
    uint16_t length;     /* of `data`, bytes */
    uint16_t segments;   /* used */
    struct nr_segment segment[NR_TX_SEGMENTS];
};

/* Where the state machines put what they have to send. The owner (a loop, a simulator) provides the buffers and `flush`, which
 * sends or takes away everything so far and sets count to 0. */
struct nr_outbox {
    struct nr_tx *tx;    /* [capacity]; tx[i].data points to i * stride of `arena` */
    uint8_t *arena;      /* capacity * stride bytes */
    uint32_t stride;     /* bytes, >= NR_MAX_DATAGRAM */
    uint32_t capacity;
    uint32_t count;      /* datagrams ready */
    void (*flush)(struct nr_outbox *outbox);
    void *context;
};

/* The buffer of the next datagram, flushing first when full. It counts only after nr_outbox_push. */
static inline uint8_t *nr_outbox_place(struct nr_outbox *outbox)
{
    if (outbox->count == outbox->capacity)
        outbox->flush(outbox);
    return outbox->arena + (size_t)outbox->count * outbox->stride;
}

static inline void nr_outbox_push(struct nr_outbox *outbox, const struct nr_peer *peer, uint16_t length)
{
    struct nr_tx *tx = &outbox->tx[outbox->count];
    tx->peer = *peer;
    tx->data = outbox->arena + (size_t)outbox->count * outbox->stride;
    tx->length = length;
    tx->segments = 0;
    outbox->count++;
}

#endif
