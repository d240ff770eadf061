#include "client_internal.h"

/* Streams at the client. One that was open before a session was lost is taken up again, and what the server lacks of its last
 * window is put in front of the log, so that the next item finds its steps. */

uint32_t nr_client_stream_add(struct nr_client *client, const struct nr_client_stream_config *config)
{
    uint32_t number = 0;
    while (number < client->stream_count && client->streams[number].used)
        number++;
    if (number == client->stream_capacity) {
        uint32_t capacity = client->stream_capacity ? 2 * client->stream_capacity : 16;
        struct nr_client_stream *streams = realloc(client->streams, capacity * sizeof(*streams));
        if (streams == NULL)
            return UINT32_MAX;
        client->streams = streams;
        client->stream_capacity = capacity;
    }
    struct nr_client_stream *stream = &client->streams[number];
    memset(stream, 0, sizeof(*stream));
    stream->partial = calloc(config->ring, 1);
    if (stream->partial == NULL)
        return UINT32_MAX;
    if (number == client->stream_count)
        client->stream_count++;
    memcpy(stream->id, config->id, sizeof(stream->id));
    stream->steps = config->steps;
    stream->ring = config->ring;
    stream->stride = config->stride;
    stream->store = config->store;
    stream->status = NR_PENDING;
    stream->used = true;
    client->unopened++;
    return number;
}

static bool idle(const struct nr_client_stream *stream)
{
    return stream->decided_step == stream->next_step && stream->decided_item == stream->next_item;
}

void nr_client_stream_end(struct nr_client *client, uint32_t number)
{
    struct nr_client_stream *stream = &client->streams[number];
    if (!stream->used || stream->ended)
        return;
    stream->ended = true;
    client->unclosed++;
    nr_client_flush(client);
}

bool nr_client_stream_done(const struct nr_client *client, uint32_t number)
{
    const struct nr_client_stream *stream = &client->streams[number];
    return !stream->used || (stream->ended && idle(stream));
}

int nr_client_stream_status(const struct nr_client *client, uint32_t number)
{
    return client->streams[number].status;
}

uint32_t nr_client_stream_room(const struct nr_client *client, uint32_t number)
{
    const struct nr_client_stream *stream = &client->streams[number];
    /* One less than the server allows: an item over the last decided step may still need a whole window before it. */
    uint64_t limit = client->stores[stream->store].in_flight - 1;
    uint64_t open = stream->next_step - stream->decided_step;
    return open < limit ? (uint32_t)(limit - open) : 0;
}

uint64_t nr_client_stream_next(const struct nr_client *client, uint32_t number)
{
    return client->streams[number].next_step;
}

/* ---- opening ---- */

static uint32_t write_streams(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                              uint32_t capacity)
{
    (void)fragment;
    (void)capacity;
    struct nr_wire_streams streams = {.store = request->index, .count = request->count};
    memcpy(body, &streams, sizeof(streams));
    uint8_t *id = body + sizeof(streams);
    for (uint32_t i = 0; i < request->count; i++, id += 16)
        memcpy(id, client->streams[request->members[i]].id, 16);
    return (uint32_t)(id - body);
}

static void opened(struct nr_client *client, struct nr_client_stream *stream, int status)
{
    stream->opening = false;
    stream->status = status;
    client->unopened--;
    if (stream->ever)
        client->recovering--;
    stream->ever = true;
    client->progress++;
}

static void record_loss(struct nr_client *client, uint32_t number, uint64_t first, uint64_t items, bool replaced)
{
    if (client->loss_count == client->loss_capacity) {
        uint32_t capacity = client->loss_capacity ? 2 * client->loss_capacity : 16;
        struct nr_client_loss *losses = realloc(client->losses, capacity * sizeof(*losses));
        if (losses == NULL)
            return;
        client->losses = losses;
        client->loss_capacity = capacity;
    }
    struct nr_client_loss *loss = &client->losses[client->loss_count++];
    memcpy(loss->stream, client->streams[number].id, sizeof(loss->stream));
    loss->number = number;
    loss->first_item = first;
    loss->items = items;
    loss->incarnation = client->incarnation;
    loss->replaced = replaced;
}

/* Puts the part of the last window that the server does not hold in front of what is undecided. */
static void recover(struct nr_client *client, uint32_t number, const struct nr_wire_stream *answer)
{
    struct nr_client_stream *stream = &client->streams[number];
    const struct nr_store_config *store = &client->stores[stream->store];
    uint64_t from = stream->decided_step > store->window ? stream->decided_step - store->window : 0;
    if (answer->known && answer->next_step > from)
        from = answer->next_step;
    /* One that has ended needs no past, and its owner may have freed the steps: see nr_client_stream_done. */
    if (!(stream->ended && idle(stream)) && from < stream->decided_step &&
        nr_log_reserve(client, stream->decided_step - from) == NR_OK)
        for (uint64_t step = stream->decided_step; step-- > from;) {
            struct nr_logged *record = nr_log_front(client);
            record->type = NR_RECORD_STEP;
            record->stream = number;
            record->number = step;
            record->total = stream->partial[step & (stream->ring - 1)] ? store->observation_bytes : store->step_bytes;
        }
    uint64_t held = answer->next_item > stream->lost_item ? answer->next_item : stream->lost_item;
    bool forgotten = !answer->known && stream->session_incarnation == client->incarnation;
    if (forgotten)
        record_loss(client, number, stream->decided_item, 0, true);
    else if (held < stream->decided_item)
        record_loss(client, number, held, stream->decided_item - held, false);
    if (held < stream->decided_item)
        stream->lost_item = stream->decided_item;
}

static int streams_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)now;
    if (length < request->count * sizeof(struct nr_wire_stream))
        return NR_MALFORMED;
    for (uint32_t i = 0; i < request->count; i++) {
        struct nr_wire_stream answer;
        memcpy(&answer, bytes + i * sizeof(answer), sizeof(answer));
        uint32_t number = request->members[i];
        struct nr_client_stream *stream = &client->streams[number];
        if (answer.status == NR_OK) {
            stream->handle = answer.handle;
            if (stream->ever)
                recover(client, number, &answer);
            stream->session_incarnation = client->incarnation;
        }
        opened(client, stream, (int)answer.status);
    }
    return NR_OK;
}

static void streams_refused(struct nr_client *client, struct nr_request *request, int status)
{
    for (uint32_t i = 0; i < request->count; i++)
        opened(client, &client->streams[request->members[i]], status);
}

const struct nr_call nr_call_streams = {.operation = NR_OP_STREAMS,
                                        .class = NR_CLASS_OTHER,
                                        .write = write_streams,
                                        .result = streams_result,
                                        .refused = streams_refused};

void nr_streams_open(struct nr_client *client)
{
    uint32_t number = 0;
    while (client->unopened != 0 && number < client->stream_count) {
        struct nr_request *request = NULL;
        for (; number < client->stream_count; number++) {
            struct nr_client_stream *stream = &client->streams[number];
            if (!stream->used || stream->status != NR_PENDING || stream->opening)
                continue;
            if (request == NULL) {
                request = nr_request_new(client, &nr_call_streams);
                if (request == NULL)
                    return;
                request->internal = true;
                request->index = stream->store;
            }
            if (stream->store != request->index || request->count == NR_STREAMS_PER_REQUEST)
                break; /* of the next request */
            request->members[request->count++] = number;
            stream->opening = true;
        }
        if (request == NULL)
            return;
        nr_request_begin(client, request);
    }
}

/* ---- closing ---- */

static uint32_t write_close(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                            uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_close close = {.count = request->count};
    memcpy(body, &close, sizeof(close));
    memcpy(body + sizeof(close), request->members, request->count * sizeof(uint32_t)); /* handles */
    return (uint32_t)(sizeof(close) + request->count * sizeof(uint32_t));
}

const struct nr_call nr_call_close = {.operation = NR_OP_CLOSE, .stateless = true, .write = write_close};

void nr_streams_close(struct nr_client *client)
{
    struct nr_request *request = NULL;
    for (uint32_t number = 0; client->unclosed != 0 && number < client->stream_count; number++) {
        struct nr_client_stream *stream = &client->streams[number];
        if (!stream->used || !stream->ended || !idle(stream) || stream->status == NR_PENDING)
            continue;
        if (stream->status == NR_OK) {
            if (request == NULL) {
                request = nr_request_new(client, &nr_call_close);
                if (request == NULL)
                    return;
                request->internal = true;
            }
            request->members[request->count++] = stream->handle;
        }
        free(stream->partial);
        stream->partial = NULL;
        stream->used = false;
        client->unclosed--;
        client->progress++;
        if (request != NULL && request->count == NR_STREAMS_PER_REQUEST)
            break; /* the others at the next call */
    }
    if (request != NULL)
        nr_request_begin(client, request);
}

void nr_streams_reset(struct nr_client *client)
{
    client->unopened = client->recovering = 0;
    for (uint32_t number = 0; number < client->stream_count; number++) {
        struct nr_client_stream *stream = &client->streams[number];
        if (!stream->used)
            continue;
        stream->opening = false;
        stream->status = NR_PENDING;
        client->unopened++;
        client->recovering += stream->ever;
    }
}

uint32_t nr_client_losses(struct nr_client *client, uint32_t capacity, struct nr_client_loss *losses)
{
    uint32_t count = client->loss_count < capacity ? client->loss_count : capacity;
    if (count == 0)
        return 0;
    memcpy(losses, client->losses, count * sizeof(*losses));
    client->loss_count -= count;
    memmove(client->losses, client->losses + count, client->loss_count * sizeof(*losses));
    return count;
}
