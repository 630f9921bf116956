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

/* out[row[i]] += scale[i] * grad[from[i]] for all i in order, except rows equal to
 * padding.  out and grad are contiguous rows of `width` f32 or f64; from = NULL: i;
 * scale = NULL: 1.  Threads share out's rows, so the order of additions is fixed. */
typedef struct {
  Dtype dtype;
  void *out;
  const void *grad;
  int64_t rows, width, n;
  const int64_t *row, *from;
  const double *scale;
  int64_t padding;
} RowSums;
void kernel_add_rows(Kern *k, const RowSums *s);

#endif
