/*
 * Writes checkpoints of an engine that goes on working. Whoever owns the engine (a loop, or a mutex's holder) calls
 * nr_checkpointer_work now and then, which fills one block in less than 1 ms and never blocks; a thread of its own computes
 * checksums, writes and synchronises. Between them is a ring of blocks with one producer and one consumer: filled blocks go
 * forward, and come back when they are written, so that their steps can be let go.
 *
 * The file is written as PATH.partial, under a lock, and renamed when all of it is on the disk; an error leaves what was at PATH as it was.
 */
#ifndef NR_LOOP_CHECKPOINTER_H
#define NR_LOOP_CHECKPOINTER_H

#include "../engine/engine.h"

struct nr_checkpointer;

enum nr_checkpoint_state { NR_CHECKPOINT_IDLE, NR_CHECKPOINT_RUNNING, NR_CHECKPOINT_WRITTEN, NR_CHECKPOINT_FAILED };

struct nr_checkpoint_progress {
    uint32_t state;              /* enum nr_checkpoint_state; IDLE: none was ever begun */
    int32_t status;              /* of the last: NR_OK, NR_SYSTEM, NR_CLOSED (ended early), NR_TOO_MANY */
    int32_t error;               /* errno of NR_SYSTEM */
    uint32_t count;              /* written, ever */
    uint64_t bytes;              /* written so far */
    uint64_t estimate;           /* bytes of the whole, once it is known; else 0 */
    uint64_t items;              /* written so far */
    uint64_t longest_quantum_ns; /* of the engine's work for the last */
    uint64_t elapsed_ns;         /* from the request to the rename, or to now */
};

/* `spec` is copied. NULL: *status is NR_NO_MEMORY. */
struct nr_checkpointer *nr_checkpointer_open(const char *spec, int *status);
/* Asks for a checkpoint at `path`. Any thread. NR_WAIT_TURN while one runs; NR_SYSTEM with *error: no thread is to be had. */
int nr_checkpointer_begin(struct nr_checkpointer *checkpointer, const char *path, int *error);
/* The owner's turn. True: there is more to do now; else nothing until a block has been written, or a checkpoint is asked for. */
bool nr_checkpointer_work(struct nr_checkpointer *checkpointer, struct nr_engine *engine, uint64_t now);
/* The owner's turn again and again, for one who has nothing else to do: until the checkpoint is over (NR_OK, however it ended), or
 * NR_PENDING after wait_ns. */
int nr_checkpointer_finish(struct nr_checkpointer *checkpointer, struct nr_engine *engine, uint64_t wait_ns);
/* Whether a checkpoint was asked for and is not over; the owner must not sleep for long then. Any thread. */
bool nr_checkpointer_running(const struct nr_checkpointer *checkpointer);
/* Any thread. */
void nr_checkpointer_progress(const struct nr_checkpointer *checkpointer, struct nr_checkpoint_progress *progress);
/* Ends a running checkpoint early, its file removed, and waits until it is over. The owner's turn. */
void nr_checkpointer_cancel(struct nr_checkpointer *checkpointer, struct nr_engine *engine);
/* The same, then frees it; the engine is still there. */
void nr_checkpointer_close(struct nr_checkpointer *checkpointer, struct nr_engine *engine);

#endif
