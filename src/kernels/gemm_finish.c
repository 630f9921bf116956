/* gemm_finish.c -- c = act(x + beta * add) + residual, and the rounding to c's dtype.
 *
 * By rows: operands that are f32 and contiguous along a row are used where they are,
 * others pass through a row of f32 in the worker's room. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum { ROOMS = 3, GRAIN = 1 << 14 }; /* rows in a room; elements that are worth a thread */

static int64_t room_row(int64_t cols) { return (cols + 15) & ~(int64_t)15; }
size_t gemm_finish_bytes(int64_t cols) { return floats(ROOMS * room_row(cols)); }

static bool is_direct(const Matrix *x) { return x->dtype == DT_F32 && x->col == 1; }

/* One row as f32. */
static const float *read_row(const Kern *k, const Matrix *x, int64_t z, int64_t i, int64_t j, int64_t cols,
                             float *room) {
  if (!x->data) return NULL;
  const char *at = matrix_at(x, z, i, j);
  if (is_direct(x)) return (const float *)(const void *)at;
  int64_t step = x->col * (int64_t)dtype_size(x->dtype);
  if (x->col == 1) SIMD_CALL(k->isa, convert_run)(room, DT_F32, at, x->dtype, cols);
  else {
    int64_t each = x->col == 0 ? 1 : cols;
    for (int64_t q = 0; q < each; q++) SIMD_CALL(k->isa, convert_run)(room + q, DT_F32, at + q * step, x->dtype, 1);
    for (int64_t q = each; q < cols; q++) room[q] = room[0];
  }
  return room;
}

static void write_row(const Kern *k, const Matrix *c, int64_t z, int64_t i, int64_t j, int64_t cols,
                      const float *y) {
  char *at = matrix_at(c, z, i, j);
  int64_t step = c->col * (int64_t)dtype_size(c->dtype);
  if (c->col == 1) SIMD_CALL(k->isa, convert_run)(at, c->dtype, y, DT_F32, cols);
  else {
    for (int64_t q = 0; q < cols; q++) SIMD_CALL(k->isa, convert_run)(at + q * step, c->dtype, y + q, DT_F32, 1);
  }
}

void gemm_finish(const Kern *k, const Problem *p, int64_t z, int64_t i, int64_t rows, int64_t j, int64_t cols,
                 const float *x, int64_t ldx, float *room) {
  int64_t width = room_row(cols);
  bool direct = is_direct(&p->c);
  for (int64_t r = 0; r < rows; r++) {
    const float *add = read_row(k, &p->add, z, i + r, j, cols, room);
    const float *residual = read_row(k, &p->residual, z, i + r, j, cols, room + width);
    float *y = direct ? (float *)(void *)matrix_at(&p->c, z, i + r, j) : room + 2 * width;
    SIMD_CALL(k->isa, gemm_finish_row)(p->act, cols, y, x + r * ldx, (float)p->beta, add, residual);
    if (!direct) write_row(k, &p->c, z, i + r, j, cols, y);
  }
}

bool gemm_finish_needed(const Problem *p) { return p->add.data || p->residual.data || p->act != GEMM_ACT_NONE; }

typedef struct {
  const Kern *k;
  const Problem *p;
  float *room;
  size_t room_bytes;
} Job;

static void finish_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  float *room = (float *)(void *)((char *)job->room + job->room_bytes * (size_t)worker);
  for (int64_t r = begin; r < end; r++) {
    int64_t z = r / p->m, i = r % p->m;
    const float *x = (const float *)(const void *)matrix_at(&p->c, z, i, 0);
    gemm_finish(job->k, p, z, i, 1, 0, p->n, x, p->c.row, room);
  }
}

Status gemm_finish_all(Kern *k, const Problem *p) {
  int64_t rows = p->batch * p->m, grain = most(1, GRAIN / most(1, p->n));
  Job job = {.k = k, .p = p, .room_bytes = gemm_finish_bytes(p->n)};
  TRY_NEW(job.room, kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, rows, grain)));
  parallel_for(k->threads, rows, grain, finish_rows, &job);
  return OK;
}
