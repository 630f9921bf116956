/* vjp.h -- the gradient of an op: from the cotangents of its results to those of its tensors (a
 * vector-Jacobian product), written with ops.
 *
 * Because it is written with ops, the same function serves the eager tape, programs that are
 * differentiated while they are recorded, DTensors, and gradients of gradients.
 *
 *     static void vjp_mul(Vjp *v) {
 *       if (vjp_wants(v, 0)) vjp_give(v, 0, f_mul(&v->f, v->cotangent[0], in_tensor(v->forward, 1)));
 *       if (vjp_wants(v, 1)) vjp_give(v, 1, f_mul(&v->f, v->cotangent[0], in_tensor(v->forward, 0)));
 *     }
 *
 * I1  A function reads only what its op's record names in grad.reads (op.h): of other tensors it sees sizes
 *     and dtype.
 * I2  cotangent[i] is NULL where no gradient comes back to result i: zero.  gradient[i] may stay NULL: zero.
 *     A function is called only if some cotangent is there.
 * I3  A gradient has its tensor's size and dtype: vjp_give() sums over what was broadcast and casts.
 * I4  Errors stick to v->f; the function goes on with NULLs.
 */
#ifndef TESS_OPS_VJP_H
#define TESS_OPS_VJP_H

#include "ops/formula.h"
#include "ops/tensors.h"

struct Vjp {
  Formula f;           /* makes calls; the first error sticks */
  const Call *forward; /* bound arguments and results, as far as they were kept (I1) */
  int nin, nout;       /* tensors, flat */
  Tensor *const *in;   /* the forward call's */
  Tensor *const *out;
  Tensor *const *cotangent; /* nout */
  const bool *wanted;       /* nin */
  Tensor **gradient;        /* nin, to fill */
};

/* Is the gradient of the tensor in argument `arg` wanted?  False for numbers and None. */
bool vjp_wants(const Vjp *v, int arg);
/* Gives the gradient of the tensor in argument `arg`: g, summed over the dimensions along which that tensor was
 * broadcast, in its dtype.  g NULL: zero, or the formula failed. */
void vjp_give(Vjp *v, int arg, Tensor *g);
/* The same for element `item` of a list. */
void vjp_give_item(Vjp *v, int arg, int item, Tensor *g);

/* Of ops through which no gradient goes though their results are floats: detach. */
void vjp_zero(Vjp *v);

#endif
