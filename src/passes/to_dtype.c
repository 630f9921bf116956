/* to_dtype.c -- see to_dtype.h. */
#include "passes/to_dtype.h"

#include <string.h>

#include "kernels/copy.h"

static bool shares_record(const StateEntry *a, const StateEntry *b) {
  return a->record && b->record && !strcmp(a->record, b->record);
}

/* In the order of the state; names of one record stay one tensor if they were. */
static Status convert_state(Kern *k, Exported *e, Dtype to) {
  Tensor **old;
  TRY_NEW(old, arena_new_n(&e->arena, Tensor *, e->nstate + 1));
  for (int i = 0; i < e->nstate; i++) {
    StateEntry *s = &e->state[i];
    Tensor *t = old[i] = s->tensor, *made = NULL;
    if (!t || t->dtype != DT_F32) continue;
    for (int j = 0; j < i && !made; j++)
      if (old[j] && shares_record(&e->state[j], s) && tensor_same_view(old[j], t))
        TRY(tensor_alias(&e->scope, e->state[j].tensor, &made));
    if (!made) {
      TRY(tensor_new(&e->scope, to, t->ndim, t->size, &made));
      kernel_copy(k, tensor_view(made), tensor_view(t));
    }
    s->tensor = made;
  }
  return OK;
}

static void replace_uses(Graph *g, Val *from, Val *by, const Node *but) {
  from->forward = by;
  for (Node *n = g->first; n; n = n->next)
    if (n != but) node_forward(n);
  for (int i = 0; i < g->noutputs; i++) arg_forward(&g->outputs[i]);
  from->forward = NULL;
}

static Status cast_input(Graph *g, Val *v, Dtype to) {
  Val like = *v, *out;
  Node *first = g->first;
  Arg args[] = {arg_val(v), arg_dtype(to)};
  if (!first) return OK;
  like.dtype = to;
  TRY(graph_emit_value(g, first, first, "aten.to.dtype", args, 2, &like, &out));
  replace_uses(g, v, out, out->node);
  return OK;
}

/* What nodes are told to make, and what is noted of their results: plans are found by asking ops with these dtypes.
 */
static void convert_nodes(Graph *g, Dtype to) {
  for (Node *n = g->first; n; n = n->next) {
    for (int i = 0; i < n->nargs; i++) {
      if (n->args[i].kind == ARG_DTYPE && n->args[i].dtype == DT_F32) n->args[i].dtype = to;
      if (n->args[i].kind == ARG_GRAPH) convert_nodes(n->args[i].graph, to);
    }
    for (int i = 0; i < n->nouts; i++)
      if (n->outs[i]->type == TY_TENSOR && n->outs[i]->dtype == DT_F32) n->outs[i]->dtype = to;
  }
}

Status program_to_dtype(Kern *k, Exported *e, Dtype to) {
  TRY(convert_state(k, e, to));
  convert_nodes(e->graph, to);
  for (int i = 0; i < e->graph->ninputs; i++) {
    Val *v = e->graph->inputs[i];
    const StateEntry *s = e->inputs[i].target ? exported_state(e, e->inputs[i].target) : NULL;
    if (v->type != TY_TENSOR || v->dtype != DT_F32) continue;
    if (s) v->dtype = to;
    if (e->inputs[i].kind == IN_USER) TRY(cast_input(e->graph, v, to));
  }
  return OK;
}
