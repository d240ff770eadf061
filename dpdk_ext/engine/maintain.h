/*
 * What an engine does when nobody asks it for anything: work that calls leave over because it would take too long. Whoever drives the
 * engine calls it now and then, and again at once while it says that more is due.
 */
#ifndef NR_ENGINE_MAINTAIN_H
#define NR_ENGINE_MAINTAIN_H

#include <stdbool.h>
#include <stdint.h>

struct nr_engine;

/* Spends about `budget` memory accesses on tables that are being reset, and as many on items that are too old. True: more is due now. */
bool nr_engine_maintain(struct nr_engine *engine, uint64_t now, uint32_t budget);

#endif
