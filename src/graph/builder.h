/* builder.h -- records op calls as nodes: the handler of LEVEL_EMIT that appends to a graph.
 *
 * While a builder stands in a Ctx's line of handlers, op_dispatch() adds a node instead of running the
 * op: sizes are inferred, composite ops dissolve into the ops they are made of, ops on
 * numbers are computed, ops that change nothing (alias, detach, a cast to the same
 * dtype) vanish, and calls whose tensors are all constant run at once and become
 * constants of the program.
 *
 * I1  Every tensor handle that comes out has its value in `tag`; handles without one
 *     are constants with data, which become tensor_constant inputs when first used.
 * I2  An op whose sizes depend on data that is not there gives ERR_DYNAMIC.
 */
#ifndef TESS_GRAPH_BUILDER_H
#define TESS_GRAPH_BUILDER_H

#include "base/ptrmap.h"
#include "graph/graph.h"

typedef struct {
  Handler handler;   /* first: the builder is its handler */
  Exported *program; /* its graph gets the nodes; its scope the handles */
  Ctx *ctx;
  const Node *origin; /* new nodes take this node's metadata */
  Stage stage;        /* of new nodes, unless it is the forward: then the origin's */
  Node *before;       /* where new nodes go; NULL: at the end */
  bool fold;          /* run calls on constants */
  int64_t fold_limit; /* bytes of a result beyond which a call is not folded */
  int64_t dry_limit;  /* not 0: a call on constants whose results are larger is not run; they are constants
                       * without data, as are all that are made of them.  For programs that are looked at
                       * and never run */
  int folded;         /* constants made so far */
  PtrMap constants;   /* of a storage: 1 + the last input that is a constant in it */
  bool faithful;      /* keeps calls as they are, for programs that others will run: composite
                       * ops stay whole, nothing vanishes, defaults are left out, results are
                       * named after the origin only by its own op */
} GraphBuilder;

void builder_init(GraphBuilder *b, Ctx *ctx, Exported *program);
void builder_free(GraphBuilder *b); /* not the program */
/* The value of a handle (I1). */
Status builder_val(GraphBuilder *b, Tensor *t, Val **out);
/* A constant of the program: an input of kind tensor_constant. */
Status builder_constant(GraphBuilder *b, const char *wish, Tensor *t, Val **out);
/* A fresh tensor's place in memory: a storage without data that assign_memory fills. */
Status tensor_reserve(Tensor *t);

#endif
