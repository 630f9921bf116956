/* cast.c -- gradients of casts and copies: the cotangent in the argument's dtype (vjp_give casts). */
#include "ops/vjp.h"

static void vjp_cast(Vjp *v) { vjp_give(v, 0, vjp_cotangent(v)); }

/* copy(self, src): of self nothing is left. */
static void vjp_copy(Vjp *v) {
  if (vjp_wants(v, 0)) vjp_give(v, 0, vjp_zeros_like(v, vjp_arg(v, 0)));
  vjp_give(v, 1, vjp_cotangent(v));
}

const GradDef grads_cast[] = {
    GRAD("to.dtype to.dtype_layout to.device to.other _to_copy.default type_as.default", vjp_cast, NULL),
    GRAD("copy.default", vjp_copy, NULL),
    {0},
};
