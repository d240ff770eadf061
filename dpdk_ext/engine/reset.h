/*
 * Resets: every item of a table leaves. It is done in quanta, because a large table takes longer than anybody else may have to
 * wait; until it is done the table lets nobody insert or draw (NR_WAIT_LEAVING), and all its keys are stale.
 */
#ifndef NR_ENGINE_RESET_H
#define NR_ENGINE_RESET_H

#include "engine/state.h"

/* Lets up to `budget` items of a table that is being reset leave; returns how many did. Nothing to do: 0. */
uint32_t nr_reset_some(struct nr_engine *engine, struct nr_table *table, uint32_t budget);

#endif
