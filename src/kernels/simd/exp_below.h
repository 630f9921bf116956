/* exp_below.h -- e^x for x <= 0, as softmax and logsumexp need it.
 *
 * Results below 2^-126 are 0 (they are added to a 1), which saves the second scaling and
 * the bounds of exp_f32: about half its instructions.  nan gives nan, -inf 0.
 */
#ifndef TESS_KERNELS_SIMD_EXP_BELOW_H
#define TESS_KERNELS_SIMD_EXP_BELOW_H

#include "kernels/simd/math.h"

static inline float exp_below_f32(float x) {
  int32_t n; /* means nothing for x < -87, where the result is not used */
  float r = exp_reduce_f32(x, &n);
  float y = (fma_f32(exp_tail_f32(r), r * r, r) + 1.0f) * f32_from_bits(((uint32_t)n + 127u) << 23);
  return x < -87.0f ? 0.0f : y;
}

#endif
