/* stages.c -- which nodes of a joint program are the forward, and which the backward; see graph.h.
 *
 * Joint programs that were made elsewhere, or written to a file, do not say it.  As torch.export does it, one that
 * makes a value for the loss or another output of the forward belongs there, and the rest to the gradients. */
#include <stdlib.h>

#include "graph/graph.h"

const char *stage_name(Stage p) {
  static const char *const names[] = {"forward", "backward", "update"};
  return names[p];
}

static void note(void *arg, Val **ref) { ((bool *)arg)[(*ref)->id] = true; }

static bool is_gradient(OutputKind k) { return k == OUT_GRADIENT_TO_PARAMETER || k == OUT_GRADIENT_TO_USER_INPUT; }

Status exported_find_stages(Exported *e) {
  Graph *g = e->graph;
  bool *forward; /* by value */
  TRY_NEW(forward, calloc((size_t)g->nvals + 1, sizeof *forward));
  for (int i = 0; i < g->noutputs; i++)
    if (!is_gradient(e->outputs[i].kind)) arg_each_val(&g->outputs[i], note, forward);
  for (Node *n = g->last; n; n = n->prev) {
    bool needed = n->nouts == 0; /* an effect */
    for (int i = 0; i < n->nouts; i++) needed |= forward[n->outs[i]->id];
    n->stage = needed ? STAGE_FORWARD : STAGE_BACKWARD;
    if (needed) node_each_val(n, note, forward);
  }
  free(forward);
  return OK;
}
