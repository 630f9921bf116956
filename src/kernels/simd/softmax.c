/* softmax.c -- inner loops of softmax; see softmax.h.
 *
 * Rows up to ONLINE elements stay in the second-level cache: one pass finds the
 * maximum, one writes exponentials and adds them up, one scales.  Longer rows are read
 * once for both maximum and sum (blocks of BLOCK: when a block has a larger maximum,
 * the sum so far is scaled down), and once more to write.
 *
 *   softmax  y = exp(x - max) / sum exp(x - max)      gx = y (g - sum g y)
 *   log      y = x - max - log sum exp(x - max)       gx = g - exp(y) sum g
 */
#include "kernels/softmax.h"

#include <math.h>

#include "kernels/reduce.h"
#include "kernels/simd/exp_below.h"

enum { BLOCK = 2048, ONLINE = 1 << 16 };

#define LARGER(a, v) ((((v) > (a)) | ((v) != (v))) ? (v) : (a))

#define LOOPS(T, TAG, DT, EXP, GRAD_EXP)                                                                        \
  static T largest_##TAG(const T *x, int64_t n) { return (T)SIMD(reduce_loops)(FOLD_MAX, DT)->row(x, n, 0).f; } \
  static double sum_##TAG(const T *x, int64_t n) { return SIMD(reduce_loops)(FOLD_SUM, DT)->row(x, n, 0).f; }   \
  /* y = exp(x - shift); the sum of these.  y has room for BLOCK elements at least. */                          \
  static double exp_block_##TAG(T *y, const T *x, int64_t n, T shift) {                                         \
    SIMD_LOOP                                                                                                   \
    for (int64_t i = 0; i < n; i++) y[i] = EXP(x[i] - shift);                                                   \
    return sum_##TAG(y, n);                                                                                     \
  }                                                                                                             \
  /* Maximum and sum of exp(x - maximum).  y, if there, gets the exponentials. */                               \
  static double stats_##TAG(T *y, const T *x, int64_t n, T *max) {                                              \
    double sum = 0;                                                                                             \
    T scratch[BLOCK];                                                                                           \
    if (n <= ONLINE) {                                                                                          \
      *max = largest_##TAG(x, n);                                                                               \
      for (int64_t i = 0; i < n; i += BLOCK) {                                                                  \
        sum += exp_block_##TAG(y ? y + i : scratch, x + i, n - i < BLOCK ? n - i : BLOCK, *max);                \
      }                                                                                                         \
      return sum;                                                                                               \
    }                                                                                                           \
    *max = (T)-INFINITY;                                                                                        \
    for (int64_t i = 0; i < n; i += BLOCK) {                                                                    \
      int64_t m = n - i < BLOCK ? n - i : BLOCK;                                                                \
      T block = largest_##TAG(x + i, m), larger = LARGER(*max, block);                                          \
      if (larger == (T)-INFINITY) continue; /* exp(-inf - -inf) would be nan */                                 \
      sum = (*max == larger ? sum : sum * exp((double)*max - (double)larger));                                  \
      *max = larger;                                                                                            \
      sum += exp_block_##TAG(scratch, x + i, m, larger);                                                        \
    }                                                                                                           \
    return *max == (T)-INFINITY ? (double)NAN : sum;                                                            \
  }                                                                                                             \
  static void row_##TAG(SoftmaxKind kind, void *to, const void *from, int64_t n) {                              \
    T *y = to, max;                                                                                             \
    const T *x = from;                                                                                          \
    bool log_of = kind == SOFTMAX_LOG, kept = !log_of && n <= ONLINE;                                           \
    double sum = stats_##TAG(kept ? y : NULL, x, n, &max);                                                      \
    if (kind == SOFTMAX_SAFE && max == (T)-INFINITY) {                                                          \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) y[i] = 0;                                                                 \
    } else if (log_of) {                                                                                        \
      T shift = max, rest = (T)log(sum);                                                                        \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) y[i] = x[i] - shift - rest;                                               \
    } else if (kept) {                                                                                          \
      T scale = (T)(1 / sum);                                                                                   \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) y[i] *= scale;                                                            \
    } else {                                                                                                    \
      T scale = (T)(1 / sum), shift = max;                                                                      \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) y[i] = EXP(x[i] - shift) * scale;                                         \
    }                                                                                                           \
  }                                                                                                             \
  static void grad_row_##TAG(SoftmaxKind kind, void *to, const void *g_, const void *y_, int64_t n) {           \
    T *gx = to;                                                                                                 \
    const T *g = g_, *y = y_;                                                                                   \
    double total = 0;                                                                                           \
    for (int64_t i = 0; i < n; i += BLOCK) {                                                                    \
      int64_t m = n - i < BLOCK ? n - i : BLOCK;                                                                \
      T product[BLOCK];                                                                                         \
      if (kind == SOFTMAX_LOG) {                                                                                \
        total += sum_##TAG(g + i, m);                                                                           \
      } else {                                                                                                  \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < m; j++) product[j] = g[i + j] * y[i + j];                                       \
        total += sum_##TAG(product, m);                                                                         \
      }                                                                                                         \
    }                                                                                                           \
    T sum = (T)total;                                                                                           \
    if (kind == SOFTMAX_LOG) {                                                                                  \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) gx[i] = g[i] - GRAD_EXP(y[i]) * sum;                                      \
    } else {                                                                                                    \
      SIMD_LOOP                                                                                                 \
      for (int64_t i = 0; i < n; i++) gx[i] = y[i] * (g[i] - sum);                                              \
    }                                                                                                           \
  }                                                                                                             \
  static void columns_##TAG(SoftmaxKind kind, void *to, int64_t y_stride, const void *from, int64_t x_stride,   \
                            int64_t n, int64_t width) {                                                         \
    T *y = to, max[SOFTMAX_WIDTH], sum[SOFTMAX_WIDTH];                                                          \
    const T *x = from;                                                                                          \
    SIMD_LOOP                                                                                                   \
    for (int64_t j = 0; j < width; j++) max[j] = (T)-INFINITY, sum[j] = 0;                                      \
    for (int64_t r = 0; r < n; r++) {                                                                           \
      SIMD_LOOP                                                                                                 \
      for (int64_t j = 0; j < width; j++) max[j] = LARGER(max[j], x[r * x_stride + j]);                         \
    }                                                                                                           \
    for (int64_t r = 0; r < n; r++) {                                                                           \
      const T *row = x + r * x_stride;                                                                          \
      T *out = y + r * y_stride;                                                                                \
      if (kind == SOFTMAX_LOG) {                                                                                \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) sum[j] += EXP(row[j] - max[j]);                                     \
      } else {                                                                                                  \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) {                                                                   \
          T e = EXP(row[j] - max[j]);                                                                           \
          out[j] = e;                                                                                           \
          sum[j] += e;                                                                                          \
        }                                                                                                       \
      }                                                                                                         \
    }                                                                                                           \
    SIMD_LOOP                                                                                                   \
    for (int64_t j = 0; j < width; j++) {                                                                       \
      if (kind == SOFTMAX_LOG) sum[j] = (T)log((double)sum[j]);                                                 \
      else sum[j] = 1 / sum[j];                                                                                 \
    }                                                                                                           \
    for (int64_t r = 0; r < n; r++) {                                                                           \
      const T *row = x + r * x_stride;                                                                          \
      T *out = y + r * y_stride;                                                                                \
      if (kind == SOFTMAX_LOG) {                                                                                \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) out[j] = row[j] - max[j] - sum[j];                                  \
      } else if (kind == SOFTMAX_SAFE) {                                                                        \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) out[j] = max[j] == (T)-INFINITY ? 0 : out[j] * sum[j];              \
      } else {                                                                                                  \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) out[j] *= sum[j];                                                   \
      }                                                                                                         \
    }                                                                                                           \
  }                                                                                                             \
  static void grad_columns_##TAG(SoftmaxKind kind, void *to, int64_t to_stride, const void *g_, const void *y_, \
                                 int64_t stride, int64_t n, int64_t width) {                                    \
    T *gx = to, sum[SOFTMAX_WIDTH];                                                                             \
    const T *g = g_, *y = y_;                                                                                   \
    bool log_of = kind == SOFTMAX_LOG;                                                                          \
    SIMD_LOOP                                                                                                   \
    for (int64_t j = 0; j < width; j++) sum[j] = 0;                                                             \
    for (int64_t r = 0; r < n; r++) {                                                                           \
      const T *gr = g + r * stride, *yr = y + r * stride;                                                       \
      SIMD_LOOP                                                                                                 \
      for (int64_t j = 0; j < width; j++) sum[j] += log_of ? gr[j] : gr[j] * yr[j];                             \
    }                                                                                                           \
    for (int64_t r = 0; r < n; r++) {                                                                           \
      const T *gr = g + r * stride, *yr = y + r * stride;                                                       \
      T *out = gx + r * to_stride;                                                                              \
      if (log_of) {                                                                                             \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) out[j] = gr[j] - GRAD_EXP(yr[j]) * sum[j];                          \
      } else {                                                                                                  \
        SIMD_LOOP                                                                                               \
        for (int64_t j = 0; j < width; j++) out[j] = yr[j] * (gr[j] - sum[j]);                                  \
      }                                                                                                         \
    }                                                                                                           \
  }                                                                                                             \
  static void grad_pick_##TAG(void *to, const void *y_, int64_t n, int64_t at, double g_) {                     \
    T *gx = to, g = (T)g_;                                                                                      \
    const T *y = y_;                                                                                            \
    SIMD_LOOP                                                                                                   \
    for (int64_t i = 0; i < n; i++) gx[i] = 0 - GRAD_EXP(y[i]) * g;                                             \
    if (at >= 0) gx[at] += g;                                                                                   \
  }                                                                                                             \
  static double sum_row_##TAG(const void *from, int64_t n, double top) {                                        \
    const T *x = from;                                                                                          \
    double sum = 0;                                                                                             \
    T scratch[BLOCK];                                                                                           \
    for (int64_t i = 0; i < n; i += BLOCK)                                                                      \
      sum += exp_block_##TAG(scratch, x + i, n - i < BLOCK ? n - i : BLOCK, (T)top);                            \
    return sum;                                                                                                 \
  }                                                                                                             \
  static const SoftmaxLoops loops_##TAG = {row_##TAG,          grad_row_##TAG,  columns_##TAG,                  \
                                           grad_columns_##TAG, grad_pick_##TAG, sum_row_##TAG};

LOOPS(float, f32, DT_F32, exp_below_f32, exp_f32)
LOOPS(double, f64, DT_F64, exp, exp)

const SoftmaxLoops *SIMD(softmax_loops)(Dtype as) { return as == DT_F64 ? &loops_f64 : &loops_f32; }
