/* fill.h -- elements that are a function of their position. */
#ifndef TESS_KERNELS_FILL_H
#define TESS_KERNELS_FILL_H

#include "kernels/kernel.h"

/* out[i] = start + i * step, each computed by itself: no running sums.  Integers and
 * bool, and floats (in double, rounded once); out is 1-d. */
void kernel_arange_int(Kern *k, View out, int64_t start, int64_t step);
void kernel_arange_float(Kern *k, View out, double start, double step);

/* n points from start to end, both included; base != 0: base to the power of these. */
void kernel_linspace(Kern *k, View out, double start, double end, double base);

/* out[.., j] = (j == classes[..]); out i64 with one dimension more, contiguous; classes i64. */
void kernel_one_hot(Kern *k, View out, View classes);

/* out = self where column - row <= diagonal (lower) or >= diagonal (upper), else 0.  The
 * last two dimensions are the matrix; same dtype, any. */
void kernel_triangle(Kern *k, View out, View self, int64_t diagonal, bool lower);

/* Is every element of an i64 view at least 0 and below extent? */
bool kernel_all_below(View v, int64_t extent);

/* Smallest and largest element of an i64 view of any strides; 0 and 0 if it is empty. */
void kernel_min_max_i64(View v, int64_t *least, int64_t *most);

#endif
