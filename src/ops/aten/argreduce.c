/* argreduce.c -- argmax, argmin, and the max and min that tell where.
 *
 * The first of equal elements is taken; a nan is larger and smaller than anything.
 */
#include <string.h>

#include "kernels/copy.h"
#include "kernels/reduce.h"
#include "ops/rule.h"

typedef struct {
  bool largest, with_value;
} Row;

typedef struct {
  bool all, keepdim;
  int dim;
} Request;

static Status read_request(const Call *c, Request *p) {
  const Tensor *x = in_tensor(c, 0);
  char text[128];
  if (!x || dtype_kind(x->dtype) > KIND_FLOAT) return op_fail(c, "the input must be a tensor of numbers");
  *p = (Request){.all = in_none(c, 1), .keepdim = in_bool(c, 2)};
  if (!p->all) TRY(wrap_dim(c, in_int(c, 1), x->ndim, &p->dim));
  int64_t n = p->all ? tensor_numel(x) : x->ndim ? x->size[p->dim] : 1;
  if (n == 0) return op_fail(c, "%s has nothing to choose from", tensor_describe(x, text, sizeof text));
  return OK;
}

static Status argreduce_infer(Call *c) {
  const Row *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  Request p;
  TRY(read_request(c, &p));
  int64_t size[MAX_DIMS];
  int n = 0;
  for (int d = 0; d < x->ndim; d++) {
    bool gone = p.all || d == p.dim;
    if (!gone) size[n++] = x->size[d];
    else if (p.keepdim) size[n++] = 1;
  }
  if (row->with_value) TRY(out_new(c, x->dtype, n, size));
  return out_new(c, DT_I64, n, size);
}

/* Strides of an output in the geometry of the input: 0 in dimension dim. */
static void strides_of(View out, int ndim, int dim, bool keepdim, int64_t *stride) {
  for (int d = 0, o = 0; d < ndim; d++) {
    stride[d] = d == dim ? 0 : out.stride[o];
    o += d != dim || keepdim;
  }
}

static Status argreduce_run(Call *c) {
  const Row *row = c->op->def->row;
  Kern *k = &c->ctx->kern;
  Request p;
  TRY(read_request(c, &p));
  View x = in_view(c, 0), index = out_view_of(c, row->with_value), value = {0};
  int64_t flat[1], one[1] = {1}, dense[MAX_DIMS], strides[2][MAX_DIMS];
  size_t mark = kern_mark(k);
  if (p.all) { /* in one row, in logical order */
    flat[0] = tensor_numel(in_tensor(c, 0));
    if (!tensor_is_contiguous(in_tensor(c, 0))) {
      View copy = {.size = x.size, .stride = dense, .ndim = x.ndim, .dtype = x.dtype};
      contiguous_strides(x.ndim, x.size, dense);
      TRY_NEW(copy.data, kern_scratch(k, (size_t)flat[0] * dtype_size(x.dtype)));
      kernel_copy(k, copy, x);
      x = copy;
    }
    x.size = flat, x.stride = one, x.ndim = 1;
    index.stride = one;
  } else {
    strides_of(index, x.ndim, p.dim, p.keepdim, strides[0]);
    index.stride = strides[0];
    if (row->with_value) {
      value = out_view_of(c, 0);
      strides_of(value, x.ndim, p.dim, p.keepdim, strides[1]);
      value.stride = strides[1];
    }
  }
  kernel_argreduce(k, row->largest, value, index, x, p.dim);
  kern_release(k, mark);
  return OK;
}

static Status place_arg(Rules *r) {
  const Row *row = r->call->op->def->row;
  return row->with_value ? place_rows(r) : place_along(r);
}

/* clang-format off */
#define ARG(text, ...) \
  {.schema = "aten::" text, .infer = argreduce_infer, .run = argreduce_run, .shard.place = place_arg, \
    .row = &(const Row){__VA_ARGS__}}
/* clang-format on */

const OpDef ops_argreduce[] = {
    ARG("argmax(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", .largest = true),
    ARG("argmin(Tensor self, int? dim=None, bool keepdim=False) -> Tensor", .largest = false),
    ARG("max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", .largest = true,
        .with_value = true),
    ARG("min.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)", .largest = false,
        .with_value = true),
    {0}};
