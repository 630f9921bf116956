/* index.h -- elements moved to and from places that index tensors name.
 *
 * An IndexMap sends every position e of an iteration space to an element of a `far`
 * tensor; a `near` view has the size of the iteration space:
 *
 *     place(e) = sum_d e[d] * stride[d]  +  sum_k index[k].data[e . index[k].stride] * index[k].step
 *
 * index, index_select, gather, embedding, take and the paddings read near[e] = far[place(e)];
 * index_put, index_copy, index_add, scatter and their like write it.
 *
 * I1  Every place lies in the far tensor: the caller has checked and wrapped the indices.
 * I2  A dimension has stride 0 exactly if indices alone decide where it goes; two
 *     positions that differ in another dimension never meet, unless `overlaps`.
 * I3  Of several writes to one place the last in row-major order wins.
 */
#ifndef TESS_KERNELS_INDEX_H
#define TESS_KERNELS_INDEX_H

#include "kernels/kernel.h"

typedef struct {
  const int64_t *data;
  int64_t stride[MAX_DIMS]; /* of data, over the iteration space; 0 where it does not vary */
  int64_t step;             /* far elements per unit */
} IndexAxis;

typedef struct {
  int ndim;
  int64_t size[MAX_DIMS];   /* the iteration space */
  int64_t stride[MAX_DIMS]; /* far elements; may be negative */
  int nindex;
  IndexAxis index[MAX_DIMS];
  bool overlaps; /* places of different positions may meet in every dimension */
} IndexMap;

typedef enum { SCATTER_ASSIGN, SCATTER_ADD, SCATTER_MUL, SCATTER_MAX, SCATTER_MIN } ScatterOp;

/* near[e] = far[place(e)], bit for bit, any dtype; near.size is the map's. */
void kernel_gather(Kern *k, const IndexMap *map, View near, const void *far);

/* far[place(e)] = far[place(e)] op near[e].  SCATTER_ASSIGN: any dtype; the others: bool,
 * the integers, f32, f64, and ADD c64; nan wins in MAX and MIN. */
void kernel_scatter(Kern *k, const IndexMap *map, void *far, View near, ScatterOp op);

/* Row-major positions at which the view's elements are not 0: coordinate d of the j-th
 * goes to coordinates[d * per_dim + j * per_item].  n is what kernel_count_nonzero() says. */
int64_t kernel_count_nonzero(View v);
void kernel_nonzero(View v, int64_t n, int64_t *coordinates, int64_t per_dim, int64_t per_item);

/* Contiguous numbers of the dtypes that SCATTER_ADD knows (not c64): x[i] *= by, and
 * x[i] /= count[i] where count[i] > 1 (integers round down). */
void kernel_flat_scale(Dtype d, void *x, int64_t n, double by, int64_t by_int);
void kernel_flat_divide(Dtype d, void *x, const int64_t *count, int64_t n);

#endif
