/* INSERT: steps go to their places as they come; items wait in the slot until all of the request is there and it is its turn,
 * then are committed one by one in their order, going on where they stopped. */
#include <string.h>

#include "server_internal.h"

/* ---- Reading ---- */

static uint32_t padded(uint32_t bytes)
{
    return (bytes + 7) & ~7u;
}

static bool step_is_good(const uint8_t *at, uint32_t left, uint32_t *size)
{
    struct nr_wire_step step;

    if (left < sizeof(step))
        return false;
    memcpy(&step, at, sizeof(step));
    *size = (uint32_t)sizeof(step) + padded(step.length);
    return *size <= left && step.length != 0 && step.offset <= step.total && step.length <= step.total - step.offset;
}

static bool item_is_good(const uint8_t *at, uint32_t left, uint32_t items, uint64_t *seen, uint32_t *size)
{
    struct nr_wire_item item;

    if (left < sizeof(item))
        return false;
    memcpy(&item, at, sizeof(item));
    *size = (uint32_t)sizeof(item) + padded(item.columns);
    if (*size > left || item.columns > NR_MAX_ITEM_COLUMNS || item.index >= items || (item.flags & ~NR_ITEM_DEFAULT_PRIORITY) ||
        (*seen >> item.index & 1))
        return false;
    *seen |= 1ull << item.index;
    return true;
}

/* Walks all records before any has an effect. Of the first `applied` only the bounds matter: their items are in `seen`. */
static bool records_are_good(const uint8_t *at, uint32_t left, uint32_t items, uint64_t seen, uint32_t applied)
{
    for (uint32_t record = 0; left > 0; record++) {
        uint64_t again = 0, *known = record < applied ? &again : &seen;
        uint32_t size;

        if (at[0] == NR_RECORD_STEP ? !step_is_good(at, left, &size)
                                    : at[0] != NR_RECORD_ITEM || !item_is_good(at, left, items, known, &size))
            return false;
        at += size;
        left -= size;
    }
    return true;
}

/* ---- Taking ---- */

static void keep_item(struct nr_slot *slot, uint8_t *memory, const uint8_t *at)
{
    struct nr_wire_item item;

    memcpy(&item, at, sizeof(item));
    uint8_t *place = memory + item.index * NR_ITEM_MEMORY;
    memset(place + sizeof(item), 0, NR_MAX_ITEM_COLUMNS);
    memcpy(place, at, sizeof(item) + item.columns);
    slot->insert.seen |= 1ull << item.index;
}

/* Bytes that do not fit what they are for: nobody can say what the items would be, so none of them is taken. */
static void refuse(struct nr_slot *slot, int status)
{
    if (slot->insert.refusal == 0)
        slot->insert.refusal = (uint16_t)status;
}

/* Applies the fragment's records from the first that is not applied. False: a step has to wait for space; how far it came is
 * remembered, so that the repeat goes on there and no part of a step is counted twice. */
static bool take_records(struct nr_server *server, struct nr_arrival *arrival, struct nr_slot *slot, struct nr_wait *wait)
{
    const uint8_t *at = arrival->body + sizeof(struct nr_wire_insert), *end = arrival->body + arrival->length;
    uint8_t *memory = nr_server_memory(arrival->session, slot);
    uint16_t *applied = (uint16_t *)(memory + NR_APPLIED_AT) + arrival->header.fragment;

    for (uint32_t record = 0; at < end; record++) {
        struct nr_wire_step step;
        uint32_t size;

        if (at[0] == NR_RECORD_ITEM) {
            struct nr_wire_item item;

            memcpy(&item, at, sizeof(item));
            size = (uint32_t)sizeof(item) + padded(item.columns);
            if (record >= *applied) {
                keep_item(slot, memory, at);
                if (item.table < server->tables && item.columns != nr_table_item_bytes(server->engine, item.table))
                    refuse(slot, NR_BAD_LENGTH);
            }
        } else {
            memcpy(&step, at, sizeof(step));
            size = (uint32_t)sizeof(step) + padded(step.length);
            if (record >= *applied) {
                int status = nr_step_write(server->engine, step.handle, arrival->session->id, step.number, step.total, step.offset,
                                           at + sizeof(step), step.length, arrival->now, wait);
                if (nr_is_wait(status)) {
                    wait->reason = status;
                    return false;
                }
                if (status != NR_OK && status != NR_DUPLICATE && status != NR_STREAM_GONE)
                    refuse(slot, status);
            }
        }
        if (record >= *applied)
            *applied = (uint16_t)(record + 1);
        at += size;
    }
    return true;
}

/* ---- Committing ---- */

static bool all_there(const struct nr_slot *slot)
{
    return slot->insert.refusal != 0 || slot->taken == nr_server_fragments(slot->fragments);
}

static void wait_in_queue(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint32_t table)
{
    if (slot->waiting != NR_NOT_WAITING && slot->table == table)
        return;
    if (slot->waiting != NR_NOT_WAITING)
        nr_server_unpark(server, session, slot);
    nr_server_park(server, session, slot, NR_WAITING_INSERT, table);
}

static bool others_wait(struct nr_server *server, const struct nr_slot *slot, uint32_t table)
{
    if (table >= server->tables || (slot->waiting != NR_NOT_WAITING && slot->table == table))
        return false;
    return nr_server_waiters(server, table, NR_WAITING_INSERT)->first != NR_NOWHERE;
}

static int insert_item(struct nr_server *server, struct nr_session *session, const uint8_t *at, uint64_t now, uint64_t *key,
                       struct nr_wait *wait)
{
    struct nr_wire_item record;

    memcpy(&record, at, sizeof(record));
    struct nr_item item = {.number = record.number,
                           .first_step = record.first_step,
                           .steps = record.steps,
                           .anchor = record.anchor,
                           .length = record.anchor < record.steps ? record.steps - 1u - record.anchor : 0,
                           .flags = record.flags,
                           .priority = record.priority,
                           .columns = at + sizeof(record)};
    return nr_item_insert(server->engine, record.table, record.handle, session->id, &item, now, key, wait);
}

static void finish(struct nr_server *server, struct nr_session *session, struct nr_slot *slot)
{
    uint8_t *memory = nr_server_memory(session, slot);

    if (slot->waiting != NR_NOT_WAITING)
        nr_server_unpark(server, session, slot);
    memmove(memory + slot->insert.items * sizeof(uint64_t), memory + NR_STATUSES_AT, slot->insert.items);
    slot->result_bytes = slot->insert.items * (uint16_t)(sizeof(uint64_t) + 1);
    slot->status = slot->insert.refusal != 0 ? slot->insert.refusal : NR_OK;
    session->inserts &= (uint16_t)~(1u << (slot - session->slot));
    if (slot->insert.sequence == session->sequence)
        session->sequence++;
    server->counters.inserts++;
}

/* Decides items from the cursor on; keys take the place of decided items (key i ends before item i + 1 begins). True when all
 * are decided; else the slot says what it waits for. */
static bool commit(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now)
{
    uint8_t *memory = nr_server_memory(session, slot);

    while (slot->insert.refusal == 0 && slot->insert.cursor < slot->insert.items) {
        uint32_t index = slot->insert.cursor;
        uint8_t at[NR_ITEM_MEMORY] __attribute__((aligned(8)));
        uint64_t key = NR_KEY_NONE;
        int status = NR_BAD_COUNT; /* no fragment brought it */

        if (slot->insert.seen >> index & 1) {
            struct nr_wait wait = {0};
            uint32_t table;

            memcpy(at, memory + index * NR_ITEM_MEMORY, sizeof(at));
            table = ((const struct nr_wire_item *)at)->table;
            if (others_wait(server, slot, table)) {
                wait_in_queue(server, session, slot, table);
                return false;
            }
            status = insert_item(server, session, at, now, &key, &wait);
            if (status == NR_WAIT_STEPS) { /* whichever datagram of the session brings them goes on here */
                if (slot->waiting != NR_NOT_WAITING)
                    nr_server_unpark(server, session, slot);
                wait.reason = status;
                slot->status = (uint16_t)status;
                slot->wait = wait;
                return false;
            }
            if (nr_is_wait(status)) {
                wait_in_queue(server, session, slot, table);
                wait.reason = status;
                nr_server_parked_again(server, table, NR_WAITING_INSERT, &wait, now);
                return false;
            }
        }
        memcpy(memory + index * sizeof(key), &key, sizeof(key));
        memory[NR_STATUSES_AT + index] = (uint8_t)status;
        slot->insert.cursor++;
        slot->status = NR_PENDING;
    }
    finish(server, session, slot);
    return true;
}

/* Commits whatever of the session can be: the INSERT whose turn it is, then the next, perhaps complete before. All but `current`
 * are answered here. */
static void commit_ready(struct nr_server *server, struct nr_session *session, const struct nr_slot *current, uint64_t now,
                         struct nr_outbox *outbox)
{
    for (bool again = true; again;) {
        again = false;
        for (uint32_t left = session->inserts; left != 0; left &= left - 1) {
            struct nr_slot *slot = &session->slot[__builtin_ctz(left)];

            if ((int32_t)(slot->insert.sequence - session->sequence) > 0 || slot->waiting != NR_NOT_WAITING || !all_there(slot) ||
                !commit(server, session, slot, now))
                continue;
            again = session->inserts != 0;
            if (slot != current) {
                struct nr_answer answer = nr_server_answer_late(session, slot);
                nr_server_send_slot(server, outbox, &answer, now, slot);
            }
        }
    }
}

bool nr_server_insert_again(struct nr_server *server, struct nr_session *session, struct nr_slot *slot, uint64_t now,
                            struct nr_outbox *outbox)
{
    uint32_t table = slot->table;

    if (!commit(server, session, slot, now))
        return slot->waiting == NR_NOT_WAITING || slot->table != table;
    struct nr_answer answer = nr_server_answer_late(session, slot);
    nr_server_send_slot(server, outbox, &answer, now, slot);
    commit_ready(server, session, NULL, now, outbox);
    return true;
}

/* ---- The datagram ---- */

static bool same_request(const struct nr_arrival *arrival, const struct nr_slot *slot)
{
    return slot->request == arrival->header.request && slot->operation == NR_OP_INSERT;
}

static bool datagram_is_good(const struct nr_arrival *arrival, const struct nr_slot *slot, const struct nr_wire_insert *request,
                             const uint16_t *applied)
{
    bool known = same_request(arrival, slot);

    if (request->items > NR_INSERT_ITEMS)
        return false;
    if (known && (slot->insert.sequence != request->sequence || slot->insert.items != request->items ||
                  slot->fragments != arrival->header.fragments))
        return false;
    return records_are_good(arrival->body + sizeof(*request), arrival->length - (uint32_t)sizeof(*request), request->items,
                            known ? slot->insert.seen : 0, known ? applied[arrival->header.fragment] : 0);
}

void nr_server_insert(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_session *session = arrival->session;
    struct nr_slot *slot = &session->slot[header->slot];
    uint16_t *applied = (uint16_t *)(nr_server_memory(session, slot) + NR_APPLIED_AT);
    struct nr_wire_insert request;
    struct nr_answer answer = nr_server_answer_to(arrival);
    bool fresh;

    memcpy(&request, arrival->body, sizeof(request));
    if (same_request(arrival, slot) && slot->taken >> header->fragment & 1) { /* not even looked at */
        server->counters.duplicates++;
        nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
        return;
    }
    if (!datagram_is_good(arrival, slot, &request, applied)) {
        nr_server_malformed(server);
        return;
    }
    slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    if (fresh) {
        slot->insert.sequence = request.sequence;
        slot->insert.items = request.items;
        memset(applied, 0, NR_MAX_FRAGMENTS * sizeof(*applied));
        session->inserts |= (uint16_t)(1u << header->slot);
    }
    struct nr_wait wait = {0};
    bool taken = slot->insert.refusal != 0 || take_records(server, arrival, slot, &wait);
    if (taken)
        slot->taken |= 1ull << header->fragment;
    commit_ready(server, session, slot, arrival->now, arrival->outbox);
    if (taken)
        nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
    else
        nr_server_send_wait(server, arrival, slot, &wait);
}
