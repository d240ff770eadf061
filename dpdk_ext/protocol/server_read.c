/* Messages: what SAMPLE, GET, FETCH, SPEC and TABLES prepare and the client pulls, and READ, which pulls. Nothing of a message is
 * kept: any range of its bytes is made when it is asked for. */
#include <string.h>

#include "server_internal.h"

/* Bytes that follow the head. */
static uint64_t message_bytes(const struct nr_slot *slot)
{
    return nr_server_is_draw(slot) ? slot->sample.bytes : slot->message.bytes;
}

static struct nr_wire_message head_of(const struct nr_server *server, const struct nr_slot *slot)
{
    const struct nr_draw_head *draw = &slot->sample.draw.head;

    switch (slot->operation) {
    case NR_OP_SAMPLE:
    case NR_OP_GET:
        return (struct nr_wire_message){.bytes = slot->sample.bytes,
                                        .number = draw->number,
                                        .size = draw->size,
                                        .total = draw->total,
                                        .max_leaf = draw->max_leaf,
                                        .min_leaf = draw->min_leaf};
    case NR_OP_FETCH:
        return (struct nr_wire_message){.bytes = slot->message.bytes, .number = slot->message.version};
    case NR_OP_SPEC:
        return (struct nr_wire_message){.bytes = slot->message.bytes, .number = server->config.incarnation};
    default:
        return (struct nr_wire_message){.bytes = slot->message.bytes, .number = server->tables};
    }
}

/* Datagrams begin at multiples of 8, so a table's numbers are each whole, though not all of one moment. */
static void copy_tables(const struct nr_server *server, uint64_t offset, uint8_t *target, uint32_t length)
{
    while (length > 0) {
        struct nr_table_info info;
        uint32_t table = (uint32_t)(offset / sizeof(info)), from = (uint32_t)(offset % sizeof(info));
        uint32_t part = (uint32_t)sizeof(info) - from < length ? (uint32_t)sizeof(info) - from : length;

        nr_table_info(server->engine, table, &info);
        memcpy(target, (const uint8_t *)&info + from, part);
        target += part;
        offset += part;
        length -= part;
    }
}

/* Bytes [offset, offset + length) after the head. Of these only a draw's can stay where they are. */
static int gather_bytes(struct nr_server *server, const struct nr_slot *slot, uint64_t offset, uint32_t length, uint64_t now,
                        struct nr_pieces *pieces)
{
    switch (slot->operation) {
    case NR_OP_SAMPLE:
    case NR_OP_GET:
        server->counters.rows_bytes += length;
        return nr_draw_gather(server->engine, &slot->sample.draw, offset, length, pieces);
    case NR_OP_FETCH:
        return nr_parameters_read(server->engine, slot->message.set, slot->message.version, offset,
                                  nr_pieces_copied(pieces, length), length, now);
    case NR_OP_SPEC:
        memcpy(nr_pieces_copied(pieces, length), server->spec + offset, length);
        return NR_OK;
    default:
        copy_tables(server, offset, nr_pieces_copied(pieces, length), length);
        return NR_OK;
    }
}

static int gather_message(struct nr_server *server, const struct nr_slot *slot, uint64_t offset, uint32_t length, uint64_t now,
                          struct nr_pieces *pieces)
{
    struct nr_wire_message head;

    if (offset < sizeof(head)) {
        uint32_t part = (uint32_t)(sizeof(head) - offset) < length ? (uint32_t)(sizeof(head) - offset) : length;

        head = head_of(server, slot);
        memcpy(nr_pieces_copied(pieces, part), (const uint8_t *)&head + offset, part);
        offset += part;
        length -= part;
    }
    return length == 0 ? NR_OK : gather_bytes(server, slot, offset - sizeof(head), length, now, pieces);
}

static void completed(struct nr_server *server, struct nr_slot *slot)
{
    if (nr_server_is_draw(slot) && !slot->sample.complete) {
        slot->sample.complete = true;
        ++*(slot->operation == NR_OP_SAMPLE ? &server->counters.samples : &server->counters.gets);
    }
}

void nr_server_send_message(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                            struct nr_slot *slot, uint32_t offset, uint32_t wanted)
{
    if (slot->status != NR_OK || slot->waiting != NR_NOT_WAITING || wanted == 0) {
        nr_server_send_slot(server, outbox, answer, now, slot);
        return;
    }
    uint32_t full = answer->session->max_datagram - (uint32_t)NR_RESPONSE_OVERHEAD;
    uint64_t end = sizeof(struct nr_wire_message) + message_bytes(slot);

    for (uint64_t at = offset; wanted > 0 && at < end && at <= UINT32_MAX; wanted--) {
        uint32_t length = end - at < full ? (uint32_t)(end - at) : full;
        struct nr_pieces pieces = {.own = nr_outbox_place(outbox) + NR_RESPONSE_OVERHEAD,
                                   .least = server->config.segment_least,
                                   .room = NR_TX_SEGMENTS,
                                   .segment = nr_outbox_segments(outbox)};
        int status = gather_message(server, slot, at, length, now, &pieces);

        if (status != NR_OK) { /* the draw was reclaimed, the parameters replaced: for good */
            slot->status = (uint16_t)status;
            nr_server_send_slot(server, outbox, answer, now, slot);
            return;
        }
        nr_server_push(server, outbox, answer, now, NR_OK, NR_FLAG_DATA, (uint32_t)at,
                       (uint32_t)sizeof(struct nr_wire_stamps) + length, (uint16_t)pieces.count);
        at += length;
        if (at == end)
            completed(server, slot);
    }
}

void nr_server_read(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_slot *slot = &arrival->session->slot[header->slot];
    struct nr_answer answer = nr_server_answer_to(arrival);
    int32_t ahead = (int32_t)(header->request - slot->request);

    if (arrival->length != 0) {
        nr_server_malformed(server);
        return;
    }
    if (ahead < 0) {
        server->counters.old++;
        return;
    }
    if (ahead > 0 || slot->operation == 0) {
        struct nr_wire_state state = {0};

        nr_server_send_state(server, arrival->outbox, &answer, arrival->now, NR_PENDING, &state, NULL, 0);
        return;
    }
    if (!nr_server_is_message(slot)) {
        nr_server_send_slot(server, arrival->outbox, &answer, arrival->now, slot);
        return;
    }
    if (header->offset >= sizeof(struct nr_wire_message) + message_bytes(slot) && slot->status == NR_OK) {
        nr_server_malformed(server);
        return;
    }
    nr_server_send_message(server, arrival->outbox, &answer, arrival->now, slot, header->offset, header->fragments);
}

static void start_fetch(struct nr_server *server, struct nr_slot *slot, const struct nr_wire_fetch *request)
{
    uint64_t version, bytes;
    int status = request->set < server->sets ? nr_parameters_version(server->engine, request->set, &version, &bytes) : NR_NO_SET;

    slot->status = (uint16_t)status;
    if (status != NR_OK)
        return;
    if (version <= request->newer_than)
        bytes = 0;
    else if (bytes > UINT32_MAX - sizeof(struct nr_wire_message)) /* offsets have 32 bits */
        slot->status = NR_BAD_LENGTH;
    slot->message.set = request->set;
    slot->message.version = version;
    slot->message.bytes = bytes;
    server->counters.fetches += slot->status == NR_OK;
}

void nr_server_message(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_wire_fetch fetch = {0};
    uint8_t operation = arrival->header.operation;
    bool fresh;

    if (arrival->length != (operation == NR_OP_FETCH ? sizeof(fetch) : 0)) {
        nr_server_malformed(server);
        return;
    }
    struct nr_slot *slot = nr_server_slot(server, arrival, &fresh);
    if (slot == NULL)
        return;
    if (!fresh) {
        server->counters.duplicates++;
    } else if (operation == NR_OP_FETCH) {
        memcpy(&fetch, arrival->body, sizeof(fetch));
        start_fetch(server, slot, &fetch);
    } else {
        slot->status = NR_OK;
        slot->message.bytes =
            operation == NR_OP_SPEC ? server->spec_bytes : server->tables * (uint64_t)sizeof(struct nr_table_info);
    }
    slot->taken = 1;
    struct nr_answer answer = nr_server_answer_to(arrival);
    nr_server_send_message(server, arrival->outbox, &answer, arrival->now, slot, 0, arrival->header.fragments);
}
