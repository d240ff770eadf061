/* The bytes of a checkpoint file (docs/checkpoint.md). Little-endian; records lie one behind the other, unaligned. */
#ifndef NR_ENGINE_CHECKPOINT_FORMAT_H
#define NR_ENGINE_CHECKPOINT_FORMAT_H

#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "checkpoints are little-endian");

#define NR_FILE_MAGIC "NRCKPT\r\n" /* 8 bytes; a transfer as text would change them */
#define NR_BLOCK_MAGIC 0x4b42524eu /* "NRBK" */
enum { NR_FILE_VERSION = 1 };

/* At the start of the file. */
struct nr_file_head {
    uint8_t magic[8];
    uint32_t version;
    uint32_t crc; /* CRC32C of the above */
};

enum nr_block_kind { NR_BLOCK_SPEC = 1, NR_BLOCK_DATA = 2, NR_BLOCK_END = 3 };

struct nr_block_head {
    uint32_t magic;
    uint32_t kind;   /* enum nr_block_kind */
    uint32_t number; /* from 0 */
    uint32_t crc;    /* CRC32C of this with 0 here, then of the payload */
    uint64_t length; /* bytes of the payload */
};

struct nr_block_end {
    uint64_t blocks; /* before this one */
    uint64_t bytes;  /* of the file before this one's head */
};

/* ---- Records of DATA blocks ---- */

enum nr_saved_kind {
    NR_SAVED_BEGIN = 1,
    NR_SAVED_STORE,
    NR_SAVED_TABLE,
    NR_SAVED_SET,
    NR_SAVED_STEP,
    NR_SAVED_ITEM,
    NR_SAVED_SLOTS,
    NR_SAVED_STREAM,
    NR_SAVED_RING,
    NR_SAVED_DONE,
};

struct nr_saved_head {
    uint32_t kind;   /* enum nr_saved_kind */
    uint32_t length; /* bytes behind this head */
};

struct nr_saved_begin {
    uint64_t now;       /* ns on the writer's clock, at the cut */
    uint64_t random[4]; /* state of the draws' generator */
    uint64_t start_version; /* of parameters, before the first publication */
    uint32_t stores, tables, sets;
    uint32_t reserved; /* 0 */
};

struct nr_saved_store {
    uint32_t store; /* index; they come in order */
    uint32_t step_bytes, observation_bytes;
    uint32_t window;   /* steps */
    uint32_t span;     /* steps of a ring */
    uint32_t reserved; /* 0 */
};

struct nr_saved_table {
    uint32_t table; /* index; they come in order */
    uint32_t store; /* index */
    uint32_t capacity, slots;
    uint32_t generation_bits;
    uint32_t item_bytes;
    uint32_t window; /* steps */
    uint32_t size;   /* items at the cut */
    uint64_t shard;  /* in place */
    uint64_t first_generations;
    uint64_t first_offset;        /* added to the first generation of slots that were never used */
    uint64_t inserted, committed, forfeited; /* as in struct nr_limiter */
    uint64_t inserted_before, resets, draws, updated, stale, refused, saturated; /* as in struct nr_table; */
    uint64_t evicted_capacity, evicted_steps, evicted_deleted, evicted_reset, evicted_sampled, evicted_age, evicted_version,
        dropped;
    uint64_t pass; /* that a selector which goes over the table in passes is in; else 0 */
};

struct nr_saved_set {
    uint32_t set;      /* index; they come in order */
    uint32_t reserved; /* 0 */
    uint64_t version, counter;
};

/* Then its bytes: observation_bytes or step_bytes of its store. */
struct nr_saved_step {
    uint32_t store;
    uint32_t number; /* in this file, by store */
};

/* Then item_bytes of columns, then a uint32_t for each of its anchor + length + 1 steps: their numbers in this file. */
struct nr_saved_item {
    uint64_t key;
    uint64_t born;     /* ns on the writer's clock */
    double priority;   /* raw */
    uint64_t drawn_in; /* pass that it was last drawn in; else 0 */
    uint32_t table;
    uint32_t sampled;  /* committed draws */
    uint32_t position; /* in the selector's own array, or UINT32_MAX */
    uint32_t removal;  /* the same of the remover */
    uint16_t anchor;
    uint16_t length;
    uint32_t reserved; /* 0 */
};

/* Then `count` of struct nr_saved_slot, of slots first, first + 1, ... */
struct nr_saved_slots {
    uint32_t table;
    uint32_t first;
    uint32_t count;
    uint32_t free; /* first of the list of free slots, or UINT32_MAX */
};

struct nr_saved_slot {
    uint64_t key;   /* of its item, or the one that its next item gets */
    uint32_t after; /* next in the list of free slots, or UINT32_MAX */
    uint32_t free;  /* 1: in that list */
};

struct nr_saved_stream {
    uint8_t id[16];
    uint64_t head, low; /* as in struct nr_stream */
    uint64_t next_item; /* at the cut */
    uint32_t store;
    uint32_t owned; /* 1: a session had it */
};

/* Of the stream before it. */
struct nr_saved_ring {
    uint64_t number; /* in the stream */
    uint32_t store;
    uint32_t step; /* number in this file */
};

struct nr_saved_done {
    uint64_t steps, items, streams, rings; /* records of this file */
};

_Static_assert(sizeof(struct nr_file_head) == 16 && sizeof(struct nr_block_head) == 24 && sizeof(struct nr_block_end) == 16 &&
                   sizeof(struct nr_saved_head) == 8 && sizeof(struct nr_saved_begin) == 64 &&
                   sizeof(struct nr_saved_store) == 24 && sizeof(struct nr_saved_table) == 208 &&
                   sizeof(struct nr_saved_set) == 24 && sizeof(struct nr_saved_step) == 8 && sizeof(struct nr_saved_item) == 56 &&
                   sizeof(struct nr_saved_slots) == 16 && sizeof(struct nr_saved_slot) == 16 &&
                   sizeof(struct nr_saved_stream) == 48 && sizeof(struct nr_saved_ring) == 16 && sizeof(struct nr_saved_done) == 32,
               "the file's layout has no padding");

#endif
