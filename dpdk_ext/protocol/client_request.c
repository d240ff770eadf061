#include "client_internal.h"

/* A request's life: begun (in a queue, or in the stateless list) -> given a slot -> its fragments on their way (`inflight`) or
 * taken -> final. A timeout makes fragments neither, so that they are sent again; nothing but `taken` is ever remembered. */

struct nr_request *nr_request_new(struct nr_client *client, const struct nr_call *call)
{
    struct nr_request *request = client->free;
    if (request != NULL) {
        client->free = request->next;
        uint64_t *arrived = request->pull.arrived;
        uint32_t words = request->pull.words;
        memset(request, 0, sizeof(*request));
        request->pull.arrived = arrived;
        request->pull.words = words;
    } else {
        request = calloc(1, sizeof(*request));
        if (request == NULL)
            return NULL;
    }
    request->call = call;
    request->status = NR_PENDING;
    request->slot = NR_NO_SLOT;
    request->fragments = 1;
    request->wait.table = UINT32_MAX;
    return request;
}

void nr_request_release(struct nr_client *client, struct nr_request *request)
{
    nr_pull_free(request);
    if (request->call == &nr_call_publish && !request->internal)
        free(request->bytes);
    request->next = client->free;
    client->free = request;
}

void nr_request_begin(struct nr_client *client, struct nr_request *request)
{
    request->age = client->age++;
    request->taken = request->inflight = 0;
    request->repeats = 0;
    request->hold = 0;
    if (request->call->stateless) {
        request->slot = NR_STATELESS_SLOT;
        request->number = ++client->stateless_number;
        request->next = client->stateless;
        client->stateless = request;
        return;
    }
    struct nr_queue *queue = &client->queue[request->call->class];
    request->slot = NR_NO_SLOT;
    request->next = NULL;
    if (queue->first == NULL)
        queue->last = &queue->first;
    *queue->last = request;
    queue->last = &request->next;
}

void nr_request_unsend(struct nr_client *client, struct nr_request *request)
{
    if (request->call->pull) /* counts the datagrams that it wants, not the one that asks */
        nr_pull_unsend(client, request);
    else
        client->outstanding -= (uint32_t)__builtin_popcountll(request->inflight);
    request->inflight = 0;
}

static void unlink_from(struct nr_request **list, struct nr_request *request)
{
    for (; *list != NULL; list = &(*list)->next)
        if (*list == request) {
            *list = request->next;
            return;
        }
}

void nr_request_detach(struct nr_client *client, struct nr_request *request)
{
    nr_request_unsend(client, request);
    if (request->slot == NR_STATELESS_SLOT) {
        unlink_from(&client->stateless, request);
    } else if (request->slot != NR_NO_SLOT) {
        struct nr_client_slot *slot = &client->slots[request->slot];
        slot->request = NULL;
        if (!slot->settling)
            client->active[request->call->class]--;
    } else if (!request->call->stateless) {
        struct nr_queue *queue = &client->queue[request->call->class];
        for (struct nr_request **link = &queue->first; *link != NULL; link = &(*link)->next)
            if (*link == request) {
                *link = request->next;
                if (*link == NULL)
                    queue->last = link;
                break;
            }
    }
    request->slot = NR_NO_SLOT;
}

void nr_request_finish(struct nr_client *client, struct nr_request *request, int status, uint64_t now)
{
    if (status == NR_OK && request->call == &nr_call_sample) {
        /* The slot stays with the draw until it is settled; the lease has served. */
        request->status = NR_OK;
        nr_settle_due(client, request->slot, NR_SETTLE_RELEASE, now);
        client->progress++;
        return;
    }
    if (status == NR_OK && request->call == &nr_call_get) {
        /* Nothing is reserved: once the lease has been ended, the slot is free. */
        client->slots[request->slot].done = NR_SETTLE_COMMIT;
        nr_settle_due(client, request->slot, NR_SETTLE_RELEASE, now);
    }
    if (status != NR_OK && nr_request_draws(request) && request->slot != NR_NO_SLOT)
        client->slots[request->slot].settling = false; /* refused: nothing was drawn */
    if (request->call == &nr_call_sample || request->call == &nr_call_settle)
        nr_settle_delivered(client, request);
    nr_request_detach(client, request);
    request->status = status;
    client->progress++;
    if (status != NR_OK && request->call->refused != NULL)
        request->call->refused(client, request, status);
    if (request->internal)
        nr_request_release(client, request);
}

int nr_slot_take(struct nr_client *client, enum nr_class class)
{
    static const uint32_t limit[NR_CLASSES] = {
        [NR_CLASS_SAMPLE] = NR_SAMPLES_ACTIVE, [NR_CLASS_INSERT] = NR_INSERTS_ACTIVE, [NR_CLASS_OTHER] = NR_SLOTS};
    if (client->active[class] >= limit[class])
        return -1;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        struct nr_client_slot *slot = &client->slots[s];
        if (slot->request == NULL && !slot->settling) {
            client->active[class]++;
            slot->number++;
            slot->due = slot->carried = slot->done = 0;
            return (int)s;
        }
    }
    return -1;
}

static bool publishing(const struct nr_client *client, uint32_t set)
{
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_request *request = client->slots[s].request;
        if (request != NULL && request->call == &nr_call_publish && request->index == set)
            return true;
    }
    return false;
}

/* May it have a slot now? In SPEC only the spec's request may, and one publication of a set follows the other. */
static bool startable(const struct nr_client *client, const struct nr_request *request)
{
    if (client->state == NR_CLIENT_SPEC && request->call != &nr_call_spec)
        return false;
    if (request->call == &nr_call_sample && !request->urgent && client->active[NR_CLASS_SAMPLE] >= NR_SAMPLES_AHEAD)
        return false;
    return request->call != &nr_call_publish || !publishing(client, request->index);
}

void nr_requests_start(struct nr_client *client, uint64_t now)
{
    for (int class = 0; class < NR_CLASSES; class++) {
        for (struct nr_request *request = client->queue[class].first, *next; request != NULL; request = next) {
            next = request->next;
            if (!startable(client, request))
                continue;
            int slot = nr_slot_take(client, (enum nr_class)class);
            if (slot < 0)
                break;
            nr_request_detach(client, request);
            request->slot = (uint8_t)slot;
            request->number = client->slots[slot].number;
            request->last_sent = now;
            if (request->call->fragments != NULL)
                request->fragments = (uint16_t)request->call->fragments(client, request);
            client->slots[slot].request = request;
            client->slots[slot].settling = nr_request_draws(request);
        }
    }
}

/* ---- sending ---- */

void nr_emit(struct nr_client *client, uint8_t *datagram, const struct nr_header *header, uint64_t now, struct nr_outbox *outbox)
{
    static const struct nr_peer server; /* a client has one peer: packet I/O is connected to it */
    struct nr_header final = *header;
    final.magic = NR_MAGIC;
    final.version = NR_VERSION;
    final.session = client->session;
    final.counter = ++client->counter;
    memcpy(datagram, &final, sizeof(final));
    nr_window_sent(client, final.counter, now);
    uint16_t length = (uint16_t)(sizeof(final) + final.length);
    nr_outbox_push(outbox, &server, length);
    client->view.datagrams_sent++;
    client->view.bytes_sent += length;
}

static void transmit(struct nr_client *client, struct nr_request *request, uint64_t now, struct nr_outbox *outbox)
{
    if (request->status != NR_PENDING || now < request->hold)
        return;
    bool pull = request->call->pull;
    if (pull && request->pull.answered)
        return; /* ranges take over */
    if (request->first_sent == 0)
        request->first_sent = now;
    struct nr_header header = {.operation = request->call->operation, .slot = request->slot, .request = request->number};
    if (request->ask_state) {
        header.operation = NR_OP_READ;
        header.fragments = 1;
        nr_emit(client, nr_outbox_place(outbox), &header, now, outbox);
        request->ask_state = false;
        request->last_sent = now;
        return;
    }
    uint64_t wanted = nr_fragments_all(request->fragments) & ~request->taken & ~request->inflight;
    while (wanted != 0) {
        if (nr_window_room(client) == 0)
            return;
        uint32_t fragment = (uint32_t)__builtin_ctzll(wanted);
        wanted &= wanted - 1;
        uint8_t *datagram = nr_outbox_place(outbox);
        header.fragment = (uint16_t)fragment;
        header.fragments = request->fragments;
        if (pull)
            header.fragments = (uint16_t)nr_pull_first(client, request, now);
        uint32_t length = request->call->write(client, request, fragment, datagram + sizeof(header),
                                               client->max_datagram - (uint32_t)sizeof(header));
        header.length = (uint16_t)length;
        request->inflight |= 1ull << fragment;
        if (!pull) /* a pull counts the datagrams that it wants */
            client->outstanding++;
        request->last_sent = now;
        if (request->repeats > 0 && !request->waiting)
            client->view.retransmissions++;
        nr_emit(client, datagram, &header, now, outbox);
    }
}

void nr_requests_transmit(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    /* Settlements go before what may look at their effect. */
    for (struct nr_request *request = client->stateless; request != NULL; request = request->next)
        transmit(client, request, now, outbox);
    for (uint32_t s = 0; s < NR_SLOTS; s++)
        if (client->slots[s].request != NULL)
            transmit(client, client->slots[s].request, now, outbox);
}

/* ---- time ---- */

static uint64_t repeat_interval(const struct nr_request *request)
{
    uint64_t interval = (uint64_t)NR_LEAST_REPEAT << (request->repeats < 6 ? request->repeats : 6);
    return interval < NR_MOST_REPEAT ? interval : NR_MOST_REPEAT;
}

static uint64_t due(const struct nr_client *client, const struct nr_request *request)
{
    if (request->status != NR_PENDING)
        return UINT64_MAX;
    if (request->call->pull && request->pull.answered)
        return nr_pull_due(client, request);
    if (request->hold > request->last_sent)
        return request->hold;
    if (request->waiting)
        return request->last_sent + repeat_interval(request);
    if (request->inflight != 0 || request->taken != 0)
        return request->last_sent + nr_window_timeout(client, request->repeats);
    return UINT64_MAX; /* the window is full: an answer will set it free */
}

static void expire(struct nr_client *client, struct nr_request *request, uint64_t now)
{
    if (now < due(client, request))
        return;
    if (request->call->pull && request->pull.answered) {
        nr_pull_expire(client, request, now);
        return;
    }
    if (request->hold > request->last_sent) { /* the pause is over */
        request->last_sent = now;
        request->hold = 0;
        return;
    }
    uint64_t all = nr_fragments_all(request->fragments);
    nr_window_lost(client, (uint32_t)__builtin_popcountll(request->inflight));
    nr_request_unsend(client, request);
    if (request->taken == all && request->fragments > 1)
        request->ask_state = true;
    else if (request->taken == all)
        request->taken = 0; /* one small datagram: it is its own question */
    if (request->repeats < UINT16_MAX)
        request->repeats++;
    request->last_sent = now;
}

void nr_requests_expire(struct nr_client *client, uint64_t now)
{
    for (uint32_t s = 0; s < NR_SLOTS; s++)
        if (client->slots[s].request != NULL)
            expire(client, client->slots[s].request, now);
    for (struct nr_request *request = client->stateless; request != NULL; request = request->next)
        expire(client, request, now);
}

uint64_t nr_requests_due(const struct nr_client *client, uint64_t now)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t s = 0; s < NR_SLOTS; s++)
        if (client->slots[s].request != NULL) {
            uint64_t at = due(client, client->slots[s].request);
            least = at < least ? at : least;
        }
    for (const struct nr_request *request = client->stateless; request != NULL; request = request->next) {
        uint64_t at = due(client, request);
        least = at < least ? at : least;
    }
    return least > now ? least : now;
}

/* ---- answers ---- */

/* An answer that is a state, not data. */
void nr_request_answer(struct nr_client *client, struct nr_request *request, const struct nr_header *header, const uint8_t *body,
                       uint64_t now)
{
    struct nr_wire_state state;
    if (request->status != NR_PENDING || header->length < sizeof(struct nr_wire_stamps) + sizeof(state))
        return;
    memcpy(&state, body + sizeof(struct nr_wire_stamps), sizeof(state));
    if (request->call == &nr_call_sample)
        nr_settle_delivered(client, request);
    const uint8_t *result = body + sizeof(struct nr_wire_stamps) + sizeof(state);
    uint32_t length = header->length - (uint32_t)(sizeof(struct nr_wire_stamps) + sizeof(state));
    uint64_t all = nr_fragments_all(request->fragments);

    uint64_t settled = state.fragments & all;
    if (nr_is_wait(header->status) && header->fragment < request->fragments)
        settled |= 1ull << header->fragment; /* answered, though perhaps not taken */
    uint64_t answered = request->inflight & settled;
    if (request->call->pull) {
        nr_pull_unsend(client, request); /* no data follows a state */
    } else {
        client->outstanding -= (uint32_t)__builtin_popcountll(answered);
    }
    request->inflight &= ~answered;
    if ((state.fragments & all & ~request->taken) != 0)
        request->repeats = 0;
    request->taken |= state.fragments & all;

    if (header->status == NR_OK) {
        if (request->call->pull)
            return; /* only data answers a pull */
        int status = request->call->result != NULL ? request->call->result(client, request, result, length, now) : NR_OK;
        if (status != NR_PENDING)
            nr_request_finish(client, request, status, now);
        return;
    }
    if (header->status == NR_PENDING || nr_is_wait(header->status)) {
        if (state.fragments == 0 && header->status == NR_PENDING && request->taken != 0) {
            nr_request_unsend(client, request); /* the server does not hold it */
            request->taken = 0;
            return;
        }
        bool whole = request->taken == all;
        request->waiting = nr_is_wait(header->status) || whole;
        request->wait.reason = nr_is_wait(header->status) ? (int32_t)state.reason : 0;
        request->wait.table = state.table;
        request->wait.have = state.have;
        request->wait.need = state.need;
        if (request->wait.reason == NR_WAIT_INSERTS)
            nr_settle_hurry(client); /* perhaps it is these samples that the table waits for */
        if (!whole && nr_is_wait(header->status))
            request->hold = now + repeat_interval(request);
        client->progress++; /* the reason may be asked for */
        return;
    }
    if (header->status == NR_RESTART || header->status == NR_LEASE_EXPIRED) {
        /* Begin anew under another number, as if never asked; the server has refunded an expired draw. */
        if (nr_request_draws(request)) {
            client->slots[request->slot].settling = false;
            if (request->call == &nr_call_sample)
                request->collected = false;
        }
        nr_request_detach(client, request);
        if (request->call->pull)
            nr_pull_reset(client, request);
        nr_request_begin(client, request);
        return;
    }
    nr_request_finish(client, request, header->status, now);
}
