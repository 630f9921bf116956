/* tied.h -- which inputs of a program hold the same weight, under whatever names.
 *
 * Two entries of the state are one weight if they are the same elements of the same
 * storage, with the same sizes.  Linear in the number of names, but for a sort.
 */
#ifndef TESS_PLAN_TIED_H
#define TESS_PLAN_TIED_H

#include "graph/graph.h"

typedef struct {
  const StateEntry **state; /* by input: what it holds; NULL: nothing */
  int *weight;              /* by entry of the state: a number that tied entries share */
  int *first; /* by that number: inputs that hold it are input[first[w]] to input[first[w + 1] - 1], ascending */
  int *input;
} Tied;

Status tied_find(Arena *arena, const Exported *e, Tied *out);

#endif
