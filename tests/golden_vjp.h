/* golden_vjp.h -- the gradients of a golden case: are they PyTorch's? */
#ifndef TESS_TESTS_GOLDEN_VJP_H
#define TESS_TESTS_GOLDEN_VJP_H

#include "golden_compare.h"
#include "grad/tape.h"

/* Were gradients recorded for it? */
bool golden_has_gradients(yyjson_val *json);

/* The call of a case that was read, under a tape: its tensor arguments with a recorded gradient require one.
 * gradient[i] is that of tensor argument i (golden_case.h), for the recorded cotangents; NULL: none, or not
 * recorded. place(tensor) may replace an argument or a cotangent by a DTensor; NULL: nothing is replaced. */
typedef struct {
  Status (*place)(void *arg, Tensor **t);
  void *arg;
} GoldenPlace;
Status golden_gradients(GoldenCase *c, Ctx *ctx, const GoldenPlace *place, Tensor **gradient);

/* Compares with what was recorded. */
Status golden_compare_gradients(GoldenCase *c, Tensor *const *gradient);

/* A leaf of x, and what the call gets for it: a second handle, or of ops that write in place a clone, because
 * leaves are not written to. */
Status golden_leaf(GoldenCase *c, Tape *tape, Tensor *x, Tensor **leaf, Tensor **arg);

#endif
