/* direct.h -- large pieces of files, past the page cache: the disk reads and writes the process's memory itself.
 *
 * Half of the time of large files on fast disks is the kernel's: pages are found, cleared, mapped and copied.  What
 * is written once, or read once, needs none of that.
 *
 * I1  A faster way only.  Where the file system, or the machine, does not have it, less is done than was asked for,
 *     and the caller does the rest in the usual way.
 * I2  Memory may lie anywhere; what is not aligned as the disk wants it goes through a buffer of a few megabytes.
 */
#ifndef TESS_BASE_DIRECT_H
#define TESS_BASE_DIRECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
  DIRECT_LEAST = 1 << 20, /* bytes that are worth it */
  DIRECT_PAGE = 4096,     /* positions in files are multiples of this */
  DIRECT_MEMORY = 512,    /* and addresses of this, for want of a buffer */
};

/* Opens the file of a descriptor once more for it, for writing; -1: cannot be, or is of no use (tmpfs). */
int direct_reopen(int fd);
/* The bytes that were written, from a position that is a multiple of DIRECT_PAGE; fewer than size where it does not
 * work, with *error where trying again would not help (a full disk), else 0. */
size_t direct_write(int fd, uint64_t at, const void *data, size_t size, int *error);
/* Reads from any position of a file that is open for it; the bytes that were read. */
size_t direct_read(int fd, uint64_t at, void *to, size_t size);

#endif
