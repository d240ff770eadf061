/* CRC32C (Castagnoli; reflected, initial and final value all ones), as of iSCSI. */
#ifndef NR_ENGINE_CRC32C_H
#define NR_ENGINE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Of `bytes` behind what `crc` is of; 0 for nothing yet. Uses the processor's own instruction where it has one. */
uint32_t nr_crc32c(uint32_t crc, const void *bytes, size_t length);
/* The same without that instruction: for processors without it, and for tests to compare. */
uint32_t nr_crc32c_tables(uint32_t crc, const void *bytes, size_t length);

#endif
