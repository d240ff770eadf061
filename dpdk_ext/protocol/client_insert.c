#include "client_internal.h"

/* What is inserted stands in a log of records, in the order it was formed: steps by reference to the owner's ring, items by value.
 *
 *      tail                cursor              head
 *       | sent, undecided    | not packed yet    |
 *
 * INSERT requests cover the part between tail and cursor. They are packed once (start positions of their fragments) and written
 * from the log each time a fragment is sent, so that a repeat needs no copy. A lost session puts the cursor back to the tail.
 * Records of a stream that the server refused are never packed: see refuse_front. */

static void refuse_front(struct nr_client *client);

static struct nr_logged *record_at(const struct nr_client *client, uint64_t position)
{
    return &client->log[position & client->log_mask];
}

static uint32_t padded(uint32_t bytes)
{
    return (bytes + 7) & ~7u;
}

static uint32_t record_bytes(const struct nr_client *client, const struct nr_logged *record)
{
    if (record->type == NR_RECORD_STEP)
        return (uint32_t)sizeof(struct nr_wire_step) + padded(record->total);
    return (uint32_t)sizeof(struct nr_wire_item) + padded(client->tables[record->table].item_bytes);
}

int nr_log_reserve(struct nr_client *client, uint64_t records)
{
    uint64_t used = client->head - client->tail;
    uint64_t capacity = client->log != NULL ? client->log_mask + 1 : 0;
    if (used + records <= capacity)
        return NR_OK;
    uint64_t larger = capacity ? capacity : 1024;
    while (used + records > larger)
        larger *= 2;
    struct nr_logged *log = malloc(larger * sizeof(*log));
    if (log == NULL)
        return NR_NO_MEMORY;
    for (uint64_t p = client->tail; p != client->head; p++)
        log[p & (larger - 1)] = *record_at(client, p);
    free(client->log);
    client->log = log;
    client->log_mask = larger - 1;
    return NR_OK;
}

/* In front of all others, while nothing is packed: the cursor goes with the tail. */
struct nr_logged *nr_log_front(struct nr_client *client)
{
    client->tail--;
    client->cursor.record = client->tail;
    client->cursor.offset = 0;
    struct nr_logged *record = record_at(client, client->tail);
    memset(record, 0, sizeof(*record));
    return record;
}

static struct nr_logged *push(struct nr_client *client)
{
    if (nr_log_reserve(client, 1) != NR_OK)
        return NULL;
    struct nr_logged *record = record_at(client, client->head++);
    memset(record, 0, sizeof(*record));
    return record;
}

int nr_client_step(struct nr_client *client, uint32_t stream_number, uint32_t total)
{
    struct nr_client_stream *stream = &client->streams[stream_number];
    struct nr_logged *record = push(client);
    if (record == NULL)
        return NR_NO_MEMORY;
    record->type = NR_RECORD_STEP;
    record->stream = stream_number;
    record->number = stream->next_step++;
    record->total = total;
    stream->partial[record->number & (stream->ring - 1)] = total != client->stores[stream->store].step_bytes;
    client->waiting_bytes += record_bytes(client, record);
    return NR_OK;
}

int nr_client_item(struct nr_client *client, uint32_t stream_number, uint32_t table, const struct nr_item *item, uint64_t tag)
{
    struct nr_logged *record = push(client);
    if (record == NULL)
        return NR_NO_MEMORY;
    record->type = NR_RECORD_ITEM;
    record->flags = (uint8_t)item->flags;
    record->table = (uint16_t)table;
    record->stream = stream_number;
    record->number = client->streams[stream_number].next_item++;
    record->first_step = item->first_step;
    record->priority = item->priority;
    record->steps = (uint16_t)item->steps;
    record->anchor = (uint16_t)item->anchor;
    record->tag = tag;
    record->key = NR_KEY_NONE;
    memcpy(record->columns, item->columns, client->tables[table].item_bytes);
    client->waiting_bytes += record_bytes(client, record);
    client->waiting_items++;
    return NR_OK;
}

void nr_client_flush(struct nr_client *client)
{
    client->flush_to = client->head;
}

/* ---- packing ---- */

static uint32_t fragment_room(const struct nr_client *client)
{
    return client->max_datagram - (uint32_t)(sizeof(struct nr_header) + sizeof(struct nr_wire_insert));
}

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Bytes of a step that still fit behind `used`: all that is left of it, or a part when the rest of a datagram is worth it. */
static uint32_t step_part(uint32_t left, uint32_t used, uint32_t room)
{
    enum { WORTH = 256 };
    uint32_t head = (uint32_t)sizeof(struct nr_wire_step);
    if (used + head + padded(left) <= room)
        return left;
    if (used + head + WORTH > room)
        return 0;
    return (room - used - head) & ~7u;
}

static void pack(struct nr_client *client, struct nr_insert *insert)
{
    uint32_t room = fragment_room(client), used = 0, count = 0;
    struct nr_position at = client->cursor;
    insert->items = 0;
    insert->start[0] = at;
    while (at.record != client->head) {
        struct nr_logged *record = record_at(client, at.record);
        if (client->streams[record->stream].status != NR_OK)
            break;
        uint32_t take, bytes;
        if (record->type == NR_RECORD_STEP) {
            take = step_part(record->total - at.offset, used, room);
            bytes = (uint32_t)sizeof(struct nr_wire_step) + padded(take);
        } else {
            if (insert->items == NR_INSERT_ITEMS)
                break;
            bytes = record_bytes(client, record);
            take = used + bytes <= room;
        }
        if (take == 0) { /* the next fragment */
            if (count + 1 == NR_MAX_FRAGMENTS)
                break;
            insert->start[++count] = at;
            used = 0;
            continue;
        }
        used += bytes;
        if (record->type == NR_RECORD_STEP) {
            at.offset += take;
            if (at.offset == record->total)
                at = (struct nr_position){.record = at.record + 1};
        } else {
            insert->items++;
            client->waiting_items--;
            at = (struct nr_position){.record = at.record + 1};
        }
        client->waiting_bytes -= least(bytes, (uint32_t)client->waiting_bytes);
    }
    if (used > 0 || count == 0)
        count++;
    insert->start[count] = at;
    if (at.record == client->head)
        client->waiting_bytes = 0; /* heads of parts were not counted when pushed */
    client->cursor = at;
    insert->fragments = (uint16_t)count;
}

void nr_inserts_build(struct nr_client *client, uint64_t now)
{
    (void)now;
    if (client->recovering != 0)
        return; /* a stream's past goes first */
    refuse_front(client);
    while (client->cursor.record != client->head && nr_window_room(client) > 0) {
        bool urgent = client->cursor.record - client->tail < client->flush_to - client->tail &&
                      client->flush_to - client->tail <= client->head - client->tail;
        if (client->active[NR_CLASS_INSERT] > 0 && !urgent && client->waiting_bytes < fragment_room(client) &&
            client->waiting_items < NR_INSERT_ITEMS)
            return; /* company may come while others are on their way */
        if (client->streams[record_at(client, client->cursor.record)->stream].status != NR_OK)
            return; /* not open yet, or refused: then decided when nothing is on its way */
        if (client->sequence - client->insert_first == NR_INSERTS_ACTIVE)
            return;
        struct nr_request *request = nr_request_new(client, &nr_call_insert);
        if (request == NULL)
            return;
        int slot = nr_slot_take(client, NR_CLASS_INSERT);
        if (slot < 0) {
            nr_request_release(client, request);
            return;
        }
        struct nr_insert *insert = &client->inserts[client->sequence % NR_INSERTS_ACTIVE];
        insert->sequence = client->sequence++;
        insert->done = false;
        pack(client, insert);
        request->fragments = insert->fragments;
        request->internal = true;
        request->insert = insert;
        request->age = client->age++;
        request->slot = (uint8_t)slot;
        request->number = client->slots[slot].number;
        client->slots[slot].request = request;
    }
}

static uint32_t write_insert(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                             uint32_t capacity)
{
    (void)capacity;
    const struct nr_insert *insert = request->insert;
    struct nr_wire_insert head = {.sequence = insert->sequence, .items = insert->items};
    memcpy(body, &head, sizeof(head));
    uint8_t *out = body + sizeof(head);

    uint16_t index = 0;
    for (uint64_t p = insert->start[0].record; p != insert->start[fragment].record; p++)
        index += record_at(client, p)->type == NR_RECORD_ITEM;

    struct nr_position at = insert->start[fragment], end = insert->start[fragment + 1];
    while (at.record != end.record || at.offset != end.offset) {
        const struct nr_logged *record = record_at(client, at.record);
        const struct nr_client_stream *stream = &client->streams[record->stream];
        if (record->type == NR_RECORD_STEP) {
            uint32_t until = at.record == end.record ? end.offset : record->total;
            uint32_t length = until - at.offset;
            struct nr_wire_step step = {.type = NR_RECORD_STEP,
                                        .length = (uint16_t)length,
                                        .handle = stream->handle,
                                        .number = record->number,
                                        .total = record->total,
                                        .offset = at.offset};
            memcpy(out, &step, sizeof(step));
            out += sizeof(step);
            memcpy(out, stream->steps + (size_t)(record->number & (stream->ring - 1)) * stream->stride + at.offset, length);
            memset(out + length, 0, padded(length) - length);
            out += padded(length);
            if (until == record->total)
                at = (struct nr_position){.record = at.record + 1};
            else
                at.offset = until;
        } else {
            uint32_t columns = client->tables[record->table].item_bytes;
            struct nr_wire_item item = {.type = NR_RECORD_ITEM,
                                        .flags = record->flags,
                                        .table = record->table,
                                        .handle = stream->handle,
                                        .number = record->number,
                                        .first_step = record->first_step,
                                        .priority = record->priority,
                                        .index = index++,
                                        .steps = record->steps,
                                        .anchor = record->anchor,
                                        .columns = (uint16_t)columns};
            memcpy(out, &item, sizeof(item));
            out += sizeof(item);
            memcpy(out, record->columns, columns);
            memset(out + columns, 0, padded(columns) - columns);
            out += padded(columns);
            at = (struct nr_position){.record = at.record + 1};
        }
    }
    return (uint32_t)(out - body);
}

/* ---- decisions ---- */

static bool decide(struct nr_client *client, const struct nr_logged *record)
{
    uint64_t used = client->decided_head - client->decided_tail;
    if (client->decided == NULL || used > client->decided_mask) {
        uint64_t larger = client->decided != NULL ? 2 * (client->decided_mask + 1) : 1024;
        struct nr_decided *ring = malloc(larger * sizeof(*ring));
        if (ring == NULL)
            return false;
        for (uint64_t p = client->decided_tail; p != client->decided_head; p++)
            ring[p & (larger - 1)] = client->decided[p & client->decided_mask];
        free(client->decided);
        client->decided = ring;
        client->decided_mask = larger - 1;
    }
    client->decided[client->decided_head++ & client->decided_mask] =
        (struct nr_decided){.tag = record->tag, .key = record->key, .status = record->status, .stream = record->stream};
    return true;
}

/* What stands in front while nothing is on its way, of streams that the server has refused, is decided here, by the stream's
 * status. Sent it would carry another stream's handle, or none. */
static void refuse_front(struct nr_client *client)
{
    while (client->insert_first == client->sequence && client->cursor.record != client->head) {
        struct nr_logged *record = record_at(client, client->cursor.record);
        struct nr_client_stream *stream = &client->streams[record->stream];
        if (stream->status == NR_OK || stream->status == NR_PENDING)
            return;
        if (record->type == NR_RECORD_STEP) {
            if (record->number >= stream->decided_step)
                stream->decided_step = record->number + 1;
        } else {
            if (record->key == NR_KEY_NONE) /* else an answer of the session before has decided it */
                record->status = stream->status;
            if (!decide(client, record))
                return; /* no memory: tried again at the next send */
            if (record->key == NR_KEY_NONE && stream->lost_item == record->number)
                stream->lost_item++; /* never acknowledged: not lost when a later session has no such item */
            stream->decided_item = record->number + 1;
            client->waiting_items--;
        }
        client->waiting_bytes -= least(record_bytes(client, record), (uint32_t)client->waiting_bytes);
        client->tail++;
        client->cursor = (struct nr_position){.record = client->tail};
        client->progress++;
    }
}

/* Takes what is decided off the log, in order. */
void nr_inserts_pop(struct nr_client *client)
{
    while (client->insert_first != client->sequence && client->inserts[client->insert_first % NR_INSERTS_ACTIVE].done) {
        struct nr_insert *insert = &client->inserts[client->insert_first % NR_INSERTS_ACTIVE];
        uint64_t end = insert->start[insert->fragments].record; /* a step in the middle of which it ends is not decided */
        for (; client->tail != end; client->tail++) {
            struct nr_logged *record = record_at(client, client->tail);
            struct nr_client_stream *stream = &client->streams[record->stream];
            if (record->type == NR_RECORD_STEP) {
                if (record->number >= stream->decided_step)
                    stream->decided_step = record->number + 1;
            } else {
                if (!decide(client, record))
                    return; /* no memory: tried again when more is decided */
                stream->decided_item = record->number + 1;
            }
        }
        client->insert_first++;
        client->progress++;
    }
}

static void fill(struct nr_client *client, struct nr_insert *insert, const uint64_t *keys, const uint8_t *statuses, int status)
{
    uint32_t i = 0;
    for (uint64_t p = insert->start[0].record; p != insert->start[insert->fragments].record; p++) {
        struct nr_logged *record = record_at(client, p);
        if (record->type != NR_RECORD_ITEM)
            continue;
        uint64_t key = NR_KEY_NONE;
        if (keys != NULL)
            memcpy(&key, &keys[i], sizeof(key));
        if (record->key == NR_KEY_NONE) { /* else known from an answer of the session before */
            record->key = key;
            record->status = statuses != NULL ? statuses[i] : status;
        }
        i++;
    }
    insert->done = true;
    nr_inserts_pop(client);
}

static int insert_result(struct nr_client *client, struct nr_request *request, const uint8_t *bytes, uint32_t length, uint64_t now)
{
    (void)now;
    struct nr_insert *insert = request->insert;
    if (length < insert->items * (sizeof(uint64_t) + 1))
        return NR_MALFORMED;
    fill(client, insert, (const uint64_t *)(const void *)bytes, bytes + insert->items * sizeof(uint64_t), NR_OK);
    return NR_OK;
}

static void insert_refused(struct nr_client *client, struct nr_request *request, int status)
{
    fill(client, request->insert, NULL, NULL, status);
}

const struct nr_call nr_call_insert = {
    .operation = NR_OP_INSERT, .class = NR_CLASS_INSERT, .write = write_insert, .result = insert_result, .refused = insert_refused};

/* The session is gone: what is not decided is packed anew. */
void nr_inserts_reset(struct nr_client *client)
{
    client->sequence = client->insert_first = 0;
    for (; client->tail != client->head; client->tail++) { /* an earlier recovery's: this one looks anew at what is lacking */
        const struct nr_logged *record = record_at(client, client->tail);
        if (record->type != NR_RECORD_STEP || record->number >= client->streams[record->stream].decided_step)
            break;
    }
    client->cursor = (struct nr_position){.record = client->tail};
    client->waiting_bytes = 0;
    client->waiting_items = 0;
    for (uint64_t p = client->tail; p != client->head; p++) {
        client->waiting_bytes += record_bytes(client, record_at(client, p));
        client->waiting_items += record_at(client, p)->type == NR_RECORD_ITEM;
    }
    client->flush_to = client->head;
}

uint32_t nr_client_decided(struct nr_client *client, uint32_t capacity, struct nr_decided *decided)
{
    uint32_t count = 0;
    while (count < capacity && client->decided_tail != client->decided_head)
        decided[count++] = client->decided[client->decided_tail++ & client->decided_mask];
    return count;
}

void nr_client_insert_wait(const struct nr_client *client, struct nr_wait *wait)
{
    const struct nr_request *oldest = NULL;
    *wait = (struct nr_wait){.table = UINT32_MAX};
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_request *request = client->slots[s].request;
        if (request != NULL && request->call == &nr_call_insert && request->wait.reason != 0 &&
            (oldest == NULL || request->age < oldest->age))
            oldest = request;
    }
    if (oldest != NULL)
        *wait = oldest->wait;
}
