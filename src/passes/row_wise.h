/* row_wise.h -- ops that compute each row (dimension 0) of their results from that row of their arguments alone, in
 * the same way whichever row it is: f(x[order]) = f(x)[order]. */
#ifndef TESS_PASSES_ROW_WISE_H
#define TESS_PASSES_ROW_WISE_H

#include "graph/graph.h"

/* Is the node such an op, where the arguments in `rows` (bit i: argument i) have `count` rows and the others are
 * the same for every row? */
bool is_row_wise(const Node *n, unsigned rows, const Sym *count);

#endif
