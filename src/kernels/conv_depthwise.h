/* conv_depthwise.h -- convolutions with one input channel per group, in f32; contiguous
 * images in and out, one or two spatial dimensions. */
#ifndef TESS_KERNELS_CONV_DEPTHWISE_H
#define TESS_KERNELS_CONV_DEPTHWISE_H

#include "kernels/conv.h"

/* x (n, groups, h, w), w (oc, 1, kh, kw), bias (oc) or NULL, y (n, oc, oh, ow): contiguous. */
Status conv_depthwise(Kern *k, const ConvSizes *c, const float *x, const float *w, const float *bias, float *y);

/* ---- inner loops (simd/depthwise.c) ------------------------------------------- */

enum { DEPTHWISE_SLACK = 16 }; /* elements that run may read and write beyond what counts */

/* y[i] = bias + sum_t w[t] * x[i + offset[t]] */
SIMD_DECLARE(void, depthwise_run,
             (float *y, int64_t n, const float *x, const int64_t *offset, const float *w, int taps, float bias));
/* Rows of an image; no call to memcpy for each. */
SIMD_DECLARE(void, depthwise_copy,
             (float *to, int64_t to_pitch, const float *from, int64_t from_pitch, int64_t rows, int64_t width));
/* even[i] = from[2i], odd[i] = from[2i + 1], i < n */
SIMD_DECLARE(void, depthwise_halve, (float *even, float *odd, const float *from, int64_t n));

#endif
