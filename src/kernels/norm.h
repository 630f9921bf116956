/* norm.h -- normalisation of rows (layer, group, rms) and of channels (batch).
 *
 * f16 and bf16 are computed in f32 and rounded once; mean and variance are two-pass, so
 * a large mean costs no digits.
 */
#ifndef TESS_KERNELS_NORM_H
#define TESS_KERNELS_NORM_H

#include "kernels/kernel.h"

/* y[r][i] = (x[r][i] - mean[r]) * rstd[r] * weight[c] + bias[c],   rstd = 1 / sqrt(var + eps)
 *
 * x, y: (rows, n), contiguous, one dtype; y may be x.  rms: mean is 0 and var the mean
 * square.  Channel c = (r % groups) * (n / inner) + i / inner:
 *   layer norm  groups 1, inner 1;   group norm  groups g, inner H * W.
 * weight, bias, mean, rstd may be NULL. */
typedef struct {
  void *y;
  const void *x;
  Dtype dtype;
  int64_t rows, n, groups, inner;
  const void *weight, *bias;
  Dtype param; /* of weight and bias */
  double eps;
  bool rms;
  void *mean, *rstd; /* results: (rows) */
  Dtype stat;
} NormRows;

Status kernel_norm_rows(Kern *k, const NormRows *a);

/* Gradients of the above for groups 1, inner 1.  mean is NULL for rms.  gx: (rows, n);
 * gweight, gbias: (n); each may be NULL. */
typedef struct {
  void *gx, *gweight, *gbias;
  const void *g, *x, *mean, *rstd, *weight;
  Dtype dtype, param, stat;
  int64_t rows, n;
} NormRowsGrad;

Status kernel_norm_rows_backward(Kern *k, const NormRowsGrad *a);

/* Gradients where a plane of `inner` elements has one weight, batch norm's and group norm's:
 *     gx = rstd (g w - mean of g w - h * mean of g w h),  gweight = sum of g h,  gbias = sum of g.
 * g, x, gx: (batch, channels, inner), contiguous, of one dtype. */
typedef struct {
  void *gx; /* NULL: not wanted */
  const void *g, *x;
  Dtype dtype;
  int64_t batch, channels, inner;
  int64_t groups; /* 0: one mean and rstd per channel; else (batch, groups) */
  const double *mean, *rstd;
  const double *weight;    /* (channels), NULL: 1 */
  bool given;              /* mean and rstd do not depend on x: gx = rstd g w */
  double *gweight, *gbias; /* (channels), always filled */
} NormPlanesGrad;

Status kernel_norm_planes_backward(Kern *k, const NormPlanesGrad *a);

/* y = (x - mean[c]) * scale[c] + shift[c], c the index in dimension dim.  x and y may
 * have any strides. */
Status kernel_channel_affine(Kern *k, View y, View x, int dim, const double *mean, const double *scale,
                             const double *shift);

/* ---- inner loops (simd/norm.c), on f32 or f64 -------------------------------------- */

typedef struct {
  /* s[0] = sum (x - about), s[1] = sum (x - about)^2; about is rounded to the type. */
  void (*moments)(const void *x, int64_t n, double about, double *s);
  /* y = (x - mean) * rstd * w + b; w and b may be NULL. */
  void (*row)(void *y, const void *x, int64_t n, double mean, double rstd, const void *w, const void *b);
  /* y = (x - mean) * scale + shift, all three rows or all three numbers. */
  void (*affine_row)(void *y, const void *x, int64_t n, const void *mean, const void *scale, const void *shift);
  void (*affine)(void *y, const void *x, int64_t n, double mean, double scale, double shift);
  /* sums[0] = sum g w, sums[1] = sum g w h,  h = (x - mean) * rstd; w may be NULL. */
  void (*grad_sums)(const void *g, const void *x, const void *w, int64_t n, double mean, double rstd, double *sums);
  /* gx = rstd * (g w - a - h b);  gw += g h;  gb += g.  Any of the three may be NULL. */
  void (*grad_row)(void *gx, void *gw, void *gb, const void *g, const void *x, const void *w, int64_t n,
                   double mean, double rstd, double a, double b);
  /* gx = p g - q (x - mean) - t; gx may be x. */
  void (*grad_plane)(void *gx, const void *g, const void *x, int64_t n, double mean, double p, double q, double t);
} NormLoops;

SIMD_DECLARE(const NormLoops *, norm_loops, (Dtype as));

#endif
