/* node_times.h -- how long each node of an interpreted program takes.
 *
 * Time goes to the node that was begun last, so a cond has its own work only, and the
 * nodes of the branch it takes have theirs.
 *
 * I1  While it is in use, Node.mark of every node of the graph is its place in the list.
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

/* A run begins: numbers the graph the first time. */
Status node_times_begin(NodeTimes *t, Graph *g);
void node_times_next(NodeTimes *t, const Node *n); /* NULL: the run is over */
void node_times_free(NodeTimes *t);

#endif
