/* distance.c -- see distance.h.  Lanes of partial sums, as in reduce.c. */
#include "kernels/distance.h"

#include <math.h>

#include "kernels/simd/math.h"

#define ADD(s, v) ((s) + (v))
#define MAX(s, v) ((((v) > (s)) | ((v) != (v))) ? (v) : (s))

#define LOOP(NAME, T, EXPR, FOLD)                                \
  static double NAME(const T *a, const T *b, int64_t n, T p) {   \
    enum { LANES = 128 / sizeof(T) };                            \
    T acc[LANES];                                                \
    (void)p;                                                     \
    for (int l = 0; l < LANES; l++) acc[l] = 0;                  \
    int64_t i = 0;                                               \
    for (; i + LANES <= n; i += LANES) {                         \
      for (int l = 0; l < LANES; l++) {                          \
        T d = a[i + l] - b[i + l], v = (T)(EXPR);                \
        acc[l] = FOLD(acc[l], v);                                \
      }                                                          \
    }                                                            \
    for (int64_t l = 0; i + l < n; l++) {                        \
      T d = a[i + l] - b[i + l], v = (T)(EXPR);                  \
      acc[l] = FOLD(acc[l], v);                                  \
    }                                                            \
    double s = 0;                                                \
    for (int l = 0; l < LANES; l++) s = FOLD(s, (double)acc[l]); \
    return s;                                                    \
  }

LOOP(count_f32, float, d != 0, ADD)
LOOP(sum_f32, float, fabsf(d), ADD)
LOOP(squares_f32, float, d *d, ADD)
LOOP(powers_f32, float, pow_f32(fabsf(d), p), ADD)
LOOP(largest_f32, float, fabsf(d), MAX)
LOOP(count_f64, double, d != 0, ADD)
LOOP(sum_f64, double, fabs(d), ADD)
LOOP(squares_f64, double, d *d, ADD)
LOOP(powers_f64, double, pow(fabs(d), p), ADD)
LOOP(largest_f64, double, fabs(d), MAX)

double SIMD(distance_row)(Dtype as, const void *a, const void *b, int64_t n, double p) {
  bool f64 = as == DT_F64;
#define CALL(name) (f64 ? name##_f64(a, b, n, p) : name##_f32(a, b, n, (float)p))
  if (p == 2) return sqrt(CALL(squares));
  if (p == 1) return CALL(sum);
  if (p == 0) return CALL(count);
  if (isinf(p)) return CALL(largest);
  return pow(CALL(powers), 1 / p);
}
