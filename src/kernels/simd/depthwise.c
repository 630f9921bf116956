/* depthwise.c -- the inner loops of a depthwise convolution; see conv_depthwise.h. */
#include "kernels/conv_depthwise.h"

#if defined(__AVX512F__)
enum { WIDE = 16 };
#elif defined(__AVX__)
enum { WIDE = 8 };
#else
enum { WIDE = 4 };
#endif
typedef float Vec __attribute__((vector_size(WIDE * sizeof(float)), aligned(4), may_alias));

#define AT(p) (*(const Vec *)(const void *)(p))
#define TO(p) (*(Vec *)(void *)(p))

/* Eight vectors of results, held in registers over all taps; below, one. */
static inline void eight(float *y, const float *x, const int64_t *offset, const float *w, int taps, float bias) {
  Vec a = (Vec){0} + bias, b = a, c = a, d = a, e = a, f = a, g = a, h = a;
  for (int t = 0; t < taps; t++) {
    const float *p = x + offset[t];
    Vec v = (Vec){0} + w[t];
    a += v * AT(p);
    b += v * AT(p + WIDE);
    c += v * AT(p + 2 * WIDE);
    d += v * AT(p + 3 * WIDE);
    e += v * AT(p + 4 * WIDE);
    f += v * AT(p + 5 * WIDE);
    g += v * AT(p + 6 * WIDE);
    h += v * AT(p + 7 * WIDE);
  }
  TO(y) = a;
  TO(y + WIDE) = b;
  TO(y + 2 * WIDE) = c;
  TO(y + 3 * WIDE) = d;
  TO(y + 4 * WIDE) = e;
  TO(y + 5 * WIDE) = f;
  TO(y + 6 * WIDE) = g;
  TO(y + 7 * WIDE) = h;
}

static inline void one(float *y, const float *x, const int64_t *offset, const float *w, int taps, float bias) {
  Vec a = (Vec){0} + bias;
  for (int t = 0; t < taps; t++) a += ((Vec){0} + w[t]) * AT(x + offset[t]);
  TO(y) = a;
}

void SIMD(depthwise_run)(float *y, int64_t n, const float *x, const int64_t *offset, const float *w, int taps,
                         float bias) {
  int64_t i = 0;
  for (; i + 8 * WIDE <= n; i += 8 * WIDE) eight(y + i, x + i, offset, w, taps, bias);
  for (; i < n; i += WIDE) one(y + i, x + i, offset, w, taps, bias);
}

void SIMD(depthwise_copy)(float *to, int64_t to_pitch, const float *from, int64_t from_pitch, int64_t rows,
                          int64_t width) {
  for (int64_t r = 0; r < rows; r++, to += to_pitch, from += from_pitch) {
    int64_t i = 0;
    if (width < WIDE) {
      for (; i < width; i++) to[i] = from[i];
      continue;
    }
    for (; i + WIDE <= width; i += WIDE) TO(to + i) = AT(from + i);
    TO(to + width - WIDE) = AT(from + width - WIDE); /* the rest, and some once more */
  }
}

void SIMD(depthwise_halve)(float *restrict even, float *restrict odd, const float *restrict from, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    even[i] = from[2 * i];
    odd[i] = from[2 * i + 1];
  }
}
