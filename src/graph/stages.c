/* stages.c -- which nodes of a joint program are the forward, and which the backward; see graph.h.
 *
 * Joint programs that were made elsewhere, or written to a file, do not say it. */
#include <stdlib.h>

#include "graph/graph.h"

const char *stage_name(Stage s) {
  static const char *const names[] = {"forward", "backward", "update"};
  return names[s];
}

static void note(void *arg, Val **ref) { ((bool *)arg)[(*ref)->id] = true; }

static bool is_gradient(OutputKind k) { return k == OUT_GRADIENT_TO_PARAMETER || k == OUT_GRADIENT_TO_USER_INPUT; }

/* Of a training step, whose gradients are used and gone, other outputs may be made with them. */
static bool has_gradients(const Exported *e) {
  for (int i = 0; i < e->graph->noutputs; i++)
    if (is_gradient(e->outputs[i].kind)) return true;
  return false;
}

Status exported_find_stages(Exported *e) {
  Graph *g = e->graph;
  const Node *loss = NULL;
  bool *forward, before = false, all = has_gradients(e); /* forward: by value */
  TRY_NEW(forward, calloc((size_t)g->nvals + 1, sizeof *forward));
  for (int i = 0; i < g->noutputs; i++) {
    OutputKind k = e->outputs[i].kind;
    if (k == OUT_LOSS && g->outputs[i].kind == ARG_VAL) loss = g->outputs[i].val->node;
    if (k == OUT_LOSS || (all && !is_gradient(k))) arg_each_val(&g->outputs[i], note, forward);
  }
  for (Node *n = g->last; n; n = n->prev) {
    bool needed = before |= n == loss;
    for (int i = 0; i < n->nouts; i++) needed |= forward[n->outs[i]->id];
    n->stage = needed ? STAGE_FORWARD : STAGE_BACKWARD;
    if (needed) node_each_val(n, note, forward);
  }
  free(forward);
  return OK;
}
