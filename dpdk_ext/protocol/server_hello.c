/* HELLO: a session is opened, or found again by its nonce. The answer is smaller than the question. */
#include <string.h>

#include "server_internal.h"

static_assert(NR_RESPONSE_OVERHEAD + sizeof(struct nr_wire_state) + sizeof(struct nr_wire_welcome) <= NR_MIN_DATAGRAM,
              "nobody gets more bytes than he sent");

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

void nr_server_hello(struct nr_server *server, struct nr_arrival *arrival)
{
    const struct nr_header *header = &arrival->header;
    struct nr_wire_hello hello;

    if (arrival->size < NR_MIN_DATAGRAM || header->session != 0 || header->slot != NR_STATELESS_SLOT) {
        nr_server_malformed(server);
        return;
    }
    memcpy(&hello, arrival->body, sizeof(hello));
    if (hello.max_datagram < NR_MIN_DATAGRAM) {
        nr_server_malformed(server);
        return;
    }
    if (hello.version_min > NR_VERSION || hello.version_max < NR_VERSION) {
        server->counters.bad_version++;
        nr_server_send_bare(server, arrival, NR_BAD_VERSION);
        return;
    }

    struct nr_session *session = nr_server_session_by_nonce(server, hello.nonce, arrival->peer);
    if (session != NULL) {
        server->counters.duplicates++;
        server->directory[session->index].heard = arrival->now;
    } else {
        if (server->free_first == NR_NOWHERE)
            nr_server_sweep(server, arrival->now, arrival->outbox);
        session = nr_server_session_new(server, hello.nonce, arrival->peer, arrival->now);
        if (session == NULL) {
            nr_server_send_bare(server, arrival, NR_TOO_MANY);
            return;
        }
        session->max_datagram = least(server->config.max_datagram, least(hello.max_datagram, arrival->size)) & ~7u;
    }
    arrival->session = session;

    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = {.fragments = 1};
    struct nr_wire_welcome welcome = {.nonce = hello.nonce,
                                      .incarnation = server->config.incarnation,
                                      .start_seconds = server->config.start_seconds,
                                      .session = session->id,
                                      .max_datagram = session->max_datagram,
                                      .credits = nr_server_credits(server),
                                      .spec_bytes = server->spec_bytes};
    nr_server_send_state(server, arrival->outbox, &answer, arrival->now, NR_OK, &state, &welcome, sizeof(welcome));
}
