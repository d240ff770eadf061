/* Repeated keys of one priority update or deletion: the last value wins, whatever comes of it; the earlier ones are NR_SUPERSEDED. */
#ifndef NR_CLIENT_UPDATE_H
#define NR_CLIENT_UPDATE_H

#include "runtime.h"

/* Fills what is reckoned of the call (keys .. distinct) from the caller's arrays (`priorities` may be NULL) and
 * marks superseded outcomes. The scratch must
 * stay until nr_update_finish. NR_OK or NR_NO_MEMORY. */
int nr_update_resolve(struct nr_update_call *call, const uint64_t *keys, const double *priorities, struct nr_scratch *scratch);
/* distinct_outcome is whole: puts the outcomes where the caller looks. */
void nr_update_finish(const struct nr_update_call *call);

#endif
