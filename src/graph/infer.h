/* infer.h -- gives every value of a program with known sizes its Tensor.
 *
 * Inputs: the state's tensors; for the others a storage without data (its owner is set,
 * so that nobody plans it).  Results: a reserved storage, or a view of an argument's.
 */
#ifndef TESS_GRAPH_INFER_H
#define TESS_GRAPH_INFER_H

#include "graph/graph.h"

/* The arguments a node was inferred with, kept for running it. */
typedef void InferredFn(void *arg, Node *n, const Call *c);

Status graph_infer(Ctx *ctx, Exported *e);
/* The same, telling `each` of every call; calls live in e's arena. */
Status graph_infer_each(Ctx *ctx, Exported *e, InferredFn *each, void *arg);

#endif
