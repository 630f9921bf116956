/* where.c -- choosing between two values: by a condition, by a mask, by bounds. */
#include <math.h>

#include "ops/pointwise_ops.h"
#include "ops/promote.h"
#include "ops/rule.h"

static Status emit_where(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 6, &d));
  int condition = pw_operand(c, p, reg, 0, DT_BOOL), x = pw_operand(c, p, reg, 1, d),
      y = pw_operand(c, p, reg, 2, d);
  return pw_return(p, pw_op(p, row->op, condition, x, y, NULL), d, out);
}

/* mask ? value : self; the result is of self's dtype. */
static Status emit_masked_fill(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  const Tensor *value = in_tensor(c, 2);
  if (value && value->ndim)
    return op_fail(c, "the value must be a number or a tensor of no dimensions, not of %d", value->ndim);
  int mask = pw_operand(c, p, reg, 1, DT_BOOL), y = pw_operand(c, p, reg, 2, d);
  return pw_return(p, pw_op(p, row->op, mask, y, reg[0], NULL), d, out);
}

/* Bounds as numbers, either may be missing.  A nan bound makes everything nan, which
 * maximum and minimum do and the clamp instruction does not. */
static Status emit_clamp_to(const Call *c, PwProgram *p, const int *reg, int low, int high, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 1u | (low ? 1u << low : 0) | (high ? 1u << high : 0), &d));
  int x = pw_cast(p, reg[0], d);
  bool integral = dtype_is_integral(d), any_nan = false;
  PwImm imm = integral ? (PwImm){.i = {INT64_MIN, INT64_MAX, 0}} : (PwImm){.f = {-INFINITY, INFINITY, 0}};
  const int bound[2] = {low, high};
  for (int k = 0; k < 2; k++) {
    if (!bound[k] || in_none(c, bound[k])) continue;
    any_nan = any_nan || isnan(in_float(c, bound[k]));
    pw_set_imm(&imm, k, d, &c->arg[bound[k]]);
  }
  if (any_nan && !integral) return pw_return(p, pw_const(p, d, pw_real(NAN)), d, out);
  return pw_return(p, pw_op(p, PW_CLAMP, x, -1, -1, &imm), d, out);
}
static Status emit_clamp(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  if (in_none(c, 1) && in_none(c, 2)) return op_fail(c, "needs min or max");
  return emit_clamp_to(c, p, reg, 1, 2, out);
}
static Status emit_clamp_min(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  return emit_clamp_to(c, p, reg, 1, 0, out);
}
static Status emit_clamp_max(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  return emit_clamp_to(c, p, reg, 0, 1, out);
}

static Status emit_clamp_tensor(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)row;
  Dtype d;
  if (in_none(c, 1) && in_none(c, 2)) return op_fail(c, "needs min or max");
  TRY(promote_args(c, 7, &d));
  int x = pw_cast(p, reg[0], d);
  if (!in_none(c, 1)) x = pw_op(p, PW_MAXIMUM, x, pw_operand(c, p, reg, 1, d), -1, NULL);
  if (!in_none(c, 2)) x = pw_op(p, PW_MINIMUM, x, pw_operand(c, p, reg, 2, d), -1, NULL);
  return pw_return(p, x, d, out);
}

/* Of equally cheap strategies one that shards. */
static Status place_filled(Rules *r) {
  r->whole_last = true;
  return place_pointwise(r);
}

const OpDef ops_where[] = {
    {.schema = "aten::where.self(Tensor condition, Tensor self, Tensor other) -> Tensor",
     .shard.linear = LINEAR_CHOOSE,
     POINTWISE(emit_where, PW_WHERE)},
    {.schema = "aten::where.ScalarSelf(Tensor condition, Scalar self, Tensor other) -> Tensor",
     POINTWISE(emit_where, PW_WHERE)},
    {.schema = "aten::where.ScalarOther(Tensor condition, Tensor self, Scalar other) -> Tensor",
     POINTWISE(emit_where, PW_WHERE)},
    {.schema = "aten::where.Scalar(Tensor condition, Scalar self, Scalar other) -> Tensor",
     POINTWISE(emit_where, PW_WHERE)},
    {.schema = "aten::masked_fill.Scalar(Tensor self, Tensor mask, Scalar value) -> Tensor",
     POINTWISE(emit_masked_fill, PW_WHERE)},
    {.schema = "aten::masked_fill.Tensor(Tensor self, Tensor mask, Tensor value) -> Tensor",
     .shard.place = place_filled,
     POINTWISE(emit_masked_fill, PW_WHERE)},
    {.schema = "aten::clamp(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
     .shard.linear = RISING,
     POINTWISE(emit_clamp)},
    {.schema = "aten::clip(Tensor self, Scalar? min=None, Scalar? max=None) -> Tensor",
     .shard.linear = RISING,
     POINTWISE(emit_clamp)},
    {.schema = "aten::clamp.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
     POINTWISE(emit_clamp_tensor)},
    {.schema = "aten::clip.Tensor(Tensor self, Tensor? min=None, Tensor? max=None) -> Tensor",
     POINTWISE(emit_clamp_tensor)},
    {.schema = "aten::clamp_min(Tensor self, Scalar min) -> Tensor",
     .shard.linear = RISING,
     POINTWISE(emit_clamp_min)},
    {.schema = "aten::clamp_max(Tensor self, Scalar max) -> Tensor",
     .shard.linear = RISING,
     POINTWISE(emit_clamp_max)},
    {.schema = "aten::clamp_min.Tensor(Tensor self, Tensor min) -> Tensor",
     .shard.linear = RISING_MAX,
     POINTWISE(emit_binary, PW_MAXIMUM)},
    {.schema = "aten::clamp_max.Tensor(Tensor self, Tensor max) -> Tensor",
     .shard.linear = RISING_MIN,
     POINTWISE(emit_binary, PW_MINIMUM)},
    {0},
};
