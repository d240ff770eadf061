/*
 * x^a, one at a time or many at once. The same additions and multiplications on every processor and in every vector width (the build
 * turns fused ones off), so a result is the same bit for bit wherever it is taken, and a batch's are those of its members.
 * Relative error below 2^-52 x (1 + |a log2 x|); x = 1 gives 1 exactly.
 */
#ifndef NR_ENGINE_POWER_H
#define NR_ENGINE_POWER_H

#include <stdint.h>

/* For finite x >= 0 and finite exponent > 0; +inf where that is too large for a double, and some number below 2^-900 where it is
 * smaller than that. */
double nr_power(double x, double exponent);
void nr_powers(double exponent, uint32_t count, const double *x, double *result); /* result may be x */

#endif
