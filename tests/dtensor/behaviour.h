/* behaviour.h -- api.jsonl, kind behaviour: what each call does, by name.  Shared by behaviour.c (the
 * cases' run), behaviour_make.c (making and moving DTensors) and behaviour_ops.c (ops, factories, meshes).
 *
 * Meshes are those of the case: "a" is all of its ranks in a line, "a,b" its grid, "a-1" and "a+1" a line of
 * one rank less or more. */
#ifndef TESTS_DTENSOR_BEHAVIOUR_H
#define TESTS_DTENSOR_BEHAVIOUR_H

#include "ranks.h"

/* Makes the DTensor that the case tells about (NULL: all is checked already).  Where PyTorch
 * refuses and ours is sensible, it checks that and sets r->better. */
typedef Status Behave(Rank *r, Tensor **out);

typedef struct {
  const char *name; /* NULL behind the last */
  Behave *fn;
  const char *why; /* skipped */
} Behaviour;

extern const Behaviour behaviours_make[], behaviours_ops[];

#define DO(name) \
  { #name, name, NULL }
#define SKIP(name, why) \
  { #name, NULL, why }

static const int64_t size_x[2] = {8, 3};

Status case_mesh(Rank *r, const char *which, Mesh **out);
Status x_of(Rank *r, Tensor **out);
/* t on a mesh, from rank 0, placed as the text says. */
Status place_tensor(Rank *r, Tensor *t, const char *mesh, const char *place, Tensor **out);
Status place_x(Rank *r, const char *mesh, const char *place, Tensor **out);
/* Value `value` in two elements of every rank, as P(sum) or whatever. */
Status local_two(Rank *r, const char *mesh, const char *place, double value, Tensor **out);
Status from_local(Rank *r, Tensor *local, const char *mesh, const char *place, const FromLocal *how, Tensor **out);
Status redistribute(Rank *r, const Tensor *t, const char *place, Tensor **out);
/* PyTorch refuses; ours holds these values. */
Status sensible(Rank *r, const Tensor *t, const Tensor *plain);

#endif
