/* pointwise_ops.c -- what all pointwise families share; see pointwise_ops.h. */
#include "ops/pointwise_ops.h"

#include "ops/promote.h"

/* ---- operands ------------------------------------------------------------------- */

static int pw_number(PwProgram *p, Dtype d, const Value *v) {
  _Alignas(16) char element[16];
  val_store(v, d, element);
  Value x = val_load(d, element);
  if (dtype_is_integral(d)) return pw_const(p, d, pw_int(val_as_int(&x)));
  PwNumber n = pw_real(val_as_float(&x));
  if (x.kind == VAL_COMPLEX) n.im = x.complex_[1];
  return pw_const(p, d, n);
}

int pw_operand(const Call *c, PwProgram *p, const int *reg, int i, Dtype d) {
  return c->arg[i].kind == VAL_TENSOR ? pw_cast(p, reg[i], d) : pw_number(p, d, &c->arg[i]);
}

int pw_wide_operand(const Call *c, PwProgram *p, const int *reg, int i, Dtype d) {
  bool scalar = c->arg[i].kind != VAL_TENSOR || c->arg[i].tensor->ndim == 0;
  return pw_operand(c, p, reg, i, scalar && dtype_is_float(d) ? pw_class(d) : d);
}

Status pw_return(PwProgram *p, int reg, Dtype d, PwValue *out) {
  *out = (PwValue){pw_result(p, reg, d), d};
  return OK;
}

void pw_set_imm(PwImm *imm, int k, Dtype d, const Value *v) {
  if (dtype_is_int(d)) { /* a number is first of all converted to the tensor's dtype: -1 is 255 to u8 */
    uint64_t element = 0;
    val_store(v, d, &element);
    imm->i[k] = val_load(d, &element).i;
  } else if (d == DT_BOOL) imm->i[k] = val_as_int(v);
  else imm->f[k] = val_as_float(v);
}

static void row_imm(const Call *c, const PwRow *row, Dtype d, PwImm *imm) {
  *imm = (PwImm){{0}};
  for (int k = 0; k < 3; k++) {
    if (row->imm[k]) pw_set_imm(imm, k, d, &c->arg[row->imm[k]]);
  }
}

/* ---- the two common forms ------------------------------------------------------- */

Status emit_unary(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  if (dtype_is_integral(d) && row->how & PW_INT_SAME) return pw_return(p, reg[0], d, out);
  if (row->how & PW_FLOAT) d = promote_to_float(d);
  PwImm imm;
  row_imm(c, row, d, &imm);
  int y = pw_op(p, row->op, pw_cast(p, reg[0], d), -1, -1, &imm);
  return pw_return(p, y, row->how & PW_TRUTH ? DT_BOOL : d, out);
}

/* x + alpha y, x - alpha y. */
static Status emit_scaled(const Call *c, const PwRow *row, PwProgram *p, Dtype d, int x, int y, PwValue *out) {
  const Value *alpha = &c->arg[2];
  if (dtype_is_integral(d) && val_number_kind(alpha) > KIND_INT)
    return op_fail(c, "alpha must be an integer for %s operands", dtype_name(d));
  if (val_as_float(alpha) == 1) return pw_return(p, pw_op(p, row->op, x, y, -1, NULL), d, out);
  PwImm imm = {{0}};
  pw_set_imm(&imm, 0, d, alpha);
  if (row->op == PW_SUB && dtype_is_integral(d)) imm.i[0] = (int64_t)(0 - (uint64_t)imm.i[0]);
  if (row->op == PW_SUB && !dtype_is_integral(d)) imm.f[0] = -imm.f[0];
  if (d == DT_BOOL) y = pw_op(p, PW_AND, y, pw_number(p, d, alpha), -1, NULL);
  return pw_return(p, pw_op(p, d == DT_BOOL ? row->op : PW_ADD_SCALED, x, y, -1, &imm), d, out);
}

Status emit_binary(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  if (row->how & PW_FLOAT) d = promote_to_float(d);
  int (*operand)(const Call *, PwProgram *, const int *, int, Dtype) = row->how & PW_WIDE ? pw_wide_operand
                                                                                          : pw_operand;
  int x = operand(c, p, reg, 0, d), y = operand(c, p, reg, 1, d);
  if (row->how & PW_ALPHA) return emit_scaled(c, row, p, d, x, y, out);
  PwImm imm;
  row_imm(c, row, d, &imm);
  return pw_return(p, pw_op(p, row->op, x, y, -1, &imm), row->how & PW_TRUTH ? DT_BOOL : d, out);
}

/* ---- infer and run -------------------------------------------------------------- */

Status pointwise_emit(const Call *c, PwProgram *p, const int *reg, PwValue *out) {
  const PwRow *row = c->op->def->row;
  return row->emit(c, row, p, reg, out);
}

/* The call as a program of its own; its inputs are the tensor arguments in order. */
static Status build(const Call *c, PwProgram *p, PwValue *result) {
  int reg[MAX_PARAMS];
  pw_init(p);
  for (int i = 0; i < c->op->schema.nparams; i++) {
    reg[i] = -1;
    const Tensor *t = in_tensor(c, i);
    if (!t) continue;
    if (!dtype_is_compute(t->dtype)) return op_fail(c, "no arithmetic on %s", dtype_name(t->dtype));
    reg[i] = pw_input(p, t->dtype);
  }
  return pointwise_emit(c, p, reg, result);
}

Status pointwise_infer(Call *c) {
  PwProgram p;
  PwValue result;
  TRY(build(c, &p, &result));
  for (int i = 0; i < p.ninstrs; i++) {
    const PwInstr *in = &p.instr[i];
    if (!pw_knows((PwOp)in->op, (Dtype)in->klass))
      return op_fail(c, "is not defined for %s",
                     dtype_name(in_tensor(c, 0) ? in_tensor(c, 0)->dtype : result.dtype));
  }
  return out_broadcast(c, result.dtype, ~0u);
}

Status pointwise_run(Call *c) {
  PwProgram p;
  PwValue result;
  TRY(build(c, &p, &result));
  pw_output(&p, result.reg);
  View out = out_view_of(c, 0), in[MAX_PARAMS];
  int n = 0;
  for (int i = 0; i < c->op->schema.nparams; i++) {
    if (in_tensor(c, i)) in[n++] = in_view(c, i);
  }
  Status s = kernel_pointwise(&c->ctx->kern, &p, &out, in);
  return s ? status_at(s, "%s", c->op->schema.name) : OK;
}
