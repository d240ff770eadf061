/* The parts of the replay behind the protocol. Private to network*.c; every function is called with the replay's mutex held. */
#ifndef NR_CLIENT_NETWORK_H
#define NR_CLIENT_NETWORK_H

#include "drive.h"

/* NR_OK, or why nothing will ever come: no session yet, or no more, is NR_OK. */
static inline int nr_network_fatal(const struct nr_network *network)
{
    int status = nr_client_status(network->client);

    return status == NR_PENDING ? NR_OK : status;
}

/* A call begins. */
static inline void nr_network_called(struct nr_network *network, uint64_t now)
{
    network->called = network->active = now;
    network->flowing = false;
}

/* network_insert.c; the first five as in struct nr_backend */
uint32_t nr_network_places(const struct nr_store_config *store);
int nr_network_actor_open(struct nr_actor *actor);
bool nr_network_actor_close(struct nr_actor *actor);
int nr_network_room(const struct nr_actor *actor, uint32_t stream, uint32_t steps);
void nr_network_push(struct nr_actor *actor, uint64_t now);
void nr_network_push_all(struct nr_actor *actor);              /* what is committed, to the client; nothing is sent */
void nr_network_take_decided(struct nr_network *network);      /* keys and statuses, to their actors */
void nr_network_take_losses(struct nr_network *network);       /* to their actors' counters and to network->losses */
void nr_network_bury(struct nr_network *network);              /* frees closed actors whose steps are not needed any more */

/* network_sample.c; the last three as in struct nr_backend */
void nr_network_look_at(struct nr_sample *sample); /* takes up what its requests have come to */
void nr_network_settle_parts(struct nr_sample *sample, bool taken, uint64_t now);
int nr_network_sample_start(struct nr_sample *sample, uint64_t now);
int nr_network_sample_poll(struct nr_sample *sample, uint64_t now);
void nr_network_sample_end(struct nr_sample *sample, bool taken, uint64_t now);

/* network_operation.c; as in struct nr_backend */
int nr_network_operation_start(struct nr_operation *operation, uint64_t now);
int nr_network_operation_poll(struct nr_operation *operation, uint64_t now);
void nr_network_operation_end(struct nr_operation *operation);

#endif
