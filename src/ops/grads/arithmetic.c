/* arithmetic.c -- gradients of sums, products and quotients of two operands.
 *
 * Operands may be numbers, broadcast and promote: vjp_give() brings a gradient back to its tensor's size and
 * dtype. */
#include "ops/vjp.h"

static bool is_one(const Value *v) { return val_is_number(v) && v->kind != VAL_COMPLEX && val_as_float(v) == 1; }

/* g times a number of the call. */
static Tensor *times(Vjp *v, Tensor *g, Value by) {
  return is_one(&by) ? g : F_OP(&v->f, "aten.mul.Scalar", F_T(g), by);
}

static void vjp_add(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  if (vjp_wants(v, 1)) vjp_give(v, 1, times(v, g, vjp_value(v, 2)));
}

static void vjp_sub(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  vjp_give(v, 0, g);
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_neg(&v->f, times(v, g, vjp_value(v, 2))));
}

/* other - alpha self */
static void vjp_rsub(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_neg(&v->f, times(v, g, vjp_value(v, 2))));
  vjp_give(v, 1, g);
}

/* The other operand, tensor or number, conjugated. */
static Value other_operand(Vjp *v, int arg) {
  Value x = vjp_value(v, arg);
  return x.kind == VAL_TENSOR ? val_tensor(vjp_conj(v, x.tensor)) : x;
}

static void vjp_mul(Vjp *v) {
  Tensor *g = vjp_cotangent(v);
  if (vjp_wants(v, 0)) vjp_give(v, 0, F_OP(&v->f, "aten.mul.Tensor", F_T(g), other_operand(v, 1)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, F_OP(&v->f, "aten.mul.Tensor", F_T(g), other_operand(v, 0)));
}

static void vjp_div(Vjp *v) {
  Tensor *g = vjp_cotangent(v), *q = F_OP(&v->f, "aten.div.Tensor", F_T(g), other_operand(v, 1));
  vjp_give(v, 0, q);
  if (!vjp_wants(v, 1)) return;
  Tensor *ratio = F_OP(&v->f, "aten.div.Tensor", vjp_value(v, 0), vjp_value(v, 1));
  vjp_give(v, 1, f_neg(&v->f, f_mul(&v->f, q, vjp_conj(v, ratio))));
}

/* Rounded to a whole number, a quotient is constant in between. */
static void vjp_div_mode(Vjp *v) {
  if (in_none(v->forward, 2)) vjp_div(v);
  else vjp_zero(v);
}

static void vjp_neg(Vjp *v) { vjp_give(v, 0, f_neg(&v->f, vjp_cotangent(v))); }

const GradDef grads_arithmetic[] = {
    GRAD("add.Tensor add.Scalar", vjp_add, NULL),
    GRAD("sub.Tensor sub.Scalar subtract.Tensor subtract.Scalar", vjp_sub, NULL),
    GRAD("rsub.Tensor rsub.Scalar", vjp_rsub, NULL),
    GRAD("mul.Tensor multiply.Tensor mul.Scalar multiply.Scalar", vjp_mul, "self other"),
    GRAD("div.Tensor divide.Tensor true_divide.Tensor div.Scalar divide.Scalar true_divide.Scalar", vjp_div,
         "self other"),
    GRAD("div.Tensor_mode divide.Tensor_mode div.Scalar_mode divide.Scalar_mode", vjp_div_mode, "self other"),
    GRAD("neg.default negative.default", vjp_neg, NULL),
    {0},
};
