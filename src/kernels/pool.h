/* pool.h -- max and average over windows, in 1 to 3 spatial dimensions.
 *
 *   x (n, c, in...)  y (n, c, out...)  indices (n, c, out...) i64
 *
 * Views have five dimensions here: missing spatial ones are 1 (pool_view makes them).
 * Any strides.  f32, f64, and through a copy f16, bf16 (as f32) and integers (as i64).
 * Max: nan wins, and the last nan of a window gives the index; of equals the first does.
 * An index counts within the plane of one (n, c).
 */
#ifndef TESS_KERNELS_POOL_H
#define TESS_KERNELS_POOL_H

#include "kernels/kernel.h"

enum { POOL_DIMS = 5 };

typedef struct {
  int64_t k[3], stride[3], pad[3], dilation[3];
} PoolWindow;

/* (c, s...) or (n, c, s...) with nd spatial dimensions as five dimensions. */
typedef struct {
  int64_t size[POOL_DIMS], stride[POOL_DIMS];
} PoolShape;
View pool_view(View v, int nd, PoolShape *room);

/* indices.data may be NULL. */
Status pool_max(Kern *k, const PoolWindow *w, View x, View y, View indices);
/* The divisor is `divisor` if that is not 0, else the number of elements of the window
 * that lie in the input (include_pad: or in its padding). */
Status pool_avg(Kern *k, const PoolWindow *w, bool include_pad, int64_t divisor, View x, View y);

/* Windows floor(i*in/out) to ceil((i+1)*in/out). */
Status pool_adaptive_avg(Kern *k, View x, View y);
Status pool_adaptive_max(Kern *k, View x, View y, View indices);

/* ---- gradients: dx is written, all of it (pool_grad.c) ------------------------ */

Status pool_max_grad(Kern *k, View dy, View indices, View dx);
Status pool_avg_grad(Kern *k, const PoolWindow *w, bool include_pad, int64_t divisor, View dy, View dx);
Status pool_adaptive_avg_grad(Kern *k, View dy, View dx);

/* Two spatial dimensions, windows of k[0] x k[1]; samples (n, c, 2), from 0 to 1: where the
 * windows of a plane are, along w and along h.  Floats. */
Status pool_fractional_max(Kern *k, const int64_t *window, View samples, View x, View y, View indices);

/* y = 0, but y[indices[i]] = x[i] within each plane; all dtypes.  Fails on an index outside. */
Status pool_unpool(Kern *k, View x, View indices, View y);

/* ---- shared by pool.c and pool_grad.c ----------------------------------------- */

/* Elements along dimension d of window o that count in an average; the divisor is the
 * product over the dimensions. */
int64_t pool_span(const PoolWindow *w, bool include_pad, int64_t in, int64_t o, int d);
static inline int64_t pool_adaptive_begin(int64_t i, int64_t in, int64_t out) { return i * in / out; }
static inline int64_t pool_adaptive_end(int64_t i, int64_t in, int64_t out) {
  return ((i + 1) * in + out - 1) / out;
}

/* ---- lanes: the inner loops (simd/pool.c) -------------------------------------
 * n neighbouring results at once; the input of lane i is x[i*step].  max: tap[i] is the
 * number of the window's element that acc[i] came from, -1 before the first. */
#define POOL_LANES(T, t)                                                                                         \
  SIMD_DECLARE(void, pool_max_##t, (T * acc, int64_t n, const T *x, int64_t step));                              \
  SIMD_DECLARE(void, pool_argmax_##t, (T * acc, int32_t * tap, int64_t n, const T *x, int64_t step, int32_t t)); \
  SIMD_DECLARE(void, pool_add_##t, (T * acc, int64_t n, const T *x, int64_t step));                              \
  SIMD_DECLARE(T, pool_sum_##t, (const T *x, int64_t n, int64_t step))
POOL_LANES(float, f32);
POOL_LANES(double, f64);
POOL_LANES(int64_t, i64);
#undef POOL_LANES

#endif
