/* attention.c -- see attention_simd.h. */
#include "kernels/attention_simd.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vector.h"

/* e^x for x <= 0 (nan passes); below -87 it is 0: such a score does not count. */
INLINE float exp_score(float x) {
  int32_t n;
  float c = x < -87.0f ? -87.0f : x, r = exp_reduce_f32(c, &n);
  float y = (fma_f32(exp_tail_f32(r), r * r, r) + 1.0f) * ldexp1_f32(n);
  return x < -87.0f ? 0.0f : y;
}

/* Lanes: independent partial results, so that loops over them are vectors. */
enum { LANES = 32 };

static float max_of(const float *s, int64_t n, float start) {
  float lane[LANES];
  int64_t i = 0;
  for (int l = 0; l < LANES; l++) lane[l] = start;
  for (; i + LANES <= n; i += LANES) {
    for (int l = 0; l < LANES; l++) lane[l] = s[i + l] > lane[l] ? s[i + l] : lane[l];
  }
  for (; i < n; i++) lane[0] = s[i] > lane[0] ? s[i] : lane[0];
  for (int l = 1; l < LANES; l++) lane[0] = lane[l] > lane[0] ? lane[l] : lane[0];
  return lane[0];
}

static float exp_and_sum(float *s, int64_t n, float max) {
  float lane[LANES] = {0}, tail = 0;
  int64_t i = 0;
  for (; i + LANES <= n; i += LANES) {
    for (int l = 0; l < LANES; l++) {
      s[i + l] = exp_score(s[i + l] - max);
      lane[l] += s[i + l];
    }
  }
  for (; i < n; i++) tail += s[i] = exp_score(s[i] - max);
  for (int w = LANES / 2; w > 0; w /= 2) {
    for (int l = 0; l < w; l++) lane[l] += lane[l + w];
  }
  return lane[0] + tail;
}

float SIMD(attention_softmax_row)(float *s, int64_t n, float *max, float *sum) {
  float top = max_of(s, n, *max);
  float from = top == -F32_INF ? 0 : top; /* nothing seen yet: exp(-inf - 0) = 0 */
  float shrink = *max == -F32_INF ? 0 : exp_f32(*max - from);
  *sum = *sum * shrink + exp_and_sum(s, n, from);
  *max = top;
  return shrink;
}

void SIMD(attention_add_mask)(float *s, const float *mask, int64_t n) {
  for (int64_t i = 0; i < n; i++) s[i] += mask[i];
}

void SIMD(attention_apply_mask)(float *s, const uint8_t *mask, int64_t n) {
  for (int64_t i = 0; i < n; i++) s[i] = mask[i] ? s[i] : -F32_INF;
}

void SIMD(attention_scale)(float *y, const float *x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

/* ---- few queries: k and v are read once, where they are ---------------------------------- */

INLINE void scores(float *s, const float *q, const void *k, int64_t ldk, Dtype dtype, int64_t n, int64_t d) {
  for (int64_t j = 0; j < n; j++) {
    vf even = {0}, odd = {0};
    float tail = 0;
    int64_t i = 0;
    for (; i + 2 * VL <= d; i += 2 * VL) {
      even = fma_v(load(q + i), load_as(k, dtype, j * ldk + i), even);
      odd = fma_v(load(q + i + VL), load_as(k, dtype, j * ldk + i + VL), odd);
    }
    for (; i < d; i++) tail += q[i] * scalar_as(k, dtype, j * ldk + i);
    s[j] = sum_v(even + odd) + tail;
  }
}

void SIMD(attention_scores)(float *s, const float *q, const void *k, int64_t ldk, Dtype dtype, int64_t n, int64_t d) {
  if (dtype == DT_F32) scores(s, q, k, ldk, DT_F32, n, d);
  else if (dtype == DT_BF16) scores(s, q, k, ldk, DT_BF16, n, d);
  else scores(s, q, k, ldk, DT_F16, n, d);
}

/* A piece of o of `vectors` vectors stays in registers over all keys. */
INLINE void values_piece(int vectors, float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n, int64_t at) {
  vf acc[8];
  UNROLL for (int i = 0; i < vectors; i++) acc[i] = load(o + at + i * VL);
  for (int64_t j = 0; j < n; j++) {
    vf x = splat(p[j]);
    UNROLL for (int i = 0; i < vectors; i++) acc[i] = fma_v(x, load_as(v, dtype, j * ldv + at + i * VL), acc[i]);
  }
  UNROLL for (int i = 0; i < vectors; i++) store(o + at + i * VL, acc[i]);
}

INLINE void values(float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n, int64_t e) {
  int64_t at = 0;
  for (; at + 8 * VL <= e; at += 8 * VL) values_piece(8, o, p, v, ldv, dtype, n, at);
  for (; at + 4 * VL <= e; at += 4 * VL) values_piece(4, o, p, v, ldv, dtype, n, at);
  for (; at + VL <= e; at += VL) values_piece(1, o, p, v, ldv, dtype, n, at);
  for (; at < e; at++) {
    for (int64_t j = 0; j < n; j++) o[at] += p[j] * scalar_as(v, dtype, j * ldv + at);
  }
}

void SIMD(attention_values)(float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n, int64_t e) {
  if (dtype == DT_F32) values(o, p, v, ldv, DT_F32, n, e);
  else if (dtype == DT_BF16) values(o, p, v, ldv, DT_BF16, n, e);
  else values(o, p, v, ldv, DT_F16, n, e);
}
