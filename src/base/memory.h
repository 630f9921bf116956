/* memory.h -- what the system knows about memory.
 *
 * Asked for only to do better; where the system does not tell, the answers are such that
 * callers still do right.
 */
#ifndef TESS_BASE_MEMORY_H
#define TESS_BASE_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* 64-byte aligned, contents undefined, freed with free(); NULL: no memory.  bytes > 0.  Large pieces ask for huge
 * pages: a fault per 2 MiB instead of one per 4 KiB when they are first written to, and fewer misses in the tables
 * of pages afterwards (3 to 7 % of a training step). */
void *memory_alloc(size_t bytes);

/* Bytes of the machine; 0 if unknown. */
size_t memory_physical(void);

/* Takes whole pages inside [data, data + bytes) out of the process if their contents are a
 * file's: whoever reads them again gets the same bytes, from the file.  Pages that were written
 * to since they were mapped, and memory that is no file's, stay.  Returns the bytes of the pages
 * that went. */
size_t memory_give_back(const void *data, size_t bytes);
/* Would it?  Judged by the first and the last of the pages, which are read. */
bool memory_may_give_back(const void *data, size_t bytes);

#endif
