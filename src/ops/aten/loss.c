/* loss.c -- losses that compare two tensors element by element, and their gradients.
 *
 * Written with other ops; 16-bit inputs are computed in f32 and rounded once at the end.
 * Reductions: 0 none, 1 mean, 2 sum.  (Likelihoods and cross entropy: nll.c.)
 */
#include <math.h>

#include "kernels/nll.h"
#include "ops/formula.h"

/* What all losses share: operands in f32 or better, and the dtype of the result. */
typedef struct {
  Formula f;
  Tensor *x, *y; /* arguments 0 and 1 */
  Dtype dtype;
} Loss;

static Loss loss_begin(Call *c) {
  Tensor *t[2] = {in_tensor(c, 0), in_tensor(c, 1)};
  Loss l = {.f = {c, OK}};
  l.dtype = dtype_promote(t[0]->dtype, t[1]->dtype);
  f_align(&l.f, t, 2);
  l.x = f_widen(&l.f, t[0]);
  l.y = f_widen(&l.f, t[1]);
  return l;
}

static Tensor *reduce(Formula *f, const Tensor *t, int64_t reduction) {
  if (reduction == REDUCTION_MEAN) return F_OP(f, "aten.mean.default", val_tensor(t));
  if (reduction == REDUCTION_SUM) return F_OP(f, "aten.sum.default", val_tensor(t));
  return (Tensor *)(uintptr_t)t;
}

static Status loss_end(Loss *l, const Tensor *each, int64_t reduction) {
  return formula_give(&l->f, f_cast(&l->f, reduce(&l->f, each, reduction), l->dtype));
}

static Tensor *compare(Formula *f, const char *op, const Tensor *a, double with) {
  return F_OP(f, op, val_tensor(a), val_float(with));
}

/* a where the mask holds, else 0. */
static Tensor *keep(Formula *f, const Tensor *mask, const Tensor *a) {
  return F_OP(f, "aten.masked_fill.Scalar", val_tensor(a),
              val_tensor(F_OP(f, "aten.logical_not.default", val_tensor(mask))), val_int(0));
}

/* ---- distances ---------------------------------------------------------------------- */

static Status mse_loss(Call *c) {
  Loss l = loss_begin(c);
  Tensor *d = f_sub(&l.f, l.x, l.y);
  return loss_end(&l, f_mul(&l.f, d, d), in_int(c, 2));
}

static Status l1_loss(Call *c) {
  Loss l = loss_begin(c);
  return loss_end(&l, f_abs(&l.f, f_sub(&l.f, l.x, l.y)), in_int(c, 2));
}

/* d^2/2 up to the bend, a line of the same slope beyond.  smooth_l1 is huber over beta. */
static Tensor *bent(Formula *f, const Tensor *d, double bend, double over) {
  Tensor *size = f_abs(f, d), *square = f_scale(f, f_mul(f, d, d), 0.5 / over);
  Tensor *line = f_scale(f, f_shift(f, size, -0.5 * bend), bend / over);
  return f_where(f, compare(f, "aten.lt.Scalar", size, bend), square, line);
}

static Status smooth_l1_loss(Call *c) {
  double beta = in_float(c, 3);
  if (beta < 0) return op_fail(c, "beta %g is negative", beta);
  Loss l = loss_begin(c);
  Tensor *d = f_sub(&l.f, l.x, l.y);
  return loss_end(&l, beta == 0 ? f_abs(&l.f, d) : bent(&l.f, d, beta, beta), in_int(c, 2));
}

static Status huber_loss(Call *c) {
  double delta = in_float(c, 3);
  if (!(delta > 0)) return op_fail(c, "delta %g is not positive", delta);
  Loss l = loss_begin(c);
  return loss_end(&l, bent(&l.f, f_sub(&l.f, l.x, l.y), delta, 1), in_int(c, 2));
}

/* ---- their gradients: arguments grad, self, target, reduction, ... ---------------------- */

typedef struct {
  Formula f;
  Tensor *g, *d; /* incoming gradient, divided by the count for a mean; self - target */
  Dtype dtype;
} Grad;

static Grad grad_begin(Call *c, int reduction_at) {
  Grad r = {.f = {c, OK}, .dtype = in_tensor(c, 1)->dtype};
  Tensor *t[3] = {in_tensor(c, 0), in_tensor(c, 1), in_tensor(c, 2)};
  f_align(&r.f, t, 3);
  r.d = f_sub(&r.f, f_widen(&r.f, t[1]), f_widen(&r.f, t[2]));
  r.g = f_widen(&r.f, t[0]);
  if (r.d && in_int(c, reduction_at) == REDUCTION_MEAN) /* the count itself: it may be a symbol */
    r.g = F_OP(&r.f, "aten.div.Scalar", F_T(r.g), val_int(tensor_numel(r.d)));
  return r;
}

static Status grad_end(Grad *r, const Tensor *gx) { return formula_give(&r->f, f_cast(&r->f, gx, r->dtype)); }

static Status mse_loss_backward(Call *c) {
  Grad r = grad_begin(c, 3);
  return grad_end(&r, f_mul(&r.f, f_scale(&r.f, r.d, 2), r.g));
}

static Status bent_backward(Call *c, double bend, double slope) {
  Grad r = grad_begin(c, 3);
  Tensor *inside = compare(&r.f, "aten.lt.Scalar", f_abs(&r.f, r.d), bend);
  Tensor *sign = F_OP(&r.f, "aten.sign.default", val_tensor(r.d));
  Tensor *dl = bend > 0 ? f_where(&r.f, inside, f_scale(&r.f, r.d, slope / bend), f_scale(&r.f, sign, slope))
                        : sign;
  return grad_end(&r, f_mul(&r.f, dl, r.g));
}

static Status smooth_l1_loss_backward(Call *c) { return bent_backward(c, in_float(c, 4), 1); }
static Status huber_loss_backward(Call *c) { return bent_backward(c, in_float(c, 4), in_float(c, 4)); }

/* ---- probabilities ------------------------------------------------------------------- */

/* log, but not below -100, so that a probability of 0 does not end in inf. */
static Tensor *bounded_log(Formula *f, const Tensor *x) { return f_at_least(f, f_log(f, x), -100); }

static Status binary_cross_entropy(Call *c) {
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *other = f_at_least(f, F_OP(f, "aten.log1p.default", val_tensor(f_neg(f, l.x))), -100);
  Tensor *t = f_sub(f, f_mul(f, f_shift(f, l.y, -1), other), f_mul(f, l.y, bounded_log(f, l.x)));
  if (in_tensor(c, 2)) t = f_mul(f, t, f_widen(f, in_tensor(c, 2)));
  return loss_end(&l, t, in_int(c, 3));
}

static Status binary_cross_entropy_backward(Call *c) {
  Grad r = grad_begin(c, 4);
  Formula *f = &r.f;
  Tensor *x = f_widen(f, in_tensor(c, 1));
  Tensor *spread = f_at_least(f, f_mul(f, f_shift(f, f_neg(f, x), 1), x), 1e-12);
  Tensor *gx = f_div(f, f_mul(f, r.d, r.g), spread);
  if (in_tensor(c, 3)) gx = f_mul(f, gx, f_widen(f, in_tensor(c, 3)));
  return grad_end(&r, gx);
}

static Status binary_cross_entropy_with_logits(Call *c) {
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *log_sigmoid = F_OP(f, "aten.log_sigmoid_forward.default", val_tensor(l.x));
  if (in_tensor(c, 3)) {
    Tensor *weight = f_shift(f, f_mul(f, f_shift(f, f_widen(f, in_tensor(c, 3)), -1), l.y), 1);
    log_sigmoid = f_mul(f, log_sigmoid, weight);
  }
  Tensor *t = f_sub(f, f_mul(f, f_shift(f, f_neg(f, l.y), 1), l.x), log_sigmoid);
  if (in_tensor(c, 2)) t = f_mul(f, t, f_widen(f, in_tensor(c, 2)));
  return loss_end(&l, t, in_int(c, 4));
}

/* target (log target - input), 0 where the target is 0. */
static Status kl_div(Call *c) {
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *t;
  if (in_bool(c, 3)) {
    t = f_mul(f, f_exp(f, l.y), f_sub(f, l.y, l.x));
  } else {
    Tensor *entropy = f_mul(f, l.y, f_log(f, l.y));
    entropy = keep(f, compare(f, "aten.ne.Scalar", l.y, 0), entropy);
    t = f_sub(f, entropy, f_mul(f, l.y, l.x));
  }
  return loss_end(&l, t, in_int(c, 2));
}

static Status poisson_nll_loss(Call *c) { /* input, target, log_input, full, eps, reduction */
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *t = in_bool(c, 2) ? f_sub(f, f_exp(f, l.x), f_mul(f, l.y, l.x))
                            : f_sub(f, l.x, f_mul(f, l.y, f_log(f, f_shift(f, l.x, in_float(c, 4)))));
  if (in_bool(c, 3)) { /* Stirling's formula for log target! */
    Tensor *s = f_sub(f, f_mul(f, l.y, f_log(f, l.y)), l.y);
    s = f_add(f, s, f_scale(f, f_log(f, f_scale(f, l.y, 2 * 3.14159265358979323846)), 0.5));
    t = f_add(f, t, keep(f, compare(f, "aten.gt.Scalar", l.y, 1), s));
  }
  return loss_end(&l, t, in_int(c, 5));
}

static Status soft_margin_loss(Call *c) {
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *t = F_OP(f, "aten.log1p.default", val_tensor(f_exp(f, f_neg(f, f_mul(f, l.x, l.y)))));
  return loss_end(&l, t, in_int(c, 2));
}

/* ---- margins ---------------------------------------------------------------------------- */

static Status hinge_embedding_loss(Call *c) { /* self, target, margin, reduction */
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *apart = f_at_least(f, f_shift(f, f_neg(f, l.x), in_float(c, 2)), 0);
  Tensor *t = f_add(f, keep(f, compare(f, "aten.ne.Scalar", l.y, 1), apart),
                    keep(f, compare(f, "aten.ne.Scalar", l.y, -1), l.x));
  return loss_end(&l, t, in_int(c, 3));
}

static Status margin_ranking_loss(Call *c) { /* input1, input2, target, margin, reduction */
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *order = f_mul(f, f_neg(f, f_widen(f, in_tensor(c, 2))), f_sub(f, l.x, l.y));
  return loss_end(&l, f_at_least(f, f_shift(f, order, in_float(c, 3)), 0), in_int(c, 4));
}

static Status cosine_embedding_loss(Call *c) { /* input1, input2, target, margin, reduction */
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  const Tensor *target = in_tensor(c, 2);
  const int64_t dim = target->ndim;
  Tensor *dot = f_sum(f, f_mul(f, l.x, l.y), &dim, 1, false);
  Tensor *xx = f_shift(f, f_sum(f, f_mul(f, l.x, l.x), &dim, 1, false), 1e-12);
  Tensor *yy = f_shift(f, f_sum(f, f_mul(f, l.y, l.y), &dim, 1, false), 1e-12);
  Tensor *cos = f_div(f, dot, f_sqrt(f, f_mul(f, xx, yy)));
  Tensor *alike = keep(f, compare(f, "aten.eq.Scalar", target, 1), f_shift(f, f_neg(f, cos), 1));
  Tensor *apart = keep(f, compare(f, "aten.eq.Scalar", target, -1),
                       f_at_least(f, f_shift(f, cos, -in_float(c, 3)), 0));
  return loss_end(&l, f_add(f, alike, apart), in_int(c, 4));
}

static Status triplet_margin_loss(Call *c) { /* anchor, positive, negative, margin, p, eps, swap, reduction */
  Loss l = loss_begin(c);
  Formula *f = &l.f;
  Tensor *negative = f_widen(f, in_tensor(c, 2));
  Tensor *near = F_OP(f, "aten.pairwise_distance.default", val_tensor(l.x), val_tensor(l.y), c->arg[4], c->arg[5]);
  Tensor *far = F_OP(f, "aten.pairwise_distance.default", val_tensor(l.x), val_tensor(negative), c->arg[4],
                     c->arg[5]);
  if (in_bool(c, 6)) {
    Tensor *swapped = F_OP(f, "aten.pairwise_distance.default", val_tensor(l.y), val_tensor(negative), c->arg[4],
                           c->arg[5]);
    far = F_OP(f, "aten.minimum.default", val_tensor(far), val_tensor(swapped));
  }
  return loss_end(&l, f_at_least(f, f_shift(f, f_sub(f, near, far), in_float(c, 3)), 0), in_int(c, 7));
}

/* clang-format off */
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}

const OpDef ops_loss[] = {
    COMPOSE("mse_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", mse_loss),
    COMPOSE("l1_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", l1_loss),
    COMPOSE("smooth_l1_loss(Tensor self, Tensor target, int reduction=1, float beta=1.) -> Tensor", smooth_l1_loss),
    COMPOSE("huber_loss(Tensor self, Tensor target, int reduction=1, float delta=1.) -> Tensor", huber_loss),
    COMPOSE("mse_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction) -> Tensor",
        mse_loss_backward),
    COMPOSE("smooth_l1_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float beta) "
            "-> Tensor", smooth_l1_loss_backward),
    COMPOSE("huber_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, float delta) -> "
            "Tensor", huber_loss_backward),
    COMPOSE("binary_cross_entropy(Tensor self, Tensor target, Tensor? weight=None, int reduction=1) -> Tensor",
        binary_cross_entropy),
    COMPOSE("binary_cross_entropy_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? weight=None, "
            "int reduction=1) -> Tensor",
            binary_cross_entropy_backward),
    COMPOSE("binary_cross_entropy_with_logits(Tensor self, Tensor target, Tensor? weight=None, Tensor? "
            "pos_weight=None, int reduction=1) -> Tensor",
            binary_cross_entropy_with_logits),
    COMPOSE("kl_div(Tensor self, Tensor target, int reduction=1, *, bool log_target=False) -> Tensor", kl_div),
    COMPOSE("poisson_nll_loss(Tensor input, Tensor target, bool log_input, bool full, float eps, int reduction) "
            "-> Tensor", poisson_nll_loss),
    COMPOSE("soft_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor", soft_margin_loss),
    COMPOSE("hinge_embedding_loss(Tensor self, Tensor target, float margin=1.0, int reduction=1) -> Tensor",
        hinge_embedding_loss),
    COMPOSE("margin_ranking_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int reduction=1) "
            "-> Tensor", margin_ranking_loss),
    COMPOSE("cosine_embedding_loss(Tensor input1, Tensor input2, Tensor target, float margin=0.0, int "
            "reduction=1) -> Tensor", cosine_embedding_loss),
    COMPOSE("triplet_margin_loss(Tensor anchor, Tensor positive, Tensor negative, float margin=1.0, float p=2, "
            "float eps=9.9999999999999995e-07, bool swap=False, int reduction=1) -> Tensor", triplet_margin_loss),
    {0}};
/* clang-format on */
