/* windows.c -- see windows.h. */
#include "ckpt/windows.h"

#include <string.h>

typedef struct {
  int ndim;
  size_t item, most;
  WindowFn *fn;
  void *arg;
  int64_t offset[MAX_DIMS], size[MAX_DIMS];
} Cutting;

/* Slabs along the first dimension that are not larger than a window; what is too large even alone is cut along the
 * next. */
static Status cut(Cutting *c, int dim) {
  size_t bytes = c->item;
  for (int d = 0; d < c->ndim; d++) bytes *= (size_t)c->size[d];
  if (!bytes) return OK;
  while (dim < c->ndim && c->size[dim] == 1) dim++;
  if (bytes <= c->most || dim == c->ndim) return c->fn(c->arg, c->offset, c->size, bytes);
  const int64_t whole = c->size[dim], begin = c->offset[dim];
  const size_t row = bytes / (size_t)whole;
  const int64_t step = row >= c->most ? 1 : (int64_t)(c->most / row);
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
