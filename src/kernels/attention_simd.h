/* attention_simd.h -- the inner loops of attention besides the products (simd/attention.c). */
#ifndef TESS_KERNELS_ATTENTION_SIMD_H
#define TESS_KERNELS_ATTENTION_SIMD_H

#include "kernels/kernel.h"

/* Scores are held in units of log(2): the exponential is then a power of two, which saves a
 * multiplication and half of the reduction. */
#define ATTENTION_LOG2E 0x1.715476p0f
#define ATTENTION_LN2 0x1.62e430p-1f

/* The largest of n scores (-inf if there are none); nan is passed over. */
SIMD_DECLARE(float, attention_largest, (const float *s, int64_t n));
/* The same after s[i] += log2(e) mask[i], or s[i] = -inf where mask[i] is 0. */
SIMD_DECLARE(float, attention_add_mask, (float *s, const float *mask, int64_t n));
SIMD_DECLARE(float, attention_apply_mask, (float *s, const uint8_t *mask, int64_t n));
/* One row of a block of scores s[n] becomes 2^(s - max); max and sum (of the row so far) are
 * updated; the factor by which earlier sums have shrunk is returned. */
SIMD_DECLARE(float, attention_softmax_row, (float *s, int64_t n, float largest, float *max, float *sum));
/* y[i] = x[i] * factor */
SIMD_DECLARE(void, attention_scale, (float *y, const float *x, float factor, int64_t n));
/* p: scores; becomes factor * exp(p - lse).  ds: products do v^T; becomes scale * p * (ds - delta). */
SIMD_DECLARE(void, attention_grad_row,
             (float *p, float *ds, int64_t n, float lse, float factor, float delta, float scale));
/* s[i] = words[i] < threshold ? 0 : s[i] * factor */
SIMD_DECLARE(void, attention_drop, (float *s, const uint32_t *words, uint32_t threshold, float factor, int64_t n));
/* s[j] = sum_d q[d] k[j, d] over n keys; k: f32, f16 or bf16. */
SIMD_DECLARE(void, attention_scores,
             (float *s, const float *q, const void *k, int64_t ldk, Dtype dtype, int64_t n, int64_t d));
/* o[e] += sum_j p[j] v[j, e] over n keys. */
SIMD_DECLARE(void, attention_values,
             (float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n, int64_t e));

#endif
