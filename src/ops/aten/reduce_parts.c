/* reduce_parts.c -- see reduce_parts.h. */
#include "ops/aten/reduce_parts.h"

#include "ops/formula.h"

static int listed(const bool *dims, int ndim, int64_t *out) {
  int n = 0;
  for (int d = 0; d < ndim; d++)
    if (dims[d]) out[n++] = d;
  return n;
}

/* As the result has it: without the dimensions that were folded, unless it keeps them. */
static Status give(Formula *f, Tensor *y, const Tensor *x, const PartsRequest *p) {
  int64_t size[MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++)
    if (!p->dims[d] || p->keepdim) size[n++] = p->dims[d] ? 1 : x->size[d];
  return formula_give(f, f_cast(f, f_view(f, y, size, n), p->out));
}

Status variance_in_parts(Call *c, const PartsRequest *p) {
  Formula f = {c, OK};
  const Tensor *x = in_tensor(c, 0);
  int64_t dims[MAX_DIMS];
  int n = listed(p->dims, x->ndim, dims);
  double count = 1;
  for (int i = 0; i < n; i++) count *= (double)x->size[dims[i]];
  double divisor = count > p->correction ? count - p->correction : 0;
  Tensor *wide = f_widen(&f, x);
  Tensor *pair[2] = {wide, F_OP(&f, "aten.mean.dim", F_T(wide), val_ints(dims, n), val_bool(true))};
  f_align(&f, pair, 2);
  Tensor *apart = f_sub(&f, pair[0], pair[1]), *sum = f_sum(&f, f_mul(&f, apart, apart), dims, n, true);
  Tensor *y = F_OP(&f, "aten.div.Scalar", F_T(sum), val_float(divisor));
  return give(&f, p->root ? f_sqrt(&f, y) : y, x, p);
}

Status logsumexp_in_parts(Call *c, const PartsRequest *p) {
  Formula f = {c, OK};
  const Tensor *x = in_tensor(c, 0);
  int64_t dims[MAX_DIMS];
  int n = listed(p->dims, x->ndim, dims);
  Tensor *wide = f_widen(&f, f_cast(&f, x, p->out));
  Tensor *pair[2] = {wide, F_OP(&f, "aten.amax.default", F_T(wide), val_ints(dims, n), val_bool(true))};
  f_align(&f, pair, 2);
  Tensor *top = pair[1]; /* an infinite one would give nan */
  Tensor *infinite = F_OP(&f, "aten.isinf.default", F_T(top));
  Tensor *shift = F_OP(&f, "aten.masked_fill.Scalar", F_T(top), F_T(infinite), val_float(0));
  Tensor *e = f_exp(&f, f_sub(&f, pair[0], shift)), *sums[2] = {e, f_sum(&f, e, dims, n, true)};
  f_align(&f, sums, 2); /* every rank of a row will need its result for the gradient */
  return give(&f, f_add(&f, f_log(&f, sums[1]), shift), x, p);
}
