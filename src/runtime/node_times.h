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

typedef struct {
  NodeTime *list; /* of the graph and its sub-graphs */
  int n;
  int64_t runs;
  NodeTime *current;
  double since;
} NodeTimes;

/* A run begins. */
Status node_times_begin(NodeTimes *t, const Graph *g);
void node_times_next(NodeTimes *t, const Node *n); /* NULL: the run is over */
void node_times_free(NodeTimes *t);

#endif
