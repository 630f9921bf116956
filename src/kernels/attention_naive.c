/* attention_naive.c -- the specification of attention and of its gradients: one query at a time,
 * all in f64 (sums of gradients in the dtype of the gradient). */
#include <math.h>

#include "kernels/attention_problem.h"
#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/philox.h"

typedef struct {
  const Attention *a;
  AttentionSize z;
  double *room; /* per worker: s scores */
} Job;

static double element(View v, int64_t b, int64_t h, int64_t i, int64_t j) {
  int64_t index[4] = {b, h, i, j}, at = 0;
  double x;
  for (int d = 0; d < v.ndim; d++) at += v.size[d] == 1 ? 0 : index[4 - v.ndim + d] * v.stride[d];
  SIMD_CALL(ISA_BASE, convert_run)
  (&x, DT_F64, (const char *)v.data + at * (int64_t)dtype_size(v.dtype), v.dtype, 1);
  return x;
}

static double score(const Job *job, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Attention *a = job->a;
  double s = 0;
  for (int64_t d = 0; d < job->z.d; d++)
    s += element(a->q, b, h, i, d) * element(a->k, b, h / job->z.per_group, j, d);
  s *= a->scale;
  if (!a->mask) return s;
  double m = element(*a->mask, b, h, i, j);
  return a->mask->dtype == DT_BOOL ? (m != 0 ? s : -INFINITY) : s + m;
}

/* What dropout makes of weight (b, h, i, j). */
static double kept(const Job *job, int64_t b, int64_t h, int64_t i, int64_t j) {
  const Attention *a = job->a;
  if (a->dropout <= 0) return 1;
  uint64_t at = attention_number(a, b, h, i) + (uint64_t)j;
  uint32_t word = philox_block(a->seed, a->offset + at / 4).word[at % 4];
  return word < fmin(a->dropout * 0x1p32, 4294967295.0) || a->dropout >= 1 ? 0 : 1 / (1 - a->dropout);
}

static void run_queries(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *job = arg;
  const Attention *a = job->a;
  const AttentionSize *z = &job->z;
  double *s = job->room + worker * z->s;
  for (int64_t row = begin; row < end; row++) {
    int64_t i = row % z->t, h = row / z->t % z->heads, b = row / z->t / z->heads,
            n = attention_visible(a, i, 0, z->s);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) max = fmax(max, s[j] = score(job, b, h, i, j));
    for (int64_t j = 0; j < n; j++) sum += s[j] = max == -INFINITY && s[j] == max ? 0 : exp(s[j] - max);
    for (int64_t j = 0; j < n; j++) s[j] *= kept(job, b, h, i, j);
    for (int64_t e = 0; e < z->e; e++) {
      double o = 0;
      for (int64_t j = 0; j < n; j++) o += s[j] * element(a->v, b, h / z->per_group, j, e);
      o = sum == 0 ? 0 : o / sum;
      int64_t at = b * a->out.stride[0] + h * a->out.stride[1] + i * a->out.stride[2] + e * a->out.stride[3];
      SIMD_CALL(ISA_BASE, convert_run)
      ((char *)a->out.data + at * (int64_t)dtype_size(a->out.dtype), a->out.dtype, &o, DT_F64, 1);
    }
    if (!a->logsumexp) continue;
    const View *l = a->logsumexp;
    double lse = sum == 0 ? 0 : max + log(sum);
    int64_t at = b * l->stride[0] + h * l->stride[1] + i * l->stride[2];
    SIMD_CALL(ISA_BASE, convert_run)
    ((char *)l->data + at * (int64_t)dtype_size(l->dtype), l->dtype, &lse, DT_F64, 1);
  }
}

Status attention_naive(Kern *k, const Attention *a) {
  Job job = {.a = a, .z = attention_size(a)};
  int64_t rows = job.z.batch * job.z.heads * job.z.t;
  size_t mark = kern_mark(k);
  TRY_NEW(job.room, kern_scratch(k, (size_t)(job.z.s * k->threads + 1) * sizeof(double)));
  parallel_for(k->threads, rows, 4, run_queries, &job);
  kern_release(k, mark);
  return OK;
}

/* ---- gradients ---------------------------------------------------------------------------- */

static void add_to(View v, int64_t b, int64_t h, int64_t i, int64_t j, double x) {
  int64_t at = b * v.stride[0] + h * v.stride[1] + i * v.stride[2] + j * v.stride[3];
  char *to = (char *)v.data + at * (int64_t)dtype_size(v.dtype);
  double old;
  SIMD_CALL(ISA_BASE, convert_run)(&old, DT_F64, to, v.dtype, 1);
  x += old;
  SIMD_CALL(ISA_BASE, convert_run)(to, v.dtype, &x, DT_F64, 1);
}

/* A logsumexp that is far from zero has no room for the digits that weights need: instead the largest score, and
 * the sum of the exponentials below it. */
static void sum_again(const Job *job, int64_t b, int64_t h, int64_t i, double *largest, double *sum) {
  const int64_t n = attention_visible(job->a, i, 0, job->z.s);
  *largest = -INFINITY;
  *sum = 0;
  for (int64_t j = 0; j < n; j++) *largest = fmax(*largest, score(job, b, h, i, j));
  for (int64_t j = 0; j < n; j++) *sum += exp(score(job, b, h, i, j) - *largest);
}

/* grad_mask NULL: the gradients of q, k and v. */
static void grad_query(const Job *job, const AttentionGrad *g, const View *grad_mask, int64_t b, int64_t h,
                       int64_t i) {
  const Attention *a = job->a;
  double delta = 0, lse, sum = 1;
  const View *l = a->logsumexp;
  int64_t at = b * l->stride[0] + h * l->stride[1] + i * l->stride[2], group = h / job->z.per_group;
  SIMD_CALL(ISA_BASE, convert_run)
  (&lse, DT_F64, (const char *)l->data + at * (int64_t)dtype_size(l->dtype), l->dtype, 1);
  if (fabs(lse) > 1e3) sum_again(job, b, h, i, &lse, &sum);
  for (int64_t e = 0; e < job->z.e; e++) delta += element(g->grad_out, b, h, i, e) * element(a->out, b, h, i, e);
  for (int64_t j = 0; j < attention_visible(a, i, 0, job->z.s); j++) {
    double s = score(job, b, h, i, j), p = s == -INFINITY ? 0 : exp(s - lse) / sum, dp = 0;
    for (int64_t e = 0; e < job->z.e; e++) dp += element(g->grad_out, b, h, i, e) * element(a->v, b, group, j, e);
    double factor = kept(job, b, h, i, j), ds = p * (dp * factor - delta);
    if (grad_mask) {
      const int64_t *size = grad_mask->size;
      add_to(*grad_mask, size[0] == 1 ? 0 : b, size[1] == 1 ? 0 : h, size[2] == 1 ? 0 : i, size[3] == 1 ? 0 : j,
             ds);
      continue;
    }
    for (int64_t e = 0; e < job->z.e; e++)
      add_to(g->grad_v, b, group, j, e, p * factor * element(g->grad_out, b, h, i, e));
    for (int64_t d = 0; d < job->z.d; d++) {
      add_to(g->grad_q, b, h, i, d, a->scale * ds * element(a->k, b, group, j, d));
      add_to(g->grad_k, b, group, j, d, a->scale * ds * element(a->q, b, h, i, d));
    }
  }
}

static void grad_queries(const AttentionGrad *g, const View *grad_mask) {
  Job job = {.a = &g->forward, .z = attention_size(&g->forward)};
  for (int64_t row = 0; row < job.z.batch * job.z.heads * job.z.t; row++) {
    grad_query(&job, g, grad_mask, row / job.z.t / job.z.heads, row / job.z.t % job.z.heads, row % job.z.t);
  }
}

Status attention_grad_naive(Kern *k, const AttentionGrad *g) {
  const uint64_t zero = 0;
  kernel_fill(k, g->grad_q, &zero);
  kernel_fill(k, g->grad_k, &zero);
  kernel_fill(k, g->grad_v, &zero);
  grad_queries(g, NULL);
  return OK;
}

Status attention_grad_mask_naive(Kern *k, const AttentionGrad *g, View grad_mask) {
  const uint64_t zero = 0;
  kernel_fill(k, grad_mask, &zero);
  grad_queries(g, &grad_mask);
  return OK;
}
