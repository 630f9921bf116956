/* muon.c -- one step of Muon: the momentum, made orthogonal by a few steps of a Newton-Schulz iteration in bf16, is
 * what is added to the matrix. */
#include <math.h>

#include "ops/formula.h"
#include "optim/optimizer.h"

/* Singular values near 1: x <- a x + (b A + c A A) x with A = x x^T, on the side on which A is smaller. */
static Tensor *orthogonalize(Formula *f, const OptimSpec *o, Tensor *update) {
  if (f->status) return NULL;
  double a = optim_number(o, "ns_coefficients", 0), b = optim_number(o, "ns_coefficients", 1),
         c = optim_number(o, "ns_coefficients", 2);
  bool tall = update->size[0] > update->size[1];
  Tensor *x = f_cast(f, update, DT_BF16);
  if (tall) x = F_OP(f, "aten.t.default", F_T(x));
  x = f_div(f, x, f_at_least(f, F_OP(f, "aten.norm.Scalar", F_T(x)), optim_number(o, "eps", 0)));
  for (int i = 0; i < (int)optim_number(o, "ns_steps", 0); i++) {
    Tensor *gram = F_OP(f, "aten.mm.default", F_T(x), F_T(F_OP(f, "aten.t.default", F_T(x))));
    Tensor *poly = F_OP(f, "aten.addmm.default", F_T(gram), F_T(gram), F_T(gram), val_float(b), val_float(c));
    x = F_OP(f, "aten.addmm.default", F_T(x), F_T(poly), F_T(x), val_float(a), val_float(1));
  }
  return tall ? F_OP(f, "aten.t.default", F_T(x)) : x;
}

static double rate_factor(const OptimSpec *o, const Tensor *param) {
  double rows = (double)param->size[0], columns = (double)param->size[1];
  return optim_number(o, "adjust_lr_fn", 0) == 0 ? sqrt(fmax(1, rows / columns)) : 0.2 * sqrt(fmax(rows, columns));
}

Status muon_step(const OptimSpec *o, OptimStep *s) {
  Formula f = {.c = s->c};
  double momentum = optim_number(o, "momentum", 0), decay = optim_number(o, "weight_decay", 0);
  Tensor *grad = s->scale ? f_mul(&f, s->grad, f_cast(&f, s->scale, s->grad->dtype)) : s->grad;
  Tensor *buffer = F_OP(&f, "aten.lerp.Scalar", F_T(s->state[0]), F_T(grad), val_float(1 - momentum));
  Tensor *update = optim_flag(o, "nesterov")
                       ? F_OP(&f, "aten.lerp.Scalar", F_T(grad), F_T(buffer), val_float(momentum))
                       : buffer;
  update = f_cast(&f, orthogonalize(&f, o, update), s->param->dtype);
  Tensor *keep = f_cast(&f, f_shift(&f, f_scale(&f, s->lr, -decay), 1), s->param->dtype);
  Tensor *rate = f_cast(&f, f_scale(&f, s->lr, rate_factor(o, s->param)), s->param->dtype);
  Tensor *param = f_sub(&f, f_mul(&f, s->param, keep), f_mul(&f, update, rate));
  if (s->skip) {
    Tensor *skips = F_OP(&f, "aten.ne.Scalar", F_T(s->skip), val_int(0));
    param = f_where(&f, skips, s->param, param);
    buffer = f_where(&f, skips, s->state[0], buffer);
  }
  TRY(f.status);
  s->param = param;
  s->state[0] = buffer;
  return OK;
}
