/* pointwise.c -- building programs; see pointwise.h. */
#include "kernels/pointwise.h"

#include <string.h>

typedef enum { SAME, BOOL, REAL, PAIR } ResultKind;

static const struct {
  const char *name;
  ResultKind result;
} ops[PW_OP_COUNT] = {
#define X(op, result) {#op, result},
    PW_OPS(X)
#undef X
};

const char *pw_op_name(PwOp op) { return ops[op].name; }

Dtype pw_class(Dtype d) {
  switch (dtype_kind(d)) {
    case KIND_BOOL: return DT_BOOL;
    case KIND_INT: return DT_I64;
    case KIND_FLOAT: return d == DT_F64 ? DT_F64 : DT_F32;
    default: return DT_C64;
  }
}

void pw_init(PwProgram *p) {
  p->nregs = p->ninstrs = p->ninputs = p->noutputs = 0;
  p->too_long = false;
}

static int new_reg(PwProgram *p, PwKind kind, Dtype d) {
  if (p->nregs == PW_MAX_REGS) return p->too_long = true, 0;
  PwReg *r = &p->reg[p->nregs];
  *r = (PwReg){.kind = (uint8_t)kind, .klass = (uint8_t)pw_class(d), .dtype = (uint8_t)d, .settled = -1};
  return p->nregs++;
}

int pw_input(PwProgram *p, Dtype d) {
  if (p->ninputs == PW_MAX_INPUTS) return p->too_long = true, 0;
  int r = new_reg(p, PW_INPUT, d);
  p->reg[r].input = (int16_t)p->ninputs++;
  return r;
}

int pw_const(PwProgram *p, Dtype d, PwNumber value) {
  for (int i = 0; i < p->nregs; i++) {
    const PwReg *r = &p->reg[i];
    if (r->kind == PW_CONST && r->dtype == (uint8_t)d && !memcmp(&r->value, &value, sizeof value)) return i;
  }
  int r = new_reg(p, PW_CONST, d);
  p->reg[r].value = value;
  return r;
}

static int new_instr(PwProgram *p, PwOp op, Dtype klass, Dtype result, int x, int y, int z, const PwImm *imm) {
  if (p->ninstrs == PW_MAX_INSTRS) return p->too_long = true, 0;
  int dst = new_reg(p, PW_RESULT, result);
  p->instr[p->ninstrs++] = (PwInstr){.op = (uint8_t)op,
                                     .klass = (uint8_t)klass,
                                     .dtype = (uint8_t)result,
                                     .dst = (int16_t)dst,
                                     .src = {(int16_t)x, (int16_t)y, (int16_t)z},
                                     .imm = imm ? *imm : (PwImm){{0}}};
  return dst;
}

/* The value of a loose result as its dtype has it. */
static int settle(PwProgram *p, int reg) {
  PwReg *r = &p->reg[reg];
  if (!r->loose) return reg;
  if (r->settled < 0) {
    Dtype klass = (Dtype)r->klass, d = (Dtype)r->dtype;
    r->settled = (int16_t)new_instr(p, PW_CAST, klass, d, reg, -1, -1, NULL);
  }
  return p->reg[reg].settled;
}

int pw_op(PwProgram *p, PwOp op, int x, int y, int z, const PwImm *imm) {
  x = settle(p, x);
  if (y >= 0) y = settle(p, y);
  if (z >= 0) z = settle(p, z);
  Dtype klass = (Dtype)p->reg[op == PW_WHERE ? y : x].klass;
  x = pw_cast(p, x, op == PW_WHERE ? DT_BOOL : klass); /* I1; nothing to do where the caller has seen to it */
  if (y >= 0) y = pw_cast(p, y, klass);
  if (z >= 0) z = pw_cast(p, z, klass);
  static const Dtype fixed[] = {[BOOL] = DT_BOOL, [REAL] = DT_F32, [PAIR] = DT_C64};
  return new_instr(p, op, klass, ops[op].result == SAME ? klass : fixed[ops[op].result], x, y, z, imm);
}

/* Is every value of a also one of b?  Same class. */
static bool dtype_fits(Dtype a, Dtype b) {
  if (a == b || b == pw_class(b)) return true;
  return dtype_is_int(a) && dtype_size(a) < dtype_size(b) && (a == DT_U8 || b != DT_U8);
}

int pw_result(PwProgram *p, int reg, Dtype d) {
  PwReg *r = &p->reg[reg];
  if (r->kind != PW_RESULT || (Dtype)r->klass != pw_class(d)) return pw_cast(p, reg, d);
  r->loose = !dtype_fits((Dtype)r->dtype, d);
  if (r->loose || dtype_fits(d, (Dtype)r->dtype)) r->dtype = (uint8_t)d;
  return reg;
}

int pw_cast(PwProgram *p, int reg, Dtype d) {
  reg = settle(p, reg);
  const PwReg *r = &p->reg[reg];
  if ((Dtype)r->klass == pw_class(d) && dtype_fits((Dtype)r->dtype, d)) return reg;
  return new_instr(p, PW_CAST, (Dtype)r->klass, d, reg, -1, -1, NULL);
}

void pw_output(PwProgram *p, int reg) {
  if (p->noutputs == PW_MAX_OUTPUTS) p->too_long = true;
  else p->output[p->noutputs++] = (int16_t)reg;
}
