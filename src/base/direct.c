/* direct.c -- see direct.h. */
#define _GNU_SOURCE /* O_DIRECT */
#include "base/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef __linux__
#include <linux/magic.h>
#include <sys/vfs.h>
#endif

#include "base/blocks.h"

enum { PIECE = 4 << 20, BUFFER = PIECE + 2 * DIRECT_PAGE };

/* There, the page cache is the file: newer kernels accept O_DIRECT and do as without it. */
static bool is_in_memory(int fd) {
#ifdef __linux__
  struct statfs s;
  return !fstatfs(fd, &s) && (s.f_type == TMPFS_MAGIC || s.f_type == RAMFS_MAGIC);
#else
  (void)fd;
  return false;
#endif
}

int direct_reopen(int fd) {
#ifdef O_DIRECT
  char path[sizeof "/proc/self/fd/" + 12];
  if (is_in_memory(fd)) return -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  return open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
#else
  (void)fd;
  return -1;
#endif
}

static unsigned char *aligned_in(unsigned char *buffer) {
  return buffer + (DIRECT_PAGE - (uintptr_t)buffer % DIRECT_PAGE) % DIRECT_PAGE;
}

size_t direct_write(int fd, uint64_t at, const void *data, size_t size, int *error) {
  const unsigned char *from = data;
  bool as_it_is = (uintptr_t)data % DIRECT_MEMORY == 0;
  unsigned char *buffer = as_it_is ? NULL : block_alloc(BUFFER), *page = buffer ? aligned_in(buffer) : NULL;
  size_t done = 0;
  *error = 0;
  while (size - done >= DIRECT_PAGE && (as_it_is || buffer)) {
    size_t want = size - done < PIECE ? (size - done) / DIRECT_PAGE * DIRECT_PAGE : PIECE;
    if (!as_it_is) memcpy(page, from + done, want);
    ssize_t n = pwrite(fd, as_it_is ? from + done : page, want, (off_t)(at + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      *error = n == 0 ? ENOSPC : errno == EINVAL || errno == ENOTSUP ? 0 : errno;
      break;
    }
    done += (size_t)n / DIRECT_PAGE * DIRECT_PAGE;
    if (n % DIRECT_PAGE) break; /* the usual way goes on */
  }
  if (buffer) block_free(buffer, BUFFER);
  return done;
}

size_t direct_read(int fd, uint64_t at, void *to, size_t size) {
  unsigned char *out = to, *buffer = block_alloc(BUFFER), *page = buffer ? aligned_in(buffer) : NULL;
  size_t done = 0;
  while (buffer && done < size) {
    const uint64_t from = at + done, first = from / DIRECT_PAGE * DIRECT_PAGE;
    const size_t skip = (size_t)(from - first), left = size - done;
    const bool as_it_is = !skip && left >= DIRECT_PAGE && (uintptr_t)(out + done) % DIRECT_MEMORY == 0;
    size_t want = left < PIECE ? left : PIECE;
    size_t whole = as_it_is ? want / DIRECT_PAGE * DIRECT_PAGE
                            : (skip + want + DIRECT_PAGE - 1) / DIRECT_PAGE * DIRECT_PAGE;
    ssize_t n = pread(fd, as_it_is ? out + done : page, whole, (off_t)first);
    if (n < 0 && errno == EINTR) continue;
    if (n <= (ssize_t)skip) break;
    size_t got = (size_t)n - skip < want ? (size_t)n - skip : want;
    if (!as_it_is) memcpy(out + done, page + skip, got);
    done += got;
    if (as_it_is ? n % DIRECT_PAGE != 0 : got < want) break; /* the end of the file */
  }
  if (buffer) block_free(buffer, BUFFER);
  return done;
}
