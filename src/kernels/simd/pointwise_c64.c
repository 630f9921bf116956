/* pointwise_c64.c -- the instructions of pointwise.h on complex numbers.  Quotients and
 * transcendental functions go through f64, where nothing in the f32 range overflows. */
#include <complex.h>

#include "kernels/pointwise.h"
#include "kernels/simd/math.h"

typedef struct {
  float re, im;
} Complex;

static inline Complex make(double complex z) { return (Complex){(float)creal(z), (float)cimag(z)}; }
/* CMPLX() by another road: glibc has it for gcc only. */
static inline double complex wide(Complex z) {
  union {
    double part[2];
    double complex whole;
  } x = {{(double)z.re, (double)z.im}};
  return x.whole;
}

static inline Complex mul(Complex x, Complex y) {
  return (Complex){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re};
}
static inline Complex quotient(Complex x, Complex y) {
  double a = (double)x.re, b = (double)x.im, c = (double)y.re, e = (double)y.im, s = c * c + e * e;
  return (Complex){(float)((a * c + b * e) / s), (float)((b * c - a * e) / s)};
}
static inline Complex unit(Complex x) { /* sgn: x / |x|, 0 at 0 */
  double a = hypot((double)x.re, (double)x.im);
  return a == 0 ? (Complex){0, 0} : (Complex){(float)((double)x.re / a), (float)((double)x.im / a)};
}

static inline Complex sinc(Complex x) {
  double complex z = M_PI * wide(x);
  return x.re == 0 && x.im == 0 ? (Complex){1, 0} : make(csin(z) / z);
}

#define LOOP1(OP, T, EXPR)            \
  case PW_##OP: {                     \
    T *d = dst;                       \
    for (int64_t i = 0; i < n; i++) { \
      const Complex x = xs[i];        \
      d[i] = (EXPR);                  \
    }                                 \
    return PW_OK;                     \
  }
#define LOOP2(OP, T, EXPR)                \
  case PW_##OP: {                         \
    T *d = dst;                           \
    for (int64_t i = 0; i < n; i++) {     \
      const Complex x = xs[i], y = ys[i]; \
      d[i] = (EXPR);                      \
    }                                     \
    return PW_OK;                         \
  }
#define ROW1(OP, EXPR) LOOP1(OP, Complex, EXPR)
#define ROW2(OP, EXPR) LOOP2(OP, Complex, EXPR)
#define MATH1(OP, F) LOOP1(OP, Complex, make(F(wide(x))))
#define REAL1(OP, EXPR) LOOP1(OP, float, (float)(EXPR))
#define TEST1(OP, EXPR) LOOP1(OP, uint8_t, (EXPR))
#define TEST2(OP, EXPR) LOOP2(OP, uint8_t, (EXPR))

PwFault SIMD(pw_step_c64)(const PwInstr *in, void *dst, const void *x_, const void *y_, const void *z_, int64_t n) {
  const Complex *xs = x_, *ys = y_, *zs = z_;
  const float p = (float)in->imm.f[0];
  const Complex one = {1, 0};
  /* clang-format off */
  switch ((PwOp)in->op) {
    ROW1(COPY, x)
    ROW1(NEG, ((Complex){-x.re, -x.im}))
    ROW1(CONJ, ((Complex){x.re, -x.im}))
    ROW1(SIGN, unit(x))
    ROW1(SQUARE, mul(x, x))
    ROW1(CUBE, mul(mul(x, x), x))
    ROW1(RECIPROCAL, quotient(one, x))
    MATH1(SQRT, csqrt)
    LOOP1(RSQRT, Complex, make(1 / csqrt(wide(x))))
    MATH1(EXP, cexp)
    MATH1(LOG, clog)
    MATH1(SIN, csin)
    MATH1(COS, ccos)
    MATH1(TAN, ctan)
    MATH1(SINH, csinh)
    MATH1(COSH, ccosh)
    MATH1(TANH, ctanh)
    LOOP1(SIGMOID, Complex, make(1 / (1 + cexp(-wide(x)))))
    LOOP1(SILU, Complex, make(wide(x) / (1 + cexp(-wide(x)))))
    ROW1(SINC, sinc(x))
    REAL1(MAGNITUDE, hypot((double)x.re, (double)x.im))
    REAL1(ANGLE, atan2((double)x.im, (double)x.re))
    TEST1(ISNAN, (x.re != x.re) | (x.im != x.im))
    TEST1(ISINF, abs_f32(x.re) == F32_INF || abs_f32(x.im) == F32_INF)
    TEST1(ISFINITE, abs_f32(x.re) < F32_INF && abs_f32(x.im) < F32_INF)
    ROW2(ADD, ((Complex){x.re + y.re, x.im + y.im}))
    ROW2(SUB, ((Complex){x.re - y.re, x.im - y.im}))
    ROW2(ADD_SCALED, ((Complex){x.re + p * y.re, x.im + p * y.im}))
    ROW2(MUL, mul(x, y))
    ROW2(DIV, quotient(x, y))
    LOOP2(POW, Complex, make(cpow(wide(x), wide(y))))
    TEST2(EQ, (x.re == y.re) & (x.im == y.im))
    TEST2(NE, (x.re != y.re) | (x.im != y.im))
    case PW_WHERE: {
      const uint8_t *condition = x_;
      Complex *d = dst;
      for (int64_t i = 0; i < n; i++) d[i] = condition[i] ? ys[i] : zs[i];
      return PW_OK;
    }
    default: return PW_UNKNOWN;
  }
  /* clang-format on */
}
