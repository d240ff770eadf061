#include "client_internal.h"

/* GET and HISTOGRAM: looking at items without drawing them. */

static uint32_t write_get(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body, uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_get get = {.table = request->index, .count = request->count};
    memcpy(body, &get, sizeof(get));
    memcpy(body + sizeof(get), request->keys, request->count * sizeof(uint64_t));
    return (uint32_t)(sizeof(get) + request->count * sizeof(uint64_t));
}

const struct nr_call nr_call_get = {.operation = NR_OP_GET, .class = NR_CLASS_SAMPLE, .pull = true, .write = write_get};

struct nr_request *nr_client_get(struct nr_client *client, uint32_t table, uint32_t count, const uint64_t *keys, void *rows,
                                 uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_get);
    if (request == NULL)
        return NULL;
    request->index = table;
    request->count = count;
    request->keys = keys;
    request->pull.target = rows;
    if (table >= client->table_count || count == 0 || count > NR_GET_KEYS) {
        request->status = table >= client->table_count ? NR_NO_TABLE : NR_BAD_COUNT;
        return request;
    }
    request->pull.capacity = (uint64_t)count * client->tables[table].row_bytes;
    nr_request_begin(client, request);
    return request;
}

static uint32_t write_histogram(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                                uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_histogram histogram = {.table = request->index};
    memcpy(body, &histogram, sizeof(histogram));
    return sizeof(histogram);
}

static int histogram_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length,
                            uint64_t now)
{
    (void)client;
    (void)now;
    if (length < sizeof(*request->histograms))
        return NR_MALFORMED;
    memcpy(request->histograms, bytes, sizeof(*request->histograms));
    return NR_OK;
}

const struct nr_call nr_call_histogram = {
    .operation = NR_OP_HISTOGRAM, .class = NR_CLASS_OTHER, .write = write_histogram, .result = histogram_result};

struct nr_request *nr_client_histograms(struct nr_client *client, uint32_t table, struct nr_histograms *histograms, uint64_t now)
{
    (void)now;
    struct nr_request *request = nr_request_new(client, &nr_call_histogram);
    if (request == NULL)
        return NULL;
    request->index = table;
    request->histograms = histograms;
    nr_request_begin(client, request);
    return request;
}
