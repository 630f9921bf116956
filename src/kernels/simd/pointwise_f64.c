/* pointwise_f64.c -- see pointwise_real.h.  Elementary functions are libm's. */
#include "kernels/pointwise.h"
#include "kernels/simd/math.h"
#include "kernels/simd/special.h"
#include "kernels/special.h"

#define LIBM(f) \
  static inline double f##_f64(double x) { return f(x); }
LIBM(exp)
LIBM(exp2)
LIBM(expm1)
LIBM(log)
LIBM(log2)
LIBM(log10)
LIBM(log1p)
LIBM(asin)
LIBM(acos)
LIBM(atan)
LIBM(sinh)
LIBM(cosh)
LIBM(tanh)
LIBM(asinh)
LIBM(acosh)
LIBM(atanh)
LIBM(erf)

#define RUN(f)                                                     \
  static void f##_run_f64(double *y, const double *x, int64_t n) { \
    for (int64_t i = 0; i < n; i++) y[i] = f(x[i]);                \
  }
RUN(sin)
RUN(cos)
RUN(tan)

static inline double abs_f64(double x) { return __builtin_fabs(x); }
static inline double copysign_f64(double x, double sign) { return __builtin_copysign(x, sign); }
static inline double max_f64(double a, double b) { return ((a > b) | (a != a)) ? a : b; }
static inline double min_f64(double a, double b) { return ((a < b) | (a != a)) ? a : b; }
static inline double clamp_f64(double x, double low, double high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
static inline double pow_f64(double x, double y) { return pow(x, y); }
static inline double atan2_f64(double y, double x) { return atan2(y, x); }
static inline double sigmoid_f64(double x) { return 1 / (1 + exp(-x)); }
static inline double silu_f64(double x) { return x / (1 + exp(-x)); }
static inline double softplus_f64(double x) { return (x > 0 ? x : 0) + log1p(exp(-fabs(x))); }
static inline double mish_f64(double x) { return x * tanh(softplus_f64(x)); }
static inline double gelu_erf_f64(double x) { return 0.5 * x * (1 + erf(x * M_SQRT1_2)); }
static inline double gelu_tanh_f64(double x) {
  return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
}

#define REAL double
#define STEP pw_step_f64
#define FN(f) f##_f64
#define LM(name) name
#define LGAMMA_R lgamma_r
#define VECTORISED INDEPENDENT
#define MATH_VECTORISED
#include "kernels/simd/pointwise_real.h"
