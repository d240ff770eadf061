#include "client_internal.h"

/* Ending leases and reservations. A settlement is due in the slot of its draw, rides in the next SAMPLE or, when none comes soon,
 * in a SETTLE; it is done when the carrier is answered. */

enum { NR_SETTLED_DRAW = NR_SETTLE_COMMIT | NR_SETTLE_REFUND };

/* Inserts of this client wait for samples to be taken: its own, it may be. */
static bool inserts_wait(const struct nr_client *client)
{
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_request *request = client->slots[s].request;
        if (request != NULL && request->call == &nr_call_insert && request->wait.reason == NR_WAIT_INSERTS)
            return true;
    }
    return false;
}

void nr_settle_due(struct nr_client *client, uint32_t s, uint8_t settle, uint64_t now)
{
    struct nr_client_slot *slot = &client->slots[s];
    if (slot->due == 0)
        slot->due_since = now;
    slot->due |= settle;
    if ((settle & NR_SETTLE_COMMIT) && inserts_wait(client))
        slot->due_since = 0;
}

uint32_t nr_settle_collect(struct nr_client *client, struct nr_request *carrier)
{
    carrier->settles = 0;
    carrier->carried = false;
    carrier->collected = true;
    for (uint32_t s = 0; s < NR_SLOTS && carrier->settles < NR_SETTLES_PER_REQUEST; s++) {
        struct nr_client_slot *slot = &client->slots[s];
        if (slot->due == 0 || slot->carried != 0)
            continue;
        slot->carried = slot->due;
        slot->due = 0;
        carrier->settle[carrier->settles++] =
            (struct nr_wire_settle){.slot = (uint8_t)s, .settle = slot->carried, .request = slot->number};
    }
    return carrier->settles;
}

static struct nr_client_slot *carried_by(struct nr_client *client, const struct nr_wire_settle *settle)
{
    struct nr_client_slot *slot = &client->slots[settle->slot];
    return slot->settling && slot->number == settle->request ? slot : NULL;
}

void nr_settle_delivered(struct nr_client *client, struct nr_request *carrier)
{
    if (carrier->carried)
        return;
    carrier->carried = true;
    for (uint32_t i = 0; i < carrier->settles; i++) {
        struct nr_client_slot *slot = carried_by(client, &carrier->settle[i]);
        if (slot == NULL)
            continue;
        slot->done |= slot->carried;
        slot->carried = 0;
        if ((slot->done & NR_SETTLE_RELEASE) && (slot->done & NR_SETTLED_DRAW)) {
            slot->settling = false;
            if (slot->request == NULL)
                client->active[NR_CLASS_SAMPLE]--;
        }
    }
}

void nr_settle_undelivered(struct nr_client *client, struct nr_request *carrier)
{
    if (carrier->carried)
        return;
    carrier->carried = true;
    for (uint32_t i = 0; i < carrier->settles; i++) {
        struct nr_client_slot *slot = carried_by(client, &carrier->settle[i]);
        if (slot == NULL)
            continue;
        slot->due |= slot->carried;
        slot->carried = 0;
    }
}

static uint32_t write_settle(struct nr_client *client, struct nr_request *request, uint32_t fragment, uint8_t *body,
                             uint32_t capacity)
{
    (void)client;
    (void)fragment;
    (void)capacity;
    struct nr_wire_settlement settlement = {.settles = request->settles};
    memcpy(body, &settlement, sizeof(settlement));
    memcpy(body + sizeof(settlement), request->settle, request->settles * sizeof(request->settle[0]));
    return (uint32_t)(sizeof(settlement) + request->settles * sizeof(request->settle[0]));
}

const struct nr_call nr_call_settle = {.operation = NR_OP_SETTLE, .stateless = true, .write = write_settle};

void nr_settle_send(struct nr_client *client, uint64_t now)
{
    bool scarce = client->active[NR_CLASS_SAMPLE] + 2 >= NR_SAMPLES_ACTIVE;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        struct nr_client_slot *slot = &client->slots[s];
        if (slot->due == 0 || slot->carried != 0 || (!scarce && now < slot->due_since + NR_SETTLE_DELAY))
            continue;
        struct nr_request *request = nr_request_new(client, &nr_call_settle);
        if (request == NULL)
            return; /* tried again at the next wakeup */
        request->internal = true;
        nr_settle_collect(client, request);
        nr_request_begin(client, request);
        return;
    }
}

void nr_settle_last(struct nr_client *client, uint64_t now, struct nr_outbox *outbox)
{
    uint8_t *datagram = nr_outbox_place(outbox), *at = datagram + sizeof(struct nr_header) + sizeof(struct nr_wire_settlement);
    struct nr_wire_settlement settlement = {.settles = 0};

    for (uint32_t s = 0; s < NR_SLOTS && settlement.settles < NR_SETTLES_PER_REQUEST; s++) {
        const struct nr_client_slot *slot = &client->slots[s];
        uint8_t settle = slot->due | slot->carried; /* what was carried may be lost: twice does no harm */

        if (settle == 0)
            continue;
        struct nr_wire_settle one = {.slot = (uint8_t)s, .settle = settle, .request = slot->number};
        memcpy(at + settlement.settles++ * sizeof(one), &one, sizeof(one));
    }
    if (settlement.settles == 0)
        return;
    memcpy(datagram + sizeof(struct nr_header), &settlement, sizeof(settlement));
    struct nr_header header = {.operation = NR_OP_SETTLE,
                               .slot = NR_STATELESS_SLOT,
                               .request = ++client->stateless_number,
                               .fragments = 1,
                               .length = (uint16_t)(sizeof(settlement) + settlement.settles * sizeof(struct nr_wire_settle))};
    nr_emit(client, datagram, &header, now, outbox);
}

void nr_settle_hurry(struct nr_client *client)
{
    for (uint32_t s = 0; s < NR_SLOTS; s++)
        client->slots[s].due_since = 0;
}

uint64_t nr_settle_wakeup(const struct nr_client *client)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t s = 0; s < NR_SLOTS; s++) {
        const struct nr_client_slot *slot = &client->slots[s];
        if (slot->due != 0 && slot->carried == 0 && slot->due_since + NR_SETTLE_DELAY < least)
            least = slot->due_since + NR_SETTLE_DELAY;
    }
    return least;
}
