/* session.c -- see session.h. */
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "comm/groups.h"
#include "dist/dtensor.h"
#include "kernels/copy.h"
#include "passes/pass.h"
#include "runtime/fit_step.h"
#include "runtime/program_walk.h"
#include "runtime/shards.h"

enum { MAX_PROGRAMS = 16 };

typedef struct {
  Program *program;
  int64_t *key; /* ndim and sizes of every input; numbers as they are */
  int nkey;
  int64_t last_used;
} Entry;

struct Session {
  Ctx *ctx;
  Prepared *prepared;
  const Exported *program; /* the prepared one */
  bool on_mesh;
  Marks marks;    /* on_mesh: as this rank sees them */
  Tensor **state; /* this rank's, parallel to program->state; NULL: no data */
  Scope scope;    /* of the state's handles */
  Arena arena;
  GradRequest grad; /* wants_grad */
  bool wants_grad;
  const Update *trains; /* the prepared one; NULL: it is not trained */
  ReduceGradients reduce;
  StepFit agreed[PHASES]; /* with rows of this rank's own: what the first program of each phase came to */
  bool agrees[PHASES];
  MemoryLimit memory; /* amount 0: none */
  bool gradients_apart, any_batch;
  Entry entries[MAX_PROGRAMS];
  int nentries;
  int64_t calls;
  Program *last; /* what the last call ran */
  bool interpret, profile, dry;
  Progress *progress;
  const WriteGuard *guard;
  NodeTimes times;
  NodeWatchFn *watch;
  void *watch_arg;
};

/* ---- opening ------------------------------------------------------------------------ */

static bool is_written(const Session *s, const char *fqn) {
  return exported_is_mutated(s->program, fqn) || exported_state(s->program, fqn)->is_filled ||
         (s->trains && update_writes(s->trains, fqn));
}

/* An earlier name of the same tensor, whose copy serves both; -1: there is none. */
static int tied_before(const Exported *e, int i) {
  for (int j = 0; j < i; j++)
    if (state_is_tied(&e->state[j], &e->state[i])) return j;
  return -1;
}

/* Is it written under any of its names? */
static bool any_written(const Session *s, int i) {
  const Exported *e = s->program;
  bool written = is_written(s, e->state[i].fqn);
  for (int j = 0; j < e->nstate && !written && s->trains; j++)
    written = state_is_tied(&e->state[j], &e->state[i]) && is_written(s, e->state[j].fqn);
  return written;
}

static Status own_copy(Session *s, int i, Tensor **t) {
  const StateEntry *e = &s->program->state[i];
  int first = s->trains ? tied_before(s->program, i) : -1;
  Tensor *copy, *from = *t;
  if (first >= 0) return tensor_alias(&s->scope, s->state[first], t);
  TRY(tensor_new(&s->scope, from->dtype, from->ndim, from->size, &copy));
  if (s->dry) return *t = copy, OK;
  if (e->is_filled) update_fill(&s->ctx->kern, e, copy);
  else {
    kernel_copy(&s->ctx->kern, tensor_view(copy), tensor_view(from));
    if (tensor_is_contiguous(from))
      memory_give_back(tensor_data(from), (size_t)tensor_numel(from) * dtype_size(from->dtype));
  }
  *t = copy;
  return OK;
}

/* I1.  Of what the program writes to, a copy of its own; of the rest, what the mapped records hold.  Weights of a
 * program that is trained may all be loaded from elsewhere before the first call. */
static Status own_state(Session *s) {
  const Exported *e = s->program;
  if (s->on_mesh) TRY(shards_of_state(&s->ctx->kern, e, &s->marks, &s->scope, &s->arena, &s->state));
  else TRY_NEW(s->state, arena_new_n(&s->arena, Tensor *, e->nstate + 1));
  for (int i = 0; i < e->nstate; i++) {
    Tensor **t = &s->state[i];
    if (!*t && !s->on_mesh && e->state[i].tensor) TRY(tensor_alias(&s->scope, e->state[i].tensor, t));
    if (!*t) continue;
    bool written = any_written(s, i);
    if (written || (s->trains && !e->state[i].is_constant)) TRY(own_copy(s, i, t));
    if (!written && (*t)->storage && !(*t)->storage->frozen)
      (*t)->storage->frozen = true; /* a copy of what no call writes to never changes, either */
  }
  return OK;
}

static Status open_session(Ctx *ctx, Prepared *p, Mesh *mesh, bool dry, Session **out) {
  Session *s;
  TRY_NEW(s, calloc(1, sizeof *s));
  s->ctx = ctx;
  s->dry = dry;
  s->prepared = prepared_ref(p);
  s->program = p->program;
  s->on_mesh = mesh != NULL;
  if (mesh) s->marks = prepared_marks(p, mesh);
  s->trains = p->step.update;
  s->reduce = reduce_gradients_default;
  s->grad = p->step;
  s->wants_grad = s->trains != NULL;
  Status status = own_state(s);
  if (status) session_free(s);
  else *out = s;
  return status;
}

Status session_open_prepared(Ctx *ctx, Prepared *p, Mesh *mesh, Session **out) {
  return open_session(ctx, p, mesh, false, out);
}

Status session_open_dry(Ctx *ctx, Prepared *p, Session **out) { return open_session(ctx, p, NULL, true, out); }

Status session_open(Ctx *ctx, Exported *e, Session **out) {
  Prepared *p;
  TRY(prepare(ctx, e, &p));
  Status s = session_open_prepared(ctx, p, NULL, out);
  prepared_unref(p);
  return s;
}

Status session_open_on_mesh(Ctx *ctx, Exported *e, Mesh *mesh, const PlanFile *plan, Session **out) {
  char text[1024];
  Prepared *p;
  TRY(prepare(ctx, e, &p));
  Status s = prepare_marks(p, mesh_text(mesh, text, sizeof text), plan, NULL);
  if (!s) s = session_open_prepared(ctx, p, mesh, out);
  prepared_unref(p);
  return s;
}

Status session_want_gradients(Session *s, const GradOptions *o) {
  TRY(grad_request(s->program, o, &s->arena, &s->grad));
  s->wants_grad = true;
  return OK;
}

const GradRequest *session_gradients(const Session *s) {
  return s->wants_grad && s->grad.phase != PHASE_LOSS ? &s->grad : NULL;
}

void session_set_phase(Session *s, Phase phase) { s->grad.phase = phase; }

void session_allow_any_batch(Session *s) { s->any_batch = true; }

void session_average_gradients(Session *s, int ranks, unsigned axes) {
  s->grad.replicas = ranks;
  s->grad.replica_axes = axes;
}

void session_reduce_gradients(Session *s, const ReduceGradients *how) {
  s->reduce = *how;
  s->grad.reduce_dtype = how->dtype;
  memset(s->agrees, 0, sizeof s->agrees);
}

Tensor *session_state(const Session *s, const char *fqn) {
  const StateEntry *e = exported_state(s->program, fqn);
  return e ? s->state[e - s->program->state] : NULL;
}

Status session_state_spec(const Session *s, const char *fqn, const Spec **out) {
  const Exported *e = s->program;
  *out = NULL;
  for (int i = 0; s->on_mesh && i < e->graph->ninputs && !*out; i++)
    if (e->inputs[i].target && !strcmp(e->inputs[i].target, fqn))
      TRY(marked_input_spec(&s->marks, i, exported_state(e, fqn)->tensor, out));
  return OK;
}

void session_limit_memory(Session *s, MemoryLimit limit) {
  s->memory = limit;
  s->gradients_apart = true;
  memset(s->agrees, 0, sizeof s->agrees);
}

const Marks *session_marks(const Session *s) { return s->on_mesh ? &s->marks : NULL; }
Ctx *session_ctx(const Session *s) { return s->ctx; }

static void entry_free(Entry *e) {
  program_free(e->program);
  free(e->key);
}

void session_guard_state(Session *s, const WriteGuard *guard) { s->guard = guard; }

void session_before_write(const Session *s, const Tensor *state) {
  if (s->guard && state->storage) s->guard->before_write(s->guard->arg, state->storage);
}

void session_forget_programs(Session *s) {
  for (int i = 0; i < s->nentries; i++) {
    entry_free(&s->entries[i]);
    s->entries[i] = (Entry){0};
  }
  s->nentries = 0;
  s->last = NULL;
}

void session_free(Session *s) {
  if (!s) return;
  session_forget_programs(s);
  node_times_free(&s->times);
  scope_clear(&s->scope);
  arena_free(&s->arena);
  prepared_unref(s->prepared);
  free(s);
}

const Exported *session_program(const Session *s) { return s->program; }
bool session_interpret(Session *s, bool on) {
  bool before = s->interpret;
  s->interpret = on;
  return before;
}
void session_set_profile(Session *s, bool on) { s->profile = on; }

void session_forget_times(Session *s) {
  for (int i = 0; i < s->nentries; i++) program_forget_times(s->entries[i].program);
  node_times_free(&s->times);
}

const NodeTimes *session_node_times(const Session *s) { return &s->times; }
const Program *session_last_program(const Session *s) { return s->last; }
void session_set_progress(Session *s, Progress *progress) { s->progress = progress; }

void session_watch_nodes(Session *s, NodeWatchFn *fn, void *arg) {
  s->watch = fn;
  s->watch_arg = arg;
}

/* ---- one program per set of sizes ---------------------------------------------------- */

static Status make_key(Phase phase, const Value *inputs, int n, int64_t **key, int *nkey) {
  int len = 1;
  for (int i = 0; i < n; i++) len += inputs[i].kind == VAL_TENSOR ? inputs[i].tensor->ndim + 2 : 2;
  TRY_NEW(*key, malloc(((size_t)len + 1) * sizeof **key));
  int64_t *k = *key;
  *k++ = phase;
  for (int i = 0; i < n; i++) {
    if (inputs[i].kind == VAL_TENSOR) {
      *k++ = inputs[i].tensor->ndim;
      *k++ = inputs[i].tensor->dtype;
      for (int d = 0; d < inputs[i].tensor->ndim; d++) *k++ = inputs[i].tensor->size[d];
    } else {
      *k++ = -1 - (int64_t)inputs[i].kind;
      memcpy(k++, &inputs[i].i, sizeof *k); /* bits of the number */
    }
  }
  *nkey = len;
  return OK;
}

/* Where ranks have rows of their own, others may be at the program that they have already. */
static Status fit_to_ranks(Session *s, Exported *special, MemoryLimit limit) {
  Phase phase = s->grad.phase;
  StepFit fit;
  TRY(fit_step(s->ctx, special, &s->reduce, session_marks(s), limit, s->agrees[phase] ? &s->agreed[phase] : NULL,
               &fit));
  if (s->grad.replicas <= 1 || s->agrees[phase]) return OK;
  s->agreed[phase] = fit;
  s->agrees[phase] = true;
  return OK;
}

Status session_specialize(Session *s, const Value *inputs, int ninputs, Exported **out) {
  Exported *special;
  Specialize how = {.marks = session_marks(s),
                    .state = s->state,
                    .grad = session_gradients(s),
                    .trains = s->trains,
                    .any_batch = s->any_batch};
  TRY(specialize(s->ctx, s->program, &how, inputs, ninputs, &special));
  special->graph->gradients_apart = s->gradients_apart;
  bool reduces = s->trains && s->on_mesh;
  bool evaluates = s->trains && s->grad.phase == PHASE_LOSS; /* within the limit of a step without further ado */
  MemoryLimit limit = evaluates ? (MemoryLimit){0} : s->memory;
  MemoryFit fit;
  Status status = reduces ? fit_to_ranks(s, special, limit)
                          : pass_run_list(special, passes_specialized, s->ctx, NULL);
  if (!status && !reduces && limit.amount > 0) status = fit_memory(s->ctx, special, NULL, limit, &fit);
  if (status) exported_free(special);
  else *out = special;
  return status;
}

static Status build(Session *s, const Value *inputs, int ninputs, Program **out) {
  Exported *special;
  TRY(session_specialize(s, inputs, ninputs, &special));
  TRY(program_build(s->ctx, special, out));
  (*out)->profile = s->profile;
  return OK;
}

static Entry *oldest(Session *s) {
  Entry *e = &s->entries[0];
  for (int i = 1; i < s->nentries; i++) {
    if (s->entries[i].last_used < e->last_used) e = &s->entries[i];
  }
  return e;
}

/* What is interpreted has no plan that could be limited. */
static Status check_limit(const Session *s) {
  if (!s->interpret || s->memory.amount <= 0) return OK;
  return status_hint(fail(ERR_USAGE, "the program is interpreted, node by node: its memory cannot be limited"),
                     "programs whose sizes or branches depend on data are");
}

Status session_prepare(Session *s, const Value *inputs, int ninputs, Program **out) {
  *out = NULL;
  if (s->interpret) return check_limit(s);
  int64_t *key = NULL;
  int nkey = 0;
  s->calls++;
  TRY(make_key(s->grad.phase, inputs, ninputs, &key, &nkey));
  for (int i = 0; i < s->nentries; i++) {
    Entry *e = &s->entries[i];
    if (e->nkey != nkey || memcmp(e->key, key, (size_t)nkey * sizeof *key)) continue;
    free(key);
    e->last_used = s->calls;
    *out = e->program;
    return OK;
  }
  Status status = build(s, inputs, ninputs, out);
  if (status) {
    free(key);
    if (status_code(status) != ERR_DYNAMIC) return status;
    status_free(status);
    s->interpret = true;
    return check_limit(s);
  }
  Entry *e = s->nentries < MAX_PROGRAMS ? &s->entries[s->nentries++] : oldest(s);
  entry_free(e);
  *e = (Entry){*out, key, nkey, s->calls};
  return OK;
}

Status session_steps(Session *s, const Value *inputs, int ninputs, int64_t *out) {
  Program *p;
  TRY(session_prepare(s, inputs, ninputs, &p));
  *out = p ? p->ninstrs : 0;
  for (const Node *n = p ? NULL : s->program->graph->first; n; n = n->next) ++*out;
  return OK;
}

/* ---- calls ----------------------------------------------------------------------------- */

typedef struct {
  Session *s;
  Scope *scope;
  Stage stage;
} Interpretation;

/* Of a user input, the part that this rank takes of the whole. */
static Status take_input(void *arg, int i, Tensor *whole, Tensor *held, const Spec *spec, Tensor **out) {
  const Interpretation *in = arg;
  (void)i;
  *out = held ? held : whole;
  return held || !spec ? OK : shard_of(&in->s->ctx->kern, in->scope, whole, spec, out);
}

static Status before_node(void *arg, const Node *n) {
  const Interpretation *in = arg;
  Session *s = in->s;
  progress_add(s->progress, 1);
  return s->profile ? node_times_next(&s->times, n, n->stage ? n->stage : in->stage) : OK;
}

/* What a stage begins with belongs to no node. */
static Status enters(void *arg, Stage stage) {
  Interpretation *in = arg;
  in->stage = stage;
  return in->s->profile ? node_times_next(&in->s->times, NULL, stage) : OK;
}

/* The backward is at what belongs to n. */
static Status visits(void *arg, const Node *n) {
  const Interpretation *in = arg;
  return in->s->profile && n ? node_times_next(&in->s->times, n, in->stage) : OK;
}

static Status after_node(void *arg, const Node *n, const Value *outs, int nouts) {
  const Session *s = ((const Interpretation *)arg)->s;
  return s->watch ? s->watch(s->watch_arg, n, outs, nouts) : OK;
}

/* Of the graph, then those behind it. */
static int count_outputs(const Session *s) {
  return s->program->graph->noutputs + grad_outputs(session_gradients(s));
}

static OutputSpec output_spec(const Session *s, int i) {
  const GradRequest *r = session_gradients(s);
  return r ? grad_output(s->program, r, i) : s->program->outputs[i];
}

/* What the caller gets: copies, for a result may share memory with a buffer. */
static Status return_outputs(Session *s, const Value *all, Scope *scope, Value *outputs, int *noutputs) {
  *noutputs = 0;
  for (int i = 0; i < count_outputs(s); i++) {
    if (!output_is_returned(output_spec(s, i).kind)) continue;
    Value *out = &outputs[(*noutputs)++];
    *out = all[i];
    if (out->kind != VAL_TENSOR) continue;
    Tensor *copy;
    TRY(tensor_new(scope, out->tensor->dtype, out->tensor->ndim, out->tensor->size, &copy));
    kernel_copy(&s->ctx->kern, tensor_view(copy), tensor_view(out->tensor));
    *out = val_tensor(copy);
  }
  return OK;
}

/* Where output i is written to; NULL: nowhere. */
static Tensor *mutated_by(const Session *s, int i, const Value *inputs) {
  const Exported *e = s->program;
  OutputSpec out = output_spec(s, i);
  if (!output_is_mutation(out.kind) || !out.target) return NULL;
  if (out.kind != OUT_USER_INPUT_MUTATION) return session_state(s, out.target);
  for (int j = 0; j < e->graph->ninputs; j++)
    if (!strcmp(e->graph->inputs[j]->name, out.target))
      return inputs[j].tensor->spec ? inputs[j].tensor->local : inputs[j].tensor;
  return NULL;
}

static Status interpret(Session *s, Rebatch *rebatch, const Value *user, Scope *scope, Arena *arena, Value *outputs,
                        int *noutputs) {
  const Graph *g = s->program->graph;
  Value *inputs, *all;
  Interpretation in = {.s = s, .scope = scope};
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs));
  TRY_NEW(all, arena_new_n(arena, Value, count_outputs(s)));
  ProgramWalk w = {.ctx = s->ctx,
                   .program = s->program,
                   .state = s->state,
                   .marks = session_marks(s),
                   .grad = session_gradients(s),
                   .rebatch = rebatch->from ? rebatch : NULL,
                   .scope = scope,
                   .arena = arena,
                   .arg = &in,
                   .input = take_input,
                   .before = before_node,
                   .after = after_node,
                   .visits = visits,
                   .enters = enters};
  if (s->profile) TRY(node_times_begin(&s->times, g));
  Status walked = program_walk(&w, user, inputs, all);
  TRY(s->ctx->groups ? groups_end(s->ctx->groups, walked) : walked);
  if (s->profile) TRY(node_times_next(&s->times, NULL, STAGE_FORWARD));
  TRY(return_outputs(s, all, scope, outputs, noutputs));
  for (int i = 0; i < count_outputs(s); i++) {
    Tensor *to = all[i].kind == VAL_TENSOR ? mutated_by(s, i, inputs) : NULL;
    if (!to) continue;
    session_before_write(s, to);
    kernel_copy(&s->ctx->kern, tensor_view(to), tensor_view(all[i].tensor));
  }
  return OK;
}

/* The tensor of global sizes behind graph input i. */
static const Tensor *whole_input(const Session *s, int i, const Value *inputs) {
  const Exported *e = s->program;
  int user = 0;
  for (int j = 0; j < i; j++) user += e->inputs[j].kind == IN_USER;
  return e->inputs[i].kind == IN_USER ? inputs[user].tensor : exported_state(e, e->inputs[i].target)->tensor;
}

Status session_gather_gradients(Session *s, const Value *inputs, Scope *scope, Value *outputs, int noutputs) {
  for (int k = 0; s->on_mesh && k < s->grad.n; k++) {
    Value *v = &outputs[noutputs - s->grad.n + k];
    const Spec *spec;
    Tensor *t;
    if (v->kind != VAL_TENSOR) continue;
    TRY(marked_input_spec(&s->marks, s->grad.input[k], whole_input(s, s->grad.input[k], inputs), &spec));
    TRY(dtensor_wrap(scope, spec, v->tensor, &t));
    TRY(dtensor_full(s->ctx, scope, t, &t));
    *v = val_tensor(t);
  }
  return OK;
}

/* The shards of the user inputs. */
static Status local_inputs(Session *s, const Value *inputs, int ninputs, Scope *scope, Arena *arena,
                           const Value **out) {
  const Exported *e = s->program;
  Value *local;
  *out = inputs;
  if (!s->on_mesh) return OK;
  TRY_NEW(local, arena_new_n(arena, Value, ninputs + 1));
  for (int i = 0, u = 0; i < e->graph->ninputs && u < ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    local[u] = inputs[u];
    if (inputs[u].kind == VAL_TENSOR) {
      const Spec *spec;
      Tensor *part;
      TRY(marked_input_spec(&s->marks, i, inputs[u].tensor, &spec));
      TRY(shard_of(&s->ctx->kern, scope, inputs[u].tensor, spec, &part));
      local[u] = val_tensor(part);
    }
    u++;
  }
  *out = local;
  return OK;
}

/* A program has outputs for the gradients that there are: puts VAL_NONE in the places of the others. */
static void leave_gaps(const Session *s, const Program *p, Value *outputs, int *noutputs) {
  const Exported *joint = p->graph;
  int at = joint->graph->noutputs - 1, from = *noutputs - 1, to = *noutputs - 1;
  for (int i = at; i >= s->program->graph->noutputs; i--) to--; /* the last output of the forward */
  to += s->grad.n;
  *noutputs = to + 1;
  for (int k = s->grad.n - 1; k >= 0; k--, to--) {
    const char *target = grad_output(s->program, &s->grad, s->program->graph->noutputs + k).target;
    bool there = at >= s->program->graph->noutputs && !strcmp(joint->outputs[at].target, target);
    outputs[to] = there ? outputs[from--] : val_none();
    at -= there;
  }
}

Status session_run(Session *s, const Value *inputs, int ninputs, Scope *scope, Arena *arena, Value **outputs,
                   int *noutputs) {
  Program *p;
  TRY_NEW(*outputs, arena_new_n(arena, Value, count_outputs(s)));
  TRY(session_prepare(s, inputs, ninputs, &p));
  s->last = p;
  if (p) {
    const Value *local;
    *noutputs = p->noutputs;
    p->progress = s->progress;
    p->guard = s->guard;
    TRY(local_inputs(s, inputs, ninputs, scope, arena, &local));
    TRY(program_run(s->ctx, p, local, scope, *outputs));
    if (session_gradients(s) && !s->trains) leave_gaps(s, p, *outputs, noutputs);
    return OK;
  }
  SymBindings b;
  Rebatch rebatch = {0};
  const Value *checked = inputs;
  if (s->any_batch) TRY(rebatch_find(s->program, inputs, ninputs, scope, arena, &rebatch, &checked));
  Status status = specialize_bind(s->program, checked, ninputs, &b);
  free(b.v);
  TRY(status);
  return interpret(s, &rebatch, inputs, scope, arena, *outputs, noutputs);
}
