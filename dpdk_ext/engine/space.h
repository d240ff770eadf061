/*
 * Making room: what gives way to a step or to a draw, and in which order. Past-due draws first, then items in the remover's
 * order from the fullest table, last the streams that nobody owns.
 */
#ifndef NR_ENGINE_SPACE_H
#define NR_ENGINE_SPACE_H

#include "engine/state.h"

/* Sees to it that the store's slab has a free place. False when nothing that may give way would free one. */
bool nr_space_for_step(struct nr_engine *engine, struct nr_store *store, uint64_t now);

/* Takes the leases of the table's past-due draws back, oldest first, until `count` more drawn items may be held. */
bool nr_space_for_leases(struct nr_engine *engine, struct nr_table *table, uint32_t count, uint64_t now);

/* Takes the leases and the reservations of the table's oldest draw back if it is past due. */
bool nr_space_reclaim(struct nr_engine *engine, struct nr_table *table, uint64_t now);

#endif
