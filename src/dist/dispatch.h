/* dispatch.h -- ops on DTensors: the handler of LEVEL_SHARD (ops/op.h), which chooses the way in which
 * a call is made (run_sharded.h).
 *
 * ctx_attach_dist() makes every op call of a context understand DTensors.  A call of a known kind
 * (decisions.h) costs a hash, a comparison and one handle per tensor beyond the local op.  Ops that are written
 * with ops (compose) and have no rule of their own are taken apart; their parts come back here.
 *
 * I1  Every rank of a mesh makes the same calls in the same order.
 * I2  On a mesh without a world nothing runs: outputs get specs and no shards.
 */
#ifndef TESS_DIST_DISPATCH_H
#define TESS_DIST_DISPATCH_H

#include "dist/run_sharded.h"

/* d stays the caller's and outlives the context. */
void ctx_attach_dist(Ctx *ctx, Dist *d);
void ctx_detach_dist(Ctx *ctx); /* plain tensors only again */

/* Is one of its tensors a DTensor? */
bool call_has_dtensor(const Call *c);

/* Is the op called as the ops it is written with, each decided by itself? */
bool dispatch_takes_apart(const Op *op);

/* Is this call made as its parts (OpDef.shard.compose_unmoved), though it has a rule?  If it would have to
 * communicate, unless its first tensor is partial: reducing that once is as good as it gets. */
bool dispatch_prefers_parts(const Op *op, const Decision *d);

#endif
