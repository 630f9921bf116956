/* create.c -- gradients of what makes tensors: numbers that do not come from an input have none. */
#include "ops/vjp.h"

static void vjp_fill(Vjp *v) {
  if (vjp_wants(v, 0)) vjp_give(v, 0, vjp_zeros_like(v, v->in[0]));
  if (vjp_wants(v, 1)) vjp_give(v, 1, F_OP(&v->f, "aten.sum.default", F_T(vjp_cotangent(v))));
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
    {0},
};
