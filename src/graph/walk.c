/* walk.c -- see walk.h. */
#include "graph/walk.h"

#include <stdlib.h>
#include <string.h>

#include "graph/resolve.h"

Status status_at_node(Status s, const Node *n) {
  char source[256], module[256];
  node_source(n, source, sizeof source);
  node_module(n, module, sizeof module);
  return status_at(s, "node '%s' (%s)%s%s%s%s", n->nouts ? n->outs[0]->name : "-", n->target, *module ? " in " : "",
                   module, *source ? ", " : "", source);
}

typedef struct {
  const Walk *w;
  const Graph *g;
  Value *env; /* by Val.id */
  int *uses;  /* uses still to come, by Val.id */
} State;

static void count(void *ctx, Val **ref) { ((int *)ctx)[(*ref)->id]++; }

/* I1.  Views hold references of their own, so dropping a handle frees nothing early. */
static void release(void *ctx, Val **ref) {
  State *s = ctx;
  int id = (*ref)->id;
  if (--s->uses[id] == 0 && s->env[id].kind == VAL_TENSOR && (*ref)->node) tensor_drop(s->env[id].tensor);
}

static Status set_outs(State *s, const Node *n, const Value *outs, int nouts) {
  if (nouts < n->nouts)
    return fail(ERR_FAIL, "%s gave %d results, the program takes %d", n->target, nouts, n->nouts);
  for (int i = 0; i < n->nouts; i++) {
    Value *v = &s->env[n->outs[i]->id];
    *v = outs[i];
    /* A handle of its own: a composite op may have returned its argument's. */
    if (v->kind == VAL_TENSOR && !ctx_is_recording(s->w->ctx))
      TRY(tensor_alias(s->w->scope, v->tensor, &v->tensor));
  }
  if (s->w->after) s->w->after(s->w->arg, n, outs, nouts);
  return OK;
}

static Status call_op(State *s, const Node *n) {
  Value *bound;
  TRY_NEW(bound, arena_new_n(s->w->arena, Value, n->op->schema.nparams));
  TRY(node_resolve(s->w->arena, s->env, n, bound));
  Call c = {.ctx = s->w->ctx, .op = n->op, .arg = bound, .scope = s->w->scope, .arena = s->w->arena};
  TRY(s->w->call ? s->w->call(s->w->arg, n, bound, &c) : op_dispatch(&c));
  return set_outs(s, n, c.out, c.nout);
}

/* ---- higher-order ops ------------------------------------------------------------- */

static Status call_graph(State *s, const Node *n, const Graph *sub, const Value *args, int nargs) {
  if (nargs != sub->ninputs)
    return fail(ERR_FILE, "%s passes %d arguments to a sub-graph of %d inputs", n->target, nargs, sub->ninputs);
  Value *outs;
  TRY_NEW(outs, arena_new_n(s->w->arena, Value, sub->noutputs));
  TRY(graph_walk(s->w, sub, args, outs));
  return set_outs(s, n, outs, sub->noutputs);
}

/* A run of plain arguments, or one list of them. */
static Status spread_args(State *s, const Node *n, int from, Value **out, int *nout) {
  const Arg *args = n->args + from;
  int nargs = n->nargs - from;
  if (nargs == 1 && args->kind == ARG_LIST) nargs = args->n, args = args->list;
  TRY_NEW(*out, arena_new_n(s->w->arena, Value, nargs));
  for (int i = 0; i < nargs; i++) TRY(arg_resolve(s->w->arena, s->env, &args[i], &(*out)[i]));
  *nout = nargs;
  return OK;
}

/* The one element of a tensor that lies on a mesh. */
static Status whole_number(State *s, Value *v) {
  Call c = {.ctx = s->w->ctx,
            .op = op_find("aten._local_scalar_dense.default"),
            .arg = (Value[]){*v},
            .scope = s->w->scope,
            .arena = s->w->arena};
  TRY(op_dispatch(&c));
  *v = c.out[0];
  return OK;
}

/* cond(predicate, true graph, false graph, [inputs]) */
static Status call_cond(State *s, const Node *n) {
  Value pred, *args;
  int nargs;
  if (n->nargs != 4 || n->args[1].kind != ARG_GRAPH || n->args[2].kind != ARG_GRAPH)
    return fail(ERR_FILE, "cond without its two sub-graphs");
  TRY(arg_resolve(s->w->arena, s->env, &n->args[0], &pred));
  if (pred.kind == VAL_TENSOR && pred.tensor->spec) TRY(whole_number(s, &pred));
  if (pred.kind == VAL_TENSOR) {
    const void *data = tensor_data(pred.tensor);
    if (!data || tensor_numel(pred.tensor) != 1) return fail(ERR_DYNAMIC, "cond: the predicate is not known yet");
    pred = val_load(pred.tensor->dtype, data);
  }
  TRY(spread_args(s, n, 3, &args, &nargs));
  return call_graph(s, n, n->args[val_as_float(&pred) != 0 ? 1 : 2].graph, args, nargs);
}

static Status call_node(State *s, const Node *n) {
  if (s->w->before) TRY(s->w->before(s->w->arg, n));
  if (n->op) return call_op(s, n);
  if (node_is(n, "higher_order.cond")) return call_cond(s, n);
  return fail(ERR_FAIL, "'%s' cannot be run as it is", n->target);
}

static Status walk_nodes(State *s, Value *outputs) {
  const Graph *g = s->g;
  bool eager = !ctx_is_recording(s->w->ctx);
  graph_each_val((Graph *)(uintptr_t)g, count, s->uses);
  for (Node *n = g->first; n; n = n->next) {
    Status status = call_node(s, n);
    if (status) return status_at_node(status, n);
    if (eager) node_each_val(n, release, s);
  }
  for (int i = 0; i < g->noutputs; i++) TRY(arg_resolve(s->w->arena, s->env, &g->outputs[i], &outputs[i]));
  return OK;
}

Status graph_walk(const Walk *w, const Graph *g, const Value *inputs, Value *outputs) {
  State s = {.w = w, .g = g};
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
