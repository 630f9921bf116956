/* folded.h -- what a reduction folded, for its gradient: from the result's size back to the argument's. */
#ifndef TESS_OPS_GRADS_FOLDED_H
#define TESS_OPS_GRADS_FOLDED_H

#include "ops/vjp.h"

typedef struct {
  const Tensor *x; /* argument 0: sizes and dtype, elements only if they were kept */
  int64_t dim[MAX_DIMS];
  int n; /* folded dimensions */
  bool keepdim;
  bool all;      /* no list of dimensions was given */
  int64_t count; /* elements that went into one of the result */
} Folded;

/* The argument of this name; None if the op has none. */
Value vjp_named(const Vjp *v, const char *name);

/* Reads the arguments dim and keepdim of the op, where it has them; none or an empty list: all dimensions. */
Folded folded(Vjp *v);
/* t, of the result's size, with the folded dimensions as 1: broadcasts with the argument. */
Tensor *unfold(Vjp *v, const Folded *d, Tensor *t);
/* t, of the result's size or unfolded, expanded to the argument's. */
Tensor *spread(Vjp *v, const Folded *d, Tensor *t);

#endif
