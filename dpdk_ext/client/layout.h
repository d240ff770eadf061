/* The client's copy of what the spec says of stores and tables. Made once, never changed; owned by the replay. */
#ifndef NR_CLIENT_LAYOUT_H
#define NR_CLIENT_LAYOUT_H

#include "../engine/engine.h"

struct nr_layout {
    struct nr_engine_config config; /* its four arrays lie behind this struct */
};

/* One allocation, freed by free(). NULL: NR_NO_MEMORY, or NR_BAD_CONFIG when a count is out of range, a table names no store,
 * or a gather does not fit its step or row. */
struct nr_layout *nr_layout_copy(const struct nr_engine_config *config, int *status);

#endif
