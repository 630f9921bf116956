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

/* ---- gradients --------------------------------------------------------------------------- */

#define DEFINE_BACK(T, t)                                                                                  \
  void SIMD(rnn_gates_##t)(RnnKind kind, T *restrict g, const T *restrict hid, const T *restrict c_before, \
                           T *restrict c, T *restrict full, int64_t n) {                                   \
    switch (kind) {                                                                                        \
      case RNN_LSTM:                                                                                       \
        for (int64_t i = 0; i < 2 * n; i++) g[i] = sigmoid_##t(g[i]);                                      \
        for (int64_t i = 2 * n; i < 3 * n; i++) g[i] = tanh_##t(g[i]);                                     \
        for (int64_t i = 3 * n; i < 4 * n; i++) g[i] = sigmoid_##t(g[i]);                                  \
        for (int64_t i = 0; i < n; i++) c[i] = g[n + i] * c_before[i] + g[i] * g[2 * n + i];               \
        for (int64_t i = 0; full && i < n; i++) full[i] = g[3 * n + i] * tanh_##t(c[i]);                   \
        break;                                                                                             \
      case RNN_GRU:                                                                                        \
        for (int64_t i = 0; i < 2 * n; i++) g[i] = sigmoid_##t(g[i] + hid[i]);                             \
        for (int64_t i = 0; i < n; i++) g[2 * n + i] = tanh_##t(g[2 * n + i] + g[i] * hid[2 * n + i]);     \
        break;                                                                                             \
      case RNN_TANH:                                                                                       \
        for (int64_t i = 0; i < n; i++) g[i] = tanh_##t(g[i]);                                             \
        break;                                                                                             \
      case RNN_RELU:                                                                                       \
        for (int64_t i = 0; i < n; i++) g[i] = ((g[i] > 0) | (g[i] != g[i])) ? g[i] : 0;                   \
        break;                                                                                             \
    }                                                                                                      \
  }                                                                                                        \
  void SIMD(rnn_back_##t)(RnnKind kind, T *restrict g, T *restrict hid, const T *restrict before,          \
                          const T *restrict c_before, const T *restrict c, T *restrict dh, T *restrict dc, \
                          int64_t n) {                                                                     \
    switch (kind) {                                                                                        \
      case RNN_LSTM:                                                                                       \
        for (int64_t e = 0; e < n; e++) {                                                                  \
          T i = g[e], f = g[n + e], fresh = g[2 * n + e], o = g[3 * n + e], squashed = tanh_##t(c[e]);     \
          T d = dc[e] + dh[e] * o * (1 - squashed * squashed);                                             \
          g[e] = d * fresh * i * (1 - i);                                                                  \
          g[n + e] = d * c_before[e] * f * (1 - f);                                                        \
          g[2 * n + e] = d * i * (1 - fresh * fresh);                                                      \
          g[3 * n + e] = dh[e] * squashed * o * (1 - o);                                                   \
          dc[e] = d * f;                                                                                   \
        }                                                                                                  \
        break;                                                                                             \
      case RNN_GRU:                                                                                        \
        for (int64_t e = 0; e < n; e++) {                                                                  \
          T r = g[e], z = g[n + e], fresh = g[2 * n + e], d = dh[e] * (1 - z) * (1 - fresh * fresh);       \
          T dr = d * hid[2 * n + e] * r * (1 - r), dz = dh[e] * (before[e] - fresh) * z * (1 - z);         \
          g[e] = hid[e] = dr;                                                                              \
          g[n + e] = hid[n + e] = dz;                                                                      \
          g[2 * n + e] = d;                                                                                \
          hid[2 * n + e] = d * r;                                                                          \
          dh[e] *= z;                                                                                      \
        }                                                                                                  \
        break;                                                                                             \
      case RNN_TANH:                                                                                       \
        for (int64_t e = 0; e < n; e++) g[e] = dh[e] * (1 - g[e] * g[e]);                                  \
        break;                                                                                             \
      case RNN_RELU:                                                                                       \
        for (int64_t e = 0; e < n; e++) g[e] = g[e] > 0 ? dh[e] : 0;                                       \
        break;                                                                                             \
    }                                                                                                      \
  }
DEFINE_BACK(float, f32)
DEFINE_BACK(double, f64)
