/* norm_grad.c -- gradients of group norm and batch norm, and weight norm with its own.
 *
 * Written with other ops, in f32 where the input has 16 bits.  In all of them
 *     h = (x - mean) rstd,   gx = rstd (g w - mean of g w - h * mean of g w h).
 */
#include "ops/formula.h"
#include "ops/rule.h"

static bool masked(const Call *c, int arg, int i) { return c->arg[arg].bools[i]; }

/* ---- group norm: (N, C, HxW) seen as (N, G, D, HxW) ------------------------------------ */

static Status group_norm_backward(Call *c) {
  Formula f = {c, OK};
  const Tensor *input = in_tensor(c, 1), *w = in_tensor(c, 4);
  int64_t n = in_int(c, 5), channels = in_int(c, 6), area = in_int(c, 7), groups = in_int(c, 8);
  int64_t numel;
  if (groups < 1 || channels % groups)
    return op_fail(c, "%lld channels do not form %lld groups", (long long)channels, (long long)groups);
  if (!checked_numel(3, (const int64_t[]){n, channels, area}, &numel) || numel != tensor_numel(input))
    return op_fail(c, "N %lld, C %lld and HxW %lld are not those of the input", (long long)n, (long long)channels,
                   (long long)area);
  const int64_t size[4] = {n, groups, channels / groups, area}, stat[4] = {n, groups, 1, 1};
  const int64_t affine[4] = {1, groups, channels / groups, 1}, group[2] = {2, 3}, batch[2] = {0, 3};
  const double count = (double)(channels / groups * area);
  Tensor *g = f_view(&f, f_widen(&f, in_tensor(c, 0)), size, 4), *x = f_view(&f, f_widen(&f, input), size, 4);
  Tensor *mean = f_view(&f, f_widen(&f, in_tensor(c, 2)), stat, 4),
         *rstd = f_view(&f, f_widen(&f, in_tensor(c, 3)), stat, 4);
  Tensor *h = f_mul(&f, f_sub(&f, x, mean), rstd), *out[3] = {NULL, NULL, NULL};
  if (masked(c, 9, 0)) {
    Tensor *gw = w ? f_mul(&f, g, f_view(&f, f_widen(&f, w), affine, 4)) : g;
    Tensor *a = f_scale(&f, f_sum(&f, gw, group, 2, true), 1 / count);
    Tensor *b = f_scale(&f, f_sum(&f, f_mul(&f, gw, h), group, 2, true), 1 / count);
    Tensor *gx = f_mul(&f, f_sub(&f, f_sub(&f, gw, a), f_mul(&f, h, b)), rstd);
    out[0] = f_cast(&f, f_view(&f, gx, input->size, input->ndim), input->dtype);
  }
  Dtype d = w ? w->dtype : input->dtype;
  if (masked(c, 9, 1))
    out[1] = f_cast(&f, f_view(&f, f_sum(&f, f_mul(&f, g, h), batch, 2, false), &channels, 1), d);
  if (masked(c, 9, 2)) out[2] = f_cast(&f, f_view(&f, f_sum(&f, g, batch, 2, false), &channels, 1), d);
  for (int i = 0; i < 3; i++) TRY(formula_give(&f, out[i]));
  return OK;
}

/* ---- batch norm ------------------------------------------------------------------------ */

/* arguments: grad, input, weight, running mean and var, saved mean and invstd, train, eps, mask */
static Status batch_norm_backward(Call *c) {
  Formula f = {c, OK};
  const Tensor *input = in_tensor(c, 1), *w = in_tensor(c, 2);
  bool train = in_bool(c, 7);
  if (input->ndim < 2 || (!train && (!in_tensor(c, 3) || !in_tensor(c, 4))) ||
      (train && (!in_tensor(c, 5) || !in_tensor(c, 6)))) {
    return op_fail(c, "the statistics of this mode are missing");
  }
  int64_t shape[MAX_DIMS], others[MAX_DIMS], channels = input->size[1];
  int count = 0;
  for (int d = 0; d < input->ndim; d++) {
    shape[d] = d == 1 ? channels : 1;
    if (d != 1) others[count++] = d;
  }
  double n = channels ? (double)tensor_numel(input) / (double)channels : 1;
#define CHANNELS(t) f_view(&f, (t), shape, input->ndim)
  Tensor *g = f_widen(&f, in_tensor(c, 0)), *x = f_widen(&f, input);
  Tensor *mean = f_widen(&f, in_tensor(c, train ? 5 : 3));
  Tensor *rstd = train ? f_widen(&f, in_tensor(c, 6))
                       : f_rsqrt(&f, f_shift(&f, f_widen(&f, in_tensor(c, 4)), in_float(c, 8)));
  Tensor *h = f_mul(&f, f_sub(&f, x, CHANNELS(mean)), CHANNELS(rstd));
  Tensor *gb = f_sum(&f, g, others, count, false), *gw = f_sum(&f, f_mul(&f, g, h), others, count, false);
  Tensor *out[3] = {NULL, NULL, NULL};
  if (masked(c, 9, 0)) {
    Tensor *rest = g, *scale = w ? f_mul(&f, rstd, f_widen(&f, w)) : rstd;
    if (train) {
      rest = f_sub(&f, g, CHANNELS(f_scale(&f, gb, 1 / n)));
      rest = f_sub(&f, rest, f_mul(&f, h, CHANNELS(f_scale(&f, gw, 1 / n))));
    }
    out[0] = f_cast(&f, f_mul(&f, rest, CHANNELS(scale)), input->dtype);
  }
#undef CHANNELS
  Dtype d = w ? w->dtype : input->dtype;
  if (masked(c, 9, 1)) out[1] = f_cast(&f, gw, d);
  if (masked(c, 9, 2)) out[2] = f_cast(&f, gb, d);
  for (int i = 0; i < 3; i++) TRY(formula_give(&f, out[i]));
  return OK;
}

/* ---- weight norm: w = v g / |v|, the norm over all dimensions but one -------------------- */

/* dim -1 takes the norm over everything. */
static Tensor *norm_except(Formula *f, const Tensor *v, int64_t dim) {
  int64_t dims[MAX_DIMS];
  int n = 0;
  for (int d = 0; d < v->ndim; d++) {
    if (d != dim) dims[n++] = d;
  }
  bool all = dim == -1;
  if (!all && n == 0) return f_abs(f, v);
  return F_OP(f, "aten.linalg_vector_norm.default", val_tensor(v), val_float(2),
              all ? val_none() : val_ints(dims, n), val_bool(!all));
}

static Status weight_norm(Call *c) {
  Formula f = {c, OK};
  const Tensor *v = in_tensor(c, 0);
  Tensor *wide = f_widen(&f, v), *norm = norm_except(&f, wide ? wide : v, in_int(c, 2));
  Tensor *w = f_mul(&f, wide, f_div(&f, f_widen(&f, in_tensor(c, 1)), norm));
  TRY(formula_give(&f, f_cast(&f, w, v->dtype)));
  if (c->op->schema.nreturns == 1) return OK;
  Dtype d = in_tensor(c, 1)->dtype;
  return formula_give(&f, f_cast(&f, norm, d == DT_BF16 ? DT_F32 : d));
}

/* gv = g/|v| (gw - v (gw . v) / |v|^2),   gg = (gw . v) / |v| */
static Status weight_norm_backward(Call *c) {
  Formula f = {c, OK};
  const Tensor *saved_v = in_tensor(c, 1), *saved_g = in_tensor(c, 2);
  int64_t dim = in_int(c, 4), dims[MAX_DIMS];
  int n = 0;
  for (int d = 0; d < saved_v->ndim; d++) {
    if (d != dim) dims[n++] = d;
  }
  Tensor *gw = f_widen(&f, in_tensor(c, 0)), *v = f_widen(&f, saved_v), *g = f_widen(&f, saved_g);
  Tensor *norm = f_widen(&f, in_tensor(c, 3)), *along = f_mul(&f, gw, v);
  if (n) along = f_sum(&f, along, dims, n, true);
  Tensor *unit = f_div(&f, along, norm);
  Tensor *gv = f_mul(&f, f_div(&f, g, norm), f_sub(&f, gw, f_mul(&f, v, f_div(&f, unit, norm))));
  TRY(formula_give(&f, f_cast(&f, gv, saved_v->dtype)));
  return formula_give(&f, f_cast(&f, unit, saved_g->dtype));
}

/* ---- sharding --------------------------------------------------------------------------- */

/* Gradients of input, weight and bias as the mask (argument 9) asks for them. */
static Status grads_infer(Call *c, const Tensor *w) {
  const Tensor *x = in_tensor(c, 1);
  Dtype d = w ? w->dtype : x->dtype;
  for (int i = 0; i < 3; i++) {
    if (!masked(c, 9, i)) TRY(out_value(c, val_none()));
    else TRY(i ? out_new(c, d, 1, &x->size[1]) : out_new(c, x->dtype, x->ndim, x->size));
  }
  return OK;
}

static Status group_infer(Call *c) { return grads_infer(c, in_tensor(c, 4)); }
static Status batch_infer(Call *c) { return grads_infer(c, in_tensor(c, 2)); }

/* Channels by themselves; with given statistics the input's gradient goes element by element. */
static Status batch_place(Rules *r) {
  TRY(rule_words(r, "100110"));
  return in_bool(r->call, 7) ? OK : rule_words(r, "0ss00r 2ss22r 3ss33r 4ss44r");
}

/* The batch; whole groups of channels; linear in the gradient. */
static Status group_place(Rules *r) {
  r->whole_last = true;
  r->uneven = true;
  TRY(rule_words(r, "0ss0000r"));
  TRY(rule_grouped(r, "10011110", in_int(r->call, 8)));
  return rule_words(r, "ssssr");
}

static Status group_localize(Local *l) {
  int64_t size[MAX_DIMS];
  TRY(local_in_size(l, 1, size));
  int64_t channels = l->in[1]->size[1] ? l->in[1]->size[1] : 1;
  l->arg[5] = val_int(size[0]);
  l->arg[6] = val_int(size[1]);
  l->arg[8] = val_int(val_as_int(&l->arg[8]) * size[1] / channels);
  return OK;
}

/* clang-format off */
#define COMPOSE(text, ...) {.schema = "aten::" text, .compose = __VA_ARGS__}
/* clang-format on */

const OpDef ops_norm_grad[] = {
    COMPOSE("native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, "
            "SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
            group_norm_backward, .infer = group_infer, .shard.place = group_place,
            .shard.localize = group_localize),
    COMPOSE("native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, "
            "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] "
            "output_mask) -> (Tensor, Tensor, Tensor)",
            batch_norm_backward, .infer = batch_infer, .shard.place = batch_place),
    COMPOSE("batch_norm_backward(Tensor grad_out, Tensor input, Tensor weight, Tensor? running_mean, Tensor? "
            "running_var, Tensor? save_mean, Tensor? save_var, bool update, float eps, bool[3] output_mask, Tensor "
            "reserve) -> (Tensor, Tensor, Tensor)",
            batch_norm_backward),
    COMPOSE("_weight_norm(Tensor v, Tensor g, int dim=0) -> Tensor", weight_norm),
    COMPOSE("_weight_norm_interface(Tensor v, Tensor g, int dim=0) -> (Tensor, Tensor)", weight_norm),
    COMPOSE("_weight_norm_interface_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor saved_norms, "
            "int dim) -> (Tensor, Tensor)",
            weight_norm_backward),
    COMPOSE("_weight_norm_differentiable_backward(Tensor grad_w, Tensor saved_v, Tensor saved_g, Tensor "
            "saved_norms, int dim) -> (Tensor, Tensor)",
            weight_norm_backward),
    {0}};
