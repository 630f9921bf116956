/* quantile.c -- quantile and nanquantile (self, q, dim = None, keepdim = False, *, interpolation).
 *
 * A list of fractions gives a first dimension of that many results; without dim all elements
 * are one row.  Sharding: any dimension but the one that is sorted.
 */
#include "kernels/quantile.h"

#include <string.h>

#include "kernels/copy.h"
#include "kernels/sort.h"
#include "ops/aten/dense.h"
#include "ops/geometry.h"
#include "ops/rule.h"

static Status interpolation(const Call *c, QuantileMode *out) {
  static const char *const names[] = {[QUANTILE_LINEAR] = "linear",
                                      [QUANTILE_LOWER] = "lower",
                                      [QUANTILE_HIGHER] = "higher",
                                      [QUANTILE_MIDPOINT] = "midpoint",
                                      [QUANTILE_NEAREST] = "nearest"};
  const char *name = in_str(c, 4);
  for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++) {
    if (!strcmp(name, names[i])) return *out = (QuantileMode)i, OK;
  }
  return op_fail(c, "interpolation is '%s', must be linear, lower, higher, midpoint or nearest",
                 name ? name : "None");
}

/* The dimension that is sorted; -1: all elements. */
static Status sorted_dim(const Call *c, const Tensor *x, int *dim) {
  *dim = -1;
  return in_none(c, 2) ? OK : wrap_dim(c, in_int(c, 2), x->ndim, dim);
}

static Status quantile_infer(Call *c) {
  Tensor *x;
  const Tensor *q = in_tensor(c, 1);
  QuantileMode mode = QUANTILE_LINEAR;
  int dim, n = 0;
  int64_t size[MAX_DIMS + 1];
  char a[96];
  TRY(need_tensor(c, 0, &x));
  TRY(interpolation(c, &mode));
  TRY(sorted_dim(c, x, &dim));
  if (x->dtype != DT_F32 && x->dtype != DT_F64)
    return op_fail(c, "input must be f32 or f64, not %s", dtype_name(x->dtype));
  if (dim < 0 ? tensor_numel(x) == 0 : x->ndim && x->size[dim] == 0)
    return op_fail(c, "input %s has no elements to choose from", tensor_describe(x, a, sizeof a));
  if (q && (q->ndim > 1 || q->dtype != x->dtype)) {
    return op_fail(c, "q %s must be a number or a list of %s, as the input is", tensor_describe(q, a, sizeof a),
                   dtype_name(x->dtype));
  }
  if (!q && !(in_float(c, 1) >= 0 && in_float(c, 1) <= 1))
    return op_fail(c, "q is %g, must be between 0 and 1", in_float(c, 1));
  if (q && q->ndim) size[n++] = q->size[0];
  for (int d = 0; d < x->ndim; d++) {
    bool folded = dim < 0 || d == dim;
    if (!folded || in_bool(c, 3)) size[n++] = folded ? 1 : x->size[d];
  }
  if (n > MAX_DIMS) return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  return out_new(c, x->dtype, n, size);
}

/* x with the sorted dimension last, contiguous; the sizes without it. */
static Status rows_of(Kern *k, const Tensor *x, int dim, View *rows, int64_t *size, int64_t *stride) {
  int64_t from[MAX_DIMS], n = tensor_numel(x), row = dim < 0 || !x->ndim ? n : x->size[dim];
  if (dim < 0) dim = x->ndim - 1; /* the order of all elements does not matter */
  int m = 0;
  for (int d = 0; d < x->ndim; d++) {
    if (d != dim) size[m] = x->size[d], from[m++] = x->stride[d];
  }
  if (x->ndim) size[m] = x->size[dim], from[m++] = x->stride[dim];
  contiguous_strides(m, size, stride);
  void *data;
  TRY_NEW(data, kern_scratch(k, (size_t)n * dtype_size(x->dtype)));
  kernel_copy(k, (View){data, size, stride, m, x->dtype}, (View){tensor_data(x), size, from, m, x->dtype});
  size[0] = n / row, size[1] = row, stride[0] = row, stride[1] = 1;
  *rows = (View){data, size, stride, 2, x->dtype};
  return OK;
}

static Status fractions(Call *c, Dtype d, Dense *q, double *one) {
  if (in_tensor(c, 1)) {
    TRY(dense_view(&c->ctx->kern, in_tensor(c, 1), q));
  } else {
    Value v = val_float(in_float(c, 1));
    val_store(&v, d, one);
    q->view = (View){one, NULL, NULL, 0, d};
  }
  int64_t n = q->view.ndim ? q->view.size[0] : 1;
  for (int64_t i = 0; i < n; i++) {
    double f = d == DT_F64 ? ((const double *)q->view.data)[i] : (double)((const float *)q->view.data)[i];
    if (!(f >= 0 && f <= 1)) return op_fail(c, "q[%lld] is %g, must be between 0 and 1", (long long)i, f);
  }
  return OK;
}

static Status quantile_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *x = in_tensor(c, 0);
  QuantileMode mode = QUANTILE_LINEAR;
  Dense q;
  View rows, sorted;
  double one;
  void *result;
  int dim;
  int64_t size[MAX_DIMS], stride[MAX_DIMS], flat[MAX_DIMS];
  TRY(interpolation(c, &mode));
  TRY(sorted_dim(c, x, &dim));
  TRY(fractions(c, x->dtype, &q, &one));
  TRY(rows_of(k, x, dim, &rows, size, stride));
  sorted = rows;
  TRY_NEW(sorted.data, kern_scratch(k, (size_t)tensor_numel(x) * dtype_size(x->dtype)));
  if (!kernel_sort(k, rows, 1, false, 0, size[1], sorted, (View){NULL, size, stride, 2, DT_I64})) return fail_oom();
  View out = out_view_of(c, 0);
  TRY_NEW(result, kern_scratch(k, (size_t)tensor_numel(out_tensor(c, 0)) * dtype_size(x->dtype)));
  kernel_quantile(x->dtype, sorted.data, size[0], size[1], q.view.data, q.view.ndim ? q.view.size[0] : 1, mode,
                  c->op->def->row != NULL, result);
  contiguous_strides(out.ndim, out.size, flat);
  kernel_copy(k, out, (View){result, out.size, flat, out.ndim, x->dtype});
  return OK;
}

static Status quantile_run(Call *c) { return with_scratch(c, quantile_body); }

static Status place_quantile(Rules *r) {
  const Tensor *x = r->in[0];
  int dim, first = r->nin > 1 && r->in[1]->ndim;
  TRY(sorted_dim(r->call, x, &dim));
  for (int d = 0; d < x->ndim && dim >= 0; d++) {
    if (d == dim) continue;
    Placement p[3] = {place_s(first + d - (!in_bool(r->call, 3) && d > dim)), place_s(d), place_r()};
    TRY(rule_axis(r, p));
  }
  return OK;
}

/* clang-format off */
#define QUANTILE(name, q, IGNORE_NAN) \
  {.schema = "aten::" name "(Tensor self, " q " q, int? dim=None, bool keepdim=False, *, str interpolation=\"linear\") -> Tensor", \
   .infer = quantile_infer, .run = quantile_run, .shard.place = place_quantile, .row = IGNORE_NAN}
/* clang-format on */

const OpDef ops_quantile[] = {QUANTILE("quantile", "Tensor", NULL),
                              QUANTILE("quantile.scalar", "float", NULL),
                              QUANTILE("nanquantile", "Tensor", "ignores nan"),
                              QUANTILE("nanquantile.scalar", "float", "ignores nan"),
                              {0}};
