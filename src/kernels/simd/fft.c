/* fft.c -- Stockham stages and Bluestein's convolution on FFT_LANES transforms at once;
 * see fft.h.
 *
 * A stage of radix r on x, with m*r elements per sub-transform and s of them interleaved:
 *
 *   y[q + s*(r*p + k)] = w^(pk) * sum_j x[q + s*(p + m*j)] exp(-2 pi i jk/r)
 */
#include "kernels/fft.h"

#include <string.h>

/* One element of all lanes. */
typedef float Vec __attribute__((vector_size(FFT_LANES * sizeof(float)), may_alias));

typedef struct {
  const Vec *re, *im;
} In;
typedef struct {
  Vec *re, *im;
} Out;

#define COS_3 -0.5f
#define SIN_3 0x1.bb67aep-1f   /* sin(2 pi / 3) */
#define COS_5 0x1.3c6ef4p-2f   /* cos(2 pi / 5) */
#define SIN_5 0x1.e6f0e2p-1f   /* sin(2 pi / 5) */
#define COS_5B -0x1.9e377ap-1f /* cos(4 pi / 5) */
#define SIN_5B 0x1.2cf230p-1f  /* sin(4 pi / 5) */

/* y[k] = (re, im) * w */
#define STORE(k, R, I)                                     \
  do {                                                     \
    Vec r_ = (R), i_ = (I);                                \
    yr[(k)*s + q] = r_ * w[2 * (k)] - i_ * w[2 * (k) + 1]; \
    yi[(k)*s + q] = r_ * w[2 * (k) + 1] + i_ * w[2 * (k)]; \
  } while (0)

#define LOAD(j) const Vec a##j = xr[(j)*step + q], b##j = xi[(j)*step + q]

static void radix_2(In x, Out y, const float *tw, int64_t m, int64_t s) {
  int64_t step = m * s;
  for (int64_t p = 0; p < m; p++) {
    const Vec *restrict xr = x.re + p * s, *restrict xi = x.im + p * s;
    const float *w = tw + p * 4;
    Vec *restrict yr = y.re + p * 2 * s, *restrict yi = y.im + p * 2 * s;
    for (int64_t q = 0; q < s; q++) {
      LOAD(0);
      LOAD(1);
      yr[q] = a0 + a1;
      yi[q] = b0 + b1;
      STORE(1, a0 - a1, b0 - b1);
    }
  }
}

static void radix_3(In x, Out y, const float *tw, int64_t m, int64_t s) {
  int64_t step = m * s;
  for (int64_t p = 0; p < m; p++) {
    const Vec *restrict xr = x.re + p * s, *restrict xi = x.im + p * s;
    const float *w = tw + p * 6;
    Vec *restrict yr = y.re + p * 3 * s, *restrict yi = y.im + p * 3 * s;
    for (int64_t q = 0; q < s; q++) {
      LOAD(0);
      LOAD(1);
      LOAD(2);
      Vec sr = a1 + a2, si = b1 + b2, dr = SIN_3 * (a1 - a2), di = SIN_3 * (b1 - b2);
      Vec cr = a0 + COS_3 * sr, ci = b0 + COS_3 * si;
      yr[q] = a0 + sr;
      yi[q] = b0 + si;
      STORE(1, cr + di, ci - dr);
      STORE(2, cr - di, ci + dr);
    }
  }
}

static void radix_4(In x, Out y, const float *tw, int64_t m, int64_t s) {
  int64_t step = m * s;
  for (int64_t p = 0; p < m; p++) {
    const Vec *restrict xr = x.re + p * s, *restrict xi = x.im + p * s;
    const float *w = tw + p * 8;
    Vec *restrict yr = y.re + p * 4 * s, *restrict yi = y.im + p * 4 * s;
    for (int64_t q = 0; q < s; q++) {
      LOAD(0);
      LOAD(1);
      LOAD(2);
      LOAD(3);
      Vec er = a0 + a2, ei = b0 + b2, fr = a0 - a2, fi = b0 - b2; /* even */
      Vec gr = a1 + a3, gi = b1 + b3, hr = a1 - a3, hi = b1 - b3; /* odd */
      yr[q] = er + gr;
      yi[q] = ei + gi;
      STORE(1, fr + hi, fi - hr);
      STORE(2, er - gr, ei - gi);
      STORE(3, fr - hi, fi + hr);
    }
  }
}

static void radix_5(In x, Out y, const float *tw, int64_t m, int64_t s) {
  int64_t step = m * s;
  for (int64_t p = 0; p < m; p++) {
    const Vec *restrict xr = x.re + p * s, *restrict xi = x.im + p * s;
    const float *w = tw + p * 10;
    Vec *restrict yr = y.re + p * 5 * s, *restrict yi = y.im + p * 5 * s;
    for (int64_t q = 0; q < s; q++) {
      LOAD(0);
      LOAD(1);
      LOAD(2);
      LOAD(3);
      LOAD(4);
      Vec pr = a1 + a4, pi = b1 + b4, nr = a1 - a4, ni = b1 - b4;
      Vec ur = a2 + a3, ui = b2 + b3, vr = a2 - a3, vi = b2 - b3;
      Vec c1r = a0 + COS_5 * pr + COS_5B * ur, c1i = b0 + COS_5 * pi + COS_5B * ui;
      Vec c2r = a0 + COS_5B * pr + COS_5 * ur, c2i = b0 + COS_5B * pi + COS_5 * ui;
      Vec s1r = SIN_5 * nr + SIN_5B * vr, s1i = SIN_5 * ni + SIN_5B * vi;
      Vec s2r = SIN_5B * nr - SIN_5 * vr, s2i = SIN_5B * ni - SIN_5 * vi;
      yr[q] = a0 + pr + ur;
      yi[q] = b0 + pi + ui;
      STORE(1, c1r + s1i, c1i - s1r);
      STORE(2, c2r + s2i, c2i - s2r);
      STORE(3, c2r - s2i, c2i + s2r);
      STORE(4, c1r - s1i, c1i + s1r);
    }
  }
}

/* Any radix, as the formula says. */
static void radix_any(In x, Out y, const FftStage *st, int64_t m, int64_t s) {
  int r = st->radix;
  for (int64_t p = 0; p < m; p++) {
    const float *w = st->twiddle + p * 2 * r;
    for (int k = 0; k < r; k++) {
      for (int64_t q = 0; q < s; q++) {
        Vec re = {0}, im = {0};
        for (int j = 0, at = 0; j < r; j++, at = at + k < r ? at + k : at + k - r) { /* at = jk mod r */
          Vec a = x.re[(p + m * j) * s + q], b = x.im[(p + m * j) * s + q];
          float c = st->roots[2 * at], d = st->roots[2 * at + 1];
          re += a * c - b * d;
          im += a * d + b * c;
        }
        y.re[(p * r + k) * s + q] = re * w[2 * k] - im * w[2 * k + 1];
        y.im[(p * r + k) * s + q] = re * w[2 * k + 1] + im * w[2 * k];
      }
    }
  }
}

static void stockham(const FftTables *p, Vec *re, Vec *im, Vec *work) {
  Out a = {re, im}, b = {work, work + p->n};
  int64_t n = p->n, s = 1;
  for (int i = 0; i < p->stages; i++) {
    const FftStage *st = &p->stage[i];
    int64_t m = n / st->radix;
    In x = {a.re, a.im};
    switch (st->radix) {
      case 2: radix_2(x, b, st->twiddle, m, s); break;
      case 3: radix_3(x, b, st->twiddle, m, s); break;
      case 4: radix_4(x, b, st->twiddle, m, s); break;
      case 5: radix_5(x, b, st->twiddle, m, s); break;
      default: radix_any(x, b, st, m, s);
    }
    Out t = a;
    a = b;
    b = t;
    s *= st->radix;
    n = m;
  }
  if (a.re == re) return;
  memcpy(re, a.re, (size_t)p->n * sizeof *re);
  memcpy(im, a.im, (size_t)p->n * sizeof *im);
}

/* (re, im)[j] *= w[j] for j < n. */
static void multiply(Vec *restrict re, Vec *restrict im, const float *w, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    Vec a = re[j], b = im[j];
    re[j] = a * w[2 * j] - b * w[2 * j + 1];
    im[j] = a * w[2 * j + 1] + b * w[2 * j];
  }
}

/* X[k] = chirp[k] * sum_j (x[j] chirp[j]) conj(chirp[k-j]): jk = (j^2 + k^2 - (k-j)^2) / 2. */
static void bluestein(const FftTables *p, Vec *re, Vec *im, Vec *work) {
  int64_t n = p->n, all = p->inner->n;
  Vec *br = work, *bi = work + all;
  memcpy(br, re, (size_t)n * sizeof *br);
  memcpy(bi, im, (size_t)n * sizeof *bi);
  multiply(br, bi, p->chirp, n);
  memset(br + n, 0, (size_t)(all - n) * sizeof *br);
  memset(bi + n, 0, (size_t)(all - n) * sizeof *bi);
  stockham(p->inner, br, bi, work + 2 * all);
  multiply(br, bi, p->filter, all);
  stockham(p->inner, bi, br, work + 2 * all); /* swapped: the inverse */
  multiply(br, bi, p->chirp, n);
  memcpy(re, br, (size_t)n * sizeof *br);
  memcpy(im, bi, (size_t)n * sizeof *bi);
}

void SIMD(fft_lanes)(const FftTables *p, float *re, float *im, float *work) {
  Vec *r = (Vec *)(void *)re, *i = (Vec *)(void *)im, *w = (Vec *)(void *)work;
  if (p->inner) bluestein(p, r, i, w);
  else stockham(p, r, i, w);
}

void SIMD(fft_split)(float *re, float *im, float *second, int64_t n, int64_t m, float scale) {
  Vec *r = (Vec *)(void *)re, *i = (Vec *)(void *)im, *sr = (Vec *)(void *)second, *si = sr + m;
  float half = 0.5f * scale;
  for (int64_t a = 0; a <= n / 2; a++) { /* a and its mirror image at once: both are read before they are written */
    int64_t b = a ? n - a : 0;
    Vec ra = r[a], rb = r[b], ia = i[a], ib = i[b];
    r[a] = half * (ra + rb);
    i[a] = half * (ia - ib);
    sr[a] = half * (ia + ib);
    si[a] = half * (rb - ra);
    if (b >= m || b == a) continue;
    r[b] = r[a];
    i[b] = -i[a];
    sr[b] = sr[a];
    si[b] = -si[a];
  }
}
