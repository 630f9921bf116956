/* nll.c -- see nll.h.  One gather per place; sums in f64, in order. */
#include "kernels/nll.h"

#include "kernels/copy.h"
#include "kernels/softmax.h"

enum { GRAIN = 1 << 13 }; /* elements worth a thread */

static double load(Dtype d, const void *data, int64_t i) {
  switch (d) {
    case DT_F64: return ((const double *)data)[i];
    case DT_F32: return (double)((const float *)data)[i];
    case DT_F16: return (double)f16_to_f32(((const uint16_t *)data)[i]);
    default: return (double)bf16_to_f32(((const uint16_t *)data)[i]);
  }
}

static void store(Dtype d, void *data, int64_t i, double v) {
  switch (d) {
    case DT_F64: ((double *)data)[i] = v; break;
    case DT_F32: ((float *)data)[i] = (float)v; break;
    case DT_F16: ((uint16_t *)data)[i] = f32_to_f16((float)v); break;
    default: ((uint16_t *)data)[i] = f32_to_bf16((float)v);
  }
}

/* A place: its target (-1: ignored), where its class stands in x, where it stands in a
 * tensor of places. */
typedef struct {
  int64_t target, x, place;
} Pick;

static Status pick(const Nll *a, View places, int64_t n, int64_t h, int64_t w, Pick *p) {
  const int64_t *ts = a->target.stride, *xs = a->x.stride;
  int64_t at = n * ts[0] + h * ts[1] + w * ts[2];
  int64_t t = a->target.dtype == DT_I64 ? ((const int64_t *)a->target.data)[at]
                                        : ((const uint8_t *)a->target.data)[at];
  bool ignored = t == a->ignore;
  if (!ignored && (t < 0 || t >= a->x.size[1])) {
    return fail(ERR_FAIL, "nll_loss: target %lld is not one of %lld classes", (long long)t,
                (long long)a->x.size[1]);
  }
  p->target = ignored ? -1 : t;
  p->x = n * xs[0] + t * xs[1] + h * xs[2] + w * xs[3];
  p->place = places.ndim == 3 ? n * places.stride[0] + h * places.stride[1] + w * places.stride[2] : 0;
  return OK;
}

#define FOR_PLACES(v)                         \
  for (int64_t n = 0; n < (v).size[0]; n++)   \
    for (int64_t h = 0; h < (v).size[1]; h++) \
      for (int64_t w = 0; w < (v).size[2]; w++)

Status kernel_nll(Kern *k, const Nll *a, View out, View total) {
  (void)k;
  double sum = 0, weights = 0;
  FOR_PLACES(a->target) {
    Pick p = {0};
    TRY(pick(a, out, n, h, w, &p));
    double weight = p.target < 0 ? 0 : a->weight ? a->weight[p.target] : 1;
    double loss = p.target < 0 ? 0 : -weight * load(a->x.dtype, a->x.data, p.x);
    if (a->reduction == REDUCTION_NONE) store(out.dtype, out.data, p.place, loss);
    sum += loss;
    weights += weight;
  }
  if (a->reduction == REDUCTION_NONE) weights = 0;
  else store(out.dtype, out.data, 0, a->reduction == REDUCTION_MEAN ? sum / weights : sum);
  store(total.dtype, total.data, 0, weights);
  return OK;
}

/* The gradient of the score of a place's target, as kernel_nll_backward() stores it. */
static double picked_gradient(const Nll *a, View g, const Pick *p, double total) {
  double weight = a->weight ? a->weight[p->target] : 1, from = load(g.dtype, g.data, p->place);
  return -weight * (a->reduction == REDUCTION_MEAN ? from / total : from);
}

Status kernel_nll_backward(Kern *k, const Nll *a, View g, double total) {
  const double zero = 0;
  kernel_fill(k, a->x, &zero);
  FOR_PLACES(a->target) {
    Pick p = {0};
    TRY(pick(a, g, n, h, w, &p));
    if (p.target < 0) continue;
    store(a->x.dtype, a->x.data, p.x, picked_gradient(a, g, &p, total));
  }
  return OK;
}

typedef struct {
  const Nll *a;
  View y, g;
  double total;
  const SoftmaxLoops *loops;
} PickedRows;

static void work_picked(void *arg, int64_t begin, int64_t end, int worker) {
  const PickedRows *r = arg;
  const int64_t classes = r->a->x.size[1], row = classes * (int64_t)dtype_size(r->a->x.dtype);
  (void)worker;
  for (int64_t n = begin; n < end; n++) {
    Pick p = {0};
    status_free(pick(r->a, r->g, n, 0, 0, &p)); /* looked at before */
    double g = p.target < 0 ? 0 : picked_gradient(r->a, r->g, &p, r->total);
    r->loops->grad_pick((char *)r->a->x.data + n * row, (const char *)r->y.data + n * row, classes, p.target, g);
  }
}

Status kernel_nll_log_softmax_backward(Kern *k, const Nll *a, View y, View g, double total) {
  PickedRows r = {a, y, g, total, SIMD_CALL(k->isa, softmax_loops)(a->x.dtype)};
  FOR_PLACES(a->target) {
    Pick p;
    TRY(pick(a, g, n, h, w, &p));
  }
  parallel_for(k->threads, a->x.size[0], GRAIN / (a->x.size[1] + 1) + 1, work_picked, &r);
  return OK;
}
