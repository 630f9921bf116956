/* dispatch.h -- ops on DTensors: decide once per kind of call, then only run.
 *
 * ctx_attach_dist() makes every op call of a context understand DTensors.  A call is looked up
 * by op, specs and plain arguments; on a hit it costs a hash, a comparison and one handle
 * per tensor beyond the local op.  Ops that are written with ops (compose) and have no
 * rule of their own are taken apart; their parts come back here.
 *
 * I1  Every rank of a mesh makes the same calls in the same order.
 * I2  On a mesh without a world nothing runs: outputs get specs and no shards.
 */
#ifndef TESS_DIST_DISPATCH_H
#define TESS_DIST_DISPATCH_H

#include "dist/propagate.h"
#include "dist/redistribute.h"

/* d stays the caller's and outlives the context. */
void ctx_attach_dist(Ctx *ctx, Dist *d);
void ctx_detach_dist(Ctx *ctx); /* plain tensors only again */

/* A DTensor of this spec around a shard (plain, of the spec's local size; NULL on a mesh
 * without a world).  The handle lives in scope; local must live as long. */
Status dtensor_wrap(Scope *scope, const Spec *spec, Tensor *local, Tensor **out);

/* Runs a local call of a random op whose output 0 is this rank's shard of `out`: it takes
 * the numbers of the shard's elements, and the stream moves on by `draws`, those of the
 * whole.  Ranks outside the mesh add the same to their ctx->offset: it stays alike on all. */
Status random_local(Call *local, const Spec *out, int64_t draws);

/* Is the op called as the ops it is written with, each decided by itself? */
bool dispatch_takes_apart(const Op *op);

/* Is this call made as its parts (OpDef.parts), though it has a rule?  If it would have to
 * communicate, unless its first tensor is owed: paying that once is as good as it gets. */
bool dispatch_prefers_parts(const Op *op, const Decision *d);

/* How often calls were found in the cache, and decided anew. */
void dispatch_counts(const Dist *d, int64_t *hits, int64_t *misses);
void dispatch_forget(Dist *d); /* empties the cache */

#endif
