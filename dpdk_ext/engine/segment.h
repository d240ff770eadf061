/* Bytes that leave from where they lie. A datagram is built of copied bytes and of references to longer runs within the slab's
 * steps; each such reference holds its step until it is dropped. */
#ifndef NR_ENGINE_SEGMENT_H
#define NR_ENGINE_SEGMENT_H

#include <stdint.h>

/* NR_TOKEN_NONE: the sender's own bytes, copied, with nothing to drop. Others name a step of a store: nr_step_sent drops the
 * reference. */
#define NR_TOKEN_NONE 0

struct nr_segment {
    const void *base;
    uint32_t length; /* bytes */
    uint64_t token;
};

/* Bytes in the order of a datagram: those before the first segment, then the segments. The copied ones lie one behind the other in
 * `own`, whichever of them they are in. */
struct nr_pieces {
    uint8_t *own;               /* room for all bytes, as any may have to be copied */
    uint32_t length;            /* copied, bytes */
    uint32_t front;             /* of these, before the first segment */
    uint32_t least;             /* runs of a step of at least so many bytes become references */
    uint32_t room;              /* of `segment` */
    uint32_t count;             /* segments */
    struct nr_segment *segment; /* [room] */
};

/* The next `length` bytes are the caller's to write. A run of copied bytes after a reference is a segment of its own; whoever adds
 * a reference leaves room for that. */
static inline uint8_t *nr_pieces_copied(struct nr_pieces *pieces, uint32_t length)
{
    uint8_t *at = pieces->own + pieces->length;

    pieces->length += length;
    if (pieces->count == 0) {
        pieces->front += length;
    } else if (pieces->segment[pieces->count - 1].token == NR_TOKEN_NONE) {
        pieces->segment[pieces->count - 1].length += length;
    } else {
        pieces->segment[pieces->count++] = (struct nr_segment){.base = at, .length = length, .token = NR_TOKEN_NONE};
    }
    return at;
}

#endif
