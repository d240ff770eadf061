/*
 * Choosing the items of one call's draws: by the table's selector, and where items may be drawn a limited number of times
 * (limits.max_sampled) one after the other, each withheld from the selector with the last draw that it may have.
 */
#ifndef NR_ENGINE_CHOOSE_H
#define NR_ENGINE_CHOOSE_H

#include "engine/state.h"

/* NR_OK, or NR_WAIT_EMPTY or NR_WAIT_PASSES where the table can certainly not give so many draws. */
int nr_choose_lacking(const struct nr_table *table, uint32_t count, struct nr_wait *wait);

/* Draws into draw->entries: slots in place of keys, and probabilities. Only when nothing is lacking. With a limit the items are
 * counted as sampled, and NR_WAIT_* (there are not so many draws left in the items, or items are leaving that were drawn more often
 * than a lowered limit lets them) leaves none of them drawn. */
int nr_choose(struct nr_engine *engine, struct nr_table *table, struct nr_draw *draw, uint32_t count, struct nr_wait *wait);

#endif
