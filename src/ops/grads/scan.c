/* scan.c -- gradients of running sums, products and extremes. */
#include <float.h>

#include "ops/vjp.h"

/* A scan from the end. */
static Tensor *backwards(Vjp *v, const char *op, Tensor *x) {
  const int64_t dim = in_int(v->forward, 1);
  Tensor *flipped = F_OP(&v->f, "aten.flip.default", F_T(x), val_ints(&dim, 1));
  Tensor *scanned = F_OP(&v->f, op, F_T(flipped), val_int(dim));
  return F_OP(&v->f, "aten.flip.default", F_T(scanned), val_ints(&dim, 1));
}

static bool is_short(const Vjp *v) { return v->out[0]->ndim == 0 || tensor_numel(v->out[0]) == 0; }

static void vjp_cumsum(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, is_short(v) ? g : backwards(v, "aten.cumsum.default", g));
}

/* Before the first zero: the sum of g y from here on, over x.  At the first zero: the sum of g y' from here on,
 * y' the products as if that zero were 1.  Behind it: nothing. */
static void vjp_cumprod(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v), *y = v->out[0], *x = f_cast(f, vjp_arg(v, 0), y->dtype);
  if (is_short(v)) {
    vjp_give(v, 0, g);
    return;
  }
  Tensor *zero = F_OP(f, "aten.eq.Scalar", F_T(x), val_int(0));
  Tensor *zeros = F_OP(f, "aten.cumsum.default", F_T(zero), vjp_value(v, 1));
  Tensor *none = F_OP(f, "aten.eq.Scalar", F_T(zeros), val_int(0)),
         *one = F_OP(f, "aten.eq.Scalar", F_T(zeros), val_int(1));
  Tensor *first = F_OP(f, "aten.logical_and.default", F_T(zero), F_T(one));
  Tensor *without = F_OP(f, "aten.cumprod.default",
                         F_T(F_OP(f, "aten.where.ScalarSelf", F_T(first), val_int(1), F_T(x))), vjp_value(v, 1));
  Tensor *before = f_div(f, backwards(v, "aten.cumsum.default", f_mul(f, g, vjp_conj(v, y))), vjp_conj(v, x));
  Tensor *at = backwards(v, "aten.cumsum.default", f_mul(f, g, vjp_conj(v, without)));
  Tensor *rest = F_OP(f, "aten.where.ScalarOther", F_T(none), F_T(before), val_int(0));
  vjp_give(v, 0, f_where(f, first, at, rest));
}

/* The sum of g_j e^(x - y_j) over j from here on: in logarithms, positive and negative g apart. */
static void vjp_logcumsumexp(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = f_widen(f, vjp_cotangent(v)), *x = f_widen(f, vjp_arg(v, 0)), *y = f_widen(f, v->out[0]), *part[2];
  if (is_short(v) || !y) {
    vjp_give(v, 0, g);
    return;
  }
  Tensor *size = f_log(f, f_abs(f, g));
  double least = y->dtype == DT_F64 ? -DBL_MAX : (double)-FLT_MAX;
  for (int i = 0; i < 2; i++) {
    Tensor *mine = F_OP(f, i ? "aten.lt.Scalar" : "aten.gt.Scalar", F_T(g), val_int(0));
    Tensor *one = F_OP(f, "aten.where.ScalarOther", F_T(mine), F_T(size), val_float(least));
    part[i] = f_exp(f, f_add(f, backwards(v, "aten.logcumsumexp.default", f_sub(f, one, y)), x));
  }
  vjp_give(v, 0, f_sub(f, part[0], part[1]));
}

static void vjp_cumextreme(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (!is_short(v))
    g = F_OP(&v->f, "aten.scatter_add.default", F_T(vjp_zeros_like(v, v->in[0])), vjp_value(v, 1), F_T(v->out[1]),
             F_T(g));
  vjp_give(v, 0, g);
}

const GradDef grads_scan[] = {
    GRAD("cumsum.default", vjp_cumsum, NULL),
    GRAD("cumprod.default", vjp_cumprod, "self result"),
    GRAD("logcumsumexp.default", vjp_logcumsumexp, "self result"),
    GRAD("cummax.default cummin.default", vjp_cumextreme, "result1"),
    {0},
};
