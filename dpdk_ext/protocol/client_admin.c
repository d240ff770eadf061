#include "client_internal.h"

/* Requests that change a table otherwise than by its experience: DELETE and ADMIN. */

/* ---- DELETE ---- */

static uint32_t keys_per_datagram(const struct nr_client *client)
{
    return (client->max_datagram - (uint32_t)(sizeof(struct nr_header) + sizeof(struct nr_wire_update))) /
           (uint32_t)sizeof(uint64_t);
}

static uint32_t delete_fragments(const struct nr_client *client, const struct nr_request *request)
{
    uint32_t each = keys_per_datagram(client);
    return (request->count + each - 1) / each;
}

static uint32_t write_delete(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                             uint32_t capacity)
{
    (void)capacity;
    uint32_t each = keys_per_datagram(client);
    uint32_t first = fragment * each;
    uint32_t count = request->count - first < each ? request->count - first : each;
    struct nr_wire_update head = {.table = request->index, .count = (uint16_t)request->count, .first = (uint16_t)first};
    memcpy(body, &head, sizeof(head));
    memcpy(body + sizeof(head), request->keys + first, count * sizeof(uint64_t));
    return (uint32_t)(sizeof(head) + count * sizeof(uint64_t));
}

static int delete_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)client;
    (void)now;
    if (length < request->count)
        return NR_MALFORMED;
    memcpy(request->outcome, bytes, request->count);
    return NR_OK;
}

const struct nr_call nr_call_delete = {.operation = NR_OP_DELETE,
                                       .class = NR_CLASS_OTHER,
                                       .fragments = delete_fragments,
                                       .write = write_delete,
                                       .result = delete_result};

struct nr_request *nr_client_delete(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys,
                                    uint8_t *outcome, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_delete);
    if (request == NULL)
        return NULL;
    request->index = table;
    request->count = count;
    request->keys = keys;
    request->outcome = outcome;
    if (count == 0 || count > NR_UPDATE_KEYS) {
        request->status = NR_BAD_COUNT;
        return request;
    }
    nr_request_begin(client, request);
    return request;
}

/* ---- ADMIN ---- */

static uint32_t write_admin(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                            uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_admin admin = {.kind = request->admin.kind, .table = request->index};
    memcpy(body, &admin, sizeof(admin));
    if (admin.kind != NR_ADMIN_CONFIGURE)
        return sizeof(admin);
    memcpy(body + sizeof(admin), &request->admin.change, sizeof(request->admin.change));
    return sizeof(admin) + sizeof(request->admin.change);
}

static int admin_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)client;
    (void)now;
    if (request->admin.kind != NR_ADMIN_CONFIGURE)
        return NR_OK;
    if (length < sizeof(request->admin.limits))
        return NR_MALFORMED;
    memcpy(&request->admin.limits, bytes, sizeof(request->admin.limits));
    return NR_OK;
}

const struct nr_call nr_call_admin = {
    .operation = NR_OP_ADMIN, .class = NR_CLASS_OTHER, .write = write_admin, .result = admin_result};

static struct nr_request *admin(struct nr_client *client, uint32_t table, uint32_t kind)
{
    struct nr_request *request = nr_request_new(client, &nr_call_admin);
    nr_settle_hurry(client); /* what was taken before is counted before */
    if (request == NULL)
        return NULL;
    request->index = table;
    request->admin.kind = kind;
    nr_request_begin(client, request);
    return request;
}

struct nr_request *nr_client_configure(struct nr_client *client, uint32_t table, const struct nr_limits_change *change,
                                       uint64_t now)
{
    (void)now;
    struct nr_request *request = admin(client, table, NR_ADMIN_CONFIGURE);
    if (request != NULL)
        request->admin.change = *change;
    return request;
}

struct nr_request *nr_client_reset(struct nr_client *client, uint32_t table, uint64_t now)
{
    (void)now;
    return admin(client, table, NR_ADMIN_RESET);
}

void nr_request_limits(const struct nr_request *request, struct nr_limits *limits)
{
    *limits = request->admin.limits;
}
