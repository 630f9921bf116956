/* indexing.c -- see indexing.h. */
#include "ops/aten/indexing.h"

#include <string.h>

#include "kernels/copy.h"
#include "kernels/fill.h"

static Status check_range(const Call *c, View v, int64_t extent, int dim, int64_t low) {
  int64_t least, most;
  kernel_min_max_i64(v, &least, &most);
  if (least >= low && most < extent) return OK;
  for (int d = 0; d < v.ndim; d++) {
    if (v.size[d] == 0) return OK;
  }
  return op_fail(c, "index %lld is out of bounds for dimension %d with size %lld",
                 (long long)(least < low ? least : most), dim, (long long)extent);
}

Status indices_prepare(const Call *c, const Tensor *index, int64_t extent, int dim, Negative negative,
                       Indices *out) {
  if (!dtype_is_int(index->dtype)) return op_fail(c, "indices must be integers, not %s", dtype_name(index->dtype));
  View v = tensor_view(index);
  out->ndim = index->ndim;
  memcpy(out->size, index->size, sizeof out->size);
  memcpy(out->stride, index->stride, sizeof out->stride);
  int64_t n = tensor_numel(index);
  out->data = v.data;
  if (index->dtype == DT_I64 && kernel_all_below(v, extent)) return OK;
  int64_t *ready;
  TRY_NEW(ready, kern_scratch(&c->ctx->kern, (size_t)n * sizeof *ready));
  contiguous_strides(index->ndim, index->size, out->stride);
  View to = {ready, out->size, out->stride, out->ndim, DT_I64};
  kernel_copy(&c->ctx->kern, to, v);
  TRY(check_range(c, to, extent, dim, negative == NEGATIVE_FAILS ? 0 : -extent));
  for (int64_t i = 0; i < n; i++) ready[i] += ready[i] < 0 ? extent : 0;
  out->data = ready;
  return OK;
}

void gather_map(const Tensor *far, int dim, const Indices *index, IndexMap *map) {
  int ndim = index->ndim;
  *map = (IndexMap){.ndim = ndim, .nindex = 1};
  IndexAxis *axis = &map->index[0];
  axis->data = index->data;
  axis->step = far->ndim ? far->stride[dim] : 0;
  for (int d = 0; d < ndim; d++) {
    map->size[d] = index->size[d];
    map->stride[d] = d == dim || d >= far->ndim ? 0 : far->stride[d];
    axis->stride[d] = index->stride[d];
  }
}

void select_map(const Tensor *far, int dim, const Indices *index, IndexMap *map) {
  int ndim = far->ndim ? far->ndim : 1;
  *map = (IndexMap){.ndim = ndim, .nindex = 1};
  IndexAxis *axis = &map->index[0];
  axis->data = index->data;
  axis->step = far->ndim ? far->stride[dim] : 0;
  axis->stride[dim] = index->ndim ? index->stride[0] : 0;
  for (int d = 0; d < ndim; d++) {
    map->size[d] = d == dim ? (index->ndim ? index->size[0] : 1) : far->size[d];
    map->stride[d] = d == dim ? 0 : far->stride[d];
  }
}

View near_view(const Working *w, const IndexMap *map, NearStrides *strides) {
  const Tensor *t = &w->tensor;
  for (int d = 0; d < map->ndim; d++) strides->stride[d] = d < t->ndim ? t->stride[d] : 0;
  return (View){w->data, map->size, strides->stride, map->ndim, t->dtype};
}

void copy_self(Call *c, const Tensor *self) {
  View to = out_view_of(c, 0), from = tensor_view(self);
  if (to.data != from.data) kernel_copy(&c->ctx->kern, to, from);
}

Status working_begin(const Call *c, const Tensor *t, Dtype d, Working *w) {
  w->tensor = *t;
  w->data = tensor_data(t);
  w->copied = t->dtype != d;
  if (!w->copied) return OK;
  if (!dtype_is_compute(t->dtype) || !dtype_is_compute(d))
    return op_fail(c, "%s cannot be converted to %s", dtype_name(t->dtype), dtype_name(d));
  w->tensor.dtype = d;
  w->tensor.offset = 0;
  contiguous_strides(t->ndim, t->size, w->tensor.stride);
  TRY_NEW(w->data, kern_scratch(&c->ctx->kern, (size_t)tensor_numel(t) * dtype_size(d)));
  kernel_copy(&c->ctx->kern, (View){w->data, w->tensor.size, w->tensor.stride, t->ndim, d}, tensor_view(t));
  return OK;
}

void working_end(const Call *c, const Tensor *t, const Working *w) {
  if (!w->copied) return;
  kernel_copy(&c->ctx->kern, tensor_view(t),
              (View){w->data, w->tensor.size, w->tensor.stride, t->ndim, w->tensor.dtype});
}

Status out_now(Call *c, Dtype d, int ndim, const int64_t *size) {
  TRY(out_new(c, d, ndim, size));
  return tensor_materialize(out_tensor(c, c->nout - 1));
}
