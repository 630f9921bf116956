/* gemm.h -- matrix products. */
#ifndef TESS_KERNELS_GEMM_H
#define TESS_KERNELS_GEMM_H

#include "kernels/kernel.h"

/* NULL is fine. */
void gemm_cache_free(struct GemmCache *c);

#endif
