/* ADMIN: what changes a table as a whole. A kind that takes long is parked, and answered when it is done. */
#include <string.h>

#include "server_internal.h"

static void configure(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot,
                      const struct nr_limits_change *change)
{
    struct nr_limits limits;
    int status = nr_table_limits(server->engine, slot->table, &limits);

    if (status == NR_OK)
        status = nr_limits_merge(&limits, change);
    if (status == NR_OK)
        status = nr_table_configure(server->engine, slot->table, &limits);
    if (status == NR_OK)
        status = nr_table_limits(server->engine, slot->table, &limits);
    slot->status = (uint16_t)status;
    slot->result_bytes = sizeof(limits);
    memcpy(nr_server_memory(arrival->session, slot), &limits, sizeof(limits));
}

/* True when the table has nothing left that must leave. */
static bool left(struct nr_server *server, struct nr_slot *slot, struct nr_wait *wait)
{
    int status = nr_table_left(server->engine, slot->table, wait);

    if (nr_is_wait(status)) {
        wait->reason = status;
        return false;
    }
    slot->status = (uint16_t)status;
    return true;
}

static void reset(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot)
{
    struct nr_wait wait = {0};

    nr_table_reset(server->engine, slot->table);
    nr_engine_leave(server->engine, NR_LEAVE_ITEMS);
    if (left(server, slot, &wait))
        return;
    nr_server_park(server, arrival->session, slot, NR_WAITING_ADMIN, slot->table);
    nr_server_parked_again(server, slot->table, NR_WAITING_ADMIN, &wait, arrival->now);
}

bool nr_server_admin_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                           struct nr_outbox *outbox)
{
    struct nr_wait wait = {0};

    if (!left(server, slot, &wait)) {
        nr_server_parked_again(server, slot->table, NR_WAITING_ADMIN, &wait, now);
        return false;
    }
    nr_server_unpark(server, session, slot);
    struct nr_answer answer = nr_server_answer_late(session, slot);
    nr_server_send_slot(server, outbox, &answer, now, slot);
    return true;
}

/* Bytes that follow the head; UINT32_MAX: a kind that this server does not know. */
static uint32_t bytes_of(uint32_t kind)
{
    switch (kind) {
    case NR_ADMIN_CONFIGURE:
        return sizeof(struct nr_limits_change);
    case NR_ADMIN_RESET:
        return 0;
    default:
        return UINT32_MAX;
    }
}

void nr_server_admin(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_admin request;
    struct nr_limits_change change;
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    uint32_t bytes = bytes_of(request.kind);
    if (arrival->header.fragments != 1 || (bytes != UINT32_MAX && arrival->length != sizeof(request) + bytes)) {
        nr_server_malformed(server);
        return;
    }
    struct nr_slot *slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    slot->taken = 1;
    if (!fresh) {
        server->counters.duplicates++;
    } else if (request.table >= server->tables) {
        slot->status = NR_NO_TABLE;
    } else if (bytes == UINT32_MAX) {
        slot->status = NR_MALFORMED; /* a newer client's: it must hear that nothing was done */
    } else {
        slot->table = request.table;
        server->counters.admins++;
        if (request.kind == NR_ADMIN_CONFIGURE) {
            memcpy(&change, arrival->body + sizeof(request), sizeof(change));
            configure(server, arrival, slot, &change);
        } else {
            reset(server, arrival, slot);
        }
    }
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
}
