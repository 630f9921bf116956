/* reducer.h -- gradients of replicas, averaged over a group of ranks while the backward goes on: what DDP is.
 *
 * Parameters go into buckets, the last ones first, because their gradients come first.  A hook on each parameter
 * puts its gradient into the bucket's memory; a bucket that is full is all-reduced by a started collective; the end
 * of the backward (tape.h) waits for all of them, and the tape then adds the averages to the leaves.
 *
 * I1  Buckets are started in their order, whatever order gradients come in: all ranks make the same collectives.
 * I2  What is averaged is the gradient that the leaf would have: what earlier backwards without sync have left
 *     counts.
 * I3  A backward that fails waits for what was started, and changes no gradient.
 * I4  A DTensor is reduced shard by shard, over ranks that hold the same shard.  Its gradient is brought to where
 * the parameter lies before, but stays a partial sum where the parameter is whole.
 */
#ifndef TESS_PARALLEL_REDUCER_H
#define TESS_PARALLEL_REDUCER_H

#include "grad/tape.h"

typedef struct Reducer Reducer;

typedef struct {
  int64_t first_bytes, bucket_bytes; /* a bucket is closed when it has this much */
  bool find_unused;                  /* a parameter may get no gradient: ranks tell each other which */
  bool bf16;                         /* gradients travel as bf16 */
} ReducerHow;

/* params: leaves of tape t; they and their names stay the caller's.  axis: a mesh of one axis, whose ranks are the
 * replicas. */
Status reducer_new(Tape *t, Mesh *axis, Tensor *const *params, const char *const *names, int n,
                   const ReducerHow *how, Reducer **out);
/* tape NULL: it is gone already. */
void reducer_free(Reducer *r, Tape *tape);

/* Without sync, backwards add to leaves as if there were no reducer.  Returns the former setting. */
bool reducer_sync(Reducer *r, bool on);
/* A forward was made: with find_unused, the next backward is reduced even if it reaches none of the parameters. */
void reducer_expect(Reducer *r);
/* Sums are divided by so many ranks; 0: by all of the group. */
void reducer_divide_by(Reducer *r, int ranks);
/* The collectives of a backward of the others, with zeros: for a rank that has no more batches. */
Status reducer_shadow(Reducer *r);
int reducer_buckets(const Reducer *r);

#endif
