/* mask.c -- where elements are not zero, and what a mask selects.
 *
 * Sizes depend on elements here: most of these ops make their outputs in run. */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"

/* Coordinates of the elements that are not zero, in scratch: [ndim, n]. */
static Status nonzero_lists(Call *c, const Tensor *t, int64_t *n, int64_t **lists) {
  *n = kernel_count_nonzero(tensor_view(t));
  TRY_NEW(*lists, kern_scratch(&c->ctx->kern, (size_t)(*n * (t->ndim ? t->ndim : 1)) * sizeof **lists));
  kernel_nonzero(tensor_view(t), *n, *lists, *n, 1);
  return OK;
}

/* ---- nonzero ---------------------------------------------------------------------------- */

static Status nonzero_run(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  int64_t n = kernel_count_nonzero(tensor_view(self)), size[2] = {n, self->ndim};
  TRY(out_now(c, DT_I64, 2, size));
  kernel_nonzero(tensor_view(self), n, tensor_data(out_tensor(c, 0)), 1, self->ndim);
  return OK;
}

/* One list per dimension. */
static Status nonzero_numpy_body(Call *c) {
  Tensor *self;
  int64_t n, *lists, one = 1;
  TRY(need_tensor(c, 0, &self));
  TRY(nonzero_lists(c, self, &n, &lists));
  if (self->ndim == 0) memset(lists, 0, (size_t)n * sizeof *lists);
  for (int d = 0; d < (self->ndim ? self->ndim : 1); d++) {
    TRY(out_now(c, DT_I64, 1, &n));
    kernel_copy(&c->ctx->kern, out_view_of(c, d), (View){lists + d * n, &n, &one, 1, DT_I64});
  }
  return OK;
}

static Status nonzero_numpy_run(Call *c) { return with_scratch(c, nonzero_numpy_body); }

/* The first `size` of them; rows that are left over hold fill_value. */
static Status nonzero_static_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  int64_t size[2] = {in_int(c, 1), self->ndim};
  return out_new(c, DT_I64, 2, size);
}

static Status nonzero_static_body(Call *c) {
  int64_t n, *lists, fill = in_int(c, 2);
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  TRY(nonzero_lists(c, self, &n, &lists));
  kernel_fill(&c->ctx->kern, tensor_view(out), &fill);
  int64_t size[2] = {n < out->size[0] ? n : out->size[0], self->ndim}, stride[2] = {1, n};
  kernel_copy(&c->ctx->kern, (View){tensor_data(out), size, out->stride, 2, DT_I64},
              (View){lists, size, stride, 2, DT_I64});
  return OK;
}

static Status nonzero_static_run(Call *c) { return with_scratch(c, nonzero_static_body); }

/* ---- masks that broadcast ------------------------------------------------------------------ */

/* self and a mask, seen in their common size. */
typedef struct {
  int ndim;
  int64_t size[MAX_DIMS], self_stride[MAX_DIMS], mask_stride[MAX_DIMS];
  Tensor *self, *mask;
} Masked;

static Status masked_of(const Call *c, Masked *m) {
  m->ndim = 0;
  TRY(need_tensor(c, 0, &m->self));
  TRY(need_tensor(c, 1, &m->mask));
  if (m->mask->dtype != DT_BOOL && m->mask->dtype != DT_U8)
    return op_fail(c, "the mask must be bool, not %s", dtype_name(m->mask->dtype));
  TRY(broadcast_size(c, &m->ndim, m->size, m->self->ndim, m->self->size));
  TRY(broadcast_size(c, &m->ndim, m->size, m->mask->ndim, m->mask->size));
  broadcast_strides(m->self, m->ndim, m->self_stride);
  broadcast_strides(m->mask, m->ndim, m->mask_stride);
  return OK;
}

/* The places that the mask names in a tensor of the common size: index lists over [n]. */
static Status masked_map(Call *c, const Masked *m, const int64_t *far_stride, IndexMap *map) {
  View mask = {tensor_data(m->mask), m->size, m->mask_stride, m->ndim, m->mask->dtype};
  int64_t n = kernel_count_nonzero(mask), *lists;
  TRY_NEW(lists, kern_scratch(&c->ctx->kern, (size_t)(n * (m->ndim ? m->ndim : 1)) * sizeof *lists));
  kernel_nonzero(mask, n, lists, n, 1);
  *map = (IndexMap){.ndim = 1, .size = {n}, .nindex = m->ndim};
  for (int d = 0; d < m->ndim; d++)
    map->index[d] = (IndexAxis){.data = lists + d * n, .stride = {1}, .step = far_stride[d]};
  return OK;
}

static Status masked_select_body(Call *c) {
  Masked m;
  IndexMap map;
  TRY(masked_of(c, &m));
  TRY(masked_map(c, &m, m.self_stride, &map));
  TRY(out_now(c, m.self->dtype, 1, map.size));
  kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0), tensor_data(m.self));
  return OK;
}

static Status masked_select_run(Call *c) { return with_scratch(c, masked_select_body); }

static Status masked_scatter_infer(Call *c) {
  Masked m;
  Tensor *source;
  TRY(masked_of(c, &m));
  TRY(need_tensor(c, 2, &source));
  if (source->dtype != m.self->dtype)
    return op_fail(c, "self is %s, the source %s", dtype_name(m.self->dtype), dtype_name(source->dtype));
  return out_new(c, m.self->dtype, m.ndim, m.size);
}

/* The elements of source, in order, to the places where the mask is true. */
static Status masked_scatter_body(Call *c) {
  Masked m;
  IndexMap map;
  Tensor *out = out_tensor(c, 0), *source = in_tensor(c, 2);
  TRY(masked_of(c, &m));
  TRY(masked_map(c, &m, out->stride, &map));
  int64_t have = tensor_numel(source), stride[MAX_DIMS], one = 1;
  if (have < map.size[0]) {
    return op_fail(c, "the mask is true at %lld places, the source has %lld elements", (long long)map.size[0],
                   (long long)have);
  }
  copy_self(c, m.self);
  void *flat = tensor_data(source);
  if (!tensor_is_contiguous(source)) {
    contiguous_strides(source->ndim, source->size, stride);
    TRY_NEW(flat, kern_scratch(&c->ctx->kern, (size_t)have * dtype_size(source->dtype)));
    kernel_copy(&c->ctx->kern, (View){flat, source->size, stride, source->ndim, source->dtype},
                tensor_view(source));
  }
  kernel_scatter(&c->ctx->kern, &map, tensor_data(out), (View){flat, map.size, &one, 1, source->dtype},
                 SCATTER_ASSIGN);
  return OK;
}

static Status masked_scatter_run(Call *c) { return with_scratch(c, masked_scatter_body); }

/* ---- one element as a number ------------------------------------------------------------------ */

static Status item_run(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  if (tensor_numel(self) != 1 || !dtype_is_compute(self->dtype)) {
    char buf[128];
    return op_fail(c, "%s is not one number", tensor_describe(self, buf, sizeof buf));
  }
  return out_value(c, val_load(self->dtype, tensor_data(self)));
}

/* clang-format off */
const OpDef ops_mask[] = {
    {.schema = "aten::nonzero(Tensor self) -> Tensor", .run = nonzero_run, .flags = OP_DYNAMIC},
    {.schema = "aten::argwhere(Tensor self) -> Tensor", .run = nonzero_run, .flags = OP_DYNAMIC},
    {.schema = "aten::nonzero_numpy(Tensor self) -> Tensor[]", .run = nonzero_numpy_run, .flags = OP_DYNAMIC},
    {.schema = "aten::nonzero_static(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor",
     .infer = nonzero_static_infer, .run = nonzero_static_run},
    {.schema = "aten::masked_select(Tensor self, Tensor mask) -> Tensor", .run = masked_select_run,
     .flags = OP_DYNAMIC},
    {.schema = "aten::masked_scatter(Tensor self, Tensor mask, Tensor source) -> Tensor",
     .infer = masked_scatter_infer, .run = masked_scatter_run, .flags = OP_UPDATE},
    {.schema = "aten::_local_scalar_dense(Tensor self) -> Scalar", .run = item_run, .flags = OP_DYNAMIC},
    {.schema = "aten::item(Tensor self) -> Scalar", .run = item_run, .flags = OP_DYNAMIC},
    {0},
};
