/* margin.c -- multi_margin_loss and multilabel_margin_loss, and their gradients.
 *
 * Scores are (N, C) or (C).  Sharding: rows; a mean divides by all rows, which a rank does not
 * have, so on several ranks it is a sum and a division.
 */
#include "kernels/margin.h"

#include "kernels/copy.h"
#include "kernels/nll.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/geometry.h"
#include "ops/rule.h"

/* Positions of arguments; 0: not there. */
typedef struct {
  bool labels, backward;
  int x, target, p, margin, weight, reduction, is_target;
} Row;

static Status check(const Call *c, const Row *row) {
  Tensor *x, *t;
  char a[96], b[96];
  TRY(need_tensor(c, row->x, &x));
  TRY(need_tensor(c, row->target, &t));
  int64_t classes = x->ndim ? x->size[x->ndim - 1] : 1, rows = x->ndim == 2 ? x->size[0] : 1;
  bool fits = x->ndim <= 2 && classes > 0 && dtype_is_float(x->dtype) && t->dtype == DT_I64;
  if (row->labels) fits = fits && tensor_same_size(x, t);
  else fits = fits && t->ndim <= 1 && tensor_numel(t) == rows && (t->ndim == 1 || x->ndim <= 1);
  if (!fits)
    return op_fail(c, "input %s and target %s do not go together", tensor_describe(x, a, sizeof a),
                   tensor_describe(t, b, sizeof b));
  if (row->p && in_float(c, row->p) != 1 && in_float(c, row->p) != 2)
    return op_fail(c, "p is %g, must be 1 or 2", in_float(c, row->p));
  const Tensor *w = row->weight ? in_tensor(c, row->weight) : NULL;
  Tensor *is = NULL;
  if (row->is_target) TRY(need_tensor(c, row->is_target, &is));
  if (w && (w->ndim != 1 || w->size[0] != classes || w->dtype != x->dtype))
    return op_fail(c, "weight %s must be %s[%lld]", tensor_describe(w, a, sizeof a), dtype_name(x->dtype),
                   (long long)classes);
  if (is && !tensor_same_size(is, t))
    return op_fail(c, "is_target %s does not have the size of target %s", tensor_describe(is, a, sizeof a),
                   tensor_describe(t, b, sizeof b));
  int64_t reduction = in_int(c, row->reduction);
  if (reduction < 0 || reduction > 2)
    return op_fail(c, "reduction is %lld, must be 0, 1 or 2", (long long)reduction);
  return OK;
}

static Status margin_infer(Call *c) {
  const Row *row = c->op->def->row;
  TRY(check(c, row));
  const Tensor *x = in_tensor(c, row->x), *t = in_tensor(c, row->target);
  bool each = in_int(c, row->reduction) == REDUCTION_NONE;
  if (row->backward) {
    const Tensor *g = in_tensor(c, 0);
    int64_t rows = each && x->ndim == 2 ? x->size[0] : 1;
    char a[96];
    if (!g || tensor_numel(g) != rows || g->dtype != x->dtype)
      return op_fail(c, "grad_output %s must have %lld element%s of %s",
                     g ? tensor_describe(g, a, sizeof a) : "None", (long long)rows, rows == 1 ? "" : "s",
                     dtype_name(x->dtype));
    return out_new(c, x->dtype, x->ndim, x->size);
  }
  TRY(out_new(c, x->dtype, each && t->ndim > (row->labels ? 1 : 0) ? 1 : 0, t->size));
  return row->labels ? out_new(c, x->dtype, t->ndim, t->size) : OK;
}

/* Room for n numbers, as a view like out's. */
static Status wide(Kern *k, View out, int64_t *stride, double **data, View *v) {
  int64_t n = 1;
  for (int d = 0; d < out.ndim; d++) n *= out.size[d];
  contiguous_strides(out.ndim, out.size, stride);
  TRY_NEW(*data, kern_scratch(k, (size_t)n * sizeof **data));
  *v = (View){*data, out.size, stride, out.ndim, DT_F64};
  return OK;
}

static Status forward(Call *c, const Row *row, const MarginRows *r, const MultiMargin *m) {
  Kern *k = &c->ctx->kern;
  int64_t reduction = in_int(c, row->reduction), stride[MAX_DIMS], one = 1;
  double *loss, *is = NULL, sum = 0;
  TRY_NEW(loss, kern_scratch(k, (size_t)r->n * sizeof *loss));
  if (row->labels) {
    View v, out = out_view_of(c, 1);
    TRY(wide(k, out, stride, &is, &v));
    TRY(margin_multilabel(r, loss, is));
    kernel_copy(k, out, v);
  } else {
    TRY(margin_multi(r, m, loss));
  }
  if (reduction == REDUCTION_NONE) {
    View out = out_view_of(c, 0);
    kernel_copy(k, out, (View){loss, out.size, &one, out.ndim, DT_F64});
    return OK;
  }
  for (int64_t i = 0; i < r->n; i++) sum += loss[i];
  if (reduction == REDUCTION_MEAN) sum /= (double)r->n;
  kernel_copy(k, out_view_of(c, 0), (View){&sum, NULL, NULL, 0, DT_F64});
  return OK;
}

static Status backward(Call *c, const Row *row, const MarginRows *r, const MultiMargin *m) {
  Kern *k = &c->ctx->kern;
  int64_t reduction = in_int(c, row->reduction), stride[MAX_DIMS];
  Dense given, is;
  double *g, *dx;
  View v, out = out_view_of(c, 0);
  TRY(dense_view_as(k, in_tensor(c, 0), DT_F64, &given));
  TRY_NEW(g, kern_scratch(k, (size_t)r->n * sizeof *g));
  for (int64_t i = 0; i < r->n; i++) {
    g[i] = ((const double *)given.view.data)[reduction == REDUCTION_NONE ? i : 0];
    if (reduction == REDUCTION_MEAN) g[i] /= (double)r->n;
  }
  TRY(wide(k, out, stride, &dx, &v));
  if (row->labels) {
    TRY(dense_view_as(k, in_tensor(c, row->is_target), DT_F64, &is));
    TRY(margin_multilabel_grad(r, is.view.data, g, dx));
  } else {
    TRY(margin_multi_grad(r, m, g, dx));
  }
  kernel_copy(k, out, v);
  return OK;
}

static Status margin_body(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  const Tensor *t = in_tensor(c, row->x);
  Dense x, target, weight = {0};
  TRY(dense_view_as(k, t, DT_F64, &x));
  TRY(dense_view(k, in_tensor(c, row->target), &target));
  if (row->weight) TRY(dense_view_as(k, in_tensor(c, row->weight), DT_F64, &weight));
  MarginRows r = {t->ndim == 2 ? t->size[0] : 1, t->ndim ? t->size[t->ndim - 1] : 1, x.view.data, target.view.data};
  MultiMargin m = {1, 1, weight.view.data};
  if (row->p) m.p = (int)in_float(c, row->p), m.margin = in_float(c, row->margin);
  Status s = row->backward ? backward(c, row, &r, &m) : forward(c, row, &r, &m);
  return status_at(s, "%s", c->op->schema.name);
}

static Status margin_run(Call *c) { return with_scratch(c, margin_body); }

static Status multilabel_margin_loss(Call *c) {
  Formula f = {.c = c};
  return formula_give(&f, F_OP(&f, "aten.multilabel_margin_loss_forward.default", c->arg[0], c->arg[1], c->arg[2]));
}

/* ---- sharding -------------------------------------------------------------------- */

/* Rows: results, then arguments, as in rule_words(). */
static Status place_margin(Rules *r) {
  const Row *row = r->call->op->def->row;
  const Tensor *x = in_tensor(r->call, row->x);
  int64_t reduction = in_int(r->call, row->reduction);
  if (x->ndim != 2 || reduction == REDUCTION_MEAN) return OK;
  bool each = reduction == REDUCTION_NONE;
  if (row->backward) return rule_words(r, row->labels ? (each ? "00000" : "0r000") : each ? "0000r" : "0r00r");
  if (row->labels) return rule_words(r, each ? "0000" : "s000");
  return rule_words(r, each ? "000r" : "s00r");
}

/* A mean is a sum over the number of rows: of the loss, or of the gradient that comes in. */
static Status mean_as_sum(Call *c, const Sharded *how, bool *done) {
  (void)how;
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, row->x);
  *done = x && x->ndim == 2 && in_int(c, row->reduction) == REDUCTION_MEAN;
  if (!*done) return OK;
  Formula f = {.c = c};
  Value arg[MAX_PARAMS];
  Tensor *out[2];
  double rows = (double)x->size[0];
  for (int i = 0; i < c->op->schema.nparams; i++) arg[i] = c->arg[i];
  arg[row->reduction] = val_int(REDUCTION_SUM);
  if (row->backward) arg[0] = val_tensor(F_OP(&f, "aten.div.Scalar", c->arg[0], val_float(rows)));
  TRY(f.status);
  TRY(op_call(c, c->op->schema.name, out, row->labels && !row->backward ? 2 : 1, arg, c->op->schema.nparams));
  TRY(formula_give(&f, row->backward ? out[0] : F_OP(&f, "aten.div.Scalar", F_T(out[0]), val_float(rows))));
  return row->labels && !row->backward ? formula_give(&f, out[1]) : OK;
}

#define MARGIN(text, ...)                                                                           \
  {                                                                                                 \
    .schema = "aten::" text, .infer = margin_infer, .run = margin_run, .shard.place = place_margin, \
    .shard.compose_sharded = mean_as_sum, .row = &(const Row) {                                     \
      __VA_ARGS__                                                                                   \
    }                                                                                               \
  }

const OpDef ops_margin[] = {
    MARGIN("multi_margin_loss(Tensor self, Tensor target, Scalar p=1, Scalar margin=1, Tensor? weight=None, int "
           "reduction=1) -> Tensor",
           .x = 0, .target = 1, .p = 2, .margin = 3, .weight = 4, .reduction = 5),
    MARGIN("multi_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, Scalar p, Scalar margin, "
           "Tensor? weight=None, int reduction=1) -> Tensor",
           .backward = true, .x = 1, .target = 2, .p = 3, .margin = 4, .weight = 5, .reduction = 6),
    MARGIN("multilabel_margin_loss_forward(Tensor self, Tensor target, int reduction) -> (Tensor output, Tensor "
           "is_target)",
           .labels = true, .x = 0, .target = 1, .reduction = 2),
    MARGIN("multilabel_margin_loss_backward(Tensor grad_output, Tensor self, Tensor target, int reduction, Tensor "
           "is_target) -> Tensor",
           .labels = true, .backward = true, .x = 1, .target = 2, .reduction = 3, .is_target = 4),
    {.schema = "aten::multilabel_margin_loss(Tensor self, Tensor target, int reduction=1) -> Tensor",
     .compose = multilabel_margin_loss},
    {0}};
