/* optim.c -- fused optimizer steps over lists of parameters, and gradient unscaling.
 *
 * They write to their arguments and have no results.  state_steps already counts the
 * step that is being made.  A found_inf of 1 skips it; a grad_scale divides gradients
 * first, and they stay divided.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/optim.h"
#include "ops/aten/dense.h"
#include "ops/rule.h"

/* One number in a tensor; what it is, for the error. */
static Status number(const Call *c, const char *what, const Tensor *t, double *out) {
  char text[128];
  Value v = tensor_numel(t) == 1 && tensor_data(t) ? val_load(t->dtype, tensor_data(t)) : val_none();
  if (!val_is_number(&v))
    return op_fail(c, "%s must be a tensor of one number, not %s", what, tensor_describe(t, text, sizeof text));
  *out = val_as_float(&v);
  return OK;
}

/* A float or, in the tensor_lr overloads, a tensor. */
static Status rate(const Call *c, const char *name, double *out) {
  const Value *v = &c->arg[schema_find(&c->op->schema, name)];
  if (v->kind == VAL_TENSOR) return number(c, name, v->tensor, out);
  *out = val_as_float(v);
  return OK;
}

static double setting(const Call *c, const char *name) {
  int i = schema_find(&c->op->schema, name);
  return i < 0 ? 0 : val_as_float(&c->arg[i]);
}

static const Tensor *optional(const Call *c, const char *name) {
  return in_tensor(c, schema_find(&c->op->schema, name));
}

static bool same_dense_layout(Tensor *const t[OPTIM_ARRAYS]) {
  for (int i = 0; i < OPTIM_ARRAYS; i++) {
    if (!t[i]) continue;
    if (tensor_extent(t[i]) != tensor_numel(t[i])) return false;
    for (int d = 0; d < t[i]->ndim; d++) {
      if (t[i]->size[d] != 1 && t[i]->stride[d] != t[0]->stride[d]) return false;
    }
  }
  return true;
}

static Status step_one(Call *c, const Optim *o, Tensor *const t[OPTIM_ARRAYS]) {
  Kern *k = &c->ctx->kern;
  char a[128], b[128];
  void *data[OPTIM_ARRAYS] = {NULL};
  Dense dense[OPTIM_ARRAYS];
  for (int i = 0; i < OPTIM_ARRAYS; i++) {
    if (t[i] && (!tensor_same_size(t[i], t[0]) || !dtype_is_float(t[i]->dtype))) {
      return op_fail(c, "%s does not go with the parameter %s", tensor_describe(t[i], a, sizeof a),
                     tensor_describe(t[0], b, sizeof b));
    }
  }
  Dtype as = t[0]->dtype == DT_F64 ? DT_F64 : DT_F32, dtype[OPTIM_ARRAYS];
  for (int i = 0; i < OPTIM_ARRAYS; i++) dtype[i] = t[i] ? t[i]->dtype : as;
  if (same_dense_layout(t)) {
    for (int i = 0; i < OPTIM_ARRAYS; i++) data[i] = t[i] ? tensor_data(t[i]) : NULL;
    kernel_optim_step(k, o, dtype, data, tensor_numel(t[0]));
    return OK;
  }
  size_t mark = kern_mark(k);
  for (int i = 0; i < OPTIM_ARRAYS; i++) {
    TRY(dense_view_as(k, t[i], as, &dense[i]));
    data[i] = dense[i].view.data;
    dtype[i] = as;
  }
  kernel_optim_step(k, o, dtype, data, tensor_numel(t[0]));
  for (int i = 0; i < OPTIM_ARRAYS; i++) {
    if (t[i] && data[i] != tensor_data(t[i])) kernel_copy(k, tensor_view(t[i]), dense[i].view);
  }
  kern_release(k, mark);
  return OK;
}

/* A list that the step does without: it may be empty. */
static bool is_unused(const Call *c, int list) {
  const char *name = c->op->schema.params[list].name;
  return (!strcmp(name, "max_exp_avg_sqs") && setting(c, "amsgrad") == 0) ||
         (!strcmp(name, "momentum_buffer_list") && setting(c, "momentum") == 0);
}

/* No results; but all lists that are used go with the list of parameters. */
static Status step_infer(Call *c) {
  for (int l = 1; c->op->schema.params[l].list; l++) {
    if (in_count(c, l) != in_count(c, 0) && !is_unused(c, l))
      return op_fail(c, "'%s' has %d tensors for %d parameters", c->op->schema.params[l].name, in_count(c, l),
                     in_count(c, 0));
  }
  return OK;
}

/* lists: how many of the leading arguments are lists of arrays; steps: the one that holds
 * the step counts, or -1. */
static Status step_all(Call *c, Optim o, int lists, int steps) {
  const Tensor *found = optional(c, "found_inf"), *scale = optional(c, "grad_scale");
  double infinite = 0, scaled = 1;
  if (found) TRY(number(c, "found_inf", found, &infinite));
  if (scale) TRY(number(c, "grad_scale", scale, &scaled));
  if (infinite == 1) return OK;
  TRY(rate(c, "lr", &o.lr));
  o.weight_decay = setting(c, "weight_decay");
  o.eps = setting(c, "eps");
  o.maximize = setting(c, "maximize") != 0;
  o.unscale = scale ? 1 / scaled : 1;
  o.store_unscaled = scale != NULL;
  for (int j = 0; j < in_count(c, 0); j++) {
    Tensor *t[OPTIM_ARRAYS] = {NULL};
    for (int l = 0; l < lists; l++) t[l] = is_unused(c, l) ? NULL : in_item(c, l, j);
    if (steps >= 0) TRY(number(c, "a step count", in_item(c, steps, j), &o.step));
    TRY(step_one(c, &o, t));
  }
  return OK;
}

static Status adam(Call *c) {
  Optim o = {.kind = OPTIM_ADAM,
             .beta1 = setting(c, "beta1"),
             .beta2 = setting(c, "beta2"),
             .amsgrad = setting(c, "amsgrad") != 0};
  o.decoupled = strstr(c->op->schema.name, "adamw") != NULL;
  return step_all(c, o, 5, 5);
}

static Status sgd(Call *c) {
  Optim o = {.kind = OPTIM_SGD,
             .momentum = setting(c, "momentum"),
             .dampening = setting(c, "dampening"),
             .nesterov = setting(c, "nesterov") != 0,
             .first = setting(c, "is_first_step") != 0};
  return step_all(c, o, 3, -1);
}

static Status adagrad(Call *c) {
  Optim o = {.kind = OPTIM_ADAGRAD, .lr_decay = setting(c, "lr_decay")};
  return step_all(c, o, 3, 3);
}

static Status unscale(Call *c) {
  Kern *k = &c->ctx->kern;
  Tensor *found = in_tensor(c, 1);
  double scale = 1, before = 0;
  TRY(number(c, "inv_scale", in_tensor(c, 2), &scale));
  TRY(number(c, "found_inf", found, &before));
  for (int j = 0; j < in_count(c, 0); j++) {
    Tensor *t = in_item(c, 0, j);
    Dense dense;
    if (!dtype_is_float(t->dtype)) return op_fail(c, "gradients must be floats, not %s", dtype_name(t->dtype));
    size_t mark = kern_mark(k);
    bool flat = tensor_extent(t) == tensor_numel(t);
    TRY(dense_view(k, flat ? NULL : t, &dense));
    if (kernel_unscale(k, t->dtype, flat ? tensor_data(t) : dense.view.data, tensor_numel(t), scale)) {
      Value one = val_float(1);
      val_store(&one, found->dtype, tensor_data(found));
    }
    if (!flat) kernel_copy(k, tensor_view(t), dense.view);
    kern_release(k, mark);
  }
  return OK;
}

/* After a step: the scale backs off when a gradient was not finite, and grows after
 * growth_interval steps without. */
static Status update_scale(Call *c) {
  Tensor *scale = in_tensor(c, 0), *tracker = in_tensor(c, 1);
  double now = 0, good = 0, infinite = 0;
  TRY(number(c, "self", scale, &now));
  TRY(number(c, "growth_tracker", tracker, &good));
  TRY(number(c, "found_inf", in_tensor(c, 2), &infinite));
  good += 1;
  if (infinite != 0) {
    now *= in_float(c, 4);
    good = 0;
  } else if (good == (double)in_int(c, 5)) {
    now *= in_float(c, 3);
    good = 0;
  }
  Value v = val_float(now), count = val_float(good);
  val_store(&v, scale->dtype, tensor_data(scale));
  val_store(&count, tracker->dtype, tensor_data(tracker));
  return out_alias(c, scale);
}

/* ---- sharding --------------------------------------------------------------------------
 * A step works on elements: everything of a parameter lies as it does.  Gradients may come
 * from elsewhere; state that lies elsewhere would not see what is written, so then the step is
 * made on whole tensors that go back to where they were.  Single numbers are whole. */

/* Tensor t of list `list`, which goes with parameter self. */
static Status check_state(const Rules *r, const Param *list, int self, int t) {
  bool gradient = !strcmp(list->name, "grads") && in_none(r->call, schema_find(&r->call->op->schema, "grad_scale"));
  const Placement *a = rule_have(r, self, 0), *b = rule_have(r, t, 0);
  char x[256], y[256];
  for (int i = 0; i < r->naxes; i++)
    if (is_p(&a[i]))
      return op_fail(r->call, "in place on a partial parameter (%s)", placements_print(a, r->naxes, x, sizeof x));
  if (gradient || placements_equal(a, b, r->naxes)) return OK;
  return fail(ERR_DYNAMIC, "%s: '%s' is placed %s, its parameter %s", r->call->op->schema.name, list->name,
              placements_print(b, r->naxes, y, sizeof y), placements_print(a, r->naxes, x, sizeof x));
}

static Status step_axis(const Rules *r, const void *unused, int a, Placement *p) {
  const Schema *s = &r->call->op->schema;
  (void)unused;
  for (TensorWalk w = call_inputs(r->call); tensor_next(&w);) {
    if (r->call->arg[w.arg].kind == VAL_TENSOR || !s->params[w.arg].mutated) continue; /* R */
    int self = rule_input(r, 0, w.item);
    if (self < 0 || !tensor_same_size(w.tensor, r->in[self])) continue;
    if (a == 0) TRY(check_state(r, &s->params[w.arg], self, w.flat));
    p[w.flat] = *rule_have(r, self, a);
  }
  return OK;
}

static Status place_step(Rules *r) {
  r->uneven = true;
  return rule_follow(r, step_axis, NULL);
}

/* Every rank looks at its own elements; whether one is not finite is known to all. */
static Status unscale_sharded(Call *c, const Sharded *how, bool *done) {
  (void)how;
  Tensor *found = in_tensor(c, 1), *finite, *all, *bad, *written;
  *done = true;
  for (int j = 0; j < in_count(c, 0); j++) {
    Tensor *g = in_item(c, 0, j);
    TRY(OP(c, "aten.isfinite.default", &finite, val_tensor(g)));
    TRY(OP(c, "aten.all.default", &all, val_tensor(finite)));
    TRY(OP(c, "aten.logical_not.default", &bad, val_tensor(all)));
    TRY(OP(c, "aten.maximum.default", &found, val_tensor(found), val_tensor(bad)));
    TRY(OP(c, "aten.mul_.Tensor", &written, val_tensor(g), c->arg[2]));
  }
  return found == in_tensor(c, 1) ? OK : OP(c, "aten.copy_.default", &written, c->arg[1], val_tensor(found));
}

/* clang-format off */
#define STEP(text, fn) \
  {.schema = "aten::" text, .infer = step_infer, .run = fn, .flags = OP_EFFECT, .shard.place = place_step}
#define AMP(text, fn) {.schema = "aten::" text, .run = fn, .flags = OP_EFFECT}
/* clang-format on */
#define ADAM_ARGS(lr)                                                                                      \
  "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] exp_avgs, Tensor(d!)[] exp_avg_sqs, Tensor(e!)[] " \
  "max_exp_avg_sqs, "                                                                                      \
  "Tensor[] state_steps, *, " lr                                                                           \
  " lr, float beta1, float beta2, float weight_decay, float eps, bool amsgrad, bool maximize, "            \
  "Tensor? grad_scale=None, Tensor? found_inf=None) -> ()"
#define SGD_ARGS(lr)                                                                                         \
  "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] momentum_buffer_list, *, float weight_decay, float " \
  "momentum, " lr                                                                                            \
  " lr, float dampening, bool nesterov, bool maximize, bool is_first_step, Tensor? grad_scale=None, "        \
  "Tensor? found_inf=None) -> ()"
#define ADAGRAD_ARGS(steps, lr)                                                                            \
  "(Tensor(a!)[] self, Tensor(b!)[] grads, Tensor(c!)[] state_sums, " steps " state_steps, *, " lr " lr, " \
  "float lr_decay, float weight_decay, float eps, bool maximize, Tensor? grad_scale=None, "                \
  "Tensor? found_inf=None) -> ()"

const OpDef ops_optim[] = {
    STEP("_fused_adam_" ADAM_ARGS("float"), adam),
    STEP("_fused_adam_.tensor_lr" ADAM_ARGS("Tensor"), adam),
    STEP("_fused_adamw_" ADAM_ARGS("float"), adam),
    STEP("_fused_adamw_.tensor_lr" ADAM_ARGS("Tensor"), adam),
    STEP("_fused_sgd_" SGD_ARGS("float"), sgd),
    STEP("_fused_sgd_.tensor_lr" SGD_ARGS("Tensor"), sgd),
    STEP("_fused_adagrad_" ADAGRAD_ARGS("Tensor(d!)[]", "float"), adagrad),
    STEP("_fused_adagrad_.tensor_lr" ADAGRAD_ARGS("Tensor[]", "Tensor"), adagrad),
    {.schema = "aten::_amp_foreach_non_finite_check_and_unscale_(Tensor(a!)[] self, Tensor(b!) found_inf, Tensor "
               "inv_scale) -> ()",
     .run = unscale,
     .flags = OP_EFFECT,
     .shard.compose_sharded = unscale_sharded},
    AMP("_amp_update_scale_(Tensor(a!) self, Tensor(b!) growth_tracker, Tensor found_inf, float "
        "scale_growth_factor, float scale_backoff_factor, int growth_interval) -> Tensor(a!)",
        update_scale),
    {0}};
