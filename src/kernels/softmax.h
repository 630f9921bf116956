/* softmax.h -- softmax, its logarithm and their gradients along one dimension.
 *
 * A row of -inf gives nan, except for SOFTMAX_SAFE, where it gives 0.
 * f16 and bf16 are computed in f32 and rounded once.
 */
#ifndef TESS_KERNELS_SOFTMAX_H
#define TESS_KERNELS_SOFTMAX_H

#include "kernels/kernel.h"

typedef enum { SOFTMAX, SOFTMAX_LOG, SOFTMAX_SAFE } SoftmaxKind;

/* y, x: contiguous floats of one size; y may be x.  The dtypes may differ (f16 in, f32
 * out); f64 is computed in f64, all else in f32. */
Status kernel_softmax(Kern *k, SoftmaxKind kind, View y, View x, int dim);

/* Gradient of x from that of y (g) and y itself; all contiguous, gx may be g or y. */
Status kernel_softmax_backward(Kern *k, SoftmaxKind kind, View gx, View g, View y, int dim);

/* y = sum of exp(x - top) along dim, nothing but the sums being kept.  x is contiguous; y and top are, and have one
 * element along dim.  All f32, or all f64. */
void kernel_sum_exp(Kern *k, View y, View x, View top, int dim);

/* ---- inner loops (simd/softmax.c), on f32 or f64 ----------------------------------- */

enum { SOFTMAX_WIDTH = 128 }; /* most columns of a tile */

typedef struct {
  void (*row)(SoftmaxKind kind, void *y, const void *x, int64_t n);
  void (*grad_row)(SoftmaxKind kind, void *gx, const void *g, const void *y, int64_t n);
  /* n rows of `width` columns, each column on its own; strides in elements. */
  void (*columns)(SoftmaxKind kind, void *y, int64_t y_stride, const void *x, int64_t x_stride, int64_t n,
                  int64_t width);
  void (*grad_columns)(SoftmaxKind kind, void *gx, int64_t gx_stride, const void *g, const void *y, int64_t stride,
                       int64_t n, int64_t width);
  /* The logarithm's grad_row for a g that is 0 but at one place (-1: everywhere). */
  void (*grad_pick)(void *gx, const void *y, int64_t n, int64_t at, double g);
  /* The sum of exp(x - top). */
  double (*sum_row)(const void *x, int64_t n, double top);
} SoftmaxLoops;

SIMD_DECLARE(const SoftmaxLoops *, softmax_loops, (Dtype as));

#endif
