/* update.c -- see update.h. */
#include "runtime/update.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "graph/resolve.h"
#include "kernels/copy.h"
#include "optim/clip.h"

/* The parameter, its states, the sum, the gradient that is kept. */
enum { OUTPUT_SUM = 1 + OPTIM_MAX_STATES, OUTPUT_KEPT, OUTPUTS_PER_PARAM };

/* ---- state -------------------------------------------------------------------------------------------- */

typedef struct {
  Exported *e;
  Arena *arena;
  StateEntry *state; /* of the program, with room for more */
  int nstate;
  Val **input;
  InputSpec *spec;
  int at; /* where the next input goes: before those of the user */
  int ninputs;
} Declaring;

static int first_user_input(const Exported *e) {
  int i = 0;
  while (i < e->graph->ninputs && e->inputs[i].kind != IN_USER) i++;
  return i;
}

/* A buffer of this name, size and dtype, all of whose elements are `fill` at first. */
static Status declare(Declaring *d, const char *fqn, Dtype dtype, int ndim, const int64_t *size, double fill,
                      int *out) {
  Exported *e = d->e;
  Tensor *t;
  Val *v;
  if (exported_state(e, fqn))
    return status_hint(fail(ERR_USAGE, "the program has a tensor '%s' already: it is a training step", fqn),
                       "run it as it is, or train the program that it was made of");
  TRY(tensor_meta(&e->scope, dtype, ndim, size, &t));
  d->state[d->nstate++] = (StateEntry){.fqn = fqn, .tensor = t, .fill = fill, .is_filled = true};
  char *name; /* as torch.export names buffers */
  TRY_NEW(name, arena_printf(d->arena, "b_%s", fqn));
  for (char *p = name; *p; p++)
    if (!isalnum((unsigned char)*p)) *p = '_';
  TRY(graph_add_input(e->graph, name, TY_TENSOR, &v));
  e->graph->ninputs--; /* it gets its place below */
  TRY(val_set_tensor(e->graph, v, t));
  v->tensor = NULL;
  d->input[d->at] = v;
  d->spec[d->at] = (InputSpec){.kind = IN_BUFFER, .target = fqn, .persistent = true};
  *out = d->at++;
  return OK;
}

static Status declare_number(Declaring *d, const char *fqn, Dtype dtype, double fill, int *out) {
  return declare(d, fqn, dtype, 0, NULL, fill, out);
}

/* I2: the first name is the one that has a gradient. */
static bool is_second_name(const Exported *e, const Update *u, const UpdateParam *p) {
  const StateEntry *own = exported_state(e, e->inputs[p->param].target);
  for (const UpdateParam *q = u->param; q < p; q++)
    if (state_is_tied(exported_state(e, e->inputs[q->param].target), own)) return true;
  return false;
}

static Status declare_param(Declaring *d, const Update *u, int input, UpdateParam *p) {
  const char *fqn = d->e->inputs[input].target, *name;
  const Tensor *t = exported_state(d->e, fqn)->tensor;
  if (!t)
    return status_hint(fail(ERR_FILE, "parameter '%s' has no data", fqn),
                       "a program to train is a .pt2 file with its weights, as torch.export.save writes it");
  p->param = input;
  p->group = recipe_group(&u->recipe, fqn);
  p->optim = &u->recipe.group[p->group].optim;
  p->sum = p->kept = -1;
  if (p->optim->optimizer->matrices && t->ndim != 2) {
    OptimSpec *adamw;
    TRY_NEW(adamw, arena_new(d->arena, OptimSpec));
    optim_convert(p->optim, "adamw", adamw);
    p->optim = adamw;
  }
  for (int i = 0; i < OPTIM_MAX_STATES; i++) p->state[i] = -1;
  if (is_second_name(d->e, u, p)) return OK;
  for (int i = 0; i < OPTIM_MAX_STATES; i++) {
    if (!optim_keeps(p->optim, i)) continue;
    Dtype dtype = u->recipe.state_dtype == DT_NONE ? t->dtype : u->recipe.state_dtype;
    TRY_NEW(name, arena_printf(&d->e->arena, "optim.state.%s.%s", fqn, p->optim->optimizer->states[i]));
    TRY(declare(d, name, dtype, t->ndim, t->size, optim_fill(p->optim), &p->state[i]));
  }
  if (u->recipe.keep_gradients) {
    TRY_NEW(name, arena_printf(&d->e->arena, "optim.grad.%s", fqn));
    TRY(declare(d, name, t->dtype, t->ndim, t->size, 0, &p->kept));
  }
  if (u->recipe.accumulate == 1) return OK;
  TRY_NEW(name, arena_printf(&d->e->arena, "optim.sum.%s", fqn));
  return declare(d, name, t->dtype, t->ndim, t->size, 0, &p->sum);
}

static Status declare_numbers(Declaring *d, Update *u) {
  u->loss_scale = u->growth = -1;
  TRY(declare_number(d, "optim.step", DT_F32, 0, &u->step));
  for (int g = 0; g < u->recipe.ngroups; g++) {
    const char *name;
    TRY_NEW(name, arena_printf(&d->e->arena, "optim.lr.%s", u->recipe.group[g].name));
    TRY(declare_number(d, name, DT_F64, optim_number(&u->recipe.group[g].optim, "lr", 0), &u->lr[g]));
  }
  if (!u->recipe.scale_loss) return OK;
  TRY(declare_number(d, "optim.loss_scale", DT_F32, 65536, &u->loss_scale));
  return declare_number(d, "optim.growth", DT_F32, 0, &u->growth);
}

/* The inputs and the state of the program, with room for `more`. */
static Status make_room(Declaring *d, int more) {
  Exported *e = d->e;
  d->at = first_user_input(e);
  TRY_NEW(d->state, arena_new_n(&e->arena, StateEntry, e->nstate + more));
  TRY_NEW(d->input, arena_new_n(&e->arena, Val *, e->graph->ninputs + more));
  TRY_NEW(d->spec, arena_new_n(&e->arena, InputSpec, e->graph->ninputs + more));
  memcpy(d->state, e->state, (size_t)e->nstate * sizeof *d->state);
  memcpy(d->input, e->graph->inputs, (size_t)d->at * sizeof(Val *));
  memcpy(d->spec, e->inputs, (size_t)d->at * sizeof *d->spec);
  d->nstate = e->nstate;
  return OK;
}

static Status put_inputs(Declaring *d) {
  Exported *e = d->e;
  for (int i = first_user_input(e); i < e->graph->ninputs; i++, d->at++) {
    d->input[d->at] = e->graph->inputs[i];
    d->spec[d->at] = e->inputs[i];
  }
  e->graph->inputs = d->input;
  e->graph->inputs_cap = e->graph->ninputs = d->at;
  for (int i = 0; i < d->at; i++) d->input[i]->index = i;
  e->inputs = d->spec;
  e->state = d->state;
  e->nstate = d->nstate;
  return exported_index_state(e);
}

static void writes(Update *u, const Exported *e, int input) {
  const InputSpec *in = input >= 0 ? &e->inputs[input] : NULL;
  OutputKind kind = in && in->kind == IN_PARAMETER ? OUT_PARAMETER_MUTATION : OUT_BUFFER_MUTATION;
  u->output[u->noutputs++] = (OutputSpec){.kind = kind, .target = in ? in->target : NULL};
}

/* In the order in which update_walk() gives them. */
static Status list_outputs(Update *u, const Exported *e, Arena *arena) {
  TRY_NEW(u->output, arena_new_n(arena, OutputSpec, u->nparams * OUTPUTS_PER_PARAM + 4));
  for (int k = 0; k < u->nparams; k++) {
    const UpdateParam *p = &u->param[k];
    writes(u, e, p->param);
    for (int i = 0; i < OPTIM_MAX_STATES; i++) writes(u, e, p->state[i]);
    writes(u, e, p->sum);
    writes(u, e, p->kept);
  }
  writes(u, e, u->step);
  writes(u, e, u->loss_scale);
  writes(u, e, u->growth);
  u->output[u->noutputs++] = (OutputSpec){.kind = OUT_USER};
  return OK;
}

/* Where the program first reads an input, or another name of the same tensor: there its gradient is complete. */
static int first_use(const Exported *e, const int *read, int input) {
  const StateEntry *own = exported_state(e, e->inputs[input].target);
  int first = read[e->graph->inputs[input]->id];
  for (int i = 0; i < e->graph->ninputs; i++)
    if (e->inputs[i].kind == IN_PARAMETER && i != input && read[e->graph->inputs[i]->id] < first &&
        state_is_tied(exported_state(e, e->inputs[i].target), own))
      first = read[e->graph->inputs[i]->id];
  return first;
}

typedef struct {
  int *read; /* by value id: the first position that reads it */
  int at;
} Reads;

static void note_read(void *arg, Val **ref) {
  const Reads *r = arg;
  if (r->at < r->read[(*ref)->id]) r->read[(*ref)->id] = r->at;
}

typedef struct {
  int param, use;
} Arrival;

static int by_use(const void *a, const void *b) {
  const Arrival *x = a, *y = b;
  return x->use != y->use ? (x->use < y->use ? 1 : -1) : y->param - x->param;
}

/* Of the program as it is for all ranks, so that they agree. */
static Status find_arrivals(Update *u, const Exported *e, Arena *arena) {
  Reads reads = {0};
  Arrival *list;
  TRY_NEW(reads.read, arena_new_n(arena, int, e->graph->nvals + 1));
  TRY_NEW(list, arena_new_n(arena, Arrival, u->nparams + 1));
  TRY_NEW(u->arrival, arena_new_n(arena, int, u->nparams + 1));
  for (int i = 0; i < e->graph->nvals; i++) reads.read[i] = INT_MAX;
  for (Node *n = e->graph->first; n; n = n->next, reads.at++) node_each_val(n, note_read, &reads);
  for (int k = 0; k < u->nparams; k++) list[k] = (Arrival){k, first_use(e, reads.read, u->param[k].param)};
  qsort(list, (size_t)u->nparams, sizeof *list, by_use);
  for (int i = 0; i < u->nparams; i++) u->arrival[i] = list[i].param;
  return OK;
}

Status update_declare(Exported *e, const Recipe *r, const int *params, int n, Arena *arena, Update **out) {
  Update *u;
  Declaring d = {.e = e, .arena = arena};
  TRY_NEW(u, arena_new(arena, Update));
  u->recipe = *r;
  u->nparams = n;
  TRY_NEW(u->param, arena_new_n(arena, UpdateParam, n + 1));
  TRY(make_room(&d, n * (OPTIM_MAX_STATES + 2) + MAX_GROUPS + 3));
  for (int k = 0; k < n; k++) TRY(declare_param(&d, u, params[k], &u->param[k]));
  TRY(declare_numbers(&d, u));
  TRY(put_inputs(&d));
  TRY(list_outputs(u, e, arena));
  TRY(find_arrivals(u, e, arena));
  *out = u;
  return OK;
}

bool update_writes(const Update *u, const char *fqn) {
  for (int i = 0; i < u->noutputs; i++)
    if (u->output[i].target && !strcmp(u->output[i].target, fqn)) return true;
  return false;
}

/* ---- the calls ----------------------------------------------------------------------------------------- */

Status update_loss(const Update *u, Call *tape, const Value *inputs, Tensor *loss, Tensor **out) {
  Formula f = {.c = tape};
  *out = loss;
  if (u->recipe.accumulate > 1) *out = f_scale(&f, *out, 1.0 / u->recipe.accumulate);
  if (u->loss_scale >= 0) *out = f_mul(&f, *out, f_cast(&f, inputs[u->loss_scale].tensor, loss->dtype));
  return f.status;
}

/* A mean over no targets is nan and has gradients of zero: nothing but the loss tells.  The sum over micro-batches
 * and the reduction over ranks carry what is added here to wherever the norm is taken. */
Status update_spoil(const Update *u, Call *c, const Tensor *loss, Value *gradients) {
  Formula f = {.c = c};
  Value *least = NULL;
  if (!u->recipe.skip_nonfinite && !u->recipe.scale_loss) return OK;
  for (int k = 0; k < u->nparams; k++) {
    Value *g = &gradients[k];
    if (g->kind == VAL_TENSOR && (!least || tensor_numel(g->tensor) < tensor_numel(least->tensor))) least = g;
  }
  if (!least) return OK;
  Tensor *nothing = f_cast(&f, f_scale(&f, loss, 0), least->tensor->dtype); /* or nan */
  *least = val_tensor(f_add(&f, least->tensor, nothing));
  return f.status;
}

typedef struct {
  const Update *u;
  Formula f;
  const Value *inputs;
  Tensor **grad; /* one per parameter; NULL: none */
  Value *out;    /* one per u->output */
  Tensor *step, *scale, *skip;
} Updating;

static Tensor *input(const Updating *w, int i) { return i < 0 ? NULL : w->inputs[i].tensor; }

/* What is kept of the micro-batches before is added; in the phases before the last, that is all. */
static void accumulate(Updating *w, Phase phase) {
  for (int k = 0; k < w->u->nparams; k++) {
    Tensor *sum = input(w, w->u->param[k].sum);
    if (sum && w->grad[k] && phase != PHASE_FIRST) w->grad[k] = f_add(&w->f, sum, w->grad[k]);
  }
}

static void clip_values(Updating *w) {
  double most = w->u->recipe.clip_value;
  for (int k = 0; k < w->u->nparams && most > 0; k++)
    if (w->grad[k])
      w->grad[k] = F_OP(&w->f, "aten.clamp.default", F_T(w->grad[k]), val_float(-most), val_float(most));
}

static Tensor *total_norm(Updating *w) {
  Tensor **grads = arena_new_n(w->f.c->arena, Tensor *, w->u->nparams + 1);
  int n = 0;
  if (!grads) w->f.status = fail_oom();
  for (int i = 0; i < w->u->nparams && !w->f.status; i++)
    if (w->grad[w->u->arrival[i]]) grads[n++] = w->grad[w->u->arrival[i]];
  return w->f.status ? NULL : norm_of_grads(&w->f, grads, n, w->u->recipe.norm_type);
}

/* With a loss that was scaled: twice as much after so many good steps, half as much after a bad one. */
enum { GROWTH_INTERVAL = 2000 };
static void adapt_loss_scale(Updating *w, Value *scale_out, Value *growth_out) {
  Formula *f = &w->f;
  Tensor *scale = input(w, w->u->loss_scale), *growth = f_shift(f, input(w, w->u->growth), 1);
  Tensor *bad = F_OP(f, "aten.ne.Scalar", F_T(w->skip), val_int(0));
  Tensor *grows = F_OP(f, "aten.ge.Scalar", F_T(growth), val_float(GROWTH_INTERVAL));
  Tensor *better = f_where(f, grows, f_scale(f, scale, 2), scale);
  Tensor *again = F_OP(f, "aten.logical_or.default", F_T(bad), F_T(grows));
  *scale_out = val_tensor(f_where(f, bad, f_scale(f, scale, 0.5), better));
  *growth_out = val_tensor(f_where(f, again, f_zeros_like(f, growth), growth));
}

/* Undoes the scale of the loss at once, where the steps cannot: elements are compared with a limit. */
static void unscale_gradients(Updating *w) {
  for (int k = 0; k < w->u->nparams; k++)
    if (w->grad[k]) w->grad[k] = f_mul(&w->f, w->grad[k], w->scale);
  w->scale = NULL;
}

/* What the steps multiply gradients by, so that this norm of them is at most what was asked for. */
static void clip_norm(Updating *w, Tensor *norm) {
  Tensor *factor = clip_factor(&w->f, norm, w->u->recipe.clip_norm);
  w->scale = w->scale ? f_mul(&w->f, w->scale, factor) : factor;
}

/* What gradients are multiplied by, whether they are used at all, the number of the step, and the norm before
 * anything is clipped: an infinity that is brought to a limit would be finite. */
static Tensor *prepare_step(Updating *w) {
  const Recipe *r = &w->u->recipe;
  Formula *f = &w->f;
  if (r->scale_loss) w->scale = F_OP(f, "aten.reciprocal.default", F_T(input(w, w->u->loss_scale)));
  if (r->clip_value > 0 && w->scale) unscale_gradients(w);
  Tensor *norm = total_norm(w);
  if (w->scale) norm = f_mul(f, norm, w->scale);
  if (r->skip_nonfinite || r->scale_loss) {
    Tensor *bad = F_OP(f, "aten.logical_not.default", F_T(F_OP(f, "aten.isfinite.default", F_T(norm))));
    w->skip = f_cast(f, bad, DT_F32);
  }
  clip_values(w);
  if (r->clip_norm > 0) clip_norm(w, r->clip_value > 0 ? total_norm(w) : norm);
  w->step = f_shift(f, input(w, w->u->step), 1);
  if (w->skip) w->step = f_sub(f, w->step, w->skip);
  return norm;
}

static Status step_param(Updating *w, const UpdateParam *p, Tensor *grad, Value *out) {
  OptimStep s = {.c = w->f.c,
                 .param = input(w, p->param),
                 .grad = grad,
                 .step = w->step,
                 .lr = input(w, w->u->lr[p->group]),
                 .scale = w->scale,
                 .skip = w->skip};
  for (int i = 0; i < OPTIM_MAX_STATES; i++) s.state[i] = input(w, p->state[i]);
  TRY(p->optim->optimizer->step(p->optim, &s));
  out[0] = val_tensor(s.param);
  for (int i = 0; i < OPTIM_MAX_STATES; i++)
    if (p->state[i] >= 0) out[1 + i] = val_tensor(s.state[i]);
  return OK;
}

/* What was rounded to be reduced is of its own dtype again. */
static Status reduce_gradients(Updating *w, const UpdateHooks *hooks) {
  Dtype *dtype;
  TRY(w->f.status);
  TRY_NEW(dtype, arena_new_n(w->f.c->arena, Dtype, w->u->nparams + 1));
  for (int i = 0; i < w->u->nparams; i++) {
    int k = w->u->arrival[i];
    if (!w->grad[k]) continue;
    dtype[k] = w->grad[k]->dtype;
    TRY(hooks->reduce(hooks->arg, k, w->grad[k], &w->grad[k]));
  }
  TRY(hooks->reduced(hooks->arg));
  for (int k = 0; k < w->u->nparams; k++)
    if (w->grad[k] && w->grad[k]->dtype != dtype[k]) w->grad[k] = f_cast(&w->f, w->grad[k], dtype[k]);
  return w->f.status;
}

/* As the sums of micro-batches so far, or to be looked at. */
static void keep_gradients(const Updating *w, int output) {
  for (int k = 0; k < w->u->nparams; k++)
    if (w->grad[k]) w->out[k * OUTPUTS_PER_PARAM + output] = val_tensor(w->grad[k]);
}

static Status walk(Updating *w, Phase phase, const UpdateHooks *hooks) {
  const Update *u = w->u;
  Value *numbers = w->out + u->nparams * OUTPUTS_PER_PARAM; /* step, loss scale, growth, norm */
  accumulate(w, phase);
  if (phase == PHASE_FIRST || phase == PHASE_MORE) {
    keep_gradients(w, OUTPUT_SUM);
    return w->f.status;
  }
  TRY(reduce_gradients(w, hooks));
  if (u->recipe.keep_gradients) keep_gradients(w, OUTPUT_KEPT);
  Tensor *norm = prepare_step(w);
  if (u->recipe.scale_loss) adapt_loss_scale(w, &numbers[1], &numbers[2]);
  TRY(w->f.status);
  numbers[0] = val_tensor(w->step);
  numbers[3] = val_tensor(norm);
  for (int i = 0; i < u->nparams; i++) {
    int k = u->arrival[i];
    if (w->grad[k]) TRY(step_param(w, &u->param[k], w->grad[k], &w->out[k * OUTPUTS_PER_PARAM]));
  }
  return OK;
}

Status update_walk(const Update *u, Phase phase, Call *c, const UpdateHooks *hooks, const Value *inputs,
                   const Value *gradients, Value *outputs) {
  Updating w = {.u = u, .f = {.c = c}, .inputs = inputs, .out = outputs};
  for (int i = 0; i < u->noutputs; i++) outputs[i] = val_none();
  TRY_NEW(w.grad, arena_new_n(c->arena, Tensor *, u->nparams + 1));
  for (int k = 0; k < u->nparams; k++) w.grad[k] = gradients[k].kind == VAL_TENSOR ? gradients[k].tensor : NULL;
  return walk(&w, phase, hooks);
}

void update_fill(Kern *k, const StateEntry *e, Tensor *out) {
  unsigned char element[16];
  Value fill = val_float(e->fill);
  val_store(&fill, out->dtype, element);
  kernel_fill(k, tensor_view(out), element);
}
