/* dense.h -- arguments as contiguous memory, for kernels that want rows.
 *
 *     size_t mark = kern_mark(k);
 *     Dense x;  TRY(dense_view(k, in_tensor(c, 0), &x));  ... x.view ...
 *     kern_release(k, mark);
 */
#ifndef TESS_OPS_ATEN_DENSE_H
#define TESS_OPS_ATEN_DENSE_H

#include "kernels/kernel.h"

typedef struct {
  View view; /* contiguous; data is NULL if there was no tensor */
  int64_t stride[MAX_DIMS];
} Dense;

/* t itself if it is contiguous, else a copy in scratch memory.  t may be NULL.  The view
 * points into out: it may not be moved. */
Status dense_view(Kern *k, const Tensor *t, Dense *out);

/* The same with elements converted to a dtype. */
Status dense_view_as(Kern *k, const Tensor *t, Dtype d, Dense *out);

#endif
