#include "engine/arena.h"

#include <stddef.h>
#include <sys/mman.h>

#define HUGE_PAGE (2u << 20)

bool nr_arena_open(struct nr_arena *arena, uint64_t bytes)
{
    uint64_t slack = bytes >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint64_t mapped = (bytes + slack + 4095) / 4096 * 4096;

    if (mapped < bytes || mapped > SIZE_MAX / 2)
        return false;
    uint8_t *map = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return false;
    if (slack != 0) {
        /* Start on a huge page; the rest of the slack goes back. */
        uint64_t ahead = -(uintptr_t)map % HUGE_PAGE;

        if (ahead != 0)
            munmap(map, ahead);
        map += ahead;
        mapped -= ahead;
        (void)madvise(map, mapped, MADV_HUGEPAGE);
    }
    arena->base = map;
    arena->bytes = mapped;
    arena->used = 0;
    return true;
}

void nr_arena_close(struct nr_arena *arena)
{
    munmap(arena->base, arena->bytes);
}

void *nr_arena_take(struct nr_arena *arena, uint64_t count, uint64_t size)
{
    uint64_t bytes, end;

    if (__builtin_mul_overflow(count, size, &bytes) || __builtin_add_overflow(bytes, NR_CACHE_LINE - 1, &bytes) ||
        __builtin_add_overflow(arena->used, bytes / NR_CACHE_LINE * NR_CACHE_LINE, &end)) {
        arena->used = UINT64_MAX;
        return NULL;
    }
    uint8_t *start = arena->base == NULL ? NULL : arena->base + arena->used;
    arena->used = end;
    return start;
}
