/* Sessions: where they lie, how they are found, and how they end. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "server_internal.h"

static uint32_t power_of_two(uint32_t least)
{
    uint32_t power = 1;

    while (power < least)
        power *= 2;
    return power;
}

uint64_t nr_server_session_bytes(const struct nr_server_config *config)
{
    return (uint64_t)config->sessions * (sizeof(struct nr_session) + sizeof(struct nr_directory)) +
           (uint64_t)power_of_two(config->sessions) * sizeof(uint32_t);
}

int nr_server_sessions_open(struct nr_server *server)
{
    uint32_t count = server->config.sessions, chains = power_of_two(count);

    server->index_mask = server->chain_mask = chains - 1;
    server->directory = calloc(count, sizeof(*server->directory));
    server->chains = malloc(chains * sizeof(*server->chains));
    void *mapping = mmap(NULL, (size_t)count * sizeof(struct nr_session), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping != MAP_FAILED)
        server->sessions = mapping;
    if (server->directory == NULL || server->chains == NULL || server->sessions == NULL)
        return NR_NO_MEMORY;
    memset(server->chains, 0xff, chains * sizeof(*server->chains));
    for (uint32_t index = 0; index < count; index++)
        server->directory[index].next = index + 1 < count ? index + 1 : NR_NOWHERE;
    server->free_first = 0;
    return NR_OK;
}

void nr_server_sessions_close(struct nr_server *server)
{
    if (server->sessions != NULL)
        munmap(server->sessions, (size_t)server->config.sessions * sizeof(struct nr_session));
    free(server->directory);
    free(server->chains);
}

static uint32_t *chain_of(const struct nr_server *server, uint64_t nonce)
{
    return &server->chains[nr_random_mix(nonce ^ server->nonce_key) & server->chain_mask];
}

struct nr_session *nr_server_session(struct nr_server *server, uint32_t id)
{
    uint32_t index = id & server->index_mask;

    if (id == 0 || index >= server->config.sessions || server->directory[index].id != id)
        return NULL;
    return &server->sessions[index];
}

struct nr_session *nr_server_session_by_nonce(struct nr_server *server, uint64_t nonce, const struct nr_peer *peer)
{
    for (uint32_t index = *chain_of(server, nonce); index != NR_NOWHERE; index = server->directory[index].next)
        if (server->directory[index].nonce == nonce && nr_peer_equal(&server->sessions[index].peer, peer))
            return &server->sessions[index];
    return NULL;
}

static uint32_t new_id(struct nr_server *server, uint32_t index)
{
    uint32_t id;

    /* The last id is not used again at once: what is still on its way to a dead session must not reach the next. */
    do
        id = ((uint32_t)nr_random_next(&server->random) & ~server->index_mask) | index;
    while (id == 0 || id == server->sessions[index].id);
    return id;
}

struct nr_session *nr_server_session_new(struct nr_server *server, uint64_t nonce, const struct nr_peer *peer, uint64_t now)
{
    uint32_t index = server->free_first;

    if (index == NR_NOWHERE)
        return NULL;
    struct nr_directory *entry = &server->directory[index];
    struct nr_session *session = &server->sessions[index];
    uint32_t id = new_id(server, index);
    uint32_t *chain = chain_of(server, nonce);

    server->free_first = entry->next;
    *entry = (struct nr_directory){.id = id, .next = *chain, .heard = now, .nonce = nonce};
    *chain = index;

    memset(session->page, 0, sizeof(session->page));
    session->id = id;
    session->index = index;
    session->peer = *peer;
    for (uint32_t s = 0; s < NR_SLOTS; s++)
        session->slot[s].earlier = session->slot[s].later = NR_NOWHERE;
    for (uint32_t set = 0; set < NR_MAX_SETS; set++)
        session->publication[set] = UINT32_MAX; /* below 0 and 1 alike */
    server->counters.sessions_opened++;
    server->counters.sessions_open++;
    return session;
}

void nr_server_slot_clear(struct nr_server *server, struct nr_session *session, struct nr_slot *slot)
{
    if (slot->waiting != NR_NOT_WAITING)
        nr_server_unpark(server, session, slot);
    if (nr_server_is_draw(slot))
        nr_draw_settle(server->engine, &slot->sample.draw, NR_SETTLE_RELEASE | NR_SETTLE_REFUND);
    session->inserts &= (uint16_t)~(1u << (slot - session->slot));
    memset(slot, 0, sizeof(*slot));
    slot->earlier = slot->later = NR_NOWHERE;
}

void nr_server_session_end(struct nr_server *server, struct nr_session *session)
{
    uint32_t index = session->index;
    struct nr_directory *entry = &server->directory[index];

    for (uint32_t s = 0; s < NR_SLOTS; s++)
        nr_server_slot_clear(server, session, &session->slot[s]);
    nr_stream_release_owner(server->engine, session->id);

    uint32_t *link = chain_of(server, entry->nonce);
    while (*link != index)
        link = &server->directory[*link].next;
    *link = entry->next;

    *entry = (struct nr_directory){.next = server->free_first};
    server->free_first = index;
    server->counters.sessions_open--;
}

void nr_server_bye(struct nr_server *server, struct nr_arrival *arrival)
{
    struct nr_answer answer = nr_server_answer_to(arrival);
    struct nr_wire_state state = {0};

    nr_server_send_state(server, arrival->outbox, &answer, arrival->now, NR_OK, &state, NULL, 0);
    nr_server_session_end(server, arrival->session);
}

bool nr_server_sweep(struct nr_server *server, uint64_t now, struct nr_outbox *outbox)
{
    uint32_t count = server->config.sessions < NR_SWEEP_SESSIONS ? server->config.sessions : NR_SWEEP_SESSIONS;

    for (uint32_t deaths = 0; count > 0 && deaths < NR_SWEEP_DEATHS; count--) {
        uint32_t index = server->sweep_next;
        const struct nr_directory *entry = &server->directory[index];

        server->sweep_next = index + 1 < server->config.sessions ? index + 1 : 0;
        if (entry->id == 0 || now < entry->heard || now - entry->heard <= server->config.session_ns)
            continue;
        nr_server_session_end(server, &server->sessions[index]);
        server->counters.sessions_swept++;
        deaths++;
    }
    bool more = nr_engine_maintain(server->engine, now, NR_SWEEP_ACCESSES);

    more = nr_server_look(server, now, outbox) || more;
    nr_server_pump(server, now, outbox);
    return more;
}

/* ---- Audit ---- */

static int slot_audit(const struct nr_slot *slot, char *message, size_t size)
{
    if (slot->operation == 0)
        return slot->request == 0 && slot->waiting == 0
                   ? NR_OK
                   : nr_server_audit_says(message, size, "an unused slot has request %llu", slot->request, 0);
    if (slot->taken & ~nr_server_fragments(slot->fragments) && !nr_server_is_message(slot))
        return nr_server_audit_says(message, size, "fragments %llx taken of %llu", slot->taken, slot->fragments);
    if (slot->result_bytes > NR_SLOT_BYTES)
        return nr_server_audit_says(message, size, "a result of %llu bytes", slot->result_bytes, 0);
    if (slot->operation == NR_OP_INSERT && (slot->insert.items > NR_INSERT_ITEMS || slot->insert.cursor > slot->insert.items ||
                                            slot->insert.seen & ~nr_server_fragments(slot->insert.items)))
        return nr_server_audit_says(message, size, "an INSERT at item %llu of %llu", slot->insert.cursor, slot->insert.items);
    if (nr_server_is_draw(slot) && slot->waiting != NR_NOT_WAITING && (slot->sample.draw.leased || slot->sample.draw.reserved))
        return nr_server_audit_says(message, size, "a draw of %llu rows is open in a SAMPLE that waits (%llu)",
                                    slot->sample.draw.count, slot->waiting);
    return NR_OK;
}

int nr_server_sessions_audit(const struct nr_server *server, char *message, size_t size)
{
    uint64_t open = 0, parked = 0, idle = 0, chained = 0;

    for (uint32_t index = 0; index < server->config.sessions; index++) {
        if (server->directory[index].id == 0)
            continue;
        const struct nr_session *session = &server->sessions[index];
        open++;
        if (session->id != server->directory[index].id || session->index != index)
            return nr_server_audit_says(message, size, "session %llu is not what the directory says at %llu", session->id, index);
        for (uint32_t s = 0; s < NR_SLOTS; s++) {
            int status = slot_audit(&session->slot[s], message, size);
            if (status != NR_OK)
                return status;
            parked += session->slot[s].waiting != NR_NOT_WAITING;
        }
    }
    for (uint32_t index = server->free_first; index != NR_NOWHERE && idle <= server->config.sessions; idle++)
        index = server->directory[index].next;
    for (uint32_t chain = 0; chain <= server->chain_mask; chain++)
        for (uint32_t index = server->chains[chain]; index != NR_NOWHERE && chained <= open; chained++)
            index = server->directory[index].next;
    if (open != server->counters.sessions_open || open + idle != server->config.sessions)
        return nr_server_audit_says(message, size, "%llu sessions are open and %llu free", open, idle);
    if (chained != open)
        return nr_server_audit_says(message, size, "%llu sessions are found by nonce, %llu are open", chained, open);
    if (parked != server->counters.parked)
        return nr_server_audit_says(message, size, "%llu slots wait, %llu were counted", parked, server->counters.parked);
    return NR_OK;
}
