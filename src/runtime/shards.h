/* shards.h -- this rank's part of tensors that it can see whole: weights of the mapped
 * file, inputs that every rank was given. */
#ifndef TESS_RUNTIME_SHARDS_H
#define TESS_RUNTIME_SHARDS_H

#include "dist/spec.h"
#include "kernels/kernel.h"
#include "plan/mark.h"

/* The part of `whole` that the spec leaves this rank: a view where each dimension is one
 * run, else a copy.  Of a meta tensor, one that is contiguous.  Not for P. */
Status shard_of(Kern *kern, Scope *scope, Tensor *whole, const Spec *spec, Tensor **out);

/* Of every entry of the program's state that is an input, as the marks place it; NULL where
 * it is none.  Weights that are tied stay tied.  Handles in scope, the array in arena. */
Status shards_of_state(Kern *kern, const Exported *e, const Marks *marks, Scope *scope, Arena *arena,
                       Tensor ***out);

#endif
