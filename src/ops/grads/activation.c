/* activation.c -- gradients of activation functions: each has its op for that, *_backward.  The gradients of
 * those ops are in activation_twice.c. */
#include "ops/vjp.h"

static Tensor *self(const Vjp *v) { return vjp_arg(v, 0); }

/* op(g, read, arguments of the forward call from 1 on). */
static void give_backward(Vjp *v, const char *op, Tensor *read, int nargs) {
  Value arg[6] = {F_T(vjp_cotangent(v)), F_T(read)};
  for (int i = 1; i <= nargs; i++) arg[1 + i] = vjp_value(v, i);
  vjp_give(v, 0, formula_op(&v->f, op, arg, 2 + nargs));
}

/* Of the result y: 1 - y^2, y (1 - y).  The ops are for real numbers. */
static void vjp_tanh(Vjp *v) {
  Formula *f = &v->f;
  Tensor *y = v->out[0];
  if (dtype_kind(y->dtype) != KIND_COMPLEX) {
    give_backward(v, "aten.tanh_backward.default", y, 0);
    return;
  }
  Tensor *d = f_shift(f, f_neg(f, f_mul(f, y, y)), 1);
  vjp_give(v, 0, f_mul(f, vjp_cotangent(v), vjp_conj(v, d)));
}

static void vjp_sigmoid(Vjp *v) {
  Formula *f = &v->f;
  Tensor *y = v->out[0];
  if (dtype_kind(y->dtype) != KIND_COMPLEX) {
    give_backward(v, "aten.sigmoid_backward.default", y, 0);
    return;
  }
  Tensor *d = f_mul(f, y, f_shift(f, f_neg(f, y), 1));
  vjp_give(v, 0, f_mul(f, vjp_cotangent(v), vjp_conj(v, d)));
}

static void vjp_silu(Vjp *v) { give_backward(v, "aten.silu_backward.default", self(v), 0); }
static void vjp_mish(Vjp *v) { give_backward(v, "aten.mish_backward.default", self(v), 0); }
static void vjp_hardsigmoid(Vjp *v) { give_backward(v, "aten.hardsigmoid_backward.default", self(v), 0); }
static void vjp_hardswish(Vjp *v) { give_backward(v, "aten.hardswish_backward.default", self(v), 0); }
static void vjp_gelu(Vjp *v) { give_backward(v, "aten.gelu_backward.default", self(v), 1); }
static void vjp_hardtanh(Vjp *v) { give_backward(v, "aten.hardtanh_backward.default", self(v), 2); }
static void vjp_softplus(Vjp *v) { give_backward(v, "aten.softplus_backward.default", self(v), 2); }
static void vjp_hardshrink(Vjp *v) { give_backward(v, "aten.hardshrink_backward.default", self(v), 1); }
static void vjp_softshrink(Vjp *v) { give_backward(v, "aten.softshrink_backward.default", self(v), 1); }
static void vjp_threshold(Vjp *v) { give_backward(v, "aten.threshold_backward.default", self(v), 1); }
static void vjp_glu(Vjp *v) { give_backward(v, "aten.glu_backward.default", self(v), 1); }

/* The result is above 0 where the argument is. */
static void vjp_relu(Vjp *v) {
  vjp_give(v, 0, F_OP(&v->f, "aten.threshold_backward.default", F_T(vjp_cotangent(v)), F_T(v->out[0]), val_int(0)));
}

static void vjp_relu6(Vjp *v) {
  vjp_give(
      v, 0,
      F_OP(&v->f, "aten.hardtanh_backward.default", F_T(vjp_cotangent(v)), F_T(self(v)), val_int(0), val_int(6)));
}

/* s(-x) */
static void vjp_log_sigmoid(Vjp *v) {
  Tensor *d = F_OP(&v->f, "aten.sigmoid.default", F_T(f_neg(&v->f, self(v))));
  vjp_give(v, 0, f_mul(&v->f, vjp_cotangent(v), d));
}

static void give_leaky(Vjp *v, Value slope) {
  vjp_give(
      v, 0,
      F_OP(&v->f, "aten.leaky_relu_backward.default", F_T(vjp_cotangent(v)), F_T(self(v)), slope, val_bool(false)));
}

static void vjp_leaky_relu(Vjp *v) { give_leaky(v, vjp_value(v, 1)); }

/* Outside of training the slope is the middle of the range. */
static void vjp_rrelu(Vjp *v) { give_leaky(v, val_float((in_float(v->forward, 1) + in_float(v->forward, 2)) / 2)); }

static void give_elu(Vjp *v, double alpha, double scale, double input_scale) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.elu_backward.default", F_T(vjp_cotangent(v)), val_float(alpha), val_float(scale),
                val_float(input_scale), val_bool(false), F_T(self(v))));
}

static void vjp_elu(Vjp *v) {
  give_elu(v, in_float(v->forward, 1), in_float(v->forward, 2), in_float(v->forward, 3));
}
static void vjp_selu(Vjp *v) {
  give_elu(v, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946, 1);
}
static void vjp_celu(Vjp *v) { give_elu(v, in_float(v->forward, 1), 1, 1 / in_float(v->forward, 1)); }

static void vjp_prelu(Vjp *v) {
  Tensor *d[2];
  F_OPS(&v->f, "aten._prelu_kernel_backward.default", d, 2, F_T(vjp_cotangent(v)), F_T(self(v)),
        F_T(vjp_arg(v, 1)));
  vjp_give(v, 0, d[0]);
  vjp_give(v, 1, d[1]);
}

const GradDef grads_activation[] = {
    GRAD("tanh.default", vjp_tanh, "result"),
    GRAD("sigmoid.default special_expit.default", vjp_sigmoid, "result"),
    GRAD("relu.default", vjp_relu, "result"),
    GRAD("relu6.default", vjp_relu6, "self"),
    GRAD("silu.default", vjp_silu, "self"),
    GRAD("mish.default", vjp_mish, "self"),
    GRAD("log_sigmoid.default", vjp_log_sigmoid, "self"),
    GRAD("hardsigmoid.default", vjp_hardsigmoid, "self"),
    GRAD("hardswish.default", vjp_hardswish, "self"),
    GRAD("gelu.default", vjp_gelu, "self"),
    GRAD("hardtanh.default", vjp_hardtanh, "self"),
    GRAD("leaky_relu.default", vjp_leaky_relu, "self"),
    GRAD("rrelu.default", vjp_rrelu, "self"),
    GRAD("softplus.default", vjp_softplus, "self"),
    GRAD("hardshrink.default", vjp_hardshrink, "self"),
    GRAD("softshrink.default", vjp_softshrink, "self"),
    GRAD("threshold.default", vjp_threshold, "self"),
    GRAD("elu.default", vjp_elu, "self"),
    GRAD("selu.default", vjp_selu, "self"),
    GRAD("celu.default", vjp_celu, "self"),
    GRAD("_prelu_kernel.default", vjp_prelu, "self weight"),
    GRAD("glu.default", vjp_glu, "self"),
    {0},
};
