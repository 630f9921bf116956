/* math.h -- elementary functions of f32 that the compilers turn into vector code.
 *
 * Every function is straight-line: selects, no branches, no tables, no calls, so a
 * plain loop around it is vectorised by gcc and clang at -O3 (files in kernels/simd/,
 * see CMakeLists.txt for the flags).  Right for nan, infinities, zeros and subnormals.
 * Errors in ulp are the largest measured over all floats (tests compare with libm).
 *
 *     exp 1   exp2 2  expm1 2   log 1   log2 2   log10 2   log1p 2   pow 1   erf 2
 *     tanh 3  sigmoid 3  sinh 3  cosh 2  softplus 2  asinh 2  acosh 2  atanh 3
 *     sin 2   cos 2   tan 4   asin 3   acos 2   atan 2   atan2 3
 *
 * sin, cos and tan hold for |x| <= TRIG_LIMIT and give nan beyond: loops over data use
 * the *_run_f32 forms, which ask libm for those elements.
 *
 * Polynomials are evaluated in pairs rather than one step after the other: the latency of
 * the chain is what limits these loops.  The coefficients are minimax fits (Lawson's iteration, 60 digits) made for
 * this file.
 */
#ifndef TESS_KERNELS_SIMD_MATH_H
#define TESS_KERNELS_SIMD_MATH_H

#include <math.h>
#include <stdint.h>

#include "tensor/dtype.h"

/* Inlined even into large functions: a call would keep the loop around it scalar. */
#define VMATH static inline __attribute__((always_inline))

#define F32_INF (__builtin_inff())
#define F32_NAN (__builtin_nanf(""))

/* Before a loop: each turn reads and writes its own elements (pointers may be equal). */
#ifdef __clang__
#define INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define INDEPENDENT _Pragma("GCC ivdep")
#endif

/* a * b + c; one rounding where the CPU has it. */
VMATH float fma_f32(float a, float b, float c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}
VMATH double fma_f64(double a, double b, double c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return __builtin_fma(a, b, c);
#else
  return a * b + c;
#endif
}
VMATH float abs_f32(float x) { return __builtin_fabsf(x); }
VMATH float copysign_f32(float x, float sign) { return __builtin_copysignf(x, sign); }
/* nan wins, as in ATen. */
VMATH float max_f32(float a, float b) { return ((a > b) | (a != a)) ? a : b; }
VMATH float min_f32(float a, float b) { return ((a < b) | (a != a)) ? a : b; }
/* Between constants; nan passes. */
VMATH float clamp_f32(float x, float low, float high) {
  x = x < low ? low : x;
  return x > high ? high : x;
}
/* To [-limit, limit]; nan passes.  (Selects between constants are poison for gcc: it computes
 * all that follows once more for each constant.) */
VMATH float clamp_magnitude_f32(float x, float limit) { return abs_f32(x) > limit ? copysign_f32(limit, x) : x; }
/* The smaller of a (not negative, not nan) and a limit. */
VMATH float min_positive_f32(float a, float limit) {
  int32_t u = (int32_t)f32_bits(a), most = (int32_t)f32_bits(limit);
  return f32_from_bits((uint32_t)(u < most ? u : most));
}
/* 2^n for -126 <= n <= 127. */
VMATH float ldexp1_f32(int32_t n) { return f32_from_bits((uint32_t)(n + 127) << 23); }
/* x * 2^n for -252 <= n <= 254: two steps, so that the ends over- and underflow as they should. */
VMATH float scale_f32(float x, int32_t n) {
  int32_t half = n >> 1;
  return x * ldexp1_f32(half) * ldexp1_f32(n - half);
}
/* Nearest integer, |x| < 2^22. */
#define ROUND_F32 0x1.8p23f
VMATH int32_t nearest_f32(float x, float *rounded) {
  float t = x + ROUND_F32;
  *rounded = t - ROUND_F32;
  return (int32_t)(f32_bits(t) - f32_bits(ROUND_F32));
}

/* ---- exponentials --------------------------------------------------------------- */

/* (e^r - 1 - r) / r^2 for |r| <= ln(2)/2. */
VMATH float exp_tail_f32(float r) {
  float z = r * r, low = fma_f32(r, 0x1.55548ap-3f, 0x1.fffffcp-2f),
        mid = fma_f32(r, 0x1.123fc6p-7f, 0x1.555916p-5f);
  return fma_f32(fma_f32(z, 0x1.6a1a6ep-10f, mid), z, low);
}
/* x = n ln(2) + r. */
VMATH float exp_reduce_f32(float x, int32_t *n) {
  float k;
  *n = nearest_f32(x * 0x1.715476p0f, &k);
  return fma_f32(k, -0x1.7f7d1cp-20f, fma_f32(k, -0x1.62e4p-1f, x));
}
VMATH float exp_f32(float x) {
  int32_t n;
  float r = exp_reduce_f32(clamp_magnitude_f32(x, 104.0f), &n); /* e^104 and e^-104 are out of range */
  return scale_f32(fma_f32(exp_tail_f32(r), r * r, r) + 1.0f, n);
}
/* e^x for -1e6 < x < 88, cheaper: results below 2^-126 are 0. */
VMATH float exp_flush_f32(float x) {
  int32_t n;
  float r = exp_reduce_f32(x, &n);
  n = n < -127 ? -127 : n; /* "2^-127" has the bits of 0 */
  return (fma_f32(exp_tail_f32(r), r * r, r) + 1.0f) * ldexp1_f32(n);
}
VMATH float exp2_f32(float x) {
  float k, c = clamp_magnitude_f32(x, 151.0f);
  int32_t n = nearest_f32(c, &k);
  float r = c - k, p = 0x1.41fb2cp-13f;
  p = fma_f32(p, r, 0x1.5f3f32p-10f);
  p = fma_f32(p, r, 0x1.3b2d50p-7f);
  p = fma_f32(p, r, 0x1.c6aee6p-5f);
  p = fma_f32(p, r, 0x1.ebfbdcp-3f);
  p = fma_f32(p, r, 0x1.62e430p-1f);
  return scale_f32(fma_f32(p, r, 1.0f), n);
}
VMATH float expm1_f32(float x) {
  int32_t n;
  float r = exp_reduce_f32(clamp_magnitude_f32(x, 89.0f), &n);
  n = n < -100 ? -100 : n;
  float p = fma_f32(exp_tail_f32(r), r * r, r), half = ldexp1_f32(n - 1); /* 2^128 would not fit */
  float y = 2.0f * fma_f32(half, p, half - 0.5f);
  return x == 0 ? x : y;
}
VMATH float sigmoid_f32(float x) { return 1.0f / (1.0f + exp_f32(-x)); }
VMATH float tanh_f32(float x) {
  float t = expm1_f32(-2.0f * abs_f32(x));
  return copysign_f32(-t / (t + 2.0f), x);
}
VMATH float sinh_f32(float x) {
  float a = abs_f32(x), t = expm1_f32(a), e = exp_f32(0.5f * a);
  float y = 0.5f * (t + t / (t + 1.0f));
  return copysign_f32(a > 88.0f ? 0.5f * e * e : y, x);
}
VMATH float cosh_f32(float x) {
  float a = abs_f32(x), e = exp_f32(a), h = exp_f32(0.5f * a);
  float y = 0.5f * e + 0.5f / e;
  return a > 88.0f ? 0.5f * h * h : y;
}

/* ---- logarithms ----------------------------------------------------------------- */

/* x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); x positive, finite. */
VMATH float log_reduce_f32(float x, float *k) {
  int tiny = x < 0x1p-126f;
  float scaled = x * 0x1p23f;
  uint32_t u = f32_bits(tiny ? scaled : x) + (0x3f800000u - 0x3f3504f3u);
  int32_t e = (int32_t)(u >> 23) - (tiny ? 150 : 127);
  *k = (float)e;
  return f32_from_bits((u & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
}
/* log(1 + f) = f - (half - tail). */
VMATH float log_tail_f32(float f, float *half) {
  float s = f / (2.0f + f), z = s * s;
  float r = fma_f32(fma_f32(z, 0x1.e340c0p-3f, 0x1.2436fep-2f), z * z, fma_f32(z, 0x1.999a82p-2f, 0x1.555554p-1f));
  *half = 0.5f * f * f;
  return s * fma_f32(r, z, *half);
}
/* Outside (0, inf): -inf at 0, nan below, x itself for inf and nan. */
VMATH float log_special_f32(float x, float y) {
  float edge = x == 0 ? -F32_INF : x < 0 ? F32_NAN : x;
  return ((x > 0) & (x < F32_INF)) ? y : edge;
}
VMATH float log_core_f32(float x) {
  float k, half, f = log_reduce_f32(x, &k), tail = log_tail_f32(f, &half);
  return fma_f32(k, 0x1.62e4p-1f, f - (half - fma_f32(k, 0x1.7f7d1cp-20f, tail)));
}
VMATH float log_f32(float x) { return log_special_f32(x, log_core_f32(x)); }
VMATH float log2_f32(float x) {
  float k, half, f = log_reduce_f32(x, &k), tail = log_tail_f32(f, &half);
  float l = f - (half - tail);
  return log_special_f32(x, k + fma_f32(l, 0x1.4ae0c0p-26f, l * 0x1.715476p0f));
}
VMATH float log10_f32(float x) {
  float k, half, f = log_reduce_f32(x, &k), tail = log_tail_f32(f, &half);
  float l = f - (half - tail), low = fma_f32(k, 0x1.3509f8p-18f, l * -0x1.5b235ep-27f);
  return log_special_f32(x, fma_f32(k, 0x1.344000p-2f, fma_f32(l, 0x1.bcb7b2p-2f, low)));
}
VMATH float log1p_f32(float x) {
  float u = 1.0f + x, lost = u >= 2.0f ? 1.0f - (u - x) : x - (u - 1.0f); /* of x, in the sum */
  float y = log_special_f32(u, log_core_f32(u) + lost / u);
  return x == 0 ? x : y;
}

/* x^y.  Logarithm and power of two in f64: the product needs about 12 more bits than f32. */
VMATH float pow_f32(float x, float y) {
  float a = abs_f32(x), k;
  double f = (double)log_reduce_f32(a, &k), s = f / (2.0 + f), z = s * s;
  double r = 0x1.5d219a4ba11b7p-2;
  r = fma_f64(r, z, 0x1.a58a8c1750380p-2);
  r = fma_f64(r, z, 0x1.27778606fa840p-1);
  r = fma_f64(r, z, 0x1.ec709d0afb6e0p-1);
  r = fma_f64(r, z, 0x1.71547652bf3ffp+1);
  double t = (double)y * fma_f64(r, s, (double)k);
  t = __builtin_fabs(t) <= 160.0 ? t : __builtin_copysign(160.0, t); /* nan too: the selects below know better */
  double n = (t + 0x1.8p52) - 0x1.8p52, g = t - n;
  double p = 0x1.fe169c3c30807p-17;
  p = fma_f64(p, g, 0x1.446ad3cbf5e89p-13);
  p = fma_f64(p, g, 0x1.5d8a73107da20p-10);
  p = fma_f64(p, g, 0x1.3b29db621cf54p-7);
  p = fma_f64(p, g, 0x1.c6b08aaaec8cdp-5);
  p = fma_f64(p, g, 0x1.ebfbe0a5c5b06p-3);
  p = fma_f64(p, g, 0x1.62e42ff119232p-1);
  p = fma_f64(p, g, 1.0);
  float out = scale_f32((float)p, (int32_t)n);
  /* |x| or |y| at its end: 0, 1 or inf, by which side of 1 and of 0 they are on. */
  float end = (a > 1.0f) ^ (y < 0) ? F32_INF : 0.0f;
  end = a == 1.0f ? 1.0f : end;
  out = ((a == 0) | (a == F32_INF) | (abs_f32(y) == F32_INF)) ? end : out;
  /* Is y odd?  Below 2^23 adding 2^23 leaves the units in the last bit; from 2^24 on all are even. */
  float b = abs_f32(y), up = b + 0x1p23f;
  uint32_t is_int = (uint32_t)(b >= 0x1p23f) | (uint32_t)(up - 0x1p23f == b);
  uint32_t units = b < 0x1p23f ? f32_bits(up) : f32_bits(b);
  uint32_t odd = units & is_int & (uint32_t)(b < 0x1p24f);
  out = f32_from_bits(f32_bits(out) ^ ((f32_bits(x) & odd << 31)));
  out = ((x < 0) & (is_int == 0) & (a < F32_INF)) ? F32_NAN : out;
  out = ((x != x) | (y != y)) ? F32_NAN : out;
  return ((y == 0) | (x == 1.0f)) ? 1.0f : out;
}

/* ---- error function ------------------------------------------------------------- */

VMATH float erf_f32(float x) {
  float a = abs_f32(x), z = x * x, zz = z * z;
  float p0 = fma_f32(z, -0x1.81273ep-2f, 0x1.06eba8p-3f), p2 = fma_f32(z, -0x1.b7f90cp-6f, 0x1.ce2cf8p-4f);
  float p4 = fma_f32(z, -0x1.a3f6f8p-11f, 0x1.5405b0p-8f),
        p = fma_f32(fma_f32(fma_f32(zz, 0x1.496a1ep-14f, p4), zz, p2), zz, p0);
  float small = fma_f32(p, x, x);
  /* From 1 on: 1 - e^q with q close to log(erfc). */
  float c = min_positive_f32(a, 4.0f), cc = c * c;
  float q0 = fma_f32(c, -0x1.208b1ap+0f, -0x1.5cd7bep-12f), q2 = fma_f32(c, -0x1.a67e88p-4f, -0x1.46b432p-1f);
  float q4 = fma_f32(c, -0x1.82e8c0p-9f, 0x1.66181cp-6f),
        q = fma_f32(fma_f32(fma_f32(cc, 0x1.87b378p-13f, q4), cc, q2), cc, q0);
  float large = copysign_f32(1.0f - exp_flush_f32(q), x);
  return a >= 1.0f ? large : small; /* nan is small */
}

/* ---- trigonometry --------------------------------------------------------------- */

#define TRIG_LIMIT 0x1p28f

/* x = quadrant * pi/2 + r, |r| <= pi/4; in f64, where quadrant * (25 bits of pi/2) is exact. */
VMATH float trig_reduce_f32(float x, int32_t *quadrant) {
  float inside = abs_f32(x) <= TRIG_LIMIT ? x : 0;
  double d = (double)inside, n = (d * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
  *quadrant = (int32_t)n;
  return (float)((d - n * 0x1.921fb50000000p+0) - n * 0x1.110b4611a6263p-26);
}
VMATH float sin_poly_f32(float r) {
  float z = r * r, p = -0x1.994b3ep-13f;
  p = fma_f32(p, z, 0x1.110756p-7f);
  p = fma_f32(p, z, -0x1.555546p-3f);
  return fma_f32(p * z, r, r);
}
VMATH float cos_poly_f32(float r) {
  float z = r * r, p = 0x1.99ff3ep-16f;
  p = fma_f32(p, z, -0x1.6c0c82p-10f);
  p = fma_f32(p, z, 0x1.55554ap-5f);
  return fma_f32(p * z, z, fma_f32(z, -0.5f, 1.0f));
}
VMATH float sin_quadrant_f32(float x, float r, int32_t q) {
  float s = sin_poly_f32(r), c = cos_poly_f32(r), y = q & 1 ? c : s;
  y = f32_from_bits(f32_bits(y) ^ ((uint32_t)q & 2u) << 30);
  return abs_f32(x) <= TRIG_LIMIT ? y : F32_NAN;
}
VMATH float sin_f32(float x) {
  int32_t q;
  float r = trig_reduce_f32(x, &q);
  return sin_quadrant_f32(x, r, q);
}
VMATH float cos_f32(float x) {
  int32_t q;
  float r = trig_reduce_f32(x, &q);
  return sin_quadrant_f32(x, r, q + 1);
}
VMATH float tan_f32(float x) {
  int32_t q;
  float r = trig_reduce_f32(x, &q);
  return sin_quadrant_f32(x, r, q) / sin_quadrant_f32(x, r, q + 1);
}
/* y may be x. */
#define TRIG_RUN(name, libm)                                                  \
  VMATH void name##_run_f32(float *y, const float *x, int64_t n) {            \
    int beyond = 0;                                                           \
    for (int64_t i = 0; i < n; i++) beyond |= !(abs_f32(x[i]) <= TRIG_LIMIT); \
    if (beyond) {                                                             \
      for (int64_t i = 0; i < n; i++) y[i] = libm(x[i]);                      \
      return;                                                                 \
    }                                                                         \
    INDEPENDENT for (int64_t i = 0; i < n; i++) y[i] = name##_f32(x[i]);      \
  }
TRIG_RUN(sin, sinf)
TRIG_RUN(cos, cosf)
TRIG_RUN(tan, tanf)
#undef TRIG_RUN

/* atan(t) for 0 <= t <= 1. */
VMATH float atan_unit_f32(float t) {
  float z = t * t, zz = z * z, z4 = zz * zz;
  float p0 = fma_f32(z, 0x1.9991fep-3f, -0x1.55553ep-2f), p2 = fma_f32(z, 0x1.c099f2p-4f, -0x1.2421b4p-3f);
  float p4 = fma_f32(z, 0x1.dac964p-5f, -0x1.58346cp-4f), p6 = fma_f32(z, 0x1.65a54ep-7f, -0x1.fed064p-6f);
  float high = fma_f32(z4, -0x1.d62e0cp-10f, fma_f32(p6, zz, p4)), p = fma_f32(high, z4, fma_f32(p2, zz, p0));
  return fma_f32(p * z, t, t);
}
VMATH float atan_f32(float x) {
  float a = abs_f32(x), inverse = 1.0f / a, y = atan_unit_f32(a > 1.0f ? inverse : a);
  return copysign_f32(a > 1.0f ? 0x1.921fb6p0f - (y + 0x1.777a5cp-25f) : y, x); /* pi/2 less its excess */
}
/* The angle of (x, y). */
VMATH float atan2_f32(float y, float x) {
  float a = abs_f32(x), b = abs_f32(y), low = a < b ? a : b, high = a < b ? b : a;
  float ratio = low / high;
  ratio = high == 0 ? 0 : ratio;
  ratio = low == F32_INF ? 1.0f : ratio; /* both infinite */
  float t = atan_unit_f32(ratio);
  t = b > a ? 0x1.921fb6p0f - (t + 0x1.777a5cp-25f) : t;
  float left = 0x1.921fb6p1f - (t + 0x1.777a5cp-24f);
  t = copysign_f32(1.0f, x) < 0 ? left : t;
  t = ((x != x) | (y != y)) ? F32_NAN : t;
  return copysign_f32(t, y);
}
/* asin(t) - t for 0 <= t <= 1/2, divided by t. */
VMATH float asin_tail_f32(float z) {
  float p = 0x1.5a5876p-5f;
  p = fma_f32(p, z, 0x1.8b1780p-6f);
  p = fma_f32(p, z, 0x1.749978p-5f);
  p = fma_f32(p, z, 0x1.3300d4p-4f);
  p = fma_f32(p, z, 0x1.5555ccp-3f);
  return p * z;
}
VMATH float asin_f32(float x) {
  float a = abs_f32(x), z = a > 0.5f ? 0.5f * (1.0f - a) : a * a;
  float t = a > 0.5f ? __builtin_sqrtf(z) : a, y = fma_f32(asin_tail_f32(z), t, t);
  return copysign_f32(a > 0.5f ? 0x1.921fb6p0f - 2.0f * y : y, x);
}
VMATH float acos_f32(float x) {
  float a = abs_f32(x), z = a > 0.5f ? 0.5f * (1.0f - a) : a * a;
  float t = a > 0.5f ? __builtin_sqrtf(z) : x, y = fma_f32(asin_tail_f32(z), t, t);
  float near = 2.0f * y, far = x < 0 ? 0x1.921fb6p1f - near : near;
  return a > 0.5f ? far : 0x1.921fb6p0f - (y + 0x1.777a5cp-25f);
}
VMATH float asinh_f32(float x) {
  float a = abs_f32(x), s = a * a;
  float y = a > 0x1p40f ? log_f32(a) + 0x1.62e430p-1f : log1p_f32(a + s / (1.0f + __builtin_sqrtf(s + 1.0f)));
  return copysign_f32(y, x);
}
VMATH float acosh_f32(float x) {
  float t = x - 1.0f, near = log1p_f32(t + __builtin_sqrtf(t * (t + 2.0f))), far = log_f32(x) + 0x1.62e430p-1f;
  return x > 0x1p40f ? far : x < 1.0f ? F32_NAN : near;
}
VMATH float atanh_f32(float x) {
  float a = abs_f32(x), y = 0.5f * log1p_f32(2.0f * a / (1.0f - a));
  return copysign_f32(y, x);
}

/* ---- activations ---------------------------------------------------------------- */

VMATH float silu_f32(float x) { return x / (1.0f + exp_f32(-x)); }
/* x Phi(x).  Half of erfc(|x| / sqrt(2)) is the smaller tail: e^(a q(a)) / 2, good to 2^-26 in
 * absolute terms and falling for ever, so it needs no erf and no cases. */
VMATH float gelu_erf_f32(float x) {
  float a = min_positive_f32(abs_f32(x), 16.0f), z = a * a, w = z * z; /* nothing is left of the tail at 16 */
  float c0 = fma_f32(a, -0x1.45f022p-2f, -0x1.98846ep-1f), c2 = fma_f32(a, 0x1.40dedap-8f, -0x1.2a1666p-5f);
  float c4 = fma_f32(a, -0x1.0e87d6p-13f, -0x1.8e8924p-14f), c6 = fma_f32(a, -0x1.079116p-19f, 0x1.c9b568p-16f);
  float q = fma_f32(fma_f32(c6, z, c4), w, fma_f32(c2, z, c0));
  float tail = 0.5f * exp_flush_f32(q * a), rest = 1.0f - tail;
  return x * (x > 0 ? rest : tail);
}
/* 0.5 x (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3) */
VMATH float gelu_tanh_f32(float x) {
  float u = 0x1.988454p-1f * fma_f32(0.044715f * x * x, x, x);
  return x / (1.0f + exp_f32(-2.0f * u));
}
/* log(1 + e^x) without overflow. */
VMATH float softplus_f32(float x) { return (x > 0 ? x : 0) + log1p_f32(exp_f32(-abs_f32(x))); }
/* x tanh(softplus(x)): with e = e^x, tanh(log(1 + e)) = (e^2 + 2e) / (e^2 + 2e + 2). */
VMATH float mish_f32(float x) {
  float e = exp_f32(x), w = e * (e + 2.0f), y = x * (w / (w + 2.0f));
  return x > 20.0f ? x : y;
}

#endif
