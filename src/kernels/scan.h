/* scan.h -- running sums, products and extremes along a dimension. */
#ifndef TESS_KERNELS_SCAN_H
#define TESS_KERNELS_SCAN_H

#include "kernels/kernel.h"

typedef enum { SCAN_SUM, SCAN_PROD, SCAN_LOGSUMEXP } ScanOp;

/* x[i] = x[0] op ... op x[i] along dim, in place.  SUM, PROD: i64 and the floats;
 * LOGSUMEXP: floats.  The running value is f64 for f32 and f64, f32 for f16 and bf16; it
 * is not rounded between elements. */
void kernel_scan(Kern *k, View x, int dim, ScanOp op);

/* values[i] = the largest (smallest) of in[0 .. i], indices[i] = its last place; the
 * first nan stays.  bool, the integers and the floats; indices are i64. */
void kernel_running_extreme(Kern *k, View in, int dim, bool largest, View values, View indices);

#endif
