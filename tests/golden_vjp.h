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

/* Replaces the tensors of the case by handles that require gradients, where gradients were recorded; leaf[i] is the
 * leaf behind tensor argument i, or NULL.  each() may replace one before, or want no gradient of it. */
typedef Status GoldenEachFn(void *arg, int at, bool *wanted, Tensor **t);
Status golden_require(GoldenCase *c, Tape *tape, GoldenEachFn *each, void *arg, Tensor **leaf);

#endif
