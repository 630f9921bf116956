/* softmax.c -- gradients of softmax and log_softmax, and the gradients of these. */
#include "ops/vjp.h"

static void give_data(Vjp *v, const char *op) {
  vjp_give(v, 0,
           F_OP(&v->f, op, F_T(vjp_cotangent(v)), F_T(v->out[0]), vjp_value(v, 1), val_dtype(v->in[0]->dtype)));
}

static void vjp_softmax(Vjp *v) { give_data(v, "aten._softmax_backward_data.default"); }
static void vjp_log_softmax(Vjp *v) { give_data(v, "aten._log_softmax_backward_data.default"); }

/* ---- of (grad_output, output, dim, input_dtype) ---------------------------------------------------- */

typedef struct {
  Formula *f;
  Tensor *gg, *g, *y; /* cotangent, grad_output and output, in f32 at least */
  int64_t dim;
} Twice;

static Twice begin(Vjp *v) {
  Formula *f = &v->f;
  return (Twice){f, f_widen(f, vjp_cotangent(v)), f_widen(f, vjp_arg(v, 0)), f_widen(f, vjp_arg(v, 1)),
                 in_int(v->forward, 2)};
}

static Tensor *total(const Twice *t, Tensor *x) { return f_sum(t->f, x, &t->dim, 1, true); }

/* gx = y (g - sum of y g) */
static void vjp_softmax_backward(Vjp *v) {
  Twice t = begin(v);
  Formula *f = t.f;
  Tensor *ygg = total(&t, f_mul(f, t.y, t.gg));
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_mul(f, t.y, f_sub(f, t.gg, ygg)));
  if (!vjp_wants(v, 1)) return;
  Tensor *yg = total(&t, f_mul(f, t.y, t.g));
  vjp_give(v, 1, f_sub(f, f_mul(f, t.gg, f_sub(f, t.g, yg)), f_mul(f, t.g, ygg)));
}

/* gx = g - e^y sum of g */
static void vjp_log_softmax_backward(Vjp *v) {
  Twice t = begin(v);
  Formula *f = t.f;
  Tensor *p = f_exp(f, t.y), *pgg = f_mul(f, p, t.gg);
  if (vjp_wants(v, 0)) vjp_give(v, 0, f_sub(f, t.gg, total(&t, pgg)));
  if (vjp_wants(v, 1)) vjp_give(v, 1, f_neg(f, f_mul(f, pgg, total(&t, t.g))));
}

const GradDef grads_softmax[] = {
    GRAD("softmax.int special_softmax.default _softmax.default _safe_softmax.default", vjp_softmax, "result"),
    GRAD("log_softmax.int special_log_softmax.default _log_softmax.default", vjp_log_softmax, "result"),
    GRAD("_softmax_backward_data.default", vjp_softmax_backward, "grad_output output"),
    GRAD("_log_softmax_backward_data.default", vjp_log_softmax_backward, "grad_output output"),
    {0},
};
