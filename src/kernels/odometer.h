/* odometer.h -- counting through the positions of several strided views at once.
 *
 *     Odometer o = {.ndim = n, .size = size, .views = 2, .stride = {a.stride, b.stride}};
 *     odometer_begin(&o, first);
 *     for (i = first; i < last; i++, odometer_next(&o)) use(a.data + o.offset[0], b.data + o.offset[1]);
 *
 * Positions are counted row-major over the first ndim dimensions; kernels count the outer
 * ones and loop over the inner ones themselves.
 */
#ifndef TESS_KERNELS_ODOMETER_H
#define TESS_KERNELS_ODOMETER_H

#include "tensor/tensor.h"

enum { ODOMETER_VIEWS = MAX_DIMS + 2 };

typedef struct {
  int ndim, views;
  const int64_t *size;
  const int64_t *stride[ODOMETER_VIEWS];
  int64_t offset[ODOMETER_VIEWS]; /* elements, of the current position */
  int64_t index[MAX_DIMS];
} Odometer;

static inline void odometer_begin(Odometer *o, int64_t position) {
  for (int v = 0; v < o->views; v++) o->offset[v] = 0;
  for (int d = o->ndim - 1; d >= 0; d--) {
    o->index[d] = o->size[d] ? position % o->size[d] : 0;
    position = o->size[d] ? position / o->size[d] : 0;
    for (int v = 0; v < o->views; v++) o->offset[v] += o->index[d] * o->stride[v][d];
  }
}

static inline void odometer_next(Odometer *o) {
  for (int d = o->ndim - 1; d >= 0; d--) {
    bool carry = ++o->index[d] == o->size[d];
    int64_t steps = carry ? 1 - o->size[d] : 1;
    for (int v = 0; v < o->views; v++) o->offset[v] += steps * o->stride[v][d];
    if (!carry) return;
    o->index[d] = 0;
  }
}

static inline int64_t odometer_count(int ndim, const int64_t *size) {
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) n *= size[d];
  return n;
}

#endif
