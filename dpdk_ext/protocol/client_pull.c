#include "client_internal.h"

/* Reading a message by ranges. The first request asks for its first datagrams; READs ask for the rest, a range each, as the
 * window allows. A range whose datagrams do not all come is given up after a timeout and what is missing is asked for again. */

void nr_pull_reset(struct nr_client *client, struct nr_request *request)
{
    struct nr_pull *pull = &request->pull;
    nr_pull_unsend(client, request);
    if (pull->owned) {
        free(pull->target);
        pull->target = NULL;
        pull->owned = false;
    }
    pull->bytes = 0;
    pull->chunk = pull->chunks = pull->left = pull->next = 0;
    pull->head_left = 0;
    pull->answered = false;
    request->waiting = false;
}

void nr_pull_free(struct nr_request *request)
{
    struct nr_pull *pull = &request->pull;
    if (pull->owned)
        free(pull->target);
    pull->target = NULL;
    pull->owned = false;
}

static void range_close(struct nr_client *client, struct nr_range *range)
{
    client->outstanding -= range->missing;
    range->count = range->missing = 0;
}

void nr_pull_unsend(struct nr_client *client, struct nr_request *request)
{
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++)
        if (request->pull.range[r].count != 0)
            range_close(client, &request->pull.range[r]);
}

static struct nr_range *range_open(struct nr_client *client, struct nr_pull *pull, uint32_t first, uint32_t count, uint64_t now)
{
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++)
        if (pull->range[r].count == 0) {
            pull->range[r] = (struct nr_range){.first = first, .count = count, .missing = count, .sent = now};
            client->outstanding += count;
            return &pull->range[r];
        }
    return NULL;
}

static bool arrived(const struct nr_pull *pull, uint32_t chunk)
{
    return (pull->arrived[chunk / 64] >> (chunk % 64)) & 1;
}

/* The size of the message is known: room for its bitmap, and for its bytes where nobody gave any. */
static int prepare(struct nr_client *client, struct nr_request *request, uint64_t bytes)
{
    struct nr_pull *pull = &request->pull;
    uint64_t chunks = (bytes + pull->chunk - 1) / pull->chunk;
    if (bytes < sizeof(pull->head) || chunks > UINT32_MAX / 2)
        return NR_MALFORMED;
    uint64_t content = bytes - sizeof(pull->head);
    if (pull->target != NULL && content > pull->capacity)
        return NR_BAD_LENGTH;
    if (pull->target == NULL && content > 0) {
        pull->target = malloc(content);
        if (pull->target == NULL)
            return NR_NO_MEMORY;
        pull->owned = true;
        pull->capacity = content;
    }
    uint32_t words = (uint32_t)((chunks + 63) / 64);
    if (words > pull->words) {
        uint64_t *bitmap = realloc(pull->arrived, words * sizeof(uint64_t));
        if (bitmap == NULL)
            return NR_NO_MEMORY;
        pull->arrived = bitmap;
        pull->words = words;
    }
    memset(pull->arrived, 0, words * sizeof(uint64_t));
    pull->bytes = bytes;
    pull->chunks = pull->left = (uint32_t)chunks;
    pull->head_left = sizeof(pull->head);
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++) { /* a first question that hoped for more */
        struct nr_range *range = &pull->range[r];
        if (range->count != 0 && range->first + range->count > pull->chunks) {
            uint32_t excess = range->first + range->count - pull->chunks;
            excess = excess < range->count ? excess : range->count;
            excess = excess < range->missing ? excess : range->missing; /* of those, none has arrived */
            range->count -= excess;
            range->missing -= excess;
            client->outstanding -= excess;
        }
    }
    if (pull->next > pull->chunks)
        pull->next = pull->chunks;
    return NR_OK;
}

uint32_t nr_pull_first(struct nr_client *client, struct nr_request *request, uint64_t now)
{
    struct nr_pull *pull = &request->pull;
    pull->chunk = client->max_datagram - (uint32_t)NR_RESPONSE_OVERHEAD;
    uint32_t hoped = 8; /* a small message comes at once */
    if (nr_request_draws(request)) {
        uint64_t bytes = sizeof(pull->head) + (uint64_t)request->count * client->tables[request->index].row_bytes;
        uint64_t chunks = (bytes + pull->chunk - 1) / pull->chunk;
        hoped = chunks < NR_MAX_WANTED ? (uint32_t)chunks : NR_MAX_WANTED;
    }
    uint32_t room = nr_window_room(client);
    uint32_t wanted = hoped < room ? hoped : room;
    wanted = wanted ? wanted : 1;
    range_open(client, pull, 0, wanted, now);
    pull->next = wanted;
    return wanted;
}

/* Copies message bytes [offset, offset + length) to the head and the target. */
static void place(struct nr_pull *pull, uint64_t offset, const uint8_t *bytes, uint32_t length)
{
    if (offset < sizeof(pull->head)) {
        uint32_t part = (uint32_t)(sizeof(pull->head) - offset);
        part = part < length ? part : length;
        memcpy((uint8_t *)&pull->head + offset, bytes, part);
        offset += part;
        bytes += part;
        length -= part;
    }
    if (length > 0)
        memcpy(pull->target + (offset - sizeof(pull->head)), bytes, length);
}

/* Takes the chunk off its range. What was asked for before that range, and is older than a round trip by more than the round
 * trip varies, was lost: it is asked for again without waiting for the timeout. */
static void arrive(struct nr_client *client, struct nr_pull *pull, uint32_t chunk, uint64_t now)
{
    uint64_t asked_at = 0;
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++) {
        struct nr_range *range = &pull->range[r];
        if (range->count != 0 && chunk - range->first < range->count) {
            asked_at = range->sent;
            range->missing--;
            client->outstanding--;
            if (range->missing == 0)
                range->count = 0;
            break;
        }
    }
    uint64_t age = client->smoothed + 4 * client->variance;
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++) {
        struct nr_range *range = &pull->range[r];
        if (range->count != 0 && range->sent < asked_at && now - range->sent > age) {
            nr_window_lost(client, range->missing);
            range_close(client, range);
        }
    }
}

void nr_pull_data(struct nr_client *client, struct nr_request *request, const struct nr_header *header, const uint8_t *bytes,
                  uint32_t length, uint64_t now)
{
    struct nr_pull *pull = &request->pull;
    if (request->status != NR_PENDING || pull->chunk == 0 || header->offset % pull->chunk != 0 || length > pull->chunk)
        return;
    if (request->call == &nr_call_sample)
        nr_settle_delivered(client, request);
    uint32_t chunk = header->offset / pull->chunk;
    if (pull->bytes == 0) {
        uint64_t size;
        if (nr_request_draws(request)) {
            size = sizeof(pull->head) + (uint64_t)request->count * client->tables[request->index].row_bytes;
        } else {
            if (chunk != 0 || length < sizeof(pull->head))
                return; /* the head says how much there is: wait for it */
            struct nr_wire_message head;
            memcpy(&head, bytes, sizeof(head));
            if (head.bytes > (1ull << 40))
                return;
            size = sizeof(head) + head.bytes;
        }
        int status = prepare(client, request, size);
        if (status != NR_OK) {
            nr_request_finish(client, request, status, now);
            return;
        }
    }
    uint64_t offset = (uint64_t)chunk * pull->chunk;
    if (chunk >= pull->chunks)
        return;
    uint64_t expected = pull->bytes - offset < pull->chunk ? pull->bytes - offset : pull->chunk;
    if (length != expected || arrived(pull, chunk)) {
        client->view.ignored++;
        return;
    }
    request->inflight = 0;
    request->taken = 1;
    request->waiting = false;
    request->repeats = 0;
    pull->answered = true;
    pull->arrived[chunk / 64] |= 1ull << (chunk % 64);
    pull->left--;
    place(pull, offset, bytes, length);
    arrive(client, pull, chunk, now);
    if (chunk >= pull->next)
        pull->next = chunk + 1;
    if (pull->left > 0)
        return;
    nr_pull_unsend(client, request);
    int status = request->call->result != NULL ? request->call->result(client, request, NULL, 0, now) : NR_OK;
    nr_request_finish(client, request, status, now);
}

static bool ask(struct nr_client *client, struct nr_request *request, uint32_t first, uint32_t count, uint64_t now,
                struct nr_outbox *outbox)
{
    if (range_open(client, &request->pull, first, count, now) == NULL)
        return false;
    struct nr_header header = {.operation = NR_OP_READ,
                               .slot = request->slot,
                               .request = request->number,
                               .offset = first * request->pull.chunk,
                               .fragments = (uint16_t)count};
    nr_emit(client, nr_outbox_place(outbox), &header, now, outbox);
    return true;
}

static bool asked(const struct nr_pull *pull, uint32_t chunk)
{
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++)
        if (pull->range[r].count != 0 && chunk - pull->range[r].first < pull->range[r].count)
            return true;
    return false;
}

/* Asks for the next range of one message: first what was never asked for, then what is missing and not on its way. */
static bool ask_more(struct nr_client *client, struct nr_request *request, uint64_t now, struct nr_outbox *outbox)
{
    struct nr_pull *pull = &request->pull;
    uint32_t room = nr_window_room(client);
    if (room == 0 || request->status != NR_PENDING || !pull->answered || pull->left == 0 || now < request->hold)
        return false;
    if (room > NR_RANGE_DATAGRAMS)
        room = NR_RANGE_DATAGRAMS;
    if (pull->chunks == 0)
        return false;
    if (pull->next < pull->chunks) {
        uint32_t count = pull->chunks - pull->next < room ? pull->chunks - pull->next : room;
        /* A short READ while more could be asked for soon costs the server a datagram for little. */
        if (count < NR_RANGE_DATAGRAMS / 2 && pull->next + count < pull->chunks && client->outstanding > 0)
            return false;
        if (!ask(client, request, pull->next, count, now, outbox))
            return false;
        pull->next += count;
        return true;
    }
    uint32_t chunk = 0;
    while (chunk < pull->chunks && (arrived(pull, chunk) || asked(pull, chunk)))
        chunk = pull->arrived[chunk / 64] == UINT64_MAX ? (chunk / 64 + 1) * 64 : chunk + 1;
    if (chunk >= pull->chunks)
        return false;
    uint32_t count = 1;
    while (count < room && chunk + count < pull->chunks && !arrived(pull, chunk + count) && !asked(pull, chunk + count))
        count++;
    client->view.retransmissions++;
    return ask(client, request, chunk, count, now, outbox);
}

void nr_pulls_send(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    /* The oldest message first: it is the one that is waited for. Younger ones get what is left of the window. */
    struct nr_request *oldest = NULL;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        struct nr_request *request = client->slots[s].request;
        if (request != NULL && request->call->pull && request->pull.answered && request->pull.left > 0 &&
            (oldest == NULL || request->age < oldest->age))
            oldest = request;
    }
    if (oldest == NULL)
        return;
    while (ask_more(client, oldest, now, outbox))
        ;
    for (uint32_t s = 0; s < NR_SLOTS && nr_window_room(client) > 0; s++) {
        struct nr_request *request = client->slots[s].request;
        if (request != NULL && request->call->pull)
            while (ask_more(client, request, now, outbox))
                ;
    }
}

uint64_t nr_pull_due(const struct nr_client *client, const struct nr_request *request)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++)
        if (request->pull.range[r].count != 0 && request->pull.range[r].sent < least)
            least = request->pull.range[r].sent;
    return least == UINT64_MAX ? UINT64_MAX : least + nr_window_timeout(client, request->repeats);
}

void nr_pull_expire(struct nr_client *client, struct nr_request *request, uint64_t now)
{
    uint64_t timeout = nr_window_timeout(client, request->repeats);
    bool late = false;
    for (uint32_t r = 0; r < NR_PULL_RANGES; r++) {
        struct nr_range *range = &request->pull.range[r];
        if (range->count != 0 && now >= range->sent + timeout) {
            nr_window_lost(client, range->missing);
            range_close(client, range);
            late = true;
        }
    }
    if (late && request->repeats < UINT16_MAX)
        request->repeats++;
}
