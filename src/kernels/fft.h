/* fft.h -- discrete Fourier transforms of any length along one dimension.
 *
 *   forward   Y[k] = scale * sum_j X[j] exp(-2 pi i jk / n);   inverse: +, no 1/n of its own
 *
 * Lengths whose prime factors are at most FFT_PRIME are split (Stockham's algorithm,
 * radices 4, 2, 3, 5 and a plain one for other primes); all others become a convolution
 * of a power of two (Bluestein).  In f32, with roots of unity rounded from f64.
 *
 * FFT_LANES transforms are made at once, element by element side by side, so every loop
 * is a vector loop whatever the length.  Two real sequences share one complex transform.
 */
#ifndef TESS_KERNELS_FFT_H
#define TESS_KERNELS_FFT_H

#include "kernels/kernel.h"

enum { FFT_LANES = 8, FFT_PRIME = 31, FFT_STAGES = 40 };

/* c64 to c64; x and y have the same size and may be the same view. */
Status fft_c2c(Kern *k, View x, View y, int dim, bool forward, double scale);
/* f32 to c64, forward; y's size along dim is n/2 + 1, or n: all of them. */
Status fft_r2c(Kern *k, View x, View y, int dim, double scale);
/* c64 to f32, inverse; x's size along dim is n/2 + 1 (the rest is its mirror image). */
Status fft_c2r(Kern *k, View x, View y, int dim, double scale);

/* ---- between fft.c and simd/fft.c -------------------------------------------- */

typedef struct {
  int radix;
  const float *twiddle; /* [m][radix][2]: exp(-2 pi i pk/(m radix)), m = what is left to split */
  const float *roots;   /* [radix][2], for radices without a loop of their own */
} FftStage;

typedef struct FftTables FftTables;
struct FftTables {
  int64_t n;
  int stages;
  FftStage stage[FFT_STAGES];
  /* Bluestein: */
  const FftTables *inner; /* of a power of two >= 2n - 1; NULL if n is split */
  const float *chirp;     /* [n][2]: exp(-pi i j^2 / n) */
  const float *filter;    /* [inner n][2]: the transform of the conjugate chirp, over inner n */
};

/* re, im: [n][FFT_LANES], transformed in place (forward; swap them for the inverse).
 * work: fft_work() floats. */
SIMD_DECLARE(void, fft_lanes, (const FftTables *p, float *re, float *im, float *work));
/* z = a + ib with real a and b was transformed to (re, im), n elements: separates them.
 * A replaces the first m elements of (re, im), B goes to second: m of re, then of im. */
SIMD_DECLARE(void, fft_split, (float *re, float *im, float *second, int64_t n, int64_t m, float scale));
static inline size_t fft_work(const FftTables *p) {
  size_t n = (size_t)(p->inner ? p->inner->n : p->n);
  return n * FFT_LANES * (p->inner ? 4 : 2);
}

#endif
