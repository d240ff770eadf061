#include "engine/crc32c.h"

#include <stdatomic.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* reflected */
#define SLICES 8               /* bytes looked up at once */

static uint32_t table[SLICES][256]; /* written before `ready` is set, always to the same values */
static _Atomic int ready;

static void prepare(void)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;

        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][i] = crc;
    }
    for (uint32_t i = 0; i < 256; i++) {
        for (int slice = 1; slice < SLICES; slice++)
            table[slice][i] = table[slice - 1][i] >> 8 ^ table[0][table[slice - 1][i] & 0xff];
    }
}

/* Two threads may be the first at once: one prepares, the other goes bit by bit meanwhile. */
static int prepared(void)
{
    int none = 0;

    if (atomic_load_explicit(&ready, memory_order_acquire) == 2)
        return 1;
    if (!atomic_compare_exchange_strong(&ready, &none, 1))
        return 0;
    prepare();
    atomic_store_explicit(&ready, 2, memory_order_release);
    return 1;
}

uint32_t nr_crc32c_tables(uint32_t crc, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;

    crc = ~crc;
    if (!prepared()) {
        for (; length > 0; length--) {
            crc ^= *at++;
            for (int bit = 0; bit < 8; bit++)
                crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        }
        return ~crc;
    }
    for (; length >= SLICES; length -= SLICES, at += SLICES) {
        uint64_t word;

        memcpy(&word, at, sizeof(word));
        word ^= crc;
        crc = 0;
        for (int slice = 0; slice < SLICES; slice++)
            crc ^= table[SLICES - 1 - slice][word >> (8 * slice) & 0xff];
    }
    for (; length > 0; length--)
        crc = crc >> 8 ^ table[0][(crc ^ *at++) & 0xff];
    return ~crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t crc, const void *bytes, size_t length)
{
    const uint8_t *at = bytes;
    uint64_t wide = ~crc;

    for (; length >= 8; length -= 8, at += 8) {
        uint64_t word;

        memcpy(&word, at, sizeof(word));
        wide = __builtin_ia32_crc32di(wide, word);
    }
    crc = (uint32_t)wide;
    for (; length > 0; length--)
        crc = __builtin_ia32_crc32qi(crc, *at++);
    return ~crc;
}

uint32_t nr_crc32c(uint32_t crc, const void *bytes, size_t length)
{
    return __builtin_cpu_supports("sse4.2") ? by_instruction(crc, bytes, length) : nr_crc32c_tables(crc, bytes, length);
}
#else
uint32_t nr_crc32c(uint32_t crc, const void *bytes, size_t length)
{
    return nr_crc32c_tables(crc, bytes, length);
}
#endif
