/* specialize.c -- see specialize.h. */
#include "runtime/specialize.h"

#include <stdlib.h>
#include <string.h>

#include "dist/dispatch.h"
#include "dist/dist.h"
#include "graph/builder.h"
#include "graph/resolve.h"
#include "graph/walk.h"

typedef struct {
  GraphBuilder builder;
  const Exported *from;
  Exported *to;
  const MeshRank *rank; /* NULL: one rank */
} Specializer;

/* A handle of the new program on the same bytes. */
static Status copy_state(Specializer *s) {
  const Exported *from = s->from;
  Exported *to = s->to;
  to->nstate = from->nstate;
  TRY_NEW(to->state, arena_new_n(&to->arena, StateEntry, from->nstate));
  for (int i = 0; i < from->nstate; i++) {
    to->state[i] = from->state[i];
    Tensor *shard = s->rank ? s->rank->state[i] : NULL;
    if (from->state[i].tensor)
      TRY(tensor_alias(&to->scope, shard ? shard : from->state[i].tensor, &to->state[i].tensor));
  }
  return exported_index_state(to);
}

/* ---- on a mesh ----------------------------------------------------------------------------- */

Status want_apply(Ctx *ctx, Scope *scope, const Want *want, Tensor *t, Tensor **out) {
  const Spec *to;
  Placement place[MAX_AXES];
  *out = t;
  if (!t->spec || !want) return OK;
  memcpy(place, t->spec->place, sizeof place);
  for (int a = 0; a < t->spec->mesh->naxes; a++)
    if (want->axes >> a & 1) place[a] = want->place[a];
  TRY(spec_with(t->spec, place, &to));
  if (to == t->spec) return OK;
  Tensor *local;
  TRY(redistribute_local(ctx, t->spec, to, t->local, want->why, scope, &local));
  return dtensor_wrap(scope, to, local, out);
}

static const Anchor *anchor_of(const Marks *m, const Node *n, const Val *v) {
  const Anchor *a = n->nouts && n->outs[0]->id < m->nvals ? m->before[n->outs[0]->id] : NULL;
  while (a && a->val != v) a = a->next;
  return a;
}

/* Brings the arguments that are anchored to where the plan wants them. */
static Status anchor_arguments(Ctx *ctx, Scope *scope, const Marks *m, const Node *n, Value *bound) {
  for (int i = 0; i < n->nargs; i++) {
    const Anchor *a = n->args[i].kind == ARG_VAL ? anchor_of(m, n, n->args[i].val) : NULL;
    if (!a || bound[i].kind != VAL_TENSOR) continue;
    Tensor *t;
    TRY(want_apply(ctx, scope, &a->want, bound[i].tensor, &t));
    bound[i] = val_tensor(t);
  }
  return OK;
}

/* Products whose parts are rounded once, after they were added up. */
static const struct {
  const char *op, *wide;
} wide_ops[] = {
    {"aten.linear.default", "tess.linear_wide.default"}, {"aten.addmm.default", "tess.addmm_wide.default"},
    {"aten.mm.default", "tess.matmul_wide.default"},     {"aten.matmul.default", "tess.matmul_wide.default"},
    {"aten.bmm.default", "tess.matmul_wide.default"},
};

static const Op *wide_op(const Op *op, Dtype d) {
  for (size_t i = 0; (d == DT_F16 || d == DT_BF16) && i < sizeof wide_ops / sizeof *wide_ops; i++)
    if (!strcmp(op->schema.name, wide_ops[i].op)) return op_find(wide_ops[i].wide);
  return NULL;
}

/* A sum in halves: the parts stay f32 until they are one. */
static Status call_wide(const Op *wide, const Want *want, Dtype dtype, Call *c) {
  const Op *op = c->op;
  Tensor *t;
  c->op = wide;
  TRY(op_dispatch(c));
  c->op = op;
  TRY(want_apply(c->ctx, c->scope, want, out_tensor(c, 0), &t));
  TRY(OP(c, "aten.to.dtype", &t, val_tensor(t), val_dtype(dtype)));
  c->out[0] = val_tensor(t);
  return OK;
}

Status marks_call(const Marks *m, const Node *n, Value *bound, Call *c) {
  if (n->graph != m->graph) return op_dispatch(c);
  if (n->nouts && n->outs[0]->id < m->nvals && m->before[n->outs[0]->id])
    TRY(anchor_arguments(c->ctx, c->scope, m, n, bound));
  const Want *owed = n->nouts == 1 && n->outs[0]->id < m->nvals ? m->after[n->outs[0]->id] : NULL;
  const Op *wide = owed && owed->pays && !m->torch_ops ? wide_op(c->op, n->outs[0]->dtype) : NULL;
  if (wide) return call_wide(wide, owed, n->outs[0]->dtype, c);
  TRY(op_dispatch(c));
  for (int i = 0; i < n->nouts && i < c->nout; i++) {
    const Want *w = n->outs[i]->id < m->nvals ? m->after[n->outs[i]->id] : NULL;
    Tensor *t = w ? out_tensor(c, i) : NULL;
    if (!t) continue;
    TRY(want_apply(c->ctx, c->scope, w, t, &t));
    c->out[i] = val_tensor(t);
  }
  return OK;
}

static Status call_node(void *arg, const Node *n, Value *bound, Call *c) {
  const Specializer *s = arg;
  const WalkWatch *w = s->rank->watch;
  if (w) TRY(w->before(w->arg, n));
  TRY(marks_call(s->rank->marks, n, bound, c));
  return w ? w->after(w->arg, n, c->out, c->nout, s->to) : OK;
}

static Status input_spec(const Specializer *s, int i, const Tensor *whole, const Spec **out) {
  const Marks *m = s->rank->marks;
  Placement place[MAX_AXES];
  marks_input_places(m, i, whole->ndim ? whole->size[0] : 0, place);
  return spec_new(m->mesh, whole->dtype, whole->ndim, whole->size, NULL, place, out);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static Status add_input(Specializer *s, int i, const Value *user, Value *out) {
  const Val *v = s->from->graph->inputs[i];
  const InputSpec *spec = &s->from->inputs[i];
  Val *w;
  TRY(graph_add_input(s->to->graph, v->name, v->type, &w));
  s->to->inputs[i] = *spec;
  if (spec->kind == IN_CONSTANT) return arg_resolve(&s->to->arena, NULL, &spec->constant, out);
  if (spec->kind == IN_TOKEN) return *out = val_none(), OK;
  Tensor *t = NULL;
  const Spec *shard = NULL;
  if (spec->kind == IN_USER) {
    if (v->type != TY_TENSOR) {
      *out = w->number = *user;
      return OK;
    }
    if (s->rank) TRY(input_spec(s, i, user->tensor, &shard));
    TRY(tensor_meta(&s->to->scope, user->tensor->dtype, user->tensor->ndim,
                    shard ? shard->local : user->tensor->size, &t));
    TRY(tensor_reserve(t));
  } else {
    const StateEntry *e = exported_state(s->to, spec->target);
    if (!e || !e->tensor)
      return status_hint(fail(ERR_FILE, "%s '%s' has no data", input_kind_name(spec->kind), spec->target),
                         "give the weights (--weights FILE)");
    if (s->rank) TRY(input_spec(s, i, exported_state(s->from, spec->target)->tensor, &shard));
    TRY(tensor_alias(&s->to->scope, e->tensor, &t));
    w->constant = tensor_data(t) && !exported_is_mutated(s->from, spec->target);
  }
  TRY(val_set_tensor(s->to->graph, w, t));
  t->tag = w;
  if (shard) TRY(dtensor_wrap(&s->to->scope, shard, t, &t));
  *out = val_tensor(t);
  return OK;
}

static void before_node(void *arg, const Node *n) { ((Specializer *)arg)->builder.origin = n; }

static Status val_of(void *ctx, Tensor *t, Val **out) { return builder_val(ctx, t, out); }

static Status specialize_graph(Specializer *s, const Value *user) {
  const Graph *g = s->from->graph;
  Arena *arena = &s->to->arena;
  const WalkWatch *watch = s->rank ? s->rank->watch : NULL;
  Value *inputs, *outputs;
  TRY_NEW(inputs, arena_new_n(arena, Value, g->ninputs));
  TRY_NEW(outputs, arena_new_n(arena, Value, g->noutputs));
  TRY_NEW(s->to->inputs, arena_new_n(arena, InputSpec, g->ninputs));
  TRY(copy_state(s));
  for (int i = 0, u = 0; i < g->ninputs; i++) {
    TRY(add_input(s, i, &user[u], &inputs[i]));
    if (watch) TRY(watch->input(watch->arg, i, &inputs[i]));
    u += s->from->inputs[i].kind == IN_USER;
  }
  Walk w = {.ctx = s->builder.ctx, .scope = &s->to->scope, .arena = arena, .before = before_node, .arg = s};
  if (s->rank) w.call = call_node;
  TRY(graph_walk(&w, g, inputs, outputs));
  TRY_NEW(s->to->outputs, arena_new_n(arena, OutputSpec, g->noutputs));
  for (int i = 0; i < g->noutputs; i++) {
    Arg a;
    if (outputs[i].kind == VAL_TENSOR && outputs[i].tensor->spec) {
      Tensor *t;
      TRY(want_apply(s->builder.ctx, &s->to->scope, &s->rank->marks->output[i], outputs[i].tensor, &t));
      if (watch) TRY(watch->output(watch->arg, i, t, s->to));
      outputs[i] = val_tensor(t->local);
    }
    TRY(value_to_arg(arena, &outputs[i], val_of, &s->builder, &a));
    TRY(graph_add_output(s->to->graph, a));
    s->to->outputs[i] = s->from->outputs[i];
  }
  return OK;
}

static Status specialize_recorded(Specializer *s, const Value *user) {
  Dist *d = s->rank ? s->rank->marks->mesh->dist : NULL;
  struct Recording *outer = NULL;
  if (!d) return specialize_graph(s, user);
  bool replicates = d->implicit_replication;
  bool parts = d->keep_sharded;
  d->keep_sharded = true;
  d->implicit_replication = true; /* what the program makes for itself is alike on all ranks */
  Status status = dist_record(d, &outer);
  if (!status) status = specialize_graph(s, user);
  dist_record_end(d, outer);
  d->implicit_replication = replicates;
  d->keep_sharded = parts;
  return status;
}

Status specialize(Ctx *ctx, const Exported *e, const MeshRank *rank, const Value *user, int ninputs,
                  Exported **out) {
  SymBindings bindings;
  Status status = specialize_bind(e, user, ninputs, &bindings);
  free(bindings.v);
  TRY(status);
  Specializer s = {.from = e, .rank = rank};
  TRY(exported_new(e->name, &s.to));
  s.to->torch_version = e->torch_version;
  s.to->dialect = e->dialect;
  s.to->in_spec = e->in_spec;
  s.to->out_spec = e->out_spec;
  s.to->namedtuples = e->namedtuples;
  s.to->arg_names = e->arg_names;
  s.to->narg_names = e->narg_names;
  builder_init(&s.builder, ctx, s.to);
  if (rank) s.builder.dry_limit = rank->dry_limit;
  if (rank && rank->faithful) s.builder.faithful = true, s.builder.fold = false;
  Handler *outer = ctx_set_handler(ctx, LEVEL_EMIT, &s.builder.handler);
  status = specialize_recorded(&s, user);
  ctx_set_handler(ctx, LEVEL_EMIT, outer);
  if (status) exported_free(s.to);
  else *out = s.to;
  return status;
}
