/* propagate.h -- from the placements of an op's inputs to those of its outputs.
 *
 * The op's rule (ops/rule.h) lists strategies; the one that costs least to reach is
 * taken, by PyTorch's cost model and tie rules (golden data records them).
 *
 * I1  Nothing is run and nothing is sent.
 * I2  The decision is the same on every rank; only `arg` (local sizes) depends on it.
 */
#ifndef TESS_DIST_PROPAGATE_H
#define TESS_DIST_PROPAGATE_H

#include "dist/route.h"
#include "ops/rule.h"

typedef struct {
  Mesh *mesh;
  int nin, nout;     /* tensors, flat */
  const Spec **have; /* inputs as they come; plain tensors that joined are R */
  const Spec **want; /* inputs as the op gets them */
  const Spec **out;  /* NULL where an output is no tensor */
  const Op *op;      /* what each rank runs, on these arguments: */
  Value *arg;        /* tensors are to be put in, see decision_bind() */
  bool rewritten;    /* op or arg differ from the global call's */
  bool moves;        /* some want differs from have */
  int64_t draws;     /* blocks of random numbers that the whole takes */
  double cost;       /* microseconds */
  const char *why;   /* the rule's words, where it could not do better than R */
} Decision;

/* call: bound, tensors are global (DTensors, or handles with a spec and no data), outputs
 * inferred.  coord: the rank to localise for, NULL: this one.  Everything lives in the
 * arena; outputs that are inferred here in call->scope. */
Status propagate(const Call *call, const int *coord, Arena *arena, Decision *out);
/* The same among strategies whose output 0 is placed so (NULL: any): what that would take. */
Status propagate_for(const Call *call, const int *coord, const Placement *goal, Arena *arena, Decision *out);

#endif
