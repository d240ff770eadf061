/* GET and HISTOGRAM: looking at items without drawing them. */
#include <string.h>

#include "server_internal.h"

/* ---- Items by key ---- */

static uint64_t *keys_of(struct nr_session *session, const struct nr_slot *slot)
{
    return (uint64_t *)(nr_server_memory(session, slot) + NR_GET_KEYS * sizeof(struct nr_draw_entry));
}

static void start_get(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, const struct nr_wire_get *request)
{
    slot->table = request->table;
    slot->sample.count = request->count;
    slot->sample.draw.entries = (struct nr_draw_entry *)nr_server_memory(arrival->session, slot);
    slot->sample.bytes = (uint64_t)request->count * nr_table_row_bytes(server->engine, request->table);
    memcpy(keys_of(arrival->session, slot), arrival->body + sizeof(*request), request->count * sizeof(uint64_t));
    if (slot->sample.bytes > UINT32_MAX - sizeof(struct nr_wire_message)) /* offsets have 32 bits */
        slot->status = NR_BAD_LENGTH;
}

void nr_server_get(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_get request;
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (request.count > NR_GET_KEYS || arrival->length != sizeof(request) + request.count * sizeof(uint64_t)) {
        nr_server_malformed(server);
        return;
    }
    struct nr_slot *slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    slot->taken = 1;
    if (fresh)
        start_get(server, arrival, slot, &request);
    else
        server->counters.duplicates++;
    /* It stands in no queue: the client's repeats try again. */
    if (slot->status == NR_PENDING || nr_is_wait(slot->status))
        slot->status = (uint16_t)nr_draw_open_keys(server->engine, slot->table, slot->sample.count, keys_of(arrival->session, slot),
                                                   &slot->sample.draw, arrival->now, &slot->wait);
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_message(server, arrival->outbox, &answer, arrival->now, slot, 0, arrival->header.fragments);
}

/* ---- Histograms ---- */

static void start_histogram(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, uint32_t table)
{
    if (table >= server->tables) {
        slot->status = NR_NO_TABLE;
        return;
    }
    memset(nr_server_memory(arrival->session, slot), 0, sizeof(struct nr_histograms));
    nr_server_park(server, arrival->session, slot, NR_WAITING_HISTOGRAM, table);
    nr_server_waiters(server, table, NR_WAITING_HISTOGRAM)->wait = (struct nr_wait){.reason = NR_PENDING, .table = table};
}

void nr_server_histogram(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_histogram request;
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (arrival->length != sizeof(request) || arrival->header.fragments != 1) {
        nr_server_malformed(server);
        return;
    }
    struct nr_slot *slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    slot->taken = 1;
    if (fresh)
        start_histogram(server, arrival, slot, request.table);
    else
        server->counters.duplicates++;
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
}

bool nr_server_look(struct nr_server *server, uint64_t now, struct nr_outbox *outbox)
{
    if (server->counters.parked == 0)
        return false;
    for (uint32_t word = 0; word < NR_MAX_TABLES / 64; word++)
        for (uint64_t left = server->waiting[word]; left != 0; left &= left - 1) {
            uint32_t table = word * 64 + (uint32_t)__builtin_ctzll(left);
            uint32_t place = nr_server_waiters(server, table, NR_WAITING_HISTOGRAM)->first;

            if (place == NR_NOWHERE)
                continue;
            struct nr_session *session = &server->sessions[place / 16];
            struct nr_slot *slot = &session->slot[place % 16];
            struct nr_histograms *histograms = (struct nr_histograms *)nr_server_memory(session, slot);

            if (nr_table_histograms(server->engine, table, now, NR_LOOK_SLOTS, histograms) == NR_OK) {
                nr_server_unpark(server, session, slot);
                slot->status = NR_OK;
                slot->result_bytes = sizeof(*histograms);
                server->counters.histograms++;
                struct nr_answer answer = nr_server_answer_late(session, slot);
                nr_server_send_slot(server, outbox, &answer, now, slot);
            }
            return true; /* there may be more */
        }
    return false;
}
