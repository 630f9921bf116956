/* gemm_thin.c -- products with few rows: b is read once, where it is.
 *
 *   b contiguous along k (a weight [n,k]): dot products, four columns at a time
 *   b contiguous along n:                  sums of rows of b, a slice of columns at a time
 *
 * Bound by memory, so f16 and bf16 weights are read as they are: half the time of f32. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

enum {
  STRIP = 64,     /* columns of dot products at a time */
  SLICE = 4096,   /* floats of sums that stay in L1 */
  WORK = 1 << 17, /* multiplications worth a thread */
};

typedef struct {
  const Kern *k;
  const Problem *p;
  const GemmKernels *kernels;
  const float *a; /* (batch, m, k): f32 rows */
  int64_t lda, a_batch;
  bool dots;
  int64_t width, strips; /* columns of a strip, strips of a product */
  float *room;
  size_t room_bytes;
} Job;

static void scale_and_finish(const Job *job, int64_t z, int64_t j, int64_t cols, float *y, float *room) {
  const Problem *p = job->p;
  float alpha = (float)p->alpha;
  if (alpha != 1) {
    for (int64_t i = 0; i < p->m; i++) {
      for (int64_t q = 0; q < cols; q++) y[i * job->width + q] *= alpha;
    }
  }
  gemm_finish(job->k, p, z, 0, p->m, j, cols, y, job->width, room);
}

static void dot_strip(const Job *job, int64_t z, int64_t j0, int64_t cols, float *y) {
  const Problem *p = job->p;
  const float *a = job->a + z * job->a_batch;
  int64_t group = p->n < 4 ? 1 : 4, ldw = p->n < 4 ? 0 : p->b.col; /* fewer than four: each one four times */
  for (int64_t j = 0; j < cols; j += group) {
    int64_t at = least(j0 + j, p->n - group); /* the last group overlaps its neighbour */
    for (int64_t i = 0, rows; i < p->m; i += rows) {
      float four[3][4];
      rows = least(p->m - i, p->m - i == 4 ? 2 : 3);
      job->kernels->dot((int)rows, p->k, a + i * job->lda, job->lda, matrix_at(&p->b, z, 0, at), ldw, p->b.dtype,
                        four[0]);
      for (int64_t r = 0; r < rows; r++) {
        for (int64_t e = j0 + j - at; e < group; e++) y[(i + r) * STRIP + at + e - j0] = four[r][e];
      }
    }
  }
}

static void axpy_slice(const Job *job, int64_t z, int64_t j, int64_t cols, float *y) {
  const Problem *p = job->p;
  const float *a = job->a + z * job->a_batch;
  for (int64_t i = 0; i < p->m; i++) memset(y + i * job->width, 0, floats(cols));
  for (int64_t q = 0; q < p->k; q += GEMM_AXPY) { /* some rows of b serve every row of a */
    for (int64_t i = 0; i < p->m; i++) {
      job->kernels->axpy(cols, least(p->k - q, GEMM_AXPY), a + i * job->lda + q, matrix_at(&p->b, z, q, j),
                         p->b.row, p->b.dtype, y + i * job->width);
    }
  }
}

static void run_strips(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Problem *p = job->p;
  float *y = (float *)(void *)((char *)job->room + job->room_bytes * (size_t)worker);
  float *room = y + p->m * job->width;
  for (int64_t s = begin; s < end; s++) {
    int64_t z = s / job->strips, j = s % job->strips * job->width, cols = least(p->n - j, job->width);
    if (job->dots) dot_strip(job, z, j, cols, y);
    else axpy_slice(job, z, j, cols, y);
    scale_and_finish(job, z, j, cols, y, room);
  }
}

/* a as f32 with rows contiguous. */
static Status read_a(Kern *k, Job *job) {
  const Problem *p = job->p;
  if (p->a.dtype == DT_F32 && p->a.col == 1) {
    job->a = (const float *)(const void *)p->a.data;
    job->lda = p->a.row;
    job->a_batch = p->a.batch;
    return OK;
  }
  float *copy;
  TRY_NEW(copy, kern_scratch(k, floats(p->batch * p->m * p->k)));
  for (int64_t z = 0; z < p->batch; z++) {
    for (int64_t i = 0; i < p->m; i++) {
      int64_t run = p->a.col == 1 ? p->k : 1;
      for (int64_t q = 0; q < p->k; q += run) {
        SIMD_CALL(k->isa, convert_run)
        (copy + (z * p->m + i) * p->k + q, DT_F32, matrix_at(&p->a, z, i, q), p->a.dtype, run);
      }
    }
  }
  job->a = copy;
  job->lda = p->k;
  job->a_batch = p->m * p->k;
  return OK;
}

/* As wide as L1 allows: rows of b are read in long runs.  But every worker gets some. */
static int64_t slice_width(const Kern *k, const Problem *p) {
  int64_t share = pieces(pieces(p->n, k->threads), 16) * 16;
  return least(share, most(512, SLICE / p->m / 16 * 16));
}

Status gemm_thin(Kern *k, const Problem *p) {
  Job job = {.k = k, .p = p, .kernels = SIMD_CALL(k->isa, gemm_kernels)(), .dots = p->b.row == 1};
  job.width = job.dots ? STRIP : slice_width(k, p);
  job.strips = pieces(p->n, job.width);
  job.room_bytes = floats(p->m * job.width) + gemm_finish_bytes(job.width);
  int64_t grain = most(1, WORK / most(1, p->m * job.width * p->k));
  TRY(read_a(k, &job));
  TRY_NEW(job.room,
          kern_scratch(k, job.room_bytes * (size_t)parallel_workers(k->threads, p->batch * job.strips, grain)));
  parallel_for(k->threads, p->batch * job.strips, grain, run_strips, &job);
  return OK;
}
