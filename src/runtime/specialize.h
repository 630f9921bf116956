/* specialize.h -- a program for one set of input sizes.
 *
 * Takes a functional program with symbolic sizes and gives a new one in which every
 * size is a number, composite ops are dissolved, numbers are computed and everything
 * that depends on weights and sizes alone is a constant.
 *
 * I1  The source program is only read: ranks may specialise it at the same time.
 * I2  Weights are shared, not copied; the result must not outlive the source.
 * I3  Of a program on a mesh, every rank records the same redistributions in the same order.
 */
#ifndef TESS_RUNTIME_SPECIALIZE_H
#define TESS_RUNTIME_SPECIALIZE_H

#include "plan/mark.h"
#include "runtime/gradients.h"

/* Which symbol has which value, from the sizes of the user inputs (in the order of the
 * signature; tensors or numbers).  Checks dtypes, fixed sizes and ranges; errors name
 * the input, the symbol, the value and the range.  bindings->v is malloc'ed. */
Status specialize_bind(const Exported *e, const Value *user_inputs, int ninputs, SymBindings *bindings);

/* Told of the walk as it goes on.  to: what has been recorded so far. */
typedef struct WalkWatch {
  void *arg;
  Status (*input)(void *arg, int i, const Value *v); /* graph input i, a DTensor if it is a tensor */
  Status (*before)(void *arg, const Node *n);
  Status (*after)(void *arg, const Node *n, const Value *outs, int nouts, const Exported *to);
  Status (*output)(void *arg, int i, const Tensor *t, const Exported *to); /* graph output i, where it is wanted */
  /* Of the backward, each may be NULL: it goes on to what belongs to n (NULL: it has gone through all nodes); the
   * gradient of the request's input k has been placed. */
  Status (*visits)(void *arg, const Node *n, const Exported *to);
  Status (*gradient)(void *arg, int k, const Exported *to);
} WalkWatch;

/* How: zeroed, the program as one rank runs it by itself.
 * With marks it is "partitioned": as one rank of the marks' mesh runs it.  Inputs and state are this rank's
 * shards, sizes in arguments are local, redistributions are nodes, results lie as the marks say.  ctx has the
 * marks' Dist (ctx_attach_dist). */
typedef struct {
  Tensor *const *state; /* this rank's, parallel to the program's state; NULL, or an entry: the program's own */
  const Marks *marks;
  const Update *trains; /* the state changes between runs as this says, whatever is walked; NULL: it does not */
  bool any_batch;       /* inputs may have more or fewer rows than the program was exported for (rebatch.h) */
  bool faithful;        /* for a file: calls stay as the program has them (builder.h), nothing is folded */
  int64_t
      dry_limit; /* builder.h: nothing larger is computed ahead, weights need no data; the result cannot be run */
  const WalkWatch *watch; /* NULL: nobody */
  const GradRequest
      *grad; /* the joint program: outputs as grad_output() tells, those that there are; NULL: the forward alone */
} Specialize;

/* user_inputs have the sizes of the whole.  ERR_DYNAMIC if some size depends on data: such a program is
 * interpreted. */
Status specialize(Ctx *ctx, const Exported *e, const Specialize *how, const Value *user_inputs, int ninputs,
                  Exported **out);

#endif
