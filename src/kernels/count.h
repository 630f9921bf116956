/* count.h -- how often values occur. */
#ifndef TESS_KERNELS_COUNT_H
#define TESS_KERNELS_COUNT_H

#include "kernels/kernel.h"

/* count[b] = how many of the n numbers x (contiguous f32 or f64) lie in bin b of `bins`
 * equal ones from low to high; the last bin includes high, others and nan do not count.
 * Bins are found in x's own precision, as ATen does. */
void kernel_histogram(Dtype d, const void *x, int64_t n, int64_t bins, double low, double high, int64_t *count);
/* Smallest and largest of the numbers; false if one is nan or infinite, or n is 0. */
bool kernel_finite_range(Dtype d, const void *x, int64_t n, double *low, double *high);

#endif
