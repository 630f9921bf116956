/* lower_optim.c -- steps of optimizers (ops/program/optim_step.c) in ops that PyTorch has; see lower_torch.h. */
#include "ops/formula.h"
#include "passes/lower_torch.h"

typedef struct {
  Formula f;
  Lower *l;
  const Node *n;
  Tensor *param, *grad, *step, *lr, *skip; /* the gradient as the step sees it; numbers in f64 */
} OptimStep;

static int at(const OptimStep *s, const char *name) { return schema_find(&s->n->op->schema, name); }

static Tensor *tensor_of(OptimStep *s, const char *name) {
  Tensor *t = NULL;
  if (!s->f.status) s->f.status = lower_tensor(s->l, s->n, at(s, name), &t);
  return t;
}

static double number_of(const OptimStep *s, const char *name) {
  const Arg *a = &s->n->args[at(s, name)];
  return a->kind == ARG_BOOL ? a->b : a->kind == ARG_INT ? (double)a->i : a->f;
}

static void begin(OptimStep *s, Lower *l, const Node *n) {
  *s = (OptimStep){.f = {.c = &l->call}, .l = l, .n = n};
  s->param = tensor_of(s, "param");
  s->grad = tensor_of(s, "grad");
  s->step = f_cast(&s->f, tensor_of(s, "step"), DT_F64);
  s->lr = f_cast(&s->f, tensor_of(s, "lr"), DT_F64);
  s->skip = tensor_of(s, "skip");
  Tensor *scale = tensor_of(s, "scale");
  if (scale) s->grad = f_mul(&s->f, s->grad, scale);
  if (number_of(s, "maximize") != 0) s->grad = f_neg(&s->f, s->grad);
}

static void decay_gradient(OptimStep *s) {
  double decay = number_of(s, "weight_decay");
  if (decay != 0) s->grad = F_OP(&s->f, "aten.add.Tensor", F_T(s->grad), F_T(f_scale(&s->f, s->param, decay)));
}

/* Results, in order; the old ones if the step is skipped. */
static Status give(OptimStep *s, Tensor *const *was, Tensor *const *is, int n, Tensor **out) {
  Tensor *skips = s->skip ? F_OP(&s->f, "aten.ne.Scalar", F_T(s->skip), val_int(0)) : NULL;
  for (int i = 0; i < n; i++) out[i] = skips ? f_where(&s->f, skips, was[i], is[i]) : is[i];
  return s->f.status;
}

/* 1 - beta^step */
static Tensor *correction(OptimStep *s, double beta) {
  Tensor *power = F_OP(&s->f, "aten.pow.Scalar", val_float(beta), F_T(s->step));
  return f_shift(&s->f, f_neg(&s->f, power), 1);
}

Status lower_adam_step(Lower *l, const Node *n, Tensor **out) {
  OptimStep s;
  begin(&s, l, n);
  Formula *f = &s.f;
  double b1 = number_of(&s, "beta1"), b2 = number_of(&s, "beta2"), decay = number_of(&s, "weight_decay");
  Tensor *m = tensor_of(&s, "exp_avg"), *v = tensor_of(&s, "exp_avg_sq"), *top = tensor_of(&s, "max_exp_avg_sq");
  Tensor *was[] = {s.param, m, v, top}, *param = s.param;
  if (number_of(&s, "decoupled") == 0) decay_gradient(&s);
  else if (decay != 0) param = f_mul(f, param, f_shift(f, f_scale(f, s.lr, -decay), 1));
  m = F_OP(f, "aten.lerp.Scalar", F_T(m), F_T(s.grad), val_float(1 - b1));
  v = f_add(f, f_scale(f, v, b2), f_scale(f, f_mul(f, s.grad, s.grad), 1 - b2));
  if (top) top = F_OP(f, "aten.maximum.default", F_T(top), F_T(v));
  Tensor *root = f_div(f, f_sqrt(f, top ? top : v), f_sqrt(f, correction(&s, b2)));
  Tensor *size = f_div(f, s.lr, correction(&s, b1));
  Tensor *move = f_mul(f, f_div(f, m, f_shift(f, root, number_of(&s, "eps"))), size);
  return give(&s, was, (Tensor *[]){f_sub(f, param, move), m, v, top}, top ? 4 : 3, out);
}

Status lower_sgd_step(Lower *l, const Node *n, Tensor **out) {
  OptimStep s;
  begin(&s, l, n);
  Formula *f = &s.f;
  double momentum = number_of(&s, "momentum");
  Tensor *buffer = tensor_of(&s, "momentum_buffer"), *was[] = {s.param, buffer}, *move;
  decay_gradient(&s);
  move = s.grad;
  if (buffer) { /* the first step takes the gradient itself */
    Tensor *first = F_OP(f, "aten.le.Scalar", F_T(s.step), val_float(1));
    Tensor *fresh = f_scale(f, s.grad, 1 - number_of(&s, "dampening"));
    buffer = f_where(f, first, s.grad, f_add(f, f_scale(f, buffer, momentum), fresh));
    move = number_of(&s, "nesterov") != 0 ? f_add(f, s.grad, f_scale(f, buffer, momentum)) : buffer;
  }
  Tensor *param = f_sub(f, s.param, f_mul(f, move, s.lr));
  return give(&s, was, (Tensor *[]){param, buffer}, buffer ? 2 : 1, out);
}

Status lower_adagrad_step(Lower *l, const Node *n, Tensor **out) {
  OptimStep s;
  begin(&s, l, n);
  Formula *f = &s.f;
  Tensor *sum = tensor_of(&s, "sum"), *was[] = {s.param, sum};
  decay_gradient(&s);
  sum = f_add(f, sum, f_mul(f, s.grad, s.grad));
  Tensor *slower = f_shift(f, f_scale(f, f_shift(f, s.step, -1), number_of(&s, "lr_decay")), 1);
  Tensor *move = f_div(f, s.grad, f_shift(f, f_sqrt(f, sum), number_of(&s, "eps")));
  Tensor *param = f_sub(f, s.param, f_mul(f, move, f_div(f, s.lr, slower)));
  return give(&s, was, (Tensor *[]){param, sum}, 2, out);
}
