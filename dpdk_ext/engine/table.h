/*
 * A table: items over the steps of one store, how they are chosen, and the open draws that lease them.
 *
 * An item's slot is drawable (in the order and in the selector), withheld (in the order only: it was drawn as often as it may be,
 * and not all of these draws are settled), a leftover (evicted, but leased by a draw, so that its record and its steps stay), or
 * free. There are capacity + leases slots, so an evicted item never stands in an insert's way.
 */
#ifndef NR_ENGINE_TABLE_H
#define NR_ENGINE_TABLE_H

#include <stddef.h>

#include "engine/expire.h"
#include "engine/extremes.h"
#include "engine/limiter.h"
#include "engine/order.h"
#include "engine/remover.h"
#include "engine/selector.h"
#include "engine/slab.h"
#include "engine/stream.h"

/* nr_record.key: the item is neither drawable nor withheld. Keys have 63 bits, so no key that a client can name is equal to such a one. */
#define NR_KEY_GONE ((uint64_t)1 << 63)
#define NR_KEY_BITS 55 /* of slot and generation; the shard's 8 are above */

/* An item, all that a draw needs: for small windows one cache line. Its columns follow its steps. */
struct nr_record {
    uint64_t key;      /* shard, slot and generation; with NR_KEY_GONE once it has left */
    uint32_t leases;   /* drawn and not released, over all draws */
    uint32_t sampled;  /* times drawn, refunds taken off */
    uint32_t reserved; /* of those: not committed yet; with NR_RECORD_WITHHELD */
    uint16_t anchor;   /* position in the window of the step whose action is trained */
    uint16_t length;   /* steps from the anchor to the last; the window has anchor + length + 1 */
    uint32_t steps[]; /* slab places of the window; table.window of them, then item_bytes of columns */
};

/* nr_record.reserved: the item was drawn as often as it may be, and is kept from the selector until that is committed. */
#define NR_RECORD_WITHHELD ((uint32_t)1 << 31)

_Static_assert(offsetof(struct nr_record, steps) == 24, "a record's header takes 24 bytes");
_Static_assert(NR_MAX_WINDOW <= UINT16_MAX, "a window's positions fit 16 bits");

/* What a piece of a row is made of. */
enum nr_piece_kind {
    NR_PIECE_STEP, /* bytes of one step that is always there */
    NR_PIECE_RUN,  /* of several steps, or of one that may be zeros */
    NR_PIECE_HEAD,
    NR_PIECE_COLUMNS,
    NR_PIECE_ZERO
};

/* One piece of a row, nr_gather_bytes long. Pieces are sorted by target and cover the row without gap. */
struct nr_piece {
    struct nr_gather gather; /* of steps; of other kinds only source, length and target count, source from their start */
    uint16_t kind;           /* enum nr_piece_kind */
    uint16_t touch;          /* first piece of its cache line in the step: prefetched when drawn */
};

struct nr_table {
    /* Drawing. */
    uint8_t *records;         /* by slot */
    struct nr_piece *pieces;  /* of a row */
    uint32_t stride;          /* bytes from one record to the next */
    uint32_t piece_count;     /* pieces of a row */
    uint32_t longest;         /* bytes of the longest part of a row that lies within one step */
    uint32_t body;            /* index of the first piece after the head and the columns */
    uint32_t row_bytes;       /* of a row */
    uint32_t columns;         /* bytes into a record: where its columns start */
    uint32_t item_bytes;      /* of the columns */
    uint32_t generation_bits; /* of a key */
    uint32_t fresh;           /* slots from here on were never used */
    uint32_t slots;           /* capacity + leases */
    bool touch_steps;         /* rows are small: their steps are prefetched when drawn */
    bool resetting;           /* its items are leaving, see reset.h */
    struct nr_selector selector;
    struct nr_order order; /* the drawable and the withheld items */
    struct nr_extremes extremes; /* their raw priorities, by slot */
    struct nr_expiry expiry;
    uint64_t *born; /* ns; by slot: when the item was inserted, never before one inserted earlier; apart from the record, which
                       draws touch */
    struct nr_removal remover;

    /* Space. */
    uint32_t free;          /* a slot that was used and is free again, or NR_NONE; linked by order.links[].after */
    uint32_t leftovers;     /* slots evicted but leased */
    uint32_t withheld;      /* items that wait for their draws to be settled */
    uint32_t version;       /* bytes into the columns where an item's version stands, or NR_NONE */
    uint32_t capacity;      /* drawable and withheld items */
    uint32_t leases;        /* most drawn items held */
    uint32_t leased;        /* drawn items held */
    uint32_t window;        /* steps of the longest item */
    uint32_t store;         /* index */
    uint32_t next_of_store; /* index of another table over the same store, or NR_NONE */
    uint32_t save_next;     /* slot of the item that the running checkpoint writes next, or NR_NONE */
    uint32_t save_last;     /* slot of the last item that it writes, or NR_NONE */
    uint32_t save_step;     /* position in the next one's window: the steps before it are written */
    uint32_t restored;      /* slots marked in `restored_slots` */
    uint8_t *restored_slots; /* a bit each: the item is from a checkpoint, and the slot's next generation far off */
    struct nr_draw *oldest; /* of the draws that hold leases, or NULL */
    struct nr_draw *newest; /* or NULL */

    struct nr_limiter limiter;
    uint64_t first_generations;                   /* secret that the first generations come from */
    uint64_t first_offset;                        /* added to them: rises with every restore */
    uint64_t leap;                                /* what a slot's generation rises by at a restore; another at each start */
    uint64_t shard;                               /* upper bits of every key, in place */
    uint64_t draws;                               /* opened, ever */
    uint64_t updated, stale, refused;             /* priorities applied; for items gone; refused items and priorities */
    uint64_t evicted_capacity, evicted_steps;     /* items that left because places, or steps, ran out */
    uint64_t dropped;                             /* items that a checkpoint had counted and that were not restored */
    uint64_t evicted_deleted, evicted_reset;      /* items that left because a client said so */
    uint64_t inserted_before;                     /* items that the limiter had counted when it was reset */
    uint64_t resets;                              /* begun, ever */
    uint64_t evicted_sampled;                     /* items that left because they were sampled as often as they may be */
    uint64_t evicted_age, evicted_version;        /* items that left because they were too old */
    uint64_t saturated;                           /* leaves cut to the cap or raised to the least */
    uint64_t progress;                            /* see nr_table_progress; what the store freed is added */
};

void nr_table_init(struct nr_table *table, struct nr_arena *arena, const struct nr_table_config *config, uint32_t sets);
/* Lays out the rows; `gathers` are the table's own, valid and without overlap. */
void nr_table_plan(struct nr_table *table, const struct nr_gather *gathers, uint32_t count);

static inline struct nr_record *nr_table_record(const struct nr_table *table, uint32_t slot)
{
    return (struct nr_record *)(table->records + (uint64_t)slot * table->stride);
}

static inline uint32_t nr_table_slot(const struct nr_table *table, uint64_t key)
{
    return (uint32_t)((key & (((uint64_t)1 << NR_KEY_BITS) - 1)) >> table->generation_bits);
}

static inline uint32_t nr_record_steps(const struct nr_record *record)
{
    return (uint32_t)record->anchor + record->length + 1;
}

/* The record of a drawable or withheld item, or NULL. Any key may be asked for. */
static inline struct nr_record *nr_table_find(const struct nr_table *table, uint64_t key)
{
    uint32_t slot = nr_table_slot(table, key);

    if (slot >= table->fresh)
        return NULL;
    struct nr_record *record = nr_table_record(table, slot);
    return record->key == key && key < NR_KEY_GONE ? record : NULL;
}

/* The running checkpoint's cursor, or its end, is at an item that has been written or leaves: it moves on, or the end back. */
void nr_table_save_past(struct nr_table *table, uint32_t slot);
/* A free slot, its record empty but for the key, which is its item's once NR_KEY_GONE is cleared. Only when size < capacity. */
uint32_t nr_table_take(struct nr_table *table);
/* Gives back a slot that is neither drawable nor leased, and its hold on its steps. */
void nr_table_give(struct nr_table *table, struct nr_slab *slab, uint32_t slot);
/* The key that a slot's next item gets, `leap` generations on. */
static inline uint64_t nr_table_next_key(const struct nr_table *table, uint64_t key, uint64_t leap)
{
    uint64_t mask = ((uint64_t)1 << table->generation_bits) - 1;

    return (key & ~mask) | ((key + leap) & mask);
}

/* Makes the record of a taken slot, filled but for its key, a drawable item, the newest. */
void nr_table_add(struct nr_table *table, uint32_t slot, double raw);
/* Keeps a drawable item from the selector, and gives it back to it. */
void nr_table_withhold(struct nr_table *table, uint32_t slot);
void nr_table_show(struct nr_table *table, uint32_t slot);
/* Takes a drawable or withheld item out of the table; its slot is given back now, or with the last of its leases. */
void nr_table_evict(struct nr_table *table, struct nr_slab *slab, uint32_t slot);

#endif
