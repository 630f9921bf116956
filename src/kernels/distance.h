/* distance.h -- p-norms of differences of rows.  f32 and f64. */
#ifndef TESS_KERNELS_DISTANCE_H
#define TESS_KERNELS_DISTANCE_H

#include "kernels/kernel.h"

/* |a - b| in the p-norm; p = 0 counts, p = inf takes the maximum.  a, b: n elements of
 * type `as`, DT_F32 or DT_F64. */
SIMD_DECLARE(double, distance_row, (Dtype as, const void *a, const void *b, int64_t n, double p));

/* out[r][c] = |a[r] - b[c]| for r < rows, c < columns; all contiguous, of one dtype. */
void kernel_distances(Kern *k, void *out, const void *a, const void *b, Dtype d, int64_t rows, int64_t columns,
                      int64_t n, double p);

/* out = |a[i] - a[j]| for all i < j, in order. */
void kernel_pair_distances(Kern *k, void *out, const void *a, Dtype d, int64_t rows, int64_t n, double p);

/* Gradients of a for those of the distances, g: out[r] = sum over c of g[r][c] times the slope of dist[r][c] by
 * a[r], which is 0 where rows are equal. */
void kernel_distances_grad(Kern *k, void *out, const void *a, const void *b, const void *g, const void *dist,
                           Dtype d, int64_t rows, int64_t columns, int64_t n, double p);
void kernel_pair_distances_grad(Kern *k, void *out, const void *a, const void *g, const void *dist, Dtype d,
                                int64_t rows, int64_t n, double p);

#endif
