/* norm.c -- layer norm, group norm, rms norm, and their gradients.
 *
 * The composite spellings (layer_norm) and the ones that also return statistics
 * (native_layer_norm) share one infer and one run per kind.  Statistics have the input's
 * dtype, or f32 where a 16-bit input meets f32 weights.
 */
#include <float.h>

#include "kernels/copy.h"
#include "kernels/norm.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"
#include "ops/rule.h"

typedef enum { LAYER, GROUP, RMS } NormKind;

typedef struct {
  NormKind kind;
  bool stats; /* mean and rstd (rms: rstd) are results */
  /* Positions of arguments; 0: none. */
  int weight, bias, eps;
} Row;

/* (rows, n) and the channels, from sizes alone. */
typedef struct {
  int64_t rows, n, groups, inner;
  int axis; /* layer, rms: first normalised dimension */
} Shape;

static Status check_affine(const Call *c, const Tensor *t, int64_t channels, const char *what) {
  char text[128];
  if (t && (tensor_numel(t) != channels || !dtype_is_float(t->dtype))) {
    return op_fail(c, "%s %s does not fit: %lld numbers are needed", what, tensor_describe(t, text, sizeof text),
                   (long long)channels);
  }
  return OK;
}

static Status last_dims(const Call *c, const Tensor *x, Ints shape, Shape *s) {
  char a[128], b[128];
  s->axis = x->ndim - shape.n;
  s->rows = s->n = s->groups = s->inner = 1;
  bool fits = s->axis >= 0 && shape.n > 0 && dtype_is_float(x->dtype);
  for (int i = 0; fits && i < shape.n; i++) {
    fits = x->size[s->axis + i] == shape.v[i];
    if (fits) s->n *= shape.v[i];
  }
  if (!fits) {
    return op_fail(c, "input %s does not end in normalized_shape %s", tensor_describe(x, a, sizeof a),
                   shape_describe(shape.n, shape.v, b, sizeof b));
  }
  for (int d = 0; d < s->axis; d++) s->rows *= x->size[d];
  return OK;
}

static Status group_dims(const Call *c, const Tensor *x, int64_t groups, Shape *s) {
  char text[128];
  if (x->ndim < 2 || !dtype_is_float(x->dtype) || groups < 1 || x->size[1] % groups) {
    return op_fail(c, "the channels of %s do not form %lld groups", tensor_describe(x, text, sizeof text),
                   (long long)groups);
  }
  int64_t area = 1, rows;
  if (__builtin_mul_overflow(x->size[0], groups, &rows))
    return op_fail(c, "%s has no %lld groups", tensor_describe(x, text, sizeof text), (long long)groups);
  for (int d = 2; d < x->ndim; d++) area *= x->size[d];
  *s = (Shape){.rows = rows, .n = x->size[1] / groups * area, .groups = groups, .inner = area ? area : 1};
  return OK;
}

/* What native_group_norm is told of its input, and its gradient relies on. */
static Status check_spelled(const Call *c, const Tensor *x) {
  int64_t n = in_int(c, 3), channels = in_int(c, 4), area = 1;
  char text[128];
  for (int d = 2; d < x->ndim; d++) area *= x->size[d];
  if (n == x->size[0] && channels == x->size[1] && in_int(c, 5) == area) return OK;
  return op_fail(c, "N, C and HxW are %lld, %lld and %lld, which is not the size of %s", (long long)n,
                 (long long)channels, (long long)in_int(c, 5), tensor_describe(x, text, sizeof text));
}

static Status read_shape(const Call *c, Shape *s) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0), *w = in_tensor(c, row->weight),
               *b = row->bias ? in_tensor(c, row->bias) : NULL;
  if (row->kind == GROUP) TRY(group_dims(c, x, in_int(c, row->stats ? 6 : 1), s));
  else TRY(last_dims(c, x, in_ints(c, 1), s));
  if (row->kind == GROUP && row->stats) TRY(check_spelled(c, x));
  int64_t channels = row->kind == GROUP ? x->size[1] : s->n;
  TRY(check_affine(c, w, channels, "weight"));
  return check_affine(c, b, channels, "bias");
}

static Dtype stat_dtype(const Call *c, const Row *row) {
  Dtype d = in_tensor(c, 0)->dtype;
  const Tensor *w = in_tensor(c, row->weight), *b = row->bias ? in_tensor(c, row->bias) : NULL;
  if (row->kind == RMS) return d == DT_F64 ? DT_F64 : DT_F32;
  return (w && w->dtype == DT_F32) || (b && b->dtype == DT_F32) ? DT_F32 : d;
}

static Status norm_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  Shape s;
  TRY(read_shape(c, &s));
  TRY(out_new(c, x->dtype, x->ndim, x->size));
  if (!row->stats) return OK;
  int64_t size[MAX_DIMS] = {x->size[0], s.groups};
  int n = 2;
  if (row->kind != GROUP) {
    n = x->ndim;
    for (int d = 0; d < n; d++) size[d] = d < s.axis ? x->size[d] : 1;
  }
  TRY(out_new(c, stat_dtype(c, row), n, size));
  return row->kind == RMS ? OK : out_new(c, stat_dtype(c, row), n, size);
}

static double read_eps(const Call *c, const Row *row) {
  if (!in_none(c, row->eps)) return in_float(c, row->eps);
  return in_tensor(c, 0)->dtype == DT_F64 ? DBL_EPSILON : (double)FLT_EPSILON;
}

static Status norm_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  const Tensor *x = in_tensor(c, 0);
  View y = out_view_of(c, 0);
  Dense w, b;
  Shape s;
  size_t mark = kern_mark(k);
  TRY(read_shape(c, &s));
  if (tensor_numel(x) == 0 && !row->stats) return OK; /* of any number of groups */
  Dtype as = x->dtype == DT_F64 ? DT_F64 : DT_F32;
  TRY(dense_view_as(k, in_tensor(c, row->weight), as, &w));
  TRY(dense_view_as(k, row->bias ? in_tensor(c, row->bias) : NULL, as, &b));
  NormRows a = {.y = y.data,
                .x = tensor_data(x),
                .dtype = x->dtype,
                .rows = s.rows,
                .n = s.n,
                .groups = s.groups,
                .inner = s.inner,
                .weight = w.view.data,
                .bias = b.view.data,
                .param = as,
                .eps = read_eps(c, row),
                .rms = row->kind == RMS,
                .stat = stat_dtype(c, row)};
  if (!tensor_is_contiguous(x)) {
    kernel_copy(k, y, tensor_view(x));
    a.x = y.data;
  }
  if (row->stats && row->kind != RMS) a.mean = out_view_of(c, 1).data;
  if (row->stats) a.rstd = out_view_of(c, row->kind == RMS ? 1 : 2).data;
  TRY(kernel_norm_rows(k, &a));
  kern_release(k, mark);
  return OK;
}

/* ---- gradients ---------------------------------------------------------------------- */

/* Positions: grad_out, input, normalized_shape, [mean,] rstd, weight, [bias,] mask. */
typedef struct {
  bool rms;
  int rstd, weight, bias, mask;
} GradRow;

/* The gradient is of the input's size, statistics are one number per row, parameters of one dtype. */
static Status check_grad(const Call *c, const GradRow *row, const Shape *s) {
  const Tensor *g = in_tensor(c, 0), *x = in_tensor(c, 1), *w = in_tensor(c, row->weight),
               *b = row->bias ? in_tensor(c, row->bias) : NULL, *mean = row->rms ? NULL : in_tensor(c, 3),
               *rstd = in_tensor(c, row->rstd);
  char text[128], other[128];
  if (!tensor_same_size(g, x) || !dtype_is_float(g->dtype))
    return op_fail(c, "the gradient %s does not go with the input %s", tensor_describe(g, text, sizeof text),
                   tensor_describe(x, other, sizeof other));
  TRY(check_affine(c, mean, s->rows, "mean"));
  TRY(check_affine(c, rstd, s->rows, "rstd"));
  TRY(check_affine(c, w, s->n, "weight"));
  TRY(check_affine(c, b, s->n, "bias"));
  bool alike = (!w || !b || w->dtype == b->dtype) && (!mean || mean->dtype == rstd->dtype);
  return alike ? OK : op_fail(c, "weight and bias must be of one dtype, and so must mean and rstd");
}

static Status grad_infer(Call *c) {
  const GradRow *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 1), *w = in_tensor(c, row->weight),
               *b = row->bias ? in_tensor(c, row->bias) : NULL;
  const bool *mask = c->arg[row->mask].bools;
  Ints shape = in_ints(c, 2);
  Shape s;
  TRY(last_dims(c, x, shape, &s));
  TRY(check_grad(c, row, &s));
  if (mask[0]) TRY(out_new(c, x->dtype, x->ndim, x->size));
  else TRY(out_value(c, val_none()));
  for (int i = 1; i < (row->rms ? 2 : 3); i++) {
    const Tensor *like = i == 1 ? (w ? w : b) : (b ? b : w);
    if (mask[i]) TRY(out_new(c, like ? like->dtype : x->dtype, shape.n, shape.v));
    else TRY(out_value(c, val_none()));
  }
  return OK;
}

static Status grad_run(Call *c) {
  const GradRow *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  const Tensor *input = in_tensor(c, 1);
  Tensor *gx = out_tensor(c, 0), *gw = out_tensor(c, 1), *gb = row->rms ? NULL : out_tensor(c, 2);
  Dense g, x, mean, rstd, w;
  Shape s;
  size_t mark = kern_mark(k);
  TRY(last_dims(c, input, in_ints(c, 2), &s));
  TRY(dense_view_as(k, in_tensor(c, 0), input->dtype, &g));
  TRY(dense_view(k, input, &x));
  TRY(dense_view(k, row->rms ? NULL : in_tensor(c, 3), &mean));
  TRY(dense_view(k, in_tensor(c, row->rstd), &rstd));
  TRY(dense_view(k, in_tensor(c, row->weight), &w));
  NormRowsGrad a = {.gx = gx ? tensor_data(gx) : NULL,
                    .gweight = gw ? tensor_data(gw) : NULL,
                    .gbias = gb ? tensor_data(gb) : NULL,
                    .g = g.view.data,
                    .x = x.view.data,
                    .mean = mean.view.data,
                    .rstd = rstd.view.data,
                    .weight = w.view.data,
                    .dtype = input->dtype,
                    .stat = rstd.view.dtype,
                    .rows = s.rows,
                    .n = s.n};
  a.param = w.view.data ? w.view.dtype : gw ? gw->dtype : gb ? gb->dtype : input->dtype;
  TRY(kernel_norm_rows_backward(k, &a));
  kern_release(k, mark);
  return OK;
}

/* ---- sharding ------------------------------------------------------------------------
 * Rows are independent: dimensions before the normalised ones, the batch and the groups of
 * group norm. */

static int64_t groups_of(const Call *c) {
  const Row *row = c->op->def->row;
  return in_int(c, row->stats ? 6 : 1);
}

static Status place_norm(Rules *r) {
  const Row *row = r->call->op->def->row;
  Fold f = {.lead = 0, .any = true};
  int rows = row->kind == GROUP ? 1 : r->in[0]->ndim - in_ints(r->call, 1).n;
  for (int d = rows; d < r->in[0]->ndim; d++) f.whole[d] = true;
  TRY(rule_fold(r, &f));
  return row->kind == GROUP ? rule_grouped(r, row->stats ? "111100" : "1100", groups_of(r->call)) : OK;
}

/* x / sqrt(mean(x^2) + eps) * weight: where the normalised dimensions are cut, ranks need the mean
 * of all, not the elements of all. */
static Status rms_parts(Call *c) {
  const Row *row = c->op->def->row;
  Formula f = {c, OK};
  Shape s;
  int64_t dims[MAX_DIMS];
  const Tensor *input = in_tensor(c, 0), *weight = in_tensor(c, row->weight);
  TRY(read_shape(c, &s));
  int n = input->ndim - s.axis;
  for (int d = 0; d < n; d++) dims[d] = s.axis + d;
  Tensor *x = f_widen(&f, input), *square = F_OP(&f, "aten.pow.Tensor_Scalar", F_T(x), val_int(2));
  Tensor *mean = F_OP(&f, "aten.mean.dim", F_T(square), val_ints(dims, n), val_bool(true));
  Tensor *y = f_mul(&f, x, f_rsqrt(&f, f_shift(&f, mean, read_eps(c, row))));
  if (weight) y = f_mul(&f, y, weight);
  return formula_give(&f, f_cast(&f, y, input->dtype));
}

/* Group norm spells its groups, native_group_norm the batch and the channels, too. */
static Status localize_norm(Local *l) {
  const Row *row = l->def->row;
  int64_t size[MAX_DIMS], channels = l->in[0]->size[1];
  if (row->kind != GROUP) return OK;
  TRY(local_in_size(l, 0, size));
  if (channels) l->arg[row->stats ? 6 : 1] = val_int(groups_of(l->call) * size[1] / channels);
  if (!row->stats) return OK;
  l->arg[3] = val_int(size[0]);
  l->arg[4] = val_int(size[1]);
  return OK;
}

/* The gradients of weight and bias are sums over rows. */
static Status place_grad(Rules *r) {
  const GradRow *row = r->call->op->def->row;
  int rows = r->in[1]->ndim - in_ints(r->call, 2).n;
  r->uneven = true;
  for (int d = 0; d < rows && d < 10; d++) {
    char word[] = "0ss0000r", rms[] = "0s000r", *w = row->rms ? rms : word, digit = (char)('0' + d);
    for (char *c = w; *c; c++)
      if (*c == '0') *c = digit;
    TRY(rule_words(r, w));
  }
  return OK;
}

/* Over dimensions that are cut: means go over the ranks, rows do not. */
static Status norm_in_parts(Call *c, const Sharded *how, bool *done) {
  const Row *row = c->op->def->row;
  Tensor *x = in_tensor(c, 0), *weight = row->weight ? in_tensor(c, row->weight) : NULL,
         *bias = row->bias ? in_tensor(c, row->bias) : NULL;
  bool along[MAX_DIMS] = {false};
  int64_t dims[MAX_DIMS];
  int n = 0;
  *done = false;
  if (row->kind == GROUP) return OK;
  for (int d = x->ndim - in_ints(c, 1).n; d >= 0 && d < x->ndim; d++) along[d] = true, dims[n++] = d;
  *done = sharded_along(how, c, 0, along);
  if (!*done) return OK;
  Formula f = {c, OK};
  Tensor *wide = f_widen(&f, x), *mean = NULL;
  double eps = in_none(c, row->eps) ? x->dtype == DT_F64 ? DBL_EPSILON : FLT_EPSILON : in_float(c, row->eps);
  if (row->kind == LAYER) {
    mean = F_OP(&f, "aten.mean.dim", F_T(wide), val_ints(dims, n), val_bool(true));
    Tensor *pair[2] = {wide, mean};
    f_align(&f, pair, 2);
    wide = f_sub(&f, pair[0], mean = pair[1]);
  }
  Tensor *square = F_OP(&f, "aten.mean.dim", F_T(f_mul(&f, wide, wide)), val_ints(dims, n), val_bool(true));
  Tensor *rstd = f_rsqrt(&f, f_shift(&f, square, eps)), *y = f_mul(&f, wide, rstd);
  if (weight) y = f_mul(&f, y, f_widen(&f, weight));
  if (bias) y = f_add(&f, y, f_widen(&f, bias));
  Dtype stat = x->dtype != DT_F64 && weight && weight->dtype == DT_F32 ? DT_F32 : x->dtype;
  TRY(formula_give(&f, f_cast(&f, y, x->dtype)));
  if (row->stats && mean) TRY(formula_give(&f, f_cast(&f, mean, stat)));
  return row->stats ? formula_give(&f, f_cast(&f, rstd, stat)) : OK;
}

/* clang-format off */
#define NORM(text, ...) \
  {.schema = "aten::" text, .infer = norm_infer, .run = norm_run, .shard.place = place_norm, \
    .shard.compose_sharded = norm_in_parts, .shard.localize = localize_norm, .row = &(const Row){__VA_ARGS__}}
#define GRAD(text, ...) \
  {.schema = "aten::" text, .infer = grad_infer, .run = grad_run, .shard.place = place_grad, \
    .row = &(const GradRow){__VA_ARGS__}}
/* clang-format on */

const OpDef ops_norm[] = {
    /*                                                       kind, stats, weight, bias, eps */
    NORM("layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float "
         "eps=1.0000000000000001e-05, bool cudnn_enable=True) -> Tensor",
         LAYER, false, 2, 3, 4),
    NORM("native_layer_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight, Tensor? bias, float eps) -> "
         "(Tensor, Tensor, Tensor)",
         LAYER, true, 2, 3, 4),
    NORM("group_norm(Tensor input, int num_groups, Tensor? weight=None, Tensor? bias=None, float "
         "eps=1.0000000000000001e-05, bool cudnn_enabled=True) -> Tensor",
         GROUP, false, 2, 3, 4),
    NORM("native_group_norm(Tensor input, Tensor? weight, Tensor? bias, SymInt N, SymInt C, SymInt HxW, int group, "
         "float eps) -> (Tensor, Tensor, Tensor)",
         GROUP, true, 1, 2, 7),
    {.schema =
         "aten::rms_norm(Tensor input, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
     .infer = norm_infer,
     .run = norm_run,
     .shard.place = place_norm,
     .shard.compose_unmoved = rms_parts,
     .row = &(const Row){RMS, false, 2, 0, 3}},
    NORM("_fused_rms_norm(Tensor input, int[] normalized_shape, Tensor? weight, float? eps) -> (Tensor, Tensor)",
         RMS, true, 2, 0, 3),
    GRAD("native_layer_norm_backward(Tensor grad_out, Tensor input, SymInt[] normalized_shape, Tensor mean, Tensor "
         "rstd, Tensor? weight, Tensor? bias, bool[3] output_mask) -> (Tensor, Tensor, Tensor)",
         .rstd = 4, .weight = 5, .bias = 6, .mask = 7),
    GRAD("_fused_rms_norm_backward(Tensor grad_out, Tensor input, int[] normalized_shape, Tensor rstd, Tensor? "
         "weight, bool[2] output_mask) -> (Tensor, Tensor)",
         .rms = true, .rstd = 3, .weight = 4, .mask = 5),
    {0}};
