/* binary.c -- z = f(x, y) with broadcasting and promotion; also the ops with a scale that
 * belong to them (addcmul, lerp).  See pointwise_ops.h for the columns. */
#include "ops/pointwise_ops.h"
#include "ops/promote.h"

/* other - alpha self */
static Status emit_rsub(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  if (d == DT_BOOL) return op_fail(c, "is not defined for bool");
  const Value *alpha = &c->arg[2];
  int x = pw_wide_operand(c, p, reg, 1, d), y = pw_wide_operand(c, p, reg, 0, d);
  if (val_as_float(alpha) == 1) return pw_return(p, pw_op(p, PW_SUB, x, y, -1, NULL), d, out);
  if (dtype_is_integral(d) && val_number_kind(alpha) > KIND_INT)
    return op_fail(c, "alpha must be an integer for %s operands", dtype_name(d));
  PwImm imm = {{0}};
  if (dtype_is_integral(d)) imm.i[0] = (int64_t)(0 - (uint64_t)val_as_int(alpha));
  else imm.f[0] = -val_as_float(alpha);
  return pw_return(p, pw_op(p, row->op, x, y, -1, &imm), d, out);
}

static Status emit_logical(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  int x = pw_operand(c, p, reg, 0, DT_BOOL), y = pw_operand(c, p, reg, 1, DT_BOOL);
  return pw_return(p, pw_op(p, row->op, x, y, -1, NULL), DT_BOOL, out);
}

/* rounding_mode None, "trunc" or "floor". */
static Status emit_div_mode(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  static const PwRow exact = {emit_binary, PW_DIV, PW_FLOAT | PW_WIDE, {0}},
                     trunc = {emit_binary, PW_TRUNC_DIV, PW_WIDE, {0}},
                     floor = {emit_binary, PW_FLOOR_DIV, PW_WIDE, {0}};
  (void)row;
  const char *mode = in_str(c, 2);
  if (!mode) return emit_binary(c, &exact, p, reg, out);
  if (mode[0] == 't') return emit_binary(c, &trunc, p, reg, out);
  if (mode[0] == 'f') return emit_binary(c, &floor, p, reg, out);
  return op_fail(c, "rounding_mode is '%s', not None, 'trunc' or 'floor'", mode);
}

/* x^e for a number e: the exponents that models use have instructions of their own, with
 * the values ATen gives at infinities and zeros. */
static Status emit_pow_scalar(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  static const struct {
    double exponent;
    PwOp first, then;
    bool integers;
  } rows[] = {
      {1, PW_COPY, PW_COPY, true},           {2, PW_SQUARE, PW_COPY, true},    {3, PW_CUBE, PW_COPY, true},
      {0.5, PW_SQRT, PW_COPY, false},        {-0.5, PW_RSQRT, PW_COPY, false}, {-1, PW_RECIPROCAL, PW_COPY, false},
      {-2, PW_SQUARE, PW_RECIPROCAL, false},
  };
  Dtype d;
  TRY(promote_args(c, 3, &d));
  bool integral = dtype_is_integral(d);
  double e = in_float(c, 1);
  if (integral && e < 0) return op_fail(c, "integers to negative integer powers are not allowed");
  if (c->arg[1].kind != VAL_COMPLEX && e == 0)
    return pw_return(p, pw_const(p, d, integral ? pw_int(1) : pw_real(1)), d, out);
  int x = pw_operand(c, p, reg, 0, d);
  for (size_t i = 0; i < sizeof rows / sizeof *rows && c->arg[1].kind != VAL_COMPLEX; i++) {
    if (e != rows[i].exponent || (integral && !rows[i].integers)) continue;
    if (rows[i].first != PW_COPY) x = pw_op(p, rows[i].first, x, -1, -1, NULL);
    if (rows[i].then != PW_COPY) x = pw_op(p, rows[i].then, x, -1, -1, NULL);
    return pw_return(p, x, d, out);
  }
  return pw_return(p, pw_op(p, row->op, x, pw_wide_operand(c, p, reg, 1, d), -1, NULL), d, out);
}

/* x + value y z, x + value y / z */
static Status emit_addc(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 7, &d));
  PwImm imm = {{0}};
  pw_set_imm(&imm, 0, d, &c->arg[3]);
  int x = pw_operand(c, p, reg, 0, d), y = pw_operand(c, p, reg, 1, d), z = pw_operand(c, p, reg, 2, d);
  return pw_return(p, pw_op(p, row->op, x, y, z, &imm), d, out);
}

static Status emit_lerp(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  int x = pw_operand(c, p, reg, 0, d), y = pw_operand(c, p, reg, 1, d), w = pw_wide_operand(c, p, reg, 2, d);
  return pw_return(p, pw_op(p, row->op, x, y, w, NULL), d, out);
}

static Status emit_polar(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  if (d != DT_F32) return op_fail(c, "makes complex64 from f32 parts, not from %s", dtype_name(d));
  return pw_return(p, pw_op(p, row->op, reg[0], reg[1], -1, NULL), DT_C64, out);
}

#define TT "(Tensor self, Tensor other) -> Tensor"
#define TS "(Tensor self, Scalar other) -> Tensor"
#define ST "(Scalar self, Tensor other) -> Tensor"
/* clang-format off */
#define PASS(name, args, EMIT, OPCODE, HOW, LINEAR) \
  {.schema = "aten::" name args, .shard.linear = LINEAR, POINTWISE_NUMBERS(EMIT, PW_##OPCODE, HOW)},
/* clang-format on */
#define ROW(name, args, EMIT, OPCODE, HOW) PASS(name, args, EMIT, OPCODE, HOW, LINEAR_NO)

/* name.Tensor and name.Scalar */
#define BOTH(name, EMIT, OPCODE, HOW) \
  ROW(name ".Tensor", TT, EMIT, OPCODE, HOW) ROW(name ".Scalar", TS, EMIT, OPCODE, HOW)
#define COMPARE(name, OPCODE) BOTH(name, emit_binary, OPCODE, PW_TRUTH)
#define BITS(name, OPCODE) BOTH(name, emit_binary, OPCODE, 0) ROW(name ".Scalar_Tensor", ST, emit_binary, OPCODE, 0)

#define SUM(name, OPCODE)                                                                               \
  PASS(name ".Tensor", "(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", emit_binary, OPCODE, \
       PW_ALPHA | PW_WIDE, LINEAR_JOINT)                                                                \
  PASS(name ".Scalar", "(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", emit_binary, OPCODE,    \
       PW_ALPHA | PW_WIDE, LINEAR_SHIFT)
#define LINEAR(name, OPCODE, HOW, LINEAR)                    \
  PASS(name ".Tensor", TT, emit_binary, OPCODE, HOW, LINEAR) \
  PASS(name ".Scalar", TS, emit_binary, OPCODE, HOW, LINEAR)
#define QUOTIENT(name)                                                                                            \
  LINEAR(name, DIV, PW_FLOAT | PW_WIDE, LINEAR_FIRST)                                                             \
  ROW(name ".Tensor_mode", "(Tensor self, Tensor other, *, str? rounding_mode) -> Tensor", emit_div_mode, DIV, 0) \
  ROW(name ".Scalar_mode", "(Tensor self, Scalar other, *, str? rounding_mode) -> Tensor", emit_div_mode, DIV, 0)

/* clang-format off */
const OpDef ops_binary[] = {
    SUM("add", ADD)
    SUM("sub", SUB)
    SUM("subtract", SUB)
    QUOTIENT("div")
    QUOTIENT("divide")
    /*    name                     emit         instruction  how */
    LINEAR("mul",                               MUL,         PW_WIDE, LINEAR_MULTI)
    LINEAR("multiply",                          MUL,         PW_WIDE, LINEAR_MULTI)
    LINEAR("true_divide",                       DIV,         PW_FLOAT | PW_WIDE, LINEAR_FIRST)
    BOTH("remainder",              emit_binary, REMAINDER,   0)
    BOTH("fmod",                   emit_binary, FMOD,        0)
    ROW("remainder.Scalar_Tensor", ST, emit_binary, REMAINDER, 0)
    ROW("floor_divide",        TT, emit_binary, FLOOR_DIV,   PW_WIDE)
    ROW("floor_divide.Scalar", TS, emit_binary, FLOOR_DIV,   PW_WIDE)
    PASS("maximum",            TT, emit_binary, MAXIMUM,     0, RISING_MAX)
    PASS("minimum",            TT, emit_binary, MINIMUM,     0, RISING_MIN)
    ROW("fmax",                TT, emit_binary, FMAX,        0)
    ROW("fmin",                TT, emit_binary, FMIN,        0)
    ROW("atan2",               TT, emit_binary, ATAN2,       PW_FLOAT)
    ROW("arctan2",             TT, emit_binary, ATAN2,       PW_FLOAT)
    ROW("hypot",               TT, emit_binary, HYPOT,       0)
    ROW("gcd",                 TT, emit_binary, GCD,         0)
    ROW("lcm",                 TT, emit_binary, LCM,         0)
    PASS("logaddexp",          TT, emit_binary, LOGADDEXP,   PW_FLOAT, RISING_BOTH)
    PASS("logaddexp2",         TT, emit_binary, LOGADDEXP2,  PW_FLOAT, RISING_BOTH)
    BOTH("copysign",               emit_binary, COPYSIGN,    PW_FLOAT)
    ROW("xlogy.Tensor",        TT, emit_binary, XLOGY,       PW_FLOAT)
    ROW("xlogy.Scalar_Other",  TS, emit_binary, XLOGY,       PW_FLOAT)
    ROW("xlogy.Scalar_Self",   ST, emit_binary, XLOGY,       PW_FLOAT)
    ROW("special_xlogy",       TT, emit_binary, XLOGY,       PW_FLOAT)
    {.schema = "aten::heaviside(Tensor self, Tensor values) -> Tensor", POINTWISE_NUMBERS(emit_binary, PW_HEAVISIDE)},
    {.schema = "aten::rsub.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", POINTWISE_NUMBERS(emit_rsub,
     PW_ADD_SCALED)},
    {.schema = "aten::rsub.Scalar(Tensor self, Scalar other, Scalar alpha=1) -> Tensor", POINTWISE_NUMBERS(emit_rsub,
     PW_ADD_SCALED)},
    {.schema = "aten::pow.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", POINTWISE_NUMBERS(emit_pow_scalar,
     PW_POW)},
    {.schema = "aten::pow.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", POINTWISE_NUMBERS(emit_binary, PW_POW)},
    {.schema = "aten::pow.Scalar(Scalar self, Tensor exponent) -> Tensor", POINTWISE_NUMBERS(emit_binary, PW_POW)},

    COMPARE("eq", EQ) COMPARE("not_equal", NE) COMPARE("ne", NE)
    COMPARE("lt", LT) COMPARE("less", LT)
    COMPARE("le", LE) COMPARE("less_equal", LE)
    COMPARE("gt", GT) COMPARE("greater", GT)
    COMPARE("ge", GE) COMPARE("greater_equal", GE)

    ROW("logical_and", TT, emit_logical, AND, 0)
    ROW("logical_or",  TT, emit_logical, OR,  0)
    ROW("logical_xor", TT, emit_logical, XOR, 0)
    BITS("bitwise_and", AND)
    BITS("bitwise_or",  OR)
    BITS("bitwise_xor", XOR)
    BOTH("__and__", emit_binary, AND, 0)
    BOTH("__or__",  emit_binary, OR,  0)
    BOTH("__xor__", emit_binary, XOR, 0)
    BOTH("__lshift__", emit_binary, SHIFT_LEFT,  0)
    BOTH("__rshift__", emit_binary, SHIFT_RIGHT, 0)
    ROW("bitwise_left_shift.Tensor",         TT, emit_binary, SHIFT_LEFT,  0)
    ROW("bitwise_left_shift.Tensor_Scalar",  TS, emit_binary, SHIFT_LEFT,  0)
    ROW("bitwise_left_shift.Scalar_Tensor",  ST, emit_binary, SHIFT_LEFT,  0)
    ROW("bitwise_right_shift.Tensor",        TT, emit_binary, SHIFT_RIGHT, 0)
    ROW("bitwise_right_shift.Tensor_Scalar", TS, emit_binary, SHIFT_RIGHT, 0)
    ROW("bitwise_right_shift.Scalar_Tensor", ST, emit_binary, SHIFT_RIGHT, 0)

    {.schema = "aten::addcmul(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
     POINTWISE_NUMBERS(emit_addc, PW_ADDCMUL)},
    {.schema = "aten::addcdiv(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1) -> Tensor",
     POINTWISE_NUMBERS(emit_addc, PW_ADDCDIV)},
    {.schema = "aten::lerp.Tensor(Tensor self, Tensor end, Tensor weight) -> Tensor", POINTWISE_NUMBERS(emit_lerp,
     PW_LERP)},
    {.schema = "aten::lerp.Scalar(Tensor self, Tensor end, Scalar weight) -> Tensor", POINTWISE_NUMBERS(emit_lerp,
     PW_LERP)},
    {.schema = "aten::polar(Tensor abs, Tensor angle) -> Tensor", POINTWISE(emit_polar, PW_POLAR)},
    {0}};
/* clang-format on */
