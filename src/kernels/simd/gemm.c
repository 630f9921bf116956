/* gemm.c -- the register tile, packing and thin products; see gemm_simd.h. */
#include "kernels/gemm_simd.h"

#include "kernels/simd/vector.h"

/* Tile of MR x NV vectors: the accumulators, NV of b and one of a fit the registers. */
#ifdef __AVX512F__
enum { MR = 14, NV = 2 };
#else
enum { MR = 6, NV = 2 };
#endif
enum { NR = NV * VL, DOT = 4 };

/* ---- the register tile ------------------------------------------------------------ */

/* Where the elements of a are: row i, step p of the sum at i * row + p * col. */
typedef struct {
  int row, col;
} Lay;
static const Lay rows_apart = {GEMM_LDA, 1}, interleaved = {1, MR};

/* sum += x y.  Compilers left to themselves copy sums from register to register, of which there is none to spare.
 */
INLINE void add_product(vf *sum, vf x, vf y) {
#if defined __AVX2__
  __asm__("vfmadd231ps %1, %2, %0" : "+v"(*sum) : "v"(x), "v"(y));
#else
  *sum = fma_v(x, y, *sum);
#endif
}

INLINE void tile_step(Lay lay, int rows, int nv, const float *a, const float *b, float *keep, vf acc[MR][NV]) {
  vf bv[NV];
  UNROLL for (int j = 0; j < nv; j++) {
    bv[j] = load(b + j * VL);
    if (keep) store(keep + j * VL, bv[j]);
  }
  UNROLL for (int i = 0; i < rows; i++) {
    vf x = splat(a[i * lay.row]);
    UNROLL for (int j = 0; j < nv; j++) add_product(&acc[i][j], bv[j], x);
  }
}

/* What a tile is made of: k rows of b, ldb apart. */
typedef struct {
  int64_t k;
  const float *a, *b;
  int64_t ldb;
  float *keep; /* NULL, or where b is packed by the way */
  float *c;
  int64_t ldc;
  float alpha;
  bool add;
  GemmFetch next;
} Tile;

/* The first nv vectors of a panel.  One line of `next` is fetched in every so many steps. */
INLINE void tile_rows(Lay lay, int rows, int nv, bool packs, Tile t) {
  enum {
    APART = 2,
    PACKED = GEMM_AHEAD,
    SOON = 8
  }; /* steps without a branch; with rows apart gcc spills when it is more */
  const int steps = lay.col == 1 ? APART : PACKED;
  const float *a = t.a, *b = t.b;
  float *keep = packs ? t.keep : NULL;
  const int64_t ldb = packs ? t.ldb : NR;
  vf acc[MR][NV];
  UNROLL for (int i = 0; i < rows; i++) {
    UNROLL for (int j = 0; j < nv; j++) acc[i][j] = (vf){0};
    UNROLL for (int j = 0; j < nv * VL; j += GEMM_LINE)
        __builtin_prefetch(t.c + i * t.ldc + j, 1); /* c is often in L3: fetch it while the product runs */
  }
  int64_t p = 0;
  for (; p + steps <= t.k; p += steps) {
    if (lay.col != 1) __builtin_prefetch(t.next.from + *t.next.at++, 0, 2);
    UNROLL for (int q = 0; q < steps; q++) {
      if (packs) {
        UNROLL for (int j = 0; j < nv * VL; j += GEMM_LINE) __builtin_prefetch(b + SOON * ldb + j);
      }
      tile_step(lay, rows, nv, a + q * lay.col, b, keep, acc);
      b += ldb;
      if (packs) keep += NR;
    }
    a += steps * lay.col;
  }
  for (; p < t.k; p++, a += lay.col, b += ldb) {
    tile_step(lay, rows, nv, a, b, keep, acc);
    if (packs) keep += NR;
  }
  UNROLL for (int i = 0; i < rows; i++) {
    UNROLL for (int j = 0; j < nv; j++) {
      float *at = t.c + i * t.ldc + j * VL;
      store(at, t.add ? fma_v(acc[i][j], splat(t.alpha), load(at)) : acc[i][j] * splat(t.alpha));
    }
  }
}

/* The number of rows is a constant in each copy, so that the tile stays in registers. */
#define ROWS(R, L, N, P)                                  \
  case R:                                                 \
    if (R <= MR) tile_rows(L, R <= MR ? R : 1, N, P, *t); \
    break;
#define ROWS_6(L, N, P) \
  ROWS(1, L, N, P) ROWS(2, L, N, P) ROWS(3, L, N, P) ROWS(4, L, N, P) ROWS(5, L, N, P) ROWS(6, L, N, P)
#ifdef __AVX512F__
#define ROWS_ALL(L, N, P) \
  ROWS_6(L, N, P)         \
  ROWS(7, L, N, P)        \
  ROWS(8, L, N, P)        \
  ROWS(9, L, N, P) ROWS(10, L, N, P) ROWS(11, L, N, P) ROWS(12, L, N, P) ROWS(13, L, N, P) ROWS(14, L, N, P)
#else
#define ROWS_ALL(L, N, P) ROWS_6(L, N, P)
#endif
typedef void TileFn(int rows, const Tile *t);
#define TILE(name, L, N, P)                   \
  static void name(int rows, const Tile *t) { \
    switch (rows) { ROWS_ALL(L, N, P) }       \
  }
TILE(apart_full, rows_apart, NV, false)
TILE(apart_half, rows_apart, 1, false)
TILE(packed_full, interleaved, NV, false)
TILE(packed_half, interleaved, 1, false)
TILE(packing_full, interleaved, NV, true)

INLINE void tile_any(TileFn *full, TileFn *half, int rows, int cols, Tile t) {
  if (cols == NR) {
    full(rows, &t);
    return;
  }
  float edge[MR * NR], *c = t.c;
  int64_t ldc = t.ldc;
  bool add = t.add;
  t.c = edge, t.ldc = NR, t.add = false;
  (cols <= VL ? half : full)(rows, &t);
  for (int i = 0; i < rows; i++) {
    for (int j = 0; j < cols; j++) c[i * ldc + j] = edge[i * NR + j] + (add ? c[i * ldc + j] : 0);
  }
}

static void tile(int rows, int cols, int64_t k, const float *a, const float *b, float *c, int64_t ldc, float alpha,
                 bool add) {
  tile_any(apart_full, apart_half, rows, cols,
           (Tile){.k = k, .a = a, .b = b, .c = c, .ldc = ldc, .alpha = alpha, .add = add});
}

static void tile_packed(int rows, int cols, int64_t k, const float *a, const float *b, float *c, int64_t ldc,
                        float alpha, bool add, GemmFetch next) {
  tile_any(packed_full, packed_half, rows, cols,
           (Tile){.k = k, .a = a, .b = b, .c = c, .ldc = ldc, .alpha = alpha, .add = add, .next = next});
}

static void tile_packing(int rows, int64_t k, const float *a, const float *b, int64_t ldb, float *keep, float *c,
                         int64_t ldc, float alpha, bool add, GemmFetch next) {
  packing_full(rows, &(Tile){k, a, b, ldb, keep, c, ldc, alpha, add, next});
}

/* ---- packing ------------------------------------------------------------------------ */

#ifdef __AVX2__
/* dst[p][i] = src[i][p] for 8 x 8; rows of dst are NR apart. */
INLINE void transpose_8x8(float *dst, const float *src, int64_t ld) {
  __m256 r[8], t[8];
  UNROLL for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps(src + i * ld);
  UNROLL for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  UNROLL for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  UNROLL for (int i = 0; i < 4; i++) {
    _mm256_storeu_ps(dst + i * NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(dst + (i + 4) * NR, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}
#else
INLINE void transpose_8x8(float *dst, const float *src, int64_t ld) {
  for (int p = 0; p < 8; p++) {
    for (int i = 0; i < 8; i++) dst[p * NR + i] = src[i * ld + p];
  }
}
#endif

static void pack_rows(float *dst, const float *src, int64_t ld, int64_t cols, int64_t k) {
  int64_t p = 0;
  if (cols == NR) {
    for (; p + 16 <= k; p += 16) { /* whole lines of eight rows: rows often fall into the same cache set */
      for (int j = 0; j < NR; j += 8) {
        transpose_8x8(dst + p * NR + j, src + j * ld + p, ld);
        transpose_8x8(dst + (p + 8) * NR + j, src + j * ld + p + 8, ld);
      }
    }
    for (; p + 8 <= k; p += 8) {
      for (int j = 0; j < NR; j += 8) transpose_8x8(dst + p * NR + j, src + j * ld + p, ld);
    }
  }
  for (; p < k; p++) {
    for (int64_t j = 0; j < NR; j++) dst[p * NR + j] = j < cols ? src[j * ld + p] : 0;
  }
}

INLINE void pack_cols_as(float *dst, const void *src, int64_t ld, Dtype dtype, int64_t cols, int64_t k) {
  for (int64_t p = 0; p < k; p++) {
    if (cols == NR) {
      UNROLL for (int j = 0; j < NV; j++) store(dst + p * NR + j * VL, load_as(src, dtype, p * ld + j * VL));
    } else {
      for (int64_t j = 0; j < NR; j++) dst[p * NR + j] = j < cols ? scalar_as(src, dtype, p * ld + j) : 0;
    }
  }
}

static void pack_cols(float *dst, const void *src, int64_t ld, Dtype dtype, int64_t cols, int64_t k) {
  if (dtype == DT_F32) pack_cols_as(dst, src, ld, DT_F32, cols, k);
  else if (dtype == DT_BF16) pack_cols_as(dst, src, ld, DT_BF16, cols, k);
  else pack_cols_as(dst, src, ld, DT_F16, cols, k);
}

/* Four rows at a time; both MR are 2 more than a multiple of 4. */
static void pack_a(float *dst, const float *src, int64_t ld, int64_t rows, int64_t k) {
  int64_t p = 0;
#ifdef __AVX2__
  for (; rows == MR && p + 4 <= k; p += 4) {
    const float *from = src + p;
    float *to = dst + p * MR;
    UNROLL for (int i = 0; i + 4 <= MR; i += 4, from += 4 * ld) {
      __m128 r[4] = {_mm_loadu_ps(from), _mm_loadu_ps(from + ld), _mm_loadu_ps(from + 2 * ld),
                     _mm_loadu_ps(from + 3 * ld)};
      _MM_TRANSPOSE4_PS(r[0], r[1], r[2], r[3]);
      UNROLL for (int q = 0; q < 4; q++) _mm_storeu_ps(to + q * MR + i, r[q]);
    }
    __m128 x = _mm_loadu_ps(from), y = _mm_loadu_ps(from + ld), lo = _mm_unpacklo_ps(x, y),
           hi = _mm_unpackhi_ps(x, y);
    _mm_storel_pi((__m64 *)(void *)(to + MR - 2), lo);
    _mm_storeh_pi((__m64 *)(void *)(to + 2 * MR - 2), lo);
    _mm_storel_pi((__m64 *)(void *)(to + 3 * MR - 2), hi);
    _mm_storeh_pi((__m64 *)(void *)(to + 4 * MR - 2), hi);
  }
#endif
  for (; p < k; p++) {
    for (int64_t i = 0; i < rows; i++) dst[p * MR + i] = src[i * ld + p];
  }
}

/* ---- few rows: bound by memory, so nothing is packed ---------------------------------- */

INLINE void dot_rows(int rows, int64_t k, const float *x, int64_t ldx, const void *w, int64_t ldw, Dtype dtype,
                     float *y) {
  vf acc[3][DOT];
  float tail[3][DOT] = {{0}};
  int64_t p = 0;
  UNROLL for (int i = 0; i < rows; i++) { UNROLL for (int j = 0; j < DOT; j++) acc[i][j] = (vf){0}; }
  for (; p + VL <= k; p += VL) {
    vf xv[3];
    UNROLL for (int i = 0; i < rows; i++) xv[i] = load(x + i * ldx + p);
    UNROLL for (int j = 0; j < DOT; j++) {
      vf wv = load_as(w, dtype, j * ldw + p);
      UNROLL for (int i = 0; i < rows; i++) acc[i][j] = fma_v(xv[i], wv, acc[i][j]);
    }
  }
  for (; p < k; p++) {
    for (int i = 0; i < rows; i++) {
      for (int j = 0; j < DOT; j++) tail[i][j] += x[i * ldx + p] * scalar_as(w, dtype, j * ldw + p);
    }
  }
  UNROLL for (int i = 0; i < rows; i++) {
    sum4_v(acc[i], y + i * DOT);
    UNROLL for (int j = 0; j < DOT; j++) y[i * DOT + j] += tail[i][j];
  }
}

static void dot(int rows, int64_t k, const float *x, int64_t ldx, const void *w, int64_t ldw, Dtype dtype,
                float *y) {
#define CASES(DTYPE)                                                   \
  case 4 * DTYPE + 1: dot_rows(1, k, x, ldx, w, ldw, DTYPE, y); break; \
  case 4 * DTYPE + 2: dot_rows(2, k, x, ldx, w, ldw, DTYPE, y); break; \
  case 4 * DTYPE + 3: dot_rows(3, k, x, ldx, w, ldw, DTYPE, y); break;
  switch (4 * (int)dtype + rows) { CASES(DT_F32) CASES(DT_BF16) CASES(DT_F16) }
#undef CASES
}

INLINE void axpy_rows(int64_t k, int64_t n, const float *x, const void *w, int64_t ldw, Dtype dtype, float *y) {
  int64_t j = 0;
  for (; j + VL <= n; j += VL) {
    vf s = load(y + j);
    for (int64_t q = 0; q < k; q++) s = fma_v(splat(x[q]), load_as(w, dtype, q * ldw + j), s);
    store(y + j, s);
  }
  for (; j < n; j++) {
    for (int64_t q = 0; q < k; q++) y[j] += x[q] * scalar_as(w, dtype, q * ldw + j);
  }
}

static void axpy(int64_t n, int64_t k, const float *x, const void *w, int64_t ldw, Dtype dtype, float *y) {
  if (k == GEMM_AXPY && dtype == DT_F32) axpy_rows(GEMM_AXPY, n, x, w, ldw, DT_F32, y);
  else if (k == GEMM_AXPY && dtype == DT_BF16) axpy_rows(GEMM_AXPY, n, x, w, ldw, DT_BF16, y);
  else if (k == GEMM_AXPY) axpy_rows(GEMM_AXPY, n, x, w, ldw, DT_F16, y);
  else axpy_rows(k, n, x, w, ldw, dtype, y);
}

const GemmKernels *SIMD(gemm_kernels)(void) {
  static const GemmKernels kernels = {.mr = MR,
                                      .nr = NR,
                                      .tile = tile,
                                      .tile_packed = tile_packed,
                                      .tile_packing = tile_packing,
                                      .pack_a = pack_a,
                                      .pack_rows = pack_rows,
                                      .pack_cols = pack_cols,
                                      .dot = dot,
                                      .axpy = axpy};
  return &kernels;
}
