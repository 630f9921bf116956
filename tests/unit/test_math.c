/* Elementary functions of kernels/simd/math.h against libm in f64, over all of f32, on
 * every instruction set this CPU has. */
#include <math.h>

#include "kernels/pointwise.h"
#include "unit.h"

enum { N = 4096, STEP = 4099 }; /* every STEP-th float is tried */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double silu(double x) { return x / (1 + exp(-x)); }
static double gelu(double x) { return 0.5 * x * erfc(-x * M_SQRT1_2); }
static double gelu_tanh(double x) { return 0.5 * x * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x))); }
static double mish(double x) { return x * tanh(log1p(exp(x))); }
static double log_sigmoid(double x) { return x < -40 ? x : -log1p(exp(-x)); }
static double rsqrt(double x) { return 1 / sqrt(x); }

/* ulp as math.h promises; `slack` is an absolute error for results that ATen, too, makes
 * from cancelling or overflowing parts. */
static const struct {
  PwOp op;
  double (*want)(double);
  double ulp, slack;
} rows[] = {
    {PW_EXP, exp, 1, 0},
    {PW_EXP2, exp2, 2, 0},
    {PW_EXPM1, expm1, 2, 0},
    {PW_LOG, log, 1, 0},
    {PW_LOG2, log2, 2, 0},
    {PW_LOG10, log10, 2, 0},
    {PW_LOG1P, log1p, 2, 0},
    {PW_SIN, sin, 2, 0},
    {PW_COS, cos, 2, 0},
    {PW_TAN, tan, 4, 0},
    {PW_ASIN, asin, 3, 0},
    {PW_ACOS, acos, 2, 0},
    {PW_ATAN, atan, 2, 0},
    {PW_SINH, sinh, 3, 0},
    {PW_COSH, cosh, 3, 0},
    {PW_TANH, tanh, 3, 0},
    {PW_ASINH, asinh, 2, 0},
    {PW_ACOSH, acosh, 2, 0},
    {PW_ATANH, atanh, 3, 0},
    {PW_ERF, erf, 2, 0},
    {PW_RSQRT, rsqrt, 2, 0},
    {PW_SIGMOID, sigmoid, 3, 1e-37},
    {PW_SILU, silu, 3, 1e-35},
    {PW_GELU_ERF, gelu, 4, 1e-7},
    {PW_MISH, mish, 6, 1e-37},
    {PW_GELU_TANH, gelu_tanh, 4, 1e-6},
    {PW_LOG_SIGMOID, log_sigmoid, 3, 1e-37},
};

static PwStep *step_of(int isa) { return SIMD_CALL((Isa)isa, pw_step_f32); }

/* Is got within `ulp` units in the last place of want? */
static bool is_near(float got, double want, double ulp, double slack) {
  if (isnan(want) || isnan(got)) return isnan(want) && isnan(got);
  if (isinf((float)want) || isinf(got))
    return (float)want == got || (fabs(want) > 3.4e38 && fabs((double)got) > 3.4e38);
  int e;
  frexp(want, &e);
  return fabs((double)got - want) <= ulp * ldexp(1, (e < -125 ? -125 : e) - 24) + slack;
}

static void test_functions(void **state) {
  (void)state;
  static float x[N], y[N];
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++) {
      PwInstr in = {.op = (uint8_t)rows[row].op};
      for (uint64_t bits = 0; bits < UINT32_MAX;) {
        for (int i = 0; i < N; i++, bits += STEP) x[i] = f32_from_bits((uint32_t)bits);
        assert_int_equal(step_of(isa)(&in, y, x, NULL, NULL, N), PW_OK);
        for (int i = 0; i < N; i++) {
          double want = rows[row].want((double)x[i]);
          if (isinf(x[i]) && isnan(y[i])) continue; /* inf times 0, as in ATen */
          if (!is_near(y[i], want, rows[row].ulp, rows[row].slack)) {
            test_failed("%s(%a) on %s: %.9g, should be %.9g", pw_op_name(rows[row].op), (double)x[i],
                        isa_name((Isa)isa), (double)y[i], want);
          }
        }
      }
    }
  }
}

static const float edges[] = {0,         -0.0f, 1,          -1,       2,          -2,         0.5f,
                              -0.5f,     3,     -3,         INFINITY, -INFINITY,  NAN,        1e-40f,
                              -1e-40f,   1e38f, -1e38f,     8388607,  8388609,    16777215,   16777216,
                              -16777218, 1e10f, 8388607.5f, -3.5f,    1.0000001f, 0.99999994f};
enum { EDGES = sizeof edges / sizeof *edges };

static void check_two(PwOp op, double (*want)(double, double), double ulp, const float *x, const float *y, int n) {
  static float z[N];
  for (int isa = 0; isa <= (int)isa_detect(); isa++) {
    PwInstr in = {.op = (uint8_t)op};
    assert_int_equal(step_of(isa)(&in, z, x, y, NULL, n), PW_OK);
    for (int i = 0; i < n; i++) {
      double w = want((double)x[i], (double)y[i]);
      if (!is_near(z[i], w, ulp, 0))
        test_failed("%s(%g, %g) on %s: %.9g, should be %.9g", pw_op_name(op), (double)x[i], (double)y[i],
                    isa_name((Isa)isa), (double)z[i], w);
    }
  }
}

static void test_two_arguments(void **state) {
  (void)state;
  static float x[N], y[N];
  int n = 0;
  for (int i = 0; i < EDGES; i++) {
    for (int j = 0; j < EDGES; j++, n++) x[n] = edges[i], y[n] = edges[j];
  }
  check_two(PW_POW, pow, 2, x, y, n);
  check_two(PW_ATAN2, atan2, 4, x, y, n);
  uint32_t seed = 1;
  for (int turn = 0; turn < 50; turn++) {
    for (int i = 0; i < N; i++) {
      seed = seed * 1664525u + 1013904223u;
      x[i] = expf((float)(seed >> 8) / 0x1p24f * 80 - 40);
      seed = seed * 1664525u + 1013904223u;
      y[i] = ((float)(seed >> 8) / 0x1p24f - 0.5f) * (turn & 1 ? 4 : 100);
    }
    check_two(PW_POW, pow, 1, x, y, N);
    check_two(PW_ATAN2, atan2, 3, y, x, N);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_functions), cmocka_unit_test(test_two_arguments)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
