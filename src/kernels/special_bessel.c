/* special_bessel.c -- Bessel functions and Airy's; see special.h.
 *
 * I: the power series (all terms positive) up to 30, then the asymptotic one.  K: the
 * series below 1, else the integral of exp(-x cosh t) cosh(nu t) over t > 0, for which the
 * trapezoidal rule converges like exp(-1/step).  J and Y are libm's.
 */
#include <math.h>

#include "kernels/special.h"

static const double euler = 0.57721566490153286061;

/* exp(-|x|) I_nu(|x|), nu = 0 or 1. */
static double scaled_i(double x, int nu) {
  x = fabs(x);
  if (!isfinite(x)) return isnan(x) ? x : 0;
  double sum = 1, term = 1;
  if (x <= 30) {
    double z = x * x / 4;
    for (int k = 1; term > 1e-18 * sum; k++) term *= z / (k * (double)(k + nu)), sum += term;
    return sum * (nu ? x / 2 : 1) * exp(-x);
  }
  for (int k = 1; k < 40 && fabs(term) > 1e-18; k++) {
    term *= ((2 * k - 1) * (2 * k - 1) - 4 * nu) / (8 * x * k);
    sum += term;
  }
  return sum / sqrt(2 * M_PI * x);
}

/* In two steps: exp overflows a little before I does. */
static double grow(double scaled, double x) {
  double half = exp(fabs(x) / 2);
  return scaled * half * half;
}

double special_i0e(double x) { return scaled_i(x, 0); }
double special_i0(double x) { return grow(scaled_i(x, 0), x); }
double special_i1e(double x) { return copysign(scaled_i(x, 1), x); }
double special_i1(double x) { return copysign(grow(scaled_i(x, 1), x), x); }

/* exp(x) K_nu(x), x >= 0.5 */
static double integral_k(double x, double nu) {
  double h = fmin(0.1, 0.4 / sqrt(x)), sum = 0.5;
  if (isinf(x)) return 0;
  for (int i = 1;; i++) {
    double t = i * h, s = sinh(t / 2), weight = exp(-2 * x * s * s);
    sum += weight * cosh(nu * t);
    if (!(weight >= 1e-19)) return sum * h; /* also nan */
  }
}

/* K_nu(x) for 0 < x < 1, nu = 0 or 1:
 *   K0 = sum (H_k - log(x/2) - euler) z^k / k!^2
 *   K1 = 1/x + x/2 sum (log(x/2) + euler - (H_k + H_(k+1)) / 2) z^k / (k! (k+1)!)   with z = x^2/4 */
static double series_k(double x, int nu) {
  double z = x * x / 4, l = log(x / 2) + euler, term = 1, harmonic = 0, sum = 0;
  for (int k = 0; k < 20; k++) {
    sum += nu ? (l - harmonic - 0.5 / (k + 1)) * term : (harmonic - l) * term;
    harmonic += 1.0 / (k + 1);
    term *= z / ((k + 1) * (double)(k + 1 + nu));
  }
  return nu ? 1 / x + x / 2 * sum : sum;
}

static double bessel_k(double x, int nu, bool scaled) {
  if (x == 0) return INFINITY;
  if (!(x > 0)) return NAN;
  if (isinf(x)) return 0;
  if (x < 1) return series_k(x, nu) * (scaled ? exp(x) : 1);
  return integral_k(x, nu) * (scaled ? 1 : exp(-x));
}

double special_k0(double x) { return bessel_k(x, 0, false); }
double special_k0e(double x) { return bessel_k(x, 0, true); }
double special_k1(double x) { return bessel_k(x, 1, false); }
double special_k1e(double x) { return bessel_k(x, 1, true); }

double special_j0(double x) { return isinf(x) ? NAN : j0(x); }
double special_j1(double x) { return isinf(x) ? NAN : j1(x); }
double special_y0(double x) { return x == 0 ? -INFINITY : x > 0 && !isinf(x) ? y0(x) : NAN; }
double special_y1(double x) { return x == 0 ? -INFINITY : x > 0 && !isinf(x) ? y1(x) : NAN; }

double special_spherical_j0(double x) { return isinf(x) ? 0 : x == 0 ? 1 : sin(x) / x; }

/* Ai(x) = Ai(0) f(x) + Ai'(0) g(x), both power series in x^3; terms grow to exp(2/3 |x|^1.5). */
static double airy_series(double x) {
  long double z = (long double)x * x * x, f = 1, g = x, fsum = 1, gsum = x;
  for (int k = 1; k < 120; k++) {
    f *= z / ((3 * k - 1) * (3 * k)), g *= z / ((3 * k) * (3 * k + 1));
    fsum += f, gsum += g;
    if (fabsl(f) + fabsl(g) < 1e-22L) break;
  }
  return (double)(0.355028053887817239260L * fsum - 0.258819403792806798405L * gsum);
}

/* x < -8: a wave whose amplitude and phase are asymptotic series in 1/zeta, zeta = 2/3 |x|^1.5. */
static double airy_wave(double x) {
  double zeta = 2 * -x * sqrt(-x) / 3, u = 1, even = 0, odd = 0, last = 2;
  for (int k = 0; k < 40 && fabs(u) < last; k++) { /* u_k / zeta^k */
    last = fabs(u);
    *(k % 2 ? &odd : &even) += k / 2 % 2 ? -u : u;
    u *= (6 * k + 5) * (6 * k + 3) * (double)(6 * k + 1) / (216 * (k + 1) * (double)(2 * k + 1)) / zeta;
  }
  double phase = zeta - M_PI_4;
  return (cos(phase) * even + sin(phase) * odd) / (sqrt(M_PI) * sqrt(sqrt(-x)));
}

double special_airy_ai(double x) {
  if (!isfinite(x)) return NAN;
  if (x < -8) return airy_wave(x);
  if (x < 2) return airy_series(x);
  double zeta = 2 * x * sqrt(x) / 3;
  return sqrt(x / 3) / M_PI * integral_k(zeta, 1.0 / 3) * exp(-zeta);
}
