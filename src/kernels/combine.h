/* combine.h -- several buffers become one, element by element: what reductions across
 * ranks are made of.
 *
 *             floats           integers              bool     c64
 *   sum       +                +, wraps              or       +
 *   avg       sum / number     exact sum / number,   -        sum / number
 *                              towards zero
 *   product   *                *, wraps              and      *
 *   min, max  nan wins         yes                   and, or  -
 *   band, bor, bxor   -        yes                   yes      -
 *
 * I1  Element i depends on element i of the sources alone, taken from first to last:
 *     however a buffer is cut into pieces, the bits are the same.
 * I2  f16 and bf16 are summed up in f32 and rounded once.
 */
#ifndef TESS_KERNELS_COMBINE_H
#define TESS_KERNELS_COMBINE_H

#include "kernels/kernel.h"
#include "kernels/reduce_op.h"

/* Fails where the table has "-", and for dtypes without arithmetic. */
Status combine_check(ReduceOp op, Dtype d);

/* dst[i] = src[0][i] op src[1][i] op ...; nsrc >= 1.  dst may be one of the sources, and
 * overlaps none otherwise. */
void combine(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, int64_t n);
/* The same, of much that nobody reads soon, into memory that no source is in. */
void combine_past_caches(Isa isa, ReduceOp op, Dtype d, void *dst, const void *const *src, int nsrc, int64_t n);

/* dst = a op b (avg: their sum).  dst may be a or b. */
SIMD_DECLARE(void, combine_pair, (ReduceOp op, Dtype d, void *dst, const void *a, const void *b, int64_t n));
/* The same to memory that neither a nor b is in, past the caches. */
SIMD_DECLARE(void, combine_pair_past_caches,
             (ReduceOp op, Dtype d, void *dst, const void *a, const void *b, int64_t n));
/* x /= by */
SIMD_DECLARE(void, combine_divide, (Dtype d, void *x, int by, int64_t n));

#endif
