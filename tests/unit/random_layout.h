/* random_layout.h -- strides in any order, with gaps, from a small generator of the test's own: the same on every
 * machine. */
#ifndef TESS_TESTS_RANDOM_LAYOUT_H
#define TESS_TESTS_RANDOM_LAYOUT_H

#include <stdbool.h>
#include <stdint.h>

enum { LAYOUT_DIMS = 5 };

typedef struct {
  int ndim;
  int64_t size[LAYOUT_DIMS], stride[LAYOUT_DIMS];
} Layout;

static uint32_t seed = 7;
static int64_t below(int64_t n) {
  seed = seed * 1664525u + 1013904223u;
  return (int64_t)(seed >> 8) % n;
}

/* Gives the number of elements from the first to the last.  `repeat` allows dimensions of stride 0 and of size 1.
 */
static int64_t random_strides(Layout *l, bool repeat) {
  int order[LAYOUT_DIMS];
  for (int d = 0; d < l->ndim; d++) order[d] = d;
  for (int d = l->ndim - 1; d > 0 && below(2); d--) {
    int other = (int)below(d + 1), swap = order[d];
    order[d] = order[other], order[other] = swap;
  }
  int64_t step = below(4) == 0 ? 2 : 1;
  for (int i = l->ndim - 1; i >= 0; i--) {
    int d = order[i];
    l->stride[d] = step;
    step = step * (l->size[d] > 0 ? l->size[d] : 1) + (below(5) == 0 ? below(3) : 0);
    if (repeat && below(5) == 0) l->stride[d] = 0;
    else if (repeat && below(6) == 0) l->size[d] = 1;
  }
  return step;
}

#endif
