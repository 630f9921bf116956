/* embedding.h -- sums of rows: bags of embeddings, and the gradient of a table. */
#ifndef TESS_KERNELS_EMBEDDING_H
#define TESS_KERNELS_EMBEDDING_H

#include "kernels/kernel.h"

typedef enum { BAG_SUM, BAG_MEAN, BAG_MAX } BagMode;

/* Bag b has the rows indices[offset[b]] .. indices[offset[b + 1] - 1] of a table; rows
 * equal to padding do not count.  Of a part of a table, other rows are counted and nothing is
 * added for them; the largest of none that are here is -inf, if there are others. */
typedef struct {
  View table;             /* [rows, width] f16, bf16, f32 or f64, any strides */
  int64_t begin;          /* the table is rows [begin, begin + rows) of a larger one */
  const int64_t *indices; /* checked */
  const int64_t *offset;  /* bags + 1, not decreasing */
  int64_t bags;
  BagMode mode;
  const void *weight; /* of each index, the table's dtype; NULL: 1.  BAG_SUM only */
  int64_t weight_step;
  int64_t padding; /* -1: none */
} Bags;

/* out: [bags, width], contiguous, the table's dtype; sums in f32 (f64 for f64), rounded
 * once.  size[b]: rows that counted.  largest, for BAG_MAX: [bags, width], the index that
 * each element came from (the first of equals), 0 in an empty bag; of whole tables only.  Both may be NULL.
 * False: no scratch memory. */
bool kernel_embedding_bag(Kern *k, const Bags *bags, void *out, int64_t *size, int64_t *largest);

/* out[i] = <grad[bag[i] - first_bag], table[row[i] - first_row]>; 0 where one of them is not there, or row[i] is
 * padding.  grad and table have one width and dtype, any strides; out is contiguous, of that dtype; sums in f32
 * (f64 for f64). */
typedef struct {
  View grad, table;
  const int64_t *bag, *row;
  int64_t n, first_bag, first_row, padding;
} BagDots;
void kernel_bag_dots(Kern *k, const BagDots *b, void *out);

/* out[row[i] - first_row] += scale[i] * grad[from[i] - first_from] for all i in order, except rows equal to
 * padding.  What is in no row of out, or of grad, is passed over.  out and grad are contiguous rows of `width` f32
 * or f64; from = NULL: i; scale = NULL: 1.  Threads share out's rows, so the order of additions is fixed. */
typedef struct {
  Dtype dtype;
  void *out;
  const void *grad;
  int64_t rows, nfrom, width, n; /* nfrom: rows of grad */
  int64_t first_row, first_from; /* row and from count those of larger tensors */
  const int64_t *row, *from;
  const double *scale;
  int64_t padding;
} RowSums;
void kernel_add_rows(Kern *k, const RowSums *s);

/* out[largest[b][d] - first_row][d] += grad[b][d] for all bags b in order that have rows (size[b] > 0): the
 * gradient of BAG_MAX.  Of RowSums it reads dtype, out, grad, rows, nfrom, width and first_row. */
void kernel_add_largest(Kern *k, const RowSums *s, const int64_t *size, const int64_t *largest);

#endif
