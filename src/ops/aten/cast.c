/* cast.c -- the same values in another dtype or layout.
 *
 * `to` returns its argument when there is nothing to do; _to_copy never does.  Devices,
 * layouts other than strided and non_blocking mean nothing here. */
#include <string.h>

#include "kernels/copy.h"
#include "ops/geometry.h"
#include "ops/pointwise_ops.h"
#include "ops/promote.h"
#include "ops/rule.h"

/* PwRow.imm of this family: the arguments with the dtype (or a tensor that has it), the
 * copy flag and the memory format; PwRow.how: */
enum { ALWAYS_COPY = 1 };

static Dtype target_dtype(const Call *c, const PwRow *row) {
  const Value *v = &c->arg[row->imm[0]];
  return v->kind == VAL_TENSOR ? v->tensor->dtype : v->kind == VAL_DTYPE ? v->dtype : in_tensor(c, 0)->dtype;
}

static bool same_layout(const Tensor *a, const Tensor *b) {
  for (int d = 0; d < a->ndim; d++) {
    if (a->size[d] > 1 && a->stride[d] != b->stride[d]) return false;
  }
  return true;
}

static Status cast_infer(Call *c) {
  const PwRow *row = c->op->def->row;
  const Tensor *x = in_tensor(c, 0);
  Dtype d = target_dtype(c, row);
  const Value *format = row->imm[2] ? &c->arg[row->imm[2]] : NULL;
  if (d != x->dtype && (!dtype_is_compute(d) || !dtype_is_compute(x->dtype))) {
    return op_fail(c, "no conversion from %s to %s", dtype_name(x->dtype), dtype_name(d));
  }
  bool must_copy = row->how & ALWAYS_COPY || (row->imm[1] && in_bool(c, row->imm[1]));
  if (must_copy || d != x->dtype) return out_format(c, d, x, format);
  if (!format || format->kind != VAL_MEMORY_FORMAT || format->memory_format == MEMORY_PRESERVE)
    return out_alias(c, x);
  TRY(out_format(c, d, x, format));
  if (!same_layout(x, out_tensor(c, c->nout - 1))) return OK;
  c->nout--;
  return out_alias(c, x);
}

static Status cast_run(Call *c) {
  kernel_copy(&c->ctx->kern, out_view_of(c, 0), in_view(c, 0));
  return OK;
}

static Status emit_cast(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = target_dtype(c, row);
  return pw_return(p, pw_cast(p, reg[0], d), d, out);
}

/* copy(self, src): src as a tensor like self. */
static Status copy_infer(Call *c) {
  const Tensor *to = in_tensor(c, 0), *from = in_tensor(c, 1);
  int ndim = 0;
  int64_t size[MAX_DIMS];
  TRY(broadcast_args(c, 3, &ndim, size));
  if (ndim != to->ndim || memcmp(size, to->size, (size_t)ndim * sizeof *size)) {
    char a[128], b[128];
    return op_fail(c, "%s does not broadcast to %s", tensor_describe(from, a, sizeof a),
                   tensor_describe(to, b, sizeof b));
  }
  return out_like(c, to->dtype, to);
}
static Status copy_run(Call *c) {
  kernel_copy(&c->ctx->kern, out_view_of(c, 0), in_view(c, 1));
  return OK;
}

#define CAST(HOW, ...)                                                                                          \
  .infer = cast_infer, .run = cast_run, .flags = OP_POINTWISE, .moves = MOVES_COPY, .shard.linear = LINEAR_ALL, \
  .row = &(const PwRow) {                                                                                       \
    .emit = emit_cast, PW_CAST, HOW, { __VA_ARGS__ }                                                            \
  }

const OpDef ops_cast[] = {
    {.schema = "aten::to.dtype(Tensor(a) self, ScalarType dtype, bool non_blocking=False, bool copy=False, "
               "MemoryFormat? memory_format=None) -> Tensor(a)",
     CAST(0, 1, 3, 4)},
    {.schema = "aten::to.dtype_layout(Tensor(a) self, *, ScalarType? dtype=None, Layout? layout=None, Device? "
               "device=None, bool? pin_memory=None, bool non_blocking=False, bool copy=False, MemoryFormat? "
               "memory_format=None) -> Tensor(a)",
     CAST(0, 1, 6, 7)},
    {.schema = "aten::to.device(Tensor(a) self, Device device, ScalarType dtype, bool non_blocking=False, bool "
               "copy=False, MemoryFormat? memory_format=None) -> Tensor(a)",
     CAST(0, 2, 4, 5)},
    {.schema = "aten::to.other(Tensor(a) self, Tensor other, bool non_blocking=False, bool copy=False, "
               "MemoryFormat? memory_format=None) -> Tensor(a)",
     CAST(0, 1, 3, 4)},
    {.schema = "aten::_to_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
               "bool? pin_memory=None, bool non_blocking=False, MemoryFormat? memory_format=None) -> Tensor",
     CAST(ALWAYS_COPY, 1, 0, 6)},
    {.schema = "aten::type_as(Tensor self, Tensor other) -> Tensor", CAST(0, 1)},
    {.schema = "aten::copy(Tensor self, Tensor src, bool non_blocking=False) -> Tensor",
     .infer = copy_infer,
     .run = copy_run,
     .shard.place = place_pointwise,
     .shard.linear = LINEAR_ALL},
    {0},
};
