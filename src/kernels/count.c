/* count.c -- see count.h. */
#include "kernels/count.h"

#include <math.h>
#include <string.h>

#define HISTOGRAM(T)                                                      \
  for (int64_t i = 0; i < n; i++) {                                       \
    T v = ((const T *)x)[i], from = (T)low, to = (T)high;                 \
    if (!(v >= from && v <= to)) continue;                                \
    int64_t b = f64_to_i64((double)((v - from) * (T)bins / (to - from))); \
    count[b < 0 ? 0 : b < bins ? b : bins - 1]++;                         \
  }

void kernel_histogram(Dtype d, const void *x, int64_t n, int64_t bins, double low, double high, int64_t *count) {
  memset(count, 0, (size_t)bins * sizeof *count);
  if (d == DT_F64) {
    HISTOGRAM(double)
  } else {
    HISTOGRAM(float)
  }
}

bool kernel_finite_range(Dtype d, const void *x, int64_t n, double *low, double *high) {
  for (int64_t i = 0; i < n; i++) {
    double v = d == DT_F64 ? ((const double *)x)[i] : (double)((const float *)x)[i];
    if (!isfinite(v)) return false;
    if (i == 0 || v < *low) *low = v;
    if (i == 0 || v > *high) *high = v;
  }
  return n > 0;
}
