/*
 * The slab of a store: fixed places for whole steps, each held by counted references: one of its stream's ring, one of every item
 * whose window has it, one of every segment of a datagram or of a checkpoint's block that has its bytes. A place is free when nobody holds it.
 */
#ifndef NR_ENGINE_SLAB_H
#define NR_ENGINE_SLAB_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "engine/arena.h"

#define NR_NONE UINT32_MAX /* no place, slot or index */

/* nr_step.state */
#define NR_STEP_SHORT (1u << 31)          /* an observation-only step */
#define NR_STEP_RINGED (1u << 30)         /* its stream's ring holds one of the references */
#define NR_STEP_SAVED (1u << 29)          /* the running checkpoint has it, as slab.numbers says */
#define NR_STEP_MISSING (NR_STEP_SAVED - 1) /* bytes that have not arrived; 0: the step is whole */
#define NR_MAX_STEP_BYTES NR_STEP_MISSING

/* Datagrams on their way hold at most one in so many of the places, so that a slow port cannot drive the items out. */
#define NR_SLAB_LENT_SHARE 8
/* A step with more references is not lent: counting on is left to the items. */
#define NR_STEP_LENDABLE (UINT32_MAX / 2)

struct nr_step {
    uint32_t references; /* 0: free */
    uint32_t state;      /* NR_STEP_*; of a free place the next free one, or NR_NONE */
};

struct nr_slab {
    uint8_t *bytes;             /* place i at i * stride */
    struct nr_step *steps;      /* by place */
    uint32_t count;             /* places */
    uint32_t stride;            /* bytes from one place to the next */
    uint32_t step_bytes;        /* of a whole step */
    uint32_t observation_bytes; /* of an observation-only step */
    uint32_t fresh;             /* places from here on were never used */
    uint32_t free;              /* first of the places that were used and are free again, or NR_NONE */
    uint32_t used;              /* places held */
    uint32_t ringed;            /* places held by rings, and perhaps by items too */
    uint32_t lent;              /* references that datagrams on their way hold */
    uint32_t pinned;            /* references that a checkpoint's blocks on their way hold */
    uint32_t saved;             /* steps that the running checkpoint has */
    uint32_t *numbers;          /* by place: its number in that checkpoint; only with NR_STEP_SAVED */
    uint64_t freed;             /* places given back, ever */
};

void nr_slab_init(struct nr_slab *slab, struct nr_arena *arena, uint32_t count, uint32_t step_bytes, uint32_t observation_bytes);

static inline uint8_t *nr_slab_step(const struct nr_slab *slab, uint32_t place)
{
    return slab->bytes + (uint64_t)place * slab->stride;
}

static inline bool nr_slab_available(const struct nr_slab *slab)
{
    return slab->used < slab->count;
}

static inline bool nr_slab_whole(const struct nr_slab *slab, uint32_t place)
{
    return (slab->steps[place].state & NR_STEP_MISSING) == 0;
}

/* A place for a step of `total` bytes, none of which is there yet, with one reference: the ring's. Only when available. */
static inline uint32_t nr_slab_take(struct nr_slab *slab, uint32_t total)
{
    uint32_t place = slab->free;

    if (place != NR_NONE)
        slab->free = slab->steps[place].state;
    else
        place = slab->fresh++;
    slab->steps[place].references = 1;
    slab->steps[place].state = NR_STEP_RINGED | total;
    if (total < slab->step_bytes) {
        slab->steps[place].state |= NR_STEP_SHORT;
        memset(nr_slab_step(slab, place) + total, 0, slab->step_bytes - total);
    }
    slab->used++;
    slab->ringed++;
    return place;
}

static inline void nr_slab_hold(struct nr_slab *slab, uint32_t place)
{
    slab->steps[place].references++;
}

static inline void nr_slab_drop(struct nr_slab *slab, uint32_t place)
{
    struct nr_step *step = &slab->steps[place];

    if (--step->references == 0) {
        step->state = slab->free;
        slab->free = place;
        slab->used--;
        slab->freed++;
    }
}

/* Takes a reference for a datagram, of a step that something else holds. False: the bytes must be copied. */
static inline bool nr_slab_lend(struct nr_slab *slab, uint32_t place)
{
    if (slab->lent >= slab->count / NR_SLAB_LENT_SHARE || slab->steps[place].references > NR_STEP_LENDABLE)
        return false;
    slab->steps[place].references++;
    slab->lent++;
    return true;
}

static inline void nr_slab_returned(struct nr_slab *slab, uint32_t place)
{
    slab->lent--;
    nr_slab_drop(slab, place);
}

/* Takes a reference for a checkpoint's block; at least one is always to be had. False: wait until others are given back. */
static inline bool nr_slab_pin(struct nr_slab *slab, uint32_t place)
{
    if (slab->pinned > slab->count / NR_SLAB_LENT_SHARE)
        return false;
    slab->steps[place].references++;
    slab->pinned++;
    return true;
}

static inline void nr_slab_unpin(struct nr_slab *slab, uint32_t place)
{
    slab->pinned--;
    nr_slab_drop(slab, place);
}

/* Drops the ring's reference. */
static inline void nr_slab_drop_ringed(struct nr_slab *slab, uint32_t place)
{
    slab->steps[place].state &= ~NR_STEP_RINGED;
    slab->ringed--;
    nr_slab_drop(slab, place);
}

/* The ring takes its reference again, of a step that something else still holds. */
static inline void nr_slab_hold_ringed(struct nr_slab *slab, uint32_t place)
{
    slab->steps[place].state |= NR_STEP_RINGED;
    slab->steps[place].references++;
    slab->ringed++;
}

#endif
