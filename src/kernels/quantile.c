/* quantile.c -- see quantile.h. */
#include "kernels/quantile.h"

#include <math.h>

#define DEFINE(T, t, FLOOR, CEIL, RINT)                                                                      \
  static T at_##t(const T *row, int64_t n, T q, QuantileMode mode) {                                         \
    T place = q * (T)(n - 1), low = FLOOR(place), high = CEIL(place);                                        \
    if (mode == QUANTILE_LOWER) return row[(int64_t)low];                                                    \
    if (mode == QUANTILE_HIGHER) return row[(int64_t)high];                                                  \
    if (mode == QUANTILE_NEAREST) return row[(int64_t)RINT(place)];                                          \
    T a = row[(int64_t)low], b = row[(int64_t)high], w = mode == QUANTILE_MIDPOINT ? (T)0.5 : place - low;   \
    return w < (T)0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);                                             \
  }                                                                                                          \
  static void rows_##t(const T *sorted, int64_t rows, int64_t n, const T *q, int64_t nq, QuantileMode mode,  \
                       bool ignore_nan, T *out) {                                                            \
    for (int64_t r = 0; r < rows; r++) {                                                                     \
      const T *row = sorted + r * n;                                                                         \
      int64_t count = n;                                                                                     \
      while (count > 0 && isnan(row[count - 1])) count--;                                                    \
      bool is_nan = ignore_nan ? count == 0 : count < n;                                                     \
      for (int64_t i = 0; i < nq; i++) out[i * rows + r] = is_nan ? (T)NAN : at_##t(row, count, q[i], mode); \
    }                                                                                                        \
  }
DEFINE(float, f32, floorf, ceilf, rintf)
DEFINE(double, f64, floor, ceil, rint)

void kernel_quantile(Dtype d, const void *sorted, int64_t rows, int64_t n, const void *q, int64_t nq,
                     QuantileMode mode, bool ignore_nan, void *out) {
  if (d == DT_F64) rows_f64(sorted, rows, n, q, nq, mode, ignore_nan, out);
  else rows_f32(sorted, rows, n, q, nq, mode, ignore_nan, out);
}
