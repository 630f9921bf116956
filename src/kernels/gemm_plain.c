/* gemm_plain.c -- products of f64 and of integers.
 *
 * Inside they are f64, int32 (all results of up to four bytes: wrapping leaves the low bits
 * right) or int64.  b is packed once per product as [n / NR][k][NR], rows of a MR at a time
 * by whoever needs them. */
#include "kernels/gemm_plain.h"

#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"

enum { WORK = 1 << 17 };

typedef struct {
  const Kern *k;
  const Problem *p;
  Dtype inside;
  int64_t width; /* bytes of an element inside */
  GemmPlainTile *tile;
  int64_t z;
  char *packed, *room;
} Job;

/* Elements inside. */
typedef union {
  double d[PLAIN_MR * PLAIN_NR];
  uint64_t l[PLAIN_MR * PLAIN_NR];
  uint32_t w[PLAIN_MR * PLAIN_NR];
} Sums;

/* Elements (i, j), (i + di, j + dj) ... of x as the inside dtype, `step` elements apart. */
static void gather(const Job *job, const Matrix *x, int64_t i, int64_t j, int64_t di, int64_t dj, int64_t n,
                   char *to, int64_t step) {
  if (di * x->row + dj * x->col == 1 && step == 1) {
    SIMD_CALL(job->k->isa, convert_run)(to, job->inside, matrix_at(x, job->z, i, j), x->dtype, n);
    return;
  }
  for (int64_t q = 0; q < n; q++) {
    SIMD_CALL(job->k->isa, convert_run)
    (to + q * step * job->width, job->inside, matrix_at(x, job->z, i + q * di, j + q * dj), x->dtype, 1);
  }
}

static void pack_panels(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  (void)worker;
  for (int64_t t = begin; t < end; t++) {
    int64_t j = t * PLAIN_NR, cols = least(p->n - j, PLAIN_NR), w = job->width;
    char *to = job->packed + t * PLAIN_NR * p->k * w;
    if (cols < PLAIN_NR) memset(to, 0, (size_t)(PLAIN_NR * p->k * w));
    if (p->b.col == 1) {
      for (int64_t q = 0; q < p->k; q++) gather(job, &p->b, q, j, 0, 1, cols, to + q * PLAIN_NR * w, 1);
    } else {
      for (int64_t c = 0; c < cols; c++) gather(job, &p->b, 0, j + c, 1, 0, p->k, to + c * w, PLAIN_NR);
    }
  }
}

/* Row r of the sums = alpha * itself + beta * add, for elements (i, j) .. (i, j+cols) of c. */
static void scale_and_add(const Job *job, int64_t i, int64_t j, int64_t cols, Sums *sums, int64_t r) {
  const Problem *p = job->p;
  uint64_t alpha = (uint64_t)f64_to_i64(p->alpha), beta = p->add.data ? (uint64_t)f64_to_i64(p->beta) : 0;
  double beta_d = p->add.data ? p->beta : 0;
  Sums add = {{0}};
  if (p->add.data) gather(job, &p->add, i, j, 0, 1, cols, (char *)&add, 1);
  for (int64_t q = 0, at = r * PLAIN_NR; q < cols; q++, at++) {
    if (job->inside == DT_F64) sums->d[at] = sums->d[at] * p->alpha + beta_d * add.d[q];
    else if (job->inside == DT_I64) sums->l[at] = sums->l[at] * alpha + beta * add.l[q];
    else sums->w[at] = sums->w[at] * (uint32_t)alpha + (uint32_t)beta * add.w[q];
  }
}

static void store(const Job *job, int64_t i, int64_t j, int64_t cols, Sums *sums, int64_t r) {
  const Problem *p = job->p;
  if (p->add.data || p->alpha != 1) scale_and_add(job, i, j, cols, sums, r);
  int64_t run = p->c.col == 1 ? cols : 1;
  for (int64_t q = 0; q < cols; q += run) {
    const char *from = (const char *)sums + (r * PLAIN_NR + q) * job->width;
    SIMD_CALL(job->k->isa, convert_run)(matrix_at(&p->c, job->z, i, j + q), p->c.dtype, from, job->inside, run);
  }
}

static void run_rows(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  int64_t w = job->width;
  char *a = job->room + (size_t)worker * (size_t)(PLAIN_MR * p->k * w);
  for (int64_t i = begin; i < end; i += PLAIN_MR) {
    int64_t rows = least(end - i, PLAIN_MR);
    for (int64_t r = 0; r < PLAIN_MR; r++)
      gather(job, &p->a, least(i + r, p->m - 1), 0, 0, 1, p->k, a + r * p->k * w, 1);
    for (int64_t j = 0; j < p->n; j += PLAIN_NR) {
      Sums sums;
      job->tile(p->k, a, job->packed + j * p->k * w, &sums);
      for (int64_t r = 0; r < rows; r++) store(job, i + r, j, least(p->n - j, PLAIN_NR), &sums, r);
    }
  }
}

Status gemm_plain(Kern *k, const Problem *p) {
  Job job = {.k = k,
             .p = p,
             .inside = p->a.dtype == DT_F64          ? DT_F64
                       : dtype_size(p->c.dtype) <= 4 ? DT_I32
                                                     : DT_I64};
  job.width = (int64_t)dtype_size(job.inside);
  job.tile = job.inside == DT_F64   ? SIMD_CALL(k->isa, gemm_plain_tile_f64)
             : job.inside == DT_I64 ? SIMD_CALL(k->isa, gemm_plain_tile_i64)
                                    : SIMD_CALL(k->isa, gemm_plain_tile_i32);
  int64_t panels = pieces(p->n, PLAIN_NR),
          grain = pieces(most(1, WORK / most(1, p->n * p->k)), PLAIN_MR) * PLAIN_MR;
  TRY_NEW(job.packed, kern_scratch(k, (size_t)(panels * PLAIN_NR * p->k * job.width) + PLAIN_SPARE));
  TRY_NEW(job.room, kern_scratch(k, (size_t)(PLAIN_MR * p->k * job.width) * (size_t)k->threads));
  for (job.z = 0; job.z < p->batch; job.z++) {
    if (job.z == 0 || p->b.batch)
      parallel_for(k->threads, panels, most(1, WORK / most(1, p->k)), pack_panels, &job);
    parallel_for(k->threads, p->m, grain, run_rows, &job);
  }
  return OK;
}
