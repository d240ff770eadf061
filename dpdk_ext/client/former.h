/* Forms items from the steps of streams. Pure: no I/O, no clock, no allocation after nr_formers_create.
 *
 * Step numbers of a stream rise by one over all its episodes; an episode is a run of them that ends with an observation-only
 * step. The item of anchor t with k steps has the window max(episode start, t - stack + 1) .. t + k; of a sequence the anchor is
 * the first step. */
#ifndef NR_CLIENT_FORMER_H
#define NR_CLIENT_FORMER_H

#include "../engine/engine.h"
#include "replay.h"

/* One table's rule, with what is reckoned from it once. */
struct nr_former {
    struct nr_former_config config; /* as given */
    uint32_t item_bytes;            /* of the table's item columns */
    uint32_t pad;                   /* zero */
    double *power;                  /* [n + 1]: gamma^i; NULL for sequences */
};

/* All tables of one store. Read only after creation: any number of streams share it. */
struct nr_formers {
    uint32_t count;           /* tables */
    uint32_t longest;         /* the largest n of an n-step table, 1 without */
    uint32_t most;            /* items that one row can complete at most */
    uint32_t reward_ring;     /* places of a stream's rewards: a power of two > longest + 1 */
    struct nr_former *former; /* [count], in the order of the items of one anchor */
};

/* One stream's running episode. */
struct nr_episode {
    uint64_t next;      /* number that the next step gets */
    uint64_t start;     /* number of the episode's first step */
    uint8_t awaiting;   /* 1: the last step ended the episode and its final observation is due */
    uint8_t terminated; /* the last step's flag; with `awaiting` it says how the episode ended */
    uint8_t pad[6];     /* zero */
};

/* What one row of an append is to its stream. */
enum nr_row_kind {
    NR_ROW_STEP = 1,  /* observation, action, result */
    NR_ROW_FINAL = 2, /* a final observation only */
    NR_ROW_BOTH = 3,  /* a step that ended the episode, and its final observation */
};

/* An item that was formed. `item.number`, `priority` and `columns` are not set here. */
struct nr_formed {
    struct nr_item item;                  /* as the engine takes it */
    uint32_t former;                      /* index of the rule, hence the table */
    uint32_t row;                         /* of the call, hence the stream */
    uint8_t columns[NR_MAX_ITEM_COLUMNS]; /* the table's item_bytes, the rest zero */
};

/* Copies the rules. item_bytes[i] is of the table of rule i. NULL: NR_NO_MEMORY, or NR_BAD_CONFIG when n, stack
 * or a sequence's stride is 0, the window is longer than NR_MAX_WINDOW, or a column does not fit. */
struct nr_formers *nr_formers_create(uint32_t count, const struct nr_former_config *configs, const uint32_t *item_bytes,
                                     int *status);
void nr_formers_free(struct nr_formers *formers);

/* What a row is under the autoreset mode, or 0 when it contradicts it. `end`: nr_actor_end was called for it; `final`: a final
 * observation came with it. */
int nr_row_kind(const struct nr_episode *episode, uint32_t autoreset, bool end, bool done, bool final);

/* Takes the row's steps into the episode and forms the items they complete, in the order anchor, table; returns how many, at
 * most formers->most. `rewards` is the stream's ring; the places written are not among the last `longest` rewards, so a saved
 * copy of *episode restores the state before. `dropped` grows by the anchors that an episode's end left without item. */
uint32_t nr_form(const struct nr_formers *formers, struct nr_episode *episode, float *rewards, int kind, float reward,
                 bool terminated, bool truncated, uint64_t version, uint32_t row, struct nr_formed *formed, uint64_t *dropped);

#endif
