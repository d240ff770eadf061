/* A network in one process with its own clock: servers, clients and links whose every misfortune comes from one seed. The state
 * machines in it are the very ones that run in production; a run is the same each time it is given the same seed. */
#ifndef NR_TESTING_SIMULATOR_H
#define NR_TESTING_SIMULATOR_H

#include "../protocol/client.h"
#include "../protocol/server.h"

struct nr_simulator;

/* What may happen to a datagram on its way, in either direction. Shares are 0..1. */
struct nr_simulator_link {
    double loss, duplication, corruption, truncation;
    double reordering;   /* share that is held up by up to `hold` */
    uint64_t delay;      /* ns, one way */
    uint64_t jitter;     /* ns, uniform, added to the delay */
    uint64_t hold;       /* ns */
};

struct nr_simulator_counters {
    uint64_t datagrams; /* delivered */
    uint64_t lost, duplicated, corrupted, truncated, reordered;
    uint64_t unanswerable; /* sent to a server that is down */
    uint64_t referred;     /* of those not lost, with bytes that stayed in the slab until they arrived */
};

struct nr_simulator *nr_simulator_create(uint64_t seed, const struct nr_simulator_link *link);
void nr_simulator_destroy(struct nr_simulator *simulator);
void nr_simulator_set_link(struct nr_simulator *simulator, const struct nr_simulator_link *link);

/* Starts the server, or starts it again with nothing but its configuration. The incarnation is drawn. Without memory NULL. */
struct nr_server *nr_simulator_start_server(struct nr_simulator *simulator, const struct nr_engine_config *engine,
                                            const struct nr_server_config *config);
void nr_simulator_kill_server(struct nr_simulator *simulator);
struct nr_engine *nr_simulator_engine(struct nr_simulator *simulator); /* NULL while it is down */
struct nr_server *nr_simulator_server(struct nr_simulator *simulator);

/* `work` is called after every event of the client and at its wakeups: it takes results and begins requests. The client's
 * number in the simulator is the return value, or UINT32_MAX. */
typedef void (*nr_simulator_work)(void *context, struct nr_client *client, uint64_t now);
uint32_t nr_simulator_add_client(struct nr_simulator *simulator, const struct nr_client_config *config, nr_simulator_work work,
                                 void *context);
struct nr_client *nr_simulator_client(struct nr_simulator *simulator, uint32_t number);
/* Its user comes by: `work` is called at the present time, as when an idle program makes a call. */
void nr_simulator_wake(struct nr_simulator *simulator, uint32_t number);
/* As kill -9: the client is gone without a word. */
void nr_simulator_kill_client(struct nr_simulator *simulator, uint32_t number);

/* The next event. False when there is none: every client waits for ever. */
bool nr_simulator_step(struct nr_simulator *simulator);
uint64_t nr_simulator_now(const struct nr_simulator *simulator); /* ns */
void nr_simulator_counters(const struct nr_simulator *simulator, struct nr_simulator_counters *counters);

#endif
