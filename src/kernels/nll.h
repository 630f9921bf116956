/* nll.h -- negative log likelihood: picks one class per place.
 *
 * Places are (n, h, w); absent dimensions have size 1.  Targets are i64 or u8.  A target
 * equal to `ignore` picks nothing.
 */
#ifndef TESS_KERNELS_NLL_H
#define TESS_KERNELS_NLL_H

#include "kernels/kernel.h"

typedef enum { REDUCTION_NONE, REDUCTION_MEAN, REDUCTION_SUM } LossReduction;

typedef struct {
  View x;               /* (n, classes, h, w), floats: log probabilities, or their gradient */
  View target;          /* (n, h, w) */
  const double *weight; /* (classes) or NULL */
  int64_t ignore;
  LossReduction reduction;
} Nll;

/* out: (n, h, w), or one element if reduced; total: one element, the sum of the weights
 * that were picked (0 without a reduction).  Fails on a target that is not a class. */
Status kernel_nll(Kern *k, const Nll *a, View out, View total);

/* Fills a->x with the gradient; g is like out above, total as it was returned. */
Status kernel_nll_backward(Kern *k, const Nll *a, View g, double total);

/* Fills a->x (n, classes, 1, 1), contiguous, with the gradient of x where the log probabilities y are
 * log_softmax(x); y is laid out like it, and may be the same memory.  f32 and f64. */
Status kernel_nll_log_softmax_backward(Kern *k, const Nll *a, View y, View g, double total);

#endif
