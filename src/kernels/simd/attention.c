/* attention.c -- see attention_simd.h. */
#include "kernels/attention_simd.h"
#include "kernels/simd/math.h"
#include "kernels/simd/vector.h"

/* 2^x for x <= 0; nan passes.  From -126 down it is 2^-126: such a score does not count. */
INLINE vf exp2_score(vf x) {
  vf c = max_v(splat(-126.0f), x), t = c + splat(ROUND_F32), r = c - (t - splat(ROUND_F32));
  vf p = splat(0x1.41fb2cp-13f); /* as exp2_f32 */
  p = fma_v(p, r, splat(0x1.5f3f32p-10f));
  p = fma_v(p, r, splat(0x1.3b2d50p-7f));
  p = fma_v(p, r, splat(0x1.c6aee6p-5f));
  p = fma_v(p, r, splat(0x1.ebfbdcp-3f));
  p = fma_v(p, r, splat(0x1.62e430p-1f));
  return fma_v(p, r, splat(1.0f)) * (vf)(((vu)t << 23) + (vu)splat(1.0f)); /* the last bits of t are the integer */
}

static float exp2_and_sum(float *s, int64_t n, float max) {
  vf a = {0}, b = {0}, m = splat(max);
  float part[VL] = {0}, tail = 0;
  int64_t i = 0;
  for (; i + 2 * VL <= n; i += 2 * VL) {
    vf x = exp2_score(load(s + i) - m), y = exp2_score(load(s + i + VL) - m);
    store(s + i, x);
    store(s + i + VL, y);
    a += x;
    b += y;
  }
  for (; i < n; i += VL) {
    int64_t left = n - i < VL ? n - i : VL;
    store(part, exp2_score(load_part(s + i, left, max) - m));
    for (int64_t j = 0; j < left; j++) tail += s[i + j] = part[j];
  }
  return sum_v(a + b) + tail;
}

float SIMD(attention_softmax_row)(float *s, int64_t n, float largest, float *max, float *sum) {
  float top = largest > *max ? largest : *max;
  if (top == -F32_INF) { /* nothing seen yet, or only nan */
    for (int64_t i = 0; i < n; i++) {
      s[i] = s[i] == s[i] ? 0 : s[i];
      *sum += s[i];
    }
    return 0;
  }
  float shrink = *max == -F32_INF ? 0 : *max == top ? 1 : exp2_f32(*max - top);
  *sum = *sum * shrink + exp2_and_sum(s, n, top);
  *max = top;
  return shrink;
}

/* ---- the largest score, once masked; nan is passed over ----------------------------------- */

#define LARGEST(one, rest)                 \
  vf a = splat(-F32_INF), b = a;           \
  int64_t i = 0;                           \
  for (; i + 2 * VL <= n; i += 2 * VL) {   \
    a = max_v(one(s + i, i), a);           \
    b = max_v(one(s + i + VL, i + VL), b); \
  }                                        \
  float top = largest_v(max_v(a, b));      \
  for (; i < n; i++) {                     \
    float x = rest(s + i, i);              \
    top = x > top ? x : top;               \
  }                                        \
  return top;

float SIMD(attention_largest)(const float *s, int64_t n){
#define ONE(p, i) load(p)
#define REST(p, i) (*(p))
    LARGEST(ONE, REST)
#undef ONE
#undef REST
}

/* A mask that is a number stays one in units of log(2), too: a query whose keys are all masked by the least f32
 * attends to all of them alike, as it does where scores and mask are added up.  Nothing else comes near the floor.
 */
#define FLOOR (-0.5f * 0x1.fffffep127f)

INLINE vf add_vector(float *p, const float *mask) {
  vf m = load(mask), x = max_v(fma_v(m, splat(0.5f), splat(FLOOR)), fma_v(m, splat(ATTENTION_LOG2E), load(p)));
  store(p, x);
  return x;
}

INLINE float add_one(float *p, float mask) {
  float floor = fma_f32(mask, 0.5f, FLOOR), x = fma_f32(mask, ATTENTION_LOG2E, *p);
  return *p = x < floor ? floor : x;
}

float SIMD(attention_add_mask)(float *s, const float *mask, int64_t n){
#define ONE(p, i) add_vector(p, mask + (i))
#define REST(p, i) add_one(p, mask[i])
    LARGEST(ONE, REST)
#undef ONE
#undef REST
}

INLINE vf hide_vector(float *p, const uint8_t *mask) {
  vu hidden = (vu)(load_bytes(mask) == (vu){0});
  vf x = (vf)((hidden & (vu)splat(-F32_INF)) | (~hidden & (vu)load(p)));
  store(p, x);
  return x;
}

float SIMD(attention_apply_mask)(float *s, const uint8_t *mask, int64_t n) {
#define ONE(p, i) hide_vector(p, mask + (i))
#define REST(p, i) (*(p) = mask[i] ? *(p) : -F32_INF)
  LARGEST(ONE, REST)
#undef ONE
#undef REST
}

void SIMD(attention_scale)(float *y, const float *x, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * factor;
}

void SIMD(attention_drop)(float *s, const uint32_t *words, uint32_t threshold, float factor, int64_t n) {
  for (int64_t i = 0; i < n; i++) s[i] = words[i] < threshold ? 0 : s[i] * factor;
}

void SIMD(attention_grad_row)(float *p, float *ds, int64_t n, float lse, float factor, float delta, float scale) {
  for (int64_t i = 0; i < n; i++) {
    float w = p[i] == -F32_INF ? 0 : factor * exp2_f32(p[i] - lse);
    p[i] = w;
    ds[i] = scale * w * (ds[i] - delta);
  }
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

void SIMD(attention_scores)(float *s, const float *q, const void *k, int64_t ldk, Dtype dtype, int64_t n,
                            int64_t d) {
  if (dtype == DT_F32) scores(s, q, k, ldk, DT_F32, n, d);
  else if (dtype == DT_BF16) scores(s, q, k, ldk, DT_BF16, n, d);
  else scores(s, q, k, ldk, DT_F16, n, d);
}

/* A piece of o of `vectors` vectors stays in registers over all keys. */
INLINE void values_piece(int vectors, float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n,
                         int64_t at) {
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

void SIMD(attention_values)(float *o, const float *p, const void *v, int64_t ldv, Dtype dtype, int64_t n,
                            int64_t e) {
  if (dtype == DT_F32) values(o, p, v, ldv, DT_F32, n, e);
  else if (dtype == DT_BF16) values(o, p, v, ldv, DT_BF16, n, e);
  else values(o, p, v, ldv, DT_F16, n, e);
}
