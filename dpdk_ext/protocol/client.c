#include <stdio.h>

#include "client_internal.h"

struct nr_client *nr_client_create(const struct nr_client_config *config, int *status)
{
    if (config->max_datagram < NR_MIN_DATAGRAM || config->max_datagram > NR_MAX_DATAGRAM) {
        *status = NR_BAD_CONFIG;
        return NULL;
    }
    struct nr_client *client = calloc(1, sizeof(*client));
    if (client == NULL) {
        *status = NR_NO_MEMORY;
        return NULL;
    }
    client->config = *config;
    client->random = config->seed;
    client->max_datagram = config->max_datagram;
    client->credits = 1;
    for (int class = 0; class < NR_CLASSES; class++)
        client->queue[class].last = &client->queue[class].first;
    nr_window_reset(client);
    *status = NR_OK;
    return client;
}

static void destroy_list(struct nr_request *list, bool release)
{
    for (struct nr_request *next; list != NULL; list = next) {
        next = list->next;
        if (release) {
            nr_pull_free(list);
            if (list->call == &nr_call_publish && !list->internal)
                free(list->bytes);
        }
        free(list->pull.arrived);
        free(list);
    }
}

void nr_client_destroy(struct nr_client *client)
{
    if (client == NULL)
        return;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        struct nr_request *request = client->slots[s].request;
        if (request != NULL) {
            request->next = NULL;
            destroy_list(request, true);
        }
    }
    destroy_list(client->stateless, true);
    for (int class = 0; class < NR_CLASSES; class++)
        destroy_list(client->queue[class].first, true);
    destroy_list(client->free, false);
    for (uint32_t set = 0; set < NR_MAX_SETS; set++)
        free(client->saved[set].bytes);
    for (uint32_t s = 0; s < client->stream_count; s++)
        free(client->streams[s].partial);
    free(client->streams);
    free(client->losses);
    free(client->decided);
    free(client->log);
    free(client->stores);
    free(client->tables);
    free(client->spec);
    free(client);
}

int nr_client_layout(struct nr_client *client, const struct nr_engine_config *config)
{
    if (client->stores != NULL)
        return NR_OK;
    struct nr_store_config *stores = malloc((config->store_count + 1) * sizeof(*stores));
    struct nr_table_config *tables = malloc((config->table_count + 1) * sizeof(*tables));
    if (stores == NULL || tables == NULL) {
        free(stores);
        free(tables);
        return NR_NO_MEMORY;
    }
    memcpy(stores, config->stores, config->store_count * sizeof(*stores));
    memcpy(tables, config->tables, config->table_count * sizeof(*tables));
    client->stores = stores;
    client->tables = tables;
    client->store_count = config->store_count;
    client->table_count = config->table_count;
    return NR_OK;
}

static struct nr_request *request_of(struct nr_client *client, const struct nr_header *header)
{
    if (header->slot < NR_SLOTS) {
        struct nr_request *request = client->slots[header->slot].request;
        return request != NULL && request->number == header->request ? request : NULL;
    }
    for (struct nr_request *request = client->stateless; request != NULL; request = request->next)
        if (request->number == header->request)
            return request;
    return NULL;
}

void nr_client_receive(struct nr_client *client, const struct nr_rx *rx, uint64_t now)
{
    struct nr_header header;
    client->view.datagrams_received++;
    client->view.bytes_received += rx->length;
    if (rx->length < sizeof(header)) {
        client->view.ignored++;
        return;
    }
    memcpy(&header, rx->data, sizeof(header));
    const uint8_t *body = rx->data + sizeof(header);
    if (header.magic != NR_MAGIC || !(header.operation & NR_OP_RESPONSE) || header.length != rx->length - sizeof(header) ||
        client->state == NR_CLIENT_FATAL) {
        client->view.ignored++;
        return;
    }
    if (header.version != NR_VERSION) {
        if (header.status == NR_BAD_VERSION && client->state == NR_CLIENT_HELLO)
            nr_session_fatal(client, NR_BAD_VERSION);
        client->view.ignored++;
        return;
    }
    if (header.operation == (NR_OP_HELLO | NR_OP_RESPONSE)) {
        nr_session_welcome(client, &header, body, now);
        return;
    }
    if (client->state == NR_CLIENT_HELLO || header.session != client->session) {
        client->view.ignored++;
        return;
    }
    if (header.status == NR_NO_SESSION) {
        nr_session_lost(client, now);
        return;
    }
    if (header.length < sizeof(struct nr_wire_stamps)) {
        client->view.ignored++;
        return;
    }
    client->heard = now;
    if (header.credits != 0)
        client->credits = header.credits;
    struct nr_wire_stamps stamps;
    memcpy(&stamps, body, sizeof(stamps));
    uint64_t elapsed = nr_window_answered(client, &stamps, now);
    struct nr_request *request = request_of(client, &header);
    if (request == NULL) {
        client->view.ignored++; /* of a request that is over */
        return;
    }
    if (request->call != &nr_call_settle)
        nr_window_time(client, &stamps, request->first_sent, now);
    if (header.flags & NR_FLAG_DATA) {
        if (request->call->pull)
            nr_pull_data(client, request, &header, body + sizeof(stamps), header.length - (uint32_t)sizeof(stamps), now);
        return;
    }
    if (request->call == &nr_call_ping) {
        request->residence = stamps.residence;
        request->round_trip = elapsed;
    }
    nr_request_answer(client, request, &header, body, now);
}

void nr_client_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    if (client->state == NR_CLIENT_FATAL)
        return;
    if (client->state == NR_CLIENT_HELLO) {
        nr_session_send(client, now, outbox);
        return;
    }
    nr_requests_expire(client, now);
    if (client->state == NR_CLIENT_READY) {
        nr_keepalive(client, now);
        nr_settle_send(client, now);
        if (client->unopened != 0 && client->stores != NULL)
            nr_streams_open(client);
        if (client->unclosed != 0)
            nr_streams_close(client);
    }
    nr_requests_start(client, now);
    if (client->state == NR_CLIENT_READY && client->cursor.record != client->head)
        nr_inserts_build(client, now);
    nr_requests_transmit(client, now, outbox);
    nr_pulls_send(client, now, outbox);
}

uint64_t nr_client_wakeup(const struct nr_client *client, uint64_t now)
{
    if (client->state == NR_CLIENT_FATAL)
        return UINT64_MAX;
    if (client->state == NR_CLIENT_HELLO)
        return client->hello_at > now ? client->hello_at : now;
    uint64_t least = nr_requests_due(client, now);
    uint64_t settle = nr_settle_wakeup(client);
    least = settle < least ? settle : least;
    if (nr_keepalive_wanted(client) && client->stateless == NULL && client->heard + NR_KEEPALIVE < least)
        least = client->heard + NR_KEEPALIVE;
    return least > now ? least : now;
}

void nr_client_bye(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    if (client->state == NR_CLIENT_HELLO || client->state == NR_CLIENT_FATAL)
        return;
    nr_settle_last(client, now, outbox);
    struct nr_header header = {
        .operation = NR_OP_BYE, .slot = NR_STATELESS_SLOT, .request = ++client->stateless_number, .fragments = 1};
    nr_emit(client, nr_outbox_place(outbox), &header, now, outbox);
}

int nr_client_status(const struct nr_client *client)
{
    if (client->state == NR_CLIENT_FATAL)
        return client->fatal;
    return client->state == NR_CLIENT_READY ? NR_OK : NR_PENDING;
}

const char *nr_client_spec(const struct nr_client *client)
{
    return client->spec;
}

bool nr_client_busy(const struct nr_client *client)
{
    if (client->state == NR_CLIENT_FATAL)
        return false;
    if (client->state != NR_CLIENT_READY)
        return true; /* between two sessions: streams and parameters are to be taken up again */
    if (client->stateless != NULL || client->tail != client->head || client->unopened != 0 || client->unclosed != 0)
        return true;
    for (int class = 0; class < NR_CLASSES; class++)
        if (client->queue[class].first != NULL)
            return true;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_client_slot *slot = &client->slots[s];
        if ((slot->request != NULL && slot->request->status == NR_PENDING) || slot->due != 0 || slot->carried != 0)
            return true;
    }
    return nr_keepalive_wanted(client);
}

uint64_t nr_client_progress(const struct nr_client *client)
{
    return client->progress;
}

void nr_client_look(const struct nr_client *client, struct nr_client_view *view)
{
    *view = client->view;
    view->heard = client->heard;
    view->incarnation = client->incarnation;
    view->sessions = client->sessions;
    view->smoothed_round_trip = client->smoothed;
    view->least_round_trip = client->least;
    view->window = (uint32_t)client->window;
    view->credits = client->credits;
    view->outstanding = client->outstanding;
    view->max_datagram = client->max_datagram;
}

static uint32_t outstanding_of(const struct nr_request *request)
{
    uint32_t count = request->call->pull ? 0 : (uint32_t)__builtin_popcountll(request->inflight);
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++)
        count += request->pull.range[r].missing;
    return count;
}

int nr_client_audit(const struct nr_client *client, char *message, size_t size)
{
    uint32_t outstanding = 0, active[NR_CLASSES] = {0};
    for (const struct nr_request *request = client->stateless; request != NULL; request = request->next)
        outstanding += outstanding_of(request);
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_client_slot *slot = &client->slots[s];
        if (slot->request != NULL) {
            outstanding += outstanding_of(slot->request);
            active[slot->request->call->class]++;
        } else if (slot->settling) {
            active[NR_CLASS_SAMPLE]++;
        }
    }
    if (outstanding != client->outstanding) {
        snprintf(message, size, "outstanding is %u, its parts are %u", client->outstanding, outstanding);
        return NR_MALFORMED;
    }
    for (int class = 0; class < NR_CLASSES; class++)
        if (active[class] != client->active[class]) {
            snprintf(message, size, "class %d has %u slots, counts %u", class, active[class], client->active[class]);
            return NR_MALFORMED;
        }
    return NR_OK;
}

int nr_request_status(const struct nr_request *request)
{
    return request->status;
}

void nr_request_wait(const struct nr_request *request, struct nr_wait *wait)
{
    *wait = request->wait;
}

void nr_request_free(struct nr_client *client, struct nr_request *request)
{
    if (request->call == &nr_call_get && request->slot != NR_NO_SLOT) { /* its lease, if the server has granted it, is to end */
        client->slots[request->slot].done = NR_SETTLE_COMMIT;
        nr_settle_due(client, request->slot, NR_SETTLE_RELEASE, 0);
    }
    nr_request_detach(client, request);
    nr_request_release(client, request);
}
