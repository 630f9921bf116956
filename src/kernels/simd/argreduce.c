/* argreduce.c -- the best element of each column so far, and its row; see argreduce.c
 * one folder up.  A row of columns at a time; two loops per type, so that the direction
 * is not asked for each element. */
#include "kernels/reduce.h"

/* A nan beats anything but an earlier nan. */
#define FLOAT_BEATS(v, OP, b) (((v)OP(b)) | (((v) != (v)) & ((b) == (b))))
#define INT_BEATS(v, OP, b) ((v)OP(b))

#define LOOP(NAME, T, OP, BEATS)                                                                            \
  static void NAME(T *restrict best, int64_t *restrict place, const T *restrict x, int64_t at, int64_t n) { \
    for (int64_t i = 0; i < n; i++) {                                                                       \
      bool take = BEATS(x[i], OP, best[i]);                                                                 \
      best[i] = take ? x[i] : best[i];                                                                      \
      place[i] = take ? at : place[i];                                                                      \
    }                                                                                                       \
  }

LOOP(largest_f32, float, >, FLOAT_BEATS)
LOOP(smallest_f32, float, <, FLOAT_BEATS)
LOOP(largest_f64, double, >, FLOAT_BEATS)
LOOP(smallest_f64, double, <, FLOAT_BEATS)
LOOP(largest_i64, int64_t, >, INT_BEATS)
LOOP(smallest_i64, int64_t, <, INT_BEATS)

void SIMD(arg_columns)(Dtype as, bool largest, void *best, int64_t *place, const void *x, int64_t at, int64_t n) {
#define CALL(tag) (largest ? largest_##tag(best, place, x, at, n) : smallest_##tag(best, place, x, at, n))
  if (as == DT_F32) CALL(f32);
  else if (as == DT_F64) CALL(f64);
  else CALL(i64);
}
