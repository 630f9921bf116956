/* copy.c -- a copy of a whole program; see exported_copy() in graph.h. */
#include <stdlib.h>

#include "graph/graph.h"

typedef struct {
  Arena *arena;
  Val **by_id; /* what stands for the original's value */
} Copying;

static Status copy_arg(const Copying *c, const Arg *from, Arg *to) {
  *to = *from;
  if (from->kind == ARG_VAL) to->val = c->by_id[from->val->id];
  if (from->kind == ARG_GRAPH) return fail(ERR_FAIL, "a program with sub-graphs cannot be copied");
  if (from->kind != ARG_LIST) return OK;
  TRY_NEW(to->list, arena_new_n(c->arena, Arg, from->n));
  for (int i = 0; i < from->n; i++) TRY(copy_arg(c, &from->list[i], &to->list[i]));
  return OK;
}

static Status copy_val(const Copying *c, Val *to, const Val *from) {
  TRY(val_copy_meta(to, from));
  to->id = from->id;
  to->tensor = from->tensor;
  to->constant = from->constant;
  to->number = from->number;
  c->by_id[from->id] = to;
  return OK;
}

static Status copy_node(const Copying *c, Graph *g, const Node *from) {
  Node *to;
  TRY(graph_add_node(g, NULL, from->target, &to));
  to->nargs = from->nargs;
  TRY_NEW(to->args, arena_new_n(c->arena, Arg, from->nargs));
  for (int i = 0; i < from->nargs; i++) TRY(copy_arg(c, &from->args[i], &to->args[i]));
  to->mark = from->mark;
  to->outs_list = from->outs_list;
  to->arg_names = from->arg_names;
  to->shard = from->shard;
  to->draws = from->draws;
  to->stage = from->stage;
  to->meta = from->meta;
  to->nmeta = from->nmeta;
  for (int i = 0; i < from->nouts; i++) {
    Val *v;
    TRY(node_add_out(to, from->outs[i]->name, from->outs[i]->type, &v));
    TRY(copy_val(c, v, from->outs[i]));
  }
  return OK;
}

static Status copy_graph(const Copying *c, Graph *to, const Graph *from) {
  for (int i = 0; i < from->ninputs; i++) {
    Val *v;
    TRY(graph_add_input(to, from->inputs[i]->name, from->inputs[i]->type, &v));
    TRY(copy_val(c, v, from->inputs[i]));
  }
  for (const Node *n = from->first; n; n = n->next) TRY(copy_node(c, to, n));
  for (int i = 0; i < from->noutputs; i++) {
    Arg a;
    TRY(copy_arg(c, &from->outputs[i], &a));
    TRY(graph_add_output(to, a));
  }
  to->nvals = from->nvals;
  to->gradients_apart = from->gradients_apart;
  to->dtypes_differ = from->dtypes_differ;
  return OK;
}

Status exported_copy(const Exported *from, Exported **out) {
  Exported *e;
  TRY(exported_new(from->name, &e));
  Copying c = {.arena = &e->arena};
  c.by_id = calloc((size_t)from->graph->nvals + 1, sizeof *c.by_id);
  Status s = c.by_id ? copy_graph(&c, e->graph, from->graph) : fail_oom();
  free(c.by_id);
  if (s) {
    exported_free(e);
    return s;
  }
  e->inputs = from->inputs;
  e->outputs = from->outputs;
  e->state = from->state;
  e->nstate = from->nstate;
  e->state_at = from->state_at;
  e->state_indexed = from->state_indexed;
  e->torch_version = from->torch_version;
  e->dialect = from->dialect;
  *out = e;
  return OK;
}
