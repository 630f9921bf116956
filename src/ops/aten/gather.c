/* gather.c -- elements picked along one dimension, or from a tensor seen as flat. */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

/* ---- index_select: whole slices, by a list of indices ---------------------------------- */

static Status index_select_infer(Call *c) {
  Tensor *self, *index;
  int dim;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 2, &index));
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  if (index->ndim > 1) return op_fail(c, "the index must have at most one dimension, not %d", index->ndim);
  int64_t size[MAX_DIMS], n = index->ndim ? index->size[0] : 1;
  memcpy(size, self->size, sizeof size);
  size[dim] = n;
  if (self->ndim == 0 && n != 1)
    return op_fail(c, "a 0-d tensor has one element to select, not %lld", (long long)n);
  return out_new(c, self->dtype, self->ndim, size);
}

static Status index_select_body(Call *c) {
  Tensor *self = in_tensor(c, 0), *out = out_tensor(c, 0);
  int dim;
  Indices index;
  IndexMap map;
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  TRY(indices_prepare(c, in_tensor(c, 2), self->ndim ? self->size[dim] : 1, dim, NEGATIVE_FAILS, &index));
  select_map(self, dim, &index, &map);
  Working w = {.tensor = *out, .data = tensor_data(out)};
  NearStrides strides;
  kernel_gather(&c->ctx->kern, &map, near_view(&w, &map, &strides), tensor_data(self));
  return OK;
}

static Status index_select_run(Call *c) { return with_scratch(c, index_select_body); }

/* ---- gather: every element has an index of its own --------------------------------------- */

static Status gather_infer(Call *c) {
  Tensor *self, *index;
  int dim, ndim;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 2, &index));
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  ndim = self->ndim ? self->ndim : 1;
  bool fits = (index->ndim ? index->ndim : 1) == ndim;
  for (int d = 0; fits && d < index->ndim; d++)
    fits = d == dim || index->size[d] <= (self->ndim ? self->size[d] : 1);
  if (!fits && tensor_numel(index)) {
    char a[128], b[128];
    return op_fail(c, "an index of size %s does not fit %s apart from dimension %d",
                   shape_describe(index->ndim, index->size, a, sizeof a), tensor_describe(self, b, sizeof b), dim);
  }
  return out_new(c, self->dtype, index->ndim, index->size);
}

static Status gather_body(Call *c) {
  Tensor *self = in_tensor(c, 0);
  int dim;
  Indices index;
  IndexMap map;
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  TRY(indices_prepare(c, in_tensor(c, 2), self->ndim ? self->size[dim] : 1, dim, NEGATIVE_FAILS, &index));
  gather_map(self, dim, &index, &map);
  kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0), tensor_data(self));
  return OK;
}

static Status gather_run(Call *c) { return with_scratch(c, gather_body); }

/* gather_part: self is the rows from `begin` on of a longer tensor; 0 for the others'. */
static Status gather_part_body(Call *c) {
  Tensor *self = in_tensor(c, 0), *given = in_tensor(c, 2), *out = out_tensor(c, 0);
  int dim;
  int64_t n = tensor_numel(given), begin = in_int(c, 3), *at;
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  int64_t rows = self->size[dim], size = (int64_t)dtype_size(out->dtype);
  Indices index = {.ndim = given->ndim};
  memcpy(index.size, given->size, sizeof index.size);
  contiguous_strides(given->ndim, given->size, index.stride);
  TRY_NEW(at, kern_scratch(&c->ctx->kern, (size_t)(2 * n) * sizeof *at)); /* then as they were */
  index.data = at;
  kernel_copy(&c->ctx->kern, (View){at + n, given->size, index.stride, given->ndim, DT_I64}, tensor_view(given));
  for (int64_t i = 0; i < n; i++) {
    uint64_t row = (uint64_t)at[n + i] - (uint64_t)begin; /* whatever the numbers are */
    at[i] = row < (uint64_t)rows ? (int64_t)row : 0;
  }
  IndexMap map;
  gather_map(self, dim, &index, &map);
  if (rows) kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0), tensor_data(self));
  for (int64_t i = 0; i < n; i++) {
    if ((uint64_t)at[n + i] - (uint64_t)begin >= (uint64_t)rows)
      memset((char *)tensor_data(out) + i * size, 0, (size_t)size);
  }
  return OK;
}

static Status gather_part_run(Call *c) { return with_scratch(c, gather_part_body); }

/* Rows of another rank are 0 here: the sum over the ranks has them. */
static Status gather_localize(Local *l) {
  int dim;
  bool cut = false;
  int64_t begin;
  TRY(wrap_dim(l->call, in_int(l->call, 1), l->in[0]->ndim, &dim));
  for (int a = 0; a < l->naxes; a++) cut |= is_s_of(&local_place_in(l, 0)[a], dim);
  if (!cut) return OK;
  TRY(local_in_begin(l, 0, dim, &begin));
  l->op = op_find("tess.gather_part.default");
  l->arg[3] = val_int(begin);
  return OK;
}

/* As gather, but self and the indices broadcast, negative indices count from the end,
 * and no dim means that both are flat. */
static Status take_along_dim_compose(Call *c) {
  Tensor *self, *index, *negative, *wrapped, *result;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &index));
  int dim = 0, ndim = self->ndim;
  if (in_none(c, 2)) {
    int64_t flat = tensor_numel(index);
    TRY(OP(c, "aten.reshape.default", &index, val_tensor(index), val_ints(&flat, 1)));
    TRY(OP(c, "aten.take.default", &result, val_tensor(self), val_tensor(index)));
    return out_value(c, val_tensor(result));
  }
  if (self->ndim != index->ndim || ndim == 0)
    return op_fail(c, "self has %d dimensions, the indices %d", self->ndim, index->ndim);
  TRY(wrap_dim(c, in_int(c, 2), ndim, &dim));
  int64_t size[MAX_DIMS], of_index[MAX_DIMS];
  memcpy(size, self->size, sizeof size);
  memcpy(of_index, index->size, sizeof of_index);
  size[dim] = of_index[dim] = 1;
  TRY(broadcast_size(c, &ndim, size, ndim, of_index));
  memcpy(of_index, size, sizeof of_index);
  size[dim] = self->size[dim], of_index[dim] = index->size[dim];
  TRY(OP(c, "aten.expand.default", &self, val_tensor(self), val_ints(size, ndim)));
  TRY(OP(c, "aten.lt.Scalar", &negative, val_tensor(index), val_int(0)));
  TRY(OP(c, "aten.add.Scalar", &wrapped, val_tensor(index), val_int(size[dim])));
  TRY(OP(c, "aten.where.self", &index, val_tensor(negative), val_tensor(wrapped), val_tensor(index)));
  TRY(OP(c, "aten.expand.default", &index, val_tensor(index), val_ints(of_index, ndim)));
  TRY(OP(c, "aten.gather.default", &result, val_tensor(self), val_int(dim), val_tensor(index)));
  return out_value(c, val_tensor(result));
}

/* ---- take: self seen as flat --------------------------------------------------------------- */

static Status take_infer(Call *c) {
  Tensor *self, *index;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &index));
  return out_new(c, self->dtype, index->ndim, index->size);
}

static Status take_body(Call *c) {
  Tensor *self = in_tensor(c, 0);
  int64_t n = tensor_numel(self);
  Indices index;
  TRY(indices_prepare(c, in_tensor(c, 1), n, 0, NEGATIVE_COUNTS_FROM_END, &index));
  void *flat = tensor_data(self);
  if (!tensor_is_contiguous(self)) {
    int64_t stride[MAX_DIMS];
    contiguous_strides(self->ndim, self->size, stride);
    TRY_NEW(flat, kern_scratch(&c->ctx->kern, (size_t)n * dtype_size(self->dtype)));
    kernel_copy(&c->ctx->kern, (View){flat, self->size, stride, self->ndim, self->dtype}, tensor_view(self));
  }
  IndexMap map = {.ndim = index.ndim, .nindex = 1, .index = {{.data = index.data, .step = 1}}};
  memcpy(map.size, index.size, sizeof map.size);
  memcpy(map.index[0].stride, index.stride, sizeof index.stride);
  kernel_gather(&c->ctx->kern, &map, out_view_of(c, 0), flat);
  return OK;
}

static Status take_run(Call *c) { return with_scratch(c, take_body); }

/* clang-format off */
const OpDef ops_gather[] = {
    {.schema = "aten::index_select(Tensor self, int dim, Tensor index) -> Tensor", .infer = index_select_infer,
     .run = index_select_run, .shard.place = rule_index_select},
    {.schema = "aten::gather(Tensor self, int dim, Tensor index, *, bool sparse_grad=False) -> Tensor",
     .infer = gather_infer, .run = gather_run, .shard.place = rule_gather, .shard.localize = gather_localize},
    {.schema = "tess::gather_part(Tensor self, int dim, Tensor index, int begin) -> Tensor", .infer = gather_infer,
     .run = gather_part_run},
    {.schema = "aten::take_along_dim(Tensor self, Tensor indices, int? dim=None) -> Tensor",
     .compose = take_along_dim_compose},
    {.schema = "aten::take(Tensor self, Tensor index) -> Tensor", .infer = take_infer, .run = take_run,
     .shard.place = rule_take},
    {0},
};
