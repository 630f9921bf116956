/* golden_twice.h -- second derivatives of a golden case: do those of the tape agree with differences of its
 * gradients? */
#ifndef TESS_TESTS_GOLDEN_TWICE_H
#define TESS_TESTS_GOLDEN_TWICE_H

#include "golden_vjp.h"

/* The case's f32 tensors in f64, at random cotangents c and directions v: with phi(x) = <c, op(x)>, the gradient of
 * <grad phi, v> is compared with (grad phi(x + h v) - grad phi(x - h v)) / 2 h.  Elements where the latter is
 * another for 2 h are left out: the function has a bend there.
 * left_out: nothing was compared, for the op has no second derivative, or its results are no f64. */
Status golden_twice(const char *family, yyjson_val *json, const SafeTensors *data, int threads, bool *left_out);

#endif
