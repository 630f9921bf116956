/* walk.c -- see walk.h. */
#include "graph/walk.h"

#include <stdlib.h>

#include "graph/resolve.h"
#include "graph/walk_inside.h"

Status status_at_node(Status s, const Node *n) {
  char source[256], module[256];
  node_source(n, source, sizeof source);
  node_module(n, module, sizeof module);
  return status_at(s, "node '%s' (%s)%s%s%s%s", n->nouts ? n->outs[0]->name : "-", n->target, *module ? " in " : "",
                   module, *source ? ", " : "", source);
}

static void count(void *ctx, Val **ref) { ((int *)ctx)[(*ref)->id]++; }

/* I1.  Views hold references of their own, so dropping a handle frees nothing early. */
static void release(void *ctx, Val **ref) {
  WalkState *s = ctx;
  int id = (*ref)->id;
  if (--s->uses[id] == 0 && s->env[id].kind == VAL_TENSOR && (*ref)->node) tensor_drop(s->env[id].tensor);
}

Status walk_set_outs(WalkState *s, const Node *n, const Value *outs, int nouts) {
  if (nouts < n->nouts)
    return fail(ERR_FAIL, "%s gave %d results, the program takes %d", n->target, nouts, n->nouts);
  for (int i = 0; i < n->nouts; i++) {
    Value *v = &s->env[n->outs[i]->id];
    *v = outs[i];
    /* A handle of its own: a composite op may have returned its argument's. */
    if (v->kind == VAL_TENSOR && !ctx_is_recording(s->w->ctx))
      TRY(tensor_handle(s->w->scope, v->tensor, &v->tensor));
  }
  if (s->w->after) s->w->after(s->w->arg, n, outs, nouts);
  return OK;
}

static Status call_op(WalkState *s, const Node *n) {
  Value *bound;
  bool known = false;
  if (s->w->recall) TRY(s->w->recall(s->w->arg, n, s->env, &known));
  if (known) return OK;
  TRY_NEW(bound, arena_new_n(s->w->arena, Value, n->op->schema.nparams));
  TRY(node_resolve(s->w->arena, s->env, n, bound));
  Call c = {.ctx = s->w->ctx,
            .op = n->op,
            .arg = bound,
            .scope = s->w->scope,
            .arena = s->w->arena,
            .shard = n->shard,
            .draws = n->draws};
  TRY(s->w->call ? s->w->call(s->w->arg, n, bound, &c) : op_dispatch(&c));
  return walk_set_outs(s, n, c.out, c.nout);
}

static Status call_node(WalkState *s, const Node *n) {
  if (s->w->before) TRY(s->w->before(s->w->arg, n));
  if (n->op) return call_op(s, n);
  HigherOrderFn *call = higher_order_find(n->target);
  return call ? call(s, n) : fail(ERR_FAIL, "'%s' cannot be run as it is", n->target);
}

static Status walk_nodes(WalkState *s, Value *outputs) {
  const Graph *g = s->g;
  bool eager = !ctx_is_recording(s->w->ctx);
  if (eager) graph_each_val((Graph *)(uintptr_t)g, count, s->uses);
  for (Node *n = g->first; n; n = n->next) {
    Status status = call_node(s, n);
    if (status) return status_at_node(status, n);
    if (eager) node_each_val(n, release, s);
  }
  for (int i = 0; i < g->noutputs; i++) TRY(arg_resolve(s->w->arena, s->env, &g->outputs[i], &outputs[i]));
  return OK;
}

Status walk_graph(const Walk *w, int64_t *unrolled, const Graph *g, const Value *inputs, Value *outputs) {
  WalkState s = {.w = w, .g = g, .unrolled = unrolled};
  s.env = calloc((size_t)g->nvals + 1, sizeof *s.env);
  s.uses = calloc((size_t)g->nvals + 1, sizeof *s.uses);
  Status status = s.env && s.uses ? OK : fail_oom();
  if (!status) {
    for (int i = 0; i < g->ninputs; i++) s.env[g->inputs[i]->id] = inputs[i];
    status = walk_nodes(&s, outputs);
  }
  free(s.env);
  free(s.uses);
  return status;
}

Status graph_walk(const Walk *w, const Graph *g, const Value *inputs, Value *outputs) {
  int64_t unrolled = 0;
  return walk_graph(w, &unrolled, g, inputs, outputs);
}
