/* gemm_panels.c -- operands as the register tiles want them: panels of b, tiles of a. */
#include "kernels/convert.h"
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum { PACK_TILES = 8 };

size_t gemm_pack_room(const Kern *k) {
  (void)k;
  return floats((int64_t)GEMM_NR_MOST * GEMM_LDA);
}

void gemm_pack_panel(const Kern *k, float *dst, const Matrix *b, int64_t z, int64_t j, int64_t cols, int64_t depth,
                     float *room) {
  const GemmKernels *kernels = SIMD_CALL(k->isa, gemm_kernels)();
  int nr = kernels->nr;
  for (int64_t p = 0; p < depth; p += GEMM_KC) {
    int64_t kc = least(depth - p, GEMM_KC);
    float *to = dst + p * nr;
    if (b->row == 1 && b->dtype == DT_F32) {
      kernels->pack_rows(to, (const float *)(const void *)matrix_at(b, z, p, j), b->col, cols, kc);
    } else if (b->row == 1) {
      for (int64_t c = 0; c < cols; c++)
        SIMD_CALL(k->isa, convert_run)(room + c * GEMM_LDA, DT_F32, matrix_at(b, z, p, j + c), b->dtype, kc);
      kernels->pack_rows(to, room, GEMM_LDA, cols, kc);
    } else if (b->col == 1) {
      kernels->pack_cols(to, matrix_at(b, z, p, j), b->row, b->dtype, cols, kc);
    } else {
      for (int64_t q = 0; q < kc; q++) {
        for (int64_t c = 0; c < nr; c++) {
          if (c < cols)
            SIMD_CALL(k->isa, convert_run)(to + q * nr + c, DT_F32, matrix_at(b, z, p + q, j + c), b->dtype, 1);
          else to[q * nr + c] = 0;
        }
      }
    }
  }
}

void gemm_pack_a(const Kern *k, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, int64_t rows,
                 int64_t kc) {
  if (a->row == 1 && a->col != 1) { /* walk its contiguous direction */
    float line[GEMM_MC];
    for (int64_t q = 0; q < kc; q++) {
      SIMD_CALL(k->isa, convert_run)(line, DT_F32, matrix_at(a, z, i, p + q), a->dtype, rows);
      for (int64_t r = 0; r < rows; r++) dst[r * GEMM_LDA + q] = line[r];
    }
    return;
  }
  int64_t run = a->col == 1 ? kc : 1;
  for (int64_t r = 0; r < rows; r++) {
    for (int64_t q = 0; q < kc; q += run) {
      SIMD_CALL(k->isa, convert_run)(dst + r * GEMM_LDA + q, DT_F32, matrix_at(a, z, i + r, p + q), a->dtype, run);
    }
  }
}

/* The same of an a whose rows are contiguous along m (a transposed matrix): some tiles at a time, so that its lines
 * are read whole. */
static void pack_tiles_along_m(int mr, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, Rows rows,
                               int64_t kc) {
  for (int64_t first = 0; first < rows.tiles; first += PACK_TILES) {
    int64_t end = least(rows.tiles, first + PACK_TILES);
    for (int64_t q = 0; q < kc; q++) {
      const float *from = (const float *)(const void *)matrix_at(a, z, i, p + q);
      for (int64_t t = first; t < end; t++) {
        const float *src = from + gemm_tile_begin(rows, t);
        float *to = dst + t * mr * kc + q * mr;
        int64_t count = gemm_tile_begin(rows, t + 1) - gemm_tile_begin(rows, t);
        for (int64_t r = 0; r < count; r++) to[r] = src[r];
      }
    }
  }
}

void gemm_pack_tiles(const Kern *k, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, Rows rows,
                     int64_t kc, float *room) {
  const GemmKernels *kernels = SIMD_CALL(k->isa, gemm_kernels)();
  if (a->row == 1 && a->col != 1 && a->dtype == DT_F32) {
    pack_tiles_along_m(kernels->mr, dst, a, z, i, p, rows, kc);
    return;
  }
  for (int64_t t = 0; t < rows.tiles; t++, dst += kernels->mr * kc) {
    int64_t first = i + gemm_tile_begin(rows, t), count = gemm_tile_begin(rows, t + 1) - gemm_tile_begin(rows, t);
    if (a->col == 1 && a->dtype == DT_F32)
      kernels->pack_a(dst, (const float *)(const void *)matrix_at(a, z, first, p), a->row, count, kc);
    else {
      gemm_pack_a(k, room, a, z, first, p, count, kc);
      kernels->pack_a(dst, room, GEMM_LDA, count, kc);
    }
  }
}
