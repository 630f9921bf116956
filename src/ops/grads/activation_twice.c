/* activation_twice.c -- gradients of the *_backward ops of activation functions: second derivatives.
 *
 * All are linear in grad_output, so its gradient is the same op of the cotangent. */
#include <math.h>

#include "ops/vjp.h"

/* The forward call with the cotangent in place of grad_output. */
static void give_linear(Vjp *v) {
  const Call *c = v->forward;
  Value arg[MAX_PARAMS];
  if (!vjp_wants(v, 0)) return;
  for (int i = 0; i < c->op->schema.nparams; i++) arg[i] = c->arg[i];
  arg[0] = F_T(vjp_cotangent(v));
  vjp_give(v, 0, formula_op(&v->f, c->op->schema.name, arg, c->op->schema.nparams));
}

/* Cotangent times grad_output. */
static Tensor *both(Vjp *v) { return f_mul(&v->f, vjp_cotangent(v), vjp_arg(v, 0)); }

static Tensor *of(Vjp *v, const char *op, Tensor *x) { return F_OP(&v->f, op, F_T(x)); }

/* The second derivative d at argument `arg`. */
static void give_second(Vjp *v, int arg, Tensor *d) { vjp_give(v, arg, f_mul(&v->f, both(v), d)); }

/* ---- those that bend nowhere -------------------------------------------------------------------------- */

static void vjp_straight(Vjp *v) {
  give_linear(v);
  if (vjp_wants(v, 1)) vjp_give(v, 1, vjp_zeros_like(v, vjp_arg(v, 1)));
}

/* x / 3 + 1 / 2 between -3 and 3 */
static void vjp_hardswish_backward(Vjp *v) {
  Formula *f = &v->f;
  give_linear(v);
  if (!vjp_wants(v, 1)) return;
  Tensor *beyond = F_OP(f, "aten.ge.Scalar", F_T(f_abs(f, vjp_arg(v, 1))), val_float(3));
  Tensor *d = f_scale(f, both(v), 1.0 / 3);
  vjp_give(v, 1, F_OP(f, "aten.where.ScalarSelf", F_T(beyond), val_int(0), F_T(d)));
}

/* ---- tanh, sigmoid and what is made of them -------------------------------------------------------------- */

/* of the output y: 1 - y^2, y - y^2 */
static void vjp_tanh_backward(Vjp *v) {
  give_linear(v);
  if (vjp_wants(v, 1)) give_second(v, 1, f_scale(&v->f, vjp_conj(v, vjp_arg(v, 1)), -2));
}

static void vjp_sigmoid_backward(Vjp *v) {
  give_linear(v);
  if (vjp_wants(v, 1)) give_second(v, 1, f_shift(&v->f, f_scale(&v->f, vjp_conj(v, vjp_arg(v, 1)), -2), 1));
}

/* s (1 - s) */
static Tensor *sigmoid_slope(Vjp *v, Tensor *s) { return f_mul(&v->f, s, f_shift(&v->f, f_neg(&v->f, s), 1)); }

/* x s: s (1 - s) (2 + x (1 - 2 s)) */
static void vjp_silu_backward(Vjp *v) {
  Formula *f = &v->f;
  give_linear(v);
  if (!vjp_wants(v, 1)) return;
  Tensor *x = f_widen(f, vjp_arg(v, 1)), *s = of(v, "aten.sigmoid.default", x);
  Tensor *bend = f_shift(f, f_mul(f, x, f_shift(f, f_scale(f, s, -2), 1)), 2);
  give_second(v, 1, f_mul(f, sigmoid_slope(v, s), bend));
}

/* x t, t = tanh(softplus(x)), t' = (1 - t^2) s: t' (2 + x (1 - s - 2 t s)) */
static void vjp_mish_backward(Vjp *v) {
  Formula *f = &v->f;
  give_linear(v);
  if (!vjp_wants(v, 1)) return;
  Tensor *x = f_widen(f, vjp_arg(v, 1)), *s = of(v, "aten.sigmoid.default", x);
  Tensor *t = of(v, "aten.tanh.default", of(v, "aten.softplus.default", x));
  Tensor *slope = f_mul(f, f_shift(f, f_neg(f, f_mul(f, t, t)), 1), s);
  Tensor *bend = f_shift(f, f_neg(f, f_mul(f, s, f_shift(f, f_scale(f, t, 2), 1))), 1);
  give_second(v, 1, f_mul(f, slope, f_shift(f, f_mul(f, x, bend), 2)));
}

/* s(beta x): beta s (1 - s), 0 above the threshold */
static void vjp_softplus_backward(Vjp *v) {
  Formula *f = &v->f;
  double beta = in_float(v->forward, 2), threshold = in_float(v->forward, 3);
  give_linear(v);
  if (!vjp_wants(v, 1)) return;
  Tensor *x = f_scale(f, f_widen(f, vjp_arg(v, 1)), beta), *s = of(v, "aten.sigmoid.default", x);
  Tensor *d = f_mul(f, both(v), f_scale(f, sigmoid_slope(v, s), beta));
  Tensor *above = F_OP(f, "aten.gt.Scalar", F_T(x), val_float(threshold));
  vjp_give(v, 1, F_OP(f, "aten.where.ScalarSelf", F_T(above), val_int(0), F_T(d)));
}

/* a s(b): (g, self, dim), self = (a, b) */
static void vjp_glu_backward(Vjp *v) {
  Formula *f = &v->f;
  int64_t dim = in_int(v->forward, 2), half;
  const Tensor *self = vjp_arg(v, 1);
  if (dim < 0) dim += self->ndim;
  half = self->size[dim] / 2;
  Tensor *part[2][2], *wide[2] = {f_widen(f, vjp_cotangent(v)), f_widen(f, vjp_arg(v, 1))};
  for (int i = 0; i < 2; i++)
    for (int h = 0; h < 2; h++)
      part[i][h] = F_OP(f, "aten.narrow.default", F_T(wide[i]), val_int(dim), val_int(h * half), val_int(half));
  Tensor *ua = part[0][0], *ub = part[0][1], *a = part[1][0], *s = of(v, "aten.sigmoid.default", part[1][1]);
  Tensor *slope = sigmoid_slope(v, s), *g = f_widen(f, vjp_arg(v, 0));
  Tensor *uba = f_mul(f, ub, a);
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_add(f, f_mul(f, ua, s), f_mul(f, uba, slope)));
  if (!vjp_wants(v, 1)) return;
  Tensor *gs = f_mul(f, g, slope), *bend = f_mul(f, uba, f_shift(f, f_scale(f, s, -2), 1));
  Tensor *d[2] = {f_mul(f, gs, ub), f_mul(f, gs, f_add(f, ua, bend))};
  vjp_give(v, 1, F_OP(f, "aten.cat.default", val_tensors(d, 2), val_int(dim)));
}

/* ---- gelu ----------------------------------------------------------------------------------------------- */

/* x cdf(x): pdf(x) (2 - x^2) */
static Tensor *gelu_erf_second(Formula *f, Tensor *x) {
  Tensor *square = f_mul(f, x, x),
         *pdf = f_scale(f, f_exp(f, f_scale(f, square, -0.5)), M_2_SQRTPI * M_SQRT1_2 / 2);
  return f_mul(f, pdf, f_shift(f, f_neg(f, square), 2));
}

/* x (1 + t) / 2, t = tanh(u), u = k (x + c x^3): t' = (1 - t^2) u', and t' + x (t'' / 2), where
 * t'' = (1 - t^2) (u'' - 2 t u'^2) */
static Tensor *gelu_tanh_second(Formula *f, Tensor *x) {
  const double k = M_SQRT2 * M_2_SQRTPI / 2, cubic = 0.044715;
  Tensor *square = f_mul(f, x, x), *u = f_scale(f, f_mul(f, x, f_shift(f, f_scale(f, square, cubic), 1)), k);
  Tensor *t = F_OP(f, "aten.tanh.default", F_T(u)), *slope = f_shift(f, f_neg(f, f_mul(f, t, t)), 1);
  Tensor *u1 = f_shift(f, f_scale(f, square, 3 * cubic * k), k), *u2 = f_scale(f, x, 6 * cubic * k);
  Tensor *bend = f_sub(f, u2, f_mul(f, f_scale(f, t, 2), f_mul(f, u1, u1)));
  return f_mul(f, slope, f_add(f, u1, f_mul(f, x, f_scale(f, bend, 0.5))));
}

static void vjp_gelu_backward(Vjp *v) {
  const char *form = in_str(v->forward, 2);
  give_linear(v);
  if (!vjp_wants(v, 1)) return;
  Tensor *x = f_widen(&v->f, vjp_arg(v, 1));
  give_second(v, 1, form && form[0] == 't' ? gelu_tanh_second(&v->f, x) : gelu_erf_second(&v->f, x));
}

/* ---- elu and prelu ---------------------------------------------------------------------------------------- */

/* scale alpha input_scale^2 e^(input_scale x) below 0; of the result y: input_scale */
static void vjp_elu_backward(Vjp *v) {
  Formula *f = &v->f;
  double alpha = in_float(v->forward, 1), scale = in_float(v->forward, 2), inner = in_float(v->forward, 3);
  give_linear(v);
  if (!vjp_wants(v, 5)) return;
  Tensor *x = f_widen(f, vjp_arg(v, 5)), *below = F_OP(f, "aten.le.Scalar", F_T(x), val_int(0));
  Tensor *d = in_bool(v->forward, 4)
                  ? f_scale(f, both(v), inner)
                  : f_mul(f, both(v), f_scale(f, f_exp(f, f_scale(f, x, inner)), alpha * scale * inner * inner));
  vjp_give(v, 5, F_OP(f, "aten.where.ScalarOther", F_T(below), F_T(d), val_int(0)));
}

/* gx = g, below 0 w g; gw = 0, below 0 x g; u and t are their cotangents. */
static void vjp_prelu_backward(Vjp *v) {
  Formula *f = &v->f;
  Tensor *u = f_widen(f, vjp_cotangent_or_zeros(v, 0)), *t = f_widen(f, vjp_cotangent_or_zeros(v, 1)),
         *g = f_widen(f, vjp_arg(v, 0)), *x = f_widen(f, vjp_arg(v, 1)), *w = f_widen(f, vjp_arg(v, 2));
  Tensor *above = F_OP(f, "aten.gt.Scalar", F_T(x), val_int(0));
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_where(f, above, u, f_add(f, f_mul(f, u, w), f_mul(f, t, x))));
  if (vjp_wants(v, 1))
    vjp_give(v, 1, F_OP(f, "aten.where.ScalarSelf", F_T(above), val_int(0), F_T(f_mul(f, t, g))));
  if (vjp_wants(v, 2))
    vjp_give(v, 2, F_OP(f, "aten.where.ScalarSelf", F_T(above), val_int(0), F_T(f_mul(f, u, g))));
}

const GradDef grads_activation_twice[] = {
    GRAD("threshold_backward.default hardtanh_backward.default leaky_relu_backward.default "
         "softshrink_backward.default hardshrink_backward.default hardsigmoid_backward.default",
         vjp_straight, "self"),
    GRAD("rrelu_with_noise_backward.default", vjp_straight, "self noise"),
    GRAD("hardswish_backward.default", vjp_hardswish_backward, "grad_output self"),
    GRAD("tanh_backward.default", vjp_tanh_backward, "grad_output output"),
    GRAD("sigmoid_backward.default", vjp_sigmoid_backward, "grad_output output"),
    GRAD("silu_backward.default", vjp_silu_backward, "grad_output self"),
    GRAD("mish_backward.default", vjp_mish_backward, "grad_output self"),
    GRAD("softplus_backward.default", vjp_softplus_backward, "grad_output self"),
    GRAD("gelu_backward.default", vjp_gelu_backward, "grad_output self"),
    GRAD("glu_backward.default", vjp_glu_backward, "grad_output self"),
    GRAD("elu_backward.default", vjp_elu_backward, "grad_output self_or_result"),
    GRAD("_prelu_kernel_backward.default", vjp_prelu_backward, "grad_output self weight"),
    {0},
};
