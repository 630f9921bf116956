/* reshape.c -- views that copy when they must: other sizes, other memory order.
 *
 * view, _unsafe_view and reshape are one op here.  A program's strides may differ from
 * PyTorch's where an op is free to choose its output's, so a view that was legal there
 * may need a copy here.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/rule_move.h"

/* A view if the strides allow it, else a fresh tensor. */
static Status reshape(Call *c, const Tensor *t, Ints size) {
  int64_t stride[MAX_DIMS], whole[MAX_DIMS];
  TRY(infer_size(c, size, tensor_numel(t), whole));
  bool same = size.n == t->ndim && !memcmp(whole, t->size, (size_t)size.n * sizeof *whole);
  if (same && tensor_numel(t) == 0) return out_alias(c, t);
  if (view_strides(t, size.n, whole, stride)) return out_view(c, t, size.n, whole, stride, t->offset);
  return out_new(c, t->dtype, size.n, whole);
}

/* The elements in row-major order; the output is contiguous and may have another size. */
static Status reshape_run(Call *c) {
  View to = out_view_of(c, 0), from = in_view(c, 0);
  int64_t stride[MAX_DIMS];
  contiguous_strides(from.ndim, from.size, stride);
  kernel_copy(&c->ctx->kern, (View){to.data, from.size, stride, from.ndim, to.dtype}, from);
  return OK;
}

static Status reshape_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  return reshape(c, self, in_ints(c, 1));
}

static Status reshape_as_infer(Call *c) {
  Tensor *self, *other;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &other));
  return reshape(c, self, (Ints){other->size, other->ndim});
}

static Status reshape_copy_infer(Call *c) {
  Tensor *self;
  int64_t size[MAX_DIMS];
  TRY(need_tensor(c, 0, &self));
  TRY(infer_size(c, in_ints(c, 1), tensor_numel(self), size));
  return out_new(c, self->dtype, in_ints(c, 1).n, size);
}

static Status ravel_infer(Call *c) {
  Tensor *self;
  int64_t all = -1;
  TRY(need_tensor(c, 0, &self));
  if (tensor_numel(self) == 0) all = 0;
  return reshape(c, self, (Ints){&all, 1});
}

static Status flatten_infer(Call *c) {
  Tensor *self;
  int first, last;
  TRY(need_tensor(c, 0, &self));
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &first));
  TRY(wrap_dim(c, in_int(c, 2), self->ndim, &last));
  if (first > last) return op_fail(c, "start_dim %d comes after end_dim %d", first, last);
  int64_t size[MAX_DIMS] = {1};
  int n = 0;
  for (int i = 0; i < self->ndim; i++) {
    if (i > first && i <= last) size[n - 1] *= self->size[i];
    else size[n++] = self->size[i];
  }
  if (first == last && self->ndim) return out_alias(c, self);
  return reshape(c, self, (Ints){size, n ? n : 1});
}

static Status unflatten_infer(Call *c) {
  Tensor *self;
  int dim;
  Ints sizes = in_ints(c, 2);
  TRY(need_tensor(c, 0, &self));
  TRY(wrap_dim(c, in_int(c, 1), self->ndim, &dim));
  if (self->ndim == 0 || sizes.n == 0) return op_fail(c, "needs a dimension to unflatten and sizes to make of it");
  if (self->ndim - 1 + sizes.n > MAX_DIMS) return op_fail(c, "the result has more than %d dimensions", MAX_DIMS);
  int64_t size[MAX_DIMS];
  memcpy(size, self->size, (size_t)dim * sizeof *size);
  TRY(infer_size(c, sizes, self->size[dim], size + dim));
  memcpy(size + dim + sizes.n, self->size + dim + 1, (size_t)(self->ndim - dim - 1) * sizeof *size);
  return reshape(c, self, (Ints){size, self->ndim - 1 + sizes.n});
}

static Status contiguous_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  MemoryFormat format = c->arg[1].kind == VAL_MEMORY_FORMAT ? c->arg[1].memory_format : MEMORY_CONTIGUOUS;
  if (format == MEMORY_PRESERVE) return op_fail(c, "preserve_format says nothing about the result");
  int64_t stride[MAX_DIMS];
  TRY(format_strides(c, format, self, stride));
  bool there = true;
  for (int i = 0; i < self->ndim; i++) there &= self->size[i] == 1 || self->stride[i] == stride[i];
  if (there || tensor_numel(self) == 0) return out_alias(c, self);
  return out_strided(c, self->dtype, self->ndim, self->size, stride);
}

static Status clone_infer(Call *c) {
  Tensor *self;
  TRY(need_tensor(c, 0, &self));
  return out_format(c, self->dtype, self, c->op->schema.nparams > 1 ? &c->arg[1] : NULL);
}

static Status copy_run(Call *c) {
  kernel_copy(&c->ctx->kern, out_view_of(c, 0), in_view(c, 0));
  return OK;
}

/* clang-format off */
#define RESHAPE(text, fn) \
  {.schema = text, .infer = fn##_infer, .run = reshape_run, .shard.place = rule_reshape, \
    .shard.localize = localize_view, .moves = MOVES_RESHAPE}
#define CLONE(text, fn) \
  {.schema = text, .infer = fn##_infer, .run = copy_run, .shard.place = rule_alias, .moves = MOVES_COPY}
/* clang-format on */

/* clang-format off */
const OpDef ops_reshape[] = {
    RESHAPE("aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)", reshape),
    RESHAPE("aten::_unsafe_view(Tensor self, SymInt[] size) -> Tensor", reshape),
    RESHAPE("aten::reshape(Tensor(a) self, SymInt[] shape) -> Tensor(a)", reshape),
    RESHAPE("aten::view_copy(Tensor self, SymInt[] size) -> Tensor", reshape_copy),
    RESHAPE("aten::view_as(Tensor(a) self, Tensor other) -> Tensor(a)", reshape_as),
    RESHAPE("aten::reshape_as(Tensor(a) self, Tensor other) -> Tensor(a)", reshape_as),
    RESHAPE("aten::ravel(Tensor(a) self) -> Tensor(a)", ravel),
    RESHAPE("aten::flatten.using_ints(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)", flatten),
    RESHAPE("aten::unflatten.int(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)", unflatten),
    CLONE("aten::contiguous(Tensor(a) self, *, MemoryFormat memory_format=0) -> Tensor(a)", contiguous),
    CLONE("aten::clone(Tensor self, *, MemoryFormat? memory_format=None) -> Tensor", clone),
    CLONE("aten::lift_fresh_copy(Tensor self) -> Tensor", clone),
    {0},
};
