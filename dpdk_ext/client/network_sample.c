/* Samples over the network: a request of the protocol client for every part. */
#include "network.h"

/* Parts of a sample that may stand open, fetched ahead or waited for. Those of larger ones are committed as they come, because a
 * session has so many slots only. */
enum { OPEN_PARTS = 8, URGENT_PARTS = 3 };

static void unlink_pending(struct nr_network *network, struct nr_sample *sample)
{
    struct nr_sample **link = &network->pending;

    while (*link != sample)
        link = &(*link)->waiting;
    *link = sample->waiting;
    if (*link == NULL)
        network->last_pending = link;
}

void nr_network_look_at(struct nr_sample *sample)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = NR_OK;

    if (sample->status != NR_PENDING)
        return;
    for (uint32_t i = sample->done; i < sample->parts; i++) {
        struct nr_sample_part *part = &sample->part[i];

        if (part->whole)
            continue;

        int part_status = nr_request_status(part->request);

        if (part_status == NR_OK) {
            nr_request_draw(part->request, &part->head);
            part->whole = 1;
            if (sample->keys != NULL) { /* nothing is drawn: the lease ends by itself */
                nr_request_free(network->client, part->request);
                part->request = NULL;
            } else if (sample->parts > (sample->urgent ? URGENT_PARTS : OPEN_PARTS)) {
                nr_client_settle(network->client, part->request, true, network->active);
                part->request = NULL;
            }
        } else if (part_status != NR_PENDING) {
            status = part_status;
            break;
        } else if (status == NR_OK) {
            status = NR_PENDING;
            nr_request_wait(part->request, &sample->wait);
        }
    }
    while (sample->done < sample->parts && sample->part[sample->done].whole)
        sample->done++;
    if (status != NR_PENDING) {
        sample->status = status;
        unlink_pending(network, sample);
    }
}

void nr_network_settle_parts(struct nr_sample *sample, bool taken, uint64_t now)
{
    for (uint32_t i = 0; i < sample->parts; i++) {
        if (sample->part[i].request != NULL && sample->keys != NULL)
            nr_request_free(nr_network_of(sample->replay)->client, sample->part[i].request);
        else if (sample->part[i].request != NULL)
            nr_client_settle(nr_network_of(sample->replay)->client, sample->part[i].request, taken, now);
        sample->part[i].request = NULL;
    }
}

int nr_network_sample_start(struct nr_sample *sample, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = nr_network_fatal(network);

    sample->urgent = false;
    for (uint32_t i = 0; i < sample->parts && status == NR_OK; i++) {
        struct nr_sample_part *part = &sample->part[i];

        uint8_t *rows = sample->rows + (size_t)i * sample->part_rows * sample->row_bytes;

        part->request = sample->keys != NULL ? nr_client_get(network->client, sample->table, part->count,
                                                             sample->keys + (size_t)i * sample->part_rows, rows, now)
                                             : nr_client_sample(network->client, sample->table, part->count, rows, now);
        if (part->request == NULL)
            status = NR_NO_MEMORY;
    }
    if (status != NR_OK) {
        nr_network_settle_parts(sample, false, now);
        return status;
    }
    sample->waiting = NULL;
    *network->last_pending = sample;
    network->last_pending = &sample->waiting;
    nr_network_called(network, now);
    nr_drive_send(network, now);
    return NR_OK;
}

int nr_network_sample_poll(struct nr_sample *sample, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = nr_network_fatal(network);

    if (status != NR_OK)
        return status;
    if (!sample->urgent) {
        sample->urgent = true;
        for (uint32_t i = 0; i < sample->parts; i++)
            if (sample->part[i].request != NULL && !sample->part[i].whole)
                nr_client_urge(network->client, sample->part[i].request);
        if (sample->status == NR_PENDING)
            nr_drive_send(network, now);
    }
    nr_network_look_at(sample);
    return sample->status;
}

void nr_network_sample_end(struct nr_sample *sample, bool taken, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);

    if (sample->status == NR_PENDING)
        unlink_pending(network, sample);
    nr_network_settle_parts(sample, taken, now);
    nr_network_called(network, now);
    if (!atomic_load_explicit(&sample->replay->closed, memory_order_relaxed))
        nr_drive_send(network, now);
}
