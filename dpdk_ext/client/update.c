#include "update.h"

#include <string.h>

enum { NONE = UINT32_MAX };

static inline uint32_t hash(uint64_t key, uint32_t shift)
{
    return (uint32_t)((key * 0x9e3779b97f4a7c15u) >> shift);
}

int nr_update_resolve(struct nr_update_call *call, const uint64_t *keys, const double *priorities, struct nr_scratch *scratch)
{
    uint32_t count = call->count, bits = 3, repeats = 0;

    call->keys = keys;
    call->priorities = priorities;
    call->distinct_outcome = call->outcome;
    call->place = NULL;
    call->distinct = count;
    if (count < 2)
        return NR_OK;
    while (((uint64_t)1 << bits) < (uint64_t)count * 2)
        bits++;

    /* Last place of each key seen so far, by hash; and room for the distinct ones, widest first. */
    size_t table_bytes = sizeof(uint32_t) << bits;
    size_t distinct_bytes = (size_t)count * (sizeof(uint64_t) + sizeof(double) + sizeof(uint32_t) + 1);
    uint8_t *memory = nr_scratch_take(scratch, distinct_bytes + table_bytes + sizeof(uint64_t));

    if (memory == NULL)
        return NR_NO_MEMORY;

    uint64_t *own_keys = (uint64_t *)memory;
    double *own_priorities = (double *)(own_keys + count);
    uint32_t *table = (uint32_t *)(own_priorities + count);
    uint32_t *place = (uint32_t *)((uint8_t *)table + table_bytes);
    uint32_t mask = (1u << bits) - 1, shift = 64 - bits;

    memset(table, 0xff, table_bytes);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t at = hash(keys[i], shift);

        while (table[at] != NONE && keys[table[at]] != keys[i])
            at = (at + 1) & mask;
        if (table[at] != NONE) {
            if (repeats++ == 0)
                memset(call->outcome, NR_APPLIED, count);
            call->outcome[table[at]] = NR_SUPERSEDED;
        }
        table[at] = i;
    }
    if (repeats == 0)
        return NR_OK;

    uint32_t distinct = 0;

    for (uint32_t i = 0; i < count; i++) {
        if (call->outcome[i] == NR_SUPERSEDED)
            continue;
        own_keys[distinct] = keys[i];
        if (priorities != NULL)
            own_priorities[distinct] = priorities[i];
        place[distinct++] = i;
    }
    call->keys = own_keys;
    call->priorities = priorities != NULL ? own_priorities : NULL;
    call->place = place;
    call->distinct_outcome = (uint8_t *)(place + count);
    call->distinct = distinct;
    return NR_OK;
}

void nr_update_finish(const struct nr_update_call *call)
{
    if (call->place == NULL)
        return;
    for (uint32_t i = 0; i < call->distinct; i++)
        call->outcome[call->place[i]] = call->distinct_outcome[i];
}
