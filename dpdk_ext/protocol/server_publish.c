/* PUBLISH: parts of a parameter set's next bytes, in any order, from any number of requests. */
#include <string.h>

#include "server_internal.h"

static uint64_t writer_of(const struct nr_session *session, uint32_t publication)
{
    return (uint64_t)session->id << 32 | publication;
}

/* Makes the fragment's publication the one that its set is taking. NR_OK, NR_WAIT_TURN with *wait, or the refusal. */
static int begin(struct nr_server *server, struct nr_arrival *arrival, const struct nr_wire_publish *request, struct nr_wait *wait)
{
    struct nr_session *session = arrival->session;
    struct nr_publication *publication = &server->publications[request->set];
    uint64_t writer = writer_of(session, request->publication);
    int32_t ahead = (int32_t)(request->publication - session->publication[request->set]);

    if (ahead <= 0)
        return publication->writer != writer ? NR_CONFLICT : publication->bytes != request->bytes ? NR_BAD_LENGTH : NR_OK;
    int status = nr_parameters_begin(server->engine, request->set, writer, request->bytes, request->expect, arrival->now, wait);
    if (status != NR_OK)
        return status;
    session->publication[request->set] = request->publication;
    *publication = (struct nr_publication){.writer = writer, .bytes = request->bytes};
    return NR_OK;
}

/* One fragment that is new: NR_PENDING while bytes are missing, NR_OK when it was the last of its publication. */
static int take(struct nr_server *server, struct nr_arrival *arrival, const struct nr_wire_publish *request, struct nr_wait *wait)
{
    uint32_t length = arrival->length - (uint32_t)sizeof(*request);
    int status = begin(server, arrival, request, wait);

    if (status != NR_OK)
        return status;
    struct nr_publication *publication = &server->publications[request->set];
    if (publication->version != 0 || request->offset > request->bytes || length > request->bytes - request->offset ||
        length > publication->bytes - publication->received)
        return NR_BAD_LENGTH;
    status = nr_parameters_write(server->engine, request->set, publication->writer, request->offset,
                                 arrival->body + sizeof(*request), length, arrival->now);
    if (status != NR_OK)
        return status == NR_RESTART ? NR_CONFLICT : status; /* another took the buffer after a second of silence */
    publication->received += length;
    if (publication->received < publication->bytes)
        return NR_PENDING;
    status = nr_parameters_finish(server->engine, request->set, publication->writer, &publication->version);
    if (status == NR_OK)
        server->counters.publishes++;
    return status;
}

/* The version as far as it is known now: a repeat of an earlier request learns it too. */
static void note_version(struct nr_server *server, struct nr_session *session, struct nr_slot *slot)
{
    const struct nr_publication *publication = &server->publications[slot->publish.set];
    uint8_t *memory = nr_server_memory(session, slot);

    if (publication->writer == writer_of(session, slot->publish.publication) && publication->version != 0)
        memcpy(memory, &(struct nr_wire_version){.version = publication->version}, sizeof(struct nr_wire_version));
}

void nr_server_publish(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_slot *slot = &arrival->session->slot[header->slot];
    struct nr_wire_publish request;
    struct nr_wait wait = {0};
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (slot->request == header->request && slot->operation == NR_OP_PUBLISH &&
        (slot->publish.set != request.set || slot->publish.publication != request.publication ||
         slot->publish.bytes != request.bytes || slot->fragments != header->fragments)) {
        nr_server_malformed(server);
        return;
    }
    slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    if (fresh) {
        slot->publish.set = request.set;
        slot->publish.publication = request.publication;
        slot->publish.bytes = request.bytes;
        memset(nr_server_memory(arrival->session, slot), 0, sizeof(struct nr_wire_version));
        if (request.set >= server->sets)
            slot->status = NR_NO_SET;
    }
    uint64_t bit = 1ull << header->fragment;
    if (slot->taken & bit) {
        server->counters.duplicates++;
    } else if (slot->status == NR_PENDING) {
        int status = take(server, arrival, &request, &wait);

        if (nr_is_wait(status)) {
            wait.reason = status;
            nr_server_send_wait(server, arrival, slot, &wait);
            return;
        }
        if (status != NR_OK && status != NR_PENDING)
            slot->status = (uint16_t)status;
    }
    slot->taken |= bit;
    if (slot->status == NR_PENDING && slot->taken == nr_server_fragments(slot->fragments)) {
        slot->status = NR_OK;
        slot->result_bytes = sizeof(struct nr_wire_version);
    }
    if (slot->publish.set < server->sets)
        note_version(server, arrival->session, slot);
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
}
