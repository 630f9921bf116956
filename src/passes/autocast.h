/* autocast.h -- what an autocast region does to the ops inside it. */
#ifndef TESS_PASSES_AUTOCAST_H
#define TESS_PASSES_AUTOCAST_H

#include "graph/graph.h"

/* Inserts the casts that PyTorch's autocast for CPUs would make at run time; exported
 * programs leave them implicit.  `wrapper` is wrap_with_autocast(device, dtype, enabled,
 * cache, graph, ...), `region` its sub-graph.  A region that is switched off, or of
 * another device, stays as it is. */
Status autocast_make_explicit(const Node *wrapper, Graph *region);
/* The same for a whole program that was exported without autocast: products in `to`, losses and the like in f32. */
Status autocast_program(Exported *e, Dtype to);

#endif
