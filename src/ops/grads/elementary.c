/* elementary.c -- gradients of exponentials, logarithms, trigonometric and hyperbolic functions, roots and
 * roundings: y = f(x), element by element.
 *
 * Each reads the result or the argument, whichever gives the derivative for less. */
#include <math.h>

#include "ops/vjp.h"

/* Derivative d: the gradient is g conj(d), or g / conj(d) where d is the inverse. */
static void give_times(Vjp *v, Tensor *d) { vjp_give(v, 0, f_mul(&v->f, vjp_cotangent(v), vjp_conj(v, d))); }
static void give_over(Vjp *v, Tensor *d) { vjp_give(v, 0, f_div(&v->f, vjp_cotangent(v), vjp_conj(v, d))); }

static Tensor *of(Vjp *v, const char *op, Tensor *x) { return F_OP(&v->f, op, F_T(x)); }
static Tensor *self(Vjp *v) { return vjp_arg(v, 0); }
static Tensor *square(Vjp *v, Tensor *x) { return of(v, "aten.square.default", x); }

/* ---- exponentials and logarithms ------------------------------------------------------------- */

static void vjp_exp(Vjp *v) { give_times(v, v->out[0]); }
static void vjp_exp2(Vjp *v) { give_times(v, f_scale(&v->f, v->out[0], M_LN2)); }
static void vjp_expm1(Vjp *v) { give_times(v, f_shift(&v->f, v->out[0], 1)); }
static void vjp_log(Vjp *v) { give_over(v, self(v)); }
static void vjp_log2(Vjp *v) { give_over(v, f_scale(&v->f, self(v), M_LN2)); }
static void vjp_log10(Vjp *v) { give_over(v, f_scale(&v->f, self(v), M_LN10)); }
static void vjp_log1p(Vjp *v) { give_over(v, f_shift(&v->f, self(v), 1)); }

/* ---- angles ------------------------------------------------------------------------------------ */

static void vjp_sin(Vjp *v) { give_times(v, of(v, "aten.cos.default", self(v))); }
static void vjp_cos(Vjp *v) { give_times(v, f_neg(&v->f, of(v, "aten.sin.default", self(v)))); }
static void vjp_tan(Vjp *v) { give_times(v, f_shift(&v->f, square(v, v->out[0]), 1)); }
static void vjp_sinh(Vjp *v) { give_times(v, of(v, "aten.cosh.default", self(v))); }
static void vjp_cosh(Vjp *v) { give_times(v, of(v, "aten.sinh.default", self(v))); }

/* x^2, which is near 1 where these functions are steep. */
static Tensor *wide_square(Vjp *v) { return square(v, f_widen(&v->f, self(v))); }
static Tensor *one_minus_square(Vjp *v) { return f_shift(&v->f, f_neg(&v->f, wide_square(v)), 1); }

static void vjp_asin(Vjp *v) { give_times(v, f_rsqrt(&v->f, one_minus_square(v))); }
static void vjp_acos(Vjp *v) { give_times(v, f_neg(&v->f, f_rsqrt(&v->f, one_minus_square(v)))); }
static void vjp_atan(Vjp *v) { give_over(v, f_shift(&v->f, square(v, self(v)), 1)); }
static void vjp_asinh(Vjp *v) { give_times(v, f_rsqrt(&v->f, f_shift(&v->f, square(v, self(v)), 1))); }
static void vjp_acosh(Vjp *v) { give_times(v, f_rsqrt(&v->f, f_shift(&v->f, wide_square(v), -1))); }
static void vjp_atanh(Vjp *v) { give_over(v, one_minus_square(v)); }

/* A constant factor: the gradient is the op of the cotangent. */
static void vjp_degrees(Vjp *v) { vjp_give(v, 0, of(v, v->forward->op->schema.name, vjp_cotangent(v))); }

/* d angle(z) = i z / |z|^2, 0 at 0 and for real numbers. */
static void vjp_angle(Vjp *v) {
  Formula *f = &v->f;
  Tensor *z = self(v);
  if (dtype_kind(z->dtype) != KIND_COMPLEX) {
    vjp_zero(v);
    return;
  }
  Tensor *size = f_abs(f, z),
         *turned = F_OP(f, "aten.mul.Scalar", F_T(z), (Value){.kind = VAL_COMPLEX, .complex_ = {0, 1}});
  Tensor *d = f_div(f, turned, f_mul(f, size, size));
  Tensor *at_zero = F_OP(f, "aten.eq.Scalar", F_T(size), val_int(0));
  d = F_OP(f, "aten.where.ScalarSelf", F_T(at_zero), val_int(0), F_T(d));
  vjp_give(v, 0, f_mul(f, vjp_cotangent(v), d));
}

/* ---- roots and powers ---------------------------------------------------------------------------- */

static void vjp_sqrt(Vjp *v) { give_over(v, f_scale(&v->f, v->out[0], 2)); }

static void vjp_rsqrt(Vjp *v) {
  Tensor *cube = F_OP(&v->f, "aten.pow.Tensor_Scalar", F_T(v->out[0]), val_int(3));
  give_times(v, f_scale(&v->f, cube, -0.5));
}

static void vjp_reciprocal(Vjp *v) { give_times(v, f_neg(&v->f, square(v, v->out[0]))); }
static void vjp_square(Vjp *v) { give_times(v, f_scale(&v->f, self(v), 2)); }

/* ---- pieces ------------------------------------------------------------------------------------- */

/* |x|: the sign of x, 0 at 0; for complex numbers x / |x|. */
static void vjp_abs(Vjp *v) { vjp_give(v, 0, f_mul(&v->f, vjp_cotangent(v), of(v, "aten.sgn.default", self(v)))); }

/* z / |z| turns with the part of g across it: (g - y Re(g conj y)) / |z|, 0 at 0. */
static void vjp_sgn(Vjp *v) {
  Formula *f = &v->f;
  Tensor *z = self(v), *y = v->out[0], *g = vjp_cotangent(v);
  if (dtype_kind(z->dtype) != KIND_COMPLEX) {
    vjp_zero(v);
    return;
  }
  Tensor *along = F_OP(f, "aten.real.default", F_T(f_mul(f, g, vjp_conj(v, y)))), *size = f_abs(f, z);
  Tensor *d = f_div(f, f_sub(f, g, f_mul(f, y, along)), size);
  Tensor *at_zero = F_OP(f, "aten.eq.Scalar", F_T(size), val_int(0));
  vjp_give(v, 0, F_OP(f, "aten.where.ScalarSelf", F_T(at_zero), val_int(0), F_T(d)));
}

static void vjp_same(Vjp *v) { vjp_give(v, 0, vjp_cotangent(v)); }
static void vjp_nan_to_num(Vjp *v) {
  vjp_give(v, 0, f_mul(&v->f, vjp_cotangent(v), of(v, "aten.isfinite.default", self(v))));
}

const GradDef grads_elementary[] = {
    GRAD("exp.default", vjp_exp, "result"),
    GRAD("exp2.default special_exp2.default", vjp_exp2, "result"),
    GRAD("expm1.default special_expm1.default", vjp_expm1, "result"),
    GRAD("log.default", vjp_log, "self"),
    GRAD("log2.default", vjp_log2, "self"),
    GRAD("log10.default", vjp_log10, "self"),
    GRAD("log1p.default special_log1p.default", vjp_log1p, "self"),
    GRAD("sin.default", vjp_sin, "self"),
    GRAD("cos.default", vjp_cos, "self"),
    GRAD("tan.default", vjp_tan, "result"),
    GRAD("sinh.default", vjp_sinh, "self"),
    GRAD("cosh.default", vjp_cosh, "self"),
    GRAD("asin.default arcsin.default", vjp_asin, "self"),
    GRAD("acos.default arccos.default", vjp_acos, "self"),
    GRAD("atan.default arctan.default", vjp_atan, "self"),
    GRAD("asinh.default arcsinh.default", vjp_asinh, "self"),
    GRAD("acosh.default arccosh.default", vjp_acosh, "self"),
    GRAD("atanh.default arctanh.default", vjp_atanh, "self"),
    GRAD("deg2rad.default rad2deg.default", vjp_degrees, NULL),
    GRAD("angle.default", vjp_angle, "self"),
    GRAD("sqrt.default", vjp_sqrt, "result"),
    GRAD("rsqrt.default", vjp_rsqrt, "result"),
    GRAD("reciprocal.default", vjp_reciprocal, "result"),
    GRAD("square.default", vjp_square, "self"),
    GRAD("abs.default absolute.default", vjp_abs, "self"),
    GRAD("sgn.default", vjp_sgn, "self result"),
    GRAD("frac.default", vjp_same, NULL),
    GRAD("nan_to_num.default", vjp_nan_to_num, "self"),
    GRAD("ceil.default floor.default round.default round.decimals trunc.default fix.default sign.default", vjp_zero,
         NULL),
    {0},
};
