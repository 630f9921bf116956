/* special.h -- functions that neither libm nor math.h has, one element at a time. */
#ifndef TESS_KERNELS_SIMD_SPECIAL_H
#define TESS_KERNELS_SIMD_SPECIAL_H

#include <math.h>
#include <stdbool.h>

/* Inverse of erf: a start that is good to 2e-3 in the exponent, then Newton with erf or,
 * in the tails, erfc. */
static inline double erfinv_f64(double y) {
  double a = fabs(y);
  if (!(a < 1)) return a == 1 ? copysign(INFINITY, y) : NAN;
  const double k = 2 / (M_PI * 0.147);
  double l = log1p(-a * a), t = k + l / 2, x = sqrt(sqrt(t * t - l / 0.147) - t);
  for (int i = 0; i < 3; i++) {
    double miss = a < 0.5 ? erf(x) - a : (1 - a) - erfc(x);
    double step = miss * (sqrt(M_PI) / 2) * exp(x * x);
    x -= step / (1 + x * step);
  }
  return copysign(x, y);
}

/* Derivative of log gamma: reflection below 0, recurrence up to 10, then the asymptotic series. */
static inline double digamma_f64(double x) {
  if (x == 0) return copysign(INFINITY, -x);
  double sum = 0;
  if (x < 0) {
    if (x == trunc(x)) return NAN;
    sum = -M_PI / tan(M_PI * (x - trunc(x)));
    x = 1 - x;
  }
  for (; x < 10; x++) sum -= 1 / x;
  double z = 1 / (x * x);
  double tail = z * (1.0 / 12 -
                     z * (1.0 / 120 -
                          z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
  return sum + log(x) - 0.5 / x - tail;
}

/* The number after x on the way to y, of those with this many binary digits behind the point,
 * exponents from least, and none beyond most. */
static inline double next_narrow(double x, double y, int digits, int least, double most) {
  if (x != x || y != y) return x + y;
  if (x == y) return y;
  if (x == 0) return copysign(ldexp(1, least - digits), y);
  if (isinf(x)) return copysign(most, x);
  int e;
  bool power = frexp(fabs(x), &e) == 0.5; /* |x| = [0.5, 1) 2^e */
  e -= power && (y > x) != (x > 0) ? 2 : 1;
  double step = ldexp(1, (e > least ? e : least) - digits);
  return y > x ? x + step : x - step;
}

#endif
