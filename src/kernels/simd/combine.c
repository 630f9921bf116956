/* combine.c -- inner loops of combine.h. */
#include "kernels/combine.h"
#include "kernels/simd/stream.h"

typedef struct {
  float re, im;
} Complex;

/* d[i] = EXPR of p = a[i] and q = b[i]. */
#define EACH(T, EXPR)                 \
  {                                   \
    T *d = dst;                       \
    const T *x = a, *y = b;           \
    SIMD_LOOP                         \
    for (int64_t i = 0; i < n; i++) { \
      const T p = x[i], q = y[i];     \
      d[i] = EXPR;                    \
    }                                 \
    break;                            \
  }

#define PAIR(TAG) static void pair_##TAG(ReduceOp op, void *dst, const void *a, const void *b, int64_t n)

/* A nan on either side is the result: q is taken unless p is less or nan. */
#define FLOATS(TAG, T)                                       \
  PAIR(TAG) {                                                \
    switch (op) {                                            \
      case REDUCE_SUM:                                       \
      case REDUCE_AVG: EACH(T, p + q)                        \
      case REDUCE_PRODUCT: EACH(T, p *q)                     \
      case REDUCE_MIN: EACH(T, ((p < q) | (p != p)) ? p : q) \
      case REDUCE_MAX: EACH(T, ((p > q) | (p != p)) ? p : q) \
      default: break;                                        \
    }                                                        \
  }
FLOATS(F32, float)
FLOATS(F64, double)

/* W: unsigned, at least as wide as int, so that wrapping is defined. */
#define INTEGERS(TAG, T, W)                          \
  PAIR(TAG) {                                        \
    switch (op) {                                    \
      case REDUCE_SUM:                               \
      case REDUCE_AVG: EACH(T, (T)((W)p + (W)q))     \
      case REDUCE_PRODUCT: EACH(T, (T)((W)p * (W)q)) \
      case REDUCE_MIN: EACH(T, p < q ? p : q)        \
      case REDUCE_MAX: EACH(T, p > q ? p : q)        \
      case REDUCE_BAND: EACH(T, (T)(p & q))          \
      case REDUCE_BOR: EACH(T, (T)(p | q))           \
      case REDUCE_BXOR: EACH(T, (T)(p ^ q))          \
      default: break;                                \
    }                                                \
  }
INTEGERS(U8, uint8_t, uint32_t)
INTEGERS(I8, int8_t, uint32_t)
INTEGERS(I16, int16_t, uint32_t)
INTEGERS(I32, int32_t, uint32_t)
INTEGERS(I64, int64_t, uint64_t)

PAIR(BOOL) {
  switch (op) {
    case REDUCE_PRODUCT:
    case REDUCE_MIN:
    case REDUCE_BAND: EACH(uint8_t, (p != 0) & (q != 0))
    case REDUCE_SUM:
    case REDUCE_MAX:
    case REDUCE_BOR: EACH(uint8_t, (p != 0) | (q != 0))
    case REDUCE_BXOR: EACH(uint8_t, (p != 0) ^ (q != 0))
    default: break;
  }
}

PAIR(C64) {
  if (op == REDUCE_SUM || op == REDUCE_AVG) {
    pair_F32(REDUCE_SUM, dst, a, b, 2 * n);
    return;
  }
  switch (op) {
    case REDUCE_PRODUCT: EACH(Complex, ((Complex){p.re * q.re - p.im * q.im, p.re * q.im + p.im * q.re}))
    default: break;
  }
}

void SIMD(combine_pair)(ReduceOp op, Dtype d, void *dst, const void *a, const void *b, int64_t n) {
  switch (d) {
#define CASE(TAG) \
  case DT_##TAG: pair_##TAG(op, dst, a, b, n); break;
    CASE(BOOL)
    CASE(U8)
    CASE(I8)
    CASE(I16)
    CASE(I32)
    CASE(I64)
    CASE(F32)
    CASE(F64)
    CASE(C64)
#undef CASE
    default: break;
  }
}

/* Blocks stay in registers and L1, and are small enough that loads, stores and what is asked for ahead mix. */
void SIMD(combine_pair_past_caches)(ReduceOp op, Dtype d, void *dst, const void *a, const void *b, int64_t n) {
  enum { BLOCK = 8 * LINE };
  _Alignas(LINE) char block[BLOCK];
  const size_t width = dtype_size(d), bytes = (size_t)n * width;
  char *to = dst;
  const char *x = a, *y = b;
  size_t first = stream_to_line(to);
  if (first > bytes || first % width) first = bytes;
  size_t end = first + (bytes - first) / BLOCK * BLOCK;
  SIMD(combine_pair)(op, d, to, x, y, (int64_t)(first / width));
  for (size_t at = first; at < end; at += BLOCK) {
    for (size_t i = at; i < at + BLOCK; i += LINE) stream_ask(x + i, x + end), stream_ask(y + i, y + end);
    SIMD(combine_pair)(op, d, block, x + at, y + at, (int64_t)(BLOCK / width));
    for (size_t i = 0; i < BLOCK; i += LINE) stream_line(to + at + i, block + i);
  }
  SIMD(combine_pair)(op, d, to + end, x + end, y + end, (int64_t)((bytes - end) / width));
  stream_end();
}

#define DIVIDE(T, COUNT)                                 \
  {                                                      \
    T *v = x;                                            \
    for (int64_t i = 0; i < (COUNT); i++) v[i] /= (T)by; \
    break;                                               \
  }

void SIMD(combine_divide)(Dtype d, void *x, int by, int64_t n) {
  switch (d) {
    case DT_F32: DIVIDE(float, n)
    case DT_C64: DIVIDE(float, 2 * n)
    case DT_F64: DIVIDE(double, n)
    case DT_I64: DIVIDE(int64_t, n)
    default: break;
  }
}
