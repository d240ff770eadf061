/* Operations on the engine in this process. All but a flush and a publication end where they begin. */
#include <stdlib.h>
#include <string.h>

#include "../engine/maintain.h"
#include "local.h"
#include "update.h"

enum {
    LOOK_SLOTS = 16384,    /* of a table that are counted at a time for histograms: other threads come in between */
    ACCESSES = 8192, /* of memory, about, that a look at the tables spends on items that are too old */
    PUBLISHER = 1,         /* a publication is written in one call: they never overlap */
    PATIENCE = 1000000000, /* of a set's buffer with its readers, ns */
};

static int publish(struct nr_local *local, struct nr_operation *operation, uint64_t now)
{
    const struct nr_publish_call *call = &operation->publish;
    int status = nr_parameters_begin(local->engine, call->set, PUBLISHER, call->length, call->expect, now, &operation->wait);

    for (uint64_t offset = 0; status == NR_OK && offset < call->length;) {
        uint32_t length = call->length - offset < 1u << 30 ? (uint32_t)(call->length - offset) : 1u << 30;

        status =
            nr_parameters_write(local->engine, call->set, PUBLISHER, offset, (const uint8_t *)call->bytes + offset, length, now);
        offset += length;
    }
    if (status == NR_OK)
        status = nr_parameters_finish(local->engine, call->set, PUBLISHER, call->version);
    if (status == NR_OK) /* items that are too old now may have held inserts back */
        nr_local_advance(local, now);
    return nr_is_wait(status) ? NR_PENDING : status;
}

static int fetch(struct nr_local *local, struct nr_operation *operation, uint64_t now)
{
    const struct nr_fetch_call *call = &operation->fetch;
    struct nr_fetched *fetched = call->fetched;
    uint64_t bytes;
    int status = nr_parameters_version(local->engine, call->set, &fetched->version, &bytes);

    if (status != NR_OK || fetched->version <= call->newer_than)
        return status;
    fetched->data = malloc(bytes != 0 ? bytes : 1);
    if (fetched->data == NULL)
        return NR_NO_MEMORY;
    fetched->length = bytes;
    for (uint64_t offset = 0; status == NR_OK && offset < bytes;) {
        uint32_t length = bytes - offset < 1u << 30 ? (uint32_t)(bytes - offset) : 1u << 30;

        /* This reader is done when the call returns: read long ago, the buffer is the next publisher's. */
        status =
            nr_parameters_read(local->engine, call->set, fetched->version, offset, fetched->data + offset, length, now - PATIENCE);
        offset += length;
    }
    if (status != NR_OK)
        nr_fetched_free(fetched);
    return status;
}

static int tables(struct nr_local *local, const struct nr_tables_call *call, uint64_t now)
{
    nr_engine_maintain(local->engine, now, ACCESSES); /* nobody else does while all is idle */
    nr_local_advance(local, now);                     /* what left may have held inserts back */
    uint32_t count = nr_engine_table_count(local->engine);

    for (uint32_t i = 0; i < count && i < call->capacity; i++)
        nr_table_info(local->engine, i, &call->tables[i]);
    return NR_OK;
}

static int update(struct nr_local *local, struct nr_operation *operation, uint64_t now)
{
    struct nr_update_call *call = &operation->update;
    int status = operation->kind == NR_DELETE
                     ? nr_items_delete(local->engine, call->table, call->distinct, call->keys, call->distinct_outcome)
                     : nr_priorities_update(local->engine, call->table, call->distinct, call->keys, call->priorities,
                                            call->distinct_outcome);

    if (status == NR_OK)
        nr_update_finish(call);
    nr_local_advance(local, now);
    return status;
}

static int configure(struct nr_local *local, const struct nr_admin_call *call, uint64_t now)
{
    int status = nr_table_limits(local->engine, call->table, call->limits);

    if (status == NR_OK)
        status = nr_limits_merge(call->limits, &call->change);
    if (status == NR_OK)
        status = nr_table_configure(local->engine, call->table, call->limits);
    if (status == NR_OK)
        status = nr_table_limits(local->engine, call->table, call->limits);
    nr_local_advance(local, now);
    return status;
}

static int left(struct nr_local *local, struct nr_operation *operation, uint64_t now)
{
    nr_local_leave(local, now);
    int status = nr_table_left(local->engine, operation->admin.table, &operation->wait);
    return nr_is_wait(status) ? NR_PENDING : status;
}

/* Of those that wait for more than another's call. */
static uint32_t *counter_of(struct nr_local *local, const struct nr_operation *operation)
{
    return operation->kind == NR_LOOK ? &local->looks : &local->publications;
}

int nr_local_operation_poll(struct nr_operation *operation, uint64_t now)
{
    struct nr_local *local = nr_local_of(operation->replay);

    switch (operation->kind) {
    case NR_FLUSH:
        operation->wait = operation->replay->append_wait;
        return operation->flush.actor->decided >= operation->flush.target ? NR_OK : NR_PENDING;
    case NR_RESET:
        return left(local, operation, now);
    case NR_PUBLISH:
        return publish(local, operation, now);
    case NR_LOOK:
        return nr_table_histograms(local->engine, operation->look.table, now, LOOK_SLOTS, operation->look.histograms);
    default:
        return NR_OK;
    }
}

int nr_local_operation_start(struct nr_operation *operation, uint64_t now)
{
    struct nr_local *local = nr_local_of(operation->replay);
    int status;

    switch (operation->kind) {
    case NR_UPDATE:
    case NR_DELETE:
        return update(local, operation, now);
    case NR_CONFIGURE:
        return configure(local, &operation->admin, now);
    case NR_RESET:
        status = nr_table_reset(local->engine, operation->admin.table);
        return status == NR_OK ? left(local, operation, now) : status;
    case NR_FETCH:
        return fetch(local, operation, now);
    case NR_TABLES:
        return tables(local, &operation->tables, now);
    case NR_PING:
        *operation->ping.ping = (struct nr_ping){.round_trip_ns = nr_clock() - now};
        return NR_OK;
    default:
        status = nr_local_operation_poll(operation, now);
        operation->counted = status == NR_PENDING && (operation->kind == NR_PUBLISH || operation->kind == NR_LOOK);
        *counter_of(local, operation) += operation->counted;
        return status;
    }
}

void nr_local_operation_end(struct nr_operation *operation)
{
    *counter_of(nr_local_of(operation->replay), operation) -= operation->counted;
    operation->counted = 0;
}
