/* distance.c -- gradients of the distances between rows: cdist, pdist. */
#include <math.h>

#include "ops/grads/folded.h"

/* By the difference of two rows: g |d|^(p - 1) sgn(d) / distance^(p - 1), 0 where the rows are equal.  In the
 * maximum norm every largest difference counts in full. */
static Tensor *slope(Vjp *v, Tensor *difference, Tensor *distance, Tensor *g, double p) {
  Formula *f = &v->f;
  if (!isinf(p)) return norm_slope(v, difference, distance, g, p);
  Tensor *largest = F_OP(f, "aten.eq.Tensor", F_T(f_abs(f, difference)), F_T(distance));
  Tensor *sign = F_OP(f, "aten.sgn.default", F_T(difference));
  return f_mul(f, f_mul(f, sign, largest), g);
}

static Tensor *unsqueezed(Vjp *v, Tensor *t, int64_t dim) {
  return F_OP(&v->f, "aten.unsqueeze.default", F_T(t), val_int(dim));
}

/* p = 2: d is linear in the rows, so that products of matrices serve.
 *     gx1 = x1 * sum of r - r x2,  r = g / distance */
static void give_euclidean(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v), *distance = v->out[0], *x[2] = {vjp_arg(v, 0), vjp_arg(v, 1)};
  Tensor *zero = F_OP(f, "aten.eq.Scalar", F_T(distance), val_int(0));
  Tensor *r = F_OP(f, "aten.where.ScalarSelf", F_T(zero), val_int(0), F_T(f_div(f, g, distance)));
  const int64_t last = -1;
  for (int i = 0; i < 2; i++) {
    Tensor *mine = i ? F_OP(f, "aten.transpose.int", F_T(r), val_int(-1), val_int(-2)) : r;
    if (!vjp_wants(v, i)) continue;
    Tensor *pull = F_OP(f, "aten.matmul.default", F_T(mine), F_T(x[1 - i]));
    vjp_give(v, i, f_sub(f, f_mul(f, x[i], f_sum(f, mine, &last, 1, true)), pull));
  }
}

/* More rows than this: by products of matrices, as PyTorch does. */
enum { FEW_ROWS = 25 };

static void vjp_cdist(Vjp *v) { /* x1 (..., P, M), x2 (..., R, M), p */
  Formula *f = &v->f;
  const Tensor *a = v->in[0], *b = v->in[1];
  double p = in_float(v->forward, 2);
  if (p == 0 || tensor_numel(v->out[0]) == 0 || a->size[a->ndim - 1] == 0) {
    vjp_zero(v);
    return;
  }
  if (p == 2 && (a->size[a->ndim - 2] > FEW_ROWS || b->size[b->ndim - 2] > FEW_ROWS)) {
    give_euclidean(v);
    return;
  }
  Tensor *difference = f_sub(f, unsqueezed(v, vjp_arg(v, 0), -2), unsqueezed(v, vjp_arg(v, 1), -3));
  Tensor *d = slope(v, difference, unsqueezed(v, v->out[0], -1), unsqueezed(v, vjp_cotangent(v), -1), p);
  const int64_t rows = -2, columns = -3;
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_sum(f, d, &rows, 1, false));
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_neg(f, f_sum(f, d, &columns, 1, false)));
}

static void vjp_pdist(Vjp *v) { /* self (N, M), p: pairs i < j in order */
  Formula *f = &v->f;
  const Tensor *x = v->in[0];
  double p = in_float(v->forward, 1);
  if (p == 0 || tensor_numel(v->out[0]) == 0) {
    vjp_zero(v);
    return;
  }
  Tensor *pairs = F_OP(f, "aten.triu_indices.default", val_int(x->size[0]), val_int(x->size[0]), val_int(1)),
         *index[2], *row[2];
  for (int i = 0; i < 2; i++) {
    index[i] = F_OP(f, "aten.select.int", F_T(pairs), val_int(0), val_int(i));
    row[i] = F_OP(f, "aten.index_select.default", vjp_value(v, 0), val_int(0), F_T(index[i]));
  }
  Tensor *d = slope(v, f_sub(f, row[0], row[1]), unsqueezed(v, v->out[0], -1), unsqueezed(v, vjp_cotangent(v), -1),
                    p);
  Tensor *sum = vjp_zeros_like(v, x);
  sum = F_OP(f, "aten.index_add.default", F_T(sum), val_int(0), F_T(index[0]), F_T(d));
  vjp_give(v, 0, F_OP(f, "aten.index_add.default", F_T(sum), val_int(0), F_T(index[1]), F_T(f_neg(f, d))));
}

const GradDef grads_distance[] = {
    GRAD("cdist.default _cdist_forward.default", vjp_cdist, "x1 x2 result"),
    GRAD("pdist.default _pdist_forward.default", vjp_pdist, "self result"),
    {0},
};
