/* dce.c -- removes nodes whose results nobody uses.
 *
 *   before:  %a = neg(%x)  %b = exp(%x)  return %b
 *   after:   %b = exp(%x)  return %b
 *
 * One walk from the end.  Keeps: nodes with an effect (asserts, writes), sub-graphs as
 * a whole, inputs.
 */
#include "passes/pass.h"

static bool must_stay(const Node *n) {
  if (!n->op) return n->nouts == 0; /* unknown: only if it cannot be there for a result */
  return (n->op->def->flags & OP_EFFECT) || n->op->schema.mutates;
}

static void unuse(void *ctx, Val **ref) {
  (void)ctx;
  (*ref)->mark--;
}

Status pass_dce(Exported *e, const PassArgs *args) {
  Graph *g = e->graph;
  int removed = 0;
  graph_count_uses(g);
  for (Node *n = g->last, *prev; n; n = prev) {
    prev = n->prev;
    bool used = must_stay(n);
    for (int i = 0; i < n->nouts; i++) used |= n->outs[i]->mark > 0;
    if (used) continue;
    node_each_val(n, unuse, NULL);
    node_remove(n);
    removed++;
  }
  if (args->stats) text_printf(args->stats, "dce: %d nodes removed\n", removed);
  return OK;
}
