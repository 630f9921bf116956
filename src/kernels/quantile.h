/* quantile.h -- values at fractions of sorted rows. */
#ifndef TESS_KERNELS_QUANTILE_H
#define TESS_KERNELS_QUANTILE_H

#include "kernels/kernel.h"

typedef enum { QUANTILE_LINEAR, QUANTILE_LOWER, QUANTILE_HIGHER, QUANTILE_MIDPOINT, QUANTILE_NEAREST } QuantileMode;

/* sorted: rows of n > 0 elements of f32 or f64, ascending, nan last; q: nq fractions of that
 * dtype; out (nq, rows).  A row with a nan gives nan; ignore_nan: only if it has nothing else.
 * The place is computed in the elements' dtype, which decides what lies between two. */
void kernel_quantile(Dtype d, const void *sorted, int64_t rows, int64_t n, const void *q, int64_t nq,
                     QuantileMode mode, bool ignore_nan, void *out);

#endif
