/* reduce.c -- inner loops of reductions; see reduce.h.
 *
 * One template per loop, instantiated for every row of REDUCTIONS and each of the
 * three types.  Independent partial folds (lanes) keep the adders busy and shorten each
 * chain: a block is folded in the element's own type, blocks are carried on in the wide
 * one (f64 for f32).
 */
#include "kernels/reduce.h"

#include <math.h>

#include "kernels/simd/exp_below.h"

enum {
  BLOCK = 512,   /* elements added before the sums are widened */
  FAR = 1 << 20, /* elements compared before the result is looked at */
  BYTES = 4096,  /* bytes tested before the answer is looked at */
  AHEAD = 2048,  /* bytes fetched before they are used */
};

/* Reads ahead, across pages, where the machine's own look-ahead stops. */
#define FETCH(at, bytes) \
  for (size_t f = 0; f < (bytes); f += 64) __builtin_prefetch((const char *)(at) + AHEAD + f);

#define ADD(a, v) ((a) + (v))
#define MUL(a, v) ((a) * (v))
#define MAX(a, v) ((((v) > (a)) | ((v) != (v))) ? (v) : (a))
#define MIN(a, v) ((((v) < (a)) | ((v) != (v))) ? (v) : (a))

/* Sums and products: lanes of a block in the element's type, then widened. */
#define PLAIN_ROW(NAME, FOLD, ID, T, W, M, TAG)                                          \
  static Wide NAME##_##TAG##_row(const void *data, int64_t n, double param) {            \
    enum { LANES = 128 / sizeof(T) };                                                    \
    const T *x = data, p = (T)param;                                                     \
    W total[LANES], one = (W)ID;                                                         \
    int64_t i = 0;                                                                       \
    if (n < LANES / 2) {                                                                 \
      for (; i < n; i++) {                                                               \
        W v = (W)NAME##_##TAG##_of(x[i], p);                                             \
        one = FOLD(one, v);                                                              \
      }                                                                                  \
      return (Wide){.M = one};                                                           \
    }                                                                                    \
    for (int l = 0; l < LANES; l++) total[l] = (W)ID;                                    \
    while (i + LANES <= n) {                                                             \
      T acc[LANES];                                                                      \
      for (int l = 0; l < LANES; l++) acc[l] = ID;                                       \
      for (int64_t end = n - i < BLOCK ? n : i + BLOCK; i + LANES <= end; i += LANES) {  \
        FETCH(x + i, sizeof(T) * LANES)                                                  \
        for (int l = 0; l < LANES; l++) {                                                \
          T v = NAME##_##TAG##_of(x[i + l], p);                                          \
          acc[l] = FOLD(acc[l], v);                                                      \
        }                                                                                \
      }                                                                                  \
      for (int l = 0; l < LANES; l++) total[l] = FOLD(total[l], (W)acc[l]);              \
    }                                                                                    \
    if (i < n) {                                                                         \
      T rest[LANES];                                                                     \
      for (int l = 0; l < LANES; l++) rest[l] = ID;                                      \
      for (int64_t l = 0; i + l < n; l++) rest[l] = NAME##_##TAG##_of(x[i + l], p);      \
      for (int l = 0; l < LANES; l++) total[l] = FOLD(total[l], (W)rest[l]);             \
    }                                                                                    \
    for (int l = 0; l < LANES / 2; l++) total[l] = FOLD(total[l], total[l + LANES / 2]); \
    for (int l = 0; l < LANES / 4; l++) total[l] = FOLD(total[l], total[l + LANES / 4]); \
    for (int l = 0; l < LANES / 8; l++) total[l] = FOLD(total[l], total[l + LANES / 8]); \
    for (int l = 0; l < LANES / 8; l++) one = FOLD(one, total[l]);                       \
    return (Wide){.M = one};                                                             \
  }

/* The largest or smallest.  One comparison per element is one instruction; nan, which
 * loses in it, is kept apart (I is an integer of T's size). */
#define EXTREME_ROW(NAME, OP, FOLD, ID, T, W, M, I, TAG)                            \
  static T NAME##_##TAG##_block(const T *x, int64_t n, T p) {                       \
    enum { LANES = 128 / sizeof(T) };                                               \
    T acc[LANES], rest[LANES], one = ID;                                            \
    I nan[LANES], any = 0;                                                          \
    int64_t i = 0;                                                                  \
    if (n < LANES / 2) {                                                            \
      for (; i < n; i++) {                                                          \
        T v = NAME##_##TAG##_of(x[i], p);                                           \
        one = v OP one ? v : one;                                                   \
        any |= v != v;                                                              \
      }                                                                             \
      return any ? (T)NAN : one;                                                    \
    }                                                                               \
    for (int l = 0; l < LANES; l++) acc[l] = ID, nan[l] = 0;                        \
    for (; i + LANES <= n; i += LANES) {                                            \
      for (int l = 0; l < LANES; l++) {                                             \
        T v = NAME##_##TAG##_of(x[i + l], p);                                       \
        acc[l] = v OP acc[l] ? v : acc[l];                                          \
        nan[l] |= v != v ? -1 : 0;                                                  \
      }                                                                             \
    }                                                                               \
    if (i < n) {                                                                    \
      for (int l = 0; l < LANES; l++) rest[l] = ID;                                 \
      for (int64_t l = 0; i + l < n; l++) rest[l] = NAME##_##TAG##_of(x[i + l], p); \
      for (int l = 0; l < LANES; l++) {                                             \
        T v = rest[l];                                                              \
        acc[l] = v OP acc[l] ? v : acc[l];                                          \
        nan[l] |= v != v ? -1 : 0;                                                  \
      }                                                                             \
    }                                                                               \
    for (int l = 0; l < LANES / 2; l++) {                                           \
      T v = acc[l + LANES / 2];                                                     \
      acc[l] = v OP acc[l] ? v : acc[l];                                            \
      nan[l] |= nan[l + LANES / 2];                                                 \
    }                                                                               \
    for (int l = 0; l < LANES / 4; l++) {                                           \
      T v = acc[l + LANES / 4];                                                     \
      acc[l] = v OP acc[l] ? v : acc[l];                                            \
      nan[l] |= nan[l + LANES / 4];                                                 \
    }                                                                               \
    for (int l = 0; l < LANES / 4; l++) {                                           \
      one = acc[l] OP one ? acc[l] : one;                                           \
      any |= nan[l];                                                                \
    }                                                                               \
    return any ? (T)NAN : one;                                                      \
  }                                                                                 \
  static Wide NAME##_##TAG##_row(const void *data, int64_t n, double p) {           \
    const T *x = data;                                                              \
    W total = (W)ID;                                                                \
    for (int64_t i = 0; i < n; i += FAR) {                                          \
      W part = (W)NAME##_##TAG##_block(x + i, n - i < FAR ? n - i : FAR, (T)p);     \
      total = FOLD(total, part);                                                    \
    }                                                                               \
    return (Wide){.M = total};                                                      \
  }

#define ADD_ROW PLAIN_ROW
#define MUL_ROW PLAIN_ROW

/* T: element, W: wide, M: member of Wide. */
#define LOOPS(NAME, EXPR, FOLD, ID, T, W, M, TAG)                                                     \
  static inline T NAME##_##TAG##_of(T x, T p) {                                                       \
    (void)p;                                                                                          \
    return (T)(EXPR);                                                                                 \
  }                                                                                                   \
  FOLD##_ROW(NAME, FOLD, ID, T, W, M, TAG) static void NAME##_##TAG##_columns(                        \
      void *restrict into, const void *restrict data, int64_t stride, int64_t rows, int64_t n,        \
      const void *restrict param) {                                                                   \
    T *restrict acc = into;                                                                           \
    const T *restrict x = data, *restrict p = param;                                                  \
    int64_t r = 0;                                                                                    \
    for (; r + 4 <= rows; r += 4, x += 4 * stride) {                                                  \
      for (int64_t j = 0; j < n; j++) {                                                               \
        T a = acc[j], q = p[j];                                                                       \
        T v0 = NAME##_##TAG##_of(x[j], q), v1 = NAME##_##TAG##_of(x[stride + j], q);                  \
        T v2 = NAME##_##TAG##_of(x[2 * stride + j], q), v3 = NAME##_##TAG##_of(x[3 * stride + j], q); \
        a = FOLD(a, v0);                                                                              \
        a = FOLD(a, v1);                                                                              \
        a = FOLD(a, v2);                                                                              \
        acc[j] = FOLD(a, v3);                                                                         \
      }                                                                                               \
    }                                                                                                 \
    for (; r < rows; r++, x += stride) {                                                              \
      for (int64_t j = 0; j < n; j++) {                                                               \
        T v = NAME##_##TAG##_of(x[j], p[j]);                                                          \
        acc[j] = FOLD(acc[j], v);                                                                     \
      }                                                                                               \
    }                                                                                                 \
  }                                                                                                   \
  static void NAME##_##TAG##_clear(void *into, int64_t n) {                                           \
    T *acc = into;                                                                                    \
    for (int64_t j = 0; j < n; j++) acc[j] = ID;                                                      \
  }

/* The folds between accumulators know nothing of f(x, p). */
#define FOLD_LOOPS(FOLD, T, W, M, TAG)                                        \
  static void FOLD##_##TAG##_widen(Wide *wide, const void *acc, int64_t n) {  \
    const T *from = acc;                                                      \
    for (int64_t j = 0; j < n; j++) {                                         \
      W a = wide[j].M, v = (W)from[j];                                        \
      wide[j].M = FOLD(a, v);                                                 \
    }                                                                         \
  }                                                                           \
  static void FOLD##_##TAG##_merge(Wide *into, const Wide *from, int64_t n) { \
    for (int64_t j = 0; j < n; j++) {                                         \
      W a = into[j].M, v = from[j].M;                                         \
      into[j].M = FOLD(a, v);                                                 \
    }                                                                         \
  }

#define ENTRY(NAME, FOLD, ID, M, TAG)                                                  \
  [FOLD_##NAME] = {NAME##_##TAG##_row,   NAME##_##TAG##_columns, FOLD##_##TAG##_widen, \
                   FOLD##_##TAG##_merge, NAME##_##TAG##_clear,   {.M = ID}},

/* ---- f32 ----------------------------------------------------------------------------- */

#define LOWEST (-INFINITY)
#define HIGHEST INFINITY
#define ABS fabsf
#define POW pow_f32
#define MAX_ROW(NAME, FOLD, ID, T, W, M, TAG) EXTREME_ROW(NAME, >, FOLD, ID, T, W, M, int32_t, TAG)
#define MIN_ROW(NAME, FOLD, ID, T, W, M, TAG) EXTREME_ROW(NAME, <, FOLD, ID, T, W, M, int32_t, TAG)
#define EXP exp_below_f32
FOLD_LOOPS(ADD, float, double, f, f32)
FOLD_LOOPS(MUL, float, double, f, f32)
FOLD_LOOPS(MAX, float, double, f, f32)
FOLD_LOOPS(MIN, float, double, f, f32)
#define X(NAME, EXPR, FOLD, ID, WHO) LOOPS(NAME, EXPR, FOLD, ID, float, double, f, f32)
REDUCTIONS(X)
#undef X
#define X(NAME, EXPR, FOLD, ID, WHO) ENTRY(NAME, FOLD, ID, f, f32)
static const ReduceLoops loops_f32[FOLD_KINDS] = {REDUCTIONS(X)};
#undef X
#undef ABS
#undef POW
#undef EXP
#undef MAX_ROW
#undef MIN_ROW

/* ---- f64 ----------------------------------------------------------------------------- */

#define ABS fabs
#define POW pow
#define MAX_ROW(NAME, FOLD, ID, T, W, M, TAG) EXTREME_ROW(NAME, >, FOLD, ID, T, W, M, int64_t, TAG)
#define MIN_ROW(NAME, FOLD, ID, T, W, M, TAG) EXTREME_ROW(NAME, <, FOLD, ID, T, W, M, int64_t, TAG)
#define EXP exp
FOLD_LOOPS(ADD, double, double, f, f64)
FOLD_LOOPS(MUL, double, double, f, f64)
FOLD_LOOPS(MAX, double, double, f, f64)
FOLD_LOOPS(MIN, double, double, f, f64)
#define X(NAME, EXPR, FOLD, ID, WHO) LOOPS(NAME, EXPR, FOLD, ID, double, double, f, f64)
REDUCTIONS(X)
#undef X
#define X(NAME, EXPR, FOLD, ID, WHO) ENTRY(NAME, FOLD, ID, f, f64)
static const ReduceLoops loops_f64[FOLD_KINDS] = {REDUCTIONS(X)};
#undef X
#undef LOWEST
#undef HIGHEST

/* ---- i64: sums and products wrap ------------------------------------------------------ */

#undef ADD
#undef MUL
#undef MAX
#undef MIN
#undef MAX_ROW
#undef MIN_ROW
#define MAX_ROW PLAIN_ROW
#define MIN_ROW PLAIN_ROW
#define ADD(a, v) ((int64_t)((uint64_t)(a) + (uint64_t)(v)))
#define MUL(a, v) ((int64_t)((uint64_t)(a) * (uint64_t)(v)))
#define MAX(a, v) ((v) > (a) ? (v) : (a))
#define MIN(a, v) ((v) < (a) ? (v) : (a))
#define LOWEST INT64_MIN
#define HIGHEST INT64_MAX
#define INTS(...) __VA_ARGS__
#define FLOATS(...)
FOLD_LOOPS(ADD, int64_t, int64_t, i, i64)
FOLD_LOOPS(MUL, int64_t, int64_t, i, i64)
FOLD_LOOPS(MAX, int64_t, int64_t, i, i64)
FOLD_LOOPS(MIN, int64_t, int64_t, i, i64)
#define X(NAME, EXPR, FOLD, ID, WHO) WHO(LOOPS(NAME, EXPR, FOLD, ID, int64_t, int64_t, i, i64))
REDUCTIONS(X)
#undef X
#define X(NAME, EXPR, FOLD, ID, WHO) WHO(ENTRY(NAME, FOLD, ID, i, i64))
static const ReduceLoops loops_i64[FOLD_KINDS] = {REDUCTIONS(X)};
#undef X

const ReduceLoops *SIMD(reduce_loops)(ReduceKind kind, Dtype as) {
  return as == DT_F32 ? &loops_f32[kind] : as == DT_F64 ? &loops_f64[kind] : &loops_i64[kind];
}

/* In blocks, so that an answer found early ends the search. */
bool SIMD(bytes_any)(const unsigned char *x, int64_t n) {
  for (int64_t start = 0; start < n; start += BYTES) {
    int64_t end = n - start < BYTES ? n : start + BYTES;
    unsigned char some = 0;
    for (int64_t i = start; i < end; i++) some |= x[i];
    if (some) return true;
  }
  return false;
}

bool SIMD(bytes_all)(const unsigned char *x, int64_t n) {
  for (int64_t start = 0; start < n; start += BYTES) {
    int64_t end = n - start < BYTES ? n : start + BYTES;
    unsigned char zero = 0;
    for (int64_t i = start; i < end; i++) zero |= (unsigned char)(x[i] == 0);
    if (zero) return false;
  }
  return true;
}
