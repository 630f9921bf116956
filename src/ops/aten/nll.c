/* nll.c -- negative log likelihood and cross entropy.
 *
 * nll_loss takes (N, C) or (C), nll_loss2d (N, C, H, W); nll_loss_nd and cross entropy
 * any (N, C, ...), through a view.
 */
#include <string.h>

#include "kernels/nll.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/rule.h"

/* Positions of arguments. */
typedef struct {
  int x, target, weight, reduction, ignore;
  int g; /* of a backward: the loss's gradient; total_weight is argument 6 */
} Row;

/* Sizes and strides that the kernel's views point to. */
typedef struct {
  int64_t x_size[4], x_stride[4], size[3], stride[3], out_stride[3];
} Geometry;

static Status check(const Call *c, const Row *row) {
  const Tensor *x = in_tensor(c, row->x), *t = in_tensor(c, row->target), *w = in_tensor(c, row->weight);
  char a[128], b[128];
  int axis = x->ndim == 1 ? 0 : 1;
  bool fits = (x->ndim == 1 || x->ndim == 2 || x->ndim == 4) && t->ndim == (x->ndim == 1 ? t->ndim : x->ndim - 1);
  fits = fits && dtype_is_float(x->dtype) && (t->dtype == DT_I64 || t->dtype == DT_U8);
  for (int d = 0, o = 0; fits && x->ndim > 1 && d < x->ndim; d++) {
    if (d != axis) fits = x->size[d] == t->size[o++];
  }
  if (x->ndim == 1) fits = fits && tensor_numel(t) == 1;
  if (!fits)
    return op_fail(c, "input %s and target %s do not go together", tensor_describe(x, a, sizeof a),
                   tensor_describe(t, b, sizeof b));
  int64_t reduction = in_int(c, row->reduction);
  if (reduction < REDUCTION_NONE || reduction > REDUCTION_SUM)
    return op_fail(c, "reduction is %lld: 0 is none, 1 the mean, 2 the sum", (long long)reduction);
  if (w && tensor_numel(w) != x->size[axis]) {
    return op_fail(c, "weight %s does not fit the classes of %s", tensor_describe(w, b, sizeof b),
                   tensor_describe(x, a, sizeof a));
  }
  return OK;
}

static Status forward_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, row->x), *t = in_tensor(c, row->target);
  TRY(check(c, row));
  bool each = in_int(c, row->reduction) == REDUCTION_NONE && x->ndim > 1;
  TRY(out_new(c, x->dtype, each ? t->ndim : 0, t->size));
  return out_new(c, x->dtype, 0, NULL);
}

static Status backward_infer(Call *c) {
  const Row *row = c->op->def->row;
  TRY(check(c, row));
  const Tensor *x = in_tensor(c, row->x), *g = in_tensor(c, row->g), *total = in_tensor(c, 6);
  char text[128];
  bool each = in_int(c, row->reduction) == REDUCTION_NONE && x->ndim > 1;
  if (!dtype_is_float(g->dtype) || (each ? !tensor_same_size(g, in_tensor(c, row->target)) : tensor_numel(g) != 1))
    return op_fail(c, "the gradient %s is not that of the loss", tensor_describe(g, text, sizeof text));
  if (tensor_numel(total) != 1)
    return op_fail(c, "total_weight must be one number, not %s", tensor_describe(total, text, sizeof text));
  return out_new(c, x->dtype, x->ndim, x->size);
}

/* x, target and places as (n, c, h, w), (n, h, w), (n, h, w). */
static Nll arrange(const Call *c, const Row *row, View x, View t, View *places, Geometry *s) {
  int64_t place_stride[3] = {0, 0, 0};
  if (x.ndim == 1) {
    memcpy(s->x_size, (int64_t[]){1, x.size[0], 1, 1}, sizeof s->x_size);
    memcpy(s->x_stride, (int64_t[]){0, x.stride[0], 0, 0}, sizeof s->x_stride);
    memcpy(s->size, (int64_t[]){1, 1, 1}, sizeof s->size);
    memset(s->stride, 0, sizeof s->stride);
  } else {
    for (int d = 0; d < 4; d++)
      s->x_size[d] = d < x.ndim ? x.size[d] : 1, s->x_stride[d] = d < x.ndim ? x.stride[d] : 0;
    for (int d = 0; d < 3; d++) {
      s->size[d] = d < t.ndim ? t.size[d] : 1, s->stride[d] = d < t.ndim ? t.stride[d] : 0;
      place_stride[d] = d < places->ndim && places->size[d] != 1 ? places->stride[d] : 0;
    }
  }
  memcpy(s->out_stride, place_stride, sizeof place_stride);
  places->size = s->size, places->stride = s->out_stride, places->ndim = 3;
  return (Nll){.x = {x.data, s->x_size, s->x_stride, 4, x.dtype},
               .target = {t.data, s->size, s->stride, 3, t.dtype},
               .ignore = in_int(c, row->ignore),
               .reduction = (LossReduction)in_int(c, row->reduction)};
}

static Status forward_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  Geometry s;
  Dense w;
  size_t mark = kern_mark(k);
  View out = out_view_of(c, 0);
  TRY(dense_view_as(k, in_tensor(c, row->weight), DT_F64, &w));
  Nll a = arrange(c, row, in_view(c, row->x), in_view(c, row->target), &out, &s);
  a.weight = w.view.data;
  TRY(kernel_nll(k, &a, out, out_view_of(c, 1)));
  kern_release(k, mark);
  return OK;
}

static Status backward_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  Geometry s;
  Dense w, total;
  size_t mark = kern_mark(k);
  View g = in_view(c, 0);
  TRY(dense_view_as(k, in_tensor(c, row->weight), DT_F64, &w));
  TRY(dense_view_as(k, in_tensor(c, 6), DT_F64, &total));
  Nll a = arrange(c, row, out_view_of(c, 0), in_view(c, row->target), &g, &s);
  a.weight = w.view.data;
  TRY(kernel_nll_backward(k, &a, g, *(const double *)total.view.data));
  kern_release(k, mark);
  return OK;
}

/* nll_loss_backward and _log_softmax_backward_data in one: the gradient of the scores in the memory of their
 * logarithms. */
static Status scores_infer(Call *c) {
  const Tensor *y = in_tensor(c, 0);
  char text[128];
  TRY(backward_infer(c));
  if (y->ndim == 2 && (y->dtype == DT_F32 || y->dtype == DT_F64)) return OK;
  return op_fail(c, "works on rows of f32 or f64, not on %s", tensor_describe(y, text, sizeof text));
}

static Status scores_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  Geometry s;
  Dense y, w, total;
  size_t mark = kern_mark(k);
  View g = in_view(c, row->g);
  TRY(dense_view(k, in_tensor(c, row->x), &y));
  TRY(dense_view_as(k, in_tensor(c, row->weight), DT_F64, &w));
  TRY(dense_view_as(k, in_tensor(c, 6), DT_F64, &total));
  Nll a = arrange(c, row, out_view_of(c, 0), in_view(c, row->target), &g, &s);
  a.weight = w.view.data;
  TRY(kernel_nll_log_softmax_backward(k, &a, y.view, g, *(const double *)total.view.data));
  kern_release(k, mark);
  return OK;
}

/* ---- sharding -----------------------------------------------------------------------------
 * Everything but the classes passes, as the scores lie; targets lack that dimension.  A mean
 * divides by the weight of all targets that count, which no rank knows: it is taken apart. */

static Placement target_place(const Rules *r, const Row *row, int a) {
  const Placement *x = rule_have(r, row->x, a);
  int classes = r->in[row->x]->ndim > 1;
  Placement p = *x;
  if (!is_s(x) || x->dim == classes) return place_r();
  p.dim -= x->dim > classes;
  return p;
}

/* The scores' placement that goes with it. */
static Placement score_place(const Rules *r, const Row *row, int a) {
  Placement p = target_place(r, row, a);
  return is_s(&p) ? *rule_have(r, row->x, a) : p;
}

static Status forward_axis(const Rules *r, const void *arg, int a, Placement *p) {
  const Row *row = arg;
  Placement t = target_place(r, row, a);
  int64_t reduction = in_int(r->call, row->reduction);
  if (reduction == REDUCTION_MEAN) return OK; /* all R */
  p[0] = reduction == REDUCTION_SUM && is_s(&t) ? place_p(REDUCE_SUM) : t;
  p[1] = is_p(&p[0]) ? p[0] : place_r();
  p[2] = score_place(r, row, a);
  p[3] = t;
  return OK;
}

static Status forward_place(Rules *r) {
  const Row *row = r->call->op->def->row;
  r->uneven = true;
  if (in_int(r->call, row->reduction) == REDUCTION_MEAN) rule_why(r, "a mean of targets that count has no parts");
  return rule_follow(r, forward_axis, row);
}

static Status backward_axis(const Rules *r, const void *arg, int a, Placement *p) {
  const Row *row = arg;
  int64_t reduction = in_int(r->call, row->reduction);
  Placement t = target_place(r, row, a);
  p[0] = p[2] = score_place(r, row, a);
  p[1] = reduction == REDUCTION_NONE ? t : place_r();
  p[3] = t;
  if (reduction != REDUCTION_MEAN) p[r->nin] = *rule_have(r, r->nin - 1, a); /* the total weight is not read */
  return OK;
}

static Status backward_place(Rules *r) { return rule_follow(r, backward_axis, r->call->op->def->row); }

/* Classes that are cut: each rank looks up the targets that it has, the others' count as 0. */
static Status classes_in_parts(Call *c, const Row *row) {
  Formula f = {c, OK};
  Tensor *x = in_tensor(c, row->x), *target = in_tensor(c, row->target), *weight = in_tensor(c, row->weight);
  const int64_t classes = x->ndim > 1, reduction = in_int(c, row->reduction);
  Tensor *ignored = F_OP(&f, "aten.eq.Scalar", F_T(target), c->arg[row->ignore]);
  Tensor *safe = F_OP(&f, "aten.masked_fill.Scalar", F_T(target), F_T(ignored), val_int(0));
  Tensor *at = F_OP(&f, "aten.unsqueeze.default", F_T(safe), val_int(classes));
  Tensor *found = F_OP(&f, "aten.gather.default", F_T(f_widen(&f, x)), val_int(classes), F_T(at));
  Tensor *loss = f_neg(&f, F_OP(&f, "aten.squeeze.dim", F_T(found), val_int(classes)));
  Tensor *count = F_OP(&f, "aten.ones_like.default", F_T(loss));
  if (weight && safe) {
    Tensor *flat = f_view(&f, safe, (const int64_t[]){tensor_numel(safe)}, 1);
    count = f_view(&f, F_OP(&f, "aten.index_select.default", F_T(f_widen(&f, weight)), val_int(0), F_T(flat)),
                   safe->size, safe->ndim);
    loss = f_mul(&f, loss, count);
  }
  loss = F_OP(&f, "aten.masked_fill.Scalar", F_T(loss), F_T(ignored), val_int(0));
  count = F_OP(&f, "aten.masked_fill.Scalar", F_T(count), F_T(ignored), val_int(0));
  Tensor *total = F_OP(&f, "aten.sum.default", F_T(count));
  if (reduction != REDUCTION_NONE) loss = F_OP(&f, "aten.sum.default", F_T(loss));
  if (reduction == REDUCTION_MEAN) loss = f_div(&f, loss, total);
  if (reduction == REDUCTION_NONE) total = f_scale(&f, total, 0);
  TRY(formula_give(&f, f_cast(&f, loss, x->dtype)));
  return formula_give(&f, f_cast(&f, total, x->dtype));
}

/* mean = sum / total weight, in f32 at least. */
static Status mean_over_ranks(Call *c, const Sharded *how, bool *done) {
  const Row *row = c->op->def->row;
  Formula f = {c, OK};
  bool along[MAX_DIMS] = {false};
  along[in_tensor(c, row->x)->ndim > 1] = true;
  *done = in_tensor(c, row->target)->ndim > 0 && sharded_along(how, c, row->x, along);
  if (*done) return classes_in_parts(c, row);
  *done = in_int(c, row->reduction) == REDUCTION_MEAN;
  if (!*done) return OK;
  Tensor *sum[2], *x = f_widen(&f, in_tensor(c, row->x)), *weight = f_widen(&f, in_tensor(c, row->weight));
  Value w = weight ? val_tensor(weight) : val_none();
  TRY(f.status);
  TRY(OP_N(c, c->op->schema.name, sum, 2, val_tensor(x), c->arg[row->target], w, val_int(REDUCTION_SUM),
           c->arg[row->ignore]));
  Dtype d = in_tensor(c, row->x)->dtype;
  TRY(formula_give(&f, f_cast(&f, f_div(&f, sum[0], sum[1]), d)));
  return formula_give(&f, f_cast(&f, sum[1], d));
}

/* Rows whose classes are cut: softmax less 1 at the target, each rank for the classes that it has.  Nothing is
 * sent, which taking the gradients of nll_loss and log_softmax one after the other could not do. */
static Status scores_in_parts(Call *c, const Sharded *how, bool *done) {
  const Row *row = c->op->def->row;
  Formula f = {c, OK};
  Tensor *y = in_tensor(c, row->x), *g = in_tensor(c, row->g), *target = in_tensor(c, row->target);
  const Tensor *weight = in_tensor(c, row->weight);
  *done = y->ndim == 2 && y->size[0] > 0 && sharded_along(how, c, row->x, (const bool[MAX_DIMS]){false, true});
  if (!*done) return OK;
  const int64_t each[2] = {y->size[0], 1}, classes[2] = {1, y->size[1]};
  if (in_int(c, row->reduction) == REDUCTION_MEAN) g = f_div(&f, g, in_tensor(c, 6));
  Tensor *ignored = F_OP(&f, "aten.eq.Scalar", F_T(target), c->arg[row->ignore]);
  Tensor *safe = F_OP(&f, "aten.masked_fill.Scalar", F_T(target), F_T(ignored), val_int(0));
  if (weight && safe) g = f_mul(&f, F_OP(&f, "aten.index_select.default", F_T(weight), val_int(0), F_T(safe)), g);
  g = F_OP(&f, "aten.where.ScalarOther", F_T(F_OP(&f, "aten.logical_not.default", F_T(ignored))), F_T(g),
           val_int(0));
  /* the numbers of the classes, placed as the scores are */
  Tensor *zeros = F_OP(&f, "aten.new_zeros.default", F_T(y), val_ints(classes, 2), val_dtype(DT_I64));
  Tensor *count = F_OP(&f, "aten.arange.default", val_int(y->size[1]), val_dtype(DT_I64));
  Tensor *pair[2] = {y, f_add(&f, zeros, count ? f_view(&f, count, classes, 2) : NULL)};
  f_align(&f, pair, 2);
  Tensor *hit = F_OP(&f, "aten.eq.Tensor", F_T(pair[1]), F_T(safe ? f_view(&f, safe, each, 2) : NULL));
  Tensor *d = f_sub(&f, f_exp(&f, y), f_cast(&f, hit, y->dtype));
  return formula_give(&f, f_mul(&f, d, g ? f_view(&f, g, each, 2) : NULL));
}

/* log_softmax and nll_loss of rows: their gradients are taken together. */
static Status nll_log_softmax(Call *c) { /* self, target, weight, reduction, ignore_index */
  Formula f = {c, OK};
  Tensor *loss[2] = {NULL, NULL}, *y = F_OP(&f, "aten.log_softmax.int", c->arg[0], val_int(1));
  F_OPS(&f, "aten.nll_loss_forward.default", loss, 2, F_T(y), c->arg[1], c->arg[2], c->arg[3], c->arg[4]);
  TRY(formula_give(&f, loss[0]));
  TRY(formula_give(&f, loss[1]));
  return formula_give(&f, y);
}

/* ---- any number of dimensions ---------------------------------------------------------- */

static Tensor *nll(Formula *f, const char *name, const Tensor *x, const Tensor *t, Value weight, Value reduction,
                   Value ignore) {
  return F_OP(f, name, val_tensor(x), val_tensor(t), weight, reduction, ignore);
}

static Tensor *nll_nd(Formula *f, const Tensor *x, const Tensor *t, Value weight, Value reduction, Value ignore) {
  if (!x || !t) return NULL;
  if (x->ndim <= 2) return nll(f, "aten.nll_loss_forward.default", x, t, weight, reduction, ignore);
  if (x->ndim == 4) return nll(f, "aten.nll_loss2d_forward.default", x, t, weight, reduction, ignore);
  int64_t rest = 1;
  for (int d = 2; d < x->ndim; d++) rest *= x->size[d];
  const int64_t x_size[4] = {x->size[0], x->size[1], 1, rest}, t_size[3] = {x->size[0], 1, rest};
  Tensor *out = nll(f, "aten.nll_loss2d_forward.default", f_view(f, x, x_size, 4), f_view(f, t, t_size, 3), weight,
                    reduction, ignore);
  return reduction.i == REDUCTION_NONE ? f_view(f, out, t->size, t->ndim) : out;
}

static Status nll_loss_nd(Call *c) {
  Formula f = {c, OK};
  Tensor *out = nll_nd(&f, in_tensor(c, 0), in_tensor(c, 1), c->arg[2], c->arg[3], c->arg[4]);
  return formula_give(&f, out);
}

/* ---- cross entropy ---------------------------------------------------------------------- */

/* The weights along the class dimension of x, or NULL. */
static Tensor *class_weights(Formula *f, const Tensor *x, const Tensor *w, int axis) {
  int64_t size[MAX_DIMS];
  if (!w) return NULL;
  for (int d = 0; d < x->ndim; d++) size[d] = d == axis ? x->size[d] : 1;
  return f_view(f, w, size, x->ndim);
}

/* count: a whole number, which may stand for a product of symbols */
static Tensor *reduced(Formula *f, const Tensor *t, int64_t reduction, int64_t count) {
  if (reduction == REDUCTION_NONE) return (Tensor *)(uintptr_t)t;
  Tensor *sum = F_OP(f, "aten.sum.default", val_tensor(t));
  return reduction == REDUCTION_MEAN ? F_OP(f, "aten.div.Scalar", val_tensor(sum), val_int(count)) : sum;
}

/* Targets are probabilities. */
static Tensor *soft_cross_entropy(Formula *f, const Tensor *logp, const Tensor *target, const Tensor *w,
                                  int64_t reduction, double smoothing, int axis) {
  const int64_t dim = axis;
  const double classes = (double)logp->size[axis];
  const int64_t places = logp->size[axis] ? tensor_numel(logp) / logp->size[axis] : 0;
  Tensor *t = (Tensor *)(uintptr_t)target, *weights = class_weights(f, logp, w, axis);
  if (smoothing > 0) t = f_shift(f, f_scale(f, t, 1 - smoothing), smoothing / classes);
  t = f_mul(f, logp, t);
  if (weights) t = f_mul(f, t, weights);
  return reduced(f, f_neg(f, f_sum(f, t, &dim, 1, false)), reduction, places);
}

/* The part of label smoothing that looks at all classes. */
static Tensor *smooth_loss(Formula *f, const Tensor *logp, const Tensor *target, const Tensor *w, int64_t reduction,
                           int64_t ignore, int axis) {
  const int64_t dim = axis;
  Tensor *weights = class_weights(f, logp, w, axis),
         *weighted = weights ? f_mul(f, logp, weights) : (Tensor *)(uintptr_t)logp;
  Tensor *all = f_neg(f, f_sum(f, weighted, &dim, 1, false));
  Tensor *ignored = F_OP(f, "aten.eq.Scalar", val_tensor(target), val_int(ignore));
  Tensor *kept = F_OP(f, "aten.masked_fill.Scalar", val_tensor(all), val_tensor(ignored), val_int(0));
  if (reduction == REDUCTION_NONE) return kept;
  Tensor *sum = F_OP(f, "aten.sum.default", val_tensor(kept));
  if (reduction == REDUCTION_SUM) return sum;
  Tensor *count;
  if (w) { /* the sum of the weights of the targets */
    Tensor *safe = F_OP(f, "aten.masked_fill.Scalar", val_tensor(target), val_tensor(ignored), val_int(0));
    Tensor *flat = f_view(f, safe, (const int64_t[]){tensor_numel(target)}, 1);
    Tensor *each = f_view(f, F_OP(f, "aten.index_select.default", val_tensor(w), val_int(0), val_tensor(flat)),
                          target->size, target->ndim);
    count = F_OP(f, "aten.sum.default",
                 val_tensor(F_OP(f, "aten.masked_fill.Scalar", val_tensor(each), val_tensor(ignored), val_int(0))));
  } else {
    count = F_OP(f, "aten.sum.default", val_tensor(F_OP(f, "aten.logical_not.default", val_tensor(ignored))));
  }
  return f_div(f, sum, count);
}

static Status cross_entropy_loss(Call *c) {
  Formula f = {c, OK};
  const Tensor *x = in_tensor(c, 0), *target = in_tensor(c, 1), *w = in_tensor(c, 2);
  int64_t reduction = in_int(c, 3), ignore = in_int(c, 4);
  double smoothing = in_float(c, 5);
  int axis = x->ndim == 1 ? 0 : 1;
  if (x->ndim < 1) return op_fail(c, "the input has no class dimension");
  if (smoothing < 0 || smoothing > 1) return op_fail(c, "label_smoothing %g is not between 0 and 1", smoothing);
  Tensor *logp = F_OP(&f, "aten.log_softmax.int", val_tensor(x), val_int(axis)), *out = NULL;
  if (!logp) return formula_give(&f, NULL);
  if (dtype_is_float(target->dtype)) {
    out = soft_cross_entropy(&f, logp, target, w, reduction, smoothing, axis);
  } else {
    out = nll_nd(&f, logp, target, c->arg[2], c->arg[3], c->arg[4]);
    if (smoothing > 0) {
      Tensor *smooth = smooth_loss(&f, logp, target, w, reduction, ignore, axis);
      out = f_add(&f, f_scale(&f, out, 1 - smoothing), f_scale(&f, smooth, smoothing / (double)x->size[axis]));
    }
  }
  return formula_give(&f, out);
}

/* clang-format off */
#define FORWARD(text) \
  {.schema = "aten::" text, .infer = forward_infer, .run = forward_run, .shard.place = forward_place, \
    .shard.compose_sharded = mean_over_ranks, .row = &(const Row){0, 1, 2, 3, 4, 0}}
#define BACKWARD(text) \
  {.schema = "aten::" text, .infer = backward_infer, .run = backward_run, .shard.place = backward_place, \
    .row = &(const Row){1, 2, 3, 4, 5, 0}}
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}
/* clang-format on */

const OpDef ops_nll[] = {
    FORWARD("nll_loss_forward(Tensor self, Tensor target, Tensor? weight, int reduction, "
            "SymInt ignore_index) -> (Tensor output, Tensor total_weight)"),
    FORWARD("nll_loss2d_forward(Tensor self, Tensor target, Tensor? weight, int reduction, "
            "SymInt ignore_index) -> (Tensor output, Tensor total_weight)"),
    BACKWARD("nll_loss_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
             "weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor"),
    BACKWARD("nll_loss2d_backward(Tensor grad_output, Tensor self, Tensor target, Tensor? "
             "weight, int reduction, SymInt ignore_index, Tensor total_weight) -> Tensor"),
    {.schema = "tess::nll_log_softmax_backward(Tensor output, Tensor grad_output, Tensor target, "
               "Tensor? weight, int reduction, SymInt ignore_index, Tensor total_weight) -> "
               "Tensor",
     .infer = scores_infer,
     .run = scores_run,
     .flags = OP_UPDATE,
     .shard.compose_sharded = scores_in_parts,
     .row = &(const Row){0, 2, 3, 4, 5, 1}},
    {.schema =
         "tess::nll_log_softmax(Tensor self, Tensor target, Tensor? weight, int reduction, SymInt ignore_index) "
         "-> (Tensor loss, Tensor total_weight, Tensor output)",
     .compose = nll_log_softmax},
    COMPOSE("nll_loss(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
            "SymInt ignore_index=-100) -> Tensor",
            nll_loss_nd),
    COMPOSE("nll_loss2d(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
            "SymInt ignore_index=-100) -> Tensor",
            nll_loss_nd),
    COMPOSE("nll_loss_nd(Tensor self, Tensor target, Tensor? weight=None, int reduction=1, "
            "SymInt ignore_index=-100) -> Tensor",
            nll_loss_nd),
    COMPOSE("cross_entropy_loss(Tensor self, Tensor target, Tensor? weight=None, int "
            "reduction=1, SymInt ignore_index=-100, float label_smoothing=0.) -> Tensor",
            cross_entropy_loss),
    {0}};
