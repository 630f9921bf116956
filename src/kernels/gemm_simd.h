/* gemm_simd.h -- the inner loops of a product, one set per instruction set (simd/gemm.c).
 *
 * Panels: b is packed as [n / nr][k][nr] f32, columns beyond n are zero.
 * A blocks: rows of f32, GEMM_LDA apart; or packed, for each tile of mr rows [k][mr].
 */
#ifndef TESS_KERNELS_GEMM_SIMD_H
#define TESS_KERNELS_GEMM_SIMD_H

#include "kernels/gemm.h"

enum {
  GEMM_KC = 384,           /* k block: a panel of it stays in L1 */
  GEMM_LDA = GEMM_KC + 16, /* constant, and no multiple of a page */
  GEMM_MC = 192,           /* m block: an A block stays in L2 */
  GEMM_NR_MOST = 32,
  GEMM_LINE = 16, /* floats of a cache line */
  GEMM_AHEAD = 4, /* a packed tile fetches one line of what comes later in so many steps of k */
  GEMM_AXPY = 8,  /* rows of b that axpy adds at a time */
};

/* Lines that are read later: the i-th is at[i] bytes behind `from`. */
typedef struct {
  const char *from;
  const int64_t *at;
} GemmFetch;

typedef struct {
  int mr, nr; /* register tile */
  /* c[rows, cols] = alpha * a[rows, k] b[k, nr] (+ c if add); rows <= mr, cols <= nr. */
  void (*tile)(int rows, int cols, int64_t k, const float *a, const float *b, float *c, int64_t ldc, float alpha,
               bool add);
  /* The same with a packed a, which is 10 % faster.  While it goes, k / GEMM_AHEAD lines are fetched. */
  void (*tile_packed)(int rows, int cols, int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                      float alpha, bool add, GemmFetch next);
  /* The same with nr columns of a b whose rows are ldb apart; packs them to keep[k][nr] by the way. */
  void (*tile_packing)(int rows, int64_t k, const float *a, const float *b, int64_t ldb, float *keep, float *c,
                       int64_t ldc, float alpha, bool add, GemmFetch next);
  /* dst[k][mr] from f32 rows src[rows][k], ld apart; rows <= mr, the others are not written. */
  void (*pack_a)(float *dst, const float *src, int64_t ld, int64_t rows, int64_t k);
  /* Panel dst[k][nr] from f32 rows src[cols][k], ld apart. */
  void (*pack_rows)(float *dst, const float *src, int64_t ld, int64_t cols, int64_t k);
  /* The same from rows src[k][cols] of f32, f16 or bf16, ld apart. */
  void (*pack_cols)(float *dst, const void *src, int64_t ld, Dtype dtype, int64_t cols, int64_t k);
  /* y[rows][4] = x[rows, k] w[4, k]^T, rows <= 3; w: f32, f16 or bf16. */
  void (*dot)(int rows, int64_t k, const float *x, int64_t ldx, const void *w, int64_t ldw, Dtype dtype, float *y);
  /* y[n] += x[k] w[k, n], k <= GEMM_AXPY; w: f32, f16 or bf16. */
  void (*axpy)(int64_t n, int64_t k, const float *x, const void *w, int64_t ldw, Dtype dtype, float *y);
} GemmKernels;

SIMD_DECLARE(const GemmKernels *, gemm_kernels, (void));

/* y = act(x + beta * add) + residual over one row; add and residual may be NULL, y may be x. */
SIMD_DECLARE(void, gemm_finish_row,
             (GemmAct act, int64_t n, float *y, const float *x, float beta, const float *add,
              const float *residual));

#endif
