/*
 * The engine's memory: one mapping, cut up once. The same code that cuts it reckons its size beforehand, on an arena without
 * memory. What was never touched is zero and costs no page.
 */
#ifndef NR_ENGINE_ARENA_H
#define NR_ENGINE_ARENA_H

#include <stdbool.h>
#include <stdint.h>

#define NR_CACHE_LINE 64

struct nr_arena {
    uint8_t *base;  /* NULL while only reckoning */
    uint64_t bytes; /* of the mapping */
    uint64_t used;  /* bytes given out; UINT64_MAX after an overflow, and so it stays */
};

/* Maps zeroed memory, with huge pages where the kernel gives them. False if it does not give the memory. */
bool nr_arena_open(struct nr_arena *arena, uint64_t bytes);
void nr_arena_close(struct nr_arena *arena);

/* Zeroed memory for `count` elements of `size` bytes on a cache line boundary; NULL while only reckoning. */
void *nr_arena_take(struct nr_arena *arena, uint64_t count, uint64_t size);

/* The stride that an array of `bytes` long elements has: whole cache lines where that costs at most a seventh, else the next
 * multiple of 8, so that a small element is not blown up to a line. */
static inline uint32_t nr_arena_stride(uint32_t bytes)
{
    uint32_t tight = (bytes + 7) / 8 * 8;
    uint32_t lines = (bytes + NR_CACHE_LINE - 1) / NR_CACHE_LINE * NR_CACHE_LINE;

    return lines - tight <= tight / 7 ? lines : tight;
}

#endif
