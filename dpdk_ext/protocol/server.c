#include "server_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What a datagram of each operation must look like before its handler sees it. */
static const struct {
    bool stateless; /* slot NR_STATELESS_SLOT, else 0..14 */
    bool many; /* `fragments` counts the request's datagrams, and `fragment` is one of them; else it says how many are wanted */
    uint32_t least; /* bytes of body */
    void (*handle)(struct nr_server *server, struct nr_arrival *arrival);
} operations[NR_OP_LAST + 1] = {
    [NR_OP_BYE] = {true, false, 0, nr_server_bye},
    [NR_OP_STREAMS] = {false, true, sizeof(struct nr_wire_streams), nr_server_streams},
    [NR_OP_CLOSE] = {true, false, sizeof(struct nr_wire_close), nr_server_close},
    [NR_OP_INSERT] = {false, true, sizeof(struct nr_wire_insert), nr_server_insert},
    [NR_OP_SAMPLE] = {false, false, sizeof(struct nr_wire_sample), nr_server_sample},
    [NR_OP_READ] = {false, false, 0, nr_server_read},
    [NR_OP_SETTLE] = {true, false, sizeof(struct nr_wire_settlement), nr_server_settle},
    [NR_OP_UPDATE] = {false, true, sizeof(struct nr_wire_update), nr_server_update},
    [NR_OP_PUBLISH] = {false, true, sizeof(struct nr_wire_publish), nr_server_publish},
    [NR_OP_FETCH] = {false, false, sizeof(struct nr_wire_fetch), nr_server_message},
    [NR_OP_SPEC] = {false, false, 0, nr_server_message},
    [NR_OP_TABLES] = {false, false, 0, nr_server_message},
    [NR_OP_PING] = {true, false, 0, nr_server_ping},
    [NR_OP_DELETE] = {false, true, sizeof(struct nr_wire_update), nr_server_update},
    [NR_OP_ADMIN] = {false, true, sizeof(struct nr_wire_admin), nr_server_admin},
    [NR_OP_GET] = {false, false, sizeof(struct nr_wire_get), nr_server_get},
    [NR_OP_HISTOGRAM] = {false, true, sizeof(struct nr_wire_histogram), nr_server_histogram},
};

uint64_t nr_server_bytes(const struct nr_server_config *config)
{
    return sizeof(struct nr_server) + nr_server_session_bytes(config) + strlen(config->spec) + 1;
}

struct nr_server *nr_server_create(struct nr_engine *engine, const struct nr_server_config *config, int *status)
{
    if (config->sessions == 0 || config->sessions > NR_MAX_SESSIONS || config->max_datagram < NR_MIN_DATAGRAM ||
        config->max_datagram > NR_MAX_DATAGRAM || config->incarnation == 0 || config->spec == NULL) {
        *status = NR_BAD_CONFIG;
        return NULL;
    }
    *status = NR_NO_MEMORY;
    struct nr_server *server = calloc(1, sizeof(*server));
    if (server == NULL)
        return NULL;
    server->engine = engine;
    server->config = *config;
    if (server->config.segment_least == 0)
        server->config.segment_least = NR_SEGMENT_LEAST;
    server->config.max_datagram &= ~7u; /* so that numbers within a message do not straddle two of its datagrams */
    server->tables = nr_engine_table_count(engine);
    server->sets = nr_engine_set_count(engine);
    nr_random_seed(&server->random, config->incarnation);
    server->nonce_key = nr_random_next(&server->random);
    server->spec_bytes = (uint32_t)strlen(config->spec);
    server->spec = malloc((size_t)server->spec_bytes + 1);
    server->waiters = calloc(server->tables ? server->tables : 1, sizeof(*server->waiters));
    server->publications = calloc(server->sets ? server->sets : 1, sizeof(*server->publications));
    if (server->spec == NULL || server->waiters == NULL || server->publications == NULL ||
        nr_server_sessions_open(server) != NR_OK) {
        nr_server_destroy(server);
        return NULL;
    }
    memcpy(server->spec, config->spec, (size_t)server->spec_bytes + 1);
    server->config.spec = server->spec;
    for (uint32_t table = 0; table < server->tables; table++)
        for (int kind = 0; kind < NR_WAITING_KINDS; kind++)
            server->waiters[table][kind].first = server->waiters[table][kind].last = NR_NOWHERE;
    *status = NR_OK;
    return server;
}

void nr_server_destroy(struct nr_server *server)
{
    if (server == NULL)
        return;
    nr_server_sessions_close(server);
    free(server->spec);
    free(server->waiters);
    free(server->publications);
    free(server);
}

void nr_server_counters(const struct nr_server *server, struct nr_server_counters *counters)
{
    *counters = server->counters;
}

void nr_server_malformed(struct nr_server *server)
{
    server->counters.malformed++;
}

uint16_t nr_server_credits(const struct nr_server *server)
{
    uint64_t open = server->counters.sessions_open ? server->counters.sessions_open : 1;
    uint64_t credits = server->config.receive_buffer / open;

    return (uint16_t)(credits < 4 ? 4 : credits > 256 ? 256 : credits);
}

void nr_server_sent(void *server, uint64_t token)
{
    nr_step_sent(((struct nr_server *)server)->engine, token);
}

/* ---- Responses ---- */

struct nr_answer nr_server_answer_to(const struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;

    return (struct nr_answer){.peer = arrival->peer,
                              .session = arrival->session,
                              .received = arrival->now,
                              .echo = (uint32_t)header->counter,
                              .session_id = header->session,
                              .request = header->request,
                              .fragment = header->fragment,
                              .fragments = header->fragments,
                              .operation = header->operation,
                              .slot = header->slot};
}

struct nr_answer nr_server_answer_late(struct nr_session *session, const struct nr_slot *slot)
{
    return (struct nr_answer){.peer = &session->peer,
                              .session = session,
                              .received = slot->received,
                              .echo = slot->echo,
                              .session_id = session->id,
                              .request = slot->request,
                              .fragment = slot->fragment,
                              .fragments = slot->fragments,
                              .operation = slot->operation,
                              .slot = (uint8_t)(slot - session->slot)};
}

static struct nr_header header_of(const struct nr_server *server, const struct nr_answer *answer, int status)
{
    return (struct nr_header){.magic = NR_MAGIC,
                              .version = NR_VERSION,
                              .operation = answer->operation | NR_OP_RESPONSE,
                              .session = answer->session_id,
                              .slot = answer->slot,
                              .request = answer->request,
                              .fragment = answer->fragment,
                              .fragments = answer->fragments,
                              .counter = answer->session ? ++answer->session->counter : 0,
                              .status = (uint16_t)status,
                              .credits = nr_server_credits(server)};
}

void nr_server_push(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now, int status,
                    uint8_t flags, uint32_t offset, uint32_t length, uint16_t segments)
{
    uint8_t *place = nr_outbox_place(outbox);
    uint32_t own = (uint32_t)sizeof(struct nr_header) + length;
    uint64_t residence = now > answer->received ? now - answer->received : 0;
    struct nr_wire_stamps stamps = {
        .received = answer->received, .residence = residence < UINT32_MAX ? (uint32_t)residence : UINT32_MAX, .echo = answer->echo};
    struct nr_header header = header_of(server, answer, status);

    header.flags = flags;
    header.offset = offset;
    header.length = (uint16_t)length;
    memcpy(place, &header, sizeof(header));
    memcpy(place + sizeof(header), &stamps, sizeof(stamps));
    for (uint16_t i = 0; i < segments; i++)
        own -= nr_outbox_segments(outbox)[i].length;
    nr_outbox_push_segments(outbox, answer->peer, (uint16_t)own, segments);
    server->counters.datagrams_out++;
    server->counters.bytes_out += sizeof(header) + length;
}

void nr_server_send_state(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                          int status, const struct nr_wire_state *state, const void *result, uint32_t result_bytes)
{
    uint8_t *at = nr_outbox_place(outbox) + NR_RESPONSE_OVERHEAD;

    memcpy(at, state, sizeof(*state));
    if (result_bytes != 0)
        memcpy(at + sizeof(*state), result, result_bytes);
    nr_server_push(server, outbox, answer, now, status, 0, 0,
                   (uint32_t)(sizeof(struct nr_wire_stamps) + sizeof(*state)) + result_bytes, 0);
}

static struct nr_wire_state state_of(uint64_t fragments, const struct nr_wait *wait)
{
    struct nr_wire_state state = {.fragments = fragments};

    if (wait != NULL) {
        state.reason = (uint32_t)wait->reason;
        state.table = wait->table;
        state.have = wait->have;
        state.need = wait->need;
    }
    return state;
}

void nr_server_send_slot(struct nr_server *server, struct nr_outbox *outbox, const struct nr_answer *answer, uint64_t now,
                         const struct nr_slot *slot)
{
    const struct nr_wait *wait = NULL;
    int status = slot->status;

    if (slot->waiting != NR_NOT_WAITING) {
        wait = &nr_server_waiters(server, slot->table, slot->waiting)->wait;
        status = wait->reason;
    } else if (nr_is_wait(status)) {
        wait = &slot->wait;
    }
    struct nr_wire_state state = state_of(slot->taken, wait);
    nr_server_send_state(server, outbox, answer, now, status, &state, nr_server_memory(answer->session, slot),
                         status == NR_OK ? slot->result_bytes : 0);
}

void nr_server_send_wait(struct nr_server *server, const struct nr_arrival *arrival, const struct nr_slot *slot,
                         const struct nr_wait *wait)
{
    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = state_of(slot->taken, wait);

    nr_server_send_state(server, arrival->outbox, &answer, arrival->now, wait->reason, &state, NULL, 0);
}

void nr_server_send_bare(struct nr_server *server, const struct nr_arrival *arrival, int status)
{
    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = {0};

    answer.session = NULL;
    if (arrival->size >= NR_RESPONSE_OVERHEAD + sizeof(state)) {
        nr_server_send_state(server, arrival->outbox, &answer, arrival->now, status, &state, NULL, 0);
        return;
    }
    struct nr_header header = header_of(server, &answer, status);
    memcpy(nr_outbox_place(arrival->outbox), &header, sizeof(header));
    nr_outbox_push(arrival->outbox, answer.peer, sizeof(header));
    server->counters.datagrams_out++;
    server->counters.bytes_out += sizeof(header);
}

/* ---- Requests ---- */

struct nr_slot *nr_server_slot(struct nr_server *server, struct nr_arrival *arrival, bool *fresh)
{
    const struct nr_header *header = &arrival->header;
    struct nr_slot *slot = &arrival->session->slot[header->slot];
    int32_t ahead = (int32_t)(header->request - slot->request);

    *fresh = ahead > 0;
    if (ahead < 0) {
        server->counters.old++;
        return NULL;
    }
    if (ahead == 0 && slot->operation != header->operation) {
        nr_server_malformed(server);
        return NULL;
    }
    if (ahead > 0) {
        nr_server_slot_clear(server, arrival->session, slot);
        slot->request = header->request;
        slot->operation = header->operation;
        slot->fragments = header->fragments;
        slot->status = NR_PENDING;
    }
    slot->received = arrival->now;
    slot->echo = (uint32_t)header->counter;
    slot->fragment = header->fragment;
    return slot;
}

/* The header alone, cheap checks first. False when the datagram is not to be handled; it is counted then. */
static bool header_is_good(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;

    if (header->magic != NR_MAGIC || header->operation == 0 || header->operation >= NR_OP_RESPONSE) {
        nr_server_malformed(server);
        return false;
    }
    if (header->version != NR_VERSION) {
        server->counters.bad_version++;
        nr_server_send_bare(server, arrival, NR_BAD_VERSION);
        return false;
    }
    if (header->operation > NR_OP_LAST || header->length != arrival->length || header->flags != 0 || header->status != 0 ||
        header->crc32c != 0) {
        nr_server_malformed(server);
        return false;
    }
    if (header->tag != 0) { /* it believes in a key; there is none */
        server->counters.refused++;
        return false;
    }
    return true;
}

static bool shape_is_good(const struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;

    if (arrival->length < operations[header->operation].least)
        return false;
    if (operations[header->operation].stateless)
        return header->slot == NR_STATELESS_SLOT && header->fragment == 0 && header->fragments <= 1;
    if (header->slot >= NR_SLOTS || (header->offset != 0 && header->operation != NR_OP_READ))
        return false;
    if (operations[header->operation].many)
        return header->fragments >= 1 && header->fragments <= NR_MAX_FRAGMENTS && header->fragment < header->fragments;
    return header->fragment == 0 && header->fragments <= NR_MAX_WANTED;
}

static void handle(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;

    if (!header_is_good(server, arrival))
        return;
    if (header->operation == NR_OP_HELLO) {
        nr_server_hello(server, arrival);
        return;
    }
    arrival->session = nr_server_session(server, header->session);
    if (arrival->session == NULL) {
        server->counters.no_session++;
        nr_server_send_bare(server, arrival, NR_NO_SESSION);
        return;
    }
    if (!nr_peer_equal(&arrival->session->peer, arrival->peer)) {
        server->counters.wrong_peer++;
        return;
    }
    if (operations[header->operation].handle == NULL || !shape_is_good(arrival)) {
        nr_server_malformed(server);
        return;
    }
    server->directory[arrival->session->index].heard = arrival->now;
    operations[header->operation].handle(server, arrival);
}

void nr_server_receive(struct nr_server *server, const struct nr_rx *rx, uint64_t now, struct nr_outbox *outbox)
{
    struct nr_arrival arrival = {.size = rx->length, .now = now, .outbox = outbox, .peer = &rx->peer};

    server->counters.datagrams_in++;
    server->counters.bytes_in += rx->length;
    if (rx->length < sizeof(arrival.header)) {
        nr_server_malformed(server);
        return;
    }
    memcpy(&arrival.header, rx->data, sizeof(arrival.header));
    arrival.body = rx->data + sizeof(arrival.header);
    arrival.length = rx->length - (uint32_t)sizeof(arrival.header);
    handle(server, &arrival);
    nr_server_pump(server, now, outbox);
}

void nr_server_ping(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_answer answer = nr_server_answer_to(arrival);
    uint32_t least = NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state);
    uint32_t size = arrival->size < arrival->session->max_datagram ? arrival->size : arrival->session->max_datagram;
    uint32_t padding = size > least ? size - least : 0;
    uint8_t *place = nr_outbox_place(arrival->outbox);

    memset(place + NR_RESPONSE_OVERHEAD, 0, sizeof(struct nr_wire_state) + padding);
    nr_server_push(server, arrival->outbox, &answer, arrival->now, NR_OK, 0, 0,
                   least - (uint32_t)sizeof(struct nr_header) + padding, 0);
    server->counters.pings++;
}

/* ---- Audit ---- */

int nr_server_audit_says(char *message, size_t size, const char *format, uint64_t a, uint64_t b)
{
    if (size != 0)
        snprintf(message, size, format, (unsigned long long)a, (unsigned long long)b);
    return NR_MALFORMED;
}

int nr_server_audit(const struct nr_server *server, char *message, size_t size)
{
    int status = nr_server_sessions_audit(server, message, size);

    if (status == NR_OK)
        status = nr_server_park_audit(server, message, size);
    if (status == NR_OK)
        status = nr_engine_audit(server->engine, message, size);
    return status;
}
