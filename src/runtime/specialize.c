/* specialize.c -- see specialize.h. */
#include "runtime/specialize.h"

#include <stdlib.h>

#include "graph/builder.h"
#include "graph/resolve.h"
#include "runtime/program_walk.h"

typedef struct {
  GraphBuilder builder;
  const Exported *from;
  Exported *to;
  const WalkWatch *watch;  /* NULL: nobody */
  const GradRequest *grad; /* NULL: none */
  const Update *trains;
} Specializer;

/* Handles of the new program on the same bytes. */
static Status copy_state(Specializer *s, Tensor *const *held) {
  const Exported *from = s->from;
  Exported *to = s->to;
  to->nstate = from->nstate;
  TRY_NEW(to->state, arena_new_n(&to->arena, StateEntry, from->nstate));
  for (int i = 0; i < from->nstate; i++) {
    to->state[i] = from->state[i];
    Tensor *mine = held && held[i] ? held[i] : from->state[i].tensor;
    if (mine) TRY(tensor_alias(&to->scope, mine, &to->state[i].tensor));
  }
  return exported_index_state(to);
}

/* ---- the walk ------------------------------------------------------------------------------------ */

static bool is_written(const Specializer *s, const char *fqn) {
  return exported_is_mutated(s->from, fqn) || exported_state(s->from, fqn)->is_filled ||
         (s->trains && update_writes(s->trains, fqn));
}

/* A graph input of the new program and its tensor: of the state an alias, else sizes without data. */
static Status new_input(void *arg, int i, Tensor *whole, Tensor *held, const Spec *spec, Tensor **out) {
  Specializer *s = arg;
  Val *v = s->to->graph->inputs[i];
  if (held) {
    TRY(tensor_alias(&s->to->scope, held, out));
    v->constant = tensor_data(*out) && !is_written(s, s->from->inputs[i].target);
  } else {
    TRY(tensor_meta(&s->to->scope, whole->dtype, whole->ndim, spec ? spec->local : whole->size, out));
    TRY(tensor_reserve(*out));
  }
  TRY(val_set_tensor(s->to->graph, v, *out));
  (*out)->tag = v;
  return OK;
}

static Status on_bound(void *arg, int i, const Value *v) {
  Specializer *s = arg;
  Val *input = s->to->graph->inputs[i];
  if (s->from->inputs[i].kind == IN_USER && v->kind != VAL_TENSOR) input->number = *v;
  return s->watch ? s->watch->input(s->watch->arg, i, v) : OK;
}

static Status on_before(void *arg, const Node *n) {
  Specializer *s = arg;
  s->builder.origin = n; /* what is recorded takes its metadata */
  return s->watch && n->op ? s->watch->before(s->watch->arg, n) : OK;
}

static Status on_visits(void *arg, const Node *n) {
  Specializer *s = arg;
  if (n) s->builder.origin = n;
  return s->watch && s->watch->visits ? s->watch->visits(s->watch->arg, n, s->to) : OK;
}

static Status on_enters(void *arg, Stage stage) {
  Specializer *s = arg;
  s->builder.stage = stage;
  if (stage == STAGE_UPDATE) s->builder.origin = NULL; /* it belongs to no node of the program */
  return OK;
}

static Status on_gradient(void *arg, int k) {
  Specializer *s = arg;
  return s->watch && s->watch->gradient ? s->watch->gradient(s->watch->arg, k, s->to) : OK;
}

static Status on_after(void *arg, const Node *n, const Value *outs, int nouts) {
  Specializer *s = arg;
  return s->watch ? s->watch->after(s->watch->arg, n, outs, nouts, s->to) : OK;
}

static Status on_placed(void *arg, int i, const Tensor *t) {
  Specializer *s = arg;
  return s->watch ? s->watch->output(s->watch->arg, i, t, s->to) : OK;
}

static Status add_inputs(Specializer *s) {
  const Graph *g = s->from->graph;
  TRY_NEW(s->to->inputs, arena_new_n(&s->to->arena, InputSpec, g->ninputs));
  for (int i = 0; i < g->ninputs; i++) {
    Val *v;
    TRY(graph_add_input(s->to->graph, g->inputs[i]->name, g->inputs[i]->type, &v));
    s->to->inputs[i] = s->from->inputs[i];
  }
  return OK;
}

static Status val_of(void *ctx, Tensor *t, Val **out) { return builder_val(ctx, t, out); }

static Status add_output(Specializer *s, const Value *v, OutputSpec spec) {
  Arg a;
  TRY(value_to_arg(&s->to->arena, v, val_of, &s->builder, &a));
  s->to->outputs[s->to->graph->noutputs] = spec;
  return graph_add_output(s->to->graph, a);
}

/* Of a training step, what is written to comes first, as torch.export has it. */
static Status add_outputs(Specializer *s, const Value *outputs) {
  const GradRequest *grad = s->grad;
  int forward = s->from->graph->noutputs, n = forward + grad_outputs(grad);
  TRY_NEW(s->to->outputs, arena_new_n(&s->to->arena, OutputSpec, n));
  for (int turn = grad && grad->update ? 0 : 1; turn < 2; turn++) {
    for (int i = 0; i < n; i++) {
      OutputSpec spec = grad ? grad_output(s->from, grad, i) : s->from->outputs[i];
      bool early = grad && grad->update && output_is_mutation(spec.kind);
      if (early != (turn == 0) || (i >= forward && outputs[i].kind == VAL_NONE)) continue; /* no gradient */
      TRY(add_output(s, &outputs[i], spec));
    }
  }
  return OK;
}

static Status record(Specializer *s, const Specialize *how, Rebatch *rebatch, const Value *user) {
  const Graph *g = s->from->graph;
  Value *inputs, *outputs;
  TRY_NEW(inputs, arena_new_n(&s->to->arena, Value, g->ninputs));
  TRY_NEW(outputs, arena_new_n(&s->to->arena, Value, g->noutputs + grad_outputs(how->grad)));
  TRY(copy_state(s, how->state));
  TRY(add_inputs(s));
  ProgramWalk w = {.ctx = s->builder.ctx,
                   .program = s->from,
                   .state = how->state,
                   .marks = how->marks,
                   .grad = how->grad,
                   .rebatch = rebatch->from ? rebatch : NULL,
                   .scope = &s->to->scope,
                   .arena = &s->to->arena,
                   .arg = s,
                   .input = new_input,
                   .bound = on_bound,
                   .before = on_before,
                   .after = on_after,
                   .placed = on_placed,
                   .visits = on_visits,
                   .gradient = on_gradient,
                   .enters = on_enters};
  TRY(program_walk(&w, user, inputs, outputs));
  return add_outputs(s, outputs);
}

static void copy_texts(Exported *to, const Exported *from) {
  to->torch_version = from->torch_version;
  to->dialect = from->dialect;
  to->in_spec = from->in_spec;
  to->out_spec = from->out_spec;
  to->namedtuples = from->namedtuples;
  to->arg_names = from->arg_names;
  to->narg_names = from->narg_names;
}

/* rebatch: what is to be known of the batch; ERR_FILE if the inputs do not fit the program. */
static Status check_inputs(const Exported *e, const Specialize *how, const Value *user, int n, Specializer *s,
                           Rebatch *rebatch) {
  const Value *checked = user;
  SymBindings bindings;
  *rebatch = (Rebatch){0};
  if (how->any_batch) TRY(rebatch_find(e, user, n, &s->to->scope, &s->to->arena, rebatch, &checked));
  Status status = specialize_bind(e, checked, n, &bindings);
  free(bindings.v);
  return status;
}

static Status specialize_checked(Specializer *s, Ctx *ctx, const Specialize *how, Rebatch *rebatch,
                                 const Value *user) {
  copy_texts(s->to, s->from);
  builder_init(&s->builder, ctx, s->to);
  s->builder.dry_limit = how->dry_limit;
  s->builder.faithful = how->faithful;
  s->builder.fold = !how->faithful;
  Handler *outer = ctx_set_handler(ctx, LEVEL_EMIT, &s->builder.handler);
  Status status = record(s, how, rebatch, user);
  ctx_set_handler(ctx, LEVEL_EMIT, outer);
  builder_free(&s->builder);
  return status;
}

Status specialize(Ctx *ctx, const Exported *e, const Specialize *how, const Value *user, int ninputs,
                  Exported **out) {
  Specializer s = {.from = e, .watch = how->watch, .grad = how->grad, .trains = how->trains};
  Rebatch rebatch;
  TRY(exported_new(e->name, &s.to));
  Status status = check_inputs(e, how, user, ninputs, &s, &rebatch);
  if (!status) status = specialize_checked(&s, ctx, how, &rebatch, user);
  if (status) exported_free(s.to);
  else *out = s.to;
  return status;
}
