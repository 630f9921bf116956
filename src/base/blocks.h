/* blocks.h -- large pieces of memory, kept for the next who needs one.
 *
 * Fresh memory costs a page fault and a cleared page per 4 KiB, more than copying that much;
 * the C library gives large pieces back to the system when they are freed.  So a few are kept
 * here.  This is the one mutable global of the library, for the reason that malloc is one:
 * who frees is rarely who needs next.
 *
 * I1  At most BLOCKS_KEPT pieces of KEPT_MIB in all, or a sixteenth of the machine's memory if
 *     that is less, are kept; others are freed at once.  Ranks that are threads share them.
 * I2  A piece is used again for its own size only: nothing is wasted inside.
 */
#ifndef TESS_BASE_BLOCKS_H
#define TESS_BASE_BLOCKS_H

#include <stddef.h>

/* 64-byte aligned, contents undefined; NULL: no memory.  bytes > 0. */
void *block_alloc(size_t bytes);
/* bytes as given to block_alloc. */
void block_free(void *data, size_t bytes);

#endif
