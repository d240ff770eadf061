/* SAMPLE and SETTLE: draws are opened, wait until they can be, and end. */
#include <string.h>

#include "server_internal.h"

/* ---- Settlements ---- */

static bool settle_is_good(const struct nr_wire_settle *settle)
{
    return settle->slot < NR_SLOTS && settle->settle != 0 &&
           (settle->settle & ~(NR_SETTLE_RELEASE | NR_SETTLE_COMMIT | NR_SETTLE_REFUND)) == 0 &&
           (settle->settle & (NR_SETTLE_COMMIT | NR_SETTLE_REFUND)) != (NR_SETTLE_COMMIT | NR_SETTLE_REFUND);
}

/* The `count` settlements at `at` are the rest of a body of `bytes`, and every one is well formed. */
static bool settles_are_good(const uint8_t *at, uint32_t count, uint32_t bytes)
{
    if (count > NR_SETTLES_PER_REQUEST || bytes != count * sizeof(struct nr_wire_settle))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct nr_wire_settle settle;

        memcpy(&settle, at + i * sizeof(settle), sizeof(settle));
        if (!settle_is_good(&settle))
            return false;
    }
    return true;
}

static void settle_all(struct nr_server *server, struct nr_session *session, const uint8_t *at, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct nr_wire_settle settle;

        memcpy(&settle, at + i * sizeof(settle), sizeof(settle));
        struct nr_slot *slot = &session->slot[settle.slot];
        if (!nr_server_is_draw(slot) || slot->request != settle.request)
            continue; /* the slot has gone on, and ended that draw with it */
        if (slot->waiting != NR_NOT_WAITING) {
            nr_server_unpark(server, session, slot);
            slot->status = NR_STALE;
        } else if (slot->sample.draw.leased || slot->sample.draw.reserved) {
            nr_draw_settle(server->engine, &slot->sample.draw, settle.settle);
        }
    }
}

void nr_server_settle(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_settlement request;
    const uint8_t *settles = arrival->body + sizeof(request);

    memcpy(&request, arrival->body, sizeof(request));
    if (!settles_are_good(settles, request.settles, arrival->length - (uint32_t)sizeof(request))) {
        nr_server_malformed(server);
        return;
    }
    settle_all(server, arrival->session, settles, request.settles);

    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = {.fragments = 1};
    nr_server_send_state(server, arrival->outbox, &answer, arrival->now, NR_OK, &state, NULL, 0);
}

/* ---- Draws ---- */

/* True unless the draw has to wait. */
static bool try_draw(struct nr_server *server, struct nr_slot *slot, uint64_t now, struct nr_wait *wait)
{
    int status = nr_draw_open(server->engine, slot->table, slot->sample.count, &slot->sample.draw, now, wait);

    if (nr_is_wait(status)) {
        wait->reason = status;
        return false;
    }
    slot->status = (uint16_t)status;
    return true;
}

bool nr_server_sample_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                            struct nr_outbox *outbox)
{
    struct nr_wait wait = {0};

    if (!try_draw(server, slot, now, &wait)) {
        nr_server_parked_again(server, slot->table, NR_WAITING_SAMPLE, &wait, now);
        return false;
    }
    nr_server_unpark(server, session, slot);
    struct nr_answer answer = nr_server_answer_late(session, slot);
    nr_server_send_message(server, outbox, &answer, now, slot, 0, slot->wanted);
    return true;
}

static void start(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, const struct nr_wire_sample *request)
{
    struct nr_wait wait = {0};

    if (request->table >= server->tables) {
        slot->status = NR_NO_TABLE;
        return;
    }
    if (request->count == 0 || request->count > NR_SAMPLE_ROWS) {
        slot->status = NR_BAD_COUNT;
        return;
    }
    slot->table = request->table;
    slot->sample.count = request->count;
    slot->sample.bytes = (uint64_t)request->count * nr_table_row_bytes(server->engine, request->table);
    slot->sample.draw.entries = (struct nr_draw_entry *)nr_server_memory(arrival->session, slot);
    if (slot->sample.bytes > UINT32_MAX - sizeof(struct nr_wire_message)) { /* offsets have 32 bits */
        slot->status = NR_BAD_LENGTH;
        return;
    }
    if (nr_server_waiters(server, request->table, NR_WAITING_SAMPLE)->first != NR_NOWHERE) {
        nr_server_park(server, arrival->session, slot, NR_WAITING_SAMPLE, request->table);
    } else if (!try_draw(server, slot, arrival->now, &wait)) {
        nr_server_park(server, arrival->session, slot, NR_WAITING_SAMPLE, request->table);
        nr_server_parked_again(server, request->table, NR_WAITING_SAMPLE, &wait, arrival->now);
    }
}

void nr_server_sample(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_slot *slot = &arrival->session->slot[header->slot];
    struct nr_wire_sample request;
    const uint8_t *settles = arrival->body + sizeof(request);
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (!settles_are_good(settles, request.settles, arrival->length - (uint32_t)sizeof(request)) ||
        (slot->request == header->request && slot->operation != NR_OP_SAMPLE)) {
        nr_server_malformed(server);
        return;
    }
    if ((int32_t)(header->request - slot->request) >= 0)
        settle_all(server, arrival->session, settles, request.settles); /* before the slot, which they may name, is recycled */
    slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    slot->wanted = header->fragments;
    slot->taken = 1;
    if (fresh)
        start(server, arrival, slot, &request);
    else
        server->counters.duplicates++;
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_message(server, arrival->outbox, &answer, arrival->now, slot, 0, slot->wanted);
}
