/* resample.c -- the inner loops of resampling; see resample.h. */
#include "kernels/resample.h"

#define DEFINE(T, t)                                                                                            \
  void SIMD(resample_row_##t)(T *restrict acc, const T *restrict x, int64_t n, int64_t step, T w, bool first) { \
    if (step != 1) {                                                                                            \
      for (int64_t i = 0; i < n; i++) acc[i] = (first ? 0 : acc[i]) + w * x[i * step];                          \
    } else if (first) {                                                                                         \
      for (int64_t i = 0; i < n; i++) acc[i] = w * x[i];                                                        \
    } else {                                                                                                    \
      for (int64_t i = 0; i < n; i++) acc[i] += w * x[i];                                                       \
    }                                                                                                           \
  }                                                                                                             \
  void SIMD(resample_taps_##t)(T *restrict y, const T *restrict row, const int32_t *restrict at,                \
                               const T *restrict w, int taps, int64_t n) {                                      \
    if (taps == 2) {                                                                                            \
      for (int64_t i = 0; i < n; i++) y[i] = w[i] * row[at[i]] + w[n + i] * row[at[n + i]];                     \
      return;                                                                                                   \
    }                                                                                                           \
    for (int64_t i = 0; i < n; i++) y[i] = w[i] * row[at[i]];                                                   \
    for (int j = 1; j < taps; j++) {                                                                            \
      for (int64_t i = 0; i < n; i++) y[i] += w[j * n + i] * row[at[j * n + i]];                                \
    }                                                                                                           \
  }
#define DEFINE_PIXELS(T, t)                                                                        \
  void SIMD(resample_pixels_##t)(T *restrict y, const T *restrict row, const int32_t *restrict at, \
                                 const T *restrict w, int taps, int64_t n, int64_t channels) {     \
    for (int64_t i = 0; i < n; i++, y += channels) {                                               \
      const T *a = row + at[i] * channels;                                                         \
      const T wa = w[i];                                                                           \
      if (taps == 2) {                                                                             \
        const T *b = row + at[n + i] * channels;                                                   \
        const T wb = w[n + i];                                                                     \
        for (int64_t c = 0; c < channels; c++) y[c] = wa * a[c] + wb * b[c];                       \
        continue;                                                                                  \
      }                                                                                            \
      for (int64_t c = 0; c < channels; c++) y[c] = wa * a[c];                                     \
      for (int j = 1; j < taps; j++) {                                                             \
        const T *b = row + at[j * n + i] * channels;                                               \
        const T wb = w[j * n + i];                                                                 \
        for (int64_t c = 0; c < channels; c++) y[c] += wb * b[c];                                  \
      }                                                                                            \
    }                                                                                              \
  }
DEFINE_PIXELS(float, f32)
DEFINE_PIXELS(double, f64)
DEFINE(float, f32)
DEFINE(double, f64)
