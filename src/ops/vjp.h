/* vjp.h -- the gradient of an op: from the cotangents of its results to those of its tensors (a
 * vector-Jacobian product), written with ops.
 *
 * Because it is written with ops, the same function serves the eager tape, programs that are
 * differentiated while they are recorded, DTensors, and gradients of gradients.
 *
 *     static void vjp_mul(Vjp *v) {
 *       Tensor *g = vjp_cotangent(v);
 *       if (vjp_wants(v, 0)) vjp_give(v, 0, f_mul(&v->f, g, vjp_arg(v, 1)));
 *       if (vjp_wants(v, 1)) vjp_give(v, 1, f_mul(&v->f, g, vjp_arg(v, 0)));
 *     }
 *     ... GRAD("mul.Tensor", vjp_mul, "self other"),
 *
 * I1  A function reads only what its row names in `reads` (op.h): of other tensors it sees sizes and dtype, and
 *     may not pass them to ops; where it needs zeros of some size it makes them with vjp_zeros().
 * I2  cotangent[i] is NULL where no gradient comes back to result i: zero.  gradient[i] may stay NULL: zero.
 *     A function is called only if some cotangent is there; an op of one result always has its cotangent.
 * I3  A gradient has its tensor's size and dtype: vjp_give() sums over what was broadcast, casts, and takes the
 *     real part where a real tensor got a complex cotangent.
 * I4  Errors stick to v->f; the function goes on with NULLs.
 * I5  The gradient of a complex tensor is PyTorch's: the conjugate of the derivative, so that a step against it
 *     goes down.
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

/* Rows of a table of gradients: of these ops, by this function, which reads the elements of these tensors; or these
 * ops are called in another form when a gradient is wanted. */
#define GRAD(OPS, VJP, READS) \
  { .ops = OPS, .vjp = VJP, .reads = READS }
#define TRAINS_AS(OPS, FORM) \
  { .ops = OPS, .training = FORM }

/* The forward call's argument: tensor (NULL: None or a number), or anything as it was bound. */
static inline Tensor *vjp_arg(const Vjp *v, int arg) { return in_tensor(v->forward, arg); }
static inline Value vjp_value(const Vjp *v, int arg) { return v->forward->arg[arg]; }
/* Of the only result, or of result 0. */
static inline Tensor *vjp_cotangent(const Vjp *v) { return v->cotangent[0]; }
/* Of result i, zeros if none has come. */
Tensor *vjp_cotangent_or_zeros(Vjp *v, int i);

/* Is the gradient of the tensor in argument `arg` wanted?  False for numbers and None. */
bool vjp_wants(const Vjp *v, int arg);
bool vjp_wants_item(const Vjp *v, int arg, int item); /* element of a list */
/* Gives the gradient of the tensor in argument `arg`: g, summed over the dimensions along which that tensor was
 * broadcast, in its dtype.  g NULL: zero, or the formula failed.  Does nothing if it is not wanted. */
void vjp_give(Vjp *v, int arg, Tensor *g);
void vjp_give_item(Vjp *v, int arg, int item, Tensor *g);

/* As F_OP, of a call that makes the gradient of the tensor in argument `arg`: on a mesh it best lies as that. */
Tensor *vjp_op_for(Vjp *v, int arg, const char *name, const Value *args, int nargs);
#define VJP_OP_FOR(v, arg, name, ...) vjp_op_for((v), (arg), (name), OP_ARGS(__VA_ARGS__))

/* Zeros, on the mesh of the cotangents. */
Tensor *vjp_zeros(Vjp *v, Dtype d, int ndim, const int64_t *size);
static inline Tensor *vjp_zeros_like(Vjp *v, const Tensor *t) { return vjp_zeros(v, t->dtype, t->ndim, t->size); }
/* A tensor that tells a size to an op that does not read it: one zero everywhere, in no memory to speak of. */
Tensor *vjp_size(Vjp *v, Dtype d, int ndim, const int64_t *size);
/* The conjugate of a complex tensor; others as they are. */
Tensor *vjp_conj(Vjp *v, Tensor *t);

/* Ops with derivative zero everywhere (floor, sign): their inputs get a gradient of zeros. */
void vjp_zero(Vjp *v);
/* Ops whose results do not depend on their inputs as far as gradients go (detach, zeros_like): a result has no
 * gradient to ask for. */
void vjp_none(Vjp *v);

#endif
