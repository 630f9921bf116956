/* views.h -- which nodes are views of their first argument, and how a write to a view
 * reaches what it is a view of.  For functionalize, and for passes that change what views are of. */
#ifndef TESS_PASSES_VIEWS_H
#define TESS_PASSES_VIEWS_H

#include "graph/graph.h"

/* Does the node's result share memory with argument 0?  reshape, contiguous, to ... share
 * only if nothing has to be copied: decided from dtypes and strides. */
bool view_is_alias(const Node *n);

/* `part` is the new contents of output `index` of the view node; the call
 * op(args...) gives `parent` with that part replaced.  args has room for 8. */
Status view_inverse(const Node *view, int index, Val *parent, Val *part, const char **op, Arg *args, int *nargs);

/* Views become reshapes: for passes that may change memory layouts. */
void views_relax(Graph *g);

#endif
