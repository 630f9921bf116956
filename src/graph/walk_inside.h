/* walk_inside.h -- what the files of the walk share: walk.c calls nodes, walk_higher_order.c those that have
 * sub-graphs. */
#ifndef TESS_GRAPH_WALK_INSIDE_H
#define TESS_GRAPH_WALK_INSIDE_H

#include "graph/walk.h"

typedef struct {
  const Walk *w;
  const Graph *g;
  Value *env;        /* by Val.id */
  int *uses;         /* uses still to come, by Val.id */
  int64_t *unrolled; /* nodes that loops have added to what is recorded, over all graphs of the walk */
} WalkState;

/* graph_walk() of a sub-graph. */
Status walk_graph(const Walk *w, int64_t *unrolled, const Graph *g, const Value *inputs, Value *outputs);
/* Gives the node its results. */
Status walk_set_outs(WalkState *s, const Node *n, const Value *outs, int nouts);

/* Calls a higher-order node. */
typedef Status HigherOrderFn(WalkState *s, const Node *n);
HigherOrderFn *higher_order_find(const char *target); /* NULL: none that a walk can call */

#endif
