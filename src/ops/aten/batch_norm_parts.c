/* batch_norm_parts.c -- batch norm over a batch that is cut: the statistics are those of all rows.
 *
 * Each rank sums up what it has, channel by channel, in f64; the sums of all ranks are those of the batch, also
 * where ranks have different numbers of rows or none:
 *
 *   tess.channel_moments            [2, C]: sum of x, sum of x^2
 *   tess.channel_gradient_sums      [2, C]: sum of g, sum of g h,      h = (x - mean) rstd
 *
 * In f64 the difference of E[x^2] and E[x]^2 keeps the digits of an f32 input; one of f64 is centred first, which
 * takes a second exchange.
 */
#include "ops/aten/batch_norm.h"

#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "ops/aten/dense.h"
#include "ops/formula.h"

/* ---- sums of channels -------------------------------------------------------------------- */

static Status sums_infer(Call *c, const Tensor *x) {
  char text[128];
  if (x->ndim < 2 || !dtype_is_float(x->dtype))
    return op_fail(c, "%s is not a batch of channels of floats", tensor_describe(x, text, sizeof text));
  return out_new(c, DT_F64, 2, (int64_t[]){2, x->size[1]});
}

static Status moments_infer(Call *c) { return sums_infer(c, in_tensor(c, 0)); }

static Status moments_body(Call *c) {
  Kern *k = &c->ctx->kern;
  View x = in_view(c, 0);
  bool reduced[MAX_DIMS];
  int64_t size[MAX_DIMS], stride[MAX_DIMS], channels = x.size[1];
  double count = 1, *sum = tensor_data(out_tensor(c, 0)), *square = sum + channels;
  for (int d = 0; d < x.ndim; d++) {
    reduced[d] = d != 1;
    size[d] = d == 1 ? channels : 1;
    stride[d] = d == 1;
    if (d != 1) count *= (double)x.size[d];
  }
  if (count == 0) {
    for (int64_t i = 0; i < 2 * channels; i++) sum[i] = 0;
    return OK;
  }
  View mean = {sum, size, stride, x.ndim, DT_F64}, var = {square, size, stride, x.ndim, DT_F64};
  kernel_var_mean(k, 0, x.dtype == DT_F64 ? DT_F64 : DT_F32, var, mean, x, reduced);
  for (int64_t i = 0; i < channels; i++) {
    square[i] = count * (square[i] + sum[i] * sum[i]);
    sum[i] *= count;
  }
  return OK;
}

static Status moments_run(Call *c) { return with_scratch(c, moments_body); }

/* arguments: grad, input, mean, rstd */
static Status gradient_infer(Call *c) {
  const Tensor *g = in_tensor(c, 0), *x = in_tensor(c, 1);
  char a[128], b[128];
  if (!tensor_same_size(g, x) || !dtype_is_float(g->dtype))
    return op_fail(c, "the gradient %s does not go with the input %s", tensor_describe(g, a, sizeof a),
                   tensor_describe(x, b, sizeof b));
  TRY(sums_infer(c, x));
  for (int i = 2; i < 4; i++)
    if (tensor_numel(in_tensor(c, i)) != x->size[1])
      return op_fail(c, "'%s' %s does not fit the channels of %s", c->op->schema.params[i].name,
                     tensor_describe(in_tensor(c, i), a, sizeof a), tensor_describe(x, b, sizeof b));
  return OK;
}

static Status gradient_body(Call *c) {
  Kern *k = &c->ctx->kern;
  const Tensor *input = in_tensor(c, 1);
  Dense g, x, mean, rstd;
  NormPlanesGrad a = {.batch = input->size[0], .channels = input->size[1], .inner = 1, .dtype = input->dtype};
  for (int d = 2; d < input->ndim; d++) a.inner *= input->size[d];
  TRY(dense_view_as(k, in_tensor(c, 0), input->dtype, &g));
  TRY(dense_view(k, input, &x));
  TRY(dense_view_as(k, in_tensor(c, 2), DT_F64, &mean));
  TRY(dense_view_as(k, in_tensor(c, 3), DT_F64, &rstd));
  a.g = g.view.data, a.x = x.view.data, a.mean = mean.view.data, a.rstd = rstd.view.data;
  a.gbias = tensor_data(out_tensor(c, 0));
  a.gweight = a.gbias + a.channels;
  return kernel_norm_planes_backward(k, &a);
}

static Status gradient_run(Call *c) { return with_scratch(c, gradient_body); }

/* Rows and planes leave sums to be added up; channels go by themselves. */
static Status moments_place(Rules *r) {
  r->uneven = true;
  return rule_words(r, "s0 11 s2 s3 s4");
}

static Status gradient_place(Rules *r) {
  r->uneven = true;
  return rule_words(r, "s00r 1110 s22r s33r s44r");
}

/* ---- batch norm with them ---------------------------------------------------------------- */

/* Is the input cut along other dimensions than that of channels? */
static bool rows_are_cut(const Call *c, const Sharded *how, int arg) {
  bool rows[MAX_DIMS];
  for (int d = 0; d < MAX_DIMS; d++) rows[d] = d != 1;
  return sharded_along(how, c, arg, rows);
}

static double rows_of(const Tensor *x) {
  double n = 1;
  for (int d = 0; d < x->ndim; d++)
    if (d != 1) n *= (double)x->size[d];
  return n;
}

static Tensor *row_of(Formula *f, const Tensor *t, int64_t i) {
  return F_OP(f, "aten.select.int", F_T(t), val_int(0), val_int(i));
}

/* What x is computed in. */
static Dtype wide_dtype(const Tensor *x) { return x->dtype == DT_F64 ? DT_F64 : DT_F32; }
static Tensor *wide(Formula *f, const Tensor *x) { return f_cast(f, x, wide_dtype(x)); }

/* Numbers of channels, to be broadcast with x. */
static Tensor *of(Formula *f, const Tensor *v, const Tensor *x) {
  int64_t size[MAX_DIMS];
  for (int d = 0; d < x->ndim; d++) size[d] = d == 1 ? x->size[1] : 1;
  Tensor *same = f_cast(f, v, wide_dtype(x));
  return same ? f_view(f, same, size, x->ndim) : NULL;
}

/* The sums of all ranks over n. */
static Tensor *means(Formula *f, const Tensor *sums, double n) {
  Tensor *all = (Tensor *)(uintptr_t)sums;
  f_align(f, &all, 1);
  return f_scale(f, all, 1 / n);
}

/* Mean and biased variance of the batch, f64. */
static void statistics(Formula *f, const Tensor *x, Tensor **mean, Tensor **var) {
  double n = rows_of(x);
  Tensor *all = means(f, F_OP(f, "tess.channel_moments.default", F_T(x)), n);
  *mean = row_of(f, all, 0);
  Tensor *about = *mean;
  if (x->dtype == DT_F64) {
    Tensor *centred = f_sub(f, x, of(f, *mean, x));
    all = means(f, F_OP(f, "tess.channel_moments.default", F_T(centred)), n);
    about = row_of(f, all, 0);
  }
  *var = f_at_least(f, f_sub(f, row_of(f, all, 1), f_mul(f, about, about)), 0);
}

/* (1 - momentum) old + momentum new */
static Status give_running(Formula *f, int arg, const Tensor *fresh, double momentum) {
  const Tensor *old = in_tensor(f->c, arg);
  Tensor *kept = f_scale(f, f_cast(f, old, DT_F64), 1 - momentum);
  return formula_give(f, f_cast(f, f_add(f, kept, f_scale(f, fresh, momentum)), old->dtype));
}

Status batch_norm_in_parts(Call *c, const Sharded *how, bool *done) {
  const BatchNormRow *row = c->op->def->row;
  Tensor *x = in_tensor(c, 0), *weight = in_tensor(c, 1), *bias = in_tensor(c, 2), *mean, *var;
  *done = x->ndim >= 2 && rows_of(x) > 0 && batch_norm_is_training(c) && rows_are_cut(c, how, 0);
  if (!*done) return OK;
  Formula f = {c, OK};
  double n = rows_of(x);
  statistics(&f, x, &mean, &var);
  Tensor *rstd = f_rsqrt(&f, f_shift(&f, var, in_float(c, row->eps))), *y = f_sub(&f, wide(&f, x), of(&f, mean, x));
  Dtype stat = batch_norm_stat_dtype(c);
  y = f_mul(&f, y, of(&f, weight ? f_mul(&f, rstd, f_cast(&f, weight, DT_F64)) : rstd, x));
  if (bias) y = f_add(&f, y, of(&f, bias, x));
  TRY(formula_give(&f, f_cast(&f, y, x->dtype)));
  TRY(formula_give(&f, f_cast(&f, mean, stat)));
  TRY(formula_give(&f, f_cast(&f, rstd, stat)));
  if (!row->returns_running) return OK;
  TRY(give_running(&f, row->mean, mean, in_float(c, row->momentum)));
  return give_running(&f, row->var, f_scale(&f, var, n / (n - 1)), in_float(c, row->momentum));
}

/* arguments: grad, input, weight, running mean and var, saved mean and invstd, train, eps, mask
 *     gx = w rstd (g - mean of g) - w rstd h * mean of g h */
Status batch_norm_backward_in_parts(Call *c, const Sharded *how, bool *done) {
  const Tensor *x = in_tensor(c, 1), *weight = in_tensor(c, 2), *mean = in_tensor(c, 5), *rstd = in_tensor(c, 6);
  const bool *wanted = c->arg[9].bools;
  *done = x->ndim >= 2 && rows_of(x) > 0 && in_bool(c, 7) && mean && rstd &&
          (rows_are_cut(c, how, 0) || rows_are_cut(c, how, 1));
  if (!*done) return OK;
  Formula f = {c, OK};
  Tensor *sums = F_OP(&f, "tess.channel_gradient_sums.default", c->arg[0], F_T(x), F_T(mean), F_T(rstd));
  f_align(&f, &sums, 1);
  Tensor *both = f_scale(&f, sums, 1 / rows_of(x)), *gx = NULL;
  if (wanted[0]) {
    Tensor *r = f_cast(&f, rstd, DT_F64), *scale = weight ? f_mul(&f, r, f_cast(&f, weight, DT_F64)) : r;
    Tensor *turn = f_mul(&f, f_mul(&f, scale, r), row_of(&f, both, 1));
    Tensor *g = f_sub(&f, f_cast(&f, in_tensor(c, 0), wide_dtype(x)), of(&f, row_of(&f, both, 0), x));
    Tensor *h = f_sub(&f, wide(&f, x), of(&f, mean, x));
    gx = f_cast(&f, f_sub(&f, f_mul(&f, g, of(&f, scale, x)), f_mul(&f, h, of(&f, turn, x))), x->dtype);
  }
  TRY(formula_give(&f, gx));
  Dtype d = weight ? weight->dtype : x->dtype;
  for (int i = 1; i < 3; i++) TRY(formula_give(&f, wanted[i] ? f_cast(&f, row_of(&f, sums, 2 - i), d) : NULL));
  return OK;
}

const OpDef ops_batch_norm_parts[] = {
    {.schema = "tess::channel_moments(Tensor input) -> Tensor",
     .infer = moments_infer,
     .run = moments_run,
     .shard.place = moments_place},
    {.schema = "tess::channel_gradient_sums(Tensor grad_out, Tensor input, Tensor mean, Tensor rstd) -> Tensor",
     .infer = gradient_infer,
     .run = gradient_run,
     .shard.place = gradient_place},
    {0}};
