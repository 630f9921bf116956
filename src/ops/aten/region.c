/* region.c -- writing to the part of a tensor that a view would show.
 *
 * X_scatter(self, src, ...) is self with src in place of the view X(self, ...);
 * X_backward(grad, input_sizes, ...) is zero with grad in that place.  A row names the
 * view's GeometryFn; its arguments start at 2 in both.
 */
#include <string.h>

#include "kernels/copy.h"
#include "ops/aten/indexing.h"
#include "ops/rule_move.h"

typedef struct {
  GeometryFn *view;
} RegionRow;

/* What the view shows of a tensor that lies as `out` does. */
static Status region_of(const Call *c, const Geometry *whole, Geometry *region) {
  *region = *whole;
  return ((const RegionRow *)c->op->def->row)->view(c, 2, region);
}

static Status check_source(const Call *c, const Tensor *source, const Geometry *region) {
  if (source->ndim == region->ndim &&
      !memcmp(source->size, region->size, (size_t)region->ndim * sizeof *region->size))
    return OK;
  char a[128], b[128];
  return op_fail(c, "a source of size %s does not fit the part of size %s",
                 shape_describe(source->ndim, source->size, a, sizeof a),
                 shape_describe(region->ndim, region->size, b, sizeof b));
}

/* ---- X_scatter ------------------------------------------------------------------------ */

static Status scatter_infer(Call *c) {
  Tensor *self, *source;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &source));
  Geometry whole = geometry_of(self), region;
  TRY(region_of(c, &whole, &region));
  TRY(check_source(c, source, &region));
  return out_like(c, self->dtype, self);
}

static Status scatter_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  Geometry whole = geometry_of(out), region;
  TRY(region_of(c, &whole, &region));
  copy_self(c, in_tensor(c, 0));
  View part = geometry_view(&region, out), source = in_view(c, 1);
  if (part.data != source.data) kernel_copy(&c->ctx->kern, part, source);
  return OK;
}

/* as_strided names places in self's storage, which the result has only in part: self
 * must be contiguous, and the places within it. */
static Status strided_region(const Call *c, const Tensor *self, const Tensor *whole, Geometry *region) {
  *region = geometry_of(whole);
  TRY(geometry_as_strided(c, 2, region));
  if (!in_none(c, 4)) region->offset += whole->offset - self->offset;
  int64_t last = region->offset - whole->offset, reach;
  bool inside = last >= 0;
  for (int d = 0; d < region->ndim; d++) {
    if (region->size[d] == 0) return region->offset = whole->offset, OK; /* wherever it is */
    inside &= !__builtin_mul_overflow(region->size[d] - 1, region->stride[d], &reach) &&
              !__builtin_add_overflow(last, reach, &last);
  }
  return inside && last < tensor_numel(whole) ? OK : op_fail(c, "the view reaches outside the tensor");
}

static Status strided_scatter_infer(Call *c) {
  Tensor *self, *source;
  Geometry region;
  TRY(need_tensor(c, 0, &self));
  TRY(need_tensor(c, 1, &source));
  if (!tensor_is_contiguous(self)) return op_fail(c, "self must be contiguous");
  TRY(strided_region(c, self, self, &region));
  TRY(check_source(c, source, &region));
  return out_new(c, self->dtype, self->ndim, self->size);
}

static Status strided_scatter_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  Geometry region;
  TRY(strided_region(c, in_tensor(c, 0), out, &region));
  copy_self(c, in_tensor(c, 0));
  kernel_copy(&c->ctx->kern, geometry_view(&region, out), in_view(c, 1));
  return OK;
}

static Status scatter_place(Rules *r) {
  return rule_view_scatter(r, ((const RegionRow *)r->call->op->def->row)->view);
}
static Status backward_place(Rules *r) {
  return rule_view_backward(r, ((const RegionRow *)r->call->op->def->row)->view);
}

/* ---- X_backward ------------------------------------------------------------------------ */

static Status backward_infer(Call *c) {
  Tensor *grad;
  Geometry whole, region;
  TRY(need_tensor(c, 0, &grad));
  TRY(geometry_contiguous(c, grad->dtype, in_ints(c, 1), &whole));
  TRY(region_of(c, &whole, &region));
  TRY(check_source(c, grad, &region));
  return out_geometry_new(c, &whole);
}

static Status backward_run(Call *c) {
  Tensor *out = out_tensor(c, 0);
  Geometry whole = geometry_of(out), region;
  const char zero[16] = {0};
  TRY(region_of(c, &whole, &region));
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  kernel_copy(&c->ctx->kern, geometry_view(&region, out), in_view(c, 0));
  return OK;
}

/* Windows may overlap, so their gradients add up. */
static Status unfold_backward_body(Call *c) {
  Tensor *out = out_tensor(c, 0), *grad = in_tensor(c, 0);
  Working to, from;
  NearStrides strides;
  const char zero[16] = {0};
  kernel_fill(&c->ctx->kern, tensor_view(out), zero);
  TRY(working_begin(c, out, sum_dtype(out->dtype), &to));
  TRY(working_begin(c, grad, to.tensor.dtype, &from));
  Geometry whole = geometry_of(&to.tensor), region;
  TRY(region_of(c, &whole, &region));
  IndexMap map = {.ndim = region.ndim, .overlaps = true};
  memcpy(map.size, region.size, sizeof map.size);
  memcpy(map.stride, region.stride, sizeof map.stride);
  kernel_scatter(&c->ctx->kern, &map, to.data, near_view(&from, &map, &strides), SCATTER_ADD);
  working_end(c, out, &to);
  return OK;
}

static Status unfold_backward_run(Call *c) { return with_scratch(c, unfold_backward_body); }

/* ---- around them ------------------------------------------------------------------------- */

/* Zeros with self on a diagonal of two new dimensions. */
static Status diag_embed(Call *c, Tensor *self, int64_t offset, int64_t dim1, int64_t dim2, Tensor **out) {
  int a, b, ndim = self->ndim + 1;
  if (self->ndim == 0) return op_fail(c, "a 0-d tensor has no dimension for the diagonal");
  TRY(wrap_dim(c, dim1, ndim, &a));
  TRY(wrap_dim(c, dim2, ndim, &b));
  if (a == b || ndim > MAX_DIMS) return op_fail(c, "the two dimensions of a diagonal must differ, both are %d", a);
  int64_t size[MAX_DIMS], side = self->size[self->ndim - 1];
  if (__builtin_sub_overflow(side, offset < 0 ? offset : 0, &side) ||
      __builtin_add_overflow(side, offset > 0 ? offset : 0, &side))
    return op_fail(c, "there is no matrix with a diagonal %lld", (long long)offset);
  for (int d = 0, from = 0; d < ndim; d++) size[d] = d == a || d == b ? side : self->size[from++];
  Tensor *zeros;
  TRY(OP(c, "aten.new_zeros.default", &zeros, val_tensor(self), val_ints(size, ndim)));
  return OP(c, "aten.diagonal_scatter.default", out, val_tensor(zeros), val_tensor(self), val_int(offset),
            val_int(a), val_int(b));
}

static Status diag_embed_compose(Call *c) {
  Tensor *self, *out;
  TRY(need_tensor(c, 0, &self));
  TRY(diag_embed(c, self, in_int(c, 1), in_int(c, 2), in_int(c, 3), &out));
  return out_value(c, val_tensor(out));
}

/* A vector becomes a diagonal matrix, a matrix gives its diagonal. */
static Status diag_compose(Call *c) {
  Tensor *self, *out;
  TRY(need_tensor(c, 0, &self));
  if (self->ndim == 1) TRY(diag_embed(c, self, in_int(c, 1), 0, 1, &out));
  else if (self->ndim == 2) TRY(OP(c, "aten.diagonal_copy.default", &out, val_tensor(self), c->arg[1]));
  else return op_fail(c, "expects a vector or a matrix, not %d dimensions", self->ndim);
  return out_value(c, val_tensor(out));
}

/* clang-format off */
#define SCATTER(text, fn) \
  {.schema = text, .infer = scatter_infer, .run = scatter_run, .row = &(const RegionRow){fn}, .flags = OP_UPDATE, \
    .shard.place = scatter_place}
#define BACKWARD(text, fn) \
  {.schema = text, .infer = backward_infer, .run = backward_run, .row = &(const RegionRow){fn}, \
    .shard.place = backward_place}
/* clang-format on */

/* clang-format off */
const OpDef ops_region[] = {
    SCATTER("aten::select_scatter(Tensor self, Tensor src, int dim, SymInt index) -> Tensor", geometry_select),
    SCATTER("aten::slice_scatter(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt "
            "step=1) -> Tensor", geometry_slice),
    SCATTER("aten::diagonal_scatter(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1) -> Tensor",
        geometry_diagonal),
    SCATTER("tess::narrow_scatter(Tensor self, Tensor src, int dim, SymInt start, SymInt length) -> Tensor",
        geometry_narrow),
    {.schema = "aten::as_strided_scatter(Tensor self, Tensor src, SymInt[] size, SymInt[] stride, SymInt? "
               "storage_offset=None) -> Tensor", .infer = strided_scatter_infer, .run = strided_scatter_run,
                   .flags = OP_UPDATE},
    BACKWARD("aten::select_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt index) -> Tensor",
        geometry_select),
    BACKWARD("aten::slice_backward(Tensor grad_output, SymInt[] input_sizes, int dim, SymInt start, SymInt end, "
             "SymInt step) -> Tensor", geometry_slice),
    BACKWARD("aten::diagonal_backward(Tensor grad_output, SymInt[] input_sizes, int offset, int dim1, int dim2) "
             "-> Tensor", geometry_diagonal),
    {.schema = "aten::unfold_backward(Tensor grad_in, SymInt[] input_sizes, int dim, int size, int step) -> Tensor", .infer = backward_infer, .run = unfold_backward_run, .row = &(const RegionRow){geometry_unfold}, .shard.place = backward_place},
    {.schema = "aten::diag_embed(Tensor self, int offset=0, int dim1=-2, int dim2=-1) -> Tensor",
     .compose = diag_embed_compose},
    {.schema = "aten::diag(Tensor self, int diagonal=0) -> Tensor", .compose = diag_compose},
    {0},
};
