/* special_normal.c -- the normal distribution and its kin; see special.h. */
#include <math.h>

#include "kernels/special.h"

double special_erfcx(double x) {
  if (x < -27) return INFINITY;
  if (x < 25) { /* exp(x^2) = exp(high) (1 + low): x^2 has twice as many bits as a double */
    double high = x * x, low = fma(x, x, -high);
    return exp(high) * (1 + low) * erfc(x);
  }
  double z = 1 / (2 * x * x);
  return (1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z))))) / (x * sqrt(M_PI));
}

double special_ndtr(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }

double special_log_ndtr(double x) {
  if (x < -1) return isinf(x) ? -INFINITY : log(special_erfcx(-x * M_SQRT1_2) / 2) - x * x / 2;
  return log1p(-erfc(x * M_SQRT1_2) / 2);
}

/* With t = -x / sqrt(2) for p < 1/2, log(erfc(t) / 2 p) = 0: a start that is good to 2e-3, then Newton.
 * Its slope, -2 / (sqrt(pi) erfcx(t)), hardly changes. */
double special_ndtri(double p) {
  if (p == 0 || p == 1) return p == 0 ? -INFINITY : INFINITY;
  if (!(p > 0 && p < 1)) return NAN;
  double q = 2 * (p < 0.5 ? p : 1 - p), l = log(q * (2 - q)), log_q = log(q);
  const double k = 2 / (M_PI * 0.147);
  double s = k + l / 2, t = sqrt(sqrt(s * s - l / 0.147) - s);
  for (int i = 0; i < 5; i++) {
    double scaled = special_erfcx(t), miss = q > 0.5 ? log1p((erfc(t) - q) / q) : log(scaled) - t * t - log_q;
    t += miss * sqrt(M_PI) / 2 * scaled;
  }
  return p < 0.5 ? -t * M_SQRT2 : t * M_SQRT2;
}
