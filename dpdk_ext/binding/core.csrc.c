#include "client/replay.h"
#include "engine/engine.h"
#include "engine/status.h"
#include "engine/version.h"
#include "loop/appliance.h"
#include "testing/forwarder.h"

/* WEAK-BEGIN (goes when the C is all there) */
#pragma weak nr_actor_close
#pragma weak nr_actor_commit
#pragma weak nr_actor_counters
#pragma weak nr_actor_flush
#pragma weak nr_actor_keys
#pragma weak nr_actor_open
#pragma weak nr_actor_rollback
#pragma weak nr_actor_stage
#pragma weak nr_actor_staged
#pragma weak nr_actor_staged_rows
#pragma weak nr_actor_version
#pragma weak nr_appliance_close
#pragma weak nr_appliance_counters
#pragma weak nr_appliance_open
#pragma weak nr_appliance_port
#pragma weak nr_appliance_run
#pragma weak nr_appliance_session_bytes
#pragma weak nr_appliance_stop
#pragma weak nr_appliance_table
#pragma weak nr_engine_bytes
#pragma weak nr_engine_create
#pragma weak nr_engine_destroy
#pragma weak nr_fetch
#pragma weak nr_fetched_free
#pragma weak nr_forwarder_clients
#pragma weak nr_forwarder_close
#pragma weak nr_forwarder_counters
#pragma weak nr_forwarder_open
#pragma weak nr_forwarder_port
#pragma weak nr_forwarder_run
#pragma weak nr_forwarder_set
#pragma weak nr_forwarder_stop
#pragma weak nr_operation_blocked
#pragma weak nr_operation_cancel
#pragma weak nr_operation_wait
#pragma weak nr_ping
#pragma weak nr_publish
#pragma weak nr_replay_blocked
#pragma weak nr_replay_close
#pragma weak nr_replay_counters
#pragma weak nr_replay_free
#pragma weak nr_replay_layout
#pragma weak nr_replay_local
#pragma weak nr_replay_losses
#pragma weak nr_replay_ready
#pragma weak nr_replay_spec
#pragma weak nr_replay_udp
#pragma weak nr_sample_blocked
#pragma weak nr_sample_heads
#pragma weak nr_sample_settle
#pragma weak nr_sample_start
#pragma weak nr_sample_wait
#pragma weak nr_tables
#pragma weak nr_update
/* WEAK-END */

/* One crossing from Python for what nearly every append is. what[0] = items formed, what[1] = the row refused, what[2] = the
 * actor's lost items (low bits) when last looked at: NR_BINDING_LOSS is NR_OK with more lost since. */
enum { NR_BINDING_LOSS = -1 };
static int nr_binding_append(struct nr_actor *actor, const struct nr_rows *rows, const uint8_t *end_mask, uint64_t wait_ns,
                             uint32_t *what)
{
    int status = nr_actor_stage(actor, rows, end_mask, wait_ns, &what[0], &what[1]);
    if (status != NR_OK)
        return status;
    status = nr_actor_commit(actor, NULL);
    if (status != NR_OK) {
        nr_actor_rollback(actor);
        return status;
    }
    struct nr_actor_counters counters;
    nr_actor_counters(actor, &counters);
    uint32_t lost = (uint32_t)counters.lost;
    if (lost == what[2])
        return NR_OK;
    what[2] = lost;
    return NR_BINDING_LOSS;
}
