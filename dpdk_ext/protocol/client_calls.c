#include "client_internal.h"

/* The small requests: what their bodies and results are. */

/* ---- SAMPLE ---- */

static uint32_t write_sample(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                             uint32_t capacity)
{
    (void)fragment;
    (void)capacity;
    if (!request->collected) /* a repeat must say the same: the server looks at the first that arrives */
        nr_settle_collect(client, request);
    struct nr_wire_sample sample = {.table = request->index, .count = request->count, .settles = request->settles};
    memcpy(body, &sample, sizeof(sample));
    memcpy(body + sizeof(sample), request->settle, request->settles * sizeof(request->settle[0]));
    return (uint32_t)(sizeof(sample) + request->settles * sizeof(request->settle[0]));
}

const struct nr_call nr_call_sample = {.operation = NR_OP_SAMPLE, .class = NR_CLASS_SAMPLE, .pull = true, .write = write_sample};

struct nr_request *nr_client_sample(struct nr_client *client, uint32_t table, uint32_t count, void *rows, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_sample);
    if (request == NULL)
        return NULL;
    request->index = table;
    request->count = count;
    request->pull.target = rows;
    if (table >= client->table_count || count == 0 || count > NR_SAMPLE_ROWS) {
        request->status = table >= client->table_count ? NR_NO_TABLE : NR_BAD_COUNT;
        return request;
    }
    request->pull.capacity = (uint64_t)count * client->tables[table].row_bytes;
    nr_request_begin(client, request);
    return request;
}

void nr_client_urge(struct nr_client *client, struct nr_request *request)
{
    if (request->urgent)
        return;
    request->urgent = true;
    if (request->slot != NR_NO_SLOT || request->status != NR_PENDING)
        return;
    /* In front of those that nobody waits for, behind those urged before. */
    nr_request_detach(client, request);
    struct nr_queue *queue = &client->queue[NR_CLASS_SAMPLE];
    struct nr_request **link = &queue->first;
    while (*link != NULL && (*link)->urgent)
        link = &(*link)->next;
    request->next = *link;
    *link = request;
    if (request->next == NULL)
        queue->last = &request->next;
}

void nr_request_draw(const struct nr_request *request, struct nr_draw_head *head)
{
    const struct nr_wire_message *message = &request->pull.head;
    *head = (struct nr_draw_head){.number = message->number,
                                  .size = message->size,
                                  .total = message->total,
                                  .max_leaf = message->max_leaf,
                                  .min_leaf = message->min_leaf};
}

void nr_client_settle(struct nr_client *client, struct nr_request *request, bool taken, uint64_t now)
{
    uint8_t slot = request->slot;
    if (slot != NR_NO_SLOT) { /* asked for in this session, and not refused */
        uint8_t settle = taken ? NR_SETTLE_COMMIT : NR_SETTLE_REFUND;
        if (request->status == NR_PENDING)
            settle |= NR_SETTLE_RELEASE;
        nr_settle_due(client, slot, settle, now);
        nr_settle_undelivered(client, request);
    }
    nr_request_free(client, request);
}

/* ---- UPDATE ---- */

static uint32_t keys_per_datagram(const struct nr_client *client)
{
    return (client->max_datagram - (uint32_t)(sizeof(struct nr_header) + sizeof(struct nr_wire_update))) /
           (uint32_t)sizeof(struct nr_wire_priority);
}

static uint32_t update_fragments(const struct nr_client *client, const struct nr_request *request)
{
    uint32_t each = keys_per_datagram(client);
    return (request->count + each - 1) / each;
}

static uint32_t write_update(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                             uint32_t capacity)
{
    (void)capacity;
    uint32_t each = keys_per_datagram(client);
    uint32_t first = fragment * each;
    uint32_t count = request->count - first < each ? request->count - first : each;
    struct nr_wire_update update = {.table = request->index, .count = (uint16_t)request->count, .first = (uint16_t)first};
    memcpy(body, &update, sizeof(update));
    uint8_t *pair = body + sizeof(update);
    for (uint32_t i = first; i < first + count; i++, pair += sizeof(struct nr_wire_priority)) {
        memcpy(pair, &request->keys[i], sizeof(uint64_t));
        memcpy(pair + sizeof(uint64_t), &request->priorities[i], sizeof(double));
    }
    return (uint32_t)(pair - body);
}

static int update_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)client;
    (void)now;
    if (length < request->count)
        return NR_MALFORMED;
    memcpy(request->outcome, bytes, request->count);
    return NR_OK;
}

const struct nr_call nr_call_update = {.operation = NR_OP_UPDATE,
                                       .class = NR_CLASS_OTHER,
                                       .fragments = update_fragments,
                                       .write = write_update,
                                       .result = update_result};

struct nr_request *nr_client_update(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys,
                                    const double *priorities, uint8_t *outcome, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_update);
    if (request == NULL)
        return NULL;
    request->index = table;
    request->count = count;
    request->keys = keys;
    request->priorities = priorities;
    request->outcome = outcome;
    if (count == 0 || count > NR_UPDATE_KEYS) {
        request->status = NR_BAD_COUNT;
        return request;
    }
    nr_request_begin(client, request);
    return request;
}

/* ---- PUBLISH: runs of up to NR_MAX_FRAGMENTS datagrams, one after the other, each a request of its own in the same slot ---- */

static uint32_t publish_each(const struct nr_client *client)
{
    return client->max_datagram - (uint32_t)(sizeof(struct nr_header) + sizeof(struct nr_wire_publish));
}

static uint32_t publish_fragments(const struct nr_client *client, const struct nr_request *request)
{
    uint64_t left = request->length - request->base, each = publish_each(client);
    uint64_t fragments = left ? (left + each - 1) / each : 1;
    return fragments < NR_MAX_FRAGMENTS ? (uint32_t)fragments : NR_MAX_FRAGMENTS;
}

static uint32_t write_publish(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                              uint32_t capacity)
{
    (void)capacity;
    uint32_t each = publish_each(client);
    uint64_t offset = request->base + (uint64_t)fragment * each;
    uint64_t left = request->length - offset;
    uint32_t count = left < each ? (uint32_t)left : each;
    struct nr_wire_publish publish = {.set = request->index,
                                      .publication = request->publication,
                                      .bytes = request->length,
                                      .offset = offset,
                                      .expect = request->expect};
    memcpy(body, &publish, sizeof(publish));
    if (count > 0)
        memcpy(body + sizeof(publish), request->bytes + offset, count);
    return (uint32_t)sizeof(publish) + count;
}

static int publish_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    struct nr_wire_version result;
    if (length < sizeof(result))
        return NR_MALFORMED;
    memcpy(&result, bytes, sizeof(result));
    uint64_t run = (uint64_t)NR_MAX_FRAGMENTS * publish_each(client);
    if (result.version == 0 && request->base + run < request->length) {
        request->base += run;
        request->fragments = (uint16_t)publish_fragments(client, request);
        request->number = ++client->slots[request->slot].number;
        request->taken = request->inflight = 0;
        request->last_sent = now;
        return NR_PENDING;
    }
    request->version = result.version;
    if (result.version == 0)
        return NR_MALFORMED;
    if (!request->internal) {
        struct nr_saved *saved = &client->saved[request->index];
        free(saved->bytes);
        saved->bytes = request->bytes; /* ours now, to be published again to a new incarnation */
        saved->length = request->length;
        request->bytes = NULL;
    }
    return NR_OK;
}

const struct nr_call nr_call_publish = {.operation = NR_OP_PUBLISH,
                                        .class = NR_CLASS_OTHER,
                                        .fragments = publish_fragments,
                                        .write = write_publish,
                                        .result = publish_result};

static void publish_begin(struct nr_client *client, struct nr_request *request, uint32_t set, uint64_t length, uint64_t expect)
{
    request->index = set;
    request->length = length;
    request->expect = expect;
    request->publication = ++client->publication;
    nr_request_begin(client, request);
}

struct nr_request *nr_client_publish(struct nr_client *client, uint32_t set, const void *bytes, uint64_t length, uint64_t expect,
                                     uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_publish);
    if (request == NULL)
        return NULL;
    request->bytes = malloc(length ? length : 1);
    if (request->bytes == NULL || set >= NR_MAX_SETS) {
        request->status = request->bytes == NULL ? NR_NO_MEMORY : NR_NO_SET;
        return request;
    }
    memcpy(request->bytes, bytes, length);
    publish_begin(client, request, set, length, expect);
    return request;
}

/* To a server that was started anew, unless the caller is publishing something newer already. */
void nr_publish_again(struct nr_client *client)
{
    for (uint32_t set = 0; set < NR_MAX_SETS; set++) {
        bool newer = false;
        for (struct nr_request *queued = client->queue[NR_CLASS_OTHER].first; queued != NULL; queued = queued->next)
            newer |= queued->call == &nr_call_publish && queued->index == set;
        if (client->saved[set].bytes == NULL || newer)
            continue;
        struct nr_request *request = nr_request_new(client, &nr_call_publish);
        if (request == NULL)
            return;
        request->internal = true;
        request->bytes = client->saved[set].bytes;
        publish_begin(client, request, set, client->saved[set].length, UINT64_MAX);
    }
}

uint64_t nr_request_version(const struct nr_request *request)
{
    return request->version;
}

/* ---- FETCH, TABLES, SPEC ---- */

static uint32_t write_fetch(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                            uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_fetch fetch = {.set = request->index, .newer_than = request->newer_than};
    memcpy(body, &fetch, sizeof(fetch));
    return sizeof(fetch);
}

static int fetch_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)client;
    (void)bytes;
    (void)length;
    (void)now;
    request->version = request->pull.head.number;
    return NR_OK;
}

static uint32_t write_nothing(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                              uint32_t capacity)
{
    (void)client;
    (void)request;
    (void)fragment;
    (void)body;
    (void)capacity;
    return 0;
}

static int spec_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)bytes;
    (void)length;
    (void)now;
    uint64_t size = request->pull.head.bytes;
    if (client->spec != NULL) {
        if (strlen(client->spec) != size || memcmp(client->spec, request->pull.target, size) != 0) {
            nr_session_fatal(client, NR_BAD_CONFIG);
            return NR_BAD_CONFIG;
        }
    } else {
        client->spec = malloc(size + 1);
        if (client->spec == NULL)
            return NR_NO_MEMORY;
        memcpy(client->spec, request->pull.target, size);
        client->spec[size] = 0;
    }
    client->spec_of = client->incarnation;
    if (client->state == NR_CLIENT_SPEC)
        client->state = NR_CLIENT_READY;
    return NR_OK;
}

static void spec_refused(struct nr_client *client, struct nr_request *request, int status)
{
    (void)request;
    if (client->state != NR_CLIENT_FATAL)
        nr_session_fatal(client, status);
}

const struct nr_call nr_call_fetch = {
    .operation = NR_OP_FETCH, .class = NR_CLASS_OTHER, .pull = true, .write = write_fetch, .result = fetch_result};
const struct nr_call nr_call_tables = {.operation = NR_OP_TABLES, .class = NR_CLASS_OTHER, .pull = true, .write = write_nothing};
const struct nr_call nr_call_spec = {.operation = NR_OP_SPEC,
                                     .class = NR_CLASS_OTHER,
                                     .pull = true,
                                     .write = write_nothing,
                                     .result = spec_result,
                                     .refused = spec_refused};

struct nr_request *nr_client_fetch(struct nr_client *client, uint32_t set, uint64_t newer_than, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_fetch);
    if (request == NULL)
        return NULL;
    request->index = set;
    request->newer_than = newer_than;
    nr_request_begin(client, request);
    return request;
}

struct nr_request *nr_client_tables(struct nr_client *client, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_tables);
    nr_settle_hurry(client); /* what was taken before shows in the numbers */
    if (request != NULL)
        nr_request_begin(client, request);
    return request;
}

uint8_t *nr_request_take(struct nr_request *request, uint64_t *length)
{
    uint8_t *bytes = request->pull.owned ? request->pull.target : NULL;
    *length = bytes != NULL ? request->pull.head.bytes : 0;
    request->pull.target = NULL;
    request->pull.owned = false;
    return bytes;
}

/* ---- PING ---- */

static uint32_t write_ping(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                           uint32_t capacity)
{
    (void)client;
    (void)fragment;
    uint32_t bytes = request->count < capacity ? request->count : capacity;
    memset(body, 0, bytes);
    return bytes;
}

static int ping_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)client;
    (void)bytes;
    (void)length;
    if (request->round_trip == 0)
        request->round_trip = now - request->last_sent;
    return NR_OK;
}

const struct nr_call nr_call_ping = {.operation = NR_OP_PING, .stateless = true, .write = write_ping, .result = ping_result};

struct nr_request *nr_client_ping(struct nr_client *client, uint32_t payload_bytes, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_ping);
    if (request == NULL)
        return NULL;
    /* Room for the answer's stamps and state, which must not be longer than the question. */
    uint32_t least = sizeof(struct nr_wire_stamps) + sizeof(struct nr_wire_state);
    request->count = payload_bytes < least ? least : payload_bytes;
    nr_request_begin(client, request);
    return request;
}

void nr_request_ping(const struct nr_request *request, uint64_t *round_trip, uint64_t *server)
{
    *round_trip = request->round_trip;
    *server = request->residence;
}

bool nr_keepalive_wanted(const struct nr_client *client)
{
    if (client->state != NR_CLIENT_READY)
        return false;
    for (uint32_t set = 0; set < NR_MAX_SETS; set++)
        if (client->saved[set].bytes != NULL)
            return true;
    return false;
}

void nr_keepalive(struct nr_client *client, uint64_t now)
{
    if (client->stateless != NULL || now < client->heard + NR_KEEPALIVE || !nr_keepalive_wanted(client))
        return;
    struct nr_request *request = nr_client_ping(client, 0, now);
    if (request != NULL)
        request->internal = true;
}
