/* pool.c -- the inner loops of pooling; see pool.h.
 *
 * Steps of 1 (channels last, or windows one apart) and 2 are spelled out: with the step
 * a constant the compiler turns them into vector loads. */
#include "kernels/pool.h"

#define LANES(BODY)                                    \
  if (step == 1) {                                     \
    for (int64_t i = 0; i < n; i++) BODY(x[i]);        \
  } else if (step == 2) {                              \
    for (int64_t i = 0; i < n; i++) BODY(x[i * 2]);    \
  } else {                                             \
    for (int64_t i = 0; i < n; i++) BODY(x[i * step]); \
  }

/* Larger, or nan. */
#define TAKE_MAX(value)                                                      \
  do {                                                                       \
    acc[i] = (((value) > acc[i]) | ((value) != (value))) ? (value) : acc[i]; \
  } while (0)
#define TAKE_ARGMAX(value)                                                \
  do {                                                                    \
    bool take = ((value) > acc[i]) | ((value) != (value)) | (tap[i] < 0); \
    acc[i] = take ? (value) : acc[i];                                     \
    tap[i] = take ? t : tap[i];                                           \
  } while (0)
#define TAKE_SUM(value) acc[i] = (Element)((Sum)acc[i] + (Sum)(value))

/* U: T, or the unsigned type of the same width, in which sums wrap.
 * Eight partial sums: rounding errors grow with n/8, and the loop is a vector one. */
#define DEFINE(T, U, t_)                                                                                      \
  void SIMD(pool_max_##t_)(T *restrict acc, int64_t n, const T *restrict x, int64_t step) { LANES(TAKE_MAX) } \
  void SIMD(pool_argmax_##t_)(T *restrict acc, int32_t *restrict tap, int64_t n, const T *restrict x,         \
                              int64_t step, int32_t t) {                                                      \
    LANES(TAKE_ARGMAX)                                                                                        \
  }                                                                                                           \
  void SIMD(pool_add_##t_)(T *restrict acc, int64_t n, const T *restrict x, int64_t step) {                   \
    typedef T Element;                                                                                        \
    typedef U Sum;                                                                                            \
    LANES(TAKE_SUM)                                                                                           \
  }                                                                                                           \
  T SIMD(pool_sum_##t_)(const T *x, int64_t n, int64_t step) {                                                \
    U part[8] = {0};                                                                                          \
    int64_t i = 0;                                                                                            \
    if (step == 1) {                                                                                          \
      for (; i + 8 <= n; i += 8) {                                                                            \
        for (int j = 0; j < 8; j++) part[j] += (U)x[i + j];                                                   \
      }                                                                                                       \
    }                                                                                                         \
    for (; i < n; i++) part[i & 7] += (U)x[i * step];                                                         \
    return (T)(((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7])));    \
  }
DEFINE(float, float, f32)
DEFINE(double, double, f64)
DEFINE(int64_t, uint64_t, i64)
