/* gemm_plain.h -- inner loops of gemm_plain.c (simd/gemm_plain.c). */
#ifndef TESS_KERNELS_GEMM_PLAIN_H
#define TESS_KERNELS_GEMM_PLAIN_H

#include "kernels/kernel.h"

enum { PLAIN_MR = 6, PLAIN_NR = 8, PLAIN_SPARE = 64 }; /* SPARE: bytes behind the panels that may be read */

/* c[MR][NR] = a[MR, k] b[k][NR]; integers wrap. */
typedef void GemmPlainTile(int64_t k, const void *a, const void *b, void *c);
SIMD_DECLARE(void, gemm_plain_tile_f64, (int64_t k, const void *a, const void *b, void *c));
SIMD_DECLARE(void, gemm_plain_tile_i64, (int64_t k, const void *a, const void *b, void *c));
SIMD_DECLARE(void, gemm_plain_tile_i32, (int64_t k, const void *a, const void *b, void *c));

#endif
