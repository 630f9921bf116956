/* margin.h -- margin losses over rows of class scores, in f64; everything is contiguous.
 *
 *   x (n, c)   loss (n), not yet reduced   g (n), the gradient of loss   dx (n, c)
 *
 * All fail on a target that is not a class.
 */
#ifndef TESS_KERNELS_MARGIN_H
#define TESS_KERNELS_MARGIN_H

#include "base/status.h"

typedef struct {
  int64_t n, c;
  const double *x;
  const int64_t *target;
} MarginRows;

/* target (n): sum over i != t of w[t] max(0, margin - x[t] + x[i])^p / c; p is 1 or 2.  weight may be NULL. */
typedef struct {
  int p;
  double margin;
  const double *weight;
} MultiMargin;
Status margin_multi(const MarginRows *r, const MultiMargin *m, double *loss);
Status margin_multi_grad(const MarginRows *r, const MultiMargin *m, const double *g, double *dx);

/* target (n, c), up to the first negative one: sum over targets t and all i that are none of
 * max(0, 1 - x[t] + x[i]) / c.  is_target (n, c): 1 for targets, else 0. */
Status margin_multilabel(const MarginRows *r, double *loss, double *is_target);
Status margin_multilabel_grad(const MarginRows *r, const double *is_target, const double *g, double *dx);

#endif
