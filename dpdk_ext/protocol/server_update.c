/* UPDATE and DELETE: each datagram's keys are looked after when it comes; the outcomes are told when all have. */
#include <string.h>

#include "server_internal.h"

static void start(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, const struct nr_wire_update *request)
{
    slot->update.table = request->table;
    slot->update.count = request->count;
    if (request->count == 0 || request->count > NR_UPDATE_KEYS)
        slot->status = NR_BAD_COUNT;
    else if (request->table >= server->tables)
        slot->status = NR_NO_TABLE;
    else /* keys that no datagram brings stay refused */
        memset(nr_server_memory(arrival->session, slot), NR_OUTCOME_REFUSED, request->count);
}

static uint32_t bytes_each(uint8_t operation)
{
    return operation == NR_OP_UPDATE ? sizeof(struct nr_wire_priority) : sizeof(uint64_t);
}

static void apply(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, uint32_t first, uint32_t count)
{
    const uint8_t *at = arrival->body + sizeof(struct nr_wire_update);
    uint8_t *outcome = nr_server_memory(arrival->session, slot) + first;

    if (slot->operation == NR_OP_DELETE) {
        memcpy(server->keys, at, count * sizeof(server->keys[0]));
        nr_items_delete(server->engine, slot->update.table, count, server->keys, outcome);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct nr_wire_priority priority;

        memcpy(&priority, at + i * sizeof(priority), sizeof(priority));
        server->keys[i] = priority.key;
        server->priorities[i] = priority.priority;
    }
    nr_priorities_update(server->engine, slot->update.table, count, server->keys, server->priorities, outcome);
}

void nr_server_update(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_wire_update request;
    uint32_t bytes = arrival->length - (uint32_t)sizeof(request), each = bytes_each(header->operation);
    uint32_t count = bytes / each;
    struct nr_slot *slot = &arrival->session->slot[header->slot];
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (bytes % each != 0 || (uint32_t)request.first + count > request.count) {
        nr_server_malformed(server);
        return;
    }
    if (slot->request == header->request && slot->operation == header->operation &&
        (slot->update.count != request.count || slot->update.table != request.table || slot->fragments != header->fragments)) {
        nr_server_malformed(server);
        return;
    }
    slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    if (fresh)
        start(server, arrival, slot, &request);
    uint64_t bit = 1ull << header->fragment;
    if (slot->taken & bit) {
        server->counters.duplicates++;
    } else {
        if (slot->status == NR_PENDING)
            apply(server, arrival, slot, request.first, count);
        slot->taken |= bit;
        if (slot->status == NR_PENDING && slot->taken == nr_server_fragments(slot->fragments)) {
            slot->status = NR_OK;
            slot->result_bytes = slot->update.count;
            server->counters.updates += slot->operation == NR_OP_UPDATE;
            server->counters.deletes += slot->operation == NR_OP_DELETE;
        }
    }
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
}
