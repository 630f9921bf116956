/* scan.c -- cumulative sums, products and extremes. */
#include "kernels/scan.h"

#include "kernels/copy.h"
#include "ops/geometry.h"
#include "ops/rule.h"

static Status row_dim(const Call *c, Tensor **self, int *dim) {
  TRY(need_tensor(c, 0, self));
  return wrap_dim(c, in_int(c, 1), (*self)->ndim, dim);
}

/* ---- cumsum, cumprod, logcumsumexp: the row is the ScanOp ---------------------------------- */

static Status scan_infer(Call *c) {
  Tensor *self;
  int dim;
  TRY(row_dim(c, &self, &dim));
  ScanOp op = *(const ScanOp *)c->op->def->row;
  Dtype dtype = dtype_is_integral(self->dtype) && op != SCAN_LOGSUMEXP ? DT_I64 : self->dtype;
  if (c->op->schema.nparams > 2) dtype = in_dtype(c, 2, dtype);
  bool float_only = op == SCAN_LOGSUMEXP;
  if (!(dtype_is_float(dtype) || (!float_only && dtype_is_integral(dtype))))
    return op_fail(c, "does not take %s", dtype_name(dtype));
  return out_like(c, dtype, self);
}

static Status scan_run(Call *c) {
  Tensor *self, *out = out_tensor(c, 0);
  int dim;
  Kern *k = &c->ctx->kern;
  ScanOp op = *(const ScanOp *)c->op->def->row;
  TRY(row_dim(c, &self, &dim));
  if (out->dtype == DT_I64 || dtype_is_float(out->dtype)) {
    kernel_copy(k, tensor_view(out), tensor_view(self));
    kernel_scan(k, tensor_view(out), dim, op);
    return OK;
  }
  /* A smaller integer: the elements as that type, the sums in i64, which wrap alike. */
  size_t mark = kern_mark(k);
  int64_t stride[MAX_DIMS], *wide;
  contiguous_strides(out->ndim, out->size, stride);
  TRY_NEW(wide, kern_scratch(k, (size_t)tensor_numel(out) * sizeof *wide));
  View sums = {wide, out->size, stride, out->ndim, DT_I64};
  kernel_copy(k, tensor_view(out), tensor_view(self));
  kernel_copy(k, sums, tensor_view(out));
  kernel_scan(k, sums, dim, op);
  kernel_copy(k, tensor_view(out), sums);
  kern_release(k, mark);
  return OK;
}

/* ---- cummax, cummin: the row is true for the largest ------------------------------------------ */

static Status extreme_infer(Call *c) {
  Tensor *self;
  int dim;
  TRY(row_dim(c, &self, &dim));
  if (dtype_kind(self->dtype) > KIND_FLOAT) return op_fail(c, "%s has no order", dtype_name(self->dtype));
  TRY(out_new(c, self->dtype, self->ndim, self->size));
  return out_new(c, DT_I64, self->ndim, self->size);
}

static Status extreme_run(Call *c) {
  Tensor *self;
  int dim;
  TRY(row_dim(c, &self, &dim));
  kernel_running_extreme(&c->ctx->kern, tensor_view(self), dim, *(const bool *)c->op->def->row, out_view_of(c, 0),
                         out_view_of(c, 1));
  return OK;
}

/* clang-format off */
#define SCAN(text, op) \
  {.schema = text, .infer = scan_infer, .run = scan_run, .shard.place = place_along, .row = &(const ScanOp){op}}
#define EXTREME(text, largest) \
  {.schema = text, .infer = extreme_infer, .run = extreme_run, .shard.place = place_rows_offered, \
    .row = &(const bool){largest}}
/* clang-format on */

/* clang-format off */
const OpDef ops_scan[] = {
    SCAN("aten::cumsum(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", SCAN_SUM),
    SCAN("aten::cumprod(Tensor self, int dim, *, ScalarType? dtype=None) -> Tensor", SCAN_PROD),
    SCAN("aten::logcumsumexp(Tensor self, int dim) -> Tensor", SCAN_LOGSUMEXP),
    EXTREME("aten::cummax(Tensor self, int dim) -> (Tensor values, Tensor indices)", true),
    EXTREME("aten::cummin(Tensor self, int dim) -> (Tensor values, Tensor indices)", false),
    {0},
};
