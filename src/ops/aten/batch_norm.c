/* batch_norm.c -- batch norm and instance norm.
 *
 * Three ops do the work and change nothing: _native_batch_norm_legit_functional (which
 * returns new running statistics), .no_stats and _no_training.  All other spellings are
 * written with these; where ATen writes to running statistics they say copy_.
 *
 * The batch's own variance is biased for normalising and unbiased in the running one:
 *     running' = (1 - momentum) running + momentum batch.
 */
#include <math.h>

#include "kernels/norm.h"
#include "kernels/reduce.h"
#include "ops/aten/batch_norm.h"
#include "ops/aten/dense.h"

bool batch_norm_is_training(const Call *c) {
  const BatchNormRow *row = c->op->def->row;
  return row->training ? in_bool(c, row->training) : row->always_training;
}

Dtype batch_norm_stat_dtype(const Call *c) {
  const BatchNormRow *row = c->op->def->row;
  const int at[] = {1, 2, row->mean, row->var};
  Dtype d = in_tensor(c, 0)->dtype;
  for (int i = 0; i < 4; i++) {
    const Tensor *t = at[i] ? in_tensor(c, at[i]) : NULL;
    if (t && t->dtype == DT_F32 && dtype_size(d) == 2) return DT_F32;
  }
  return d;
}

static Status batch_infer(Call *c) {
  const BatchNormRow *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  char a[128], b[128];
  if (x->ndim < 2 || !dtype_is_float(x->dtype))
    return op_fail(c, "%s is not a batch of channels of floats", tensor_describe(x, a, sizeof a));
  const int params[] = {1, 2, row->mean, row->var};
  for (int i = 0; i < 4; i++) {
    const Tensor *t = params[i] ? in_tensor(c, params[i]) : NULL;
    if (t && tensor_numel(t) != x->size[1]) {
      return op_fail(c, "'%s' %s does not fit the channels of %s", c->op->schema.params[params[i]].name,
                     tensor_describe(t, a, sizeof a), tensor_describe(x, b, sizeof b));
    }
  }
  if (!batch_norm_is_training(c) && !(row->mean && in_tensor(c, row->mean)))
    return op_fail(c, "has no running statistics to use");
  int64_t saved = batch_norm_is_training(c) ? x->size[1] : 0;
  TRY(out_like(c, x->dtype, x));
  TRY(out_new(c, batch_norm_stat_dtype(c), 1, &saved));
  TRY(out_new(c, batch_norm_stat_dtype(c), 1, &saved));
  if (!row->returns_running) return OK;
  const Tensor *mean = in_tensor(c, row->mean), *var = in_tensor(c, row->var);
  TRY(out_new(c, mean->dtype, mean->ndim, mean->size));
  return out_new(c, var->dtype, var->ndim, var->size);
}

/* Numbers per channel, all f64. */
typedef struct {
  int64_t n;
  double *mean, *var, *scale, *shift;
} Channels;

static void store(Kern *k, Tensor *t, const double *from) {
  Value v;
  (void)k;
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    v = val_float(from[i]);
    val_store(&v, t->dtype, (char *)tensor_data(t) + (size_t)i * dtype_size(t->dtype));
  }
}

/* Mean and biased variance of every channel; returns the number of elements of one. */
static double batch_statistics(Kern *k, View x, Channels *ch) {
  bool reduced[MAX_DIMS];
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
  double count = 1;
  for (int d = 0; d < x.ndim; d++) {
    reduced[d] = d != 1;
    size[d] = d == 1 ? ch->n : 1;
    stride[d] = d == 1;
    if (d != 1) count *= (double)x.size[d];
  }
  View mean = {ch->mean, size, stride, x.ndim, DT_F64}, var = {ch->var, size, stride, x.ndim, DT_F64};
  kernel_var_mean(k, 0, x.dtype == DT_F64 ? DT_F64 : DT_F32, var, mean, x, reduced);
  return count;
}

static Status running_update(Call *c, const BatchNormRow *row, const Channels *ch, double count) {
  Kern *k = &c->ctx->kern;
  Dense old[2];
  double momentum = in_float(c, row->momentum), *fresh;
  TRY(dense_view_as(k, in_tensor(c, row->mean), DT_F64, &old[0]));
  TRY(dense_view_as(k, in_tensor(c, row->var), DT_F64, &old[1]));
  TRY_NEW(fresh, kern_scratch(k, (size_t)ch->n * sizeof *fresh));
  for (int which = 0; which < 2; which++) {
    const double *was = old[which].view.data;
    for (int64_t i = 0; i < ch->n; i++) {
      double batch = which ? ch->var[i] * count / (count - 1) : ch->mean[i];
      fresh[i] = batch_norm_is_training(c) ? (1 - momentum) * was[i] + momentum * batch : was[i];
    }
    store(k, out_tensor(c, 3 + which), fresh);
  }
  return OK;
}

static Status batch_run(Call *c) {
  const BatchNormRow *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  View x = in_view(c, 0);
  Channels ch = {.n = x.size[1]};
  Dense w, b, mean, var;
  double count = 0;
  size_t mark = kern_mark(k), bytes = (size_t)(ch.n ? ch.n : 1) * sizeof(double);
  TRY_NEW(ch.mean, kern_scratch(k, 4 * bytes));
  ch.var = ch.mean + ch.n, ch.scale = ch.var + ch.n, ch.shift = ch.scale + ch.n;
  TRY(dense_view_as(k, in_tensor(c, 1), DT_F64, &w));
  TRY(dense_view_as(k, in_tensor(c, 2), DT_F64, &b));
  if (batch_norm_is_training(c)) {
    count = batch_statistics(k, x, &ch);
  } else {
    TRY(dense_view_as(k, in_tensor(c, row->mean), DT_F64, &mean));
    TRY(dense_view_as(k, in_tensor(c, row->var), DT_F64, &var));
    ch.mean = mean.view.data, ch.var = var.view.data;
  }
  for (int64_t i = 0; i < ch.n; i++) {
    ch.scale[i] = 1 / sqrt(ch.var[i] + in_float(c, row->eps));
    ch.shift[i] = b.view.data ? ((const double *)b.view.data)[i] : 0;
  }
  if (batch_norm_is_training(c)) {
    store(k, out_tensor(c, 1), ch.mean);
    store(k, out_tensor(c, 2), ch.scale);
  }
  for (int64_t i = 0; w.view.data && i < ch.n; i++) ch.scale[i] *= ((const double *)w.view.data)[i];
  TRY(kernel_channel_affine(k, out_view_of(c, 0), x, 1, ch.mean, ch.scale, ch.shift));
  if (row->returns_running) TRY(running_update(c, row, &ch, count));
  kern_release(k, mark);
  return OK;
}

/* ---- the other spellings --------------------------------------------------------------- */

typedef struct {
  Value mean, var; /* running statistics or None */
  bool training;
  Value momentum, eps;
} Settings;

/* (y, mean, rstd); new running statistics are written to the old ones. */
static Status normalize(const Call *c, Value x, Value w, Value b, Settings s, Tensor *out[3]) {
  if (!s.training)
    return OP_N(c, "aten._native_batch_norm_legit_no_training.default", out, 3, x, w, b, s.mean, s.var, s.momentum,
                s.eps);
  if (s.mean.kind != VAL_TENSOR)
    return OP_N(c, "aten._native_batch_norm_legit.no_stats", out, 3, x, w, b, val_bool(true), s.momentum, s.eps);
  Tensor *all[5], *done;
  TRY(OP_N(c, "aten._native_batch_norm_legit_functional.default", all, 5, x, w, b, s.mean, s.var, val_bool(true),
           s.momentum, s.eps));
  TRY(OP(c, "aten.copy_.default", &done, s.mean, val_tensor(all[3])));
  TRY(OP(c, "aten.copy_.default", &done, s.var, val_tensor(all[4])));
  for (int i = 0; i < 3; i++) out[i] = all[i];
  return OK;
}

static Status give(Call *c, Tensor *const *t, int n) {
  for (int i = 0; i < n; i++) TRY(out_value(c, val_tensor(t[i])));
  return OK;
}

/* The last result of the _batch_norm_* ops: space for cuDNN, empty here. */
static Status give_reserve(Call *c) {
  const int64_t none = 0;
  Tensor *t;
  TRY(OP(c, "aten.empty.memory_format", &t, val_ints(&none, 1), val_dtype(DT_U8)));
  return out_value(c, val_tensor(t));
}

static Status batch_norm(Call *c) {
  Tensor *t[3];
  TRY(normalize(c, c->arg[0], c->arg[1], c->arg[2],
                (Settings){c->arg[3], c->arg[4], in_bool(c, 5), c->arg[6], c->arg[7]}, t));
  return give(c, t, c->op->schema.nreturns);
}

static Status with_update(Call *c) {
  Tensor *t[3];
  TRY(normalize(c, c->arg[0], c->arg[1], c->arg[2], (Settings){c->arg[3], c->arg[4], true, c->arg[5], c->arg[6]},
                t));
  TRY(give(c, t, 3));
  return give_reserve(c);
}

static Status with_update_functional(Call *c) {
  Tensor *t[5];
  TRY(OP_N(c, "aten._native_batch_norm_legit_functional.default", t, 5, c->arg[0], c->arg[1], c->arg[2], c->arg[3],
           c->arg[4], val_bool(true), c->arg[5], c->arg[6]));
  TRY(give(c, t, 3));
  TRY(give_reserve(c));
  return give(c, t + 3, 2);
}

static Status no_update(Call *c) {
  Tensor *t[3];
  TRY(normalize(c, c->arg[0], c->arg[1], c->arg[2], (Settings){c->arg[3], c->arg[4], false, c->arg[5], c->arg[6]},
                t));
  TRY(give(c, t, 3));
  return give_reserve(c);
}

/* n copies of a vector, one after the other. */
static Status repeat(const Call *c, Value v, int64_t n, Value *out) {
  Tensor *t;
  *out = v;
  if (v.kind != VAL_TENSOR) return OK;
  TRY(OP(c, "aten.repeat.default", &t, v, val_ints(&n, 1)));
  *out = val_tensor(t);
  return OK;
}

/* The mean of all instances' running statistics, (n, channels), is the running statistic. */
static Status instance_running(const Call *c, const Tensor *fresh, const int64_t *size, Tensor **out) {
  const int64_t dim = 0;
  TRY(OP(c, "aten.view.default", out, val_tensor(fresh), val_ints(size, 2)));
  return OP(c, "aten.mean.dim", out, val_tensor(*out), val_ints(&dim, 1), val_bool(false));
}

/* Every instance is a batch of its own: (n, c, ...) is normalised as (1, n c, ...).  (y, mean, var); without
 * running statistics, or if they stay as they are, the last two are NULL. */
static Status instance_norm(Call *c, Tensor *out[3]) {
  const Tensor *x = in_tensor(c, 0);
  Tensor *flat, *t[5];
  Value w, b, mean, var;
  if (x->ndim < 2) return op_fail(c, "the input needs a batch and a channel dimension");
  int64_t n = x->size[0], size[MAX_DIMS] = {1, n * x->size[1]};
  for (int d = 2; d < x->ndim; d++) size[d] = x->size[d];
  bool own = in_bool(c, 5), updates = own && c->arg[3].kind == VAL_TENSOR;
  TRY(OP(c, "aten.reshape.default", &flat, c->arg[0], val_ints(size, x->ndim)));
  TRY(repeat(c, c->arg[1], n, &w));
  TRY(repeat(c, c->arg[2], n, &b));
  TRY(repeat(c, c->arg[3], n, &mean));
  TRY(repeat(c, c->arg[4], n, &var));
  out[1] = out[2] = NULL;
  if (updates) {
    TRY(OP_N(c, "aten._native_batch_norm_legit_functional.default", t, 5, val_tensor(flat), w, b, mean, var,
             val_bool(true), c->arg[6], c->arg[7]));
    TRY(instance_running(c, t[3], x->size, &out[1]));
    TRY(instance_running(c, t[4], x->size, &out[2]));
  } else {
    TRY(normalize(c, val_tensor(flat), w, b, (Settings){mean, var, own, c->arg[6], c->arg[7]}, t));
  }
  return OP(c, "aten.view.default", &out[0], val_tensor(t[0]), val_ints(x->size, x->ndim));
}

static Status instance_norm_inplace(Call *c) {
  Tensor *t[3], *done;
  TRY(instance_norm(c, t));
  if (t[1]) TRY(OP(c, "aten.copy_.default", &done, c->arg[3], val_tensor(t[1])));
  if (t[2]) TRY(OP(c, "aten.copy_.default", &done, c->arg[4], val_tensor(t[2])));
  return out_value(c, val_tensor(t[0]));
}

static Status instance_norm_functional(Call *c) {
  Tensor *t[3];
  TRY(instance_norm(c, t));
  if (!t[1] || !t[2]) return op_fail(c, "has no running statistics to give");
  return give(c, t, 3);
}

/* Channels are independent; with given statistics everything is. */
static Status place_batch(Rules *r) {
  const BatchNormRow *row = r->call->op->def->row;
  TRY(rule_words(r, row->returns_running ? "1000010" : "10010"));
  if (batch_norm_is_training(r->call)) return OK;
  return rule_words(r, row->returns_running ? "0rrrr0r 2rrrr2r 3rrrr3r 4rrrr4r" : "0rr0r 2rr2r 3rr3r 4rr4r");
}

/* clang-format off */
#define BATCH(text, ...) \
  {.schema = "aten::" text, .infer = batch_infer, .run = batch_run, .shard.place = place_batch, \
    .shard.compose_sharded = batch_norm_in_parts, \
    .row = &(const BatchNormRow){__VA_ARGS__}}
#define COMPOSE(text, fn) {.schema = "aten::" text, .compose = fn}
/* clang-format on */

const OpDef ops_batch_norm[] = {
    BATCH("_native_batch_norm_legit_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, "
          "Tensor running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor "
          "running_mean_out, Tensor running_var_out)",
          .mean = 3, .var = 4, .training = 5, .momentum = 6, .eps = 7, .returns_running = true),
    BATCH("_native_batch_norm_legit_no_training(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, "
          "Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
          .mean = 3, .var = 4, .momentum = 5, .eps = 6),
    BATCH("_native_batch_norm_legit.no_stats(Tensor input, Tensor? weight, Tensor? bias, bool training, float "
          "momentum, float eps) -> (Tensor, Tensor, Tensor)",
          .always_training = true, .momentum = 4, .eps = 5),
    COMPOSE("_native_batch_norm_legit(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, "
            "Tensor(b!) running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
            batch_norm),
    COMPOSE("native_batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? "
            "running_var, bool training, float momentum, float eps) -> (Tensor, Tensor, Tensor)",
            batch_norm),
    COMPOSE("batch_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
            "bool training, float momentum, float eps, bool cudnn_enabled) -> Tensor",
            batch_norm),
    COMPOSE("_batch_norm_with_update(Tensor input, Tensor? weight, Tensor? bias, Tensor(a!) running_mean, "
            "Tensor(b!) running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
            with_update),
    COMPOSE("_batch_norm_with_update_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, "
            "Tensor running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor, Tensor "
            "running_mean_out, Tensor running_var_out)",
            with_update_functional),
    COMPOSE("_batch_norm_no_update(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? "
            "running_var, float momentum, float eps) -> (Tensor, Tensor, Tensor, Tensor)",
            no_update),
    COMPOSE("instance_norm(Tensor input, Tensor? weight, Tensor? bias, Tensor? running_mean, Tensor? running_var, "
            "bool use_input_stats, float momentum, float eps, bool cudnn_enabled) -> Tensor",
            instance_norm_inplace),
    {.schema = "tess::instance_norm_functional(Tensor input, Tensor? weight, Tensor? bias, Tensor running_mean, "
               "Tensor running_var, bool use_input_stats, float momentum, float eps) -> (Tensor, Tensor "
               "running_mean_out, Tensor running_var_out)",
     .compose = instance_norm_functional},
    {0}};
