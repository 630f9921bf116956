/* stepper.c -- see stepper.h. */
#include "optim/stepper.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dist.h"
#include "dist/spec.h"
#include "ops/own_calls.h"

/* ---- parameters ------------------------------------------------------------------------------------- */

static Status grow(void **list, int n, int *cap, size_t size) {
  if (n <= *cap) return OK;
  void *more;
  TRY_NEW(more, realloc(*list, (size_t)(n + *cap) * size));
  *list = more;
  *cap += n;
  return OK;
}

static bool is_taken(const Stepper *s, int n, const Tensor *p) {
  for (int i = 0; i < n; i++)
    if (s->param[i].param->grad == p->grad) return true;
  return false;
}

static Status check(const Stepper *s, int taken, const Tensor *p, int i) {
  char text[160];
  if (!p->grad || !tensor_is_leaf(p))
    return status_hint(fail(ERR_USAGE, "parameter %d, %s, is no leaf that requires a gradient", i,
                            tensor_describe(p, text, sizeof text)),
                       "an optimizer steps what a backward gives gradients to");
  if (!dtype_is_float(p->dtype))
    return fail(ERR_USAGE, "parameter %d is of %s: optimizers step floating-point tensors", i,
                dtype_name(p->dtype));
  if (is_taken(s, taken, p)) return fail(ERR_USAGE, "parameter %d is given to the optimizer twice", i);
  return OK;
}

Status stepper_add(Stepper *s, const OptimSpec *optim, Tensor *const *params, int n) {
  void *groups = s->group, *list = s->param;
  Status failed = grow(&groups, s->ngroups + 1, &s->group_cap, sizeof *s->group);
  s->group = groups;
  if (!failed) failed = grow(&list, s->nparams + n, &s->param_cap, sizeof *s->param);
  s->param = list;
  int i = 0;
  for (; i < n && !failed; i++) {
    Stepped *p = &s->param[s->nparams + i];
    *p = (Stepped){.group = s->ngroups};
    failed = check(s, s->nparams + i, params[i], i);
    if (!failed) failed = tensor_hold(params[i], &p->param);
    if (failed) break;
  }
  if (failed) {
    while (i-- > 0) tensor_release(s->param[s->nparams + i].param);
    return failed;
  }
  s->group[s->ngroups++] = *optim;
  s->nparams += n;
  return OK;
}

void stepper_free(Stepper *s) {
  for (int i = 0; i < s->nparams; i++) {
    tensor_release(s->param[i].param);
    for (int k = 0; k < OPTIM_MAX_STATES; k++) tensor_release(s->param[i].state[k]);
  }
  free(s->group);
  free(s->param);
  *s = (Stepper){0};
}

void stepper_optim(const Stepper *s, int i, OptimSpec *out) {
  const OptimSpec *group = &s->group[s->param[i].group];
  if (group->optimizer->matrices && s->param[i].param->ndim != 2) optim_convert(group, "adamw", out);
  else *out = *group;
}

/* ---- states -------------------------------------------------------------------------------------------- */

int stepper_state_at(const Stepper *s, int i, const char *name) {
  OptimSpec o;
  stepper_optim(s, i, &o);
  for (int k = 0; k < OPTIM_MAX_STATES && o.optimizer->states[k]; k++)
    if (optim_keeps(&o, k) && !strcmp(o.optimizer->states[k], name)) return k;
  return -1;
}

static Status replace(Tensor **held, const Tensor *by) {
  Tensor *more;
  TRY(tensor_hold(by, &more));
  tensor_release(*held);
  *held = more;
  return OK;
}

/* `t` where the parameter lies. */
static Status bring(Call *c, const Tensor *param, Tensor **t) {
  if (!param->spec || (*t)->spec == param->spec) return OK;
  const Spec *to;
  if ((*t)->spec->mesh != param->spec->mesh)
    return fail(ERR_USAGE, "the gradient of a parameter is on another mesh than the parameter");
  TRY(spec_with((*t)->spec, param->spec->place, &to));
  return OP(c, "tess.dtensor_redistribute.default", t, val_tensor(*t), ((Value){.kind = VAL_SPEC, .spec = to}),
            val_str("the step of a parameter"));
}

static Status take_state(Call *c, Stepped *p, int state, Tensor *from) {
  char a[160], b[160];
  if (!tensor_same_size(from, p->param) || !dtype_is_float(from->dtype) || !from->spec != !p->param->spec ||
      (from->spec && from->spec->mesh != p->param->spec->mesh))
    return fail(ERR_USAGE, "%s cannot be a state of the parameter %s", tensor_describe(from, a, sizeof a),
                tensor_describe(p->param, b, sizeof b));
  TRY(bring(c, p->param, &from));
  TRY(OP(c, "aten.clone.default", &from, val_tensor(from)));
  return replace(&p->state[state], from);
}

Status stepper_set_state(Tape *t, Stepper *s, int i, int state, Tensor *from) {
  OwnCalls w;
  bool paused = t->paused;
  t->paused = true;
  Status failed = take_state(own_calls_begin(&w, t->ctx), &s->param[i], state, from);
  t->paused = paused;
  own_calls_end(&w);
  return failed;
}

static Status begin_states(Call *c, const OptimSpec *o, Stepped *p) {
  Tensor *made;
  for (int k = 0; k < OPTIM_MAX_STATES; k++) {
    if (!optim_keeps(o, k) || p->state[k]) continue;
    TRY(OP(c, "aten.full_like.default", &made, val_tensor(p->param), val_float(optim_fill(o))));
    TRY(replace(&p->state[k], made));
  }
  return OK;
}

/* ---- steps --------------------------------------------------------------------------------------------- */

static Status number(Call *c, Dtype d, double value, Tensor **out) {
  TRY(tensor_new(c->scope, d, 0, NULL, out));
  if (d == DT_F64) *(double *)tensor_data(*out) = value;
  else *(float *)tensor_data(*out) = (float)value;
  return OK;
}

static Status step_one(Call *c, const OptimSpec *o, Stepped *p, Tensor *grad) {
  OptimStep s = {.c = c, .param = p->param, .grad = grad};
  Tensor *written;
  TRY(begin_states(c, o, p));
  TRY(bring(c, p->param, &s.grad));
  for (int k = 0; k < OPTIM_MAX_STATES; k++) s.state[k] = p->state[k];
  TRY(number(c, DT_F32, (double)(p->steps + 1), &s.step));
  TRY(number(c, DT_F64, optim_number(o, "lr", 0), &s.lr));
  TRY(o->optimizer->step(o, &s));
  TRY(OP(c, "aten.copy_.default", &written, val_tensor(p->param), val_tensor(s.param)));
  for (int k = 0; k < OPTIM_MAX_STATES; k++)
    if (s.state[k]) TRY(replace(&p->state[k], s.state[k]));
  p->steps++;
  return OK;
}

static Status step_all(Tape *t, Stepper *s) {
  for (int i = 0; i < s->nparams; i++) {
    Stepped *p = &s->param[i];
    Tensor *grad = tape_gradient_of(p->param);
    if (!grad) continue;
    OwnCalls w;
    OptimSpec o;
    stepper_optim(s, i, &o);
    Status failed = step_one(own_calls_begin(&w, t->ctx), &o, p, grad);
    own_calls_end(&w);
    TRY(status_at(failed, "the step of parameter %d", i));
  }
  return OK;
}

Status stepper_step(Tape *t, Stepper *s) {
  Dist *d = t->ctx->dist;
  bool paused = t->paused, replicates = d && d->implicit_replication;
  t->paused = true;
  if (d) d->implicit_replication = true; /* the numbers of a step are the same on all ranks */
  Status failed = step_all(t, s);
  if (d) d->implicit_replication = replicates;
  t->paused = paused;
  return failed;
}
