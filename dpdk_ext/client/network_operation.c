/* Operations over the network: their requests, and what becomes of the answers. */
#include <stdlib.h>
#include <string.h>

#include "../protocol/wire.h"
#include "network.h"
#include "update.h"

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

        struct nr_request *request =
            call->priorities == NULL
                ? nr_client_delete(client, call->table, count, call->keys + first, call->distinct_outcome + first, now)
                : nr_client_update(client, call->table, count, call->keys + first, call->priorities + first,
                                   call->distinct_outcome + first, now);

        if (!add_request(operation, request))
            return false;
    }
    return true;
}

static bool request_all(struct nr_client *client, struct nr_operation *operation, uint64_t now)
{
    const struct nr_publish_call *publish = &operation->publish;

    if (operation->kind == NR_UPDATE || operation->kind == NR_DELETE)
        return request_updates(client, operation, now);
    if (!room_for(operation, 1))
        return false;
    switch (operation->kind) {
    case NR_CONFIGURE:
        return add_request(operation, nr_client_configure(client, operation->admin.table, &operation->admin.change, now));
    case NR_RESET:
        return add_request(operation, nr_client_reset(client, operation->admin.table, now));
    case NR_PUBLISH:
        return add_request(operation,
                           nr_client_publish(client, publish->set, publish->bytes, publish->length, publish->expect, now));
    case NR_FETCH:
        return add_request(operation, nr_client_fetch(client, operation->fetch.set, operation->fetch.newer_than, now));
    case NR_TABLES:
        return add_request(operation, nr_client_tables(client, now));
    case NR_LOOK:
        return add_request(operation, nr_client_histograms(client, operation->look.table, operation->look.histograms, now));
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
    case NR_DELETE:
        nr_update_finish(&operation->update);
        return NR_OK;
    case NR_CONFIGURE:
        nr_request_limits(operation->request[0], operation->admin.limits);
        return NR_OK;
    case NR_RESET:
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
    case NR_LOOK:
        return NR_OK;
    default:
        nr_request_ping(operation->request[0], &operation->ping.ping->round_trip_ns, &operation->ping.ping->server_ns);
        return NR_OK;
    }
}

/* A flush is over when every item is decided, and fails where the server has no place for a stream: its items were not stored. */
static int poll_flush(struct nr_operation *operation)
{
    const struct nr_actor *actor = operation->flush.actor;
    const struct nr_client *client = nr_network_of(operation->replay)->client;

    nr_client_insert_wait(client, &operation->wait);
    if (actor->decided < operation->flush.target)
        return NR_PENDING;
    for (uint32_t r = 0; r < actor->streams; r++) {
        int status = nr_client_stream_status(client, actor->stream[r]);

        if (status != NR_OK && status != NR_PENDING)
            return status;
    }
    return NR_OK;
}

int nr_network_operation_poll(struct nr_operation *operation, uint64_t now)
{
    int status = nr_network_fatal(nr_network_of(operation->replay));

    (void)now;
    if (status != NR_OK)
        return status;
    if (operation->kind == NR_FLUSH)
        return poll_flush(operation);
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

int nr_network_operation_start(struct nr_operation *operation, uint64_t now)
{
    struct nr_network *network = nr_network_of(operation->replay);
    int status = nr_network_fatal(network);

    if (status != NR_OK)
        return status;
    nr_network_called(network, now);
    if (operation->kind == NR_FLUSH) {
        if (operation->flush.actor->decided >= operation->flush.target)
            return poll_flush(operation);
        nr_network_push_all(operation->flush.actor);
        nr_client_flush(network->client);
    } else if (!request_all(network->client, operation, now)) {
        return NR_NO_MEMORY;
    }
    nr_drive_send(network, now);
    return nr_network_operation_poll(operation, now);
}

void nr_network_operation_end(struct nr_operation *operation)
{
    for (uint32_t i = 0; i < operation->requests; i++)
        nr_request_free(nr_network_of(operation->replay)->client, operation->request[i]);
    operation->requests = 0;
}
