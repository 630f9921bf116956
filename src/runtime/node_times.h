/* node_times.h -- how long each node of an interpreted program takes.
 *
 * Time goes to the node that was begun last, so a cond has its own work only, and the
 * nodes of the branch it takes have theirs.
 *
 * I1  Node.mark of every node is its number (graph_number_nodes()).
 */
#ifndef TESS_RUNTIME_NODE_TIMES_H
#define TESS_RUNTIME_NODE_TIMES_H

#include "graph/graph.h"

typedef struct {
  const Node *node;
  double seconds; /* over all runs */
  int64_t calls;
} NodeTime;

/* Some time that went to a node. */
typedef struct {
  const Node *node;
  Stage stage;
  double begun, ended; /* by clock_now() */
} NodeSpan;

typedef struct {
  NodeTime *list; /* of the graph and its sub-graphs */
  int n;
  int64_t runs;
  NodeTime *current;
  NodeSpan *span; /* of the last run, in order; none while it goes on is open but the last */
  int64_t nspans, spans_cap;
} NodeTimes;

/* A run begins. */
Status node_times_begin(NodeTimes *t, const Graph *g);
/* From now on time goes to n: forward to a call of it, backward to what its gradient takes.  NULL: the run is over.
 */
Status node_times_next(NodeTimes *t, const Node *n, Stage stage);
void node_times_free(NodeTimes *t);

#endif
