/* windows.c -- see windows.h. */
#include "ckpt/windows.h"

#include <string.h>

#include "base/direct.h"

typedef struct {
  int ndim;
  size_t item, most;
  WindowFn *fn;
  void *arg;
  int64_t offset[MAX_DIMS], size[MAX_DIMS];
} Cutting;

/* So many rows that the next window begins at a page if this one does, where a window has room for that. */
static int64_t rows_of_window(size_t row, size_t most) {
  if (row >= most) return 1;
  const size_t rows = most / row;
  size_t pages = 1;
  while (row * pages % DIRECT_PAGE) pages *= 2; /* a power of 2: the page is one */
  return (int64_t)(rows < pages ? rows : rows / pages * pages);
}

/* Slabs along the first dimension that are not larger than a window; what is too large even alone is cut along the
 * next. */
static Status cut(Cutting *c, int dim) {
  size_t bytes = c->item;
  for (int d = 0; d < c->ndim; d++) bytes *= (size_t)c->size[d];
  if (!bytes) return OK;
  while (dim < c->ndim && c->size[dim] == 1) dim++;
  if (bytes <= c->most || dim == c->ndim) return c->fn(c->arg, c->offset, c->size, bytes);
  const int64_t whole = c->size[dim], begin = c->offset[dim];
  const int64_t step = rows_of_window(bytes / (size_t)whole, c->most);
  Status s = OK;
  for (int64_t i = 0; !s && i < whole; i += step) {
    c->offset[dim] = begin + i;
    c->size[dim] = whole - i < step ? whole - i : step;
    s = cut(c, dim);
  }
  c->offset[dim] = begin;
  c->size[dim] = whole;
  return s;
}

Status each_window(int ndim, const int64_t *offset, const int64_t *size, size_t item, size_t most, WindowFn *fn,
                   void *arg) {
  Cutting c = {.ndim = ndim, .item = item, .most = most, .fn = fn, .arg = arg};
  if (ndim) memcpy(c.offset, offset, (size_t)ndim * sizeof *offset);
  if (ndim) memcpy(c.size, size, (size_t)ndim * sizeof *size);
  return cut(&c, 0);
}
