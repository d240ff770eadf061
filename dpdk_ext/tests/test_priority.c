/* Priorities: from raw numbers to leaves, and the exact extremes of the raw numbers. */
#include "engine/priority.h"

#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "engine/extremes.h"
#include "engine/random.h"

#define UNIT NR_PRIORITY_UNIT

static uint64_t leaf(double raw, double exponent, uint32_t items)
{
    struct nr_priority priority;
    uint64_t saturated = 0;

    nr_priority_init(&priority, exponent, items);
    return nr_priority_leaf(&priority, raw, &saturated);
}

static uint64_t saturation(double raw, double exponent, uint32_t items)
{
    struct nr_priority priority;
    uint64_t saturated = 0;

    nr_priority_init(&priority, exponent, items);
    nr_priority_leaf(&priority, raw, &saturated);
    return saturated;
}

static void what_is_no_priority_is_refused(void)
{
    static const double bad[] = {NAN, -NAN, INFINITY, -INFINITY, -1, -1e-7, -5e-324, -DBL_MAX};
    static const double good[] = {0.0, -0.0, 5e-324, 1e-300, 1e-7, 1, 1e38, 1e300, DBL_MAX};

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        CHECK(!nr_priority_valid(bad[i]));
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++)
        CHECK(nr_priority_valid(good[i]));
    CHECK(nr_priority_normal(-0.0) == 0 && !signbit(nr_priority_normal(-0.0)));
}

static void the_exponent_is_applied_once(void)
{
    CHECK(leaf(4, 0.5, 1000) == 2 * UNIT);
    CHECK(leaf(4, 1, 1000) == 4 * UNIT);
    CHECK(leaf(4, 2, 1000) == 16 * UNIT);
    CHECK(leaf(1, 0.6, 1000) == UNIT);
    CHECK(leaf(0.37, 1, 1000) == (uint64_t)nearbyint(0.37 * (double)UNIT));
    for (int i = -300; i < 300; i += 7)
        CHECK(leaf(pow(10, i), 0, 1000) == UNIT);
}

static void zero_weighs_nothing_whatever_its_sign_and_exponent(void)
{
    static const double exponents[] = {0, 0.5, 0.6, 1, 3};

    for (size_t i = 0; i < sizeof(exponents) / sizeof(exponents[0]); i++) {
        CHECK(leaf(0.0, exponents[i], 7) == 0);
        CHECK(leaf(-0.0, exponents[i], 7) == 0);
        CHECK(saturation(0.0, exponents[i], 7) == 0);
    }
}

static void what_is_positive_stays_drawable_and_finite(void)
{
    static const double raws[] = {5e-324, 1e-300, 1e-38, 1e-9, 1e9, 1e38, 1e300, DBL_MAX};
    static const uint32_t items[] = {1, 2, 3, 1000, 1000000, INT32_MAX};
    static const double exponents[] = {0, 0.5, 0.6, 1, 3};

    for (size_t i = 0; i < sizeof(raws) / sizeof(raws[0]); i++) {
        for (size_t j = 0; j < sizeof(items) / sizeof(items[0]); j++) {
            for (size_t k = 0; k < sizeof(exponents) / sizeof(exponents[0]); k++) {
                uint64_t l = leaf(raws[i], exponents[k], items[j]);

                CHECK(l >= 1 && l <= UINT64_MAX / items[j]);
            }
        }
    }
    CHECK(leaf(5e-324, 1, 10) == 1 && saturation(5e-324, 1, 10) == 1);
    CHECK(leaf(DBL_MAX, 1, 10) == UINT64_MAX / 10 && saturation(DBL_MAX, 1, 10) == 1);
    CHECK(leaf(DBL_MAX, 3, 10) == UINT64_MAX / 10 && saturation(DBL_MAX, 3, 10) == 1);
    CHECK(leaf(1e300, 1, 1) == UINT64_MAX);
    CHECK(saturation(1, 1, 10) == 0);
    /* The first that is cut, for caps that doubles can tell apart. */
    double cap_weight = (double)(UINT64_MAX / 1000000) / (double)UNIT;
    CHECK(saturation(cap_weight, 1, 1000000) == 0);
    CHECK(saturation(nextafter(cap_weight, INFINITY), 1, 1000000) == 1);
}

static void rounding_is_to_nearest(void)
{
    const double unit = 1.0 / (double)UNIT;

    CHECK(leaf(0.5 * unit, 1, 10) == 1 && saturation(0.5 * unit, 1, 10) == 1); /* ties go to even, which is nothing: raised */
    CHECK(leaf(nextafter(0.5 * unit, 1), 1, 10) == 1 && saturation(nextafter(0.5 * unit, 1), 1, 10) == 0);
    CHECK(leaf(1.5 * unit, 1, 10) == 2);
    CHECK(leaf(nextafter(1.5 * unit, 0), 1, 10) == 1);
    CHECK(leaf(2.5 * unit, 1, 10) == 2);
    CHECK(leaf((0x1p51 + 0.5) * unit, 1, 10) == (uint64_t)1 << 51);
    CHECK(leaf((0x1p52 + 1) * unit, 1, 10) == ((uint64_t)1 << 52) + 1);
    CHECK(leaf((0x1p53 - 1) * unit, 1, 10) == ((uint64_t)1 << 53) - 1);
}

static void leaves_rise_with_raw_priorities(void)
{
    static const double exponents[] = {0, 0.3, 0.5, 0.6, 0.7, 1, 1.5};
    struct nr_random random;

    nr_random_seed(&random, 8);
    for (size_t k = 0; k < sizeof(exponents) / sizeof(exponents[0]); k++) {
        for (int i = 0; i < 200000; i++) {
            double raw = exp2((double)nr_random_below(&random, 80) - 40) * (1 + (double)(nr_random_next(&random) >> 12) * 0x1p-52);

            CHECK(leaf(raw, exponents[k], 100000) <= leaf(nextafter(raw, INFINITY), exponents[k], 100000));
        }
    }
}

/* ---- Extremes ---- */

static void check_extremes(const struct nr_extremes *extremes, const double *model, uint32_t count)
{
    double largest = 0, least = 0;

    for (uint32_t i = 0; i < count; i++) {
        largest = model[i] > largest ? model[i] : largest;
        least = model[i] > 0 && (least == 0 || model[i] < least) ? model[i] : least;
    }
    CHECK(nr_extremes_largest(extremes) == largest);
    CHECK(nr_extremes_least(extremes) == least);
}

static void extremes_follow_every_change(void)
{
    static const uint32_t counts[] = {1, 2, 3, 5, 7, 8, 9, 63, 64, 65, 511, 512, 513, 1000};
    struct nr_random random;

    nr_random_seed(&random, 9);
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        struct nr_arena reckoned = {0}, arena;
        struct nr_extremes extremes;
        double *model = calloc(counts[c], sizeof(*model));

        nr_extremes_init(&extremes, &reckoned, counts[c]);
        CHECK(nr_arena_open(&arena, reckoned.used));
        nr_extremes_init(&extremes, &arena, counts[c]);
        CHECK(arena.used == reckoned.used);
        check_extremes(&extremes, model, counts[c]);
        for (int i = 0; i < 20000; i++) {
            uint32_t at = (uint32_t)nr_random_below(&random, counts[c]);
            uint64_t kind = nr_random_below(&random, 8);

            /* Few values, so that equal ones, and the extremes themselves, change often. */
            model[at] = kind == 0   ? 0
                        : kind == 1 ? 5e-324
                        : kind == 2 ? DBL_MAX
                                    : (double)(1 + nr_random_below(&random, kind * 20));
            nr_extremes_set(&extremes, at, model[at]);
            CHECK(nr_extremes_get(&extremes, at) == model[at]);
            check_extremes(&extremes, model, counts[c]);
        }
        for (uint32_t i = 0; i < counts[c]; i++) {
            model[i] = 0;
            nr_extremes_set(&extremes, i, 0);
            check_extremes(&extremes, model, counts[c]);
        }
        free(model);
        nr_arena_close(&arena);
    }
}

int main(void)
{
    what_is_no_priority_is_refused();
    the_exponent_is_applied_once();
    zero_weighs_nothing_whatever_its_sign_and_exponent();
    what_is_positive_stays_drawable_and_finite();
    rounding_is_to_nearest();
    leaves_rise_with_raw_priorities();
    extremes_follow_every_change();
    return 0;
}
