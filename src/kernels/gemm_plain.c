/* gemm_plain.c -- products of f64 and of integers.
 *
 * Everything is eight bytes wide inside: f64, or int64 whose low bits are those of the
 * narrower types' own wrapping arithmetic.  b is packed once per product as [n / NR][k][NR],
 * rows of a four at a time by whoever needs them. */
#include "kernels/gemm_plain.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"

enum { WORK = 1 << 15 };

typedef struct {
  const Kern *k;
  const Problem *p;
  Dtype inside; /* f64 or i64 */
  GemmPlainTile *tile;
  int64_t z;
  char *packed, *room;
} Job;

/* Elements (i, j), (i + di, j + dj) ... of x as the inside dtype, `step` elements apart. */
static void gather(const Job *job, const Matrix *x, int64_t i, int64_t j, int64_t di, int64_t dj, int64_t n, char *to, int64_t step) {
  if (di * x->row + dj * x->col == 1 && step == 1) {
    SIMD_CALL(job->k->isa, convert_run)(to, job->inside, matrix_at(x, job->z, i, j), x->dtype, n);
    return;
  }
  for (int64_t q = 0; q < n; q++) {
    SIMD_CALL(job->k->isa, convert_run)(to + q * step * 8, job->inside, matrix_at(x, job->z, i + q * di, j + q * dj), x->dtype, 1);
  }
}

static void pack_panels(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  (void)worker;
  for (int64_t t = begin; t < end; t++) {
    int64_t j = t * PLAIN_NR, cols = least(p->n - j, PLAIN_NR);
    char *to = job->packed + t * PLAIN_NR * p->k * 8;
    if (cols < PLAIN_NR) memset(to, 0, (size_t)(PLAIN_NR * p->k * 8));
    if (p->b.col == 1) {
      for (int64_t q = 0; q < p->k; q++) gather(job, &p->b, q, j, 0, 1, cols, to + q * PLAIN_NR * 8, 1);
    } else {
      for (int64_t c = 0; c < cols; c++) gather(job, &p->b, 0, j + c, 1, 0, p->k, to + c * 8, PLAIN_NR);
    }
  }
}

/* c[i, j..] = alpha * sums + beta * add. */
static void store(const Job *job, int64_t i, int64_t j, int64_t cols, const void *sums) {
  const Problem *p = job->p;
  double d[PLAIN_NR], old_d[PLAIN_NR];
  int64_t n[PLAIN_NR], old_n[PLAIN_NR];
  bool real = job->inside == DT_F64;
  memcpy(d, sums, sizeof d);
  memcpy(n, sums, sizeof n);
  if (p->add.data) gather(job, &p->add, i, j, 0, 1, cols, real ? (char *)old_d : (char *)old_n, 1);
  for (int64_t q = 0; q < cols; q++) {
    d[q] = real ? d[q] * p->alpha + (p->add.data ? p->beta * old_d[q] : 0) : 0;
    n[q] = (int64_t)((uint64_t)n[q] * (uint64_t)(int64_t)p->alpha + (p->add.data ? (uint64_t)(int64_t)p->beta * (uint64_t)old_n[q] : 0));
    SIMD_CALL(job->k->isa, convert_run)(matrix_at(&p->c, job->z, i, j + q), p->c.dtype, real ? (void *)&d[q] : (void *)&n[q], job->inside, 1);
  }
}

static void run_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  char *a = job->room + (size_t)worker * (size_t)(PLAIN_MR * p->k * 8);
  for (int64_t i = begin; i < end; i += PLAIN_MR) {
    int64_t rows = least(end - i, PLAIN_MR);
    for (int64_t r = 0; r < PLAIN_MR; r++) gather(job, &p->a, least(i + r, p->m - 1), 0, 0, 1, p->k, a + r * p->k * 8, 1);
    for (int64_t j = 0; j < p->n; j += PLAIN_NR) {
      uint64_t sums[PLAIN_MR][PLAIN_NR];
      job->tile(p->k, a, job->packed + j * p->k * 8, sums);
      for (int64_t r = 0; r < rows; r++) store(job, i + r, j, least(p->n - j, PLAIN_NR), sums[r]);
    }
  }
}

Status gemm_plain(Kern *k, const Problem *p) {
  Job job = {.k = k, .p = p, .inside = p->a.dtype == DT_F64 ? DT_F64 : DT_I64};
  job.tile = job.inside == DT_F64 ? SIMD_CALL(k->isa, gemm_plain_tile_f64) : SIMD_CALL(k->isa, gemm_plain_tile_i64);
  int64_t panels = pieces(p->n, PLAIN_NR), grain = pieces(most(1, WORK / most(1, p->n * p->k)), PLAIN_MR) * PLAIN_MR;
  TRY_NEW(job.packed, kern_scratch(k, (size_t)(panels * PLAIN_NR * p->k * 8)));
  TRY_NEW(job.room, kern_scratch(k, (size_t)(PLAIN_MR * p->k * 8) * (size_t)k->threads));
  for (job.z = 0; job.z < p->batch; job.z++) {
    if (job.z == 0 || p->b.batch) parallel_for(k->threads, panels, most(1, WORK / most(1, p->k)), pack_panels, &job);
    parallel_for(k->threads, p->m, grain, run_rows, &job);
  }
  return OK;
}
