/* Requests that wait for their table: parked in a queue of it, set free by whichever datagram makes progress possible. */
#include "server_internal.h"

static struct nr_session *session_at(const struct nr_server *server, uint32_t place)
{
    return &server->sessions[place / 16];
}

static struct nr_slot *slot_at(const struct nr_server *server, uint32_t place)
{
    return &session_at(server, place)->slot[place % 16];
}

void nr_server_park(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, enum nr_waiting kind,
                    uint32_t table)
{
    struct nr_waiters *queue = nr_server_waiters(server, table, kind);
    uint32_t place = nr_server_place(session, slot);

    slot->waiting = (uint8_t)kind;
    slot->table = table;
    slot->earlier = queue->last;
    slot->later = NR_NOWHERE;
    if (queue->last == NR_NOWHERE)
        queue->first = place;
    else
        slot_at(server, queue->last)->later = place;
    queue->last = place;
    server->waiting[table / 64] |= 1ull << table % 64;
    server->counters.parked++;
}

void nr_server_unpark(struct nr_server *server, struct nr_session *session, struct nr_slot *slot)
{
    uint32_t table = slot->table, place = nr_server_place(session, slot);
    struct nr_waiters *queue = nr_server_waiters(server, table, slot->waiting);

    if (queue->first == place) {
        queue->first = slot->later;
        queue->tried = 0; /* the next one may want less */
    } else {
        slot_at(server, slot->earlier)->later = slot->later;
    }
    if (queue->last == place)
        queue->last = slot->earlier;
    else
        slot_at(server, slot->later)->earlier = slot->earlier;
    slot->waiting = NR_NOT_WAITING;
    slot->earlier = slot->later = NR_NOWHERE;
    server->counters.parked--;
    for (int kind = 0; kind < NR_WAITING_KINDS; kind++)
        if (server->waiters[table][kind].first != NR_NOWHERE)
            return;
    server->waiting[table / 64] &= ~(1ull << table % 64);
}

void nr_server_parked_again(struct nr_server *server, uint32_t table, enum nr_waiting kind, const struct nr_wait *wait,
                            uint64_t now)
{
    struct nr_waiters *queue = nr_server_waiters(server, table, kind);

    queue->progress = nr_table_progress(server->engine, table);
    queue->tried = now;
    queue->wait = *wait;
}

/* Serves one queue in its order while that is possible; returns how many left it. */
static uint32_t serve(struct nr_server *server, uint32_t table, enum nr_waiting kind, uint32_t budget, uint64_t now,
                      struct nr_outbox *outbox)
{
    struct nr_waiters *queue = nr_server_waiters(server, table, kind);
    uint32_t freed = 0;

    while (freed < budget && queue->first != NR_NOWHERE) {
        struct nr_session *session = session_at(server, queue->first);
        struct nr_slot *slot = slot_at(server, queue->first);

        /* Time alone can help too: leases fall due. */
        if (queue->tried != 0 && nr_table_progress(server->engine, table) == queue->progress && now - queue->tried < NR_RETRY_NS)
            break;
        bool left = kind == NR_WAITING_INSERT   ? nr_server_insert_again(server, session, slot, now, outbox)
                    : kind == NR_WAITING_SAMPLE ? nr_server_sample_again(server, session, slot, now, outbox)
                                                : nr_server_admin_again(server, session, slot, now, outbox);
        if (!left)
            break;
        freed++;
    }
    return freed;
}

void nr_server_pump(struct nr_server *server, uint64_t now, struct nr_outbox *outbox)
{
    uint32_t budget = NR_PARKED_PER_DATAGRAM;

    if (server->counters.parked == 0)
        return;
    for (uint32_t word = 0; word < NR_MAX_TABLES / 64; word++)
        for (uint64_t left = server->waiting[word]; left != 0 && budget > 0; left &= left - 1) {
            uint32_t table = word * 64 + (uint32_t)__builtin_ctzll(left);

            /* Inserts before samples: they are what those wait for. */
            budget -= serve(server, table, NR_WAITING_ADMIN, budget, now, outbox);
            budget -= serve(server, table, NR_WAITING_INSERT, budget, now, outbox);
            budget -= serve(server, table, NR_WAITING_SAMPLE, budget, now, outbox);
        }
}

int nr_server_park_audit(const struct nr_server *server, char *message, size_t size)
{
    uint64_t queued = 0;

    for (uint32_t table = 0; table < server->tables; table++)
        for (int kind = NR_WAITING_INSERT; kind <= NR_WAITING_KINDS; kind++) {
            const struct nr_waiters *queue = &server->waiters[table][kind - 1];
            uint32_t earlier = NR_NOWHERE;

            for (uint32_t place = queue->first; place != NR_NOWHERE; place = slot_at(server, place)->later) {
                const struct nr_slot *slot = slot_at(server, place);

                if (slot->waiting != kind || slot->table != table || slot->earlier != earlier)
                    return nr_server_audit_says(message, size, "slot %llu is wrongly queued at table %llu", place, table);
                if (++queued > server->counters.parked)
                    return nr_server_audit_says(message, size, "%llu slots are queued at table %llu", queued, table);
                earlier = place;
            }
            if (queue->last != earlier)
                return nr_server_audit_says(message, size, "table %llu's queue ends at slot %llu", table, queue->last);
            if (queue->first != NR_NOWHERE && !(server->waiting[table / 64] >> table % 64 & 1))
                return nr_server_audit_says(message, size, "table %llu's queue is not looked at", table, 0);
        }
    return queued == server->counters.parked
               ? NR_OK
               : nr_server_audit_says(message, size, "%llu slots are queued, %llu wait", queued, server->counters.parked);
}
