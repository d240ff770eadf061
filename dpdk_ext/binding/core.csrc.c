#include "client/replay.h"
#include "client/weights.h"
#include "engine/engine.h"
#include "engine/status.h"
#include "engine/version.h"
#include "io/udp.h"
#include "io/vhost.h"
#include "loop/appliance.h"
#include "loop/checkpoint_file.h"
#include "testing/forwarder.h"
#include "testing/tcp.h"

/* nr_udp_listen, and the port that it got. *error is a negative errno. */
static struct nr_packet_io *nr_binding_listen_udp(const char *host, uint16_t port, uint32_t max_payload, uint16_t *bound,
                                                  int *error)
{
    struct nr_packet_io *io = nr_udp_listen(&(struct nr_udp_config){.host = host, .port = port, .max_payload = max_payload}, error);
    struct nr_udp_info info;

    if (io != NULL) {
        nr_udp_info(io, &info);
        *bound = nr_peer_port(&info.local);
    }
    return io;
}

/* nr_vhost_listen. */
static struct nr_packet_io *nr_binding_listen_vhost(const char *path, uint32_t mode, uint32_t clients, uint32_t max_payload,
                                                    int *error)
{
    return nr_vhost_listen(&(struct nr_vhost_config){.path = path, .mode = mode, .clients = clients, .max_payload = max_payload},
                           error);
}

/* For benches only: nr_tcp_listen, and the port that it got. */
static struct nr_packet_io *nr_binding_listen_tcp(const char *host, uint16_t port, uint32_t max_payload, uint16_t *bound,
                                                  int *error)
{
    struct nr_packet_io *io = nr_tcp_listen(&(struct nr_tcp_config){.host = host, .port = port, .max_payload = max_payload}, error);
    struct nr_tcp_info info;

    if (io != NULL) {
        nr_tcp_info(io, &info);
        *bound = nr_peer_port(&info.local);
    }
    return io;
}

/* For benches only: nr_replay_udp's twin. */
static struct nr_replay *nr_binding_replay_tcp(const char *host, uint16_t port, const struct nr_connect_options *options,
                                               int *status)
{
    int error;
    struct nr_packet_io *io = nr_tcp_connect(&(struct nr_tcp_config){.host = host, .port = port}, &error);

    if (io == NULL) {
        *status = NR_SYSTEM;
        return NULL;
    }
    return nr_replay_over(io, options, status);
}

/* What users call most, in one crossing each. struct nr_binding belongs to one actor; its fields are answers. */

enum { NR_BINDING_LOSS = -1 /* NR_OK, and more acknowledged items are known to be lost than at the last call */ };

struct nr_binding {
    uint32_t items;  /* formed by the append */
    uint32_t row;    /* that was refused */
    uint32_t keys;   /* taken by the flush */
    uint32_t failed; /* of them: neither NR_OK nor NR_DUPLICATE */
    uint64_t lost;   /* acknowledged items lost, when last looked at */
};

static int nr_binding_look(struct nr_actor *actor, struct nr_binding *binding)
{
    struct nr_actor_counters counters;

    nr_actor_counters(actor, &counters);
    if (counters.lost == binding->lost)
        return NR_OK;
    binding->lost = counters.lost;
    return NR_BINDING_LOSS;
}

/* Stages and commits a call whose items get their tables' default priority. */
static int nr_binding_append(struct nr_actor *actor, const struct nr_rows *rows, uint64_t wait_ns, struct nr_binding *binding)
{
    int status = nr_actor_stage(actor, rows, NULL, wait_ns, &binding->items, &binding->row);

    if (status != NR_OK)
        return status;
    status = nr_actor_commit(actor, NULL);
    if (status != NR_OK) {
        nr_actor_rollback(actor);
        return status;
    }
    return nr_binding_look(actor, binding);
}

/* Flushes and takes up to `capacity` keys. Any other status than NR_OK and NR_BINDING_LOSS has taken none. */
static int nr_binding_flush(struct nr_actor *actor, uint64_t wait_ns, struct nr_operation **operation, uint64_t capacity,
                            uint64_t *keys, int32_t *statuses, struct nr_binding *binding)
{
    int status = nr_actor_flush(actor, wait_ns, operation);

    if (status != NR_OK)
        return status;
    binding->keys = (uint32_t)nr_actor_keys(actor, capacity, keys, statuses);
    binding->failed = 0;
    for (uint32_t i = 0; i < binding->keys; i++)
        binding->failed += statuses[i] != NR_OK && statuses[i] != NR_DUPLICATE;
    return nr_binding_look(actor, binding);
}

/* Python may raise KeyboardInterrupt when a call returns, before it has looked at the status. So these keep in *operation and in
 * *sample what is still open, and NULL when nothing is. */

static int nr_binding_wait(struct nr_operation **operation, uint64_t wait_ns)
{
    int status = nr_operation_wait(*operation, wait_ns);

    if (status != NR_PENDING)
        *operation = NULL;
    return status;
}

static void nr_binding_cancel(struct nr_operation **operation)
{
    struct nr_operation *open = *operation;

    *operation = NULL;
    if (open != NULL)
        nr_operation_cancel(open);
}

/* Takes a sample that is whole; *parts = entries of `heads`. NR_PENDING and errors leave it to be waited for or given up. */
static int nr_binding_take(struct nr_sample **sample, uint64_t wait_ns, struct nr_draw_head *heads, uint32_t *parts)
{
    int status = nr_sample_wait(*sample, wait_ns);

    if (status != NR_OK)
        return status;
    *parts = nr_sample_heads(*sample, heads);
    nr_sample_settle(*sample, 1);
    *sample = NULL;
    return NR_OK;
}

/* Gives a sample up, untaken. Its rows are not written to any more. */
static void nr_binding_give_up(struct nr_sample **sample)
{
    struct nr_sample *open = *sample;

    *sample = NULL;
    if (open != NULL)
        nr_sample_settle(open, 0);
}

/* Draws and takes. When the status is not NR_OK, *sample is what is left to be waited for or given up, or NULL. */
static int nr_binding_sample(struct nr_replay *replay, uint32_t table, uint32_t count, void *rows, uint64_t wait_ns,
                             struct nr_sample **sample, struct nr_draw_head *heads, uint32_t *parts)
{
    *sample = NULL;

    int status = nr_sample_start(replay, table, count, rows, sample);

    return status != NR_OK ? status : nr_binding_take(sample, wait_ns, heads, parts);
}
