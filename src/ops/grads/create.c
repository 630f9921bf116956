/* create.c -- gradients of what makes tensors, or drops parts of them at random: numbers that do not come from an
 * input have none. */
#include "ops/vjp.h"

static void vjp_fill(Vjp *v) {
  if (vjp_wants(v, 0)) vjp_give(v, 0, vjp_zeros_like(v, v->in[0]));
  if (vjp_wants(v, 1)) vjp_give(v, 1, F_OP(&v->f, "aten.sum.default", F_T(vjp_cotangent(v))));
}

/* ---- dropout ------------------------------------------------------------------------------------------------ */

static void vjp_native_dropout(Vjp *v) {
  Tensor *g = v->cotangent[0], *mask = v->out[1];
  double p = in_float(v->forward, 1);
  bool train = in_none(v->forward, 2) || in_bool(v->forward, 2);
  if (!g) return;
  if (train && p > 0)
    g = F_OP(&v->f, "aten.native_dropout_backward.default", F_T(g), F_T(mask), val_float(p < 1 ? 1 / (1 - p) : 0));
  vjp_give(v, 0, g);
}

static void vjp_native_dropout_backward(Vjp *v) {
  vjp_give(
      v, 0,
      F_OP(&v->f, "aten.native_dropout_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 1), vjp_value(v, 2)));
}

/* With the mask, which is all that the gradient reads. */
static Status dropout_training(Call *c) {
  Tensor *x = in_tensor(c, 0), *out;
  if (!in_bool(c, 2) || in_float(c, 1) == 0 || tensor_numel(x) == 0)
    TRY(OP(c, "aten.alias.default", &out, val_tensor(x)));
  else TRY(OP(c, "aten.native_dropout.default", &out, val_tensor(x), c->arg[1], val_bool(true)));
  return out_value(c, val_tensor(out));
}

const GradDef grads_create[] = {
    GRAD("zeros_like.default ones_like.default full_like.default empty_like.default new_zeros.default "
         "new_ones.default new_full.default new_empty.default new_empty_strided.default",
         vjp_none, NULL),
    GRAD("rand_like.default randn_like.default randint_like.default randint_like.low_dtype", vjp_none, NULL),
    GRAD("fill.Scalar fill.Tensor", vjp_fill, NULL),
    GRAD("zero.default uniform.default normal_functional.default exponential.default bernoulli.default bernoulli.p "
         "bernoulli.Tensor random.default random.from random.to",
         vjp_zero, NULL),
    GRAD("normal.Tensor_float normal.float_Tensor normal.Tensor_Tensor", vjp_zero, NULL),
    TRAINS_AS("dropout.default", dropout_training),
    GRAD("native_dropout.default", vjp_native_dropout, "result1"),
    GRAD("native_dropout_backward.default", vjp_native_dropout_backward, "mask"),
    /* Steps of optimizers write to parameters, of which no gradient is wanted any more. */
    GRAD("_fused_adam_.default _fused_adam_.tensor_lr _fused_adamw_.default _fused_adamw_.tensor_lr "
         "_fused_sgd_.default _fused_sgd_.tensor_lr _fused_adagrad_.default _fused_adagrad_.tensor_lr "
         "_amp_foreach_non_finite_check_and_unscale_.default _amp_update_scale_.default",
         vjp_none, NULL),
    GRAD("_functional_assert_async.msg", vjp_none, NULL),
    {0},
};
