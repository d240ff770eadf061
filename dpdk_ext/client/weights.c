#include "weights.h"

#include <string.h>

#include "../engine/power.h"

enum { AT_ONCE = 64, PROBABILITY = 8 /* bytes into a row */ };

/* (1 / N) / P of a row. */
static inline double base_of(const uint8_t *rows, uint64_t row_bytes, uint32_t row, const struct nr_draw_head *head)
{
    double probability;

    memcpy(&probability, rows + row * row_bytes + PROBABILITY, sizeof(probability));
    return 1 / ((double)head->size * probability);
}

void nr_weights(const void *rows, uint64_t row_bytes, uint32_t count, const struct nr_draw_head *heads, uint32_t part, double beta,
                int normalize, float *weights)
{
    double largest = 0;

    /* The power is monotone, so the largest weight is that of the largest base. */
    if (normalize == NR_NORMALIZE_BATCH) {
        for (uint32_t i = 0; i < count; i++) {
            double base = base_of(rows, row_bytes, i, &heads[i / part]);

            largest = base > largest ? base : largest;
        }
    } else if (normalize == NR_NORMALIZE_TABLE && count > 0) {
        for (const struct nr_draw_head *head = heads, *last = &heads[(count - 1) / part]; head <= last; head++) {
            double base = 1 / ((double)head->size * ((double)head->min_leaf / (double)head->total));

            largest = base > largest ? base : largest;
        }
    }
    double divisor = largest > 0 ? nr_power(largest, beta) : 1;
    for (uint32_t first = 0; first < count; first += AT_ONCE) {
        uint32_t some = count - first < AT_ONCE ? count - first : AT_ONCE;
        double bases[AT_ONCE];

        for (uint32_t i = 0; i < some; i++)
            bases[i] = base_of(rows, row_bytes, first + i, &heads[(first + i) / part]);
        nr_powers(beta, some, bases, bases);
        for (uint32_t i = 0; i < some; i++)
            weights[first + i] = (float)(bases[i] / divisor);
    }
}
