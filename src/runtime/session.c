/* session.c -- see session.h. */
#include "runtime/session.h"

#include <stdlib.h>
#include <string.h>

#include "comm/groups.h"
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "graph/resolve.h"
#include "graph/walk.h"
#include "kernels/copy.h"
#include "passes/pass.h"
#include "runtime/auto_plan.h"
#include "runtime/shards.h"

enum { MAX_PROGRAMS = 16 };

const char session_passes_once[] = "inline,functionalize,dce,cse";
const char session_passes_specialized[] = "cse,recompose,cse,dce,fuse_epilogue,fuse_pointwise";

typedef struct {
  Program *program;
  int64_t *key; /* ndim and sizes of every input; numbers as they are */
  int nkey;
  int64_t last_used;
} Entry;

struct Session {
  Ctx *ctx;
  Exported *program;
  Marks *marks;   /* NULL: one rank */
  Tensor **shard; /* of the state, with marks: parallel to program->state */
  Entry entries[MAX_PROGRAMS];
  int nentries;
  int64_t calls;
  bool interpret, profile;
  Progress *progress;
  NodeTimes times;
  NodeWatchFn *watch;
  void *watch_arg;
};

/* ---- opening ------------------------------------------------------------------------ */

/* I1.  What is left on the mapped records never changes. */
static Status own_buffers(Session *session) {
  Exported *e = session->program;
  for (int i = 0; i < e->nstate; i++) {
    StateEntry *s = &e->state[i];
    Tensor **t = session->shard ? &session->shard[i] : &s->tensor, *copy;
    if (!*t) continue;
    if (!exported_is_mutated(e, s->fqn)) {
      if ((*t)->storage) (*t)->storage->frozen = true;
      continue;
    }
    TRY(tensor_new(&e->scope, (*t)->dtype, (*t)->ndim, (*t)->size, &copy));
    kernel_copy(&session->ctx->kern, tensor_view(copy), tensor_view(*t));
    *t = copy;
  }
  return OK;
}

static Status prepare(Session *s) {
  TRY(graph_verify(s->program));
  TRY(graph_check_ops(s->program));
  return pass_run_list(s->program, session_passes_once, s->ctx, NULL);
}

/* mesh NULL: one rank. */
static Status open_on(Ctx *ctx, Exported *e, Mesh *mesh, const PlanFile *plan, Session **out) {
  Session *s = calloc(1, sizeof *s);
  if (!s) {
    exported_free(e);
    return fail_oom();
  }
  s->ctx = ctx;
  s->program = e;
  Status status = prepare(s);
  if (!status && mesh) status = mark_with_plan(e, mesh, plan, NULL, &s->marks);
  if (!status && mesh) status = shards_of_state(&ctx->kern, e, s->marks, &e->scope, &e->arena, &s->shard);
  if (!status) status = own_buffers(s);
  if (status) session_free(s);
  else *out = s;
  return status;
}

Status session_open(Ctx *ctx, Exported *e, Session **out) { return open_on(ctx, e, NULL, NULL, out); }
Status session_open_on_mesh(Ctx *ctx, Exported *e, Mesh *mesh, const PlanFile *plan, Session **out) {
  return open_on(ctx, e, mesh, plan, out);
}

const Marks *session_marks(const Session *s) { return s->marks; }
Ctx *session_ctx(const Session *s) { return s->ctx; }

static void entry_free(Entry *e) {
  program_free(e->program);
  free(e->key);
}

void session_free(Session *s) {
  if (!s) return;
  for (int i = 0; i < s->nentries; i++) entry_free(&s->entries[i]);
  node_times_free(&s->times);
  marks_free(s->marks);
  exported_free(s->program);
  free(s);
}

const Exported *session_program(const Session *s) { return s->program; }
void session_force_interpreter(Session *s) { s->interpret = true; }
bool session_is_interpreted(const Session *s) { return s->interpret; }
void session_set_profile(Session *s, bool on) { s->profile = on; }

void session_forget_times(Session *s) {
  for (int i = 0; i < s->nentries; i++) program_forget_times(s->entries[i].program);
  node_times_free(&s->times);
}

const NodeTimes *session_node_times(const Session *s) { return &s->times; }
void session_set_progress(Session *s, Progress *progress) { s->progress = progress; }

void session_watch_nodes(Session *s, NodeWatchFn *fn, void *arg) {
  s->watch = fn;
  s->watch_arg = arg;
}

/* ---- one program per set of sizes ---------------------------------------------------- */

static Status make_key(const Value *inputs, int n, int64_t **key, int *nkey) {
  int len = 0;
  for (int i = 0; i < n; i++) len += inputs[i].kind == VAL_TENSOR ? inputs[i].tensor->ndim + 2 : 2;
  TRY_NEW(*key, malloc(((size_t)len + 1) * sizeof **key));
  int64_t *k = *key;
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

static Status build(Session *s, const Value *inputs, int ninputs, Program **out) {
  Exported *special;
  MeshRank rank = {.marks = s->marks, .state = s->shard};
  TRY(specialize(s->ctx, s->program, s->marks ? &rank : NULL, inputs, ninputs, &special));
  Status status = pass_run_list(special, session_passes_specialized, s->ctx, NULL);
  if (status) {
    exported_free(special);
    return status;
  }
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

Status session_prepare(Session *s, const Value *inputs, int ninputs, Program **out) {
  *out = NULL;
  if (s->interpret) return OK;
  int64_t *key = NULL;
  int nkey = 0;
  s->calls++;
  TRY(make_key(inputs, ninputs, &key, &nkey));
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
    return OK;
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

static void before_node(void *arg, const Node *n) {
  Session *s = arg;
  progress_add(s->progress, 1);
  if (s->profile) node_times_next(&s->times, n);
}

static Status interpreted_call(void *arg, const Node *n, Value *bound, Call *c) {
  const Session *s = arg;
  TRY(s->marks ? marks_call(s->marks, n, bound, c) : op_dispatch(c));
  return s->watch ? s->watch(s->watch_arg, n, c->out, c->nout) : OK;
}

/* Input i of the graph, of which this rank has the whole (or its shard: local given). */
static Status wrap_input(Session *s, int i, Tensor *whole, Tensor *local, Scope *scope, Value *out) {
  const Spec *spec;
  *out = val_tensor(whole);
  if (!s->marks) return OK;
  Placement place[MAX_AXES];
  marks_input_places(s->marks, i, whole->ndim ? whole->size[0] : 0, place);
  TRY(spec_new(s->marks->mesh, whole->dtype, whole->ndim, whole->size, NULL, place, &spec));
  if (!local) TRY(shard_of(&s->ctx->kern, scope, whole, spec, &local));
  TRY(dtensor_wrap(scope, spec, local, &whole));
  *out = val_tensor(whole);
  return OK;
}

/* An output as the caller gets it. */
static Status unwrap_output(Session *s, int i, Scope *scope, Value *v) {
  if (v->kind != VAL_TENSOR || !v->tensor->spec) return OK;
  Tensor *t;
  TRY(want_apply(s->ctx, scope, &s->marks->output[i], v->tensor, &t));
  *v = val_tensor(t->local);
  return OK;
}

static Status interpret(Session *s, const Value *user, Scope *scope, Arena *arena, Value *outputs, int *noutputs) {
  const Exported *e = s->program;
  const Graph *g = e->graph;
  Value *inputs, *all;
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs));
  TRY_NEW(all, arena_new_n(arena, Value, g->noutputs));
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    const InputSpec *spec = &e->inputs[i];
    const StateEntry *state = spec->target ? exported_state(e, spec->target) : NULL;
    if (spec->kind == IN_USER && user[u].kind == VAL_TENSOR)
      TRY(wrap_input(s, i, user[u++].tensor, NULL, scope, &inputs[i]));
    else if (spec->kind == IN_USER) inputs[i] = user[u++];
    else if (spec->kind == IN_CONSTANT) TRY(arg_resolve(arena, NULL, &spec->constant, &inputs[i]));
    else if (state && state->tensor)
      TRY(wrap_input(s, i, state->tensor, s->shard ? s->shard[state - e->state] : NULL, scope, &inputs[i]));
    else if (spec->kind != IN_TOKEN)
      return status_hint(fail(ERR_FILE, "%s '%s' has no data", input_kind_name(spec->kind), spec->target),
                         "give the weights (--weights FILE)");
  }
  Walk w = {.ctx = s->ctx, .scope = scope, .arena = arena, .before = before_node, .arg = s};
  if (s->marks || s->watch) w.call = interpreted_call;
  if (s->profile) TRY(node_times_begin(&s->times, s->program->graph));
  Status walked = graph_walk(&w, g, inputs, all);
  TRY(s->ctx->groups ? groups_end(s->ctx->groups, walked) : walked);
  if (s->profile) node_times_next(&s->times, NULL);
  for (int i = 0; i < g->noutputs; i++) TRY(unwrap_output(s, i, scope, &all[i]));
  *noutputs = 0;
  for (int i = 0; i < g->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    if (!output_is_returned(k)) continue;
    Value *out = &outputs[(*noutputs)++];
    *out = all[i];
    if (out->kind != VAL_TENSOR) continue; /* a copy: it may share memory with a buffer */
    Tensor *copy;
    TRY(tensor_new(scope, out->tensor->dtype, out->tensor->ndim, out->tensor->size, &copy));
    kernel_copy(&s->ctx->kern, tensor_view(copy), tensor_view(out->tensor));
    *out = val_tensor(copy);
  }
  for (int i = 0; i < g->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    Tensor *to = NULL;
    if (k == OUT_BUFFER_MUTATION || k == OUT_PARAMETER_MUTATION) {
      const StateEntry *state = exported_state(e, e->outputs[i].target);
      to = s->shard ? s->shard[state - e->state] : state->tensor;
    }
    for (int j = 0; k == OUT_USER_INPUT_MUTATION && j < g->ninputs; j++) {
      if (!strcmp(g->inputs[j]->name, e->outputs[i].target))
        to = inputs[j].tensor->spec ? inputs[j].tensor->local : inputs[j].tensor;
    }
    if (to) kernel_copy(&s->ctx->kern, tensor_view(to), tensor_view(all[i].tensor));
  }
  return OK;
}

/* The shards of the user inputs. */
static Status local_inputs(Session *s, const Value *inputs, int ninputs, Scope *scope, Arena *arena,
                           const Value **out) {
  const Exported *e = s->program;
  Value *local;
  *out = inputs;
  if (!s->marks) return OK;
  TRY_NEW(local, arena_new_n(arena, Value, ninputs + 1));
  for (int i = 0, u = 0; i < e->graph->ninputs && u < ninputs; i++) {
    if (e->inputs[i].kind != IN_USER) continue;
    local[u] = inputs[u];
    if (inputs[u].kind == VAL_TENSOR) {
      TRY(wrap_input(s, i, inputs[u].tensor, NULL, scope, &local[u]));
      local[u] = val_tensor(local[u].tensor->local);
    }
    u++;
  }
  *out = local;
  return OK;
}

static Status interpret_on_mesh(Session *s, const Value *inputs, Scope *scope, Arena *arena, Value *outputs,
                                int *noutputs) {
  Dist *d = s->marks ? s->marks->mesh->dist : NULL;
  if (!d) return interpret(s, inputs, scope, arena, outputs, noutputs);
  bool replicates = d->implicit_replication, parts = d->keep_sharded;
  d->implicit_replication = d->keep_sharded = true;
  Status status = interpret(s, inputs, scope, arena, outputs, noutputs);
  d->implicit_replication = replicates;
  d->keep_sharded = parts;
  return status;
}

Status session_run(Session *s, const Value *inputs, int ninputs, Scope *scope, Arena *arena, Value **outputs,
                   int *noutputs) {
  Program *p;
  TRY_NEW(*outputs, arena_new_n(arena, Value, s->program->graph->noutputs));
  TRY(session_prepare(s, inputs, ninputs, &p));
  if (p) {
    const Value *local;
    *noutputs = p->noutputs;
    p->progress = s->progress;
    TRY(local_inputs(s, inputs, ninputs, scope, arena, &local));
    return program_run(s->ctx, p, local, scope, *outputs);
  }
  SymBindings b;
  Status status = specialize_bind(s->program, inputs, ninputs, &b);
  free(b.v);
  TRY(status);
  return interpret_on_mesh(s, inputs, scope, arena, *outputs, noutputs);
}
