/* gemm_problem.h -- a product as the gemm_*.c files hand it to each other; nobody else's. */
#ifndef TESS_KERNELS_GEMM_PROBLEM_H
#define TESS_KERNELS_GEMM_PROBLEM_H

#include "kernels/gemm.h"

/* Element (z, i, j) is at data + (z * batch + i * row + j * col) elements. */
typedef struct {
  char *data; /* NULL: there is none */
  Dtype dtype;
  int64_t batch, row, col;
} Matrix;

typedef struct {
  int64_t batch, m, n, k;
  Matrix a, b, c, add, residual; /* broadcast dimensions have stride 0 */
  double alpha, beta;
  GemmAct act;
} Problem;

static inline char *matrix_at(const Matrix *x, int64_t z, int64_t i, int64_t j) {
  return x->data + (z * x->batch + i * x->row + j * x->col) * (int64_t)dtype_size(x->dtype);
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t pieces(int64_t n, int64_t of) { return (n + of - 1) / of; } /* rounded up */
static inline size_t floats(int64_t n) { return (size_t)n * sizeof(float); }

/* Rows of a block, spread evenly over its tiles. */
typedef struct {
  int64_t count, tiles;
} Rows;
static inline Rows gemm_rows(int64_t count, int mr) { return (Rows){count, pieces(count, mr)}; }
static inline int64_t gemm_tile_begin(Rows r, int64_t tile) {
  return r.count / r.tiles * tile + least(tile, r.count % r.tiles);
}

/* ---- gemm_finish.c: what comes after the sum over k ------------------------------- */

/* Room for each worker: one row of `cols` elements of every operand, as f32. */
size_t gemm_finish_bytes(int64_t cols);
/* c = act(x + beta * add) + residual for a block of c.  x: f32 rows, ldx apart; may be c
 * itself.  room: gemm_finish_bytes(cols) of the calling worker. */
void gemm_finish(const Kern *k, const Problem *p, int64_t z, int64_t i, int64_t rows, int64_t j, int64_t cols,
                 const float *x, int64_t ldx, float *room);
/* Is there anything to do when x is c, in f32? */
bool gemm_finish_needed(const Problem *p);
/* All of c, by all workers, with x = c (f32). */
Status gemm_finish_all(Kern *k, const Problem *p);

/* ---- gemm_panels.c: operands as the register tiles want them ------------------------- */

size_t gemm_pack_room(const Kern *k);
/* Panel dst[depth][nr] from columns j .. j+cols of b, cols <= nr, as f32.  room: gemm_pack_room(). */
void gemm_pack_panel(const Kern *k, float *dst, const Matrix *b, int64_t z, int64_t j, int64_t cols, int64_t depth,
                     float *room);
/* rows x kc of a, from (i, p) on, as f32 rows GEMM_LDA apart; kc <= GEMM_KC. */
void gemm_pack_a(const Kern *k, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, int64_t rows,
                 int64_t kc);
/* A block of a for tile_packed: [tile][kc][mr].  room: gemm_pack_room(). */
void gemm_pack_tiles(const Kern *k, float *dst, const Matrix *a, int64_t z, int64_t i, int64_t p, Rows rows,
                     int64_t kc, float *room);

/* ---- the routes --------------------------------------------------------------------- */

/* gemm_thin.c: few rows; b is read once, in place, f32, f16 or bf16, contiguous along k or n. */
Status gemm_thin(Kern *k, const Problem *p);

/* gemm_blocked.c: packed panels, any strides, f32, f16, bf16.  packed: all of b from
 * gemm_pack_all(), or NULL. */
Status gemm_blocked(Kern *k, const Problem *p, const float *packed);
size_t gemm_packed_bytes(const Kern *k, const Problem *p);
void gemm_pack_all(Kern *k, const Problem *p, float *packed,
                   float *room); /* batch 1; room: gemm_pack_room() per worker */

/* gemm_stream.c: the same for an f32 c whose rows are contiguous, where b is large and packed as it is used. */
bool gemm_streams(const Problem *p);
Status gemm_stream(Kern *k, const Problem *p);

/* gemm_pack.c: makes *pack the packed copy of p's b, if one pays and there is memory for it. */
Status gemm_pack_ensure(Kern *k, const Problem *p, GemmPack **pack);
const float *gemm_pack_data(const GemmPack *p);
/* There is a copy, or there will be one at the next use. */
bool gemm_pack_planned(const GemmPack *x, const Problem *p);

/* gemm_plain.c: f64 and integers. */
Status gemm_plain(Kern *k, const Problem *p);

/* gemm_naive.c: everything, complex numbers too. */
void gemm_naive_problem(const Problem *p);

#endif
