#include "engine/power.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

static inline uint64_t bits_of(double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline double of_bits(uint64_t bits)
{
    double value;

    memcpy(&value, &bits, sizeof(value));
    return value;
}

/* x normal. Without a branch, an arithmetic shift or a conversion of 64-bit integers, which AVX2 lacks: so the compiler takes four
 * at once. */
static inline double power(double exponent, double x)
{
    /* x = 2^e m with m in [sqrt(1/2), sqrt(2)): the exponent field counts from the bits of sqrt(1/2) on. */
    const uint64_t one = 0x3ff0000000000000u, root = 0x3fe6a09e667f3bcdu;
    const double magic = 0x1.8p52; /* has whole numbers in its low bits */
    uint64_t field = (bits_of(x) - root + one) >> 52;
    double m = of_bits(bits_of(x) - (field << 52) + one);
    double e = of_bits(bits_of(magic) + field) - magic - 1023;

    /* log2((1 + s) / (1 - s)) is the sum of 2 s^(2 k + 1) / ((2 k + 1) ln 2); |s| <= 3 - 2 sqrt(2), so k = 10 reaches 2^-56. */
    double s = (m - 1) / (m + 1), q = s * s, log2_m = 0.13739952770371080;
    log2_m = log2_m * q + 0.15186263588304878;
    log2_m = log2_m * q + 0.16972882833987804;
    log2_m = log2_m * q + 0.19235933878519513;
    log2_m = log2_m * q + 0.22195308321368667;
    log2_m = log2_m * q + 0.26230818925253880;
    log2_m = log2_m * q + 0.32059889797532520;
    log2_m = log2_m * q + 0.41219858311113242;
    log2_m = log2_m * q + 0.57707801635558536;
    log2_m = log2_m * q + 0.96179669392597561;
    log2_m = log2_m * q + 2.8853900817779268;
    double y = exponent * (e + s * log2_m);
    y = y < 1024 ? y : 1024;
    y = y > -960 ? y : -960;

    /* 2^r is the sum of (r ln 2)^k / k!; |r| <= 1/2, so k = 13 reaches 2^-56. */
    double rounded = y + magic, r = y - (rounded - magic), exp2_r = 1.3691488853904129e-12;
    exp2_r = exp2_r * r + 2.5678435993488206e-11;
    exp2_r = exp2_r * r + 4.4455382718708116e-10;
    exp2_r = exp2_r * r + 7.0549116208011233e-9;
    exp2_r = exp2_r * r + 1.0178086009239699e-7;
    exp2_r = exp2_r * r + 1.3215486790144309e-6;
    exp2_r = exp2_r * r + 1.5252733804059841e-5;
    exp2_r = exp2_r * r + 1.5403530393381609e-4;
    exp2_r = exp2_r * r + 0.0013333558146428443;
    exp2_r = exp2_r * r + 0.0096181291076284772;
    exp2_r = exp2_r * r + 0.055504108664821580;
    exp2_r = exp2_r * r + 0.24022650695910071;
    exp2_r = exp2_r * r + 0.69314718055994531;
    exp2_r = exp2_r * r + 1;

    /* Times 2^(whole part of y), as half of it and 2: 2^1024 has no double. */
    uint64_t half = (bits_of(rounded) - bits_of(magic) + 1022) << 52;
    return exp2_r * of_bits(half) * 2;
}

double nr_power(double x, double exponent)
{
    return x < DBL_MIN ? pow(x, exponent) : power(exponent, x);
}

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx2", "default"))) /* chosen before a sanitizer is ready for it */
#endif
static void powers(double exponent, uint32_t count, const double *restrict x, double *restrict result)
{
    for (uint32_t i = 0; i < count; i++)
        result[i] = power(exponent, x[i]);
}

void nr_powers(double exponent, uint32_t count, const double *x, double *result)
{
    enum { BLOCK = 32 };

    for (uint32_t first = 0; first < count; first += BLOCK) {
        uint32_t block = count - first < BLOCK ? count - first : BLOCK;
        double taken[BLOCK];
        bool small = false;

        for (uint32_t i = 0; i < block; i++) {
            taken[i] = x[first + i];
            small |= taken[i] < DBL_MIN;
        }
        powers(exponent, block, taken, result + first);
        for (uint32_t i = 0; small && i < block; i++)
            if (taken[i] < DBL_MIN) /* zero or subnormal */
                result[first + i] = pow(taken[i], exponent);
    }
}
