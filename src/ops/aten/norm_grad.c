/* norm_grad.c -- gradients of group norm and batch norm, and weight norm with its own.
 *
 *     h = (x - mean) rstd,   gx = rstd (g w - mean of g w - h * mean of g w h).
 */
#include <math.h>

#include "kernels/copy.h"
#include "kernels/norm.h"
#include "ops/aten/batch_norm.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/geometry.h"
#include "ops/rule.h"

static bool masked(const Call *c, int arg, int i) { return c->arg[arg].bools[i]; }

/* ---- group norm and batch norm: planes of one weight ------------------------------------- */

/* Gradients of input, weight and bias as the mask (argument 9) asks for them. */
static Status grads_infer(Call *c, const Tensor *w) {
  const Tensor *g = in_tensor(c, 0), *x = in_tensor(c, 1);
  Dtype d = w ? w->dtype : x->dtype;
  char a[128], b[128];
  if (x->ndim < 2 || !tensor_same_size(g, x) || !dtype_is_float(x->dtype) || !dtype_is_float(g->dtype))
    return op_fail(c, "the gradient %s does not go with the input %s", tensor_describe(g, a, sizeof a),
                   tensor_describe(x, b, sizeof b));
  for (int i = 0; i < 3; i++) {
    if (!masked(c, 9, i)) TRY(out_value(c, val_none()));
    else TRY(i ? out_new(c, d, 1, &x->size[1]) : out_new(c, x->dtype, x->ndim, x->size));
  }
  return OK;
}

/* One number each, where there is a tensor. */
static Status check_count(const Call *c, int arg, int64_t count) {
  const Tensor *t = in_tensor(c, arg);
  char text[128];
  if (!t || (tensor_numel(t) == count && dtype_is_float(t->dtype))) return OK;
  return op_fail(c, "%s %s does not fit: %lld numbers are needed", c->op->schema.params[arg].name,
                 tensor_describe(t, text, sizeof text), (long long)count);
}

/* Arguments of the statistics and the weight. */
typedef struct {
  int mean, rstd, weight;
} Places;

static Status planes_run(Call *c, Places at, NormPlanesGrad a, double eps) {
  Kern *k = &c->ctx->kern;
  const Tensor *input = in_tensor(c, 1);
  Tensor *out[3] = {out_tensor(c, 0), out_tensor(c, 1), out_tensor(c, 2)};
  Dense g, x, mean, rstd, w;
  double *sums;
  a.channels = input->size[1];
  TRY(dense_view_as(k, in_tensor(c, 0), input->dtype, &g));
  TRY(dense_view(k, input, &x));
  TRY(dense_view_as(k, in_tensor(c, at.mean), DT_F64, &mean));
  TRY(dense_view_as(k, in_tensor(c, at.rstd), DT_F64, &rstd));
  TRY(dense_view_as(k, in_tensor(c, at.weight), DT_F64, &w));
  a.g = g.view.data, a.x = x.view.data, a.dtype = input->dtype;
  a.mean = mean.view.data, a.rstd = rstd.view.data, a.weight = w.view.data;
  TRY_NEW(sums, kern_scratch(k, (size_t)(3 * a.channels + 1) * sizeof *sums));
  for (int64_t i = 0; a.given && i < a.channels; i++) sums[2 * a.channels + i] = 1 / sqrt(a.rstd[i] + eps);
  if (a.given) a.rstd = sums + 2 * a.channels; /* it was a variance */
  a.gweight = sums, a.gbias = sums + a.channels;
  a.gx = out[0] ? tensor_data(out[0]) : NULL;
  TRY(kernel_norm_planes_backward(k, &a));
  const int64_t one = 1;
  for (int i = 1; i < 3; i++)
    if (out[i])
      kernel_copy(k, tensor_view(out[i]), (View){i == 1 ? a.gweight : a.gbias, &a.channels, &one, 1, DT_F64});
  return OK;
}

static int64_t plane_of(const Tensor *x) {
  int64_t area = 1;
  for (int d = 2; d < x->ndim; d++) area *= x->size[d];
  return area;
}

/* arguments: grad, input, mean, rstd, weight, N, C, HxW, groups, mask */
static Status group_infer(Call *c) {
  const Tensor *input = in_tensor(c, 1);
  int64_t n = in_int(c, 5), channels = in_int(c, 6), area = in_int(c, 7), groups = in_int(c, 8);
  if (groups < 1 || channels % groups)
    return op_fail(c, "%lld channels do not form %lld groups", (long long)channels, (long long)groups);
  TRY(grads_infer(c, in_tensor(c, 4)));
  if (n != input->size[0] || channels != input->size[1] || area != plane_of(input))
    return op_fail(c, "N %lld, C %lld and HxW %lld are not those of the input", (long long)n, (long long)channels,
                   (long long)area);
  TRY(check_count(c, 2, n * groups));
  TRY(check_count(c, 3, n * groups));
  return check_count(c, 4, channels);
}

static Status group_body(Call *c) {
  return planes_run(c, (Places){.mean = 2, .rstd = 3, .weight = 4},
                    (NormPlanesGrad){.batch = in_int(c, 5), .inner = in_int(c, 7), .groups = in_int(c, 8)}, 0);
}
static Status group_run(Call *c) { return with_scratch(c, group_body); }

/* arguments: grad, input, weight, running mean and var, saved mean and invstd, train, eps, mask */
static Status batch_infer(Call *c) {
  const Tensor *input = in_tensor(c, 1);
  bool train = in_bool(c, 7);
  if (!in_tensor(c, train ? 5 : 3) || !in_tensor(c, train ? 6 : 4))
    return op_fail(c, "the statistics of this mode are missing");
  TRY(grads_infer(c, in_tensor(c, 2)));
  TRY(check_count(c, 2, input->size[1]));
  TRY(check_count(c, train ? 5 : 3, input->size[1]));
  return check_count(c, train ? 6 : 4, input->size[1]);
}

static Status batch_body(Call *c) {
  const Tensor *input = in_tensor(c, 1);
  bool train = in_bool(c, 7);
  return planes_run(c, (Places){.mean = train ? 5 : 3, .rstd = train ? 6 : 4, .weight = 2},
                    (NormPlanesGrad){.batch = input->size[0], .inner = plane_of(input), .given = !train},
                    in_float(c, 8));
}
static Status batch_run(Call *c) { return with_scratch(c, batch_body); }

/* The other spelling: its last argument, cuDNN's memory, says nothing here. */
static Status batch_norm_backward(Call *c) {
  Tensor *t[3];
  TRY(op_call(c, "aten.native_batch_norm_backward.default", t, 3, c->arg, 10));
  for (int i = 0; i < 3; i++) TRY(out_value(c, val_tensor(t[i])));
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
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}
#define GRADIENT(text, ...) {.schema = "aten::" text, __VA_ARGS__}
/* clang-format on */

const OpDef ops_norm_grad[] = {
    GRADIENT("native_group_norm_backward(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd, Tensor? weight, "
             "SymInt N, SymInt C, SymInt HxW, int group, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
             .infer = group_infer, .run = group_run, .shard.place = group_place, .shard.localize = group_localize),
    GRADIENT("native_batch_norm_backward(Tensor grad_out, Tensor input, Tensor? weight, Tensor? running_mean, "
             "Tensor? running_var, Tensor? save_mean, Tensor? save_invstd, bool train, float eps, bool[3] "
             "output_mask) -> (Tensor, Tensor, Tensor)",
             .infer = batch_infer, .run = batch_run, .shard.place = batch_place,
             .shard.compose_sharded = batch_norm_backward_in_parts),
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
