/* random_simd.h -- what simd/random.c gives to random.c. */
#ifndef TESS_KERNELS_RANDOM_SIMD_H
#define TESS_KERNELS_RANDOM_SIMD_H

#include "kernels/kernel.h"

SIMD_DECLARE(void, random_words, (uint64_t seed, uint64_t first, int64_t blocks, uint32_t *words));
SIMD_DECLARE(void, random_normal, (const uint32_t *words, int64_t pairs, float *z));

#endif
