/* optim.c -- inner loops of optimizers; see optim.h. */
#include "kernels/optim.h"

#include <math.h>

#define LOOPS(T, TAG, SQRT)                                                                                        \
  /* The gradient as the step sees it; what is stored back, if it is, is only unscaled. */                         \
  static inline T grad_##TAG(const Optim *o, T g, T p, T decay) {                                                  \
    T s = o->maximize ? -g : g;                                                                                    \
    return s + decay * p;                                                                                          \
  }                                                                                                                \
  static void adam_##TAG(const Optim *o, T *restrict p, T *restrict g, T *restrict m, T *restrict v,               \
                         T *restrict top, int64_t n) {                                                             \
    T decay = o->decoupled ? 0 : (T)o->weight_decay, shrink = o->decoupled ? (T)(1 - o->lr * o->weight_decay) : 1; \
    T b1 = (T)(1 - o->beta1), b2 = (T)o->beta2, c2 = (T)(1 - o->beta2), eps = (T)o->eps, unscale = (T)o->unscale;  \
    T size = (T)(o->lr / (1 - pow(o->beta1, o->step))), root = (T)sqrt(1 - pow(o->beta2, o->step));                \
    if (o->store_unscaled) {                                                                                       \
      for (int64_t i = 0; i < n; i++) g[i] *= unscale;                                                             \
      unscale = 1;                                                                                                 \
    }                                                                                                              \
    if (top) {                                                                                                     \
      for (int64_t i = 0; i < n; i++) {                                                                            \
        T gi = grad_##TAG(o, unscale * g[i], p[i], decay), mi = m[i] + b1 * (gi - m[i]),                           \
          vi = b2 * v[i] + c2 * gi * gi;                                                                           \
        T ti = top[i] > vi ? top[i] : vi;                                                                          \
        m[i] = mi, v[i] = vi, top[i] = ti;                                                                         \
        p[i] = p[i] * shrink - size * mi / (SQRT(ti) / root + eps);                                                \
      }                                                                                                            \
      return;                                                                                                      \
    }                                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                              \
      T gi = grad_##TAG(o, unscale * g[i], p[i], decay), mi = m[i] + b1 * (gi - m[i]),                             \
        vi = b2 * v[i] + c2 * gi * gi;                                                                             \
      m[i] = mi, v[i] = vi;                                                                                        \
      p[i] = p[i] * shrink - size * mi / (SQRT(vi) / root + eps);                                                  \
    }                                                                                                              \
  }                                                                                                                \
  static void sgd_##TAG(const Optim *o, T *restrict p, T *restrict g, T *restrict m, int64_t n) {                  \
    T decay = (T)o->weight_decay, mu = (T)o->momentum, fresh = (T)(1 - o->dampening), lr = (T)o->lr,               \
      unscale = (T)o->unscale;                                                                                     \
    if (o->store_unscaled) {                                                                                       \
      for (int64_t i = 0; i < n; i++) g[i] *= unscale;                                                             \
      unscale = 1;                                                                                                 \
    }                                                                                                              \
    if (!m || o->momentum == 0) {                                                                                  \
      for (int64_t i = 0; i < n; i++) p[i] -= lr * grad_##TAG(o, unscale * g[i], p[i], decay);                     \
      return;                                                                                                      \
    }                                                                                                              \
    T old = o->first ? 0 : mu, part = o->first ? 1 : fresh, ahead = o->nesterov ? 1 : 0,                           \
      by = o->nesterov ? mu : 1;                                                                                   \
    if (o->first) {                                                                                                \
      for (int64_t i = 0; i < n; i++) m[i] = 0; /* may be uninitialised */                                         \
    }                                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                              \
      T gi = grad_##TAG(o, unscale * g[i], p[i], decay), mi = old * m[i] + part * gi;                              \
      m[i] = mi;                                                                                                   \
      p[i] -= lr * (ahead * gi + by * mi);                                                                         \
    }                                                                                                              \
  }                                                                                                                \
  static void adagrad_##TAG(const Optim *o, T *restrict p, T *restrict g, T *restrict s, int64_t n) {              \
    T decay = (T)o->weight_decay, eps = (T)o->eps, lr = (T)(o->lr / (1 + (o->step - 1) * o->lr_decay)),            \
      unscale = (T)o->unscale;                                                                                     \
    if (o->store_unscaled) {                                                                                       \
      for (int64_t i = 0; i < n; i++) g[i] *= unscale;                                                             \
      unscale = 1;                                                                                                 \
    }                                                                                                              \
    for (int64_t i = 0; i < n; i++) {                                                                              \
      T gi = grad_##TAG(o, unscale * g[i], p[i], decay), si = s[i] + gi * gi;                                      \
      s[i] = si;                                                                                                   \
      p[i] -= lr * gi / (SQRT(si) + eps);                                                                          \
    }                                                                                                              \
  }                                                                                                                \
  static bool unscale_##TAG(T *x, int64_t n, T scale) {                                                            \
    T bad = 0; /* x - x is 0 for finite x, else nan */                                                             \
    for (int64_t start = 0; start < n; start += 512) {                                                             \
      T acc[16] = {0};                                                                                             \
      int64_t end = n - start < 512 ? n : start + 512, i = start;                                                  \
      for (; i + 16 <= end; i += 16) {                                                                             \
        for (int l = 0; l < 16; l++) acc[l] += x[i + l] - x[i + l];                                                \
      }                                                                                                            \
      for (; i < end; i++) acc[0] += x[i] - x[i];                                                                  \
      for (int l = 0; l < 16; l++) bad += acc[l];                                                                  \
      for (i = start; i < end; i++) x[i] *= scale;                                                                 \
    }                                                                                                              \
    return bad != 0;                                                                                               \
  }

LOOPS(float, f32, sqrtf)
LOOPS(double, f64, sqrt)

void SIMD(optim_run)(const Optim *o, Dtype as, void *const a[OPTIM_ARRAYS], int64_t n) {
  bool f64 = as == DT_F64;
#define CALL(name, ...) (f64 ? name##_f64(__VA_ARGS__) : name##_f32(__VA_ARGS__))
  switch (o->kind) {
    case OPTIM_ADAM: CALL(adam, o, a[0], a[1], a[2], a[3], a[4], n); break;
    case OPTIM_SGD: CALL(sgd, o, a[0], a[1], a[2], n); break;
    case OPTIM_ADAGRAD: CALL(adagrad, o, a[0], a[1], a[2], n); break;
  }
}

bool SIMD(unscale_run)(Dtype as, void *x, int64_t n, double scale) {
  return as == DT_F64 ? unscale_f64(x, n, scale) : unscale_f32(x, n, (float)scale);
}
