/* Actors over the network: steps and items to the protocol client, keys and losses back. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "network.h"

enum {
    TAG_BITS = 40,       /* of an item's number in its tag; the actor's id stands above */
    LEAST_IN_FLIGHT = 4, /* steps: one call of an actor must fit */
    KEPT_LOSSES = 4096,  /* not taken by anybody; further ones are only counted */
};
#define TAG_MASK ((UINT64_C(1) << TAG_BITS) - 1)
#define ID_MASK ((1u << (64 - TAG_BITS)) - 1)

uint32_t nr_network_places(const struct nr_store_config *store)
{
    return store->window + store->in_flight;
}

static struct nr_actor *actor_of(struct nr_network *network, uint64_t tag)
{
    struct nr_actor *lists[2] = {network->replay.actors, network->dead};

    for (int i = 0; i < 2; i++) {
        for (struct nr_actor *actor = lists[i]; actor != NULL; actor = actor->next) {
            if (((actor->id ^ tag >> TAG_BITS) & ID_MASK) == 0)
                return actor;
        }
    }
    return NULL;
}

static struct nr_actor *actor_with(struct nr_network *network, uint32_t stream)
{
    struct nr_actor *lists[2] = {network->replay.actors, network->dead};

    for (int i = 0; i < 2; i++) {
        for (struct nr_actor *actor = lists[i]; actor != NULL; actor = actor->next) {
            for (uint32_t r = 0; r < actor->streams; r++) {
                if (actor->stream[r] == stream)
                    return actor;
            }
        }
    }
    return NULL;
}

void nr_network_bury(struct nr_network *network)
{
    struct nr_actor **link = &network->dead;

    while (*link != NULL) {
        struct nr_actor *actor = *link;
        uint32_t r = 0;

        while (r < actor->streams && nr_client_stream_done(network->client, actor->stream[r]))
            r++;
        if (r < actor->streams) {
            link = &actor->next;
            continue;
        }
        *link = actor->next;
        nr_actor_free(actor);
    }
}

int nr_network_actor_open(struct nr_actor *actor)
{
    struct nr_network *network = nr_network_of(actor->replay);
    const struct nr_store_config *store = &actor->replay->layout->config.stores[actor->store];
    int status = nr_network_fatal(network);

    if (status != NR_OK)
        return status;
    if (store->in_flight < LEAST_IN_FLIGHT)
        return NR_BAD_CONFIG;
    nr_network_bury(network); /* before the client gives their streams' numbers to others */
    nr_network_called(network, nr_clock());
    for (uint32_t r = 0; r < actor->streams; r++) {
        struct nr_client_stream_config config = {.store = actor->store,
                                                 .ring = actor->history.ring,
                                                 .steps = nr_history_step(&actor->history, r, 0),
                                                 .stride = actor->history.stride};

        status = getrandom(config.id, sizeof(config.id), 0) == sizeof(config.id) ? NR_OK : NR_SYSTEM;
        if (status == NR_OK) {
            actor->stream[r] = nr_client_stream_add(network->client, &config);
            status = actor->stream[r] == UINT32_MAX ? NR_NO_MEMORY : NR_OK;
        }
        if (status != NR_OK) {
            while (r-- > 0)
                nr_client_stream_end(network->client, actor->stream[r]);
            return status;
        }
    }
    nr_drive_send(network, network->called);
    return NR_OK;
}

bool nr_network_actor_close(struct nr_actor *actor)
{
    struct nr_network *network = nr_network_of(actor->replay);
    uint64_t now = nr_clock();

    if (atomic_load(&actor->replay->closed)) /* nothing is sent any more */
        return true;
    for (uint32_t r = 0; r < actor->streams; r++)
        nr_client_stream_end(network->client, actor->stream[r]);
    actor->next = network->dead;
    network->dead = actor;
    nr_network_called(network, now);
    nr_drive_send(network, now);
    nr_network_bury(network);
    return false;
}

/* Steps of the stream below `end` to the client. */
static int push_steps(struct nr_actor *actor, uint32_t stream, uint64_t end)
{
    struct nr_client *client = nr_network_of(actor->replay)->client;

    for (uint64_t number; (number = nr_client_stream_next(client, actor->stream[stream])) < end;) {
        int status = nr_client_step(client, actor->stream[stream], nr_history_total(&actor->history, stream, number));

        if (status != NR_OK)
            return status;
    }
    return NR_OK;
}

/* Without memory the rest stays for the next push, and counts against the stream's room. */
void nr_network_push_all(struct nr_actor *actor)
{
    struct nr_client *client = nr_network_of(actor->replay)->client;

    for (; actor->head < actor->committed; actor->head++) {
        struct nr_formed *formed = nr_actor_item(actor, actor->head);
        uint32_t stream = formed->row;
        uint64_t tag = actor->id << TAG_BITS | (actor->head & TAG_MASK);

        formed->item.columns = formed->columns;
        if (push_steps(actor, stream, formed->item.first_step + formed->item.steps) != NR_OK ||
            nr_client_item(client, actor->stream[stream], actor->formers->former[formed->former].config.table, &formed->item,
                           tag) != NR_OK)
            return;
    }
    for (uint32_t r = 0; r < actor->streams; r++) {
        if (push_steps(actor, r, nr_actor_end_of(actor, r)) != NR_OK)
            return;
    }
}

void nr_network_push(struct nr_actor *actor, uint64_t now)
{
    struct nr_network *network = nr_network_of(actor->replay);

    nr_network_called(network, now);
    nr_network_push_all(actor);
    if (network->outstanding == 0 || !nr_drive_step(network, now))
        nr_drive_send(network, now);
}

int nr_network_room(const struct nr_actor *actor, uint32_t stream, uint32_t steps)
{
    const struct nr_network *network = nr_network_of(actor->replay);
    uint32_t number = actor->stream[stream];
    int status = nr_network_fatal(network);

    if (status == NR_OK)
        status = nr_client_stream_status(network->client, number);
    if (status != NR_OK && status != NR_PENDING)
        return status;

    uint64_t waiting = actor->episodes[stream].next - nr_client_stream_next(network->client, number);

    return waiting + steps <= nr_client_stream_room(network->client, number) ? NR_OK : NR_PENDING;
}

/* ---- What comes back ---- */

void nr_network_take_decided(struct nr_network *network)
{
    struct nr_decided decided[32];
    struct nr_actor *actor = NULL;
    uint32_t count;

    while ((count = nr_client_decided(network->client, 32, decided)) != 0) {
        for (uint32_t i = 0; i < count; i++) {
            uint64_t tag = decided[i].tag;

            if (actor == NULL || (actor->id & ID_MASK) != tag >> TAG_BITS)
                actor = actor_of(network, tag);
            if (actor == NULL)
                continue;

            nr_actor_decide(actor, actor->decided + ((tag - actor->decided) & TAG_MASK), decided[i].status, decided[i].key);
        }
    }
}

void nr_network_take_losses(struct nr_network *network)
{
    struct nr_client_loss lost[16];
    uint32_t count;

    while ((count = nr_client_losses(network->client, 16, lost)) != 0) {
        for (uint32_t i = 0; i < count; i++) {
            struct nr_actor *actor = actor_with(network, lost[i].number);

            if (actor != NULL) {
                actor->counters.lost += lost[i].items;
                actor->counters.streams_replaced += lost[i].replaced;
            }
            if (lost[i].items == 0 || network->loss_count == KEPT_LOSSES)
                continue;
            if (network->losses == NULL)
                network->losses = malloc(KEPT_LOSSES * sizeof(*network->losses));
            if (network->losses == NULL)
                continue;

            struct nr_loss *loss = &network->losses[network->loss_count++];

            memcpy(loss->stream, lost[i].stream, sizeof(loss->stream));
            loss->first_item = lost[i].first_item;
            loss->items = lost[i].items;
            loss->incarnation = lost[i].incarnation;
        }
    }
}
