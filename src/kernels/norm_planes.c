/* norm_planes.c -- gradients of batch norm and group norm; see norm.h.
 *
 * Planes are read twice: for their sums, and for the result.  What is not stored as f32 or f64 goes through a
 * worker's buffer.
 */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/norm.h"

enum { GRAIN = 1 << 13 }; /* elements worth a thread */

typedef struct {
  NormPlanesGrad a;
  Isa isa;
  Dtype as;
  const NormLoops *loops;
  char *buffer;      /* [workers][2][inner], NULL: planes are used where they lie */
  double (*sums)[2]; /* of planes: g and g h */
  double (*set)[2];  /* of planes that share statistics: means of g w and g w h */
} Job;

static void *at(const void *data, Dtype d, int64_t i) {
  return (char *)(uintptr_t)data + i * (int64_t)dtype_size(d);
}

/* Which mean and rstd plane p has. */
static int64_t set_of(const NormPlanesGrad *a, int64_t p) {
  if (a->groups == 0) return p % a->channels;
  return p / (a->channels / a->groups);
}

/* Plane p of g and x, as the loops want them. */
static void load(const Job *j, int64_t p, int worker, const void **g, const void **x) {
  const NormPlanesGrad *a = &j->a;
  *g = at(a->g, a->dtype, p * a->inner);
  *x = at(a->x, a->dtype, p * a->inner);
  if (!j->buffer) return;
  void *to[2] = {at(j->buffer, j->as, 2 * worker * a->inner), at(j->buffer, j->as, (2 * worker + 1) * a->inner)};
  SIMD_CALL(j->isa, convert_run)(to[0], j->as, *g, a->dtype, a->inner);
  SIMD_CALL(j->isa, convert_run)(to[1], j->as, *x, a->dtype, a->inner);
  *g = to[0], *x = to[1];
}

static void sum_planes(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  for (int64_t p = begin; p < end; p++) {
    int64_t s = set_of(&j->a, p);
    const void *g, *x;
    load(j, p, worker, &g, &x);
    j->loops->grad_sums(g, x, NULL, j->a.inner, j->a.mean[s], j->a.rstd[s], j->sums[p]);
  }
}

static void finish_planes(void *arg, int64_t begin, int64_t end, int worker) {
  const Job *j = arg;
  const NormPlanesGrad *a = &j->a;
  for (int64_t p = begin; p < end; p++) {
    int64_t s = set_of(a, p);
    const double weight = a->weight ? a->weight[p % a->channels] : 1, rstd = a->rstd[s];
    const void *g, *x;
    void *gx = at(a->gx, a->dtype, p * a->inner);
    load(j, p, worker, &g, &x);
    void *to = j->buffer ? (void *)(uintptr_t)x : gx;
    j->loops->grad_plane(to, g, x, a->inner, a->mean[s], rstd * weight, rstd * rstd * j->set[s][1],
                         rstd * j->set[s][0]);
    if (j->buffer) SIMD_CALL(j->isa, convert_run)(gx, a->dtype, to, j->as, a->inner);
  }
}

/* Sums of channels, and means of what shares statistics. */
static void add_up(const Job *j, int64_t planes, int64_t sets) {
  const NormPlanesGrad *a = &j->a;
  const double count = (double)(planes / sets * a->inner);
  memset(a->gweight, 0, (size_t)a->channels * sizeof *a->gweight);
  memset(a->gbias, 0, (size_t)a->channels * sizeof *a->gbias);
  memset(j->set, 0, (size_t)sets * sizeof *j->set);
  for (int64_t p = 0; p < planes; p++) {
    int64_t c = p % a->channels, s = set_of(a, p);
    const double weight = a->weight ? a->weight[c] : 1, *sum = j->sums[p];
    a->gbias[c] += sum[0];
    a->gweight[c] += sum[1];
    for (int i = 0; i < 2 && !a->given; i++) j->set[s][i] += weight * sum[i] / count;
  }
}

Status kernel_norm_planes_backward(Kern *k, const NormPlanesGrad *a) {
  Dtype as = a->dtype == DT_F64 ? DT_F64 : DT_F32;
  Job j = {.a = *a, .isa = k->isa, .as = as, .loops = SIMD_CALL(k->isa, norm_loops)(as)};
  int64_t planes = a->batch * a->channels, sets = a->groups ? a->batch * a->groups : a->channels;
  int64_t grain = GRAIN / (a->inner + 1) + 1;
  size_t mark = kern_mark(k);
  if (a->channels == 0) return OK;
  TRY_NEW(j.sums, kern_scratch(k, (size_t)(planes + 1) * sizeof *j.sums));
  TRY_NEW(j.set, kern_scratch(k, (size_t)(sets + 1) * sizeof *j.set));
  if (a->dtype != as) {
    size_t rows = 2 * (size_t)parallel_workers(k->threads, planes, grain);
    TRY_NEW(j.buffer, kern_scratch(k, rows * (size_t)(a->inner + 1) * dtype_size(as)));
  }
  if (planes) parallel_for(k->threads, planes, grain, sum_planes, &j);
  add_up(&j, planes, sets ? sets : 1);
  if (a->gx && planes && a->inner) parallel_for(k->threads, planes, grain, finish_planes, &j);
  kern_release(k, mark);
  return OK;
}
