/* special.c -- gradients of special functions.  Of those that PyTorch does not differentiate (Bessel functions
 * but I0 and I1, orthogonal polynomials), results carry no gradient. */
#include <math.h>

#include "ops/vjp.h"

static Tensor *self(Vjp *v) { return vjp_arg(v, 0); }
static Tensor *of(Vjp *v, const char *op, Tensor *x) { return F_OP(&v->f, op, F_T(x)); }
static void give_times(Vjp *v, int arg, Tensor *d) { vjp_give(v, arg, f_mul(&v->f, vjp_cotangent(v), d)); }

/* scale e^(by x^2) */
static Tensor *bell(Vjp *v, Tensor *x, double by, double scale) {
  return f_scale(&v->f, f_exp(&v->f, f_scale(&v->f, of(v, "aten.square.default", x), by)), scale);
}

/* ---- the error function and the normal distribution ------------------------------------------------------ */

static const double SQRT_PI = 1.77245385090551602730, SQRT_2PI = 2.50662827463100050242;

static void vjp_erf(Vjp *v) { give_times(v, 0, bell(v, self(v), -1, M_2_SQRTPI)); }
static void vjp_erfc(Vjp *v) { give_times(v, 0, bell(v, self(v), -1, -M_2_SQRTPI)); }
static void vjp_erfinv(Vjp *v) { give_times(v, 0, bell(v, v->out[0], 1, SQRT_PI / 2)); }
static void vjp_ndtr(Vjp *v) { give_times(v, 0, bell(v, self(v), -0.5, 1 / SQRT_2PI)); }
static void vjp_ndtri(Vjp *v) { give_times(v, 0, bell(v, v->out[0], 0.5, SQRT_2PI)); }

/* pdf / cdf = sqrt(2 / pi) / erfcx(-x / sqrt(2)) */
static void vjp_log_ndtr(Vjp *v) {
  Tensor *cdf = of(v, "aten.special_erfcx.default", f_scale(&v->f, self(v), -M_SQRT1_2));
  vjp_give(v, 0, f_scale(&v->f, f_div(&v->f, vjp_cotangent(v), cdf), M_2_SQRTPI * M_SQRT1_2));
}

/* 2 x y - 2 / sqrt(pi) */
static void vjp_erfcx(Vjp *v) {
  give_times(v, 0, f_shift(&v->f, f_scale(&v->f, f_mul(&v->f, self(v), v->out[0]), 2), -M_2_SQRTPI));
}

/* ---- gamma and zeta ----------------------------------------------------------------------------------------- */

static void vjp_lgamma(Vjp *v) { give_times(v, 0, of(v, "aten.digamma.default", self(v))); }
static void vjp_digamma(Vjp *v) {
  give_times(v, 0, F_OP(&v->f, "aten.polygamma.default", val_int(1), F_T(self(v))));
}
static void vjp_polygamma(Vjp *v) {
  int64_t order = in_int(v->forward, 0);
  if (order == INT64_MAX && !v->f.status) v->f.status = op_fail(v->forward, "has no gradient of so high an order");
  if (v->f.status) return;
  give_times(v, 1, F_OP(&v->f, "aten.polygamma.default", val_int(order + 1), vjp_value(v, 1)));
}

/* Known by the second argument alone: an error if the first one's is asked for. */
static bool only_second(Vjp *v) {
  if (vjp_wants(v, 0) && !v->f.status)
    v->f.status = op_fail(v->forward, "has no known gradient by its first argument; take it without one (detach)");
  return vjp_wants(v, 1) && !v->f.status;
}

/* sign e^((a - 1) log x - x - log gamma(a)) */
static void give_igamma(Vjp *v, double sign) {
  Formula *f = &v->f;
  if (!only_second(v)) return;
  Tensor *a = vjp_arg(v, 0), *x = vjp_arg(v, 1);
  Tensor *e = f_sub(f, f_sub(f, f_mul(f, f_shift(f, a, -1), f_log(f, x)), x), of(v, "aten.lgamma.default", a));
  give_times(v, 1, f_scale(f, f_exp(f, e), sign));
}

static void vjp_igamma(Vjp *v) { give_igamma(v, 1); }
static void vjp_igammac(Vjp *v) { give_igamma(v, -1); }

/* -s zeta(s + 1, q) */
static void vjp_zeta(Vjp *v) {
  Formula *f = &v->f;
  Value s = vjp_value(v, 0);
  if (!only_second(v)) return;
  if (s.kind == VAL_TENSOR) {
    Tensor *next = F_OP(f, "aten.special_zeta.default", F_T(f_shift(f, s.tensor, 1)), vjp_value(v, 1));
    give_times(v, 1, f_neg(f, f_mul(f, s.tensor, next)));
  } else {
    Tensor *next = F_OP(f, "aten.special_zeta.self_scalar", val_float(val_as_float(&s) + 1), vjp_value(v, 1));
    give_times(v, 1, f_scale(f, next, -val_as_float(&s)));
  }
}

/* ---- modified Bessel functions ------------------------------------------------------------------------------ */

static void vjp_i0(Vjp *v) { give_times(v, 0, of(v, "aten.special_i1.default", self(v))); }

/* i1e - sgn(x) y */
static void vjp_i0e(Vjp *v) {
  Tensor *x = self(v), *tilt = f_mul(&v->f, of(v, "aten.sgn.default", x), v->out[0]);
  give_times(v, 0, f_sub(&v->f, of(v, "aten.special_i1e.default", x), tilt));
}

/* i0 - y (tilt + 1 / x); 1/2 near 0, where x is replaced by eps. */
static void give_i1(Vjp *v, const char *i0, bool scaled) {
  Formula *f = &v->f;
  Tensor *x = self(v);
  double eps = x->dtype == DT_F64 ? 2.220446049250313e-16 : 1.1920928955078125e-07;
  Tensor *far = F_OP(f, "aten.gt.Scalar", F_T(f_abs(f, x)), val_float(eps));
  Tensor *safe = F_OP(f, "aten.where.ScalarOther", F_T(far), F_T(x), val_float(eps));
  Tensor *slope = of(v, "aten.reciprocal.default", safe);
  if (scaled) slope = f_add(f, slope, of(v, "aten.sgn.default", x));
  Tensor *d = f_sub(f, of(v, i0, safe), f_mul(f, v->out[0], slope));
  give_times(v, 0, F_OP(f, "aten.where.ScalarOther", F_T(far), F_T(d), val_float(0.5)));
}

static void vjp_i1(Vjp *v) { give_i1(v, "aten.special_i0.default", false); }
static void vjp_i1e(Vjp *v) { give_i1(v, "aten.special_i0e.default", true); }

/* ---- others
 * -------------------------------------------------------------------------------------------------------- */

/* -x log x: -log x - 1 */
static void vjp_entr(Vjp *v) { give_times(v, 0, f_neg(&v->f, f_shift(&v->f, f_log(&v->f, self(v)), 1))); }

/* sin(pi x) / (pi x): (pi x cos(pi x) - sin(pi x)) / (pi x^2), 0 at 0 */
static void vjp_sinc(Vjp *v) {
  Formula *f = &v->f;
  Tensor *x = self(v), *angle = f_scale(f, x, M_PI), *square = f_scale(f, of(v, "aten.square.default", x), M_PI);
  Tensor *top = f_sub(f, f_mul(f, angle, of(v, "aten.cos.default", angle)), of(v, "aten.sin.default", angle));
  Tensor *d = f_mul(f, vjp_cotangent(v), vjp_conj(v, f_div(f, top, square)));
  Tensor *zero = F_OP(f, "aten.eq.Scalar", F_T(square), val_int(0));
  vjp_give(v, 0, F_OP(f, "aten.where.ScalarSelf", F_T(zero), val_int(0), F_T(d)));
}

static void vjp_logit(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.logit_backward.default", F_T(vjp_cotangent(v)), F_T(self(v)), vjp_value(v, 1)));
}

/* g / (x (1 - x)) inside of [eps, 1 - eps]: by x g (2 x - 1) / (x (1 - x))^2 */
static void vjp_logit_backward(Vjp *v) {
  Formula *f = &v->f;
  Tensor *x = f_widen(f, vjp_arg(v, 1));
  if (vjp_wants(v, 0))
    vjp_give(v, 0, F_OP(f, "aten.logit_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 1), vjp_value(v, 2)));
  if (!vjp_wants(v, 1)) return;
  double eps = in_none(v->forward, 2) ? 0 : in_float(v->forward, 2);
  Tensor *slope = f_mul(f, x, f_shift(f, f_neg(f, x), 1));
  Tensor *d = f_div(f, f_shift(f, f_scale(f, x, 2), -1), f_mul(f, slope, slope));
  d = f_mul(f, f_mul(f, vjp_cotangent(v), vjp_arg(v, 0)), d);
  Tensor *low = F_OP(f, "aten.ge.Scalar", F_T(x), val_float(eps)),
         *high = F_OP(f, "aten.le.Scalar", F_T(x), val_float(1 - eps));
  Tensor *inside = F_OP(f, "aten.logical_and.default", F_T(low), F_T(high));
  vjp_give(v, 1, F_OP(f, "aten.where.ScalarOther", F_T(inside), F_T(d), val_int(0)));
}

#define OVERLOADS(name) name ".default " name ".n_scalar " name ".x_scalar "
const GradDef grads_special[] = {
    GRAD("erf.default special_erf.default", vjp_erf, "self"),
    GRAD("erfc.default special_erfc.default", vjp_erfc, "self"),
    GRAD("erfinv.default special_erfinv.default", vjp_erfinv, "result"),
    GRAD("special_ndtr.default", vjp_ndtr, "self"),
    GRAD("special_ndtri.default", vjp_ndtri, "result"),
    GRAD("special_log_ndtr.default", vjp_log_ndtr, "self"),
    GRAD("special_erfcx.default", vjp_erfcx, "self result"),
    GRAD("lgamma.default special_gammaln.default", vjp_lgamma, "self"),
    GRAD("digamma.default special_digamma.default special_psi.default", vjp_digamma, "self"),
    GRAD("polygamma.default special_polygamma.default", vjp_polygamma, "self"),
    GRAD("igamma.default special_gammainc.default", vjp_igamma, "self other"),
    GRAD("igammac.default special_gammaincc.default", vjp_igammac, "self other"),
    GRAD("special_zeta.default special_zeta.other_scalar special_zeta.self_scalar", vjp_zeta, "self other"),
    GRAD("i0.default special_i0.default", vjp_i0, "self"),
    GRAD("special_i0e.default", vjp_i0e, "self result"),
    GRAD("special_i1.default", vjp_i1, "self result"),
    GRAD("special_i1e.default", vjp_i1e, "self result"),
    GRAD("special_entr.default", vjp_entr, "self"),
    GRAD("sinc.default special_sinc.default", vjp_sinc, "self"),
    GRAD("logit.default special_logit.default", vjp_logit, "self"),
    GRAD("logit_backward.default", vjp_logit_backward, "grad_output self"),
    GRAD("special_bessel_j0.default special_bessel_j1.default special_bessel_y0.default special_bessel_y1.default "
         "special_modified_bessel_i0.default special_modified_bessel_i1.default special_modified_bessel_k0.default "
         "special_modified_bessel_k1.default special_scaled_modified_bessel_k0.default "
         "special_scaled_modified_bessel_k1.default special_spherical_bessel_j0.default special_airy_ai.default",
         vjp_none, NULL),
    GRAD(OVERLOADS("special_chebyshev_polynomial_t") OVERLOADS("special_chebyshev_polynomial_u")
             OVERLOADS("special_chebyshev_polynomial_v") OVERLOADS("special_chebyshev_polynomial_w")
                 OVERLOADS("special_hermite_polynomial_h") OVERLOADS("special_hermite_polynomial_he")
                     OVERLOADS("special_laguerre_polynomial_l") OVERLOADS("special_legendre_polynomial_p"),
         vjp_none, NULL),
    GRAD(OVERLOADS("special_shifted_chebyshev_polynomial_t") OVERLOADS("special_shifted_chebyshev_polynomial_u")
             OVERLOADS("special_shifted_chebyshev_polynomial_v")
                 OVERLOADS("special_shifted_chebyshev_polynomial_w"),
         vjp_none, NULL),
    {0},
};
