#include "engine/stream.h"

#include <string.h>

#include "engine/random.h"
#include "engine/space.h"
#include "engine/state.h"

void nr_streams_init(struct nr_streams *streams, struct nr_arena *arena, uint32_t count, const uint64_t secret[2])
{
    uint32_t size = 1;

    streams->count = count;
    streams->place_bits = 1;
    while (((uint64_t)1 << streams->place_bits) <= count)
        streams->place_bits++;
    while (size < count)
        size *= 2;
    streams->mask = size - 1;
    streams->secret[0] = secret[0];
    streams->secret[1] = secret[1];
    streams->undecided = nr_arena_take(arena, count, sizeof(uint64_t));
    streams->places = nr_arena_take(arena, count, sizeof(struct nr_stream));
    streams->hash = nr_arena_take(arena, size, sizeof(uint32_t));
    streams->buckets = nr_arena_take(arena, size, sizeof(uint32_t));
    if (streams->hash != NULL) {
        memset(streams->hash, 0xff, size * sizeof(uint32_t));
        memset(streams->buckets, 0xff, size * sizeof(uint32_t));
    }
}

void nr_store_init(struct nr_store *store, struct nr_arena *arena, const struct nr_store_config *config, uint32_t first)
{
    *store = (struct nr_store){
        .span = config->window - 1 + config->in_flight,
        .window = config->window,
        .first = first,
        .streams = config->streams,
        .free = NR_NONE,
        .idle_oldest = NR_NONE,
        .idle_newest = NR_NONE,
        .first_table = NR_NONE,
    };
    store->rings = nr_arena_take(arena, (uint64_t)config->streams * store->span, sizeof(uint32_t));
    nr_slab_init(&store->slab, arena, config->steps, config->step_bytes, config->observation_bytes);
}

static uint32_t hash_of(const struct nr_streams *streams, uint32_t store, const uint8_t id[16])
{
    uint64_t half[2];

    memcpy(half, id, sizeof(half));
    return (uint32_t)nr_random_mix(nr_random_mix(half[0] ^ streams->secret[0]) + (half[1] ^ streams->secret[1]) + store) &
           streams->mask;
}

/* ---- The two kinds of list a stream can hang in ---- */

static uint32_t *list_head(struct nr_streams *streams, struct nr_store *store, uint32_t owner)
{
    return owner != 0 ? &streams->buckets[nr_random_mix(owner) & streams->mask] : &store->idle_oldest;
}

static void list_add(struct nr_streams *streams, struct nr_store *store, struct nr_stream *stream)
{
    uint32_t place = (uint32_t)(stream - streams->places);

    if (stream->owner != 0) {
        uint32_t *head = list_head(streams, store, stream->owner);

        stream->before = NR_NONE;
        stream->after = *head;
        if (*head != NR_NONE)
            streams->places[*head].before = place;
        *head = place;
    } else {
        stream->before = store->idle_newest;
        stream->after = NR_NONE;
        if (store->idle_newest != NR_NONE)
            streams->places[store->idle_newest].after = place;
        else
            store->idle_oldest = place;
        store->idle_newest = place;
    }
}

static void list_remove(struct nr_streams *streams, struct nr_store *store, struct nr_stream *stream)
{
    if (stream->before != NR_NONE)
        streams->places[stream->before].after = stream->after;
    else
        *list_head(streams, store, stream->owner) = stream->after;
    if (stream->after != NR_NONE)
        streams->places[stream->after].before = stream->before;
    else if (stream->owner == 0)
        store->idle_newest = stream->before;
}

static void stream_end(struct nr_streams *streams, struct nr_store *store, struct nr_stream *stream)
{
    uint32_t place = (uint32_t)(stream - streams->places);
    uint32_t *ring = nr_stream_ring(store, streams, stream);
    uint32_t *link = &streams->hash[hash_of(streams, stream->store, stream->id)];

    for (uint32_t i = 0; i < store->span; i++) {
        if (ring[i] != NR_NONE)
            nr_slab_drop_ringed(&store->slab, ring[i]);
    }
    while (*link != place)
        link = &streams->places[*link].hash_next;
    *link = stream->hash_next;
    list_remove(streams, store, stream);
    stream->open = 0;
    stream->owner = 0;
    stream->generation = (stream->generation + 1) & (UINT32_MAX >> streams->place_bits);
    stream->after = store->free;
    store->free = place;
    store->open--;
}

bool nr_streams_drop_idle(struct nr_streams *streams, struct nr_store *store)
{
    if (store->idle_oldest == NR_NONE)
        return false;
    stream_end(streams, store, &streams->places[store->idle_oldest]);
    return true;
}

/* ---- Opening and leaving ---- */

static void position_of(const struct nr_streams *streams, const struct nr_store *store, const struct nr_stream *stream,
                        struct nr_stream_position *position)
{
    const uint32_t *ring = nr_stream_ring(store, streams, stream);
    uint64_t number = stream->head > 0 ? nr_stream_tail(store, stream) : 0;

    while (number < stream->head) {
        uint32_t step = ring[number % store->span];

        if (step == NR_NONE || !nr_slab_whole(&store->slab, step))
            break;
        number++;
    }
    position->handle = stream->generation << streams->place_bits | (uint32_t)(stream - streams->places);
    position->next_step = number;
    position->next_item = stream->next_item;
}

/* A place for a stream that is not there. NULL: none is free, and no idle stream makes room. */
static struct nr_stream *stream_new(struct nr_streams *streams, struct nr_store *store, uint32_t store_index, const uint8_t id[16],
                                    uint32_t owner)
{
    if (store->open == store->streams && !nr_streams_drop_idle(streams, store))
        return NULL;
    uint32_t *first = &streams->hash[hash_of(streams, store_index, id)];
    uint32_t place = store->free;

    if (place != NR_NONE) {
        store->free = streams->places[place].after;
    } else {
        place = store->first + store->fresh++;
        streams->places[place].generation =
            (uint32_t)nr_random_mix(streams->secret[0] + place) & (UINT32_MAX >> streams->place_bits);
    }
    struct nr_stream *stream = &streams->places[place];
    memcpy(stream->id, id, 16);
    stream->head = stream->low = stream->next_item = 0;
    stream->owner = owner;
    stream->store = (uint16_t)store_index;
    stream->open = 1;
    stream->hash_next = *first;
    *first = place;
    list_add(streams, store, stream);
    store->open++;
    memset(nr_stream_ring(store, streams, stream), 0xff, store->span * sizeof(uint32_t));
    if (streams->cut)
        streams->undecided[place] = NR_UNDECIDED_NEVER;
    return stream;
}

struct nr_stream *nr_stream_restore(struct nr_engine *engine, uint32_t store_index, const uint8_t id[16], bool *twice)
{
    struct nr_streams *streams = &engine->streams;

    *twice = false;
    for (uint32_t place = streams->hash[hash_of(streams, store_index, id)]; place != NR_NONE;
         place = streams->places[place].hash_next) {
        if (streams->places[place].store == store_index && memcmp(streams->places[place].id, id, 16) == 0) {
            *twice = true;
            return NULL;
        }
    }
    struct nr_stream *stream = stream_new(streams, &engine->stores[store_index], store_index, id, 0);
    if (stream != NULL)
        stream->open = NR_STREAM_RESTORED;
    return stream;
}

int nr_stream_open(struct nr_engine *engine, uint32_t store_index, const uint8_t id[16], uint32_t owner,
                   struct nr_stream_position *position)
{
    struct nr_streams *streams = &engine->streams;

    memset(position, 0, sizeof(*position));
    if (store_index >= engine->store_count)
        return NR_NO_STORE;
    if (owner == 0)
        return NR_MALFORMED;
    struct nr_store *store = &engine->stores[store_index];

    for (uint32_t place = streams->hash[hash_of(streams, store_index, id)]; place != NR_NONE;
         place = streams->places[place].hash_next) {
        struct nr_stream *stream = &streams->places[place];

        if (stream->store != store_index || memcmp(stream->id, id, 16) != 0)
            continue;
        if (stream->owner != 0 && stream->owner != owner)
            return NR_STREAM_OWNED;
        if (stream->owner == 0) {
            list_remove(streams, store, stream);
            stream->owner = owner;
            list_add(streams, store, stream);
        }
        position->known = 1;
        position_of(streams, store, stream, position);
        return NR_OK;
    }

    struct nr_stream *stream = stream_new(streams, store, store_index, id, owner);
    if (stream == NULL)
        return NR_TOO_MANY;
    position_of(streams, store, stream, position);
    return NR_OK;
}

int nr_stream_close(struct nr_engine *engine, uint32_t handle, uint32_t owner)
{
    struct nr_stream *stream = nr_streams_find(&engine->streams, handle, owner);

    if (stream == NULL || owner == 0)
        return NR_STREAM_GONE;
    stream_end(&engine->streams, &engine->stores[stream->store], stream);
    return NR_OK;
}

static void drop_unfinished(const struct nr_streams *streams, struct nr_store *store, const struct nr_stream *stream)
{
    uint32_t *ring = nr_stream_ring(store, streams, stream);

    for (uint32_t i = 0; i < store->span; i++) {
        if (ring[i] != NR_NONE && !nr_slab_whole(&store->slab, ring[i])) {
            nr_slab_drop_ringed(&store->slab, ring[i]);
            ring[i] = NR_NONE;
        }
    }
}

void nr_stream_release_owner(struct nr_engine *engine, uint32_t owner)
{
    struct nr_streams *streams = &engine->streams;

    if (owner == 0 || streams->count == 0)
        return;
    uint32_t place = *list_head(streams, NULL, owner);
    while (place != NR_NONE) {
        struct nr_stream *stream = &streams->places[place];

        place = stream->after;
        if (stream->owner != owner)
            continue;
        struct nr_store *store = &engine->stores[stream->store];
        drop_unfinished(streams, store, stream);
        list_remove(streams, store, stream);
        stream->owner = 0;
        list_add(streams, store, stream);
    }
}

/* ---- Steps ---- */

int nr_stream_has(const struct nr_streams *streams, const struct nr_store *store, const struct nr_stream *stream, uint64_t first,
                  uint32_t count, uint32_t *whole)
{
    const uint32_t *ring = nr_stream_ring(store, streams, stream);
    uint32_t found = 0;

    *whole = 0;
    if (first >= NR_MAX_NUMBER)
        return NR_BAD_WINDOW;
    if (stream->head == 0)
        return NR_WAIT_STEPS;
    /* What left the ring never comes back; what is further ahead than a step may be cannot come yet, and no item may name it. */
    if (first + store->span < stream->head || first + count - 1 > stream->head - 1 + store->span)
        return NR_BAD_WINDOW;
    uint32_t at = (uint32_t)(first % store->span);
    for (uint32_t i = 0; i < count && first + i < stream->head; i++) {
        found += ring[at] != NR_NONE && nr_slab_whole(&store->slab, ring[at]);
        at = at + 1 < store->span ? at + 1 : 0;
    }
    *whole = found;
    return found == count ? NR_OK : NR_WAIT_STEPS;
}

/* Moves the head on, so that the ring has room for a step; what it overwrites helps to make a place in the slab. Without a place
 * nothing changes. */
static bool advance(struct nr_engine *engine, struct nr_store *store, struct nr_stream *stream, uint32_t *ring, uint64_t head,
                    uint64_t now)
{
    struct nr_slab *slab = &store->slab;

    for (uint64_t number = stream->head; number < head; number++) {
        if (ring[number % store->span] != NR_NONE)
            nr_slab_drop_ringed(slab, ring[number % store->span]);
    }
    if (!nr_space_for_step(engine, store, now)) {
        /* No place is free, so none of these was freed: the ring can have them back. */
        for (uint64_t number = stream->head; number < head; number++) {
            if (ring[number % store->span] != NR_NONE)
                nr_slab_hold_ringed(slab, ring[number % store->span]);
        }
        return false;
    }
    for (; stream->head < head; stream->head++)
        ring[stream->head % store->span] = NR_NONE;
    return true;
}

int nr_step_write(struct nr_engine *engine, uint32_t handle, uint32_t owner, uint64_t number, uint32_t total, uint32_t offset,
                  const void *bytes, uint32_t length, uint64_t now, struct nr_wait *wait)
{
    nr_wait_clear(wait, UINT32_MAX);
    struct nr_stream *stream = nr_streams_find(&engine->streams, handle, owner);
    if (stream == NULL || owner == 0)
        return NR_STREAM_GONE;

    struct nr_store *store = &engine->stores[stream->store];
    struct nr_slab *slab = &store->slab;
    if (total != slab->step_bytes && total != slab->observation_bytes)
        return NR_BAD_LENGTH;
    if (length == 0 || offset >= total || length > total - offset)
        return NR_BAD_LENGTH;

    /* Numbers within `span` of the highest, which is head - 1. */
    uint32_t *ring = nr_stream_ring(store, &engine->streams, stream);
    uint64_t head = number + 1;
    if (number >= NR_MAX_NUMBER)
        return NR_BAD_WINDOW;
    if (stream->head > 0) {
        if (head + store->span <= stream->head)
            return NR_DUPLICATE;
        if (head > stream->head + store->span) {
            if (stream->open != NR_STREAM_RESTORED)
                return NR_BAD_WINDOW;
            /* What came after the checkpoint is lost; the client goes on from its last window. */
            for (uint32_t i = 0; i < store->span; i++) {
                if (ring[i] != NR_NONE)
                    nr_slab_drop_ringed(slab, ring[i]);
                ring[i] = NR_NONE;
            }
            stream->head = 0;
        }
    }

    uint32_t *cell = &ring[number % store->span];
    if (number < stream->head && *cell != NR_NONE) {
        if (nr_slab_whole(slab, *cell))
            return NR_DUPLICATE;
        const struct nr_step *step = &slab->steps[*cell];
        bool is_short = (step->state & NR_STEP_SHORT) != 0;
        if (is_short != (total < slab->step_bytes) || length > (step->state & NR_STEP_MISSING))
            return NR_BAD_LENGTH;
    } else {
        bool first = stream->head == 0;

        if (first ? !nr_space_for_step(engine, store, now) : !advance(engine, store, stream, ring, head, now))
            return nr_wait_for(wait, NR_WAIT_SPACE, 0, 1);
        if (first)
            stream->head = head;
        if (first || number < stream->low)
            stream->low = number;
        *cell = nr_slab_take(slab, total);
        stream->open = 1;
    }
    memcpy(nr_slab_step(slab, *cell) + offset, bytes, length);
    slab->steps[*cell].state -= length;
    return NR_OK;
}
