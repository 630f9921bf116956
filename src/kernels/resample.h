/* resample.h -- images at other sizes: nearest, linear, cubic, antialiased; 1 to 3
 * spatial dimensions, each interpolated by itself.
 *
 *   x (n, c, in...)  y (n, c, out...)    five dimensions, missing spatial ones are 1
 *
 * Along a dimension every output position has `taps` input positions with weights:
 * an Axis.  y is the sum over all combinations of taps.
 */
#ifndef TESS_KERNELS_RESAMPLE_H
#define TESS_KERNELS_RESAMPLE_H

#include "kernels/kernel.h"

typedef enum {
  RESAMPLE_NEAREST,
  RESAMPLE_NEAREST_EXACT,
  RESAMPLE_LINEAR,
  RESAMPLE_CUBIC,
  RESAMPLE_LINEAR_AA,
  RESAMPLE_CUBIC_AA
} ResampleMode;

typedef struct {
  int64_t in, out;
  double factor; /* out / in as the caller said it; 0: nobody said */
  bool align_corners;
} ResampleScale;

typedef struct {
  int64_t in, out;
  int taps;
  int32_t *at;    /* [taps][out] */
  double *weight; /* [taps][out] */
} ResampleAxis;

/* Makes an axis in scratch memory.  wide: coordinates in f64, else in f32, as ATen does. */
Status resample_axis(Kern *k, ResampleMode mode, const ResampleScale *s, bool wide, ResampleAxis *out);

/* f32, f64, f16, bf16, with any weights; all dtypes bit for bit where every axis has one
 * tap (nearest). */
Status resample(Kern *k, const ResampleAxis axis[3], View x, View y);
/* dx = the transpose applied to dy.  f32, f64, f16, bf16. */
Status resample_grad(Kern *k, const ResampleAxis axis[3], View dy, View dx);

/* ---- inner loops (simd/resample.c) ------------------------------------------- */

#define RESAMPLE_LOOPS(T, t)                                                                             \
  /* acc[i] (+)= w * x[i*step] */                                                                        \
  SIMD_DECLARE(void, resample_row_##t, (T * acc, const T *x, int64_t n, int64_t step, T w, bool first)); \
  /* y[i] = sum_t w[t*n + i] * row[at[t*n + i]] */                                                       \
  SIMD_DECLARE(void, resample_taps_##t,                                                                  \
               (T * y, const T *row, const int32_t *at, const T *w, int taps, int64_t n));               \
  /* The same for pixels of `channels` elements each. */                                                 \
  SIMD_DECLARE(void, resample_pixels_##t,                                                                \
               (T * y, const T *row, const int32_t *at, const T *w, int taps, int64_t n, int64_t channels))
RESAMPLE_LOOPS(float, f32);
RESAMPLE_LOOPS(double, f64);
#undef RESAMPLE_LOOPS

#endif
