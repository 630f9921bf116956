/* rnn.c -- gates and small products of recurrent networks; see rnn.h. */
#include "kernels/rnn.h"

#include "kernels/simd/math.h"

static inline double sigmoid_f64(double x) { return 1 / (1 + exp(-x)); }
static inline double tanh_f64(double x) { return tanh(x); }

#define DEFINE_STEP(T, t)                                                                            \
  void SIMD(rnn_step_##t)(RnnKind kind, const T *restrict pre, const T *restrict hid, T *restrict h, \
                          T *restrict c, int64_t n) {                                                \
    switch (kind) {                                                                                  \
      case RNN_LSTM:                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                            \
          T cell = sigmoid_##t(pre[n + i]) * c[i] + sigmoid_##t(pre[i]) * tanh_##t(pre[2 * n + i]);  \
          c[i] = cell;                                                                               \
          h[i] = sigmoid_##t(pre[3 * n + i]) * tanh_##t(cell);                                       \
        }                                                                                            \
        break;                                                                                       \
      case RNN_GRU:                                                                                  \
        for (int64_t i = 0; i < n; i++) {                                                            \
          T r = sigmoid_##t(pre[i] + hid[i]), z = sigmoid_##t(pre[n + i] + hid[n + i]);              \
          T fresh = tanh_##t(pre[2 * n + i] + r * hid[2 * n + i]);                                   \
          h[i] = fresh + z * (h[i] - fresh);                                                         \
        }                                                                                            \
        break;                                                                                       \
      case RNN_TANH:                                                                                 \
        for (int64_t i = 0; i < n; i++) h[i] = tanh_##t(pre[i]);                                     \
        break;                                                                                       \
      case RNN_RELU:                                                                                 \
        for (int64_t i = 0; i < n; i++) h[i] = ((pre[i] > 0) | (pre[i] != pre[i])) ? pre[i] : 0;     \
        break;                                                                                       \
    }                                                                                                \
  }
DEFINE_STEP(float, f32)
DEFINE_STEP(double, f64)

/* Four rows of b at a time against one of a, in LANES partial sums each. */
#define LANES 16
#define DEFINE_DOTS(T, t)                                                                                 \
  static inline T dot_##t(const T *restrict a, const T *restrict b, int64_t k) {                          \
    T part[LANES] = {0}, sum = 0;                                                                         \
    int64_t i = 0;                                                                                        \
    for (; i + LANES <= k; i += LANES) {                                                                  \
      for (int j = 0; j < LANES; j++) part[j] += a[i + j] * b[i + j];                                     \
    }                                                                                                     \
    for (; i < k; i++) part[i & (LANES - 1)] += a[i] * b[i];                                              \
    for (int j = 0; j < LANES; j++) sum += part[j];                                                       \
    return sum;                                                                                           \
  }                                                                                                       \
  void SIMD(rnn_dots_##t)(T * acc, int64_t ld, const T *a, const T *b, int64_t m, int64_t n, int64_t k) { \
    for (int64_t j = 0; j < n; j++) {                                                                     \
      for (int64_t i = 0; i < m; i++) acc[i * ld + j] += dot_##t(a + i * k, b + j * k, k);                \
    }                                                                                                     \
  }
DEFINE_DOTS(float, f32)
DEFINE_DOTS(double, f64)
