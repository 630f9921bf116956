/* memory.c -- see memory.h. */
#define _DEFAULT_SOURCE /* madvise */
#include "base/memory.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ALIGN = 64, HUGE_PAGE = 2 << 20, LARGE = 4 << 20 };

/* The system may say no to huge pages: then the memory is as any other. */
void *memory_alloc(size_t bytes) {
  size_t align = bytes < LARGE ? ALIGN : HUGE_PAGE;
  if (bytes > SIZE_MAX - align) return NULL;
  void *data = aligned_alloc(align, (bytes + align - 1) / align * align);
#ifdef MADV_HUGEPAGE
  if (data && bytes >= LARGE) madvise(data, bytes / HUGE_PAGE * HUGE_PAGE, MADV_HUGEPAGE);
#endif
  return data;
}

size_t memory_physical(void) {
  long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
  return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : 0;
}

#ifdef __linux__
/* The kernel tells of each page, one word of /proc/self/pagemap, whether it is here and whether
 * it is a file's.  Only those may go: in a private mapping MADV_DONTNEED undoes writes. */
static bool is_file_page(uint64_t word) { return (word >> 63 & 1) && (word >> 61 & 1); }

static size_t drop_pages(int pagemap, uintptr_t first, uintptr_t end, size_t page) {
  enum { AT_ONCE = 512 };
  uint64_t words[AT_ONCE];
  size_t dropped = 0;
  for (uintptr_t at = first; at < end;) {
    size_t wanted = (end - at) / page < AT_ONCE ? (end - at) / page : AT_ONCE;
    ssize_t got = pread(pagemap, words, wanted * sizeof *words, (off_t)(at / page * sizeof *words));
    if (got < (ssize_t)sizeof *words) return dropped;
    size_t n = (size_t)got / sizeof *words;
    for (size_t i = 0, run; i < n; i += run) {
      bool file = is_file_page(words[i]);
      for (run = 1; i + run < n && is_file_page(words[i + run]) == file;) run++;
      if (file && !madvise((void *)(at + i * page), run * page, MADV_DONTNEED)) dropped += run * page;
    }
    at += n * page;
  }
  return dropped;
}

/* The whole pages inside some memory, and what the kernel tells of them. */
typedef struct {
  uintptr_t first, end;
  size_t page;
  int pagemap; /* -1: there are no such pages, or the kernel does not tell */
} Pages;

static Pages pages_of(const void *data, size_t bytes) {
  long size = sysconf(_SC_PAGESIZE);
  if (!data || size <= 0) return (Pages){.pagemap = -1};
  size_t page = (size_t)size;
  Pages p = {((uintptr_t)data + page - 1) / page * page, ((uintptr_t)data + bytes) / page * page, page, -1};
  if (p.first < p.end) p.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  return p;
}

size_t memory_give_back(const void *data, size_t bytes) {
  Pages p = pages_of(data, bytes);
  if (p.pagemap < 0) return 0;
  size_t dropped = drop_pages(p.pagemap, p.first, p.end, p.page);
  close(p.pagemap);
  return dropped;
}

static bool may_drop(const Pages *p, uintptr_t at) {
  uint64_t word;
  (void)*(const volatile char *)at; /* the kernel tells only of pages that are here */
  return pread(p->pagemap, &word, sizeof word, (off_t)(at / p->page * sizeof word)) == (ssize_t)sizeof word &&
         is_file_page(word);
}

bool memory_may_give_back(const void *data, size_t bytes) {
  Pages p = pages_of(data, bytes);
  if (p.pagemap < 0) return false;
  bool may = may_drop(&p, p.first) && may_drop(&p, p.end - p.page);
  close(p.pagemap);
  return may;
}
#else
bool memory_may_give_back(const void *data, size_t bytes) {
  (void)data;
  (void)bytes;
  return false;
}

size_t memory_give_back(const void *data, size_t bytes) {
  (void)data;
  (void)bytes;
  return 0;
}
#endif
