#include "simulator.h"

#include <stdio.h>
#include <stdlib.h>

enum {
    OUTBOX_CAPACITY = 128,
    LATENESS = 256,               /* events within which a datagram's references are given back, after it has come or was lost */
    SWEEP_INTERVAL = 1000 * 1000, /* ns between two looks of the server at dead sessions */
    LEAST_STEP = 1000,            /* ns: a client that wants to be called at once is called this much later */
};

/* The references into the slab that a datagram holds, for all its copies: as a port's queue does, they outlive the arrival. */
struct loan {
    struct loan *next;
    uint32_t copies; /* in flight */
    uint32_t count;
    uint64_t token[NR_TX_SEGMENTS];
};

/* The bytes of a segment with a token are read on arrival, and must be what they were: no step is written while it is held. */
struct flight {
    uint64_t at;       /* arrival, ns */
    uint64_t order;    /* among those of one time */
    uint32_t receiver; /* client number; UINT32_MAX: the server */
    uint32_t sender;
    uint32_t length;      /* that arrives, bytes */
    uint32_t flip;        /* bit that arrives wrong, or UINT32_MAX */
    uint64_t sum;         /* of the bytes as they were sent; only with a loan */
    struct loan *loan;    /* NULL: none */
    struct nr_tx tx;      /* its own bytes lie in `bytes` */
    uint8_t bytes[NR_MAX_DATAGRAM];
};

struct actor {
    struct nr_client *client; /* NULL: killed */
    nr_simulator_work work;
    void *context;
    uint64_t wakeup; /* ns */
};

struct nr_simulator {
    uint64_t now, order, random, sweep_at;
    struct nr_simulator_link link;
    struct nr_engine *engine;
    struct nr_server *server;
    struct actor *actors;
    uint32_t actor_count;
    struct flight **heap; /* by (at, order) */
    uint32_t heap_count, heap_capacity;
    struct flight **spare;
    uint32_t spare_count, spare_capacity;
    uint32_t sender; /* whose outbox is being emptied */
    struct nr_outbox outbox;
    uint64_t events;
    struct loan *late[LATENESS]; /* to be given back at the event whose number has this remainder */
    uint8_t arrived[NR_MAX_DATAGRAM + 7]; /* the datagram that is being received, at every address modulo 8 in turn */
    uint8_t sent[NR_MAX_DATAGRAM];    /* the one that is being sent, perhaps meanwhile */
    struct nr_simulator_counters counters;
};

static uint64_t draw(struct nr_simulator *simulator)
{
    uint64_t z = (simulator->random += 0x9e3779b97f4a7c15ull); /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static bool happens(struct nr_simulator *simulator, double share)
{
    return share > 0 && (double)(draw(simulator) >> 11) * 0x1p-53 < share;
}

static uint64_t below(struct nr_simulator *simulator, uint64_t bound)
{
    return bound ? draw(simulator) % bound : 0;
}

static bool sooner(const struct flight *a, const struct flight *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void heap_push(struct nr_simulator *simulator, struct flight *flight)
{
    if (simulator->heap_count == simulator->heap_capacity) {
        simulator->heap_capacity = simulator->heap_capacity ? 2 * simulator->heap_capacity : 1024;
        simulator->heap = realloc(simulator->heap, simulator->heap_capacity * sizeof(*simulator->heap));
        if (simulator->heap == NULL)
            abort(); /* a tool, not the product: a run without memory means nothing */
    }
    uint32_t i = simulator->heap_count++;
    while (i > 0 && sooner(flight, simulator->heap[(i - 1) / 2])) {
        simulator->heap[i] = simulator->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    simulator->heap[i] = flight;
}

static struct flight *heap_pop(struct nr_simulator *simulator)
{
    struct flight *first = simulator->heap[0], *last = simulator->heap[--simulator->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= simulator->heap_count)
            break;
        if (child + 1 < simulator->heap_count && sooner(simulator->heap[child + 1], simulator->heap[child]))
            child++;
        if (!sooner(simulator->heap[child], last))
            break;
        simulator->heap[i] = simulator->heap[child];
        i = child;
    }
    if (simulator->heap_count > 0)
        simulator->heap[i] = last;
    return first;
}

static struct flight *flight_new(struct nr_simulator *simulator)
{
    if (simulator->spare_count > 0)
        return simulator->spare[--simulator->spare_count];
    struct flight *flight = malloc(sizeof(*flight));
    if (flight == NULL)
        abort();
    return flight;
}

static void flight_free(struct nr_simulator *simulator, struct flight *flight)
{
    if (simulator->spare_count == simulator->spare_capacity) {
        simulator->spare_capacity = simulator->spare_capacity ? 2 * simulator->spare_capacity : 1024;
        simulator->spare = realloc(simulator->spare, simulator->spare_capacity * sizeof(*simulator->spare));
        if (simulator->spare == NULL)
            abort();
    }
    simulator->spare[simulator->spare_count++] = flight;
}

/* Gives back what is due at this event. */
static void return_loans(struct nr_simulator *simulator)
{
    struct loan **due = &simulator->late[simulator->events % LATENESS];
    while (*due != NULL) {
        struct loan *loan = *due;
        *due = loan->next;
        for (uint32_t i = 0; i < loan->count; i++)
            nr_server_sent(simulator->server, loan->token[i]);
        free(loan);
    }
}

/* The last copy of the datagram is gone. */
static void repay_later(struct nr_simulator *simulator, struct loan *loan)
{
    struct loan **list = &simulator->late[(simulator->events + 1 + below(simulator, LATENESS - 1)) % LATENESS];
    loan->next = *list;
    *list = loan;
}

static struct loan *loan_of(const struct nr_tx *tx)
{
    struct loan *loan = NULL;
    for (uint32_t s = 0; s < tx->segments; s++) {
        if (tx->segment[s].token == NR_TOKEN_NONE)
            continue;
        if (loan == NULL && (loan = calloc(1, sizeof(*loan))) == NULL)
            abort();
        loan->token[loan->count++] = tx->segment[s].token;
    }
    return loan;
}

/* The datagram with its own bytes moved to the flight's. */
static void load(struct flight *flight, const struct nr_tx *tx)
{
    uint32_t own = tx->length;
    flight->tx = *tx;
    flight->tx.data = flight->bytes;
    memcpy(flight->bytes, tx->data, tx->length);
    for (uint32_t s = 0; s < tx->segments; s++) {
        struct nr_segment *segment = &flight->tx.segment[s];
        if (segment->token != NR_TOKEN_NONE)
            continue;
        memcpy(flight->bytes + own, segment->base, segment->length);
        segment->base = flight->bytes + own;
        own += segment->length;
    }
}

static uint64_t sum_of(const uint8_t *bytes, uint32_t length)
{
    uint64_t sum = length;
    for (uint32_t i = 0; i < length; i++)
        sum = (sum ^ bytes[i]) * 0x100000001b3ull; /* FNV-1a */
    return sum;
}

/* Reads a whole datagram from where its bytes lie. One that has changed since it was sent ends the run. */
static uint32_t read_flight(const struct flight *flight, uint8_t *bytes)
{
    uint32_t length = nr_tx_copy(&flight->tx, bytes);
    if (flight->loan != NULL && sum_of(bytes, length) != flight->sum) {
        fprintf(stderr, "a step was written while a datagram held it\n");
        abort();
    }
    return length;
}

/* Takes all bytes that the flight refers to: its slab is about to go. */
static void unload(struct flight *flight)
{
    uint8_t bytes[NR_MAX_DATAGRAM];
    uint32_t length = read_flight(flight, bytes);
    memcpy(flight->bytes, bytes, length);
    flight->tx.data = flight->bytes;
    flight->tx.length = (uint16_t)length;
    flight->tx.segments = 0;
}

static void launch(struct nr_simulator *simulator, uint32_t receiver, const struct nr_tx *tx)
{
    const struct nr_simulator_link *link = &simulator->link;
    struct loan *loan = loan_of(tx);
    if (happens(simulator, link->loss)) {
        simulator->counters.lost++;
        if (loan != NULL)
            repay_later(simulator, loan);
        return;
    }
    uint32_t copies = 1 + happens(simulator, link->duplication);
    if (loan != NULL) {
        loan->copies = copies;
        simulator->counters.referred++;
    }
    simulator->counters.duplicated += copies - 1;
    while (copies-- > 0) {
        struct flight *flight = flight_new(simulator);
        load(flight, tx);
        flight->loan = loan;
        if (loan != NULL)
            flight->sum = sum_of(simulator->sent, nr_tx_copy(tx, simulator->sent));
        flight->length = nr_tx_length(tx);
        flight->flip = UINT32_MAX;
        if (happens(simulator, link->corruption)) {
            flight->flip = (uint32_t)below(simulator, 8 * (uint64_t)flight->length);
            simulator->counters.corrupted++;
        }
        if (happens(simulator, link->truncation)) {
            flight->length = (uint32_t)below(simulator, flight->length);
            simulator->counters.truncated++;
        }
        flight->at = simulator->now + link->delay + below(simulator, link->jitter);
        if (happens(simulator, link->reordering)) {
            flight->at += below(simulator, link->hold);
            simulator->counters.reordered++;
        }
        flight->order = simulator->order++;
        flight->sender = simulator->sender;
        flight->receiver = receiver;
        heap_push(simulator, flight);
    }
}

static void set_peer(struct nr_peer *peer, uint32_t number)
{
    memset(peer, 0, sizeof(*peer));
    memcpy(peer->bytes, &number, sizeof(number));
    peer->length = sizeof(number);
}

static void flush(struct nr_outbox *outbox)
{
    struct nr_simulator *simulator = outbox->context;
    for (uint32_t i = 0; i < outbox->count; i++) {
        uint32_t receiver = UINT32_MAX;
        if (simulator->sender == UINT32_MAX)
            memcpy(&receiver, outbox->tx[i].peer.bytes, sizeof(receiver));
        launch(simulator, receiver, &outbox->tx[i]);
    }
    outbox->count = 0;
}

struct nr_simulator *nr_simulator_create(uint64_t seed, const struct nr_simulator_link *link)
{
    struct nr_simulator *simulator = calloc(1, sizeof(*simulator));
    if (simulator == NULL)
        return NULL;
    simulator->random = seed;
    simulator->now = 1000000000ull;
    simulator->link = *link;
    struct nr_outbox *outbox = &simulator->outbox;
    outbox->capacity = OUTBOX_CAPACITY;
    outbox->stride = 9217; /* odd, so that they are written at every address modulo 8 */
    outbox->tx = calloc(outbox->capacity, sizeof(*outbox->tx));
    outbox->arena = malloc((size_t)outbox->capacity * outbox->stride);
    outbox->flush = flush;
    outbox->context = simulator;
    if (outbox->tx == NULL || outbox->arena == NULL) {
        nr_simulator_destroy(simulator);
        return NULL;
    }
    return simulator;
}

void nr_simulator_destroy(struct nr_simulator *simulator)
{
    if (simulator == NULL)
        return;
    nr_simulator_kill_server(simulator);
    for (uint32_t a = 0; a < simulator->actor_count; a++)
        nr_client_destroy(simulator->actors[a].client);
    for (uint32_t i = 0; i < simulator->heap_count; i++)
        free(simulator->heap[i]);
    for (uint32_t i = 0; i < simulator->spare_count; i++)
        free(simulator->spare[i]);
    free(simulator->heap);
    free(simulator->spare);
    free(simulator->actors);
    free(simulator->outbox.tx);
    free(simulator->outbox.arena);
    free(simulator);
}

void nr_simulator_set_link(struct nr_simulator *simulator, const struct nr_simulator_link *link)
{
    simulator->link = *link;
}

struct nr_server *nr_simulator_start_server(struct nr_simulator *simulator, const struct nr_engine_config *engine,
                                            const struct nr_server_config *config)
{
    int status;
    nr_simulator_kill_server(simulator);
    struct nr_engine_config fresh = *engine;
    fresh.seed = draw(simulator); /* generations begin elsewhere at each start, as in production */
    simulator->engine = nr_engine_create(&fresh, &status);
    if (simulator->engine == NULL)
        return NULL;
    struct nr_server_config own = *config;
    own.incarnation = draw(simulator) | 1;
    simulator->server = nr_server_create(simulator->engine, &own, &status);
    if (simulator->server == NULL) {
        nr_engine_destroy(simulator->engine);
        simulator->engine = NULL;
    }
    simulator->sweep_at = simulator->now;
    return simulator->server;
}

void nr_simulator_kill_server(struct nr_simulator *simulator)
{
    if (simulator->server == NULL)
        return;
    /* As when ports close before the server: what is under way has left, and every reference comes back. */
    for (uint32_t i = 0; i < simulator->heap_count; i++) {
        struct flight *flight = simulator->heap[i];
        if (flight->loan == NULL)
            continue;
        unload(flight);
        if (--flight->loan->copies == 0)
            repay_later(simulator, flight->loan);
        flight->loan = NULL;
    }
    for (uint32_t i = 0; i < LATENESS; i++) {
        simulator->events++;
        return_loans(simulator);
    }
    nr_server_destroy(simulator->server);
    nr_engine_destroy(simulator->engine);
    simulator->server = NULL;
    simulator->engine = NULL;
}

struct nr_engine *nr_simulator_engine(struct nr_simulator *simulator)
{
    return simulator->engine;
}

struct nr_server *nr_simulator_server(struct nr_simulator *simulator)
{
    return simulator->server;
}

static void attend(struct nr_simulator *simulator, uint32_t number)
{
    struct actor *actor = &simulator->actors[number];
    actor->work(actor->context, actor->client, simulator->now);
    simulator->sender = number;
    nr_client_send(actor->client, simulator->now, &simulator->outbox);
    flush(&simulator->outbox);
    uint64_t wakeup = nr_client_wakeup(actor->client, simulator->now);
    actor->wakeup = wakeup > simulator->now + LEAST_STEP ? wakeup : simulator->now + LEAST_STEP;
}

uint32_t nr_simulator_add_client(struct nr_simulator *simulator, const struct nr_client_config *config, nr_simulator_work work,
                                 void *context)
{
    int status;
    struct nr_client_config own = *config;
    own.seed = draw(simulator);
    struct actor *actors = realloc(simulator->actors, (simulator->actor_count + 1) * sizeof(*actors));
    if (actors == NULL)
        return UINT32_MAX;
    simulator->actors = actors;
    struct nr_client *client = nr_client_create(&own, &status);
    if (client == NULL)
        return UINT32_MAX;
    actors[simulator->actor_count] = (struct actor){.client = client, .work = work, .context = context, .wakeup = simulator->now};
    return simulator->actor_count++;
}

struct nr_client *nr_simulator_client(struct nr_simulator *simulator, uint32_t number)
{
    return simulator->actors[number].client;
}

void nr_simulator_wake(struct nr_simulator *simulator, uint32_t number)
{
    if (simulator->actors[number].client != NULL)
        simulator->actors[number].wakeup = simulator->now;
}

void nr_simulator_kill_client(struct nr_simulator *simulator, uint32_t number)
{
    nr_client_destroy(simulator->actors[number].client);
    simulator->actors[number].client = NULL;
}

static void deliver(struct nr_simulator *simulator, struct flight *flight)
{
    uint8_t *arrived = simulator->arrived + simulator->events % 8;
    struct nr_rx rx = {.data = arrived, .length = flight->length};
    read_flight(flight, arrived);
    if (flight->flip / 8 < flight->length)
        arrived[flight->flip / 8] ^= (uint8_t)(1u << flight->flip % 8);
    if (flight->loan != NULL && --flight->loan->copies == 0)
        repay_later(simulator, flight->loan);
    flight->loan = NULL;
    simulator->counters.datagrams++;
    if (flight->receiver == UINT32_MAX) {
        if (simulator->server == NULL) {
            simulator->counters.unanswerable++;
            return;
        }
        set_peer(&rx.peer, flight->sender);
        simulator->sender = UINT32_MAX;
        nr_server_receive(simulator->server, &rx, simulator->now, &simulator->outbox);
        flush(&simulator->outbox);
        return;
    }
    struct actor *actor = &simulator->actors[flight->receiver];
    if (actor->client == NULL)
        return;
    nr_client_receive(actor->client, &rx, simulator->now);
    attend(simulator, flight->receiver);
}

bool nr_simulator_step(struct nr_simulator *simulator)
{
    uint64_t at = simulator->heap_count > 0 ? simulator->heap[0]->at : UINT64_MAX;
    uint32_t awake = UINT32_MAX;
    for (uint32_t a = 0; a < simulator->actor_count; a++)
        if (simulator->actors[a].client != NULL && simulator->actors[a].wakeup < at) {
            at = simulator->actors[a].wakeup;
            awake = a;
        }
    if (at == UINT64_MAX)
        return false;
    if (at > simulator->now)
        simulator->now = at;
    simulator->events++;
    return_loans(simulator);
    if (simulator->server != NULL && simulator->now >= simulator->sweep_at) {
        simulator->sender = UINT32_MAX;
        nr_server_sweep(simulator->server, simulator->now, &simulator->outbox);
        flush(&simulator->outbox);
        simulator->sweep_at = simulator->now + SWEEP_INTERVAL;
    }
    if (awake != UINT32_MAX) {
        attend(simulator, awake);
        return true;
    }
    struct flight *flight = heap_pop(simulator);
    deliver(simulator, flight);
    flight_free(simulator, flight);
    return true;
}

uint64_t nr_simulator_now(const struct nr_simulator *simulator)
{
    return simulator->now;
}

void nr_simulator_counters(const struct nr_simulator *simulator, struct nr_simulator_counters *counters)
{
    *counters = simulator->counters;
}
