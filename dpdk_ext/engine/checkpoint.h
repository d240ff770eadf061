/*
 * Saving an engine beside its work, in quanta: the records of a checkpoint (docs/checkpoint.md), block by block. No I/O: whoever
 * calls writes the blocks, in their order, behind heads with checksums. One checkpoint runs at a time.
 *
 * It holds every item that was drawable at the cut (the first call of nr_checkpoint_next that adds anything) and has not left by
 * the time it would be written: whole, with its priority at that time. Counters, random state and the items' numbers of all streams
 * are those of the cut; items inserted later are not in it.
 */
#ifndef NR_ENGINE_CHECKPOINT_H
#define NR_ENGINE_CHECKPOINT_H

#include "engine/engine.h"

enum {
    NR_CHECKPOINT_OWN = 256 << 10,     /* bytes that a block's `own` must have room for */
    NR_CHECKPOINT_SEGMENTS = 64,       /* that a block should have room for */
    NR_CHECKPOINT_LEAST = 1024,        /* a good `least` of its pieces: shorter steps are copied */
    NR_CHECKPOINT_WORK = 512,          /* items, steps and the like of one call that takes well below 1 ms */
};

/* NR_WAIT_TURN while another runs. */
int nr_checkpoint_begin(struct nr_engine *engine);
/* Adds the next records to `pieces`, which is empty: at most NR_CHECKPOINT_OWN bytes of its own, and references to whole steps, each
 * of which holds its step until nr_checkpoint_sent. At most `work` elementary steps. NR_PENDING: call again, whether or not anything
 * was added; NR_WAIT_SPACE: nothing was added, and nothing will be until a reference is given back; NR_OK: that was the last.
 * NR_CLOSED: no checkpoint is running. NR_TOO_MANY: it has more steps than the file can number, and has ended. */
int nr_checkpoint_next(struct nr_engine *engine, struct nr_pieces *pieces, uint32_t work, uint64_t now);
/* Ends it early. References on their way stay the caller's to give back. */
void nr_checkpoint_end(struct nr_engine *engine);
/* Drops the reference of a segment, once for each. NR_TOKEN_NONE is allowed. */
void nr_checkpoint_sent(struct nr_engine *engine, uint64_t token);
bool nr_checkpoint_running(const struct nr_engine *engine);
/* Bytes of all records, reckoned at the cut; 0 before it. */
uint64_t nr_checkpoint_items(const struct nr_engine *engine); /* written so far */
uint64_t nr_checkpoint_estimate(const struct nr_engine *engine);

#endif
