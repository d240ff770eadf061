/* Samples: cut into parts, each one draw. */
#include <stdlib.h>
#include <string.h>

#include "runtime.h"

enum { MOST_PARTS = 1 << 12 };

static struct nr_sample *create(struct nr_replay *replay, uint32_t parts)
{
    size_t own = replay->backend->part_bytes;
    struct nr_sample *sample = calloc(1, sizeof(*sample) + parts * (sizeof(sample->part[0]) + own));

    if (sample == NULL)
        return NULL;
    for (uint32_t i = 0; i < parts; i++)
        sample->part[i].own = (uint8_t *)&sample->part[parts] + i * own;
    sample->replay = replay;
    sample->capacity = parts;
    sample->all = replay->samples;
    replay->samples = sample;
    return sample;
}

static struct nr_sample *take(struct nr_replay *replay, uint32_t parts)
{
    for (struct nr_sample **link = &replay->spare_samples; *link != NULL; link = &(*link)->next) {
        struct nr_sample *sample = *link;

        if (sample->capacity >= parts) {
            *link = sample->next;
            return sample;
        }
    }
    return create(replay, parts);
}

static void give(struct nr_sample *sample)
{
    sample->next = sample->replay->spare_samples;
    sample->replay->spare_samples = sample;
}

static int start(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, void *rows,
                 struct nr_sample **handle)
{
    uint32_t part_rows = NR_SAMPLE_PART, parts = 0;
    struct nr_sample *sample = NULL;
    int status = nr_enter(replay);

    *handle = NULL;
    if (status != NR_OK)
        return status;
    if (replay->layout == NULL)
        status = NR_BAD_CONFIG;
    else if (table >= replay->layout->config.table_count)
        status = NR_NO_TABLE;
    if (status == NR_OK) {
        uint32_t leases = replay->layout->config.tables[table].leases;

        if (keys != NULL)
            part_rows = leases < NR_GET_PART ? leases : NR_GET_PART;
        parts = count / part_rows + (count % part_rows != 0);
    }
    if (status != NR_OK)
        ;
    else if (count == 0 || parts > MOST_PARTS)
        status = NR_BAD_COUNT;
    else if ((sample = take(replay, parts)) == NULL)
        status = NR_NO_MEMORY;
    if (status == NR_OK) {
        sample->rows = rows;
        sample->keys = keys;
        sample->part_rows = part_rows;
        sample->row_bytes = replay->layout->config.tables[table].row_bytes;
        sample->table = table;
        sample->count = count;
        sample->parts = parts;
        sample->done = 0;
        sample->status = NR_PENDING;
        memset(&sample->wait, 0, sizeof(sample->wait));
        for (uint32_t i = 0; i < parts; i++) {
            uint32_t first = i * part_rows;

            sample->part[i].count = count - first < part_rows ? count - first : part_rows;
            sample->part[i].whole = 0;
            sample->part[i].request = NULL;
        }
        status = replay->backend->sample_start(sample, nr_clock());
        if (status == NR_OK)
            *handle = sample;
        else
            give(sample);
    }
    nr_leave(replay);
    return status;
}

int nr_sample_start(struct nr_replay *replay, uint32_t table, uint32_t count, void *rows, struct nr_sample **handle)
{
    return start(replay, table, count, NULL, rows, handle);
}

int nr_get_start(struct nr_replay *replay, uint32_t table, uint32_t count, const uint64_t *keys, void *rows,
                 struct nr_sample **handle)
{
    return start(replay, table, count, keys, rows, handle);
}

static int poll_sample(void *what, uint64_t now)
{
    struct nr_sample *sample = what;

    return sample->status != NR_PENDING ? sample->status : sample->replay->backend->sample_poll(sample, now);
}

int nr_sample_wait(struct nr_sample *sample, uint64_t wait_ns)
{
    struct nr_replay *replay = sample->replay;
    int status = nr_enter(replay);

    if (status != NR_OK)
        return status;
    status = sample->status != NR_PENDING ? sample->status : nr_await(replay, poll_sample, sample, wait_ns);
    nr_leave(replay);
    return status;
}

uint32_t nr_sample_heads(const struct nr_sample *sample, struct nr_draw_head *heads)
{
    if (sample->replay->generation != nr_fork_generation())
        return 0;
    nr_lock(sample->replay);
    for (uint32_t i = 0; i < sample->parts; i++)
        heads[i] = sample->part[i].head;
    pthread_mutex_unlock(&sample->replay->mutex);
    return sample->parts;
}

void nr_sample_settle(struct nr_sample *sample, int taken)
{
    struct nr_replay *replay = sample->replay;

    if (replay->generation != nr_fork_generation())
        return;
    nr_lock(replay);
    replay->backend->sample_end(sample, taken != 0 && sample->status == NR_OK, nr_clock());
    give(sample);
    nr_leave(replay);
}
