/*
 * Streams: who sends steps, how far, and the ring of the last steps that items may still name.
 *
 * The places of all stores' streams lie in one array, a store's side by side; a handle is a place and the generation of its use.
 * A stream is found by its id through a hash table with a secret, since clients choose the ids. Owned streams hang in a bucket of
 * their owner, the others in their store's list of idle streams, least recently used first.
 */
#ifndef NR_ENGINE_STREAM_H
#define NR_ENGINE_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/slab.h"

/* Step and item numbers stay below this, so that sums with them never wrap. */
#define NR_MAX_NUMBER ((uint64_t)1 << 63)

/* nr_stream.open: what comes next may lie further ahead than a ring reaches, as steps after the checkpoint are lost. */
#define NR_STREAM_RESTORED 2

/* nr_streams.undecided */
#define NR_UNDECIDED_NOW UINT64_MAX         /* nothing was decided since the checkpoint's cut */
#define NR_UNDECIDED_NEVER (UINT64_MAX - 1) /* the stream was opened after it */

/* One cache line. */
struct nr_stream {
    uint8_t id[16];      /* as the client gave it */
    uint64_t head;       /* highest step number seen, plus 1 so that 0 can mean that none was */
    uint64_t low;        /* lowest step number seen; only when head > 0 */
    uint64_t next_item;  /* lowest item number not yet decided */
    uint32_t generation; /* of the place's use */
    uint32_t owner;      /* session, or 0 */
    uint32_t hash_next;  /* place of the next stream with the same hash, or NR_NONE */
    uint32_t before;     /* place: the neighbour in the owner's bucket or in the list of idle streams, or NR_NONE */
    uint32_t after;      /* the same; of a free place the next free one */
    uint16_t store;      /* index */
    uint16_t open;       /* 0: a free place; NR_STREAM_RESTORED: of a checkpoint, and no step has come since */
};

_Static_assert(sizeof(struct nr_stream) == NR_CACHE_LINE, "a stream is one cache line");

struct nr_streams {
    struct nr_stream *places; /* of all stores */
    uint32_t *hash;           /* first place by hash of store and id, or NR_NONE */
    uint32_t *buckets;        /* first place by owner, or NR_NONE */
    uint64_t *undecided;      /* by place: next_item at the running checkpoint's cut, or NR_UNDECIDED_* */
    bool cut;                 /* a checkpoint is running, and past its cut */
    uint64_t secret[2];       /* of the hash */
    uint32_t count;           /* places */
    uint32_t mask;            /* of the hash table and of the buckets, both of which have mask + 1 entries */
    uint32_t place_bits;      /* lower bits of a handle; the others are the generation */
};

/* A store: a slab and the streams that fill it. */
struct nr_store {
    struct nr_slab slab;
    uint32_t *rings;      /* `span` slab places for each stream place, step n at n % span; NR_NONE: not held */
    uint32_t span;        /* steps that a ring holds: window - 1 + in_flight */
    uint32_t window;      /* steps of the longest item */
    uint32_t first;       /* its first stream place */
    uint32_t streams;     /* its stream places */
    uint32_t fresh;       /* places from here on, counted from `first`, were never used */
    uint32_t free;        /* a place that was used and is free again, or NR_NONE */
    uint32_t idle_oldest; /* place of the stream without owner that was left first, or NR_NONE */
    uint32_t idle_newest; /* or NR_NONE */
    uint32_t open;        /* streams */
    uint32_t first_table; /* index of a table over it, or NR_NONE; the others follow by nr_table.next_of_store */
};

void nr_streams_init(struct nr_streams *streams, struct nr_arena *arena, uint32_t count, const uint64_t secret[2]);
void nr_store_init(struct nr_store *store, struct nr_arena *arena, const struct nr_store_config *config, uint32_t first);

/* The ring of a stream. */
static inline uint32_t *nr_stream_ring(const struct nr_store *store, const struct nr_streams *streams,
                                       const struct nr_stream *stream)
{
    return store->rings + (uint64_t)(stream - streams->places - store->first) * store->span;
}

/* The stream of a handle, if it is open and the owner's; else NULL. */
static inline struct nr_stream *nr_streams_find(const struct nr_streams *streams, uint32_t handle, uint32_t owner)
{
    uint32_t place = handle & ((1u << streams->place_bits) - 1);

    if (place >= streams->count)
        return NULL;
    struct nr_stream *stream = &streams->places[place];
    if (!stream->open || stream->generation != handle >> streams->place_bits || stream->owner != owner)
        return NULL;
    return stream;
}

/* The next item to be decided is `next` from now on. */
static inline void nr_stream_decide(struct nr_streams *streams, struct nr_stream *stream, uint64_t next)
{
    if (streams->cut && streams->undecided[stream - streams->places] == NR_UNDECIDED_NOW)
        streams->undecided[stream - streams->places] = stream->next_item;
    stream->next_item = next;
}

/* A stream of a checkpoint, without steps and owner; the least recently used idle one makes room. NULL: there is no place, or
 * *twice: it is there already. */
struct nr_stream *nr_stream_restore(struct nr_engine *engine, uint32_t store, const uint8_t id[16], bool *twice);

/* Lowest number that the ring of a stream with head > 0 can have. */
static inline uint64_t nr_stream_tail(const struct nr_store *store, const struct nr_stream *stream)
{
    uint64_t tail = stream->head > store->span ? stream->head - store->span : 0;

    return tail > stream->low ? tail : stream->low;
}

/* Ends the idle stream that was left first. False when the store has no idle stream. */
bool nr_streams_drop_idle(struct nr_streams *streams, struct nr_store *store);

/* Whether items can be made of steps [first, first + count), count >= 1: NR_OK; NR_WAIT_STEPS when some can still come, with the
 * number of those that are whole; NR_BAD_WINDOW. */
int nr_stream_has(const struct nr_streams *streams, const struct nr_store *store, const struct nr_stream *stream, uint64_t first,
                  uint32_t count, uint32_t *whole);

#endif
