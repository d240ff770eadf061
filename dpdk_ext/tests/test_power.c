/* The power against long double, its borders, and that a batch's results are those of its members, bit for bit. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "engine/power.h"

enum { COUNT = 257 };

static uint64_t state = 1;

static double uniform(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) * 0x1p-53;
}

static void close_to_the_exact_value(double decades)
{
    double x[COUNT], y[COUNT];

    for (int round = 0; round < 400; round++) {
        double exponent = 0.01 + 2 * uniform();

        for (int i = 0; i < COUNT; i++)
            x[i] = pow(10, (uniform() - 0.5) * decades);
        nr_powers(exponent, COUNT, x, y);
        for (int i = 0; i < COUNT; i++) {
            long double exact = powl(x[i], exponent);
            double one = nr_power(x[i], exponent);

            CHECK(memcmp(&one, &y[i], sizeof(one)) == 0);
            if (exact > 1e-280L && exact < 1e300L)
                CHECK(fabsl((y[i] - exact) / exact) <= 0x1p-52 * (1 + fabs(exponent * log2(x[i]))));
        }
    }
}

static void rises_with_its_argument(void)
{
    double before = 0;

    for (double x = 1e-6; x < 1e6; x *= 1 + 1e-4) {
        double y = nr_power(x, 0.6);

        CHECK(y > before);
        before = y;
    }
}

static void right_at_the_borders(void)
{
    double x[] = {0, DBL_TRUE_MIN, DBL_MIN, DBL_MIN * (1 - 0x1p-52), 1, DBL_MAX, 2, 4}, y[8];

    nr_powers(0.6, 8, x, y);
    for (int i = 0; i < 8; i++) {
        double one = nr_power(x[i], 0.6);

        CHECK(memcmp(&one, &y[i], sizeof(one)) == 0 && fabs(y[i] - pow(x[i], 0.6)) <= 1e-12 * y[i]);
    }
    CHECK(y[0] == 0 && y[4] == 1);
    CHECK(isinf(nr_power(1e308, 3)) && nr_power(1e-300, 9) < 0x1p-900);
    nr_powers(0.6, 0, NULL, NULL);
}

int main(void)
{
    close_to_the_exact_value(2);
    close_to_the_exact_value(20);
    close_to_the_exact_value(500);
    rises_with_its_argument();
    right_at_the_borders();
    return 0;
}
