/* distance.c -- gradients of distances between rows. */
#include "ops/vjp.h"

static Tensor *turned(Vjp *v, const Tensor *t) {
  return F_OP(&v->f, "aten.transpose.int", F_T(t), val_int(-2), val_int(-1));
}

/* cdist(x1, x2, p, compute_mode) */
static void vjp_cdist(Vjp *v) {
  const Value *a = v->forward->arg;
  Tensor *g = vjp_cotangent(v), *dist = v->out[0];
  if (vjp_wants(v, 0))
    vjp_give(v, 0, F_OP(&v->f, "aten._cdist_backward.default", F_T(g), a[0], a[1], a[2], F_T(dist)));
  if (vjp_wants(v, 1))
    vjp_give(
        v, 1,
        F_OP(&v->f, "aten._cdist_backward.default", F_T(turned(v, g)), a[1], a[0], a[2], F_T(turned(v, dist))));
}

/* pdist(self, p) */
static void vjp_pdist(Vjp *v) {
  const Value *a = v->forward->arg;
  vjp_give(v, 0, F_OP(&v->f, "aten._pdist_backward.default", F_T(vjp_cotangent(v)), a[0], a[1], F_T(v->out[0])));
}

const GradDef grads_distance[] = {
    GRAD("cdist.default _cdist_forward.default", vjp_cdist, "x1 x2 result"),
    GRAD("pdist.default _pdist_forward.default", vjp_pdist, "self result"),
    {0},
};
