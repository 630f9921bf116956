/* reduce.c -- gradients of sums, means, products, extremes, variances and norms over dimensions.
 *
 * Equal extremes share the cotangent evenly.  16-bit elements are subtracted from means and maxima in f32. */
#include <math.h>

#include "ops/grads/folded.h"

/* ---- sums ------------------------------------------------------------------------------------------ */

static void vjp_sum(Vjp *v) {
  Folded d = folded(v);
  vjp_give(v, 0, spread(v, &d, f_cast(&v->f, vjp_cotangent(v), d.x->dtype)));
}

/* Divided by the count itself, a whole number: sizes may be symbols. */
static void give_mean(Vjp *v, const Folded *d, Value count) {
  Tensor *each = F_OP(&v->f, "aten.div.Scalar", F_T(vjp_cotangent(v)), count);
  vjp_give(v, 0, spread(v, d, f_cast(&v->f, each, d->x->dtype)));
}

static void vjp_mean(Vjp *v) {
  Folded d = folded(v);
  give_mean(v, &d, val_int(d.count));
}

static void vjp_mean_part(Vjp *v) {
  Folded d = folded(v);
  give_mean(v, &d, vjp_value(v, 3));
}

static void vjp_nansum(Vjp *v) {
  Folded d = folded(v);
  Tensor *nan = F_OP(&v->f, "aten.isnan.default", vjp_value(v, 0));
  Tensor *g = unfold(v, &d, vjp_cotangent(v));
  vjp_give(v, 0, F_OP(&v->f, "aten.where.ScalarSelf", F_T(nan), val_int(0), F_T(g)));
}

/* ---- products: of all other elements ------------------------------------------------------------------ */

/* Element i is the product of those before i. */
static Tensor *product_before(Vjp *v, Tensor *x, int64_t dim) {
  int64_t pad[2 * MAX_DIMS] = {0};
  int last = x ? 2 * (x->ndim - 1 - (int)dim) : 0;
  if (!x) return NULL;
  pad[last] = 1;
  Tensor *head = F_OP(&v->f, "aten.narrow.default", F_T(x), val_int(dim), val_int(0), val_int(x->size[dim] - 1));
  Tensor *moved = F_OP(&v->f, "aten.constant_pad_nd.default", F_T(head), val_ints(pad, last + 2), val_int(1));
  return F_OP(&v->f, "aten.cumprod.default", F_T(moved), val_int(dim));
}

static void vjp_prod(Vjp *v) {
  Formula *f = &v->f;
  Folded d = folded(v);
  Tensor *x = f_cast(f, vjp_arg(v, 0), v->out[0]->dtype), *g = unfold(v, &d, vjp_cotangent(v));
  const int64_t dim = d.all ? 0 : d.n ? d.dim[0] : 0, flat = tensor_numel(d.x);
  if (d.count <= 1 || flat == 0) {
    vjp_give(v, 0, spread(v, &d, g));
    return;
  }
  if (d.all) x = f_view(f, x, &flat, 1), g = f_view(f, g, NULL, 0);
  Tensor *back = F_OP(f, "aten.flip.default", F_T(x), val_ints(&dim, 1));
  Tensor *after = F_OP(f, "aten.flip.default", F_T(product_before(v, back, dim)), val_ints(&dim, 1));
  Tensor *others = f_mul(f, product_before(v, x, dim), after);
  Tensor *gx = f_mul(f, g, vjp_conj(v, others));
  vjp_give(v, 0, d.all ? f_view(f, gx, d.x->size, d.x->ndim) : gx);
}

/* ---- extremes ------------------------------------------------------------------------------------------ */

/* To the elements where the mask holds, in equal parts. */
static void give_evenly(Vjp *v, const Folded *d, Tensor *mask) {
  Formula *f = &v->f;
  Tensor *n = d->n ? f_sum(f, mask, d->dim, d->n, true) : mask;
  Tensor *part = f_div(f, unfold(v, d, vjp_cotangent(v)), n);
  vjp_give(v, 0, f_mul(f, part, mask));
}

static Tensor *equals_result(Vjp *v, const Folded *d) {
  return F_OP(&v->f, "aten.eq.Tensor", vjp_value(v, 0), F_T(unfold(v, d, v->out[0])));
}

static void vjp_amax(Vjp *v) {
  Folded d = folded(v);
  give_evenly(v, &d, equals_result(v, &d));
}

/* One element of all: a nan among them is the result. */
static void vjp_one_of_all(Vjp *v) {
  Formula *f = &v->f;
  Folded d = folded(v);
  Tensor *nan = F_OP(f, "aten.isnan.default", vjp_value(v, 0)),
         *too = F_OP(f, "aten.isnan.default", F_T(v->out[0]));
  Tensor *both = F_OP(f, "aten.logical_and.default", F_T(nan), F_T(too));
  give_evenly(v, &d, F_OP(f, "aten.logical_or.default", F_T(equals_result(v, &d)), F_T(both)));
}

/* ---- variances ------------------------------------------------------------------------------------------- */

static double correction_of(const Vjp *v) {
  Value unbiased = vjp_named(v, "unbiased"), correction = vjp_named(v, "correction");
  if (unbiased.kind == VAL_BOOL) return unbiased.b;
  return correction.kind == VAL_NONE ? 1 : val_as_float(&correction);
}

/* g 2 (x - mean) / (n - correction); g is unfolded. */
static void give_var(Vjp *v, const Folded *d, Tensor *g) {
  Formula *f = &v->f;
  Tensor *x = f_widen(f, vjp_arg(v, 0));
  double correction = correction_of(v), free = (double)d->count - correction;
  bool whole = correction == floor(correction) && fabs(correction) < 1e9;
  Tensor *mean = d->n ? F_OP(f, "aten.mean.dim", F_T(x), val_ints(d->dim, d->n), val_bool(true)) : x;
  Tensor *pair[2] = {x, mean};
  f_align(f, pair, 2); /* the mean goes over the ranks, not x */
  x = pair[0], mean = pair[1];
  g = f_widen(f, g);
  if ((d->all || d->x->ndim == 0) && free <= 0) { /* as PyTorch: a deviation counts infinitely, none not at all */
    Tensor *none = F_OP(f, "aten.eq.Tensor", F_T(x), F_T(mean));
    Tensor *slope = F_OP(f, "aten.where.Scalar", F_T(none), val_float(NAN), val_float(INFINITY));
    vjp_give(v, 0, f_mul(f, g, f_cast(f, slope, x ? x->dtype : DT_F32)));
    return;
  }
  g = F_OP(f, "aten.div.Scalar", F_T(f_scale(f, g, 2)),
           whole ? val_int(d->count - (int64_t)correction) : val_float(free));
  vjp_give(v, 0, f_mul(f, g, f_sub(f, x, mean)));
}

static void vjp_var(Vjp *v) {
  Folded d = folded(v);
  give_var(v, &d, unfold(v, &d, vjp_cotangent(v)));
}

static void vjp_std(Vjp *v) {
  Formula *f = &v->f;
  Folded d = folded(v);
  Tensor *std = v->out[0], *g = f_div(f, f_widen(f, vjp_cotangent(v)), f_scale(f, f_widen(f, std), 2));
  g = F_OP(f, "aten.where.ScalarSelf", F_T(F_OP(f, "aten.eq.Scalar", F_T(std), val_int(0))), val_int(0), F_T(g));
  give_var(v, &d, unfold(v, &d, g));
}

static void vjp_logsumexp(Vjp *v) {
  Formula *f = &v->f;
  Folded d = folded(v);
  Tensor *below = f_sub(f, f_widen(f, vjp_arg(v, 0)), f_widen(f, unfold(v, &d, v->out[0])));
  vjp_give(v, 0, f_mul(f, unfold(v, &d, vjp_cotangent(v)), f_exp(f, below)));
}

/* ---- norms ----------------------------------------------------------------------------------------------- */

static Tensor *zero_where(Formula *f, Tensor *mask, Tensor *t) {
  return F_OP(f, "aten.where.ScalarSelf", F_T(mask), val_int(0), F_T(t));
}
static Tensor *power(Formula *f, Tensor *x, double e) {
  return e == 1 ? x : F_OP(f, "aten.pow.Tensor_Scalar", F_T(x), val_float(e));
}

/* Of x, p finite and not 0: norm and g broadcast with x.  0 where the norm is 0. */
static Tensor *norm_slope(Vjp *v, Tensor *x, Tensor *norm, Tensor *g, double p) {
  Formula *f = &v->f;
  if (p == 1) return f_mul(f, F_OP(f, "aten.sgn.default", F_T(x)), g);
  Tensor *at_zero = F_OP(f, "aten.eq.Scalar", F_T(norm), val_int(0));
  Tensor *scale = zero_where(f, at_zero, f_div(f, g, power(f, norm, p - 1)));
  if (p == 2) return f_mul(f, x, scale);
  Tensor *size = f_abs(f, x);
  if (p > 2) return f_mul(f, f_mul(f, x, power(f, size, p - 2)), scale);
  Tensor *steep = f_mul(f, F_OP(f, "aten.sgn.default", F_T(x)), power(f, size, p - 1));
  if (p < 1) steep = zero_where(f, F_OP(f, "aten.eq.Scalar", F_T(size), val_int(0)), steep);
  return f_mul(f, steep, scale);
}

/* The largest or smallest magnitudes share. */
static void give_extreme_norm(Vjp *v, const Folded *d, Tensor *x, Tensor *norm, Tensor *g) {
  Formula *f = &v->f;
  Tensor *size = f_abs(f, x), *nan = F_OP(f, "aten.isnan.default", F_T(size)),
         *too = F_OP(f, "aten.isnan.default", F_T(norm)), *equal = F_OP(f, "aten.eq.Tensor", F_T(size), F_T(norm));
  nan = F_OP(f, "aten.logical_and.default", F_T(nan), F_T(too));
  Tensor *mask = F_OP(f, "aten.logical_or.default", F_T(equal), F_T(nan));
  Tensor *n = d->n ? f_sum(f, mask, d->dim, d->n, true) : mask;
  Tensor *sign = f_mul(f, F_OP(f, "aten.sgn.default", F_T(x)), mask);
  vjp_give(v, 0, f_mul(f, sign, f_div(f, g, n)));
}

static void vjp_norm(Vjp *v) {
  Formula *f = &v->f;
  Folded d = folded(v);
  Value ord = vjp_named(v, "ord"), p_arg = vjp_named(v, "p");
  if (ord.kind == VAL_NONE) ord = p_arg;
  double p = ord.kind == VAL_NONE ? 2 : val_as_float(&ord);
  Tensor *x = vjp_arg(v, 0), *norm = f_widen(f, unfold(v, &d, v->out[0])),
         *g = f_widen(f, unfold(v, &d, vjp_cotangent(v)));
  bool complex = dtype_kind(d.x->dtype) == KIND_COMPLEX;
  if (p == 0) {
    vjp_zero(v);
    return;
  }
  x = complex ? x : f_widen(f, f_cast(f, x, v->out[0]->dtype));
  if (isinf(p)) give_extreme_norm(v, &d, x, norm, g);
  else vjp_give(v, 0, norm_slope(v, x, norm, g, p));
}

const GradDef grads_reduce[] = {
    GRAD("sum.default sum.dim_IntList", vjp_sum, NULL),
    GRAD("mean.default mean.dim", vjp_mean, NULL),
    GRAD("tess.mean_part.default", vjp_mean_part, NULL),
    GRAD("nansum.default", vjp_nansum, "self"),
    GRAD("prod.default prod.dim_int", vjp_prod, "self"),
    GRAD("amax.default amin.default", vjp_amax, "self result"),
    GRAD("max.default min.default median.default nanmedian.default", vjp_one_of_all, "self result"),
    GRAD("var.default var.dim var.correction", vjp_var, "self"),
    GRAD("std.default std.dim std.correction", vjp_std, "self result"),
    GRAD("logsumexp.default", vjp_logsumexp, "self result"),
    GRAD("linalg_vector_norm.default norm.Scalar norm.ScalarOpt_dtype norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype "
         "frobenius_norm.dim",
         vjp_norm, "self result"),
    {0},
};
