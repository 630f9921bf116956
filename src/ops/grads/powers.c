/* powers.c -- gradients of powers and of the other functions of two operands.
 *
 * Where an operand is 0 the power's derivative by its exponent is 0 (for exponents >= 0), not 0 log 0. */
#include <math.h>

#include "ops/vjp.h"

static Tensor *zero_where(Vjp *v, Tensor *mask, Tensor *t) {
  return F_OP(&v->f, "aten.where.ScalarSelf", F_T(mask), val_int(0), F_T(t));
}
static Tensor *test(Vjp *v, const char *op, Value x, double y) { return F_OP(&v->f, op, x, val_float(y)); }
static Tensor *mul(Vjp *v, Tensor *g, Value x) { return F_OP(&v->f, "aten.mul.Tensor", F_T(g), x); }

/* ---- powers -------------------------------------------------------------------------------------- */

/* e x^(e - 1), 0 for e = 0. */
static void vjp_pow_number(Vjp *v) {
  Formula *f = &v->f;
  Value e = vjp_value(v, 1), less = e;
  bool complex = e.kind == VAL_COMPLEX;
  if (!complex && val_as_float(&e) == 0) {
    vjp_zero(v);
    return;
  }
  if (complex) less.complex_[0] -= 1;
  else if (e.kind == VAL_FLOAT) less = val_float(e.f - 1);
  else if (val_as_int(&e) > INT64_MIN) less = val_int(val_as_int(&e) - 1); /* else the same power of any float */
  bool line = !complex && val_as_float(&less) == 1;
  Tensor *power = line ? vjp_arg(v, 0) : F_OP(f, "aten.pow.Tensor_Scalar", vjp_value(v, 0), less);
  Tensor *d = F_OP(f, "aten.mul.Scalar", F_T(power), e);
  vjp_give(v, 0, f_mul(f, vjp_cotangent(v), vjp_conj(v, d)));
}

/* x^e log x; 0 where x is 0 and e is not negative. */
static Tensor *by_exponent(Vjp *v) {
  Formula *f = &v->f;
  Value e = vjp_value(v, 1);
  const Tensor *x = vjp_arg(v, 0), *t = vjp_arg(v, 1);
  if (t && dtype_kind(t->dtype) == KIND_COMPLEX) e = F_T(F_OP(f, "aten.real.default", e));
  Tensor *rising = test(v, "aten.ge.Scalar", e, 0);
  if (x) { /* log 1 where there is none */
    Tensor *at_zero = F_OP(f, "aten.eq.Scalar", F_T(x), val_int(0));
    Tensor *none = F_OP(f, "aten.logical_and.default", F_T(at_zero), F_T(rising));
    Tensor *safe = F_OP(f, "aten.where.ScalarSelf", F_T(none), val_int(1), F_T(f_cast(f, x, v->out[0]->dtype)));
    return f_mul(f, v->out[0], f_log(f, safe));
  }
  Value base = vjp_value(v, 0);
  if (base.kind == VAL_COMPLEX) {
    double re = base.complex_[0], im = base.complex_[1];
    Value log_base = {.kind = VAL_COMPLEX, .complex_ = {log(hypot(re, im)), atan2(im, re)}};
    return F_OP(f, "aten.mul.Scalar", F_T(v->out[0]), log_base);
  }
  if (val_as_float(&base) != 0) return f_scale(f, v->out[0], log(val_as_float(&base)));
  Tensor *d = F_OP(f, "aten.where.Scalar", F_T(rising), val_float(0), val_float(-INFINITY));
  return f_cast(f, d, v->out[0]->dtype);
}

static void vjp_pow(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0) && !vjp_arg(v, 1)) {
    vjp_pow_number(v);
  } else if (vjp_wants(v, 0)) {
    Tensor *e = vjp_arg(v, 1), *power = F_OP(f, "aten.pow.Tensor_Tensor", vjp_value(v, 0), F_T(f_shift(f, e, -1)));
    Tensor *d = f_mul(f, g, vjp_conj(v, f_mul(f, e, power)));
    vjp_give(v, 0, zero_where(v, F_OP(f, "aten.eq.Scalar", F_T(e), val_int(0)), d));
  }
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_mul(f, g, vjp_conj(v, by_exponent(v))));
}

/* ---- remainders ------------------------------------------------------------------------------------ */

/* x - y n: n is the quotient, rounded. */
static void give_remainder(Vjp *v, const char *mode) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  if (!vjp_wants(v, 1)) return;
  Tensor *n = F_OP(f, "aten.div.Tensor_mode", vjp_value(v, 0), vjp_value(v, 1), val_str(mode));
  vjp_give(v, 1, f_neg(f, f_mul(f, g, n)));
}

static void vjp_remainder(Vjp *v) { give_remainder(v, "floor"); }
static void vjp_fmod(Vjp *v) { give_remainder(v, "trunc"); }

/* ---- angle and length of (other, self) ---------------------------------------------------------------- */

static void vjp_atan2(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v), *x = F_OP(f, "aten.mul.Tensor", vjp_value(v, 0), vjp_value(v, 0)),
         *y = F_OP(f, "aten.mul.Tensor", vjp_value(v, 1), vjp_value(v, 1)), *sum = f_add(f, x, y);
  Tensor *over = zero_where(v, F_OP(f, "aten.eq.Scalar", F_T(sum), val_int(0)), f_div(f, g, sum));
  if (vjp_wants(v, 0)) vjp_give(v, 0, mul(v, over, vjp_value(v, 1)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_neg(f, mul(v, over, vjp_value(v, 0))));
}

static void vjp_hypot(Vjp *v) {
  Formula *f = &v->f;
  for (int i = 0; i < 2; i++) {
    if (!vjp_wants(v, i)) continue;
    Tensor *ratio = F_OP(f, "aten.div.Tensor", vjp_value(v, i), F_T(v->out[0]));
    vjp_give(v, i, f_mul(f, vjp_cotangent(v), ratio));
  }
}

/* ---- logarithms of sums and products ------------------------------------------------------------------- */

/* e^x / (e^x + e^y) = 1 / (1 + e^(y - x)) */
static void give_share(Vjp *v, const char *power) {
  Formula *f = &v->f;
  for (int i = 0; i < 2; i++) {
    if (!vjp_wants(v, i)) continue;
    Tensor *above = F_OP(f, "aten.sub.Tensor", vjp_value(v, 1 - i), vjp_value(v, i));
    Tensor *inverse = f_shift(f, F_OP(f, power, F_T(above)), 1);
    vjp_give(v, i, f_div(f, vjp_cotangent(v), vjp_conj(v, inverse)));
  }
}

static void vjp_logaddexp(Vjp *v) { give_share(v, "aten.exp.default"); }
static void vjp_logaddexp2(Vjp *v) { give_share(v, "aten.exp2.default"); }

/* x log(y), y as it comes or 1 + y; 0 for x = 0 and no logarithm. */
static void give_xlog(Vjp *v, const char *op, double one) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) {
    Tensor *d = F_OP(f, op, F_T(g), vjp_value(v, 1)), *at_zero = test(v, "aten.eq.Scalar", vjp_value(v, 0), 0);
    if (vjp_arg(v, 1)) {
      Tensor *low = test(v, "aten.le.Scalar", vjp_value(v, 1), -one);
      d = zero_where(v, F_OP(f, "aten.logical_and.default", F_T(at_zero), F_T(low)), d);
    } else if (in_float(v->forward, 1) <= -one) {
      d = zero_where(v, at_zero, d);
    }
    vjp_give(v, 0, d);
  }
  if (!vjp_wants(v, 1)) return;
  Tensor *y = vjp_arg(v, 1),
         *ratio = F_OP(f, "aten.div.Tensor", vjp_value(v, 0), F_T(one != 0 ? f_shift(f, y, one) : y));
  vjp_give(v, 1, f_mul(f, g, ratio));
}

static void vjp_xlogy(Vjp *v) { give_xlog(v, "aten.xlogy.Tensor", 0); }
static void vjp_xlog1py(Vjp *v) {
  give_xlog(v, vjp_arg(v, 1) ? "aten.special_xlog1py.default" : "aten.special_xlog1py.other_scalar", 1);
}

/* ---- signs and steps ------------------------------------------------------------------------------------ */

static void vjp_copysign(Vjp *v) {
  Formula *f = &v->f;
  if (vjp_wants(v, 0)) {
    Tensor *x = vjp_arg(v, 0), *ratio = f_div(f, v->out[0], x);
    ratio = zero_where(v, F_OP(f, "aten.eq.Scalar", F_T(x), val_int(0)), ratio);
    vjp_give(v, 0, f_mul(f, vjp_cotangent(v), ratio));
  }
  if (vjp_wants(v, 1)) vjp_give(v, 1, vjp_zeros_like(v, vjp_arg(v, 1)));
}

/* Where both are equal nothing moves. */
static void vjp_nextafter(Vjp *v) {
  if (vjp_wants(v, 0)) {
    Tensor *equal = F_OP(&v->f, "aten.eq.Tensor", vjp_value(v, 0), vjp_value(v, 1));
    vjp_give(v, 0, zero_where(v, equal, vjp_cotangent(v)));
  }
  if (vjp_wants(v, 1)) vjp_give(v, 1, vjp_zeros_like(v, vjp_arg(v, 1)));
}

/* ---- sums of products -------------------------------------------------------------------------------------- */

static Tensor *valued(Vjp *v, Tensor *g) {
  Value by = vjp_value(v, 3);
  return by.kind != VAL_COMPLEX && val_as_float(&by) == 1 ? g : F_OP(&v->f, "aten.mul.Scalar", F_T(g), by);
}
static Tensor *other(Vjp *v, int arg) { return vjp_conj(v, vjp_arg(v, arg)); }

static void vjp_addcmul(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  for (int i = 1; i <= 2; i++)
    if (vjp_wants(v, i)) vjp_give(v, i, valued(v, f_mul(f, g, other(v, 3 - i))));
}

static void vjp_addcdiv(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  if (!vjp_wants(v, 1) && !vjp_wants(v, 2)) return;
  Tensor *q = f_div(f, valued(v, g), other(v, 2));
  vjp_give(v, 1, q);
  if (vjp_wants(v, 2)) vjp_give(v, 2, f_neg(f, f_mul(f, q, f_div(f, other(v, 1), other(v, 2)))));
}

static void vjp_lerp(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v), *w = vjp_arg(v, 2);
  if (w) {
    if (vjp_wants(v, 0)) vjp_give(v, 0, f_mul(f, g, f_shift(f, f_neg(f, vjp_conj(v, w)), 1)));
    if (vjp_wants(v, 1)) vjp_give(v, 1, f_mul(f, g, vjp_conj(v, w)));
    if (vjp_wants(v, 2)) vjp_give(v, 2, f_mul(f, g, vjp_conj(v, f_sub(f, vjp_arg(v, 1), vjp_arg(v, 0)))));
    return;
  }
  double weight = in_float(v->forward, 2);
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_scale(f, g, 1 - weight));
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_scale(f, g, weight));
}

/* abs e^(i angle): along the result and across it. */
static void vjp_polar(Vjp *v) {
  Formula *f = &v->f;
  Tensor *g = vjp_conj(v, vjp_cotangent(v)), *z = v->out[0];
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_mul(f, g, F_OP(f, "aten.sgn.default", F_T(z))));
  if (!vjp_wants(v, 1)) return;
  Tensor *across = F_OP(f, "aten.mul.Scalar", F_T(z), (Value){.kind = VAL_COMPLEX, .complex_ = {0, 1}});
  vjp_give(v, 1, f_mul(f, g, across));
}

const GradDef grads_powers[] = {
    GRAD("pow.Tensor_Scalar", vjp_pow_number, "self"),
    GRAD("pow.Tensor_Tensor", vjp_pow, "self exponent result"),
    GRAD("pow.Scalar", vjp_pow, "exponent result"),
    GRAD("remainder.Tensor remainder.Scalar remainder.Scalar_Tensor", vjp_remainder, "self other"),
    GRAD("fmod.Tensor fmod.Scalar", vjp_fmod, "self other"),
    GRAD("floor_divide.default floor_divide.Scalar", vjp_zero, NULL),
    GRAD("atan2.default arctan2.default", vjp_atan2, "self other"),
    GRAD("hypot.default", vjp_hypot, "self other result"),
    GRAD("logaddexp.default", vjp_logaddexp, "self other"),
    GRAD("logaddexp2.default", vjp_logaddexp2, "self other"),
    GRAD("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self special_xlogy.default special_xlogy.other_scalar "
         "special_xlogy.self_scalar",
         vjp_xlogy, "self other"),
    GRAD("special_xlog1py.default special_xlog1py.other_scalar special_xlog1py.self_scalar", vjp_xlog1py,
         "self other"),
    GRAD("copysign.Tensor copysign.Scalar", vjp_copysign, "self result"),
    GRAD("nextafter.default", vjp_nextafter, "self other"),
    GRAD("heaviside.default", vjp_zero, NULL),
    GRAD("addcmul.default", vjp_addcmul, "tensor1 tensor2"),
    GRAD("addcdiv.default", vjp_addcdiv, "tensor1 tensor2"),
    GRAD("lerp.Tensor", vjp_lerp, "self end weight"),
    GRAD("lerp.Scalar", vjp_lerp, NULL),
    GRAD("polar.default", vjp_polar, "result"),
    {0},
};
