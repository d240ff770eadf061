/* The replay behind the protocol: the object, and what it tells of itself. */
#include "network.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../io/udp.h"
#include "../io/vring.h"
#include "../protocol/wire.h"

void nr_network_progress(struct nr_network *network)
{
    struct nr_client_view view;

    nr_network_take_decided(network);
    nr_network_take_losses(network);
    if (network->dead != NULL)
        nr_network_bury(network);
    nr_client_look(network->client, &view);
    if (view.sessions != network->sessions) {
        if (network->sessions != 0) {
            for (struct nr_actor *actor = network->replay.actors; actor != NULL; actor = actor->next)
                actor->counters.reconnects += view.sessions - network->sessions;
        }
        network->sessions = view.sessions;
    }
    for (struct nr_sample *sample = network->pending, *next; sample != NULL; sample = next) {
        next = sample->waiting;
        nr_network_look_at(sample);
    }
}

static uint32_t network_losses(struct nr_replay *replay, uint32_t capacity, struct nr_loss *losses)
{
    struct nr_network *network = nr_network_of(replay);
    uint32_t count = network->loss_count < capacity ? network->loss_count : capacity;

    if (count == 0)
        return 0;
    memcpy(losses, network->losses, count * sizeof(*losses));
    network->loss_count -= count;
    memmove(network->losses, network->losses + count, network->loss_count * sizeof(*losses));
    return count;
}

static void network_blocked(struct nr_replay *replay, struct nr_blocked *blocked)
{
    struct nr_network *network = nr_network_of(replay);
    struct nr_client_view view;

    nr_client_look(network->client, &view);
    blocked->silent_ns = view.heard == 0 ? UINT64_MAX : nr_clock() - view.heard;
    if (network->io->counters.unreachable == network->unreachable)
        blocked->unreachable = 0;
    else
        blocked->unreachable = -network->io->counters.last_unreachable;
    blocked->outstanding = view.outstanding;
    blocked->credits = view.credits;
}

static void network_insert_wait(struct nr_replay *replay, struct nr_wait *wait)
{
    nr_client_insert_wait(nr_network_of(replay)->client, wait);
}

static void network_counters(struct nr_replay *replay, struct nr_replay_counters *counters)
{
    struct nr_client_view view;

    nr_client_look(nr_network_of(replay)->client, &view);
    counters->datagrams_sent = view.datagrams_sent;
    counters->datagrams_received = view.datagrams_received;
    counters->bytes_sent = view.bytes_sent;
    counters->bytes_received = view.bytes_received;
    counters->retransmissions = view.retransmissions;
    counters->round_trips = view.round_trips;
    counters->answers = view.answers;
    counters->answer_ns = view.answer_time;
    counters->serving_ns = view.serving_time;
    counters->smoothed_round_trip_ns = view.smoothed_round_trip;
    counters->least_round_trip_ns = view.least_round_trip;
    counters->reconnects = view.sessions > 1 ? view.sessions - 1 : 0;
    counters->incarnation = view.incarnation;
    counters->window = view.window;
    counters->credits = view.credits;
    counters->max_datagram = view.max_datagram;
}

/* ---- The object ---- */

static int network_ready(struct nr_replay *replay)
{
    return nr_client_status(nr_network_of(replay)->client);
}

static int network_layout(struct nr_replay *replay)
{
    return nr_client_layout(nr_network_of(replay)->client, &replay->layout->config);
}

static const char *network_spec(const struct nr_replay *replay)
{
    return nr_client_spec(nr_network_of(replay)->client);
}

static void network_close(struct nr_replay *replay)
{
    struct nr_network *network = nr_network_of(replay);

    nr_client_bye(network->client, nr_clock(), &network->outbox);
    network->outbox.flush(&network->outbox);
    nr_drive_wake(network);
}

static void network_free(struct nr_network *network)
{
    /* Finished requests are known to their holders only. */
    for (struct nr_operation *operation = network->replay.operations; operation != NULL; operation = operation->all)
        nr_network_operation_end(operation);
    for (struct nr_sample *sample = network->replay.samples; sample != NULL; sample = sample->all)
        nr_network_settle_parts(sample, false, 0);
    while (network->dead != NULL) {
        struct nr_actor *actor = network->dead;

        network->dead = actor->next;
        nr_actor_free(actor);
    }
    nr_client_destroy(network->client);
    free(network->losses);
    nr_replay_end(&network->replay);
    free(network);
}

static void network_destroy(struct nr_replay *replay)
{
    struct nr_network *network = nr_network_of(replay);

    nr_drive_close(network);
    network_free(network);
}

static const struct nr_backend network_backend = {
    .destroy = network_destroy,
    .close = network_close,
    .ready = network_ready,
    .layout = network_layout,
    .spec = network_spec,
    .wait = nr_drive_wait,
    .leave = nr_drive_leave,
    .places = nr_network_places,
    .actor_open = nr_network_actor_open,
    .actor_close = nr_network_actor_close,
    .room = nr_network_room,
    .push = nr_network_push,
    .sample_start = nr_network_sample_start,
    .sample_poll = nr_network_sample_poll,
    .sample_end = nr_network_sample_end,
    .operation_start = nr_network_operation_start,
    .operation_poll = nr_network_operation_poll,
    .operation_end = nr_network_operation_end,
    .blocked = network_blocked,
    .insert_wait = network_insert_wait,
    .losses = network_losses,
    .counters = network_counters,
};

static struct nr_client *make_client(const struct nr_connect_options *options, struct nr_packet_io *io, int *status)
{
    uint32_t path = nr_io_max_payload(io);
    struct nr_client_config config = {.max_datagram = options->max_datagram, .seed = options->seed};

    if (config.max_datagram == 0 || config.max_datagram > path)
        config.max_datagram = path;
    if (config.max_datagram < NR_MIN_DATAGRAM)
        config.max_datagram = NR_MIN_DATAGRAM;
    if (config.seed == 0 && getrandom(&config.seed, sizeof(config.seed), 0) != sizeof(config.seed)) {
        *status = NR_SYSTEM;
        return NULL;
    }
    return nr_client_create(&config, status);
}

struct nr_replay *nr_replay_over(struct nr_packet_io *io, const struct nr_connect_options *options, int *status)
{
    struct nr_network *network = calloc(1, sizeof(*network));

    *status = network == NULL ? NR_NO_MEMORY : nr_replay_begin(&network->replay, &network_backend);
    if (*status != NR_OK) {
        free(network);
        nr_io_close(io);
        return NULL;
    }
    network->last_pending = &network->pending;
    network->client = make_client(options, io, status);
    if (network->client != NULL)
        *status = nr_drive_open(network, io, options->poll == NR_POLL_BUSY);
    if (*status != NR_OK) {
        nr_io_close(io);
        network_free(network);
        return NULL;
    }
    pthread_mutex_lock(&network->replay.mutex);
    nr_network_called(network, nr_clock());
    nr_drive_send(network, network->called);
    pthread_mutex_unlock(&network->replay.mutex);
    return &network->replay;
}

struct nr_replay *nr_replay_udp(const char *host, uint16_t port, const struct nr_connect_options *options, int *status)
{
    int error;
    struct nr_packet_io *io = nr_udp_connect(&(struct nr_udp_config){.host = host, .port = port}, &error);

    if (io == NULL) {
        *status = error == -ENOENT || error == -EAGAIN || error == -EINVAL ? NR_BAD_ADDRESS
                  : error == -ENOMEM                                       ? NR_NO_MEMORY
                                                                           : NR_SYSTEM;
        return NULL;
    }
    return nr_replay_over(io, options, status);
}

struct nr_replay *nr_replay_vhost(const char *path, const struct nr_connect_options *options, int *status)
{
    int error;
    struct nr_packet_io *io = nr_vring_open(&(struct nr_vring_config){.path = path}, &error);

    if (io == NULL) {
        *status = error == -ENOMEM ? NR_NO_MEMORY : error == -EINVAL ? NR_BAD_ADDRESS : NR_SYSTEM;
        return NULL;
    }
    return nr_replay_over(io, options, status);
}
