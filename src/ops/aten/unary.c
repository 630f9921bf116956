/* unary.c -- y = f(x), element by element; see pointwise_ops.h for the columns. */
#include <float.h>
#include <math.h>

#include "ops/pointwise_ops.h"
#include "ops/promote.h"

/* A truth that integers do not need to be asked. */
static Status emit_float_test(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  if (!dtype_is_integral(in_tensor(c, 0)->dtype)) return emit_unary(c, row, p, reg, out);
  return pw_return(p, pw_const(p, DT_BOOL, pw_int(row->op == PW_ISFINITE)), DT_BOOL, out);
}

static Status emit_signbit(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  if (!dtype_is_integral(d)) return emit_unary(c, row, p, reg, out);
  int zero = pw_const(p, d, pw_int(0));
  return pw_return(p, pw_op(p, PW_LT, reg[0], zero, -1, NULL), DT_BOOL, out);
}

static Status emit_logical_not(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  (void)c;
  return pw_return(p, pw_op(p, row->op, pw_cast(p, reg[0], DT_BOOL), -1, -1, NULL), DT_BOOL, out);
}

/* neg refuses bool; abs, sign and sgn have no effect on it. */
static Status emit_sign(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  if (d == DT_BOOL) return pw_return(p, reg[0], d, out);
  bool magnitude = d == DT_C64 && row->op == PW_ABS;
  int y = pw_op(p, magnitude ? PW_MAGNITUDE : row->op, reg[0], -1, -1, NULL);
  return pw_return(p, y, magnitude ? DT_F32 : d, out);
}

static Status emit_angle(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = promote_to_float(in_tensor(c, 0)->dtype);
  int y = pw_op(p, row->op, pw_cast(p, reg[0], d), -1, -1, NULL);
  return pw_return(p, y, d == DT_C64 ? DT_F32 : d, out);
}

static Status emit_conj(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  return pw_return(p, d == DT_C64 ? pw_op(p, row->op, reg[0], -1, -1, NULL) : reg[0], d, out);
}

/* square(x) is pow(x, 2): bool becomes an integer. */
static Status emit_square(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype == DT_BOOL ? DT_I64 : in_tensor(c, 0)->dtype;
  return pw_return(p, pw_op(p, row->op, pw_cast(p, reg[0], d), -1, -1, NULL), d, out);
}

/* x times a constant: degrees and radians. */
static Status emit_degrees(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = promote_to_float(in_tensor(c, 0)->dtype);
  int factor = pw_const(p, pw_class(d), pw_real(row->how ? 180 / M_PI : M_PI / 180));
  return pw_return(p, pw_op(p, row->op, pw_cast(p, reg[0], d), factor, -1, NULL), d, out);
}

static Status emit_round_decimals(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  int64_t decimals = in_int(c, 1);
  if (dtype_is_integral(d)) return pw_return(p, reg[0], d, out);
  if (decimals == 0) return pw_return(p, pw_op(p, row->op, reg[0], -1, -1, NULL), d, out);
  int ten = pw_const(p, pw_class(d), pw_real(pow(10, fabs((double)decimals))));
  int scaled = pw_op(p, decimals > 0 ? PW_MUL : PW_DIV, reg[0], ten, -1, NULL);
  int rounded = pw_op(p, row->op, scaled, -1, -1, NULL);
  return pw_return(p, pw_op(p, decimals > 0 ? PW_DIV : PW_MUL, rounded, ten, -1, NULL), d, out);
}

/* nan, inf and -inf become 0 and the largest finite numbers, unless given. */
static Status emit_nan_to_num(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = in_tensor(c, 0)->dtype;
  if (dtype_is_integral(d)) return pw_return(p, reg[0], d, out);
  double most = d == DT_F16 ? 65504 : d == DT_BF16 ? 0x1.fep127 : d == DT_F64 ? DBL_MAX : (double)FLT_MAX;
  PwImm imm = {.f = {in_none(c, 1) ? 0 : in_float(c, 1), in_none(c, 2) ? most : in_float(c, 2),
                     in_none(c, 3) ? -most : in_float(c, 3)}};
  return pw_return(p, pw_op(p, row->op, reg[0], -1, -1, &imm), d, out);
}

/* log(x / (1 - x)), x first clamped to [eps, 1 - eps]. */
static Status emit_logit(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d = promote_to_float(in_tensor(c, 0)->dtype), wide = pw_class(d);
  int x = pw_cast(p, reg[0], d);
  if (!in_none(c, 1)) {
    PwImm imm = {.f = {in_float(c, 1), 1 - in_float(c, 1), 0}};
    x = pw_op(p, PW_CLAMP, x, -1, -1, &imm);
  }
  int rest = pw_op(p, PW_SUB, pw_const(p, wide, pw_real(1)), x, -1, NULL);
  return pw_return(p, pw_op(p, row->op, pw_op(p, PW_DIV, x, rest, -1, NULL), -1, -1, NULL), d, out);
}

/* clang-format off */
#define ROW(name, EMIT, OPCODE, HOW, LINEAR) \
  {.schema = "aten::" name "(Tensor self) -> Tensor", .shard.linear = LINEAR, POINTWISE(EMIT, PW_##OPCODE, HOW)},
/* clang-format on */
#define MATH(name, OPCODE, LINEAR) ROW(name, emit_unary, OPCODE, PW_FLOAT, LINEAR)
#define WHOLE(name, OPCODE) ROW(name, emit_unary, OPCODE, PW_INT_SAME, RISING)

const OpDef ops_unary[] = {
    /* clang-format off */
    /*   name             instruction  partial values (rising: everywhere, without nan) */
    MATH("sqrt",           SQRT,         LINEAR_NO)
    MATH("rsqrt",          RSQRT,        LINEAR_NO)
    MATH("reciprocal",     RECIPROCAL,   LINEAR_NO)
    MATH("exp",            EXP,          RISING)
    MATH("exp2",           EXP2,         RISING)
    MATH("expm1",          EXPM1,        RISING)
    MATH("log",            LOG,          LINEAR_NO)
    MATH("log2",           LOG2,         LINEAR_NO)
    MATH("log10",          LOG10,        LINEAR_NO)
    MATH("log1p",          LOG1P,        LINEAR_NO)
    MATH("sin",            SIN,          LINEAR_NO)
    MATH("cos",            COS,          LINEAR_NO)
    MATH("tan",            TAN,          LINEAR_NO)
    MATH("asin",           ASIN,         LINEAR_NO)
    MATH("acos",           ACOS,         LINEAR_NO)
    MATH("atan",           ATAN,         RISING)
    MATH("sinh",           SINH,         RISING)
    MATH("cosh",           COSH,         LINEAR_NO)
    MATH("tanh",           TANH,         RISING)
    MATH("asinh",          ASINH,        RISING)
    MATH("acosh",          ACOSH,        LINEAR_NO)
    MATH("atanh",          ATANH,        LINEAR_NO)
    MATH("arcsin",         ASIN,         LINEAR_NO)
    MATH("arccos",         ACOS,         LINEAR_NO)
    MATH("arctan",         ATAN,         RISING)
    MATH("arcsinh",        ASINH,        RISING)
    MATH("arccosh",        ACOSH,        LINEAR_NO)
    MATH("arctanh",        ATANH,        LINEAR_NO)
    MATH("erf",            ERF,          RISING)
    MATH("erfc",           ERFC,         FALLING)
    MATH("erfinv",         ERFINV,       LINEAR_NO)
    MATH("lgamma",         LGAMMA,       LINEAR_NO)
    MATH("digamma",        DIGAMMA,      LINEAR_NO)
    MATH("sigmoid",        SIGMOID,      RISING)
    MATH("special_expit",  SIGMOID,      RISING)
    MATH("special_exp2",   EXP2,         RISING)
    MATH("special_expm1",  EXPM1,        RISING)
    MATH("special_log1p",  LOG1P,        LINEAR_NO)
    MATH("special_erf",    ERF,          RISING)
    MATH("special_erfc",   ERFC,         FALLING)
    MATH("special_erfinv", ERFINV,       LINEAR_NO)
    MATH("special_gammaln", LGAMMA,       LINEAR_NO)
    MATH("special_digamma", DIGAMMA,      LINEAR_NO)
    WHOLE("ceil",          CEIL)
    WHOLE("floor",         FLOOR)
    WHOLE("round",         ROUND)
    WHOLE("trunc",         TRUNC)
    WHOLE("fix",           TRUNC)
    /*  name              emit              instruction  how        partial values */
    ROW("frac",           emit_unary,       FRAC,        0,         LINEAR_NO)
    ROW("neg",            emit_unary,       NEG,         0,         LINEAR_NEG)
    ROW("negative",       emit_unary,       NEG,         0,         LINEAR_NEG)
    ROW("abs",            emit_sign,        ABS,         0,         LINEAR_NO)
    ROW("absolute",       emit_sign,        ABS,         0,         LINEAR_NO)
    ROW("sign",           emit_sign,        SIGN,        0,         RISING)
    ROW("sgn",            emit_sign,        SIGN,        0,         RISING)
    ROW("square",         emit_square,      SQUARE,      0,         LINEAR_NO)
    ROW("bitwise_not",    emit_unary,       NOT,         0,         LINEAR_NO)
    ROW("logical_not",    emit_logical_not, NOT,         0,         LINEAR_NO)
    ROW("isnan",          emit_float_test,  ISNAN,       PW_TRUTH,  LINEAR_NO)
    ROW("isinf",          emit_float_test,  ISINF,       PW_TRUTH,  LINEAR_NO)
    ROW("isfinite",       emit_float_test,  ISFINITE,    PW_TRUTH,  LINEAR_NO)
    ROW("isposinf",       emit_float_test,  ISPOSINF,    PW_TRUTH,  LINEAR_NO)
    ROW("isneginf",       emit_float_test,  ISNEGINF,    PW_TRUTH,  LINEAR_NO)
    ROW("signbit",        emit_signbit,     SIGNBIT,     PW_TRUTH,  LINEAR_NO)
    ROW("angle",          emit_angle,       ANGLE,       0,         LINEAR_NO)
    ROW("conj_physical",  emit_conj,        CONJ,        0,         LINEAR_UNARY)
    ROW("_conj_physical", emit_conj,        CONJ,        0,         LINEAR_UNARY)
    ROW("deg2rad",        emit_degrees,     MUL,         0,         RISING)
    ROW("rad2deg",        emit_degrees,     MUL,         1,         RISING)
    {.schema = "aten::conj(Tensor(a) self) -> Tensor(a)", .shard.linear = LINEAR_UNARY, POINTWISE(emit_conj,
     PW_CONJ)},
    {.schema = "aten::_conj(Tensor(a) self) -> Tensor(a)", .shard.linear = LINEAR_UNARY, POINTWISE(emit_conj,
     PW_CONJ)},
    {.schema = "aten::round.decimals(Tensor self, *, int decimals) -> Tensor", .shard.linear = RISING,
     POINTWISE(emit_round_decimals, PW_ROUND)},
    {.schema = "aten::nan_to_num(Tensor self, float? nan=None, float? posinf=None, float? neginf=None) -> Tensor",
     POINTWISE(emit_nan_to_num, PW_NAN_TO_NUM)},
    {.schema = "aten::logit(Tensor self, float? eps=None) -> Tensor", POINTWISE(emit_logit, PW_LOG)},
    {.schema = "aten::special_logit(Tensor self, float? eps=None) -> Tensor", POINTWISE(emit_logit, PW_LOG)},
    {0},
    /* clang-format on */
};
