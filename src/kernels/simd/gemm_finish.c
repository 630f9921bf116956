/* gemm_finish.c -- what follows a product, one row at a time; see gemm_simd.h. */
#include "kernels/gemm_simd.h"
#include "kernels/simd/math.h"

static inline float none_f32(float x) { return x; }
static inline float relu_f32(float x) { return x < 0 ? 0 : x; } /* nan passes */

/* Three loops per activation: the operands that are not there cost nothing. */
#define FINISH(name)                                                                                    \
  static void finish_##name(int64_t n, float *y, const float *x, float beta, const float *restrict add, \
                            const float *restrict residual) {                                           \
    if (add && residual) {                                                                              \
      for (int64_t i = 0; i < n; i++) y[i] = name##_f32(fma_f32(beta, add[i], x[i])) + residual[i];     \
    } else if (add) {                                                                                   \
      for (int64_t i = 0; i < n; i++) y[i] = name##_f32(fma_f32(beta, add[i], x[i]));                   \
    } else if (residual) {                                                                              \
      for (int64_t i = 0; i < n; i++) y[i] = name##_f32(x[i]) + residual[i];                            \
    } else {                                                                                            \
      for (int64_t i = 0; i < n; i++) y[i] = name##_f32(x[i]);                                          \
    }                                                                                                   \
  }
FINISH(none)
FINISH(relu)
FINISH(gelu_erf)
FINISH(gelu_tanh)
FINISH(silu)
FINISH(tanh)
FINISH(sigmoid)

typedef void FinishFn(int64_t n, float *y, const float *x, float beta, const float *restrict add,
                      const float *restrict residual);

void SIMD(gemm_finish_row)(GemmAct act, int64_t n, float *y, const float *x, float beta, const float *add,
                           const float *residual) {
  static FinishFn *const table[] = {
      [GEMM_ACT_NONE] = finish_none,           [GEMM_ACT_RELU] = finish_relu, [GEMM_ACT_GELU] = finish_gelu_erf,
      [GEMM_ACT_GELU_TANH] = finish_gelu_tanh, [GEMM_ACT_SILU] = finish_silu, [GEMM_ACT_TANH] = finish_tanh,
      [GEMM_ACT_SIGMOID] = finish_sigmoid,
  };
  table[act](n, y, x, beta, add, residual);
}
