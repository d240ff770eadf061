/* Parameter sets: two buffers each, one to read and one to fill. */
#include <string.h>

#include "engine/state.h"

enum {
    PATIENCE = 1000000000, /* ns: how long a silent publisher keeps its turn, and readers keep the older buffer at most */
    READING = 50000000,    /* ns after its last read for which a buffer counts as being read: a reader asks again much sooner */
};

static bool within(uint64_t period, uint64_t then, uint64_t now)
{
    return now - then < period;
}

int nr_parameters_begin(struct nr_engine *engine, uint32_t set_index, uint64_t writer, uint64_t bytes, uint64_t expect,
                        uint64_t now, struct nr_wait *wait)
{
    nr_wait_clear(wait, UINT32_MAX);
    if (set_index >= engine->set_count)
        return NR_NO_SET;
    if (writer == 0)
        return NR_MALFORMED;
    struct nr_set *set = &engine->sets[set_index];
    if (bytes > set->room)
        return NR_BAD_LENGTH;
    if (expect != UINT64_MAX && expect != set->buffers[set->current].version)
        return NR_CONFLICT;
    if (set->writer != 0 && set->writer != writer && within(PATIENCE, set->wrote_at, now))
        return nr_wait_for(wait, NR_WAIT_TURN, set->written, set->buffers[!set->current].length);
    if (set->buffers[!set->current].was_read && within(READING, set->buffers[!set->current].read_at, now) &&
        !(set->wanted && !within(PATIENCE, set->wanted_at, now))) {
        /* Readers who go on and on keep it from the publisher for as long as those who have just begun. */
        if (!set->wanted)
            set->wanted_at = now;
        set->wanted = true;
        return nr_wait_for(wait, NR_WAIT_TURN, 0, 1);
    }
    set->buffers[!set->current].version = 0;
    set->buffers[!set->current].was_read = false;
    set->buffers[!set->current].length = bytes;
    set->wanted = false;
    set->writer = writer;
    set->wrote_at = now;
    set->written = 0;
    return NR_OK;
}

int nr_parameters_write(struct nr_engine *engine, uint32_t set_index, uint64_t writer, uint64_t offset, const void *bytes,
                        uint32_t length, uint64_t now)
{
    if (set_index >= engine->set_count)
        return NR_NO_SET;
    struct nr_set *set = &engine->sets[set_index];
    if (writer == 0 || writer != set->writer)
        return NR_RESTART;
    uint64_t total = set->buffers[!set->current].length;
    if (offset > total || length > total - offset || length > total - set->written)
        return NR_BAD_LENGTH;
    if (length > 0)
        memcpy(set->buffers[!set->current].bytes + offset, bytes, length);
    set->written += length;
    set->wrote_at = now;
    return NR_OK;
}

int nr_parameters_finish(struct nr_engine *engine, uint32_t set_index, uint64_t writer, uint64_t *version)
{
    *version = 0;
    if (set_index >= engine->set_count)
        return NR_NO_SET;
    struct nr_set *set = &engine->sets[set_index];
    if (writer == 0 || writer != set->writer)
        return NR_RESTART;
    if (set->written != set->buffers[!set->current].length)
        return NR_PENDING;
    *version = engine->start_version + ++set->counter;
    set->current = !set->current;
    set->buffers[set->current].version = *version;
    set->writer = 0;
    return NR_OK;
}

int nr_parameters_version(const struct nr_engine *engine, uint32_t set_index, uint64_t *version, uint64_t *bytes)
{
    *version = *bytes = 0;
    if (set_index >= engine->set_count)
        return NR_NO_SET;
    const struct nr_set *set = &engine->sets[set_index];
    *version = set->buffers[set->current].version;
    *bytes = set->buffers[set->current].length;
    return NR_OK;
}

int nr_parameters_read(struct nr_engine *engine, uint32_t set_index, uint64_t version, uint64_t offset, void *target,
                       uint32_t length, uint64_t now)
{
    if (set_index >= engine->set_count)
        return NR_NO_SET;
    struct nr_set *set = &engine->sets[set_index];
    for (int i = 0; i < 2; i++) {
        if (version == 0 || set->buffers[i].version != version)
            continue;
        if (offset > set->buffers[i].length || length > set->buffers[i].length - offset)
            return NR_BAD_LENGTH;
        if (length > 0)
            memcpy(target, set->buffers[i].bytes + offset, length);
        set->buffers[i].read_at = now;
        set->buffers[i].was_read = true;
        return NR_OK;
    }
    return NR_RESTART;
}
