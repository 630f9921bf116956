/* special_gamma.c -- zeta, polygamma and the incomplete gamma functions; see special.h. */
#include <math.h>

#include "kernels/simd/special.h"
#include "kernels/special.h"

/* Of positive numbers; without libm's global sign. */
static double log_gamma(double x) {
  int sign;
  return lgamma_r(x, &sign);
}

/* ---- Hurwitz zeta --------------------------------------------------------------- */

/* B_2j / (2j)! */
static const double bernoulli[] = {
    1.0 / 12,
    -1.0 / 720,
    1.0 / 30240,
    -1.0 / 1209600,
    1.0 / 47900160,
    -691.0 / 1307674368000.0,
    1.0 / 74724249600.0,
    -3617.0 / 10670622842880000.0,
    43867.0 / 5109094217170944000.0,
    -174611.0 / 802857662698291200000.0,
};

/* Euler and Maclaurin: some terms, then the integral of the rest with its corrections.  q > 0. */
static double positive_zeta(double x, double q) {
  double sum = 0;
  for (double least = 10 + x / 2; q < least; q += 1) {
    double term = pow(q, -x);
    sum += term;
    if (term <= 1e-18 * sum) return sum;
  }
  double power = pow(q, -x), factor = x * power / q;
  if (power == 0) return sum; /* an infinity times this would be nan */
  sum += power * q / (x - 1) + power / 2;
  for (int j = 0; j < (int)(sizeof bernoulli / sizeof *bernoulli); j++) {
    sum += bernoulli[j] * factor;
    factor *= (x + 2 * j + 1) * (x + 2 * j + 2) / (q * q);
  }
  return sum;
}

double special_zeta(double x, double q) {
  if (x == 1) return INFINITY;
  if (x < 1) return NAN;
  if (q <= 0 && q == floor(q)) return INFINITY; /* whatever x is */
  if (isinf(x)) return q < 1 ? INFINITY : q == 1 ? 1 : NAN;
  if (!isfinite(x) || !isfinite(q)) return NAN;
  if (q > 0) return positive_zeta(x, q);
  if (x != floor(x)) return NAN;
  /* The terms below 0 are those of another zeta with their signs: (q + k) = -(1 - f + j). */
  double below = ceil(-q), f = q + below;
  double mirror = positive_zeta(x, 1 - f) - positive_zeta(x, 1 - f + below);
  return positive_zeta(x, f) + (fmod(x, 2) == 0 ? mirror : -mirror);
}

double special_polygamma(double x, double n) {
  if (n == 0) return digamma_f64(x);
  if (n == 1 && isinf(x)) return x > 0 ? 0 : NAN;
  return (fmod(n, 2) == 0 ? -1 : 1) * exp(log_gamma(n + 1)) * special_zeta(n + 1, x);
}

/* ---- incomplete gamma ------------------------------------------------------------ */

/* m - log(1 + m) for m = (x - a) / a */
static double log_miss(double a, double x) {
  double m = (x - a) / a, sum = 0, power = m * m;
  if (fabs(m) > 0.1) return m - log(x / a);
  for (int k = 2; k < 18; k++, power *= -m) sum += power / k;
  return sum;
}

/* x^a exp(-x) / gamma(a + 1) */
static double weight(double a, double x) {
  if (a < 10) return exp(a * log(x) - x - log_gamma(a + 1));
  double z = 1 / (a * a),
         stirling = (1.0 / 12 - z * (1.0 / 360 - z * (1.0 / 1260 - z * (1.0 / 1680 - z / 1188)))) / a;
  return exp(-a * log_miss(a, x) - stirling) / sqrt(2 * M_PI * a);
}

/* From 0 to x, x < a + 1. */
static double lower_series(double a, double x) {
  double term = 1, sum = 1;
  for (double n = 1; term > 1e-17 * sum; n++) term *= x / (a + n), sum += term;
  return weight(a, x) * sum;
}

/* From x to infinity, x >= a + 1: Legendre's continued fraction, by Lentz. */
static double upper_fraction(double a, double x) {
  double b = x + 1 - a, c = 1e300, d = 1 / b, f = d;
  for (int i = 1; i < 100000; i++) {
    double an = -i * (i - a);
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    f *= c * d;
    if (fabs(c * d - 1) < 1e-16) break;
  }
  return weight(a, x) * a * f;
}

/* From x to infinity, x < 1.1, without taking it from 1:
 * gamma(a, x) / gamma(a) = x^a / gamma(a + 1) (1 + a sum over n > 0 of (-x)^n / ((a + n) n!)) */
static double upper_small(double a, double x) {
  double rest = a < 1e-5 ? a * (a * 0.82246703342411321824 - 0.57721566490153286061) : log_gamma(a + 1);
  double u = expm1(a * log(x) - rest), term = 1, sum = 0;
  for (int n = 1; n < 40; n++) term *= -x / n, sum += term / (a + n);
  return -u - (1 + u) * a * sum;
}

/* From x to infinity for a beyond 1e6: the normal distribution and its first correction. */
static double upper_normal(double a, double x) {
  double m = (x - a) / a, half = log_miss(a, x), eta = copysign(sqrt(2 * half), m);
  double miss = fabs(m) < 1e-4 ? -1.0 / 3 + m / 12 : 1 / m - 1 / eta;
  return 0.5 * erfc(eta * sqrt(a / 2)) + exp(-a * half) / sqrt(2 * M_PI * a) * miss;
}

/* What needs no sum, nan included; ATen's order: a nan does not count beside some bounds. */
static bool at_boundary(double a, double x, bool upper, double *out) {
  if (x < 0 || a < 0 || (a == 0 && !(x > 0)) || (isinf(a) && isinf(x))) *out = NAN;
  else if (a == 0) *out = !upper;
  else if (x == 0 || isinf(a)) *out = upper;
  else if (isinf(x)) *out = !upper;
  else if (isnan(a) || isnan(x)) *out = NAN;
  else return false;
  return true;
}

double special_igamma(double a, double x) {
  double y;
  if (at_boundary(a, x, false, &y)) return y;
  if (a > 1e6) return 1 - upper_normal(a, x);
  return x < a + 1 ? lower_series(a, x) : 1 - upper_fraction(a, x);
}

double special_igammac(double a, double x) {
  double y;
  if (at_boundary(a, x, true, &y)) return y;
  if (a > 1e6) return upper_normal(a, x);
  if (x >= a + 1) return upper_fraction(a, x);
  return x < 1.1 && a < 2 ? upper_small(a, x) : 1 - lower_series(a, x);
}
