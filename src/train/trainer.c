/* trainer.c -- see trainer.h. */
#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "dist/dtensor.h"
#include "dist/run_sharded.h"
#include "kernels/copy.h"
#include "passes/autocast.h"
#include "passes/to_dtype.h"
#include "runtime/shards.h"

struct Trainer {
  Ctx *ctx;
  Mesh *mesh;     /* that it is trained on; NULL: one rank */
  Comm *replicas; /* ranks that have rows of their own; NULL: this one has all */
  int64_t *rows;  /* of each; NULL: equal parts */
  Prepared *prepared;
  Session *session;
  int loss;       /* its place among the user outputs */
  int fed;        /* batches of the step that is being made */
  double sum;     /* of their losses */
  bool begun;     /* a step: */
  SetAside aside; /* from before it */
  double factor;  /* of learning rates */
};

/* ---- opening ---------------------------------------------------------------------------------------- */

static int returned_before(const Exported *e, int output) {
  int n = 0;
  for (int i = 0; i < output; i++) n += output_is_returned(e->outputs[i].kind);
  return n;
}

static Status check_groups(const Update *u, const Exported *e) {
  for (int g = 0; g + 1 < u->recipe.ngroups; g++) {
    bool used = false;
    for (int k = 0; k < u->nparams; k++) used |= u->param[k].group == g;
    if (!used)
      return status_hint(fail(ERR_USAGE, "no parameter that is trained belongs to the group '%s' (%s)",
                              u->recipe.group[g].name, u->recipe.group[g].patterns),
                         "`tessera inspect %s` lists the parameters; the first group that matches takes one",
                         e->name);
  }
  return OK;
}

/* The axes of a mesh that shard batches. */
static Status find_data_axes(const char *mesh, const PlanFile *plan, unsigned *data) {
  Dist *d;
  Mesh *m;
  TRY(dist_new(NULL, &d));
  Status s = mesh_parse(d, mesh, &m);
  *data = 0;
  for (int a = 0; !s && a < m->naxes; a++)
    if (mark_is_data_axis(m, plan, a)) *data |= 1u << a;
  dist_free(d);
  if (!s && !*data)
    s = status_hint(fail(ERR_USAGE, "no axis of the mesh %s shards batches", mesh),
                    "call one dp, or name it: --data-axis");
  return s;
}

static Status mark_for_training(Prepared *p, const TrainerPlan *how) {
  PlanFile plan = {.path = "the plan"}; /* a copy: others may have the plan as well */
  unsigned data = 0;
  if (!how->mesh) return OK;
  if (how->plan) plan = *how->plan;
  plan.any_batch = true;
  plan.data_axis = how->data_axis;
  if (how->local) TRY(find_data_axes(how->mesh, &plan, &data));
  const GradOptions grad = {.loss = how->loss, .freeze = how->recipe->freeze};
  TRY(prepare_marks(p, how->mesh, &plan, &grad));
  if (how->fsdp) TRY(prepare_fsdp(p, &plan, *how->fsdp ? how->fsdp : NULL));
  if (how->local) prepare_replicas(p, data);
  if (!how->whole_updates) prepare_sharded_updates(p);
  return OK;
}

static Status prepare_training(Prepared *p, const TrainerPlan *how) {
  TRY(mark_for_training(p, how));
  TRY(prepare_update(p, how->recipe, how->loss));
  return check_groups(p->step.update, p->program);
}

Status trainer_prepare(Ctx *ctx, Exported *e, const TrainerPlan *how, Prepared **out) {
  const Recipe *r = how->recipe;
  Prepared *p;
  Status s = r->compute == DT_NONE ? OK : autocast_program(e, r->compute);
  if (!s && r->param_dtype != DT_NONE) s = program_to_dtype(&ctx->kern, e, r->param_dtype);
  if (s) {
    exported_free(e);
    return s;
  }
  TRY(prepare(ctx, e, &p));
  s = prepare_training(p, how);
  if (s) prepared_unref(p);
  else *out = p;
  return s;
}

static Status open_session(Trainer *t) {
  unsigned axes = t->prepared->replica_axes;
  if (t->mesh && axes) TRY(mesh_group(t->mesh, axes, &t->replicas));
  TRY(session_open_prepared(t->ctx, t->prepared, t->mesh, &t->session));
  session_allow_any_batch(t->session);
  if (t->replicas) session_average_gradients(t->session, comm_size(t->replicas), axes);
  return OK;
}

Status trainer_open_on(Ctx *ctx, Prepared *p, Mesh *mesh, Trainer **out) {
  Trainer *t;
  TRY_NEW(t, calloc(1, sizeof *t));
  t->ctx = ctx;
  t->prepared = prepared_ref(p);
  t->loss = returned_before(p->program, p->step.loss);
  t->mesh = mesh;
  Status s = open_session(t);
  if (s) trainer_free(t);
  else *out = t;
  return s;
}

Status trainer_open(Ctx *ctx, Exported *e, const Recipe *r, const char *loss, Trainer **out) {
  Prepared *p;
  TRY(trainer_prepare(ctx, e, &(TrainerPlan){.recipe = r, .loss = loss}, &p));
  Status s = trainer_open_on(ctx, p, NULL, out);
  prepared_unref(p);
  return s;
}

static void set_aside_free(SetAside *a) {
  scope_clear(&a->scope);
  free(a->copy);
  free(a->state);
}

/* A step is over, or given up. */
static void end_step(Trainer *t, bool undo) {
  t->fed = 0;
  if (!t->begun) return;
  t->begun = false;
  if (undo) trainer_put_back(t, &t->aside);
  else set_aside_free(&t->aside);
}

void trainer_free(Trainer *t) {
  if (!t) return;
  end_step(t, false);
  session_free(t->session);
  prepared_unref(t->prepared);
  free(t->rows);
  free(t);
}

static const Update *update_of(const Trainer *t) { return t->prepared->step.update; }
const Recipe *trainer_recipe(const Trainer *t) { return &update_of(t)->recipe; }
const Exported *trainer_program(const Trainer *t) { return t->prepared->program; }
Session *trainer_session(Trainer *t) { return t->session; }
Mesh *trainer_mesh(const Trainer *t) { return t->mesh; }

/* ---- state -------------------------------------------------------------------------------------------- */

/* The 0-d tensor behind a graph input. */
static Tensor *number_at(const Trainer *t, int input) {
  return session_state(t->session, t->prepared->program->inputs[input].target);
}

static double load_number(const Tensor *t) {
  Value v = val_load(t->dtype, tensor_data(t));
  return val_as_float(&v);
}

void trainer_set_rate(Trainer *t, double factor) {
  const Update *u = update_of(t);
  t->factor = factor;
  for (int g = 0; g < u->recipe.ngroups; g++) {
    Tensor *lr = number_at(t, u->lr[g]);
    session_before_write(t->session, lr);
    Value v = val_float(optim_number(&u->recipe.group[g].optim, "lr", 0) * factor);
    val_store(&v, lr->dtype, tensor_data(lr));
  }
}

double trainer_rate(const Trainer *t) {
  const Recipe *r = trainer_recipe(t);
  return t->factor * optim_number(&r->group[r->ngroups - 1].optim, "lr", 0);
}

/* Sums of micro-batches, and gradients that are kept to be looked at. */
static bool is_temporary(const char *fqn) {
  return !strncmp(fqn, "optim.sum.", 10) || !strncmp(fqn, "optim.grad.", 11);
}

int trainer_states(const Trainer *t, TrainState *out) {
  const Exported *e = t->prepared->program;
  int n = 0;
  for (int i = 0; i < e->nstate; i++) {
    const StateEntry *s = &e->state[i];
    if (!session_state(t->session, s->fqn) || s->is_constant) continue;
    if (out)
      out[n] = (TrainState){.name = s->fqn,
                            .tensor = session_state(t->session, s->fqn),
                            .whole = s->tensor,
                            .is_model = !s->is_filled,
                            .is_parameter = s->is_parameter,
                            .is_temporary = s->is_filled && is_temporary(s->fqn)};
    n++;
  }
  return n;
}

void trainer_was_written(Trainer *t) {
  end_step(t, false);
  session_forget_programs(t->session);
}

Status trainer_state_tensor(const Trainer *t, const TrainState *state, Scope *scope, Tensor **out) {
  const Spec *spec;
  TRY(session_state_spec(t->session, state->name, &spec));
  if (spec) return dtensor_wrap(scope, spec, state->tensor, out);
  return tensor_alias(scope, state->tensor, out);
}

Status trainer_gather(const Trainer *t, const TrainState *state, Scope *scope, Tensor **out) {
  const Spec *spec;
  Tensor *d;
  TRY(session_state_spec(t->session, state->name, &spec));
  if (!spec || spec->replicated) return *out = state->tensor, OK;
  TRY(dtensor_wrap(scope, spec, state->tensor, &d));
  return dtensor_full(t->ctx, scope, d, out);
}

static Status copy_state(Trainer *t, const TrainState *to, const Tensor *from, Scope *scope) {
  const Spec *spec;
  Tensor *part;
  TRY(tensor_alias(scope, from, &part));
  TRY(session_state_spec(t->session, to->name, &spec));
  if (spec) TRY(shard_of(&t->ctx->kern, scope, part, spec, &part));
  session_before_write(t->session, to->tensor);
  kernel_copy(&t->ctx->kern, tensor_view(to->tensor), tensor_view(part));
  return OK;
}

Status trainer_set_state(Trainer *t, const TrainState *to, const Tensor *from, const char *where) {
  char a[128], b[128];
  Scope scope = {0};
  if (!tensor_same_size(from, to->whole) || dtype_is_float(from->dtype) != dtype_is_float(to->whole->dtype))
    return fail(ERR_FILE, "%s: '%s' is %s, in the program it is %s", where, to->name,
                tensor_describe(from, a, sizeof a), tensor_describe(to->whole, b, sizeof b));
  if (!tensor_data(to->tensor)) return OK;
  end_step(t, false);
  if (to->tensor->storage->frozen) trainer_was_written(t); /* not by the update, but here */
  Status s = copy_state(t, to, from, &scope);
  scope_clear(&scope);
  return s;
}

/* ---- steps -------------------------------------------------------------------------------------------- */

/* The first dimension of the first input that has one. */
static int64_t batch_rows(const Batch *b) {
  for (int i = 0; i < b->n; i++)
    if (b->inputs[i].kind == VAL_TENSOR && b->inputs[i].tensor->ndim) return b->inputs[i].tensor->size[0];
  return 0;
}

/* Which rows of a batch this rank takes. */
static Status find_rows(const Trainer *t, int64_t all, int64_t *first, int64_t *rows) {
  int64_t n = comm_size(t->replicas), me = comm_rank(t->replicas), each = (all + n - 1) / n, sum = 0;
  for (int64_t r = 0; r < n; r++) {
    int64_t left = all - sum > 0 ? all - sum : 0, own = t->rows ? t->rows[r] : left < each ? left : each;
    if (r == me) *first = sum, *rows = own;
    sum += own;
  }
  if (sum != all)
    return fail(ERR_USAGE, "ranks are to take %lld rows in all, and a batch has %lld", (long long)sum,
                (long long)all);
  if (*rows > 0) return OK;
  return status_hint(fail(ERR_USAGE, "a batch of %lld rows leaves rank %lld of the %lld that share it without any",
                          (long long)all, (long long)me, (long long)n),
                     "take larger batches, or fewer ranks");
}

static Status own_rows(const Trainer *t, const Batch *b, Scope *scope, Arena *arena, Batch *out, int64_t *rows) {
  int64_t all = batch_rows(b), first = 0;
  Value *own;
  TRY(find_rows(t, all, &first, rows));
  TRY_NEW(own, arena_new_n(arena, Value, b->n + 1));
  for (int i = 0; i < b->n; i++) {
    own[i] = b->inputs[i];
    if (own[i].kind != VAL_TENSOR || !own[i].tensor->ndim || own[i].tensor->size[0] != all) continue;
    Tensor *x;
    TRY(tensor_alias(scope, own[i].tensor, &x));
    x->offset += first * x->stride[0];
    x->size[0] = *rows;
    own[i] = val_tensor(x);
  }
  *out = (Batch){own, b->n};
  return OK;
}

/* One call: its loss, and its last output if it makes a step; rows: of this rank. */
static Status call_on(Trainer *t, const Batch *whole, Scope *scope, Arena *arena, double *loss, double *norm,
                      int64_t *rows) {
  Batch b = *whole;
  Value *out;
  int n;
  *rows = 0;
  if (t->replicas) TRY(own_rows(t, whole, scope, arena, &b, rows));
  TRY(session_run(t->session, b.inputs, b.n, scope, arena, &out, &n));
  *loss = load_number(out[t->loss].tensor);
  if (norm) *norm = load_number(out[n - 1].tensor);
  return OK;
}

Status trainer_program_of(Trainer *t, Phase phase, const Batch *whole, Program **out) {
  Batch b = *whole;
  Scope scope = {0};
  Arena arena = {0};
  int64_t rows;
  session_set_phase(t->session, phase);
  Status s = t->replicas ? own_rows(t, whole, &scope, &arena, &b, &rows) : OK;
  if (!s) s = session_prepare(t->session, b.inputs, b.n, out);
  session_set_phase(t->session, PHASE_LOSS);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status call(Trainer *t, Phase phase, const Batch *b, double *loss, double *norm, int64_t *rows) {
  Scope scope = {0};
  Arena arena = {0};
  session_set_phase(t->session, phase);
  Status s = call_on(t, b, &scope, &arena, loss, norm, rows);
  session_set_phase(t->session, PHASE_LOSS); /* whoever else runs it changes nothing */
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

/* The weighted mean over the ranks that have rows of their own. */
static Status mean_over_replicas(const Trainer *t, double weight, double *value) {
  double sums[] = {*value * weight, weight};
  Coll c = {.kind = COLL_ALL_REDUCE, .dtype = DT_F64, .op = REDUCE_SUM, .send = sums, .recv = sums, .count = 2};
  c.why = "the loss of a step";
  if (!t->replicas) return OK;
  TRY(comm_run(t->replicas, &c));
  *value = sums[0] / sums[1];
  return OK;
}

Status trainer_set_rows(Trainer *t, const int64_t *rows, int n) {
  if (!t->replicas) return fail(ERR_USAGE, "every rank has the whole batch: --data-parallel local shares rows out");
  if (rows && n != comm_size(t->replicas))
    return fail(ERR_USAGE, "rows of %d ranks are told, and %d share batches", n, comm_size(t->replicas));
  free(t->rows);
  t->rows = NULL;
  if (!rows) return OK;
  TRY_NEW(t->rows, malloc((size_t)n * sizeof *rows));
  memcpy(t->rows, rows, (size_t)n * sizeof *rows);
  return OK;
}

Phase trainer_phase(const Trainer *t, int i) {
  int n = trainer_recipe(t)->accumulate;
  return n == 1 ? PHASE_STEP : i + 1 == n ? PHASE_LAST : i ? PHASE_MORE : PHASE_FIRST;
}

/* Buffers that the program writes are the session's own; others are still those of the file. */
static bool changes_by_the_way(const TrainState *s) {
  return s->is_model && !s->is_parameter && tensor_data(s->tensor) && !s->tensor->storage->frozen;
}

/* Buffers that the program writes to are those of the first rank when a step begins, and in a save, as
 * DistributedDataParallel has it.  With fully_shard every rank has its own. */
static Status share_buffers(const Trainer *t, const TrainState *state, int n) {
  if (marks_gathered_axes(t->prepared->marks)) return OK;
  for (int i = 0; t->replicas && i < n; i++) {
    const Tensor *x = state[i].tensor;
    if (!changes_by_the_way(&state[i])) continue;
    session_before_write(t->session, x);
    Coll c = {.kind = COLL_BROADCAST, .dtype = x->dtype, .send = tensor_data(x), .recv = tensor_data(x)};
    c.count = tensor_numel(x);
    c.why = "buffers of the first rank";
    TRY(comm_run(t->replicas, &c));
  }
  return OK;
}

Status trainer_share_buffers(Trainer *t) {
  int n = trainer_states(t, NULL);
  TrainState *state;
  TRY_NEW(state, malloc(((size_t)n + 1) * sizeof *state));
  trainer_states(t, state);
  Status s = share_buffers(t, state, n);
  free(state);
  return s;
}

static Status feed(Trainer *t, const Batch *batch, StepResult *out, bool *done) {
  const Recipe *r = trainer_recipe(t);
  double loss, norm = 0, scale = r->scale_loss ? load_number(number_at(t, update_of(t)->loss_scale)) : 0;
  int64_t rows;
  *done = t->fed + 1 == r->accumulate;
  TRY(call(t, trainer_phase(t, t->fed), batch, &loss, *done ? &norm : NULL, &rows));
  t->sum = t->fed ? t->sum + loss : loss;
  t->fed++;
  if (!*done) return OK;
  *out = (StepResult){.loss = t->sum / r->accumulate,
                      .own_loss = t->sum / r->accumulate,
                      .grad_norm = norm,
                      .skipped = (r->skip_nonfinite || r->scale_loss) && !isfinite(norm),
                      .loss_scale = scale};
  TRY(mean_over_replicas(t, 1, &out->loss));
  if (isnan(out->loss)) out->loss = NAN; /* some have a sign, which is nobody's business */
  if (isnan(out->grad_norm)) out->grad_norm = NAN;
  return OK;
}

Status trainer_feed(Trainer *t, const Batch *batch, StepResult *out, bool *done) {
  Status s = OK;
  *done = false;
  if (!t->begun) {
    s = trainer_set_aside(t, &t->aside);
    if (!s) s = share_buffers(t, t->aside.state, t->aside.n);
  }
  t->begun = true;
  if (!s) s = feed(t, batch, out, done);
  if (s || *done) end_step(t, s || out->skipped);
  return s;
}

Status trainer_step(Trainer *t, BatchFn *batch, void *arg, StepResult *out) {
  Status s = OK;
  *out = (StepResult){0};
  end_step(t, true);
  for (bool done = false; !done && !s;) {
    Batch b;
    s = batch(arg, t->fed, &b);
    if (!s) s = trainer_feed(t, &b, out, &done);
  }
  end_step(t, true);
  return s;
}

Status trainer_loss(Trainer *t, const Batch *batch, double *out) {
  SetAside aside;
  Status s = trainer_set_aside(t, &aside);
  int64_t rows = 0;
  if (!s) s = call(t, PHASE_LOSS, batch, out, NULL, &rows);
  if (!s) s = mean_over_replicas(t, (double)rows, out);
  trainer_put_back(t, &aside);
  return s;
}

/* ---- what is set aside -------------------------------------------------------------------------------- */

Status trainer_set_aside(Trainer *t, SetAside *a) {
  *a = (SetAside){.n = 0};
  ctx_random_state(t->ctx, a->random);
  int n = trainer_states(t, NULL);
  TRY_NEW(a->state, malloc(((size_t)n + 1) * sizeof *a->state));
  TRY_NEW(a->copy, calloc((size_t)n + 1, sizeof *a->copy));
  trainer_states(t, a->state);
  for (; a->n < n; a->n++) {
    const Tensor *from = a->state[a->n].tensor;
    if (!changes_by_the_way(&a->state[a->n])) continue;
    TRY(tensor_new(&a->scope, from->dtype, from->ndim, from->size, &a->copy[a->n]));
    kernel_copy(&t->ctx->kern, tensor_view(a->copy[a->n]), tensor_view(from));
  }
  return OK;
}

void trainer_put_back(Trainer *t, SetAside *a) {
  for (int i = 0; i < a->n; i++) {
    if (!a->copy[i]) continue;
    session_before_write(t->session, a->state[i].tensor);
    kernel_copy(&t->ctx->kern, tensor_view(a->state[i].tensor), tensor_view(a->copy[i]));
  }
  ctx_set_random_state(t->ctx, a->random);
  set_aside_free(a);
}
