/* dce.c -- removes nodes whose results nobody uses.
 *
 *   before:  %a = neg(%x)  %b = exp(%x)  return %b
 *   after:   %b = exp(%x)  return %b
 *
 * One walk from the end.  Keeps: nodes with an effect (asserts, writes), also in a sub-graph;
 * sub-graphs as a whole; inputs.
 */
#include "passes/pass.h"

static bool must_stay(const Node *n);

static bool has_effects(const Graph *g) {
  for (const Node *n = g->first; n; n = n->next)
    if (must_stay(n)) return true;
  return false;
}

static bool must_stay(const Node *n) {
  for (int i = 0; i < n->nargs; i++)
    if (n->args[i].kind == ARG_GRAPH && has_effects(n->args[i].graph)) return true;
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
