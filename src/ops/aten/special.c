/* special.c -- special functions (kernels/special.h) and float_power, element by element, and
 * what is written with them. */
#include <math.h>

#include "ops/formula.h"
#include "ops/geometry.h"
#include "ops/pointwise_ops.h"
#include "ops/promote.h"

/* ---- emit ----------------------------------------------------------------------- */

/* polygamma(n, self): the degree is the second source. */
static Status emit_polygamma(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Tensor *x;
  TRY(need_tensor(c, 1, &x));
  Dtype d = promote_to_float(x->dtype);
  int64_t n = in_int(c, 0);
  if (n < 0) return op_fail(c, "the degree n is %lld, must not be negative", (long long)n);
  int degree = pw_const(p, pw_class(d), pw_real((double)n));
  return pw_return(p, pw_op(p, row->op, pw_cast(p, reg[1], d), degree, -1, NULL), d, out);
}

static Status emit_next_after(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  if (!dtype_is_float(d)) return op_fail(c, "is not defined for %s", dtype_name(d));
  PwImm imm = {{0}};
  if (d == DT_F16) imm = (PwImm){.f = {10, -14, 65504}};
  if (d == DT_BF16) imm = (PwImm){.f = {7, -126, 0x1.fep127}};
  int x = pw_operand(c, p, reg, 0, d), y = pw_operand(c, p, reg, 1, d);
  return pw_return(p, pw_op(p, row->op, x, y, -1, &imm), d, out);
}

/* A polynomial on [0, 1]: that on [-1, 1] at 2 x - 1. */
static Status emit_shifted(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d;
  TRY(promote_args(c, 3, &d));
  d = promote_to_float(d);
  int x = pw_operand(c, p, reg, 0, d), n = pw_operand(c, p, reg, 1, d);
  int one = pw_const(p, pw_class(d), pw_real(1));
  x = pw_op(p, PW_SUB, pw_op(p, PW_ADD, x, x, -1, NULL), one, -1, NULL);
  return pw_return(p, pw_op(p, row->op, x, n, -1, NULL), d, out);
}

/* grad / (x (1 - x)); outside of [eps, 1 - eps] 0, or nan outside of [0, 1] if there is no eps.  A nan
 * counts as outside, and 0 has its sign, except in ATen's loop for narrow dtypes. */
static Status emit_logit_grad(const Call *c, const PwRow *row, PwProgram *p, const int *reg, PwValue *out) {
  Dtype d, wide;
  TRY(promote_args(c, 3, &d));
  wide = pw_class(d);
  double eps = in_none(c, 2) ? 0 : val_round(d, in_float(c, 2));
  int g = pw_operand(c, p, reg, 0, d), x = pw_operand(c, p, reg, 1, d);
  int low = pw_const(p, wide, pw_real(eps)), one = pw_const(p, wide, pw_real(1)),
      high = pw_const(p, wide, pw_real(val_round(d, 1 - eps))),
      beyond = pw_const(p, wide, pw_real(in_none(c, 2) ? (double)NAN : 0));
  int slope = pw_op(p, PW_MUL, x, pw_op(p, PW_SUB, one, x, -1, NULL), -1, NULL);
  bool narrow = d == DT_F16 || d == DT_BF16;
  if (narrow) slope = pw_op(p, PW_ABS, slope, -1, -1, NULL); /* -0 */
  int y = pw_op(p, row->op, g, slope, -1, NULL);
  int below = pw_op(p, narrow ? PW_LT : PW_GE, x, low, -1, NULL),
      above = pw_op(p, narrow ? PW_GT : PW_LE, x, high, -1, NULL);
  int choice = pw_op(p, narrow ? PW_OR : PW_AND, below, above, -1, NULL);
  y = pw_op(p, PW_WHERE, choice, narrow ? beyond : y, narrow ? y : beyond, NULL);
  return pw_return(p, y, d, out);
}

/* ---- composed ------------------------------------------------------------------- */

/* Another name of an op with the same arguments. */
static Status other_name(Call *c) {
  Tensor *y;
  TRY(op_call(c, c->op->def->row, &y, 1, c->arg, c->op->schema.nparams));
  return out_value(c, val_tensor(y));
}

/* polygamma with its arguments in the order of polygamma_. */
static Status polygamma_of(Call *c) {
  Formula f = {.c = c};
  return formula_give(&f, F_OP(&f, "aten.polygamma.default", c->arg[1], c->arg[0]));
}

/* x 2^e */
static Status ldexp_compose(Call *c) {
  Formula f = {.c = c};
  Tensor *power = F_OP(&f, "aten.pow.Scalar", val_float(2), c->arg[1]);
  return formula_give(&f, F_OP(&f, "aten.mul.Tensor", c->arg[0], F_T(power)));
}

/* pow in f64, whatever comes in. */
static Status float_power(Call *c) {
  Formula f = {.c = c};
  Value v[2];
  for (int i = 0; i < 2; i++) {
    const Tensor *t = in_tensor(c, i);
    if (c->arg[i].kind == VAL_COMPLEX || (t && t->dtype == DT_C64))
      return op_fail(c, "gives complex128 for complex operands, which is not supported");
  }
  for (int i = 0; i < 2; i++) {
    const Tensor *t = in_tensor(c, i);
    v[i] = t ? val_tensor(f_cast(&f, t, DT_F64)) : val_float(in_float(c, i));
  }
  return formula_give(&f, formula_op(&f, c->op->def->row, v, 2));
}

/* p (p - 1) / 4 log(pi) + sum of log gamma(x - j / 2) for j < p */
static Status multigammaln(Call *c) {
  Formula f = {.c = c};
  Tensor *x;
  int64_t p = in_int(c, 1);
  TRY(need_tensor(c, 0, &x));
  if (p < 1) return op_fail(c, "p is %lld, must be at least 1", (long long)p);
  if (x->dtype == DT_C64) return op_fail(c, "is not defined for %s", dtype_name(x->dtype));
  Dtype d = promote_to_float(x->dtype);
  double by = (double)p;
  Tensor *shift = F_OP(&f, "aten.arange.start_step", val_float(0.5 - by / 2), val_float(0.5), val_float(0.5),
                       val_dtype(d));
  Tensor *wide = F_OP(&f, "aten.unsqueeze.default", F_T(f_cast(&f, x, d)), val_int(-1));
  Tensor *terms = F_OP(&f, "aten.lgamma.default", F_T(f_add(&f, wide, shift)));
  Tensor *sum = f_sum(&f, terms, (int64_t[]){-1}, 1, false);
  return formula_give(&f, f_shift(&f, sum, by * (by - 1) / 4 * log(M_PI)));
}

/* ---- the table ------------------------------------------------------------------ */

/* clang-format off */
#define TT "(Tensor self, Tensor other) -> Tensor"
#define ROW(name, args, EMIT, OPCODE, HOW) {.schema = "aten::" name args, POINTWISE(EMIT, PW_##OPCODE, HOW)},
#define ONE(name, OPCODE) ROW(name, "(Tensor self) -> Tensor", emit_unary, OPCODE, PW_FLOAT)
#define OF_X(name, OPCODE) ROW(name, "(Tensor x) -> Tensor", emit_unary, OPCODE, PW_FLOAT)
#define TWO(name, OPCODE) \
  ROW(name, TT, emit_binary, OPCODE, PW_FLOAT) \
  ROW(name ".other_scalar", "(Tensor self, Scalar other) -> Tensor", emit_binary, OPCODE, PW_FLOAT) \
  ROW(name ".self_scalar", "(Scalar self, Tensor other) -> Tensor", emit_binary, OPCODE, PW_FLOAT)
#define POLYNOMIAL(name, EMIT, OPCODE) \
  ROW("special_" name, "(Tensor x, Tensor n) -> Tensor", EMIT, OPCODE, PW_FLOAT) \
  ROW("special_" name ".n_scalar", "(Tensor x, Scalar n) -> Tensor", EMIT, OPCODE, PW_FLOAT) \
  ROW("special_" name ".x_scalar", "(Scalar x, Tensor n) -> Tensor", EMIT, OPCODE, PW_FLOAT)
#define SAME_AS(text, op) {.schema = "aten::" text, .compose = other_name, .row = op},
#define IN_PLACE(text, op) {.schema = "aten::" text " -> Tensor(a!)", .inplace = op},

const OpDef ops_special[] = {
    /*  name                               instruction */
    ONE("i0",                              I0)
    ONE("special_i0",                      I0)
    ONE("special_i0e",                     I0E)
    ONE("special_i1",                      I1)
    ONE("special_i1e",                     I1E)
    ONE("special_modified_bessel_i0",      I0)
    ONE("special_modified_bessel_i1",      I1)
    ONE("special_modified_bessel_k0",      K0)
    ONE("special_modified_bessel_k1",      K1)
    OF_X("special_scaled_modified_bessel_k0", K0E)
    OF_X("special_scaled_modified_bessel_k1", K1E)
    ONE("special_bessel_j0",               J0)
    ONE("special_bessel_j1",               J1)
    ONE("special_bessel_y0",               Y0)
    ONE("special_bessel_y1",               Y1)
    OF_X("special_spherical_bessel_j0",    SPHERICAL_J0)
    OF_X("special_airy_ai",                AIRY_AI)
    ONE("special_entr",                    ENTROPY)
    ONE("special_erfcx",                   ERFCX)
    ONE("special_ndtr",                    NDTR)
    ONE("special_log_ndtr",                LOG_NDTR)
    ONE("special_ndtri",                   NDTRI)
    ONE("special_psi",                     DIGAMMA)
    ONE("sinc",                            SINC)
    ONE("special_sinc",                    SINC)
    TWO("special_xlog1py",                 XLOG1PY)
    TWO("special_zeta",                    ZETA)
    ROW("special_xlogy.other_scalar", "(Tensor self, Scalar other) -> Tensor", emit_binary, XLOGY, PW_FLOAT)
    ROW("special_xlogy.self_scalar",  "(Scalar self, Tensor other) -> Tensor", emit_binary, XLOGY, PW_FLOAT)
    ROW("igamma",                     TT, emit_binary, IGAMMA,  0)
    ROW("igammac",                    TT, emit_binary, IGAMMAC, 0)
    ROW("special_gammainc",           TT, emit_binary, IGAMMA,  0)
    ROW("special_gammaincc",          TT, emit_binary, IGAMMAC, 0)
    ROW("polygamma",                  "(int n, Tensor self) -> Tensor", emit_polygamma, POLYGAMMA, 0)
    ROW("special_polygamma",          "(int n, Tensor self) -> Tensor", emit_polygamma, POLYGAMMA, 0)
    ROW("nextafter",                  TT, emit_next_after, NEXT_AFTER, 0)
    {.schema = "aten::float_power.Tensor_Tensor(Tensor self, Tensor exponent) -> Tensor", .compose = float_power, .row = "aten.pow.Tensor_Tensor"},
    {.schema = "aten::float_power.Tensor_Scalar(Tensor self, Scalar exponent) -> Tensor", .compose = float_power, .row = "aten.pow.Tensor_Scalar"},
    {.schema = "aten::float_power.Scalar(Scalar self, Tensor exponent) -> Tensor", .compose = float_power, .row = "aten.pow.Scalar"},
    ROW("logit_backward", "(Tensor grad_output, Tensor self, float? eps=None) -> Tensor", emit_logit_grad, DIV, 0)
    POLYNOMIAL("chebyshev_polynomial_t",         emit_binary,  CHEBYSHEV_T)
    POLYNOMIAL("chebyshev_polynomial_u",         emit_binary,  CHEBYSHEV_U)
    POLYNOMIAL("chebyshev_polynomial_v",         emit_binary,  CHEBYSHEV_V)
    POLYNOMIAL("chebyshev_polynomial_w",         emit_binary,  CHEBYSHEV_W)
    POLYNOMIAL("shifted_chebyshev_polynomial_t", emit_shifted, CHEBYSHEV_T)
    POLYNOMIAL("shifted_chebyshev_polynomial_u", emit_shifted, CHEBYSHEV_U)
    POLYNOMIAL("shifted_chebyshev_polynomial_v", emit_shifted, CHEBYSHEV_V)
    POLYNOMIAL("shifted_chebyshev_polynomial_w", emit_shifted, CHEBYSHEV_W)
    POLYNOMIAL("hermite_polynomial_h",           emit_binary,  HERMITE_H)
    POLYNOMIAL("hermite_polynomial_he",          emit_binary,  HERMITE_HE)
    POLYNOMIAL("laguerre_polynomial_l",          emit_binary,  LAGUERRE)
    POLYNOMIAL("legendre_polynomial_p",          emit_binary,  LEGENDRE)

    SAME_AS("special_round(Tensor self, *, int decimals=0) -> Tensor", "aten.round.decimals")
    SAME_AS("special_logsumexp(Tensor self, int[1] dim, bool keepdim=False) -> Tensor", "aten.logsumexp.default")
    {.schema = "aten::mvlgamma(Tensor self, int p) -> Tensor", .compose = multigammaln},
    {.schema = "aten::special_multigammaln(Tensor self, int p) -> Tensor", .compose = multigammaln},
    {.schema = "aten::ldexp.Tensor" TT, .compose = ldexp_compose},

    {.schema = "tess::polygamma_of(Tensor self, int n) -> Tensor", .compose = polygamma_of},
    IN_PLACE("polygamma_(Tensor(a!) self, int n)", "tess.polygamma_of.default")
    IN_PLACE("i0_(Tensor(a!) self)", "aten.i0.default")
    IN_PLACE("sinc_(Tensor(a!) self)", "aten.sinc.default")
    IN_PLACE("digamma_(Tensor(a!) self)", "aten.digamma.default")
    IN_PLACE("lgamma_(Tensor(a!) self)", "aten.lgamma.default")
    IN_PLACE("igamma_(Tensor(a!) self, Tensor other)", "aten.igamma.default")
    IN_PLACE("igammac_(Tensor(a!) self, Tensor other)", "aten.igammac.default")
    IN_PLACE("nextafter_(Tensor(a!) self, Tensor other)", "aten.nextafter.default")
    IN_PLACE("heaviside_(Tensor(a!) self, Tensor values)", "aten.heaviside.default")
    IN_PLACE("hypot_(Tensor(a!) self, Tensor other)", "aten.hypot.default")
    IN_PLACE("ldexp_(Tensor(a!) self, Tensor other)", "aten.ldexp.Tensor")
    IN_PLACE("mvlgamma_(Tensor(a!) self, int p)", "aten.mvlgamma.default")
    IN_PLACE("float_power_.Tensor(Tensor(a!) self, Tensor exponent)", "aten.float_power.Tensor_Tensor")
    IN_PLACE("float_power_.Scalar(Tensor(a!) self, Scalar exponent)", "aten.float_power.Tensor_Scalar")
    {0}};
/* clang-format on */
