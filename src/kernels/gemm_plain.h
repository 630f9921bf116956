/* gemm_plain.h -- inner loops of gemm_plain.c (simd/gemm_plain.c). */
#ifndef TESS_KERNELS_GEMM_PLAIN_H
#define TESS_KERNELS_GEMM_PLAIN_H

#include "kernels/kernel.h"

enum { PLAIN_MR = 4, PLAIN_NR = 8 };

/* c[MR][NR] = a[MR, k] b[k][NR]; eight bytes per element, integers wrap. */
typedef void GemmPlainTile(int64_t k, const void *a, const void *b, void *c);
SIMD_DECLARE(void, gemm_plain_tile_f64, (int64_t k, const void *a, const void *b, void *c));
SIMD_DECLARE(void, gemm_plain_tile_i64, (int64_t k, const void *a, const void *b, void *c));

#endif
