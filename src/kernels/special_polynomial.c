/* special_polynomial.c -- orthogonal polynomials by their recurrences; see special.h. */
#include <math.h>

#include "kernels/special.h"

/* The degree; -1 for nan and infinities. */
static int64_t degree(double n) { return fabs(n) < 0x1p62 ? (int64_t)n : -1; }

/* p(k+1) = 2 x p(k) - p(k-1), from p(0) = 1 and p(1): all four kinds. */
static double chebyshev(double x, double first, int64_t n) {
  double p = 1, q = first;
  if (n <= 0) return n == 0;
  for (int64_t k = 1; k < n && !isnan(q); k++) {
    double r = 2 * x * q - p;
    p = q, q = r;
  }
  return q;
}

/* Below this degree the recurrence is as good as cosines of multiples, and faster. */
enum { FEW = 32 };

double special_chebyshev_t(double x, double n_) {
  int64_t n = degree(n_);
  return n > FEW && fabs(x) <= 1 ? cos((double)n * acos(x)) : chebyshev(x, x, n);
}

double special_chebyshev_u(double x, double n_) {
  int64_t n = degree(n_);
  double angle = acos(x), m = (double)n + 1;
  if (n <= FEW || !(fabs(x) <= 1)) return chebyshev(x, 2 * x, n);
  return fabs(x) == 1 ? (x > 0 || n % 2 == 0 ? m : -m) : sin(m * angle) / sin(angle);
}

double special_chebyshev_v(double x, double n_) {
  int64_t n = degree(n_);
  double angle = acos(x), m = (double)n + 0.5;
  if (n <= FEW || !(fabs(x) <= 1)) return chebyshev(x, 2 * x - 1, n);
  if (fabs(x) == 1) return x > 0 ? 1 : n % 2 == 0 ? 2 * m : -2 * m;
  return cos(m * angle) / cos(angle / 2);
}

double special_chebyshev_w(double x, double n_) {
  int64_t n = degree(n_);
  double angle = acos(x), m = (double)n + 0.5;
  if (n <= FEW || !(fabs(x) <= 1)) return chebyshev(x, 2 * x + 1, n);
  if (fabs(x) == 1) return x > 0 ? 2 * m : n % 2 == 0 ? 1 : -1;
  return sin(m * angle) / sin(angle / 2);
}

/* H(k+1) = 2 x H(k) - 2 k H(k-1);  He(k+1) = x He(k) - k He(k-1).  ATen's limit on the degree. */
static double hermite(double x, double scale, int64_t n) {
  double p = 1, q = scale * x;
  if (n <= 0) return n == 0;
  if (n > 512) return NAN;
  for (int64_t k = 1; k < n; k++) {
    double r = scale * (x * q - (double)k * p);
    p = q, q = r;
  }
  return q;
}

double special_hermite_h(double x, double n) { return hermite(x, 2, degree(n)); }
double special_hermite_he(double x, double n) { return hermite(x, 1, degree(n)); }

/* Recurrences that do not end by themselves take at most this many steps; of higher degrees the
 * result is nan.  ATen goes on, for hours if the number says so. */
enum { MOST = 1 << 16 };

double special_laguerre(double x, double n_) {
  int64_t n = degree(n_);
  double p = 1, q = 1 - x;
  if (n <= 0 || x == 0) return n >= 0;
  if (n > MOST) return NAN;
  for (int64_t k = 1; k < n && !isnan(q); k++) {
    double r = (((double)(2 * k + 1) - x) * q - (double)k * p) / (double)(k + 1);
    p = q, q = r;
  }
  return q;
}

double special_legendre(double x, double n_) {
  int64_t n = degree(n_);
  double p = 1, q = x;
  if (n <= 0) return n == 0;
  if (fabs(x) == 1) return x > 0 || n % 2 == 0 ? 1 : -1;
  if (n > MOST) return NAN;
  for (int64_t k = 1; k < n && !isnan(q); k++) {
    double r = ((double)(2 * k + 1) * x * q - (double)k * p) / (double)(k + 1);
    p = q, q = r;
  }
  return q;
}
