/* pool.c -- gradients of poolings.
 *
 * Of the pooled tensor the gradients need the size only: they are given zeros that take no memory.  Poolings of
 * one dimension are those of two with one row. */
#include <string.h>

#include "ops/vjp.h"

/* A tensor of t's size to tell it, one zero everywhere; with one row if `row`. */
static Tensor *of_size(Vjp *v, const Tensor *t, bool row) {
  int64_t size[MAX_DIMS];
  int n = t->ndim;
  memcpy(size, t->size, (size_t)n * sizeof *size);
  if (row) size[n] = size[n - 1], size[n - 1] = 1, n++;
  return vjp_size(v, t->dtype, n, size);
}

static Tensor *one_row(Vjp *v, Tensor *t) { return F_OP(&v->f, "aten.unsqueeze.default", F_T(t), val_int(-2)); }
static Tensor *no_row(Vjp *v, Tensor *t) { return F_OP(&v->f, "aten.squeeze.dim", F_T(t), val_int(-2)); }

/* Numbers of one dimension as those of two: `first` for the row. */
#define TWO(list, first) val_ints((const int64_t[]){first, (list).ints[0]}, 2)

/* An empty stride is the size of the window. */
static Value stride_of(const Vjp *v, int stride, int kernel) {
  return vjp_value(v, stride).n ? vjp_value(v, stride) : vjp_value(v, kernel);
}

/* max_poolNd_with_indices(self, kernel_size, stride, padding, dilation, ceil_mode) -> (output, indices) */
static void max_pool(Vjp *v, const char *name) {
  const Value *a = v->forward->arg;
  Tensor *x = of_size(v, vjp_arg(v, 0), false);
  if (!v->cotangent[0]) return;
  vjp_give(
      v, 0,
      F_OP(&v->f, name, F_T(v->cotangent[0]), F_T(x), a[1], stride_of(v, 2, 1), a[3], a[4], a[5], F_T(v->out[1])));
}

static void vjp_max_pool1d(Vjp *v) {
  const Value *a = v->forward->arg;
  Tensor *g = v->cotangent[0];
  if (!g) return;
  Tensor *x = of_size(v, vjp_arg(v, 0), true), *at = one_row(v, v->out[1]);
  Tensor *to = F_OP(&v->f, "aten.max_pool2d_with_indices_backward.default", F_T(one_row(v, g)), F_T(x),
                    TWO(a[1], 1), TWO(stride_of(v, 2, 1), 1), TWO(a[3], 0), TWO(a[4], 1), a[5], F_T(at));
  vjp_give(v, 0, no_row(v, to));
}

static void vjp_max_pool2d(Vjp *v) { max_pool(v, "aten.max_pool2d_with_indices_backward.default"); }
static void vjp_max_pool3d(Vjp *v) { max_pool(v, "aten.max_pool3d_with_indices_backward.default"); }

/* The form that also says where the largest are. */
static Status max_pool_training(Call *c) {
  const char *name = strstr(c->op->schema.name, "1d")   ? "aten.max_pool1d_with_indices.default"
                     : strstr(c->op->schema.name, "2d") ? "aten.max_pool2d_with_indices.default"
                                                        : "aten.max_pool3d_with_indices.default";
  Formula f = {c, OK};
  return formula_give(&f, F_OP(&f, name, c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4], c->arg[5]));
}

/* avg_poolNd(self, kernel_size, stride, padding, ceil_mode, count_include_pad[, divisor_override]) */
static void avg_pool(Vjp *v, const char *name) {
  const Value *a = v->forward->arg;
  Tensor *x = of_size(v, vjp_arg(v, 0), false);
  vjp_give(v, 0,
           F_OP(&v->f, name, F_T(vjp_cotangent(v)), F_T(x), a[1], stride_of(v, 2, 1), a[3], a[4], a[5], a[6]));
}

static void vjp_avg_pool1d(Vjp *v) {
  const Value *a = v->forward->arg;
  Tensor *x = of_size(v, vjp_arg(v, 0), true), *g = one_row(v, vjp_cotangent(v));
  Tensor *to = F_OP(&v->f, "aten.avg_pool2d_backward.default", F_T(g), F_T(x), TWO(a[1], 1),
                    TWO(stride_of(v, 2, 1), 1), TWO(a[3], 0), a[4], a[5], val_none());
  vjp_give(v, 0, no_row(v, to));
}

static void vjp_avg_pool2d(Vjp *v) { avg_pool(v, "aten.avg_pool2d_backward.default"); }
static void vjp_avg_pool3d(Vjp *v) { avg_pool(v, "aten.avg_pool3d_backward.default"); }

/* adaptive_avg_poolNd(self, output_size) */
static void adaptive_avg(Vjp *v, const char *name, bool row) {
  Tensor *x = of_size(v, vjp_arg(v, 0), row), *g = vjp_cotangent(v);
  Tensor *to = F_OP(&v->f, name, F_T(row ? one_row(v, g) : g), F_T(x));
  vjp_give(v, 0, row ? no_row(v, to) : to);
}

static void vjp_adaptive_avg1d(Vjp *v) { adaptive_avg(v, "aten._adaptive_avg_pool2d_backward.default", true); }
static void vjp_adaptive_avg2d(Vjp *v) { adaptive_avg(v, "aten._adaptive_avg_pool2d_backward.default", false); }
static void vjp_adaptive_avg3d(Vjp *v) { adaptive_avg(v, "aten._adaptive_avg_pool3d_backward.default", false); }

/* Poolings that give where their results are from: adaptive and fractional. */
static void by_indices(Vjp *v, const char *name, bool row) {
  Tensor *g = v->cotangent[0], *at = v->out[1];
  if (!g) return;
  Tensor *x = of_size(v, vjp_arg(v, 0), row);
  Tensor *to = F_OP(&v->f, name, F_T(row ? one_row(v, g) : g), F_T(x), F_T(row ? one_row(v, at) : at));
  vjp_give(v, 0, row ? no_row(v, to) : to);
}

static void vjp_adaptive_max1d(Vjp *v) { by_indices(v, "aten.adaptive_max_pool2d_backward.default", true); }
static void vjp_adaptive_max2d(Vjp *v) { by_indices(v, "aten.adaptive_max_pool2d_backward.default", false); }
static void vjp_adaptive_max3d(Vjp *v) { by_indices(v, "aten.adaptive_max_pool3d_backward.default", false); }

/* The elements of t at `at`, which numbers its last nd dimensions. */
static Tensor *pick(Vjp *v, Tensor *t, Tensor *at, int nd) {
  int64_t size[MAX_DIMS], flat[MAX_DIMS];
  if (!t || !at) return NULL;
  int n = at->ndim, lead = n - nd;
  memcpy(size, t->size, (size_t)n * sizeof *size);
  memcpy(flat, at->size, (size_t)n * sizeof *flat);
  for (int d = lead + 1; d < n; d++) size[lead] *= t->size[d], flat[lead] *= at->size[d];
  Tensor *y = F_OP(&v->f, "aten.gather.default", F_T(f_view(&v->f, t, size, lead + 1)), val_int(lead),
                   F_T(f_view(&v->f, at, flat, lead + 1)));
  return f_view(&v->f, y, at->size, n);
}

/* max_unpoolNd(self, indices, output_size, ...) */
static void vjp_unpool2d(Vjp *v) { vjp_give(v, 0, pick(v, vjp_cotangent(v), vjp_arg(v, 1), 2)); }
static void vjp_unpool3d(Vjp *v) { vjp_give(v, 0, pick(v, vjp_cotangent(v), vjp_arg(v, 1), 3)); }

/* ---- gradients of gradients: of grad_output ------------------------------------------------------ */

static void vjp_max_grad(Vjp *v) {
  const Schema *s = &v->forward->op->schema;
  vjp_give(v, 0, pick(v, vjp_cotangent(v), vjp_arg(v, schema_find(s, "indices")), strstr(s->name, "3d") ? 3 : 2));
}

/* avg_poolNd_backward(grad_output, self, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor) */
static void vjp_avg_grad(Vjp *v) {
  const Value *a = v->forward->arg;
  const char *name = strstr(v->forward->op->schema.name, "3d") ? "aten.avg_pool3d.default"
                                                               : "aten.avg_pool2d.default";
  vjp_give(v, 0, F_OP(&v->f, name, F_T(vjp_cotangent(v)), a[2], a[3], a[4], a[5], a[6], a[7]));
}

static void vjp_adaptive_grad(Vjp *v) {
  const Tensor *dy = vjp_arg(v, 0);
  bool deep = strstr(v->forward->op->schema.name, "3d") != NULL;
  int nd = deep ? 3 : 2;
  vjp_give(v, 0,
           F_OP(&v->f, deep ? "aten._adaptive_avg_pool3d.default" : "aten._adaptive_avg_pool2d.default",
                F_T(vjp_cotangent(v)), val_ints(dy->size + dy->ndim - nd, nd)));
}

const GradDef grads_pool[] = {
    TRAINS_AS("max_pool1d.default max_pool2d.default max_pool3d.default", max_pool_training),
    GRAD("max_pool1d_with_indices.default", vjp_max_pool1d, "result1"),
    GRAD("max_pool2d_with_indices.default", vjp_max_pool2d, "result1"),
    GRAD("max_pool3d_with_indices.default", vjp_max_pool3d, "result1"),
    GRAD("avg_pool1d.default", vjp_avg_pool1d, NULL),
    GRAD("avg_pool2d.default", vjp_avg_pool2d, NULL),
    GRAD("avg_pool3d.default", vjp_avg_pool3d, NULL),
    GRAD("adaptive_avg_pool1d.default", vjp_adaptive_avg1d, NULL),
    GRAD("adaptive_avg_pool2d.default _adaptive_avg_pool2d.default", vjp_adaptive_avg2d, NULL),
    GRAD("adaptive_avg_pool3d.default _adaptive_avg_pool3d.default", vjp_adaptive_avg3d, NULL),
    GRAD("adaptive_max_pool1d.default", vjp_adaptive_max1d, "result1"),
    GRAD("adaptive_max_pool2d.default fractional_max_pool2d.default", vjp_adaptive_max2d, "result1"),
    GRAD("adaptive_max_pool3d.default", vjp_adaptive_max3d, "result1"),
    GRAD("max_unpool2d.default", vjp_unpool2d, "indices"),
    GRAD("max_unpool3d.default", vjp_unpool3d, "indices"),
    GRAD("max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default "
         "adaptive_max_pool2d_backward.default adaptive_max_pool3d_backward.default",
         vjp_max_grad, "indices"),
    GRAD("avg_pool2d_backward.default avg_pool3d_backward.default", vjp_avg_grad, NULL),
    GRAD("_adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d_backward.default", vjp_adaptive_grad, NULL),
    {0},
};
