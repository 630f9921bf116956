/* optim_step.c -- one step of an optimizer for one parameter, as a function: what a training program ends in.
 *
 * Arguments are the parameter and the optimizer's states, then the gradient, then numbers that change from step to
 * step (0-d tensors), then those that do not.  Results are the parameter and the states, in the same order; result
 * k may be made in the memory of argument k (OP_UPDATE_EACH), so that a step is one pass over memory.
 *
 *   step   counts the step that is being made, from 1
 *   scale  the gradient is multiplied by it first: clipping, and undoing the scale of a loss
 *   skip   not 0: nothing changes (a gradient was not finite)
 *
 * aten._fused_* (aten/optim.c) are the same steps on lists, in place.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/optim.h"
#include "ops/aten/dense.h"
#include "ops/rule.h"

enum { MAX_STATES = 3 };

/* The argument `grad`: those before it are the parameter and its states. */
static int gradient_at(const Call *c) { return schema_find(&c->op->schema, "grad"); }

static Status number(const Call *c, const char *name, double otherwise, double *out) {
  int i = schema_find(&c->op->schema, name);
  *out = otherwise;
  if (i < 0 || in_none(c, i)) return OK;
  if (c->arg[i].kind != VAL_TENSOR) return *out = val_as_float(&c->arg[i]), OK;
  const Tensor *t = c->arg[i].tensor;
  Value v = val_load(t->dtype, tensor_data(t));
  *out = val_as_float(&v);
  return OK;
}

static Status check_number(const Call *c, int i) {
  char text[128];
  const Tensor *t = in_tensor(c, i);
  if (!t || (tensor_numel(t) == 1 && dtype_kind(t->dtype) <= KIND_FLOAT)) return OK;
  return op_fail(c, "'%s' must be a tensor of one number, not %s", c->op->schema.params[i].name,
                 tensor_describe(t, text, sizeof text));
}

static Status step_infer(Call *c) {
  const Tensor *param = in_tensor(c, 0);
  int grad = gradient_at(c);
  char a[128], b[128];
  for (int i = 0; i <= grad; i++) {
    const Tensor *t = in_tensor(c, i);
    if (!t) continue;
    if (!tensor_same_size(t, param) || !dtype_is_float(t->dtype))
      return op_fail(c, "'%s' %s does not go with the parameter %s", c->op->schema.params[i].name,
                     tensor_describe(t, a, sizeof a), tensor_describe(param, b, sizeof b));
    if (i < grad) TRY(out_new(c, t->dtype, t->ndim, t->size));
  }
  for (int i = grad + 1; i < c->op->schema.nparams; i++) TRY(check_number(c, i));
  return OK;
}

/* The numbers that all optimizers know. */
static Status settings(const Call *c, Optim *o, double *skip) {
  double flag;
  TRY(number(c, "lr", 0, &o->lr));
  TRY(number(c, "step", 1, &o->step));
  TRY(number(c, "scale", 1, &o->unscale));
  TRY(number(c, "skip", 0, skip));
  TRY(number(c, "weight_decay", 0, &o->weight_decay));
  TRY(number(c, "eps", 0, &o->eps));
  TRY(number(c, "maximize", 0, &flag));
  o->maximize = flag != 0;
  return OK;
}

static Status run_step(Call *c, Optim *o) {
  Kern *k = &c->ctx->kern;
  void *data[OPTIM_ARRAYS] = {NULL};
  Dtype dtype[OPTIM_ARRAYS] = {DT_F32, DT_F32, DT_F32, DT_F32, DT_F32};
  double skip;
  TRY(settings(c, o, &skip));
  for (int i = 0, out = 0; i < gradient_at(c); i++) {
    Tensor *t = in_tensor(c, i);
    if (!t) continue;
    Tensor *result = out_tensor(c, out++);
    if (tensor_data(result) != tensor_data(t)) kernel_copy(k, tensor_view(result), in_view(c, i));
    int at = i ? OPTIM_GRADIENT + i : 0;
    data[at] = tensor_data(result);
    dtype[at] = t->dtype;
  }
  if (skip != 0) return OK;
  size_t mark = kern_mark(k);
  Dense gradient;
  TRY(dense_view(k, in_tensor(c, gradient_at(c)), &gradient));
  data[OPTIM_GRADIENT] = gradient.view.data;
  dtype[OPTIM_GRADIENT] = gradient.view.dtype;
  kernel_optim_step(k, o, dtype, data, tensor_numel(in_tensor(c, 0)));
  kern_release(k, mark);
  return OK;
}

static Status adam_run(Call *c) {
  Optim o = {.kind = OPTIM_ADAM};
  double decoupled;
  TRY(number(c, "beta1", 0, &o.beta1));
  TRY(number(c, "beta2", 0, &o.beta2));
  TRY(number(c, "decoupled", 0, &decoupled));
  o.decoupled = decoupled != 0;
  return run_step(c, &o);
}

static Status sgd_run(Call *c) {
  Optim o = {.kind = OPTIM_SGD};
  double nesterov, step;
  TRY(number(c, "momentum", 0, &o.momentum));
  TRY(number(c, "dampening", 0, &o.dampening));
  TRY(number(c, "nesterov", 0, &nesterov));
  TRY(number(c, "step", 1, &step));
  o.nesterov = nesterov != 0;
  o.first = step <= 1;
  return run_step(c, &o);
}

static Status adagrad_run(Call *c) {
  Optim o = {.kind = OPTIM_ADAGRAD};
  TRY(number(c, "lr_decay", 0, &o.lr_decay));
  return run_step(c, &o);
}

/* Element by element: everything lies as the parameter does; single numbers are whole. */
static Status place_step(Rules *r) {
  r->uneven = true;
  return rule_fold(r, &(Fold){.lead = 0});
}

/* A gradient is read, scaled and squared; states are updated; a root and a division. */
static double step_flops(const Call *c) { return 12.0 * (double)tensor_numel(in_tensor(c, 0)); }

#define NUMBERS "Tensor grad, Tensor step, Tensor lr, Tensor? scale, Tensor? skip, *, float weight_decay, "
/* clang-format off */
#define STEP(text, fn) \
  {.schema = "tess::" text ", bool maximize) -> Tensor[]", .infer = step_infer, .run = fn, .flags = OP_UPDATE_EACH, \
   .flops = step_flops, .shard.place = place_step}
/* clang-format on */

const OpDef ops_optim_step[] = {
    STEP("adam_step(Tensor param, Tensor exp_avg, Tensor exp_avg_sq, Tensor? max_exp_avg_sq, " NUMBERS
         "float beta1, float beta2, float eps, bool decoupled",
         adam_run),
    STEP("sgd_step(Tensor param, Tensor? momentum_buffer, " NUMBERS
         "float momentum, float dampening, bool nesterov",
         sgd_run),
    STEP("adagrad_step(Tensor param, Tensor sum, " NUMBERS "float lr_decay, float eps", adagrad_run),
    {0}};
