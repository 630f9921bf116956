/* run_sharded.h -- the ways in which a call on DTensors is made.
 *
 *   run_decision        on this rank's shards, moved to where the decision wants them
 *   run_replicated      on whole tensors: sizes that depend on elements, results that are numbers
 *   run_parts           as the ops it is written with, each of which comes back to the dispatcher
 *   run_inplace_apart   the functional form, then its results to where the arguments lie
 */
#ifndef TESS_DIST_RUN_SHARDED_H
#define TESS_DIST_RUN_SHARDED_H

#include "dist/propagate.h"
#include "dist/redistribute.h"

Status run_decision(Call *c, const Decision *d);
Status run_replicated(Call *c);
/* Plain tensors that the parts make for themselves (masks, ranges) are alike on all ranks. */
Status run_parts(Call *c, OpFn *parts);
/* Of an in-place op whose functional form is taken apart, or whose result goes to an argument that it
 * does not read (out=). */
Status run_inplace_apart(Call *c);

/* A DTensor of this spec around a shard (plain, of the spec's local size; NULL on a mesh
 * without a world).  The handle lives in scope; local must live as long. */
Status dtensor_wrap(Scope *scope, const Spec *spec, Tensor *local, Tensor **out);

/* Makes a local call of an op that goes by the numbers of elements (OP_NUMBERED), whose output 0 is this rank's
 * shard of `out`: a random op takes the numbers of the shard's elements, and the stream moves on by `draws`, those
 * of the whole.  Ranks outside the mesh add the same to their ctx->offset: it stays alike on all. */
Status random_local(Call *local, const Spec *out, int64_t draws);

#endif
