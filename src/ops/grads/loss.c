/* loss.c -- gradients of losses, where the parts of a loss would say them less well than ATen's own ops.  Other
 * losses are differentiated part by part. */
#include "kernels/nll.h"
#include "ops/vjp.h"

/* ---- distances: (self, target, reduction, ...) ----------------------------------------------------------- */

/* A function of self - target: what one loses the other gains. */
static void give_distance(Vjp *v, const char *op, bool bend) {
  Value arg[5] = {F_T(vjp_cotangent(v)), vjp_value(v, 0), vjp_value(v, 1), vjp_value(v, 2)};
  if (bend) arg[4] = vjp_value(v, 3);
  Tensor *d = formula_op(&v->f, op, arg, bend ? 5 : 4);
  vjp_give(v, 0, d);
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_neg(&v->f, d));
}

static void vjp_mse(Vjp *v) { give_distance(v, "aten.mse_loss_backward.default", false); }
static void vjp_smooth_l1(Vjp *v) { give_distance(v, "aten.smooth_l1_loss_backward.default", true); }
static void vjp_huber(Vjp *v) { give_distance(v, "aten.huber_loss_backward.default", true); }

/* ---- probabilities ------------------------------------------------------------------------------------------ */

/* g over the number of elements for a mean, in f32 at least. */
static Tensor *each(Vjp *v, int64_t reduction) {
  Tensor *g = f_widen(&v->f, vjp_cotangent(v));
  if (reduction != REDUCTION_MEAN) return g;
  return F_OP(&v->f, "aten.div.Scalar", F_T(g), val_int(tensor_numel(v->in[0])));
}

static void vjp_binary_cross_entropy(Vjp *v) { /* self, target, weight, reduction */
  Formula *f = &v->f;
  Tensor *g = vjp_cotangent(v), *w = vjp_arg(v, 2);
  if (vjp_wants(v, 0))
    vjp_give(v, 0,
             F_OP(f, "aten.binary_cross_entropy_backward.default", F_T(g), vjp_value(v, 0), vjp_value(v, 1),
                  vjp_value(v, 2), vjp_value(v, 3)));
  if (!vjp_wants(v, 1)) return;
  Tensor *x = f_widen(f, vjp_arg(v, 0)), *rest = F_OP(f, "aten.log1p.default", F_T(f_neg(f, x)));
  Tensor *d = f_mul(f, f_sub(f, rest, f_log(f, x)), each(v, in_int(v->forward, 3)));
  vjp_give(v, 1, w ? f_mul(f, d, f_widen(f, w)) : d);
}

/* gx = g w (x - t) / (x (1 - x)); PyTorch keeps away from 0 by adding 1e-12 to x and to 1 - x here. */
static void vjp_binary_cross_entropy_backward(Vjp *v) { /* grad_output, self, target, weight, reduction */
  Formula *f = &v->f;
  Tensor *x = f_widen(f, vjp_arg(v, 1)), *t = f_widen(f, vjp_arg(v, 2)), *w = vjp_arg(v, 3);
  Tensor *u = f_widen(f, vjp_cotangent(v)), *g = f_widen(f, vjp_arg(v, 0));
  if (w) u = f_mul(f, u, f_widen(f, w));
  if (in_int(v->forward, 4) == REDUCTION_MEAN)
    u = F_OP(f, "aten.div.Scalar", F_T(u), val_int(tensor_numel(v->in[1])));
  Tensor *spread = f_mul(f, f_shift(f, x, 1e-12), f_shift(f, f_shift(f, f_neg(f, x), 1), 1e-12));
  if (vjp_wants(v, 0))
    vjp_give(v, 0,
             F_OP(f, "aten.binary_cross_entropy_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 1),
                  vjp_value(v, 2), vjp_value(v, 3), vjp_value(v, 4)));
  if (vjp_wants(v, 1)) { /* (x^2 - 2 x t + t) / (x (1 - x))^2 */
    Tensor *top = f_add(f, f_mul(f, x, f_sub(f, x, f_scale(f, t, 2))), t);
    vjp_give(v, 1, f_mul(f, f_div(f, top, f_mul(f, spread, spread)), f_mul(f, u, g)));
  }
  if (vjp_wants(v, 2)) vjp_give(v, 2, f_neg(f, f_div(f, f_mul(f, u, g), spread)));
}

/* loss = (1 - t) x - l log s(x), l = 1 + (pos_weight - 1) t */
static void vjp_with_logits(Vjp *v) { /* self, target, weight, pos_weight, reduction */
  Formula *f = &v->f;
  Tensor *x = f_widen(f, vjp_arg(v, 0)), *t = f_widen(f, vjp_arg(v, 1)), *w = vjp_arg(v, 2),
         *pos = f_widen(f, vjp_arg(v, 3)), *g = each(v, in_int(v->forward, 4));
  if (w) g = f_mul(f, g, f_widen(f, w));
  if (vjp_wants(v, 0)) {
    Tensor *d;
    if (pos) { /* (l s(x) - pos t), for s(-x) = 1 - s(x) */
      Tensor *pt = f_mul(f, pos, t), *l = f_add(f, f_shift(f, f_neg(f, t), 1), pt);
      d = f_sub(f, f_mul(f, l, F_OP(f, "aten.sigmoid.default", F_T(x))), pt);
    } else {
      d = f_sub(f, F_OP(f, "aten.sigmoid.default", F_T(x)), t);
    }
    vjp_give(v, 0, f_mul(f, d, g));
  }
  if (!vjp_wants(v, 1) && !vjp_wants(v, 3)) return;
  Tensor *ls = F_OP(f, "aten.log_sigmoid.default", F_T(x));
  if (vjp_wants(v, 1)) {
    Tensor *d = pos ? f_add(f, x, f_mul(f, f_shift(f, pos, -1), ls)) : x;
    vjp_give(v, 1, f_neg(f, f_mul(f, d, g)));
  }
  if (vjp_wants(v, 3)) vjp_give(v, 3, f_neg(f, f_mul(f, f_mul(f, t, ls), g)));
}

/* ---- likelihoods and margins -------------------------------------------------------------------------------- */

/* (self, target, weight, reduction, ignore_index) -> (output, total_weight).  The scores are read for their size
 * alone; they are log_softmax's result, which is kept anyway. */
static void give_nll(Vjp *v, const char *op) {
  if (!vjp_cotangent(v)) return;
  vjp_give(v, 0,
           F_OP(&v->f, op, F_T(vjp_cotangent(v)), vjp_value(v, 0), vjp_value(v, 1), vjp_value(v, 2),
                vjp_value(v, 3), vjp_value(v, 4), F_T(v->out[1])));
}

static void vjp_nll(Vjp *v) { give_nll(v, "aten.nll_loss_backward.default"); }
static void vjp_nll2d(Vjp *v) { give_nll(v, "aten.nll_loss2d_backward.default"); }

/* (grad_output, self, target, weight, reduction, ignore_index, total_weight): linear in grad_output. */
static void give_nll_backward(Vjp *v, const char *op) {
  if (vjp_wants(v, 0))
    vjp_give(
        v, 0,
        F_OP(&v->f, op, F_T(vjp_cotangent(v)), vjp_value(v, 2), vjp_value(v, 3), vjp_value(v, 4), vjp_value(v, 5)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, vjp_zeros_like(v, vjp_arg(v, 1)));
}

static void vjp_nll_backward(Vjp *v) { give_nll_backward(v, "aten.nll_loss_forward.default"); }
static void vjp_nll2d_backward(Vjp *v) { give_nll_backward(v, "aten.nll_loss2d_forward.default"); }

static void vjp_nll_log_softmax(Vjp *v) { /* self, target, weight, reduction, ignore_index */
  if (!vjp_cotangent(v)) return;
  vjp_give(v, 0,
           F_OP(&v->f, "tess.nll_log_softmax_backward.default", F_T(v->out[2]), F_T(vjp_cotangent(v)),
                vjp_value(v, 1), vjp_value(v, 2), vjp_value(v, 3), vjp_value(v, 4), F_T(v->out[1])));
}

/* Cross entropy over classes that may be cut, as rows: softmax and loss in one call, whose gradient sends nothing.
 */
static Status cross_entropy_in_rows(Call *c) { /* self, target, weight, reduction, ignore_index, label_smoothing */
  Formula f = {c, OK};
  Tensor *x = in_tensor(c, 0), *target = in_tensor(c, 1);
  int64_t order[MAX_DIMS], classes = x->ndim > 1 ? x->size[1] : 0;
  if (dtype_is_float(target->dtype) || in_float(c, 5) != 0 || x->ndim < 2 || target->ndim != x->ndim - 1 ||
      !classes)
    return c->op->def->compose(c);
  for (int d = 0; d < x->ndim; d++) order[d] = d == 0 ? 0 : d + 1 < x->ndim ? d + 1 : 1; /* classes last */
  Tensor *rows = f_widen(&f, x), *labels = target;
  int64_t n = tensor_numel(target);
  if (x->ndim > 2) {
    rows = F_OP(&f, "aten.permute.default", F_T(rows), val_ints(order, x->ndim));
    rows = f_view(&f, rows, (const int64_t[]){n, classes}, 2);
    labels = f_view(&f, labels, &n, 1);
  }
  Tensor *loss = F_OP(&f, "tess.nll_log_softmax.default", F_T(rows), F_T(labels), c->arg[2], c->arg[3], c->arg[4]);
  if (loss && loss->ndim == 1 && target->ndim > 1) loss = f_view(&f, loss, target->size, target->ndim);
  return formula_give(&f, loss ? f_cast(&f, loss, x->dtype) : NULL);
}

static void vjp_multi_margin(Vjp *v) {
  vjp_give(v, 0,
           F_OP(&v->f, "aten.multi_margin_loss_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 0),
                vjp_value(v, 1), vjp_value(v, 2), vjp_value(v, 3), vjp_value(v, 4), vjp_value(v, 5)));
}

static void vjp_multilabel(Vjp *v) {
  if (!vjp_cotangent(v)) return;
  vjp_give(v, 0,
           F_OP(&v->f, "aten.multilabel_margin_loss_backward.default", F_T(vjp_cotangent(v)), vjp_value(v, 0),
                vjp_value(v, 1), vjp_value(v, 2), F_T(v->out[1])));
}

const GradDef grads_loss[] = {
    GRAD("mse_loss.default", vjp_mse, "self target"),
    GRAD("smooth_l1_loss.default", vjp_smooth_l1, "self target"),
    GRAD("huber_loss.default", vjp_huber, "self target"),
    GRAD("binary_cross_entropy.default", vjp_binary_cross_entropy, "self target weight"),
    GRAD("binary_cross_entropy_backward.default", vjp_binary_cross_entropy_backward,
         "grad_output self target weight"),
    GRAD("binary_cross_entropy_with_logits.default", vjp_with_logits, "self target weight pos_weight"),
    GRAD("nll_loss_forward.default", vjp_nll, "self target weight result1"),
    GRAD("nll_loss2d_forward.default", vjp_nll2d, "self target weight result1"),
    GRAD("tess.nll_log_softmax.default", vjp_nll_log_softmax, "target weight result1 result2"),
    {.ops = "cross_entropy_loss.default", .parallel = cross_entropy_in_rows},
    GRAD("nll_loss_backward.default", vjp_nll_backward, "target weight"),
    GRAD("nll_loss2d_backward.default", vjp_nll2d_backward, "target weight"),
    GRAD("multi_margin_loss.default", vjp_multi_margin, "self target weight"),
    GRAD("multilabel_margin_loss_forward.default", vjp_multilabel, "self target result1"),
    {0},
};
