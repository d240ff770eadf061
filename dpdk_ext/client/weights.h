/* Importance weights of drawn rows. Pure. Source: docs/semantics.md (draws). */
#ifndef NR_CLIENT_WEIGHTS_H
#define NR_CLIENT_WEIGHTS_H

#include "../engine/engine.h"

/* By what weights are divided. */
enum nr_normalize {
    NR_NORMALIZE_NONE = 0,
    NR_NORMALIZE_BATCH = 1, /* the largest of the batch */
    NR_NORMALIZE_TABLE = 2, /* the largest that any item of the table could have, over the batch's draws */
};

/* weights[i] = ((1 / N) / P)^beta of `count` rows of `row_bytes`, P being the row's probability and N the items at its draw:
 * heads[i / part]. beta > 0, finite. Reckoned in double, rounded once. */
void nr_weights(const void *rows, uint64_t row_bytes, uint32_t count, const struct nr_draw_head *heads, uint32_t part, double beta,
                int normalize, float *weights);

#endif
