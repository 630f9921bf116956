/* norm.c -- gradients of layer norm, rms norm, group norm and batch norm, by the ops that ATen has for them.
 *
 * The spellings that give no statistics are called as those that do when a gradient is wanted.  Statistics
 * have no gradient, but for group norm's, as in ATen. */
#include "ops/vjp.h"

static Value optional(const Vjp *v, int arg) { return vjp_value(v, arg); }

/* ---- layer norm and rms norm: rows -------------------------------------------------------------------- */

static Status layer_norm_form(Call *c) {
  Formula f = {.c = c};
  return formula_give(
      &f, F_OP(&f, "aten.native_layer_norm.default", c->arg[0], c->arg[1], c->arg[2], c->arg[3], c->arg[4]));
}

static void vjp_layer_norm(Vjp *v) {
  const bool mask[3] = {vjp_wants(v, 0), vjp_wants(v, 2), vjp_wants(v, 3)};
  Tensor *d[3];
  if (!vjp_cotangent(v)) return;
  /* Of the bias only its size is looked at, which is the weight's. */
  F_OPS(&v->f, "aten.native_layer_norm_backward.default", d, 3, F_T(vjp_cotangent(v)), vjp_value(v, 0),
        vjp_value(v, 1), F_T(v->out[1]), F_T(v->out[2]), optional(v, 2), mask[2] ? optional(v, 2) : val_none(),
        val_bools(mask, 3));
  vjp_give(v, 0, d[0]);
  vjp_give(v, 2, d[1]);
  vjp_give(v, 3, d[2]);
}

static Status rms_norm_form(Call *c) {
  Formula f = {.c = c};
  return formula_give(&f, F_OP(&f, "aten._fused_rms_norm.default", c->arg[0], c->arg[1], c->arg[2], c->arg[3]));
}

/* d and what comes back to rstd = (mean(x^2) + eps)^(-1/2), of the input's size with ones:  -g rstd^3 x / n */
static Tensor *add_rstd(Vjp *v, Tensor *d) {
  Formula *f = &v->f;
  const Tensor *x = v->in[0], *rows = v->out[1];
  if (!v->cotangent[1] || !vjp_wants(v, 0) || tensor_numel(rows) == 0) return d;
  Tensor *rstd = f_widen(f, v->out[1]), *cube = f_mul(f, rstd, f_mul(f, rstd, rstd));
  Tensor *g = f_mul(f, f_mul(f, f_widen(f, v->cotangent[1]), cube), f_widen(f, vjp_arg(v, 0)));
  g = f_scale(f, g, -(double)tensor_numel(rows) / (double)tensor_numel(x));
  return d ? f_add(f, f_widen(f, d), g) : g;
}

/* Here rstd has a gradient, too. */
static void vjp_rms_norm(Vjp *v) {
  const bool mask[2] = {vjp_wants(v, 0), vjp_wants(v, 2)};
  Tensor *d[2] = {NULL, NULL};
  if (vjp_cotangent(v))
    F_OPS(&v->f, "aten._fused_rms_norm_backward.default", d, 2, F_T(vjp_cotangent(v)), vjp_value(v, 0),
          vjp_value(v, 1), F_T(v->out[1]), optional(v, 2), val_bools(mask, 2));
  d[0] = add_rstd(v, d[0]);
  vjp_give(v, 0, d[0]);
  vjp_give(v, 2, d[1]);
}

/* ---- group norm ------------------------------------------------------------------------------------------ */

static Status group_norm_form(Call *c) {
  Formula f = {.c = c};
  const Tensor *x = in_tensor(c, 0);
  char text[128];
  int64_t area = 1;
  if (x->ndim < 2) return op_fail(c, "%s has no batch and channels", tensor_describe(x, text, sizeof text));
  for (int d = 2; d < x->ndim; d++) area *= x->size[d];
  return formula_give(&f, F_OP(&f, "aten.native_group_norm.default", c->arg[0], c->arg[2], c->arg[3],
                               val_int(x->size[0]), val_int(x->size[1]), val_int(area), c->arg[1], c->arg[4]));
}

/* The gradients of mean and rstd, of size (N, groups), come to d, of the input's size:
 *     (gmean - grstd rstd^3 (x - mean)) / n */
static Tensor *add_statistics(Vjp *v, Tensor *d) {
  Formula *f = &v->f;
  const Tensor *input = v->in[0];
  int64_t batch = in_int(v->forward, 3), groups = in_int(v->forward, 6), n = tensor_numel(input);
  if (!v->cotangent[1] && !v->cotangent[2]) return d;
  if (!vjp_wants(v, 0) || n == 0) return d;
  const int64_t rows[2] = {batch * groups, n / (batch * groups)}, one[2] = {batch * groups, 1};
  Tensor *mean = f_view(f, f_widen(f, v->out[1]), one, 2), *rstd = f_view(f, f_widen(f, v->out[2]), one, 2),
         *extra = NULL;
  if (v->cotangent[2]) {
    Tensor *cube = f_mul(f, rstd, f_mul(f, rstd, rstd)), *x = f_view(f, f_widen(f, vjp_arg(v, 0)), rows, 2);
    Tensor *scale = f_mul(f, f_view(f, f_widen(f, v->cotangent[2]), one, 2), cube);
    extra = f_neg(f, f_mul(f, f_sub(f, x, mean), scale));
  }
  if (v->cotangent[1]) {
    Tensor *g = f_view(f, f_widen(f, v->cotangent[1]), one, 2);
    extra = extra ? f_add(f, extra, g) : F_OP(f, "aten.expand.default", F_T(g), val_ints(rows, 2));
  }
  extra = f_view(f, F_OP(f, "aten.div.Scalar", F_T(extra), val_int(rows[1])), input->size, input->ndim);
  return d ? f_add(f, f_widen(f, d), extra) : extra;
}

/* Here mean and rstd have gradients, too. */
static void vjp_group_norm(Vjp *v) {
  const bool mask[3] = {vjp_wants(v, 0), vjp_wants(v, 1), vjp_wants(v, 2)};
  Tensor *d[3] = {NULL, NULL, NULL};
  if (vjp_cotangent(v))
    F_OPS(&v->f, "aten.native_group_norm_backward.default", d, 3, F_T(vjp_cotangent(v)), vjp_value(v, 0),
          F_T(v->out[1]), F_T(v->out[2]), optional(v, 1), vjp_value(v, 3), vjp_value(v, 4), vjp_value(v, 5),
          vjp_value(v, 6), val_bools(mask, 3));
  d[0] = add_statistics(v, d[0]);
  for (int i = 0; i < 3; i++) vjp_give(v, i, d[i]);
}

/* ---- batch norm ------------------------------------------------------------------------------------------ */

/* With the batch's own statistics or given ones. */
static void give_batch_norm(Vjp *v, bool train, Value mean, Value var, Value eps) {
  const bool mask[3] = {vjp_wants(v, 0), vjp_wants(v, 1), vjp_wants(v, 2)};
  Tensor *d[3];
  Value own = val_none(), rstd = val_none();
  if (!vjp_cotangent(v)) return;
  if (train) own = F_T(v->out[1]), rstd = F_T(v->out[2]);
  F_OPS(&v->f, "aten.native_batch_norm_backward.default", d, 3, F_T(vjp_cotangent(v)), vjp_value(v, 0),
        optional(v, 1), mean, var, own, rstd, val_bool(train), eps, val_bools(mask, 3));
  for (int i = 0; i < 3; i++) vjp_give(v, i, d[i]);
}

/* Outside of training the new running statistics are the old ones, which may be written to by now. */
static void vjp_batch_norm(Vjp *v) {
  bool train = in_bool(v->forward, 5);
  Value mean = train ? val_none() : F_T(v->out[3]), var = train ? val_none() : F_T(v->out[4]);
  give_batch_norm(v, train, mean, var, vjp_value(v, 7));
}

static void vjp_batch_norm_given(Vjp *v) {
  give_batch_norm(v, false, vjp_value(v, 3), vjp_value(v, 4), vjp_value(v, 6));
}

static void vjp_batch_norm_own(Vjp *v) { give_batch_norm(v, true, val_none(), val_none(), vjp_value(v, 5)); }

const GradDef grads_norm[] = {
    TRAINS_AS("layer_norm.default", layer_norm_form),
    GRAD("native_layer_norm.default", vjp_layer_norm, "input weight result1 result2"),
    TRAINS_AS("rms_norm.default", rms_norm_form),
    GRAD("_fused_rms_norm.default", vjp_rms_norm, "input weight result1"),
    TRAINS_AS("group_norm.default", group_norm_form),
    GRAD("native_group_norm.default", vjp_group_norm, "input weight result1 result2"),
    GRAD("_native_batch_norm_legit_functional.default", vjp_batch_norm,
         "input weight result1 result2 result3 result4"),
    GRAD("_native_batch_norm_legit_no_training.default", vjp_batch_norm_given,
         "input weight running_mean running_var"),
    GRAD("_native_batch_norm_legit.no_stats", vjp_batch_norm_own, "input weight result1 result2"),
    {0},
};
