/* walk.h -- calls a graph's nodes one after another.
 *
 * Every call goes through op_dispatch(), so what a walk does is the context's choice:
 * where nothing is recorded it *interprets* the program (the reference, and the way to run
 * programs whose sizes depend on data); with a GraphBuilder it *specialises* it.
 *
 * I1  An interpreted value's memory is released after its last use.
 * I2  Nodes with sub-graphs (walk_higher_order.c): cond takes the branch its predicate names, while_loop, scan
 *     and map_impl iterate.  Without a predicate's data (while specialising) they give ERR_DYNAMIC; loops
 *     that can be specialised are unrolled.
 */
#ifndef TESS_GRAPH_WALK_H
#define TESS_GRAPH_WALK_H

#include "graph/graph.h"

typedef struct {
  Ctx *ctx;
  Scope *scope; /* handles of all values */
  Arena *arena;
  /* Told before each node, e.g. to give what is recorded its metadata; may be NULL. */
  Status (*before)(void *arg, const Node *n);
  /* Asked before the arguments of an op are looked up; *known: its results are in env (by Val.id) now, and the call
   * need not be made; may be NULL. */
  Status (*recall)(void *arg, const Node *n, Value *env, bool *known);
  /* Makes the call instead of op_dispatch(): arguments may be replaced (bound is c->arg),
   * results as well; may be NULL. */
  Status (*call)(void *arg, const Node *n, Value *bound, Call *c);
  /* Told after each call, with its results; may be NULL. */
  void (*after)(void *arg, const Node *n, const Value *outs, int nouts);
  void *arg;
} Walk;

/* One Value per graph input; one per graph output is written (lists are not outputs). */
Status graph_walk(const Walk *w, const Graph *g, const Value *inputs, Value *outputs);

/* Adds "node 'x' (aten.add.Tensor), layers.0.mlp, file.py:12 in forward" to an error. */
Status status_at_node(Status s, const Node *n);

#endif
