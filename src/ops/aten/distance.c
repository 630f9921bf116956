/* distance.c -- distances between rows and between tensors, cosine similarity, whether elements are close. */
#include "kernels/distance.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/geometry.h"

/* ---- cdist: x1 (..., P, M) and x2 (..., R, M) give (..., P, R) ---------------------------- */

/* The rows are arguments `first` and the next; then comes p. */
static Status cdist_sizes(const Call *c, int first, int *ndim, int64_t *size) {
  const Tensor *a = in_tensor(c, first), *b = in_tensor(c, first + 1);
  double p = in_float(c, first + 2);
  char x[128], y[128];
  bool fits = a->ndim >= 2 && b->ndim >= 2 && a->size[a->ndim - 1] == b->size[b->ndim - 1] &&
              a->dtype == b->dtype && (a->dtype == DT_F32 || a->dtype == DT_F64) && p >= 0;
  *ndim = a->ndim > b->ndim ? a->ndim : b->ndim;
  for (int d = *ndim - 3, i = a->ndim - 3, j = b->ndim - 3; fits && d >= 0; d--, i--, j--) {
    int64_t m = i >= 0 ? a->size[i] : 1, n = j >= 0 ? b->size[j] : 1;
    size[d] = m == 1 ? n : m;
    fits = m == n || m == 1 || n == 1;
  }
  if (!fits) {
    return op_fail(c, "%s and %s in the %g-norm: two sets of rows of the same length, f32 or f64, are needed",
                   tensor_describe(a, x, sizeof x), tensor_describe(b, y, sizeof y), p);
  }
  size[*ndim - 2] = a->size[a->ndim - 2];
  size[*ndim - 1] = b->size[b->ndim - 2];
  return OK;
}

static Status cdist_infer(Call *c) {
  int64_t size[MAX_DIMS];
  int n;
  TRY(cdist_sizes(c, 0, &n, size));
  return out_new(c, in_tensor(c, 0)->dtype, n, size);
}

/* Offset of batch number i (counted over the result's batch dimensions) in t. */
static int64_t batch_offset(const Tensor *t, int64_t i, int ndim, const int64_t *size) {
  int64_t at = 0, per = t->size[t->ndim - 1] * t->size[t->ndim - 2];
  for (int d = ndim - 3, own = t->ndim - 3; d >= 0; d--, own--) {
    int64_t index = i % size[d];
    i /= size[d];
    if (own < 0) break;
    at += (t->size[own] == 1 ? 0 : index) * per;
    per *= t->size[own];
  }
  return at;
}

static Status cdist_run(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1);
  int64_t size[MAX_DIMS], batches = 1;
  int n;
  Dense x, y;
  size_t mark = kern_mark(k), bytes = dtype_size(a->dtype);
  TRY(cdist_sizes(c, 0, &n, size));
  TRY(dense_view(k, a, &x));
  TRY(dense_view(k, b, &y));
  for (int d = 0; d < n - 2; d++) batches *= size[d];
  int64_t rows = size[n - 2], columns = size[n - 1], length = a->size[a->ndim - 1];
  char *out = out_view_of(c, 0).data;
  for (int64_t i = 0; i < batches; i++) {
    kernel_distances(k, out + (size_t)(i * rows * columns) * bytes,
                     (char *)x.view.data + (size_t)batch_offset(a, i, n, size) * bytes,
                     (char *)y.view.data + (size_t)batch_offset(b, i, n, size) * bytes, a->dtype, rows, columns,
                     length, in_float(c, 2));
  }
  kern_release(k, mark);
  return OK;
}

/* _cdist_backward(grad, x1, x2, p, cdist): the gradient of x1, its batch dimensions those of the distances. */
static Status cdist_grad_infer(Call *c) {
  const Tensor *g = in_tensor(c, 0), *a = in_tensor(c, 1), *dist = in_tensor(c, 4);
  int64_t size[MAX_DIMS];
  int n;
  TRY(cdist_sizes(c, 1, &n, size));
  bool fits = g->ndim == n && tensor_same_size(g, dist) && g->dtype == a->dtype && dist->dtype == a->dtype;
  for (int d = 0; fits && d < n; d++) fits = g->size[d] == size[d];
  if (!fits) return op_fail(c, "the gradient is not of the distances' size and dtype");
  size[n - 1] = a->size[a->ndim - 1];
  return out_new(c, a->dtype, n, size);
}

static Status cdist_grad_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *g = in_tensor(c, 0), *a = in_tensor(c, 1), *b = in_tensor(c, 2);
  int64_t batches = 1, n = g->ndim, rows = g->size[n - 2], columns = g->size[n - 1], length = a->size[a->ndim - 1];
  size_t bytes = dtype_size(a->dtype);
  Dense x, y, gs, dist;
  TRY(dense_view(k, a, &x));
  TRY(dense_view(k, b, &y));
  TRY(dense_view(k, g, &gs));
  TRY(dense_view(k, in_tensor(c, 4), &dist));
  for (int d = 0; d < n - 2; d++) batches *= g->size[d];
  char *out = out_view_of(c, 0).data;
  for (int64_t i = 0; i < batches; i++) {
    size_t at = (size_t)(i * rows * columns) * bytes;
    kernel_distances_grad(k, out + (size_t)(i * rows * length) * bytes,
                          (char *)x.view.data + (size_t)batch_offset(a, i, (int)n, g->size) * bytes,
                          (char *)y.view.data + (size_t)batch_offset(b, i, (int)n, g->size) * bytes,
                          (char *)gs.view.data + at, (char *)dist.view.data + at, a->dtype, rows, columns, length,
                          in_float(c, 3));
  }
  return OK;
}

static Status cdist_grad_run(Call *c) { return with_scratch(c, cdist_grad_body); }

/* ---- pdist: (N, M) gives one distance per pair ------------------------------------------- */

static Status pdist_infer(Call *c) {
  const Tensor *x = in_tensor(c, 0);
  char text[128];
  if (x->ndim != 2 || (x->dtype != DT_F32 && x->dtype != DT_F64) || in_float(c, 1) < 0) {
    return op_fail(c, "%s is not a matrix of f32 or f64", tensor_describe(x, text, sizeof text));
  }
  int64_t pairs = x->size[0] * (x->size[0] - 1) / 2;
  return out_new(c, x->dtype, 1, &pairs);
}

static Status pdist_run(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *x = in_tensor(c, 0);
  Dense rows;
  size_t mark = kern_mark(k);
  TRY(dense_view(k, x, &rows));
  kernel_pair_distances(k, out_view_of(c, 0).data, rows.view.data, x->dtype, x->size[0], x->size[1],
                        in_float(c, 1));
  kern_release(k, mark);
  return OK;
}

/* _pdist_backward(grad, self, p, pdist) */
static Status pdist_grad_infer(Call *c) {
  const Tensor *g = in_tensor(c, 0), *x = in_tensor(c, 1), *dist = in_tensor(c, 3);
  char text[128];
  if (x->ndim != 2 || (x->dtype != DT_F32 && x->dtype != DT_F64) || in_float(c, 2) < 0 || g->dtype != x->dtype ||
      dist->dtype != x->dtype || g->ndim != 1 || !tensor_same_size(g, dist) ||
      g->size[0] != x->size[0] * (x->size[0] - 1) / 2) {
    return op_fail(c, "%s is not a matrix of f32 or f64 with one distance per pair of rows",
                   tensor_describe(x, text, sizeof text));
  }
  return out_new(c, x->dtype, 2, x->size);
}

static Status pdist_grad_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *x = in_tensor(c, 1);
  Dense rows, g, dist;
  TRY(dense_view(k, x, &rows));
  TRY(dense_view(k, in_tensor(c, 0), &g));
  TRY(dense_view(k, in_tensor(c, 3), &dist));
  kernel_pair_distances_grad(k, out_view_of(c, 0).data, rows.view.data, g.view.data, dist.view.data, x->dtype,
                             x->size[0], x->size[1], in_float(c, 2));
  return OK;
}

static Status pdist_grad_run(Call *c) { return with_scratch(c, pdist_grad_body); }

/* ---- written with other ops ---------------------------------------------------------------- */

static Status dist(Call *c) {
  Formula f = {c, OK};
  Tensor *d = f_sub(&f, in_tensor(c, 0), in_tensor(c, 1));
  return formula_give(&f, F_OP(&f, "aten.linalg_vector_norm.default", val_tensor(d), c->arg[2]));
}

static Status pairwise_distance(Call *c) {
  Formula f = {c, OK};
  const int64_t last = -1;
  Tensor *d = f_shift(&f, f_sub(&f, in_tensor(c, 0), in_tensor(c, 1)), in_float(c, 3));
  return formula_give(
      &f, F_OP(&f, "aten.linalg_vector_norm.default", val_tensor(d), c->arg[2], val_ints(&last, 1), c->arg[4]));
}

/* sum of x1/|x1| x2/|x2|, norms at least eps; both broadcast first. */
static Status cosine_similarity(Call *c) {
  Formula f = {c, OK};
  const Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1);
  const int64_t dim = in_int(c, 2);
  double eps = in_float(c, 3);
  Dtype d = dtype_promote(a->dtype, b->dtype);
  Tensor *t[2] = {f_widen(&f, a), f_widen(&f, b)};
  Tensor *sum = f_add(&f, t[0], t[1]); /* for its size */
  for (int i = 0; sum && i < 2; i++) {
    if (!tensor_same_size(t[i], sum))
      t[i] = F_OP(&f, "aten.expand.default", val_tensor(t[i]), val_ints(sum->size, sum->ndim));
    Tensor *norm = F_OP(&f, "aten.linalg_vector_norm.default", val_tensor(t[i]), val_float(2), val_ints(&dim, 1),
                        val_bool(true));
    t[i] = f_div(&f, t[i], f_at_least(&f, norm, eps));
  }
  return formula_give(&f, f_cast(&f, f_sum(&f, f_mul(&f, t[0], t[1]), &dim, 1, false), d));
}

/* |self - other| <= atol + |rtol other|, and what is equal; an infinite distance is not close.  Integers are
 * compared as f32, as ATen does. */
static Status isclose(Call *c) {
  Formula f = {c, OK};
  const Tensor *a = in_tensor(c, 0), *b = in_tensor(c, 1);
  char x[128], y[128];
  const double rtol = in_float(c, 2), atol = in_float(c, 3);
  if (a->dtype != b->dtype)
    return op_fail(c, "%s and %s must have one dtype", tensor_describe(a, x, sizeof x),
                   tensor_describe(b, y, sizeof y));
  if (!(rtol >= 0) || !(atol >= 0)) return op_fail(c, "rtol %g and atol %g must not be negative", rtol, atol);
  Tensor *close = F_OP(&f, "aten.eq.Tensor", F_T(a), F_T(b));
  if (in_bool(c, 4) && !dtype_is_integral(a->dtype)) {
    Tensor *both = F_OP(&f, "aten.logical_and.default", F_T(F_OP(&f, "aten.isnan.default", F_T(a))),
                        F_T(F_OP(&f, "aten.isnan.default", F_T(b))));
    close = F_OP(&f, "aten.logical_or.default", F_T(close), F_T(both));
  }
  if (rtol == 0 && atol == 0) return formula_give(&f, close);
  if (a->dtype == DT_BOOL) a = f_cast(&f, a, DT_F32);
  if (dtype_is_integral(b->dtype)) b = f_cast(&f, b, DT_F32);
  Tensor *allowed = f_shift(&f, f_abs(&f, f_scale(&f, b, rtol)), atol), *error = f_abs(&f, f_sub(&f, a, b));
  Tensor *within = F_OP(&f, "aten.logical_and.default", F_T(F_OP(&f, "aten.isfinite.default", F_T(error))),
                        F_T(F_OP(&f, "aten.le.Tensor", F_T(error), F_T(allowed))));
  return formula_give(&f, F_OP(&f, "aten.logical_or.default", F_T(close), F_T(within)));
}

/* clang-format off */
#define CDIST(text) {.schema = "aten::" text, .infer = cdist_infer, .run = cdist_run}
#define PDIST(text) {.schema = "aten::" text, .infer = pdist_infer, .run = pdist_run}
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}
/* clang-format on */

const OpDef ops_distance[] = {
    CDIST("_cdist_forward(Tensor x1, Tensor x2, float p, int? compute_mode) -> Tensor"),
    CDIST("cdist(Tensor x1, Tensor x2, float p=2., int? compute_mode=None) -> Tensor"),
    PDIST("_pdist_forward(Tensor self, float p=2.) -> Tensor"),
    PDIST("pdist(Tensor self, float p=2.) -> Tensor"),
    {.schema = "aten::_cdist_backward(Tensor grad, Tensor x1, Tensor x2, float p, Tensor cdist) -> Tensor",
     .infer = cdist_grad_infer,
     .run = cdist_grad_run},
    {.schema = "aten::_pdist_backward(Tensor grad, Tensor self, float p, Tensor pdist) -> Tensor",
     .infer = pdist_grad_infer,
     .run = pdist_grad_run},
    COMPOSE("dist(Tensor self, Tensor other, Scalar p=2) -> Tensor", dist),
    COMPOSE("pairwise_distance(Tensor x1, Tensor x2, float p=2., float eps=9.9999999999999995e-07, bool "
            "keepdim=False) -> Tensor",
            pairwise_distance),
    COMPOSE("cosine_similarity(Tensor x1, Tensor x2, int dim=1, float eps=1e-08) -> Tensor", cosine_similarity),
    COMPOSE("isclose(Tensor self, Tensor other, float rtol=1.0000000000000001e-05, float atol=1e-08, bool "
            "equal_nan=False) -> Tensor",
            isclose),
    {0}};
