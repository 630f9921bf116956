/* indexing.h -- index tensors made ready for kernels/index.h.
 *
 * I1  Checked: every index lies in its dimension, or the op fails and says which does not.
 * I2  Memory comes from the Kern's scratch; the op releases it (kern_mark, kern_release).
 */
#ifndef TESS_OPS_ATEN_INDEXING_H
#define TESS_OPS_ATEN_INDEXING_H

#include "kernels/index.h"
#include "ops/geometry.h"

/* i64 indices in [0, extent).  data is the tensor's own if it needs no change. */
typedef struct {
  const int64_t *data;
  int ndim;
  int64_t size[MAX_DIMS], stride[MAX_DIMS];
} Indices;

typedef enum { NEGATIVE_FAILS, NEGATIVE_COUNTS_FROM_END } Negative;

/* dim is for the error message only. */
Status indices_prepare(const Call *c, const Tensor *index, int64_t extent, int dim, Negative negative,
                       Indices *out);

/* The map of gather and scatter over index's size: dimension d of far has far_stride[d],
 * and along `dim` the index decides.  0-d tensors count as 1-d. */
void gather_map(const Tensor *far, int dim, const Indices *index, IndexMap *map);
/* The map of index_select, index_copy ...: like gather, with a 1-d index along `dim`. */
void select_map(const Tensor *far, int dim, const Indices *index, IndexMap *map);

/* out = self, unless they are the same memory already (OP_UPDATE). */
void copy_self(Call *c, const Tensor *self);

/* A tensor as another dtype: itself, or a contiguous copy in scratch.  Sums in f16 and
 * bf16 work on f32 copies and round once at the end. */
typedef struct {
  Tensor tensor; /* geometry and dtype; its storage is not to be used, data is */
  void *data;
  bool copied;
} Working;
static inline Dtype sum_dtype(Dtype d) { return d == DT_F16 || d == DT_BF16 ? DT_F32 : d; }
Status working_begin(const Call *c, const Tensor *t, Dtype d, Working *w);
void working_end(const Call *c, const Tensor *t, const Working *w); /* back to t, if it was copied */

/* A view of the map's size (the tensor may be larger, or 0-d). */
typedef struct {
  int64_t stride[MAX_DIMS];
} NearStrides;
View near_view(const Working *w, const IndexMap *map, NearStrides *strides);

/* An output with memory, for OP_DYNAMIC: run knows its size only now. */
Status out_now(Call *c, Dtype d, int ndim, const int64_t *size);

#endif
