/* convert.h -- contiguous runs from one compute dtype to another.
 *
 * As static_cast does: floats to integers truncate (what does not fit gives the
 * smallest value, as x86 does, then wraps), wide integers wrap, anything but zero is
 * true (nan too), complex to real takes the real part, f16 and bf16 round to nearest
 * even by way of f32.  src and dst do not overlap.
 */
#ifndef TESS_KERNELS_CONVERT_H
#define TESS_KERNELS_CONVERT_H

#include "kernels/kernel.h"

SIMD_DECLARE(void, convert_run, (void *dst, Dtype to, const void *src, Dtype from, int64_t n));

#endif
