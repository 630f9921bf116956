/* feed_sizes.h -- inputs that have sizes and no elements: what a program would be given. */
#ifndef TESS_RUNTIME_FEED_SIZES_H
#define TESS_RUNTIME_FEED_SIZES_H

#include "graph/graph.h"

/* A number for every symbol in the inputs' sizes: 2 where its range allows, else the
 * nearest in it; with hints, what it was when the program was exported, where the file
 * tells.  out->v is malloc'ed. */
Status feed_symbols(const Exported *e, bool hints, SymBindings *out);
/* Inputs of these sizes without data, to ask what a call would take. */
Status feed_sizes(const Exported *e, const SymBindings *b, Scope *scope, Arena *arena, Value **inputs, int *n);

#endif
