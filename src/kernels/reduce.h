/* reduce.h -- sums, products, extremes, norms, variances over any set of dimensions.
 *
 * A reduction folds f(x, p) with one of four operations; p is a number (the exponent
 * of a norm) or what a first fold gave (the mean, the maximum).  The fold runs in f32,
 * f64 or i64, whatever the input is stored as.  f32 is added in blocks whose sums are
 * carried on in f64, so an error does not grow with the number of elements.
 *
 * I1  nan wins in max and min.
 * I2  A fold of nothing gives the identity: 0, 1, -inf, inf, false, true.
 * I3  The order of additions depends on sizes, strides and the number of threads only.
 */
#ifndef TESS_KERNELS_REDUCE_H
#define TESS_KERNELS_REDUCE_H

#include "kernels/kernel.h"

/*      name      f(x, p)                    fold  identity  also for integers        */
/* clang-format off */
#define REDUCTIONS(X)                                                                 \
  X(SUM,     x,                              ADD,  0,        INTS)                    \
  X(COUNT,   x != 0,                         ADD,  0,        INTS)                    \
  X(PROD,    x,                              MUL,  1,        INTS)                    \
  X(MAX,     x,                              MAX,  LOWEST,   INTS)                    \
  X(MIN,     x,                              MIN,  HIGHEST,  INTS)                    \
  X(ANY,     x != 0,                         MAX,  0,        INTS)                    \
  X(ALL,     x != 0,                         MIN,  1,        INTS)                    \
  X(NANSUM,  x != x ? 0 : x,                 ADD,  0,        FLOATS)                  \
  X(NUMBERS, x == x,                         ADD,  0,        FLOATS) /* not nan */    \
  X(ABSSUM,  ABS(x),                         ADD,  0,        FLOATS)                  \
  X(SQUARES, x * x,                          ADD,  0,        FLOATS)                  \
  X(POWERS,  POW(ABS(x), p),                 ADD,  0,        FLOATS)                  \
  X(ABSMAX,  ABS(x),                         MAX,  0,        FLOATS)                  \
  X(ABSMIN,  ABS(x),                         MIN,  HIGHEST,  FLOATS)                  \
  X(VARIANCE,  (x - p) * (x - p),              ADD,  0,        FLOATS) /* p: mean */    \
  X(EXPSUM,  EXP(x - p),                     ADD,  0,        FLOATS) /* p: maximum */
/* clang-format on */

/* clang-format off */
typedef enum {
#define X(name, ...) FOLD_##name,
  REDUCTIONS(X)
#undef X
  FOLD_KINDS,
} ReduceKind;
/* clang-format on */

/* What becomes of a fold s over n elements. */
typedef enum {
  FINISH_NONE, /* s */
  FINISH_MEAN, /* s / n, or s / param if that is not 0 */
  FINISH_VAR,  /* s / max(0, n - param) */
  FINISH_STD,  /* the root of that */
  FINISH_SQRT, /* root of s */
  FINISH_ROOT, /* s ^ (1 / param) */
  FINISH_LOG,  /* log s, plus the maximum */
} ReduceFinish;

typedef struct {
  ReduceKind kind;
  ReduceFinish finish;
  double param; /* POWERS: exponent; VAR, STD: correction; MEAN: see there */
} Reduction;

/* out = the reduction of x over the dimensions with reduced[d].  out has as many
 * dimensions as x, of size 1 where x is reduced.  as: DT_F32, DT_F64 or DT_I64, in
 * which elements are folded (kinds marked FLOATS: the first two only). */
void kernel_reduce(Kern *k, Reduction r, Dtype as, View out, View x, const bool *reduced);

/* Variance (over n - correction) and mean in one go; both like out above, with the same
 * strides. */
void kernel_var_mean(Kern *k, double correction, Dtype as, View var, View mean, View x, const bool *reduced);

/* index (i64) = where the largest (smallest) element along dimension dim is: the first
 * of equals, the first nan if there is one; value (if its data is not NULL) = that
 * element.  Both have size 1 in dim.  x is not empty along dim. */
void kernel_argreduce(Kern *k, bool largest, View value, View index, View x, int dim);

/* ---- the inner loops, one set per instruction set (simd/reduce.c) ------------------ */

typedef union {
  double f; /* folds in f32 and f64 */
  int64_t i;
} Wide;

/* x, acc, p: elements of the type that is folded. */
typedef struct {
  /* Fold of n elements. */
  Wide (*row)(const void *x, int64_t n, double p);
  /* acc[j] = fold of acc[j] and x[r * stride + j] for all rows r; j < n. */
  void (*columns)(void *acc, const void *x, int64_t stride, int64_t rows, int64_t n, const void *p);
  /* wide[j] = fold of wide[j] and acc[j]. */
  void (*widen)(Wide *wide, const void *acc, int64_t n);
  void (*merge)(Wide *into, const Wide *from, int64_t n);
  void (*clear)(void *acc, int64_t n); /* to the identity */
  Wide identity;
} ReduceLoops;

SIMD_DECLARE(const ReduceLoops *, reduce_loops, (ReduceKind kind, Dtype as));

/* Columns of a search for extremes: where x[i], element number `at` of column i, beats
 * best[i], it and its number are kept. */
SIMD_DECLARE(void, arg_columns,
             (Dtype as, bool largest, void *best, int64_t *place, const void *x, int64_t at, int64_t n));

/* True if some byte (every byte) is not 0: any and all of bool, u8 and i8. */
SIMD_DECLARE(bool, bytes_any, (const unsigned char *x, int64_t n));
SIMD_DECLARE(bool, bytes_all, (const unsigned char *x, int64_t n));

#endif
