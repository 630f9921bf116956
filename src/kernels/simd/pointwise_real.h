/* pointwise_real.h -- the instructions of pointwise.h on real numbers, once for f32 and
 * f64.  The including file defines
 *
 *     REAL       the type              FN(f)   f_f32 or f_f64, vectorisable for f32
 *     STEP       the function's name   LM(f)   libm's f for this type; LGAMMA_R likewise
 *     VECTORISED, MATH_VECTORISED      before loops without and with FN of a function
 *
 * Rows say what one element becomes: x, y, z are the sources, p, q, r the immediates.
 *   ROW1..3   loops that the compiler vectorises (if FN does)
 *   TEST1, 2  the same with a truth value as result
 *   CALL1, 2  loops that call libm
 */

#define LOOP1(OP, T, PRAGMA, EXPR)           \
  case PW_##OP: {                            \
    T *d = dst;                              \
    PRAGMA for (int64_t i = 0; i < n; i++) { \
      const REAL x = xs[i];                  \
      d[i] = (T)(EXPR);                      \
    }                                        \
    return PW_OK;                            \
  }
#define LOOP2(OP, T, PRAGMA, EXPR)           \
  case PW_##OP: {                            \
    T *d = dst;                              \
    PRAGMA for (int64_t i = 0; i < n; i++) { \
      const REAL x = xs[i], y = ys[i];       \
      d[i] = (T)(EXPR);                      \
    }                                        \
    return PW_OK;                            \
  }
#define LOOP3(OP, T, PRAGMA, EXPR)                \
  case PW_##OP: {                                 \
    T *d = dst;                                   \
    PRAGMA for (int64_t i = 0; i < n; i++) {      \
      const REAL x = xs[i], y = ys[i], z = zs[i]; \
      d[i] = (T)(EXPR);                           \
    }                                             \
    return PW_OK;                                 \
  }
#define ROW1(OP, EXPR) LOOP1(OP, REAL, VECTORISED, EXPR)
#define ROW2(OP, EXPR) LOOP2(OP, REAL, VECTORISED, EXPR)
#define ROW3(OP, EXPR) LOOP3(OP, REAL, VECTORISED, EXPR)
#define MATH1(OP, EXPR) LOOP1(OP, REAL, MATH_VECTORISED, EXPR)
#define MATH2(OP, EXPR) LOOP2(OP, REAL, MATH_VECTORISED, EXPR)
#define TEST1(OP, EXPR) LOOP1(OP, uint8_t, VECTORISED, EXPR)
#define TEST2(OP, EXPR) LOOP2(OP, uint8_t, VECTORISED, EXPR)
#define CALL1(OP, EXPR) LOOP1(OP, REAL, , EXPR)
#define CALL2(OP, EXPR) LOOP2(OP, REAL, , EXPR)

#define C(x) ((REAL)(x))
#define INF ((REAL)__builtin_inff())

/* As in ATen, nan when the quotient is beyond all numbers. */
VMATH REAL fmod_of(REAL x, REAL y) { return FN(abs)(x / y) == INF ? (REAL)NAN : LM(fmod)(x, y); }
VMATH REAL remainder_of(REAL x, REAL y) {
  REAL m = fmod_of(x, y);
  return m != 0 && (y < 0) != (m < 0) ? m + y : m;
}
/* Quotient rounded to minus infinity, exact where the quotient in REAL is not. */
VMATH REAL floor_div(REAL x, REAL y) {
  if (y == 0) return x / y;
  REAL m = LM(fmod)(x, y), quotient = (x - m) / y;
  if (m != 0 && (y < 0) != (m < 0)) quotient -= 1;
  if (quotient == 0) return LM(copysign)(0, x / y);
  REAL down = LM(floor)(quotient);
  return quotient - down > C(0.5) ? down + 1 : down;
}
VMATH REAL lgamma_of(REAL x) { /* without libm's global sign */
  int sign;
  return x == -INF ? INF : LGAMMA_R(x, &sign);
}
VMATH REAL xlogy(REAL x, REAL y) {
  REAL l = x * FN(log)(y);
  return y != y ? y : x == 0 ? 0 : l;
}
VMATH REAL logaddexp(REAL x, REAL y) {
  REAL m = FN(max)(x, y), l = m + FN(log1p)(FN(exp)(-FN(abs)(x - y)));
  return x == y && FN(abs)(x) == INF ? x : l;
}
VMATH REAL logaddexp2(REAL x, REAL y) {
  REAL m = FN(max)(x, y), l = m + FN(log1p)(FN(exp2)(-FN(abs)(x - y))) * C(1.4426950408889634);
  return x == y && FN(abs)(x) == INF ? x : l;
}
VMATH REAL gelu_erf_backward(REAL g, REAL x) {
  REAL cdf = C(0.5) * (1 + FN(erf)(x * C(0.70710678118654752))),
       pdf = FN(exp)(C(-0.5) * x * x) * C(0.39894228040143268);
  return g * (cdf + x * pdf);
}
VMATH REAL gelu_tanh_backward(REAL g, REAL x) {
  const REAL beta = C(0.79788456080286536), kappa = C(0.044715);
  REAL t = FN(tanh)(beta * (x + kappa * x * x * x)), inner = beta * (1 + 3 * kappa * x * x);
  return g * (C(0.5) * (1 + t) + C(0.5) * x * (1 - t * t) * inner);
}
VMATH REAL silu_backward(REAL g, REAL x) {
  REAL s = FN(sigmoid)(x);
  return g * s * (1 + x * (1 - s));
}
VMATH REAL mish_backward(REAL g, REAL x) {
  REAL s = FN(sigmoid)(x), t = FN(tanh)(FN(softplus)(x));
  return g * (t + x * s * (1 - t * t));
}
VMATH REAL log_sigmoid_backward(REAL g, REAL x) {
  REAL e = FN(exp)(-FN(abs)(x)), s = e / (1 + e);
  return g * (x < 0 ? 1 - s : s);
}
VMATH REAL softplus_scaled(REAL x, REAL beta, REAL threshold) {
  REAL t = x * beta, l = FN(log1p)(FN(exp)(t)) / beta;
  return t > threshold ? x : l;
}
VMATH REAL softplus_backward(REAL g, REAL x, REAL beta, REAL threshold) {
  REAL t = x * beta, e = FN(exp)(t), d = g * e / (e + 1);
  return t > threshold ? g : d;
}
VMATH REAL elu(REAL x, REAL negative, REAL positive, REAL inner) {
  REAL below = FN(expm1)(x * inner) * negative, above = x * positive;
  return x < 0 ? below : above;
}
VMATH REAL elu_backward(REAL g, REAL x, REAL negative, REAL positive, REAL inner) {
  REAL below = g * inner * negative * FN(exp)(x * inner), above = g * positive;
  return x <= 0 ? below : above;
}
VMATH REAL lerp(REAL x, REAL y, REAL w) {
  REAL span = y - x, low = x + w * span, high = y - span * (1 - w);
  return FN(abs)(w) < C(0.5) ? low : high;
}
VMATH REAL six_clamp(REAL x) { /* clamp(x + 3, 0, 6) / 6 */
  return FN(clamp)(x + 3, 0, 6) / 6;
}

VMATH REAL next_of(REAL x, REAL y, REAL digits, REAL least, REAL most) {
  return digits == 0 ? LM(nextafter)(x, y)
                     : (REAL)next_narrow((double)x, (double)y, (int)digits, (int)least, (double)most);
}
static void special_run(SpecialFn f, REAL *d, const REAL *x, const REAL *y, int64_t n) {
  if (f.one) {
    for (int64_t i = 0; i < n; i++) d[i] = (REAL)f.one((double)x[i]);
  } else {
    for (int64_t i = 0; i < n; i++) d[i] = (REAL)f.two((double)x[i], (double)y[i]);
  }
}

PwFault SIMD(STEP)(const PwInstr *in, void *dst, const void *x_, const void *y_, const void *z_, int64_t n) {
  const REAL *xs = x_, *ys = y_, *zs = z_;
  const REAL p = C(in->imm.f[0]), q = C(in->imm.f[1]), r = C(in->imm.f[2]);
  /* clang-format off */
  switch ((PwOp)in->op) {
    ROW1(COPY, x)
    ROW1(NEG, -x)
    ROW1(ABS, FN(abs)(x))
    ROW1(SIGN, C(x > 0) - C(x < 0))
    ROW1(SQUARE, x * x)
    ROW1(CUBE, x * x * x)
    ROW1(SQRT, LM(sqrt)(x))
    ROW1(RSQRT, 1 / LM(sqrt)(x))
    ROW1(RECIPROCAL, 1 / x)
    MATH1(EXP, FN(exp)(x))
    MATH1(EXP2, FN(exp2)(x))
    MATH1(EXPM1, FN(expm1)(x))
    MATH1(LOG, FN(log)(x))
    MATH1(LOG2, FN(log2)(x))
    MATH1(LOG10, FN(log10)(x))
    MATH1(LOG1P, FN(log1p)(x))
    case PW_SIN: return FN(sin_run)(dst, xs, n), PW_OK;
    case PW_COS: return FN(cos_run)(dst, xs, n), PW_OK;
    case PW_TAN: return FN(tan_run)(dst, xs, n), PW_OK;
    MATH1(ASIN, FN(asin)(x))
    MATH1(ACOS, FN(acos)(x))
    MATH1(ATAN, FN(atan)(x))
    MATH1(SINH, FN(sinh)(x))
    MATH1(COSH, FN(cosh)(x))
    MATH1(TANH, FN(tanh)(x))
    MATH1(ASINH, FN(asinh)(x))
    MATH1(ACOSH, FN(acosh)(x))
    MATH1(ATANH, FN(atanh)(x))
    MATH1(ERF, FN(erf)(x))
    CALL1(ERFC, LM(erfc)(x))
    CALL1(ERFINV, erfinv_f64((double)x))
    CALL1(LGAMMA, lgamma_of(x))
    CALL1(DIGAMMA, digamma_f64((double)x))
    CALL1(CEIL, LM(ceil)(x))
    CALL1(FLOOR, LM(floor)(x))
    CALL1(ROUND, LM(rint)(x))
    CALL1(TRUNC, LM(trunc)(x))
    CALL1(FRAC, x - LM(trunc)(x))
    MATH1(SIGMOID, FN(sigmoid)(x))
    MATH1(LOG_SIGMOID, (x < 0 ? x : 0) - FN(log1p)(FN(exp)(-FN(abs)(x))))
    MATH1(SILU, FN(silu)(x))
    MATH1(MISH, FN(mish)(x))
    ROW1(RELU, x < 0 ? 0 : x)
    MATH1(GELU_ERF, FN(gelu_erf)(x))
    MATH1(GELU_TANH, FN(gelu_tanh)(x))
    ROW1(HARDSIGMOID, six_clamp(x))
    ROW1(HARDSWISH, x * FN(clamp)(x + 3, 0, 6) / 6)
    ROW1(CLAMP, FN(clamp)(x, p, q))
    ROW1(LEAKY_RELU, x > 0 ? x : x * p)
    MATH1(ELU, elu(x, p, q, r))
    MATH1(SOFTPLUS, softplus_scaled(x, p, q))
    ROW1(HARDSHRINK, ((x >= -p) & (x <= p)) ? 0 : x)
    ROW1(SOFTSHRINK, x > p ? x - p : x < -p ? x + p : x * 0)
    ROW1(THRESHOLD, x <= p ? q : x)
    ROW1(NAN_TO_NUM, x != x ? p : x == INF ? q : x == -INF ? r : x)
    TEST1(ISNAN, x != x)
    TEST1(ISINF, FN(abs)(x) == INF)
    TEST1(ISFINITE, FN(abs)(x) < INF)
    TEST1(ISPOSINF, x == INF)
    TEST1(ISNEGINF, x == -INF)
    TEST1(SIGNBIT, FN(copysign)(1, x) < 0)
    ROW1(ANGLE, x != x ? x : x < 0 ? C(3.14159265358979324) : 0)

    ROW2(ADD, x + y)
    ROW2(SUB, x - y)
    ROW2(MUL, x * y)
    ROW2(DIV, x / y)
    ROW2(ADD_SCALED, x + p * y)
    CALL2(FLOOR_DIV, floor_div(x, y))
    CALL2(TRUNC_DIV, LM(trunc)(x / y))
    CALL2(REMAINDER, remainder_of(x, y))
    CALL2(FMOD, fmod_of(x, y))
    ROW2(MAXIMUM, FN(max)(x, y))
    ROW2(MINIMUM, FN(min)(x, y))
    ROW2(FMAX, ((x > y) | (y != y)) ? x : y)
    ROW2(FMIN, ((x < y) | (y != y)) ? x : y)
    MATH2(POW, FN(pow)(x, y))
    MATH2(ATAN2, FN(atan2)(x, y))
    CALL2(NEXT_AFTER, next_of(x, y, p, q, r))
    CALL2(HYPOT, LM(hypot)(x, y))
    ROW2(COPYSIGN, FN(copysign)(x, y))
    MATH2(XLOGY, xlogy(x, y))
    MATH2(LOGADDEXP, logaddexp(x, y))
    MATH2(LOGADDEXP2, logaddexp2(x, y))
    ROW2(HEAVISIDE, x == 0 ? y : C(x > 0))
    ROW2(PRELU, x > 0 ? x : x * y)
    TEST2(EQ, x == y)
    TEST2(NE, x != y)
    TEST2(LT, x < y)
    TEST2(LE, x <= y)
    TEST2(GT, x > y)
    TEST2(GE, x >= y)

    ROW2(TANH_BACKWARD, x * (1 - y * y))
    ROW2(SIGMOID_BACKWARD, x * (1 - y) * y)
    MATH2(SILU_BACKWARD, silu_backward(x, y))
    MATH2(MISH_BACKWARD, mish_backward(x, y))
    MATH2(GELU_ERF_BACKWARD, gelu_erf_backward(x, y))
    MATH2(GELU_TANH_BACKWARD, gelu_tanh_backward(x, y))
    ROW2(HARDSIGMOID_BACKWARD, ((y > -3) & (y < 3)) ? x / 6 : 0)
    ROW2(HARDSWISH_BACKWARD, y <= -3 ? 0 : y < 3 ? x * (y / 3 + C(0.5)) : x)
    MATH2(LOG_SIGMOID_BACKWARD, log_sigmoid_backward(x, y))
    ROW2(THRESHOLD_BACKWARD, y <= p ? 0 : x)
    ROW2(HARDTANH_BACKWARD, ((y <= p) | (y >= q)) ? 0 : x)
    ROW2(LEAKY_RELU_BACKWARD, y > 0 ? x : x * p)
    MATH2(ELU_BACKWARD, elu_backward(x, y, p, q, r))
    ROW2(ELU_BACKWARD_RESULT, y <= 0 ? x * r * (y + p) : x * q)
    MATH2(SOFTPLUS_BACKWARD, softplus_backward(x, y, p, q))
    ROW2(HARDSHRINK_BACKWARD, ((y >= -p) & (y <= p)) ? 0 : x)
    ROW2(SOFTSHRINK_BACKWARD, ((y >= -p) & (y <= p)) ? 0 : x)

    case PW_WHERE: {
      REAL *d = dst;
      const uint8_t *condition = x_;
      VECTORISED for (int64_t i = 0; i < n; i++) d[i] = condition[i] ? ys[i] : zs[i];
      return PW_OK;
    }
    case PW_POLAR: {
      float *d = dst;
      for (int64_t i = 0; i < n; i++) {
        const float length = (float)xs[i], angle = (float)ys[i];
        d[2 * i] = length * cosf(angle), d[2 * i + 1] = length * sinf(angle);
      }
      return PW_OK;
    }
    ROW3(ADDCMUL, x + p * y * z)
    ROW3(ADDCDIV, x + p * y / z)
    ROW3(LERP, lerp(x, y, z))
    default: {
      SpecialFn f = special_fn((PwOp)in->op);
      if (!f.one && !f.two) return PW_UNKNOWN;
      special_run(f, dst, xs, ys, n);
      return PW_OK;
    }
  }
  /* clang-format on */
}
