/* special.c -- which function an instruction stands for; see special.h. */
#include "kernels/special.h"

#include <math.h>

static double entropy(double x) { return x > 0 ? -x * log(x) : x == 0 ? 0 : isnan(x) ? x : -INFINITY; }

static double sinc(double x) { return x == 0 ? 1 : sin(M_PI * x) / (M_PI * x); }

static double xlog1py(double x, double y) { return isnan(y) ? y : x == 0 ? 0 : x * log1p(y); }

SpecialFn special_fn(PwOp op) {
  static const SpecialFn table[PW_OP_COUNT] = {
      [PW_I0] = {.one = special_i0},
      [PW_I0E] = {.one = special_i0e},
      [PW_I1] = {.one = special_i1},
      [PW_I1E] = {.one = special_i1e},
      [PW_K0] = {.one = special_k0},
      [PW_K0E] = {.one = special_k0e},
      [PW_K1] = {.one = special_k1},
      [PW_K1E] = {.one = special_k1e},
      [PW_J0] = {.one = special_j0},
      [PW_J1] = {.one = special_j1},
      [PW_Y0] = {.one = special_y0},
      [PW_Y1] = {.one = special_y1},
      [PW_SPHERICAL_J0] = {.one = special_spherical_j0},
      [PW_AIRY_AI] = {.one = special_airy_ai},
      [PW_ERFCX] = {.one = special_erfcx},
      [PW_NDTR] = {.one = special_ndtr},
      [PW_LOG_NDTR] = {.one = special_log_ndtr},
      [PW_NDTRI] = {.one = special_ndtri},
      [PW_ENTROPY] = {.one = entropy},
      [PW_SINC] = {.one = sinc},
      [PW_XLOG1PY] = {.two = xlog1py},
      [PW_ZETA] = {.two = special_zeta},
      [PW_POLYGAMMA] = {.two = special_polygamma},
      [PW_IGAMMA] = {.two = special_igamma},
      [PW_IGAMMAC] = {.two = special_igammac},
      [PW_CHEBYSHEV_T] = {.two = special_chebyshev_t},
      [PW_CHEBYSHEV_U] = {.two = special_chebyshev_u},
      [PW_CHEBYSHEV_V] = {.two = special_chebyshev_v},
      [PW_CHEBYSHEV_W] = {.two = special_chebyshev_w},
      [PW_HERMITE_H] = {.two = special_hermite_h},
      [PW_HERMITE_HE] = {.two = special_hermite_he},
      [PW_LAGUERRE] = {.two = special_laguerre},
      [PW_LEGENDRE] = {.two = special_legendre},
  };
  return table[op];
}
