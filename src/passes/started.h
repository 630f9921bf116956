/* started.h -- how long a started collective needs its memory.
 *
 * A collective of a program returns before it is done (OP_STARTS): until its wait it reads
 * its operands and writes its results.  Whoever gives memory to values must know.
 */
#ifndef TESS_PASSES_STARTED_H
#define TESS_PASSES_STARTED_H

#include "graph/graph.h"

/* Nodes are numbered from 0; the number of nodes stands for the end of the program, where
 * what nobody waited for is waited for. */
typedef struct {
  Tensor *tensor;  /* its storage is held */
  int from, until; /* the node that starts, the node that waits */
} Hold;

/* Is it a collective that goes on until its wait? */
static inline bool node_starts(const Node *n) { return n->op && n->op->def->flags & OP_STARTS; }

/* Of a specialised graph, in the order of `from`; malloc'ed. */
Status started_holds(Graph *g, Hold **out, int *n);

#endif
