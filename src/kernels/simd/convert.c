/* convert.c -- see convert.h.  One loop per pair of dtypes, all from two tables:
 * what an element of the source is worth (a number of one of five classes), and how
 * a number of each class is written as the destination. */
#include "kernels/convert.h"

#include <string.h>

#ifdef __F16C__
#include <immintrin.h>
#endif

typedef struct {
  float re, im;
} Complex;

/* ---- one number of class S (int32), I (int64), F (f32), D (f64), C (complex) to a dtype ---- */

#define INT_TO(TO, T)                                   \
  static inline T S_to_##TO(int32_t x) { return (T)x; } \
  static inline T I_to_##TO(int64_t x) { return (T)x; }
INT_TO(U8, uint8_t)
INT_TO(I8, int8_t)
INT_TO(I16, int16_t)
INT_TO(I32, int32_t)
INT_TO(I64, int64_t)
INT_TO(F32, float)
INT_TO(F64, double)
static inline uint8_t S_to_BOOL(int32_t x) { return x != 0; }
static inline uint16_t S_to_F16(int32_t x) { return f32_to_f16((float)x); }
static inline uint16_t S_to_BF16(int32_t x) { return f32_to_bf16((float)x); } /* never nan */
static inline Complex S_to_C64(int32_t x) { return (Complex){(float)x, 0}; }
static inline uint8_t I_to_BOOL(int64_t x) { return x != 0; }
static inline uint16_t I_to_F16(int64_t x) { return f32_to_f16((float)x); }
static inline uint16_t I_to_BF16(int64_t x) { return f32_to_bf16((float)x); }
static inline Complex I_to_C64(int64_t x) { return (Complex){(float)x, 0}; }

static inline int32_t F_to_I32(float x) { return x >= -0x1p31f && x < 0x1p31f ? (int32_t)x : INT32_MIN; }
static inline int64_t F_to_I64(float x) { return x >= -0x1p63f && x < 0x1p63f ? (int64_t)x : INT64_MIN; }
static inline uint8_t F_to_U8(float x) { return (uint8_t)F_to_I32(x); }
static inline int8_t F_to_I8(float x) { return (int8_t)F_to_I32(x); }
static inline int16_t F_to_I16(float x) { return (int16_t)F_to_I32(x); }
static inline uint8_t F_to_BOOL(float x) { return x != 0; }
static inline uint16_t F_to_F16(float x) { return f32_to_f16(x); }
/* f32_to_bf16() with one kind of nan: the compare is a single instruction. */
static inline uint16_t F_to_BF16(float x) {
  uint32_t u = f32_bits(x), rounded = (u + 0x7fffu + ((u >> 16) & 1)) >> 16;
  return (uint16_t)(x != x ? 0x7fc0u : rounded);
}
static inline float F_to_F32(float x) { return x; }
static inline double F_to_F64(float x) { return (double)x; }
static inline Complex F_to_C64(float x) { return (Complex){x, 0}; }

static inline int32_t D_to_I32(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int32_t)x : INT32_MIN; }
static inline int64_t D_to_I64(double x) { return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
static inline uint8_t D_to_U8(double x) { return (uint8_t)D_to_I32(x); }
static inline int8_t D_to_I8(double x) { return (int8_t)D_to_I32(x); }
static inline int16_t D_to_I16(double x) { return (int16_t)D_to_I32(x); }
static inline uint8_t D_to_BOOL(double x) { return x != 0; }
static inline uint16_t D_to_F16(double x) { return f32_to_f16((float)x); }
static inline uint16_t D_to_BF16(double x) { return f32_to_bf16((float)x); }
static inline float D_to_F32(double x) { return (float)x; }
static inline double D_to_F64(double x) { return x; }
static inline Complex D_to_C64(double x) { return (Complex){(float)x, 0}; }

#define COMPLEX_TO(TO, T) \
  static inline T C_to_##TO(Complex x) { return F_to_##TO(x.re); }
COMPLEX_TO(U8, uint8_t)
COMPLEX_TO(I8, int8_t)
COMPLEX_TO(I16, int16_t)
COMPLEX_TO(I32, int32_t)
COMPLEX_TO(I64, int64_t)
COMPLEX_TO(F16, uint16_t)
COMPLEX_TO(BF16, uint16_t)
COMPLEX_TO(F32, float)
COMPLEX_TO(F64, double)
static inline uint8_t C_to_BOOL(Complex x) { return x.re != 0 || x.im != 0; }
static inline Complex C_to_C64(Complex x) { return x; }

/* ---- every pair ------------------------------------------------------------------- */

#define SAME(x) (x)
#define TRUTH(x) ((x) != 0)

/*       dtype  in memory  class  value            */
/* clang-format off */
#define TYPES(X, ...)                              \
  X(BOOL,  uint8_t,  S, TRUTH,       __VA_ARGS__)  \
  X(U8,    uint8_t,  S, SAME,        __VA_ARGS__)  \
  X(I8,    int8_t,   S, SAME,        __VA_ARGS__)  \
  X(I16,   int16_t,  S, SAME,        __VA_ARGS__)  \
  X(I32,   int32_t,  S, SAME,        __VA_ARGS__)  \
  X(I64,   int64_t,  I, SAME,        __VA_ARGS__)  \
  X(F16,   uint16_t, F, f16_to_f32,  __VA_ARGS__)  \
  X(BF16,  uint16_t, F, bf16_to_f32, __VA_ARGS__)  \
  X(F32,   float,    F, SAME,        __VA_ARGS__)  \
  X(F64,   double,   D, SAME,        __VA_ARGS__)  \
  X(C64,   Complex,  C, SAME,        __VA_ARGS__)
/* clang-format on */

#define TO_CASE(TO, TO_T, FROM_T, CLASS, VALUE)                          \
  case DT_##TO: {                                                        \
    const FROM_T *s = src;                                               \
    TO_T *d = dst;                                                       \
    for (int64_t i = 0; i < n; i++) d[i] = CLASS##_to_##TO(VALUE(s[i])); \
    break;                                                               \
  }

#define FROM_FUNCTION(FROM, FROM_T, CLASS, VALUE, ...)                                         \
  static void from_##FROM(void *restrict dst, Dtype to, const void *restrict src, int64_t n) { \
    switch (to) {                                                                              \
      TO_CASE(BOOL, uint8_t, FROM_T, CLASS, VALUE)                                             \
      TO_CASE(U8, uint8_t, FROM_T, CLASS, VALUE)                                               \
      TO_CASE(I8, int8_t, FROM_T, CLASS, VALUE)                                                \
      TO_CASE(I16, int16_t, FROM_T, CLASS, VALUE)                                              \
      TO_CASE(I32, int32_t, FROM_T, CLASS, VALUE)                                              \
      TO_CASE(I64, int64_t, FROM_T, CLASS, VALUE)                                              \
      TO_CASE(F16, uint16_t, FROM_T, CLASS, VALUE)                                             \
      TO_CASE(BF16, uint16_t, FROM_T, CLASS, VALUE)                                            \
      TO_CASE(F32, float, FROM_T, CLASS, VALUE)                                                \
      TO_CASE(F64, double, FROM_T, CLASS, VALUE)                                               \
      TO_CASE(C64, Complex, FROM_T, CLASS, VALUE)                                              \
      default: break;                                                                          \
    }                                                                                          \
  }
TYPES(FROM_FUNCTION, 0)

#ifdef __F16C__ /* the compilers do not see the instruction in the plain loops */
static int64_t f16_to_f32_by_8(float *restrict d, const uint16_t *restrict s, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    _mm256_storeu_ps(d + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(s + i))));
  return i;
}
static int64_t f32_to_f16_by_8(uint16_t *restrict d, const float *restrict s, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128((__m128i *)(void *)(d + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(s + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  return i;
}
#endif

void SIMD(convert_run)(void *dst, Dtype to, const void *src, Dtype from, int64_t n) {
  if (to == from && from != DT_BOOL) { /* bools are made 0 or 1 on the way */
    if (dst != src) memcpy(dst, src, (size_t)n * dtype_size(to));
    return;
  }
#ifdef __F16C__
  int64_t done = 0;
  if (from == DT_F16 && to == DT_F32) done = f16_to_f32_by_8(dst, src, n);
  if (from == DT_F32 && to == DT_F16) done = f32_to_f16_by_8(dst, src, n);
  dst = (char *)dst + (size_t)done * dtype_size(to);
  src = (const char *)src + (size_t)done * dtype_size(from);
  n -= done;
#endif
  switch (from) {
#define CALL(FROM, ...) \
  case DT_##FROM: from_##FROM(dst, to, src, n); break;
    TYPES(CALL, 0)
    default: break;
  }
}
