/* The replay behind the protocol: requests of the protocol client for every call, driven as drive.h says. */
#include "drive.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "../io/udp.h"
#include "../protocol/wire.h"
#include "update.h"

enum {
    TAG_BITS = 40,         /* of an item's number in its tag; the actor's id stands above */
    LEAST_IN_FLIGHT = 4,   /* steps: one call of an actor must fit */
    KEPT_LOSSES = 4096,    /* not taken by anybody; further ones are only counted */
    OPEN_PARTS = 8,        /* of a sample; the parts of larger ones are committed as they come, for the session's slots */
};

/* NR_OK, or why nothing will ever come. NR_PENDING is between two sessions. */
static int fatal(const struct nr_network *network)
{
    int status = nr_client_status(network->client);

    return status == NR_PENDING ? NR_OK : status;
}

static void called(struct nr_network *network, uint64_t now)
{
    network->called = network->active = now;
}

/* ---- Actors ---- */

static uint32_t network_places(const struct nr_store_config *store)
{
    return store->window + store->in_flight;
}

static struct nr_actor *actor_of(struct nr_network *network, uint64_t tag)
{
    struct nr_actor *lists[2] = {network->replay.actors, network->dead};

    for (int i = 0; i < 2; i++) {
        for (struct nr_actor *actor = lists[i]; actor != NULL; actor = actor->next) {
            if (((actor->id ^ tag >> TAG_BITS) & ((1u << (64 - TAG_BITS)) - 1)) == 0)
                return actor;
        }
    }
    return NULL;
}

static struct nr_actor *actor_with(struct nr_network *network, uint32_t stream)
{
    struct nr_actor *lists[2] = {network->replay.actors, network->dead};

    for (int i = 0; i < 2; i++) {
        for (struct nr_actor *actor = lists[i]; actor != NULL; actor = actor->next) {
            for (uint32_t r = 0; r < actor->streams; r++) {
                if (actor->stream[r] == stream)
                    return actor;
            }
        }
    }
    return NULL;
}

/* Frees the closed actors whose steps are not needed any more. */
static void bury(struct nr_network *network)
{
    struct nr_actor **link = &network->dead;

    while (*link != NULL) {
        struct nr_actor *actor = *link;
        uint32_t r = 0;

        while (r < actor->streams && nr_client_stream_done(network->client, actor->stream[r]))
            r++;
        if (r < actor->streams) {
            link = &actor->next;
            continue;
        }
        *link = actor->next;
        nr_actor_free(actor);
    }
}

static int network_actor_open(struct nr_actor *actor)
{
    struct nr_network *network = nr_network_of(actor->replay);
    const struct nr_store_config *store = &actor->replay->layout->config.stores[actor->store];
    int status = fatal(network);

    if (status != NR_OK)
        return status;
    if (store->in_flight < LEAST_IN_FLIGHT)
        return NR_BAD_CONFIG;
    bury(network); /* before the client gives their streams' numbers to others */
    called(network, nr_clock());
    for (uint32_t r = 0; r < actor->streams; r++) {
        struct nr_client_stream_config config = {.store = actor->store,
                                                 .ring = actor->history.ring,
                                                 .steps = nr_history_step(&actor->history, r, 0),
                                                 .stride = actor->history.stride};

        status = getrandom(config.id, sizeof(config.id), 0) == sizeof(config.id) ? NR_OK : NR_SYSTEM;
        if (status == NR_OK) {
            actor->stream[r] = nr_client_stream_add(network->client, &config);
            status = actor->stream[r] == UINT32_MAX ? NR_NO_MEMORY : NR_OK;
        }
        if (status != NR_OK) {
            while (r-- > 0)
                nr_client_stream_end(network->client, actor->stream[r]);
            return status;
        }
    }
    nr_drive_send(network, network->called);
    return NR_OK;
}

static bool network_actor_close(struct nr_actor *actor)
{
    struct nr_network *network = nr_network_of(actor->replay);
    uint64_t now = nr_clock();

    if (atomic_load(&actor->replay->closed)) /* nothing is sent any more */
        return true;
    for (uint32_t r = 0; r < actor->streams; r++)
        nr_client_stream_end(network->client, actor->stream[r]);
    actor->next = network->dead;
    network->dead = actor;
    called(network, now);
    nr_drive_send(network, now);
    bury(network);
    return false;
}

/* Steps of the stream below `end` to the client. */
static int push_steps(struct nr_actor *actor, uint32_t stream, uint64_t end)
{
    struct nr_client *client = nr_network_of(actor->replay)->client;

    for (uint64_t number; (number = nr_client_stream_next(client, actor->stream[stream])) < end;) {
        int status = nr_client_step(client, actor->stream[stream], nr_history_total(&actor->history, stream, number));

        if (status != NR_OK)
            return status;
    }
    return NR_OK;
}

/* Without memory the rest stays for the next push, and counts against the stream's room. */
static void push_all(struct nr_actor *actor)
{
    struct nr_client *client = nr_network_of(actor->replay)->client;

    for (; actor->head < actor->committed; actor->head++) {
        struct nr_formed *formed = nr_actor_item(actor, actor->head);
        uint32_t stream = formed->row;
        uint64_t tag = actor->id << TAG_BITS | (actor->head & ((UINT64_C(1) << TAG_BITS) - 1));

        formed->item.columns = formed->columns;
        if (push_steps(actor, stream, formed->item.first_step + formed->item.steps) != NR_OK ||
            nr_client_item(client, actor->stream[stream], actor->formers->former[formed->former].config.table, &formed->item,
                           tag) != NR_OK)
            return;
    }
    for (uint32_t r = 0; r < actor->streams; r++) {
        if (push_steps(actor, r, nr_actor_end_of(actor, r)) != NR_OK)
            return;
    }
}

static void network_push(struct nr_actor *actor, uint64_t now)
{
    struct nr_network *network = nr_network_of(actor->replay);

    called(network, now);
    push_all(actor);
    if (network->outstanding == 0 || !nr_drive_step(network, now))
        nr_drive_send(network, now);
}

static int network_room(const struct nr_actor *actor, uint32_t stream, uint32_t steps)
{
    const struct nr_network *network = nr_network_of(actor->replay);
    uint32_t number = actor->stream[stream];
    int status = fatal(network);

    if (status == NR_OK)
        status = nr_client_stream_status(network->client, number);
    if (status != NR_OK && status != NR_PENDING)
        return status;

    uint64_t waiting = actor->episodes[stream].next - nr_client_stream_next(network->client, number);

    return waiting + steps <= nr_client_stream_room(network->client, number) ? NR_OK : NR_PENDING;
}

/* ---- What the client has to tell ---- */

static void take_decided(struct nr_network *network)
{
    struct nr_decided decided[32];
    struct nr_actor *actor = NULL;
    uint32_t count;

    while ((count = nr_client_decided(network->client, 32, decided)) != 0) {
        for (uint32_t i = 0; i < count; i++) {
            uint64_t tag = decided[i].tag;

            if (actor == NULL || (actor->id & ((1u << (64 - TAG_BITS)) - 1)) != tag >> TAG_BITS)
                actor = actor_of(network, tag);
            if (actor == NULL)
                continue;

            uint64_t mask = (UINT64_C(1) << TAG_BITS) - 1;

            nr_actor_decide(actor, actor->decided + ((tag - actor->decided) & mask), decided[i].status, decided[i].key);
        }
    }
}

static void take_losses(struct nr_network *network)
{
    struct nr_client_loss lost[16];
    uint32_t count;

    while ((count = nr_client_losses(network->client, 16, lost)) != 0) {
        for (uint32_t i = 0; i < count; i++) {
            struct nr_actor *actor = actor_with(network, lost[i].number);

            if (actor != NULL) {
                actor->counters.lost += lost[i].items;
                actor->counters.streams_replaced += lost[i].replaced;
            }
            if (lost[i].items == 0 || network->loss_count == KEPT_LOSSES)
                continue;
            if (network->losses == NULL)
                network->losses = malloc(KEPT_LOSSES * sizeof(*network->losses));
            if (network->losses == NULL)
                continue;

            struct nr_loss *loss = &network->losses[network->loss_count++];

            memcpy(loss->stream, lost[i].stream, sizeof(loss->stream));
            loss->first_item = lost[i].first_item;
            loss->items = lost[i].items;
            loss->incarnation = lost[i].incarnation;
        }
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
    blocked->unreachable = network->io->counters.unreachable != network->unreachable;
    blocked->outstanding = view.outstanding;
    blocked->credits = view.credits;
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
    counters->smoothed_round_trip_ns = view.smoothed_round_trip;
    counters->least_round_trip_ns = view.least_round_trip;
    counters->reconnects = view.sessions > 1 ? view.sessions - 1 : 0;
    counters->incarnation = view.incarnation;
    counters->window = view.window;
    counters->credits = view.credits;
    counters->max_datagram = view.max_datagram;
}

/* ---- Samples ---- */

static void unlink_pending(struct nr_network *network, struct nr_sample *sample)
{
    struct nr_sample **link = &network->pending;

    while (*link != sample)
        link = &(*link)->waiting;
    *link = sample->waiting;
    if (*link == NULL)
        network->last_pending = link;
}

/* Takes up what its requests have come to. */
static void look_at(struct nr_sample *sample)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = NR_OK;

    for (uint32_t i = sample->done; i < sample->parts; i++) {
        struct nr_sample_part *part = &sample->part[i];

        if (part->whole)
            continue;

        int part_status = nr_request_status(part->request);

        if (part_status == NR_OK) {
            nr_request_draw(part->request, &part->head);
            part->whole = 1;
            if (sample->parts > OPEN_PARTS) {
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

void nr_network_progress(struct nr_network *network)
{
    struct nr_client_view view;

    take_decided(network);
    take_losses(network);
    if (network->dead != NULL)
        bury(network);
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
        look_at(sample);
    }
}

static void settle_parts(struct nr_sample *sample, bool taken, uint64_t now)
{
    for (uint32_t i = 0; i < sample->parts; i++) {
        if (sample->part[i].request != NULL)
            nr_client_settle(nr_network_of(sample->replay)->client, sample->part[i].request, taken, now);
        sample->part[i].request = NULL;
    }
}

static int network_sample_start(struct nr_sample *sample, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = fatal(network);

    for (uint32_t i = 0; i < sample->parts && status == NR_OK; i++) {
        struct nr_sample_part *part = &sample->part[i];

        part->request = nr_client_sample(network->client, sample->table, part->count,
                                         sample->rows + (size_t)i * NR_SAMPLE_PART * sample->row_bytes, now);
        if (part->request == NULL)
            status = NR_NO_MEMORY;
    }
    if (status != NR_OK) {
        settle_parts(sample, false, now);
        return status;
    }
    sample->waiting = NULL;
    *network->last_pending = sample;
    network->last_pending = &sample->waiting;
    called(network, now);
    nr_drive_send(network, now);
    return NR_OK;
}

static int network_sample_poll(struct nr_sample *sample, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);
    int status = fatal(network);

    (void)now;
    if (status != NR_OK)
        return status;
    look_at(sample);
    return sample->status;
}

static void network_sample_end(struct nr_sample *sample, bool taken, uint64_t now)
{
    struct nr_network *network = nr_network_of(sample->replay);

    if (sample->status == NR_PENDING)
        unlink_pending(network, sample);
    settle_parts(sample, taken, now);
    called(network, now);
    if (!atomic_load_explicit(&sample->replay->closed, memory_order_relaxed))
        nr_drive_send(network, now);
}

/* ---- Operations ---- */

static bool add_request(struct nr_operation *operation, struct nr_request *request)
{
    if (request == NULL)
        return false;
    operation->request[operation->requests++] = request;
    return true;
}

static bool room_for(struct nr_operation *operation, uint32_t requests)
{
    if (operation->request_room < requests) {
        struct nr_request **larger = realloc(operation->request, requests * sizeof(struct nr_request *));

        if (larger == NULL)
            return false;
        operation->request = larger;
        operation->request_room = requests;
    }
    return true;
}

static bool request_updates(struct nr_client *client, struct nr_operation *operation, uint64_t now)
{
    struct nr_update_call *call = &operation->update;

    if (!room_for(operation, (call->distinct + NR_UPDATE_KEYS - 1) / NR_UPDATE_KEYS))
        return false;
    for (uint32_t first = 0; first < call->distinct; first += NR_UPDATE_KEYS) {
        uint32_t count = call->distinct - first < NR_UPDATE_KEYS ? call->distinct - first : NR_UPDATE_KEYS;

        if (!add_request(operation, nr_client_update(client, call->table, count, call->keys + first, call->priorities + first,
                                                     call->distinct_outcome + first, now)))
            return false;
    }
    return true;
}

static bool request_all(struct nr_client *client, struct nr_operation *operation, uint64_t now)
{
    const struct nr_publish_call *publish = &operation->publish;

    if (operation->kind == NR_UPDATE)
        return request_updates(client, operation, now);
    if (!room_for(operation, 1))
        return false;
    switch (operation->kind) {
    case NR_PUBLISH:
        return add_request(operation,
                           nr_client_publish(client, publish->set, publish->bytes, publish->length, publish->expect, now));
    case NR_FETCH:
        return add_request(operation, nr_client_fetch(client, operation->fetch.set, operation->fetch.newer_than, now));
    case NR_TABLES:
        return add_request(operation, nr_client_tables(client, now));
    default:
        return add_request(operation, nr_client_ping(client, operation->ping.payload_bytes, now));
    }
}

static int finish_fetch(struct nr_operation *operation)
{
    struct nr_fetch_call *call = &operation->fetch;
    struct nr_fetched *fetched = call->fetched;

    fetched->version = nr_request_version(operation->request[0]);
    fetched->data = nr_request_take(operation->request[0], &fetched->length);
    if (fetched->version <= call->newer_than) {
        free(fetched->data);
        fetched->data = NULL;
        fetched->length = 0;
    } else if (fetched->data == NULL) { /* an empty publication */
        fetched->data = malloc(1);
        if (fetched->data == NULL)
            return NR_NO_MEMORY;
    }
    return NR_OK;
}

static int finish(struct nr_operation *operation)
{
    uint64_t bytes;
    uint8_t *message;

    switch (operation->kind) {
    case NR_UPDATE:
        nr_update_finish(&operation->update);
        return NR_OK;
    case NR_PUBLISH:
        *operation->publish.version = nr_request_version(operation->request[0]);
        return NR_OK;
    case NR_FETCH:
        return finish_fetch(operation);
    case NR_TABLES:
        message = nr_request_take(operation->request[0], &bytes);
        if (bytes > operation->tables.capacity * sizeof(struct nr_table_info))
            bytes = operation->tables.capacity * sizeof(struct nr_table_info);
        if (bytes != 0)
            memcpy(operation->tables.tables, message, bytes);
        free(message);
        return NR_OK;
    default:
        nr_request_ping(operation->request[0], &operation->ping.ping->round_trip_ns, &operation->ping.ping->server_ns);
        return NR_OK;
    }
}

static int network_operation_poll(struct nr_operation *operation, uint64_t now)
{
    int status = fatal(nr_network_of(operation->replay));

    (void)now;
    if (status != NR_OK)
        return status;
    if (operation->kind == NR_FLUSH)
        return operation->flush.actor->decided >= operation->flush.target ? NR_OK : NR_PENDING;
    for (uint32_t i = 0; i < operation->requests; i++) {
        int request = nr_request_status(operation->request[i]);

        if (request == NR_PENDING) {
            nr_request_wait(operation->request[i], &operation->wait);
            return NR_PENDING;
        }
        if (status == NR_OK)
            status = request;
    }
    return status == NR_OK ? finish(operation) : status;
}

static int network_operation_start(struct nr_operation *operation, uint64_t now)
{
    struct nr_network *network = nr_network_of(operation->replay);
    int status = fatal(network);

    if (status != NR_OK)
        return status;
    called(network, now);
    if (operation->kind == NR_FLUSH) {
        if (operation->flush.actor->decided >= operation->flush.target)
            return NR_OK;
        push_all(operation->flush.actor);
        nr_client_flush(network->client);
    } else if (!request_all(network->client, operation, now)) {
        return NR_NO_MEMORY;
    }
    nr_drive_send(network, now);
    return network_operation_poll(operation, now);
}

static void network_operation_end(struct nr_operation *operation)
{
    for (uint32_t i = 0; i < operation->requests; i++)
        nr_request_free(nr_network_of(operation->replay)->client, operation->request[i]);
    operation->requests = 0;
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
        network_operation_end(operation);
    for (struct nr_sample *sample = network->replay.samples; sample != NULL; sample = sample->all)
        settle_parts(sample, false, 0);
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
    .places = network_places,
    .actor_open = network_actor_open,
    .actor_close = network_actor_close,
    .room = network_room,
    .push = network_push,
    .sample_start = network_sample_start,
    .sample_poll = network_sample_poll,
    .sample_end = network_sample_end,
    .operation_start = network_operation_start,
    .operation_poll = network_operation_poll,
    .operation_end = network_operation_end,
    .blocked = network_blocked,
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

struct nr_replay *nr_replay_udp(const char *host, uint16_t port, const struct nr_connect_options *options, int *status)
{
    struct nr_udp_config config = {.host = host, .port = port};
    int error;
    struct nr_packet_io *io = nr_udp_connect(&config, &error);
    struct nr_network *network;

    if (io == NULL) {
        *status = error == -ENOENT || error == -EAGAIN || error == -EINVAL ? NR_BAD_ADDRESS
                  : error == -ENOMEM                                       ? NR_NO_MEMORY
                                                                           : NR_SYSTEM;
        return NULL;
    }
    network = calloc(1, sizeof(*network));
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
    called(network, nr_clock());
    nr_drive_send(network, network->called);
    pthread_mutex_unlock(&network->replay.mutex);
    return &network->replay;
}
