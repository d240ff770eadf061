#include "client_internal.h"

static uint32_t hello_bytes(const struct nr_client *client)
{
    uint32_t bytes = client->config.max_datagram;
    uint32_t step = client->hello_tries / 2; /* two tries at each size */
    if (step >= 1 && bytes > NR_ETHERNET_DATAGRAM)
        bytes = NR_ETHERNET_DATAGRAM;
    if (step >= 2)
        bytes = NR_MIN_DATAGRAM;
    if (step >= 3) /* the server may just have been away: begin again */
        bytes = client->hello_tries % 3 ? client->config.max_datagram : NR_MIN_DATAGRAM;
    return bytes;
}

void nr_session_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    if (client->state != NR_CLIENT_HELLO || now < client->hello_at)
        return;
    if (client->nonce == 0)
        client->nonce = nr_client_random(client) | 1;
    uint32_t bytes = hello_bytes(client);
    uint8_t *datagram = nr_outbox_place(outbox);
    memset(datagram, 0, bytes);
    struct nr_wire_hello hello = {
        .nonce = client->nonce, .version_min = NR_VERSION, .version_max = NR_VERSION, .max_datagram = client->config.max_datagram};
    memcpy(datagram + sizeof(struct nr_header), &hello, sizeof(hello));
    struct nr_header header = {.operation = NR_OP_HELLO,
                               .slot = NR_STATELESS_SLOT,
                               .request = 1,
                               .fragments = 1,
                               .length = (uint16_t)(bytes - sizeof(struct nr_header))};
    nr_emit(client, datagram, &header, now, outbox);
    uint64_t interval = (uint64_t)NR_FIRST_TIMEOUT << (client->hello_tries < 4 ? client->hello_tries : 4);
    client->hello_at = now + (interval < NR_MOST_TIMEOUT ? interval : NR_MOST_TIMEOUT);
    client->hello_tries++;
}

void nr_session_fatal(struct nr_client *client, int status)
{
    client->state = NR_CLIENT_FATAL;
    client->fatal = status;
    client->progress++;
}

void nr_session_welcome(struct nr_client *client, const struct nr_header *header, const uint8_t *body, uint64_t now)
{
    if (client->state != NR_CLIENT_HELLO)
        return;
    if (header->status != NR_OK) {
        if (header->status == NR_TOO_MANY && client->sessions > 0) {
            client->heard = now;
            return; /* a place was taken meanwhile: one may come free */
        }
        if (header->status >= NR_MALFORMED && header->status != NR_NO_SESSION)
            nr_session_fatal(client, header->status);
        return;
    }
    struct nr_wire_welcome welcome;
    size_t before = sizeof(struct nr_wire_stamps) + sizeof(struct nr_wire_state);
    if (header->length < before + sizeof(welcome))
        return;
    memcpy(&welcome, body + before, sizeof(welcome));
    if (welcome.nonce != client->nonce || welcome.session == 0 || welcome.max_datagram < NR_MIN_DATAGRAM ||
        welcome.max_datagram > client->config.max_datagram)
        return;
    bool renewed = client->incarnation != 0 && client->incarnation != welcome.incarnation;
    client->session = welcome.session;
    client->max_datagram = welcome.max_datagram;
    client->credits = welcome.credits ? welcome.credits : 1;
    client->incarnation = welcome.incarnation;
    client->sessions++;
    client->nonce = 0;
    client->hello_tries = 0;
    client->heard = now;
    if (client->spec_of != client->incarnation) {
        client->state = NR_CLIENT_SPEC;
        struct nr_request *request = nr_request_new(client, &nr_call_spec);
        if (request == NULL) {
            nr_session_fatal(client, NR_NO_MEMORY);
            return;
        }
        request->internal = true;
        nr_request_begin(client, request);
    } else {
        client->state = NR_CLIENT_READY;
    }
    if (renewed)
        nr_publish_again(client);
    client->progress++;
}

/* Everything begins anew in the next session; the order of unfinished requests stays. */
void nr_session_lost(struct nr_client *client, uint64_t now)
{
    struct nr_request *unfinished[NR_SLOTS + 1];
    uint32_t count = 0;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        struct nr_request *request = client->slots[s].request;
        if (request == NULL)
            continue;
        nr_request_unsend(client, request);
        request->slot = NR_NO_SLOT;
        if (request->status != NR_PENDING)
            continue; /* a draw whose rows are all here: nothing of it is left at the server */
        if (request->call == &nr_call_insert || request->call == &nr_call_streams || request->call == &nr_call_spec)
            nr_request_release(client, request);
        else
            unfinished[count++] = request;
    }
    memset(client->slots, 0, sizeof(client->slots));
    memset(client->active, 0, sizeof(client->active));
    struct nr_request *stateless = client->stateless;
    client->stateless = NULL;
    for (struct nr_request *request = stateless, *next; request != NULL; request = next) {
        next = request->next;
        nr_request_unsend(client, request);
        if (request->internal)
            nr_request_release(client, request);
        else
            nr_request_begin(client, request);
    }
    nr_window_reset(client);

    /* Oldest first, before those that never had a slot. */
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t j = i; j > 0 && unfinished[j - 1]->age > unfinished[j]->age; j--) {
            struct nr_request *swap = unfinished[j];
            unfinished[j] = unfinished[j - 1];
            unfinished[j - 1] = swap;
        }
    while (count > 0) {
        struct nr_request *request = unfinished[--count];
        struct nr_queue *queue = &client->queue[request->call->class];
        request->taken = 0;
        request->waiting = request->ask_state = false;
        request->repeats = 0;
        request->hold = 0;
        if (request->call == &nr_call_publish)
            request->base = 0;
        if (request->call == &nr_call_sample)
            request->collected = false;
        if (request->call->pull)
            nr_pull_reset(client, request);
        request->next = queue->first;
        if (queue->first == NULL)
            queue->last = &request->next;
        queue->first = request;
    }
    nr_inserts_reset(client);
    nr_streams_reset(client);
    client->session = 0;
    client->counter = 0;
    client->state = NR_CLIENT_HELLO;
    client->nonce = 0;
    client->hello_tries = 0;
    client->hello_at = now;
    client->progress++;
}
