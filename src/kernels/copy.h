/* copy.h -- strided copies with conversion between all compute dtypes. */
#ifndef TESS_KERNELS_COPY_H
#define TESS_KERNELS_COPY_H

#include "kernels/kernel.h"

/* dst[i] = (dst dtype) src[i].  src is broadcast to dst's size.  Same dtype: bit for
 * bit, any dtype.  dst must not overlap itself; dst and src may be the same memory
 * only if they are the same view. */
void kernel_copy(Kern *k, View dst, View src);

/* The same, of much that nobody reads soon: where both are dense, dst is written past the caches. */
void kernel_copy_past_caches(Kern *k, View dst, View src);

/* n elements of `bytes` bytes (1, 2, 4, 8 or 16) each; strides in bytes, 0 allowed for src. */
void copy_strided(void *dst, int64_t to_step, const void *src, int64_t from_step, size_t bytes, int64_t n);

/* n times the same element, contiguous. */
void copy_splat(void *dst, const void *element, size_t bytes, int64_t n);

SIMD_DECLARE(void, copy_past_caches, (void *dst, const void *src, size_t bytes));

/* dst[i] = value, given as the bytes of one element of dst's dtype. */
void kernel_fill(Kern *k, View dst, const void *element);

#endif
