/* gemm_plain.c -- a tile of f64 or of integers; see gemm_plain.h. */
#include "kernels/gemm_plain.h"

#include <string.h>

typedef double vd __attribute__((vector_size(PLAIN_NR * sizeof(double))));
typedef uint64_t vu __attribute__((vector_size(PLAIN_NR * sizeof(uint64_t))));

/* The unused rows of the last tile are computed and dropped by the caller. */
#define TILE(T, V)                                                          \
  V acc[PLAIN_MR] = {{0}};                                                  \
  for (int64_t p = 0; p < k; p++, b = (const T *)b + PLAIN_NR) {            \
    V bv;                                                                   \
    memcpy(&bv, b, sizeof bv);                                              \
    for (int i = 0; i < PLAIN_MR; i++) acc[i] += ((const T *)a)[i * k + p] * bv; \
  }                                                                         \
  memcpy(c, acc, sizeof acc);

void SIMD(gemm_plain_tile_f64)(int64_t k, const void *a, const void *b, void *c) { TILE(double, vd) }
void SIMD(gemm_plain_tile_i64)(int64_t k, const void *a, const void *b, void *c) { TILE(uint64_t, vu) }
