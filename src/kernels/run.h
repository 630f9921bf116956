/* run.h -- a strided run of elements as a dense array of the type a loop works in,
 * and back.  A run that already is one is used where it lies.
 */
#ifndef TESS_KERNELS_RUN_H
#define TESS_KERNELS_RUN_H

#include "kernels/kernel.h"

enum { RUN = 1024 }; /* most elements of a run that goes through a buffer */

typedef struct {
  _Alignas(64) unsigned char dense[RUN * 8];
  _Alignas(64) unsigned char raw[RUN * 8]; /* gathered, not yet converted */
} RunBuffer;

/* True if such a run needs no buffer: it may have any length. */
static inline bool run_is_direct(Dtype as, Dtype from, int64_t stride) { return as == from && stride == 1; }

/* n elements at src (stride in elements) as type `as`; n <= RUN unless direct. */
const void *run_load(Isa isa, RunBuffer *b, Dtype as, const void *src, Dtype from, int64_t stride, int64_t n);

/* Writes n elements of type `as` to dst.  n <= RUN unless stride is 1. */
void run_store(Isa isa, RunBuffer *b, void *dst, Dtype to, int64_t stride, const void *src, Dtype as, int64_t n);

#endif
