/* gemm_naive.c -- the specification of a product: three loops over elements, sums in f64
 * (f32 and f64), in pairs of them (complex) or in wrapping int64. */
#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/gemm_problem.h"

typedef struct {
  double re, im;
} Number;

static Number load(const Matrix *x, int64_t z, int64_t i, int64_t j) {
  Number n = {0};
  if (!x->data) return n;
  if (x->dtype == DT_C64) {
    float pair[2];
    memcpy(pair, matrix_at(x, z, i, j), sizeof pair);
    return (Number){(double)pair[0], (double)pair[1]};
  }
  SIMD_CALL(ISA_BASE, convert_run)(&n.re, DT_F64, matrix_at(x, z, i, j), x->dtype, 1);
  return n;
}

static uint64_t load_int(const Matrix *x, int64_t z, int64_t i, int64_t j) {
  uint64_t n = 0;
  if (x->data) SIMD_CALL(ISA_BASE, convert_run)(&n, DT_I64, matrix_at(x, z, i, j), x->dtype, 1);
  return n;
}

static double activate(GemmAct act, double x) {
  switch (act) {
    case GEMM_ACT_NONE: return x;
    case GEMM_ACT_RELU: return x < 0 ? 0 : x;
    case GEMM_ACT_GELU: return 0.5 * x * (1 + erf(x * 0.70710678118654752440));
    case GEMM_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
    case GEMM_ACT_SILU: return x / (1 + exp(-x));
    case GEMM_ACT_TANH: return tanh(x);
    case GEMM_ACT_SIGMOID: return 1 / (1 + exp(-x));
  }
  return x;
}

static void int_element(const Problem *p, int64_t z, int64_t i, int64_t j) {
  uint64_t sum = 0;
  for (int64_t q = 0; q < p->k; q++) sum += load_int(&p->a, z, i, q) * load_int(&p->b, z, q, j);
  sum = sum * (uint64_t)f64_to_i64(p->alpha) + (uint64_t)f64_to_i64(p->beta) * load_int(&p->add, z, i, j);
  SIMD_CALL(ISA_BASE, convert_run)(matrix_at(&p->c, z, i, j), p->c.dtype, &sum, DT_I64, 1);
}

static void float_element(const Problem *p, int64_t z, int64_t i, int64_t j) {
  Number sum = {0}, add = load(&p->add, z, i, j), residual = load(&p->residual, z, i, j);
  for (int64_t q = 0; q < p->k; q++) {
    Number x = load(&p->a, z, i, q), y = load(&p->b, z, q, j);
    sum.re += x.re * y.re - x.im * y.im;
    sum.im += x.re * y.im + x.im * y.re;
  }
  double re = p->alpha * sum.re + (p->add.data ? p->beta * add.re : 0),
         im = p->alpha * sum.im + (p->add.data ? p->beta * add.im : 0);
  char *to = matrix_at(&p->c, z, i, j);
  if (p->c.dtype == DT_C64) {
    memcpy(to, (float[2]){(float)re, (float)im}, 2 * sizeof(float));
    return;
  }
  re = activate(p->act, re) + residual.re;
  SIMD_CALL(ISA_BASE, convert_run)(to, p->c.dtype, &re, DT_F64, 1);
}

void gemm_naive_problem(const Problem *p) {
  bool ints = dtype_is_integral(p->a.dtype);
  for (int64_t e = 0; e < p->batch * p->m * p->n; e++) {
    int64_t z = e / p->n / p->m, i = e / p->n % p->m, j = e % p->n;
    if (ints) int_element(p, z, i, j);
    else float_element(p, z, i, j);
  }
}
