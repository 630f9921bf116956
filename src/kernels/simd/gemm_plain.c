/* gemm_plain.c -- tiles of f64 and of integers; see gemm_plain.h. */
#include "kernels/gemm_plain.h"

#include "kernels/simd/vector.h"

enum { BYTES = VL * 4 }; /* of a vector */

typedef double vd __attribute__((vector_size(BYTES)));
typedef uint64_t vl __attribute__((vector_size(BYTES)));
typedef uint32_t vw __attribute__((vector_size(BYTES)));

INLINE vd fma_vd(vd a, vd b, vd c) {
#if defined __AVX512F__
  return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif defined __AVX2__
  return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
  return a * b + c;
#endif
}
#define FMA_F64(a, b, c) fma_vd((a), (b), (c))
#define FMA_INT(a, b, c) ((a) * (b) + (c))

/* Rows beyond those of the problem are computed and dropped by the caller.  A panel may be
 * narrower than a vector: then the vector reaches into the next row, and the store is cut. */
#define TILE(T, V, FMA)                                                                                     \
  enum { LANES = BYTES / sizeof(T), NV = (PLAIN_NR + LANES - 1) / LANES };                                  \
  const T *x = a, *panel = b;                                                                               \
  V acc[PLAIN_MR][NV];                                                                                      \
  UNROLL for (int i = 0; i < PLAIN_MR; i++) { UNROLL for (int j = 0; j < NV; j++) acc[i][j] = (V){0}; }     \
  for (int64_t p = 0; p < k; p++, panel += PLAIN_NR) {                                                      \
    V bv[NV];                                                                                               \
    UNROLL for (int j = 0; j < NV; j++) memcpy(&bv[j], panel + j * LANES, BYTES);                           \
    UNROLL for (int i = 0; i < PLAIN_MR; i++) {                                                             \
      V xv = x[i * k + p] - (V){0};                                                                         \
      UNROLL for (int j = 0; j < NV; j++) acc[i][j] = FMA(xv, bv[j], acc[i][j]);                            \
    }                                                                                                       \
  }                                                                                                         \
  UNROLL for (int i = 0; i < PLAIN_MR; i++) {                                                               \
    UNROLL for (int j = 0; j < NV; j++) {                                                                   \
      memcpy((T *)c + i * PLAIN_NR + j * LANES, &acc[i][j], NV > 1 ? (size_t)BYTES : PLAIN_NR * sizeof(T)); \
    }                                                                                                       \
  }

void SIMD(gemm_plain_tile_f64)(int64_t k, const void *a, const void *b, void *c) { TILE(double, vd, FMA_F64) }
void SIMD(gemm_plain_tile_i64)(int64_t k, const void *a, const void *b, void *c) { TILE(uint64_t, vl, FMA_INT) }
void SIMD(gemm_plain_tile_i32)(int64_t k, const void *a, const void *b, void *c) { TILE(uint32_t, vw, FMA_INT) }
