/* api_optim.c -- public functions: optimizers that step tensors, and clipping of their gradients. */
#include <stdlib.h>
#include <string.h>

#include "api/api.h"
#include "dist/dist.h"
#include "dist/dtensor.h"
#include "dist/spec.h"
#include "ops/own_calls.h"
#include "optim/clip.h"
#include "optim/stepper.h"

struct TessOptimizer {
  TessCtx *ctx;
  OptimSpec optim; /* of the first group, which others are told from */
  Stepper stepper;
};

static bool ready(const TessOptimizer *o) { return o && API_READY(o->ctx); }

static Status check_list(TessTensor *const *params, int n) {
  for (int i = 0; i < n; i++)
    if (!params[i]) return fail(ERR_USAGE, "parameter %d is NULL", i);
  return OK;
}

TessOptimizer *tess_optimizer_new(TessCtx *ctx, const char *optim, TessTensor *const *params, int n) {
  OptimSpec parsed;
  if (!API_BEGIN(ctx, LISTED("the parameters", params, n)) || api_stick(ctx, check_list(params, n)) ||
      api_stick(ctx, optim_parse(optim ? optim : "adamw", &parsed)))
    return NULL;
  TessOptimizer *o = calloc(1, sizeof *o);
  if (!o && api_stick(ctx, fail_oom())) return NULL;
  *o = (TessOptimizer){.ctx = ctx, .optim = parsed};
  if (!api_stick(ctx, stepper_add(&o->stepper, &parsed, params, n))) return o;
  tess_optimizer_free(o);
  return NULL;
}

void tess_optimizer_free(TessOptimizer *o) {
  if (!o) return;
  stepper_free(&o->stepper);
  free(o);
}

int tess_optimizer_add(TessOptimizer *o, const char *settings, TessTensor *const *params, int n) {
  if (!ready(o) || !API_BEGIN(o->ctx, LISTED("the parameters", params, n))) return -1;
  OptimSpec optim = o->optim;
  if (api_stick(o->ctx, check_list(params, n)) || (settings && api_stick(o->ctx, optim_set(&optim, settings))) ||
      api_stick(o->ctx, stepper_add(&o->stepper, &optim, params, n)))
    return -1;
  return o->stepper.ngroups - 1;
}

static Status find_group(TessOptimizer *o, int group, OptimSpec **out) {
  if (group < 0 || group >= o->stepper.ngroups)
    return fail(ERR_USAGE, "the optimizer has no group %d, only 0 to %d", group, o->stepper.ngroups - 1);
  *out = &o->stepper.group[group];
  return OK;
}

int tess_optimizer_set(TessOptimizer *o, int group, const char *settings) {
  OptimSpec *g = NULL, changed;
  if (!ready(o) || !API_BEGIN(o->ctx, GIVEN("the settings", settings)) ||
      api_stick(o->ctx, find_group(o, group, &g)))
    return -1;
  changed = *g;
  if (api_stick(o->ctx, optim_set(&changed, settings))) return -1;
  *g = changed;
  return 0;
}

double tess_optimizer_setting(const TessOptimizer *o, int group, const char *name, int i) {
  bool there = o && name && group >= 0 && group < o->stepper.ngroups && i >= 0 && i < OPTIM_MAX_NUMBERS;
  return there ? optim_number(&o->stepper.group[group], name, i) : 0;
}

int tess_optimizer_step(TessOptimizer *o) {
  if (!ready(o)) return -1;
  return api_stick(o->ctx, stepper_step(api_tape(o->ctx), &o->stepper)) ? -1 : 0;
}

int tess_optimizer_zero_grad(TessOptimizer *o) {
  if (!ready(o)) return -1;
  for (int i = 0; i < o->stepper.nparams; i++)
    if (api_stick(o->ctx, tape_set_gradient(api_tape(o->ctx), o->stepper.param[i].param, NULL))) return -1;
  return 0;
}

/* ---- what it keeps ---------------------------------------------------------------------------------------- */

static bool has(const TessOptimizer *o, int param) { return o && param >= 0 && param < o->stepper.nparams; }

int tess_optimizer_param_count(const TessOptimizer *o) { return o ? o->stepper.nparams : 0; }

int64_t tess_optimizer_steps(const TessOptimizer *o, int param) {
  return has(o, param) ? o->stepper.param[param].steps : 0;
}

static Status find_state(const TessOptimizer *o, int param, const char *name, int *out) {
  if (!has(o, param))
    return fail(ERR_USAGE, "the optimizer has %d parameters, none with number %d", o->stepper.nparams, param);
  *out = stepper_state_at(&o->stepper, param, name);
  OptimSpec optim;
  stepper_optim(&o->stepper, param, &optim);
  return *out >= 0 ? OK : fail(ERR_USAGE, "%s keeps no state '%s' with its settings", optim.optimizer->name, name);
}

const char *tess_optimizer_state_name(const TessOptimizer *o, int param, int i) {
  OptimSpec optim;
  if (!has(o, param) || i < 0) return NULL;
  stepper_optim(&o->stepper, param, &optim);
  for (int k = 0; k < OPTIM_MAX_STATES && optim.optimizer->states[k]; k++)
    if (optim_keeps(&optim, k) && i-- == 0) return optim.optimizer->states[k];
  return NULL;
}

TessTensor *tess_optimizer_state(TessOptimizer *o, int param, const char *name) {
  int at;
  Tensor *t = NULL;
  if (!ready(o) || !API_BEGIN(o->ctx, GIVEN("the name", name)) ||
      api_stick(o->ctx, find_state(o, param, name, &at)) || !o->stepper.param[param].state[at])
    return NULL;
  return api_stick(o->ctx, tensor_handle(api_scope(o->ctx), o->stepper.param[param].state[at], &t)) ? NULL : t;
}

int tess_optimizer_set_state(TessOptimizer *o, int param, const char *name, TessTensor *from) {
  int at;
  if (!ready(o) || !API_BEGIN(o->ctx, GIVEN("the name", name), GIVEN("the tensor", from)) ||
      api_stick(o->ctx, find_state(o, param, name, &at)))
    return -1;
  return api_stick(o->ctx, stepper_set_state(api_tape(o->ctx), &o->stepper, param, at, from)) ? -1 : 0;
}

int tess_optimizer_set_steps(TessOptimizer *o, int param, int64_t steps) {
  if (!ready(o)) return -1;
  if ((!has(o, param) || steps < 0) &&
      api_stick(o->ctx, fail(ERR_USAGE, "parameter %d of %d cannot have made %lld steps", param, o->stepper.nparams,
                             (long long)steps)))
    return -1;
  o->stepper.param[param].steps = steps;
  return 0;
}

/* ---- clipping ----------------------------------------------------------------------------------------------- */

typedef struct {
  TessCtx *ctx;
  OwnCalls calls;
  Formula f;
  Tensor **grad;
  int n;
} Clip;

static Status clip_begin(Clip *w, TessCtx *ctx, TessTensor *const *params, int n) {
  *w = (Clip){.ctx = ctx};
  w->f = (Formula){.c = own_calls_begin(&w->calls, ctx)};
  TRY(check_list(params, n));
  TRY_NEW(w->grad, arena_new_n(&w->calls.arena, Tensor *, n + 1));
  for (int i = 0; i < n; i++)
    if (tape_gradient_of(params[i])) w->grad[w->n++] = tape_gradient_of(params[i]);
  return OK;
}

static Status read_number(Clip *w, Tensor *t, double *out) {
  if (t->spec) TRY(dtensor_full(w->ctx, &w->calls.scope, t, &t));
  Value v = val_load(t->dtype, tensor_data(t));
  *out = val_as_float(&v);
  return OK;
}

static Status clip_norm(Clip *w, double most, double type, double *norm) {
  if (!w->n) return *norm = 0, OK;
  Tensor *total = norm_of_grads(&w->f, w->grad, w->n, type);
  TRY(w->f.status);
  TRY(read_number(w, total, norm));
  double factor = most / (*norm + 1e-6);
  for (int i = 0; i < w->n && !(factor >= 1); i++)
    F_OP(&w->f, "aten.mul_.Scalar", F_T(w->grad[i]), val_float(factor));
  return w->f.status;
}

/* Only of sums that are complete the elements can be compared with a limit. */
static Status settle(Clip *w, Tensor *param) {
  Tensor *g = tape_gradient_of(param);
  Placement place[MAX_AXES];
  if (!g || !g->spec || !g->spec->partial) return OK;
  for (int a = 0; a < g->spec->mesh->naxes; a++)
    place[a] = is_p(&g->spec->place[a]) ? place_r() : g->spec->place[a];
  TRY(dtensor_redistribute(w->ctx, &w->calls.scope, g, NULL, place, DT_NONE, &g));
  return tape_set_gradient(api_tape(w->ctx), param, g);
}

static Status clip_value(Clip *w, double most, TessTensor *const *params, int n) {
  w->n = 0;
  for (int i = 0; i < n; i++) {
    TRY(settle(w, params[i]));
    if (tape_gradient_of(params[i])) w->grad[w->n++] = tape_gradient_of(params[i]);
  }
  for (int i = 0; i < w->n; i++)
    F_OP(&w->f, "aten.clamp_.default", F_T(w->grad[i]), val_float(-most), val_float(most));
  return w->f.status;
}

int tess_clip_grad_norm(TessCtx *ctx, TessTensor *const *params, int n, double most, double type, double *norm) {
  Clip w;
  double found = 0;
  if (!API_BEGIN(ctx, LISTED("the parameters", params, n))) return -1;
  if (!(type > 0) && api_stick(ctx, fail(ERR_USAGE, "a norm is of a type above 0, not %g", type))) return -1;
  Tape *tape = api_tape(ctx);
  bool paused = tape->paused;
  tape->paused = true;
  Status s = clip_begin(&w, ctx, params, n);
  if (!s) s = clip_norm(&w, most, type, &found);
  tape->paused = paused;
  own_calls_end(&w.calls);
  if (api_stick(ctx, s)) return -1;
  if (norm) *norm = found;
  return 0;
}

int tess_clip_grad_value(TessCtx *ctx, TessTensor *const *params, int n, double most) {
  Clip w;
  if (!API_BEGIN(ctx, LISTED("the parameters", params, n))) return -1;
  if (!(most >= 0) && api_stick(ctx, fail(ERR_USAGE, "elements cannot be brought to within %g", most))) return -1;
  Status s = clip_begin(&w, ctx, params, n);
  if (!s) s = clip_value(&w, most, params, n);
  own_calls_end(&w.calls);
  return api_stick(ctx, s) ? -1 : 0;
}
