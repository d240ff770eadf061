/* STREAMS and CLOSE: a session takes up streams and ends them. */
#include <string.h>

#include "server_internal.h"

enum { NR_STREAM_ID = 16 /* bytes */ };

void nr_server_streams(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_streams request;
    const uint8_t *ids = arrival->body + sizeof(request);
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (arrival->header.fragments != 1 || arrival->length != sizeof(request) + (uint64_t)request.count * NR_STREAM_ID) {
        nr_server_malformed(server);
        return;
    }
    struct nr_slot *slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    if (!fresh) {
        server->counters.duplicates++;
    } else if (request.count == 0 || request.count > NR_STREAMS_PER_REQUEST) {
        slot->status = NR_BAD_COUNT;
    } else if (request.store >= nr_engine_store_count(server->engine)) {
        slot->status = NR_NO_STORE;
    } else {
        uint8_t *result = nr_server_memory(arrival->session, slot);

        for (uint32_t i = 0; i < request.count; i++) {
            struct nr_stream_position position = {0};
            int status = nr_stream_open(server->engine, request.store, ids + i * NR_STREAM_ID, arrival->session->id, &position);
            struct nr_wire_stream stream = {.status = (uint32_t)status};

            if (status == NR_OK) {
                stream.handle = position.handle;
                stream.next_step = position.next_step;
                stream.next_item = position.next_item;
                stream.known = position.known;
            }
            memcpy(result + i * sizeof(stream), &stream, sizeof(stream));
        }
        slot->status = NR_OK;
        slot->result_bytes = (uint16_t)(request.count * sizeof(struct nr_wire_stream));
    }
    slot->taken = 1;
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
}

void nr_server_close(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_close request;
    const uint8_t *handles = arrival->body + sizeof(request);

    memcpy(&request, arrival->body, sizeof(request));
    if (request.count > NR_STREAMS_PER_REQUEST || arrival->length != sizeof(request) + request.count * sizeof(uint32_t)) {
        nr_server_malformed(server);
        return;
    }
    for (uint32_t i = 0; i < request.count; i++) {
        uint32_t handle;

        memcpy(&handle, handles + i * sizeof(handle), sizeof(handle));
        nr_stream_close(server->engine, handle, arrival->session->id); /* gone already: a repeat */
    }
    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = {.fragments = 1};
    nr_server_send_state(server, arrival->outbox, &answer, arrival->now, NR_OK, &state, NULL, 0);
}
