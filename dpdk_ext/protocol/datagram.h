/* A UDP payload and whom it comes from or goes to: all that the protocol and packet I/O share. */
#ifndef NR_PROTOCOL_DATAGRAM_H
#define NR_PROTOCOL_DATAGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "../engine/segment.h"

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

/* Enough for the end of one frame, a whole one and the start of the next, with small columns between two of them: what 8,904 B of
 * rows of 7,056 B frames have. */
enum { NR_TX_SEGMENTS = 4 };

/* A datagram is `data`, then the segments in order. Segments with a token lie in the slab, may be sent from there, and their tokens
 * go back through the `sent` callback. Those with NR_TOKEN_NONE are own bytes as `data` is: whoever sends copies them before he
 * returns. */
struct nr_tx {
    struct nr_peer peer;
    const uint8_t *data; /* own bytes */
    uint16_t length;     /* of `data`, bytes */
    uint16_t segments;   /* used */
    struct nr_segment segment[NR_TX_SEGMENTS];
};

/* Bytes of the whole datagram. */
static inline uint32_t nr_tx_length(const struct nr_tx *tx)
{
    uint32_t length = tx->length;

    for (uint32_t i = 0; i < tx->segments; i++)
        length += tx->segment[i].length;
    return length;
}

/* Writes the whole datagram to `target` and returns its bytes. */
static inline uint32_t nr_tx_copy(const struct nr_tx *tx, uint8_t *target)
{
    uint32_t length = tx->length;

    if (length > 0)
        memcpy(target, tx->data, length);
    for (uint32_t i = 0; i < tx->segments; i++) {
        memcpy(target + length, tx->segment[i].base, tx->segment[i].length);
        length += tx->segment[i].length;
    }
    return length;
}

/* Where the state machines put what they have to send. The owner (a loop, a simulator) provides the buffers and `flush`, which
 * sends or takes away everything so far and sets count to 0; the segments' tokens are then its to give back. */
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

/* The next datagram's segments, to be filled before nr_outbox_push_segments. Only after nr_outbox_place. */
static inline struct nr_segment *nr_outbox_segments(struct nr_outbox *outbox)
{
    return outbox->tx[outbox->count].segment;
}

/* `length` bytes of the place, then so many segments. */
static inline void nr_outbox_push_segments(struct nr_outbox *outbox, const struct nr_peer *peer, uint16_t length, uint16_t segments)
{
    struct nr_tx *tx = &outbox->tx[outbox->count];
    tx->peer = *peer;
    tx->data = outbox->arena + (size_t)outbox->count * outbox->stride;
    tx->length = length;
    tx->segments = segments;
    outbox->count++;
}

static inline void nr_outbox_push(struct nr_outbox *outbox, const struct nr_peer *peer, uint16_t length)
{
    nr_outbox_push_segments(outbox, peer, length, 0);
}

#endif
