/* specialize.c -- see specialize.h. */
#include "runtime/specialize.h"

#include <stdlib.h>
#include <string.h>

#include "graph/builder.h"
#include "graph/resolve.h"
#include "graph/walk.h"

typedef struct {
  GraphBuilder builder;
  const Exported *from;
  Exported *to;
} Specializer;

/* A handle of the new program on the same bytes. */
static Status copy_state(Specializer *s) {
  const Exported *from = s->from;
  Exported *to = s->to;
  to->nstate = from->nstate;
  TRY_NEW(to->state, arena_new_n(&to->arena, StateEntry, from->nstate));
  for (int i = 0; i < from->nstate; i++) {
    to->state[i] = from->state[i];
    if (from->state[i].tensor) TRY(tensor_alias(&to->scope, from->state[i].tensor, &to->state[i].tensor));
  }
  return OK;
}

static Status add_input(Specializer *s, int i, const Value *user, Value *out) {
  const Val *v = s->from->graph->inputs[i];
  const InputSpec *spec = &s->from->inputs[i];
  Val *w;
  TRY(graph_add_input(s->to->graph, v->name, v->type, &w));
  s->to->inputs[i] = *spec;
  if (spec->kind == IN_CONSTANT) return arg_resolve(&s->to->arena, NULL, &spec->constant, out);
  if (spec->kind == IN_TOKEN) return *out = val_none(), OK;
  Tensor *t = NULL;
  if (spec->kind == IN_USER) {
    if (v->type != TY_TENSOR) {
      *out = w->number = *user;
      return OK;
    }
    TRY(tensor_meta(&s->to->scope, user->tensor->dtype, user->tensor->ndim, user->tensor->size, &t));
    TRY(tensor_reserve(t));
  } else {
    const StateEntry *e = exported_state(s->to, spec->target);
    if (!e || !e->tensor) return status_hint(fail(ERR_FILE, "%s '%s' has no data", input_kind_name(spec->kind), spec->target), "give the weights (--weights FILE)");
    TRY(tensor_alias(&s->to->scope, e->tensor, &t));
    w->constant = tensor_data(t) && !exported_is_mutated(s->from, spec->target);
  }
  TRY(val_set_tensor(s->to->graph, w, t));
  t->tag = w;
  *out = val_tensor(t);
  return OK;
}

static void before_node(void *arg, const Node *n) { ((Specializer *)arg)->builder.origin = n; }

static Status val_of(void *ctx, Tensor *t, Val **out) { return builder_val(ctx, t, out); }

static Status specialize_graph(Specializer *s, const Value *user) {
  const Graph *g = s->from->graph;
  Arena *arena = &s->to->arena;
  Value *inputs, *outputs;
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs));
  TRY_NEW(outputs, arena_new_n(arena, Value, g->noutputs));
  TRY_NEW(s->to->inputs, arena_new_n(arena, InputSpec, g->ninputs));
  TRY(copy_state(s));
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    TRY(add_input(s, i, &user[u], &inputs[i]));
    u += s->from->inputs[i].kind == IN_USER;
  }
  Walk w = {.ctx = s->builder.ctx, .scope = &s->to->scope, .arena = arena, .before = before_node, .arg = s};
  TRY(graph_walk(&w, g, inputs, outputs));
  TRY_NEW(s->to->outputs, arena_new_n(arena, OutputSpec, g->noutputs));
  for (int i = 0; i < g->noutputs; i++) {
    Arg a;
    TRY(value_to_arg(arena, &outputs[i], val_of, &s->builder, &a));
    TRY(graph_add_output(s->to->graph, a));
    s->to->outputs[i] = s->from->outputs[i];
  }
  return OK;
}

Status specialize(Ctx *ctx, const Exported *e, const Value *user, int ninputs, Exported **out) {
  SymBindings bindings;
  Status status = specialize_bind(e, user, ninputs, &bindings);
  free(bindings.v);
  TRY(status);
  Specializer s = {.from = e};
  TRY(exported_new(e->name, &s.to));
  s.to->torch_version = e->torch_version;
  s.to->dialect = e->dialect;
  builder_init(&s.builder, ctx, s.to);
  Emitter *outer = ctx->emitter;
  ctx->emitter = &s.builder.emitter;
  status = specialize_graph(&s, user);
  ctx->emitter = outer;
  if (status) exported_free(s.to);
  else *out = s.to;
  return status;
}
