/* norm.c -- inner loops of normalisations; see norm.h.
 *
 * A mean of type T is off by half a unit in its last place.  Where the spread is small
 * beside it that shows, so what is missing is made up for in `rest` (or in the shift). */
#include "kernels/norm.h"

#include "kernels/simd/math.h"

#define LOOPS(T, TAG, FMA)                                                                                    \
  static void row_##TAG(void *y_, const void *x_, int64_t n, double mean_, double rstd_, const void *w_,      \
                        const void *b_) {                                                                     \
    T *y = y_, mean = (T)mean_, rstd = (T)rstd_, rest = (T)(((double)mean - mean_) * rstd_);                  \
    const T *x = x_, *w = w_, *b = b_;                                                                        \
    if (w && b) {                                                                                             \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) y[i] = FMA(FMA(x[i] - mean, rstd, rest), w[i], b[i]);                   \
    } else if (w) {                                                                                           \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) y[i] = FMA(x[i] - mean, rstd, rest) * w[i];                             \
    } else if (b) {                                                                                           \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) y[i] = FMA(x[i] - mean, rstd, rest) + b[i];                             \
    } else {                                                                                                  \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) y[i] = FMA(x[i] - mean, rstd, rest);                                    \
    }                                                                                                         \
  }                                                                                                           \
  static void affine_row_##TAG(void *y_, const void *x_, int64_t n, const void *mean_, const void *scale_,    \
                               const void *shift_) {                                                          \
    T *y = y_;                                                                                                \
    const T *x = x_, *mean = mean_, *scale = scale_, *shift = shift_;                                         \
    SIMD_LOOP                                                                                                 \
    for (int64_t i = 0; i < n; i++) y[i] = FMA(x[i] - mean[i], scale[i], shift[i]);                           \
  }                                                                                                           \
  static void affine_##TAG(void *y_, const void *x_, int64_t n, double mean_, double scale_, double shift_) { \
    T *y = y_, mean = (T)mean_, scale = (T)scale_, shift = (T)(shift_ + ((double)mean - mean_) * scale_);     \
    const T *x = x_;                                                                                          \
    SIMD_LOOP                                                                                                 \
    for (int64_t i = 0; i < n; i++) y[i] = FMA(x[i] - mean, scale, shift);                                    \
  }                                                                                                           \
  /* s[0] = sum (x - about), s[1] = sum (x - about)^2. */                                                     \
  static void moments_##TAG(const void *x_, int64_t n, double about_, double *s) {                            \
    enum { LANES = 128 / sizeof(T), BLOCK = 2048 };                                                           \
    const T *x = x_, about = (T)about_;                                                                       \
    s[0] = s[1] = 0;                                                                                          \
    for (int64_t start = 0; start < n; start += BLOCK) {                                                      \
      T a[LANES], b[LANES];                                                                                   \
      for (int l = 0; l < LANES; l++) a[l] = b[l] = 0;                                                        \
      int64_t end = n - start < BLOCK ? n : start + BLOCK, i = start;                                         \
      for (; i + LANES <= end; i += LANES) {                                                                  \
        for (int l = 0; l < LANES; l++) {                                                                     \
          T d = x[i + l] - about;                                                                             \
          a[l] += d;                                                                                          \
          b[l] = FMA(d, d, b[l]);                                                                             \
        }                                                                                                     \
      }                                                                                                       \
      for (int64_t l = 0; i + l < end; l++) {                                                                 \
        T d = x[i + l] - about;                                                                               \
        a[l] += d;                                                                                            \
        b[l] += d * d;                                                                                        \
      }                                                                                                       \
      for (int half = LANES / 2; half; half /= 2) {                                                           \
        for (int l = 0; l < half; l++) a[l] += a[l + half], b[l] += b[l + half];                              \
      }                                                                                                       \
      s[0] += (double)a[0];                                                                                   \
      s[1] += (double)b[0];                                                                                   \
    }                                                                                                         \
  }                                                                                                           \
  static void grad_sums_##TAG(const void *g_, const void *x_, const void *w_, int64_t n, double mean_,        \
                              double rstd_, double *sums) {                                                   \
    enum { LANES = 128 / sizeof(T), BLOCK = 2048 };                                                           \
    const T *g = g_, *x = x_, *w = w_;                                                                        \
    T mean = (T)mean_, rstd = (T)rstd_;                                                                       \
    sums[0] = sums[1] = 0;                                                                                    \
    for (int64_t start = 0; start < n; start += BLOCK) {                                                      \
      T a[LANES], b[LANES];                                                                                   \
      for (int l = 0; l < LANES; l++) a[l] = b[l] = 0;                                                        \
      int64_t end = n - start < BLOCK ? n : start + BLOCK, i = start;                                         \
      for (; i + LANES <= end; i += LANES) {                                                                  \
        for (int l = 0; l < LANES; l++) {                                                                     \
          T gw = w ? g[i + l] * w[i + l] : g[i + l];                                                          \
          a[l] += gw;                                                                                         \
          b[l] += gw * ((x[i + l] - mean) * rstd);                                                            \
        }                                                                                                     \
      }                                                                                                       \
      for (int64_t l = 0; i + l < end; l++) {                                                                 \
        T gw = w ? g[i + l] * w[i + l] : g[i + l];                                                            \
        a[l] += gw;                                                                                           \
        b[l] += gw * ((x[i + l] - mean) * rstd);                                                              \
      }                                                                                                       \
      for (int half = LANES / 2; half; half /= 2) {                                                           \
        for (int l = 0; l < half; l++) a[l] += a[l + half], b[l] += b[l + half];                              \
      }                                                                                                       \
      sums[0] += (double)a[0];                                                                                \
      sums[1] += (double)b[0];                                                                                \
    }                                                                                                         \
  }                                                                                                           \
  static void grad_row_##TAG(void *gx_, void *gw_, void *gb_, const void *g_, const void *x_, const void *w_, \
                             int64_t n, double mean_, double rstd_, double a_, double b_) {                   \
    T *gx = gx_, *gw = gw_, *gb = gb_, mean = (T)mean_, rstd = (T)rstd_, a = (T)a_, b = (T)b_;                \
    const T *g = g_, *x = x_, *w = w_;                                                                        \
    if (gw) {                                                                                                 \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) gw[i] += g[i] * ((x[i] - mean) * rstd);                                 \
    }                                                                                                         \
    if (gb) {                                                                                                 \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) gb[i] += g[i];                                                          \
    }                                                                                                         \
    if (gx && w) {                                                                                            \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) gx[i] = rstd * (g[i] * w[i] - a - (x[i] - mean) * rstd * b);            \
    } else if (gx) {                                                                                          \
      SIMD_LOOP                                                                                               \
      for (int64_t i = 0; i < n; i++) gx[i] = rstd * (g[i] - a - (x[i] - mean) * rstd * b);                   \
    }                                                                                                         \
  }                                                                                                           \
  static void grad_plane_##TAG(void *gx_, const void *g_, const void *x_, int64_t n, double mean_, double p_, \
                               double q_, double t_) {                                                        \
    T *gx = gx_, mean = (T)mean_, p = (T)p_, q = (T)q_, t = (T)t_;                                            \
    const T *g = g_, *x = x_;                                                                                 \
    SIMD_LOOP                                                                                                 \
    for (int64_t i = 0; i < n; i++) gx[i] = p * g[i] - q * (x[i] - mean) - t;                                 \
  }                                                                                                           \
  static const NormLoops loops_##TAG = {moments_##TAG,   row_##TAG,      affine_row_##TAG, affine_##TAG,      \
                                        grad_sums_##TAG, grad_row_##TAG, grad_plane_##TAG};

LOOPS(float, f32, fma_f32)
LOOPS(double, f64, fma_f64)

const NormLoops *SIMD(norm_loops)(Dtype as) { return as == DT_F64 ? &loops_f64 : &loops_f32; }
