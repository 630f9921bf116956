/* table_gradient.h -- what gradients of tables of rows have in common: rows of a gradient are added to those of the
 * table that they were made of.
 *
 * On several ranks each may be given all that goes into the gradient and add what belongs to its own rows: then
 * nobody has the whole gradient.  This is only worth it where the table lies so (Rules.wanted).
 */
#ifndef TESS_OPS_ATEN_TABLE_GRADIENT_H
#define TESS_OPS_ATEN_TABLE_GRADIENT_H

#include "kernels/embedding.h"
#include "ops/aten/indexing.h"
#include "ops/rule.h"

/* An i64 tensor, whose numbers are in [0, extent), as a plain array. */
Status flat_indices(const Call *c, const Tensor *t, int64_t extent, const int64_t **out);
/* t in the dtype of sums, contiguous. */
Status flat_numbers(const Call *c, const Tensor *t, Dtype d, void **out);

/* n numbers, all 1. */
Status new_scale(const Call *c, int64_t n, double **scale);
/* scale[i] /= how often row[i] occurs. */
Status divide_by_frequency(const Call *c, RowSums *s, double *scale);

/* Result 0 is zero. */
void clear_table(Call *c);
/* Adds the rows to result 0, rounds to its dtype. */
Status add_rows(Call *c, RowSums *s);

/* Is result 0, a table, wanted with rows of its own on each rank of this axis, and best made so?  A gradient that
 * is sharded over the same ranks is gathered for it, unless reducing tables of partial sums takes less. */
bool rows_are_best(const Rules *r, int axis);

/* Rows [first, first + count) of result 0 are this rank's. */
Status local_rows(const Local *l, int64_t *first, int64_t *count);
/* A call whose result is rows [first, first + n) of a table of `total`: are they? */
Status check_rows(const Call *c, int64_t n, int64_t first, int64_t total);

#endif
