/* golden_compare.h -- is what an op gave what ATen gave?
 *
 * Tolerances and what counts are those of tests/golden/ops/README.md: sizes, dtypes,
 * integers exactly; floats within a tolerance per dtype and op; strides and storage
 * where the result is a view.
 */
#ifndef TESS_TESTS_GOLDEN_COMPARE_H
#define TESS_TESTS_GOLDEN_COMPARE_H

#include "golden_case.h"

typedef struct {
  double rtol, atol;
  bool overflows_early; /* inf or nan where the exact result is very large or zero counts as right */
} Tolerance;

Tolerance golden_tolerance(const GoldenCase *c, Dtype d);
Tolerance golden_gradient_tolerance(const GoldenCase *c, Dtype d);

/* Compares the outputs and the arguments after the call; the error says what differs. */
Status golden_compare(GoldenCase *c, const Value *out, int nout);

/* Values of two tensors of the same size and dtype. */
Status golden_compare_values(const Tensor *got, const Tensor *want, Tolerance tol, const char *what);

#endif
