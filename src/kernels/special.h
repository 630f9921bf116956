/* special.h -- special functions of one and two real numbers, in double precision.
 *
 * One element at a time, as good as double arithmetic allows within a few units of the
 * last places; f32 and narrower are computed here too and rounded once.  Outside of a
 * function's domain, and at infinities, the values are ATen's.
 */
#ifndef TESS_KERNELS_SPECIAL_H
#define TESS_KERNELS_SPECIAL_H

#include "kernels/pointwise.h"

typedef struct {
  double (*one)(double x);
  double (*two)(double x, double y);
} SpecialFn;

/* The function that an instruction stands for; both NULL if it is none of these. */
SpecialFn special_fn(PwOp op);

/* Modified Bessel functions I (e: times exp(-|x|)) and K (e: times exp(x)). */
double special_i0(double x);
double special_i0e(double x);
double special_i1(double x);
double special_i1e(double x);
double special_k0(double x);
double special_k0e(double x);
double special_k1(double x);
double special_k1e(double x);
double special_j0(double x);
double special_j1(double x);
double special_y0(double x);
double special_y1(double x);
double special_spherical_j0(double x);
double special_airy_ai(double x);

/* exp(x^2) erfc(x); the normal distribution, its logarithm and its inverse. */
double special_erfcx(double x);
double special_ndtr(double x);
double special_log_ndtr(double x);
double special_ndtri(double p);

/* sum over k >= 0 of (q + k)^-x */
double special_zeta(double x, double q);
/* The n-th derivative of digamma. */
double special_polygamma(double x, double n);
/* Regularised incomplete gamma functions: from 0 to x, from x to infinity. */
double special_igamma(double a, double x);
double special_igammac(double a, double x);

/* Orthogonal polynomials of degree n, which is truncated; 0 for negative degrees. */
double special_chebyshev_t(double x, double n);
double special_chebyshev_u(double x, double n);
double special_chebyshev_v(double x, double n);
double special_chebyshev_w(double x, double n);
double special_hermite_h(double x, double n);
double special_hermite_he(double x, double n);
double special_laguerre(double x, double n);
double special_legendre(double x, double n);

#endif
