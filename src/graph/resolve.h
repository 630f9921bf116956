/* resolve.h -- between a graph's arguments and the Values that ops are called with. */
#ifndef TESS_GRAPH_RESOLVE_H
#define TESS_GRAPH_RESOLVE_H

#include "graph/graph.h"

/* An argument as a Value: references are looked up in env, by Val.id.  With env NULL
 * they become the value's own tensor or number.  Lists take the kind of their elements.
 * ARG_UNSET is None. */
Status arg_resolve(Arena *arena, const Value *env, const Arg *a, Value *out);

/* Arguments of a known op, bound to its schema; `bound` has one Value per parameter. */
Status node_resolve(Arena *arena, const Value *env, const Node *n, Value *bound);

/* A Value as an argument.  val_of maps a tensor to the value that stands for it. */
typedef Status ValOfFn(void *ctx, Tensor *t, Val **out);
Status value_to_arg(Arena *arena, const Value *v, ValOfFn *val_of, void *ctx, Arg *out);

/* Fills a value's type, dtype and sizes from a tensor. */
Status val_set_tensor(Graph *g, Val *v, Tensor *t);

#endif
