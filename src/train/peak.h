/* peak.h -- how fast this machine multiplies large matrices: what the speed of a training is compared with. */
#ifndef TESS_TRAIN_PEAK_H
#define TESS_TRAIN_PEAK_H

#include "ops/op.h"

/* FLOP/s of f32 products with the context's threads, measured in some hundredths of a second. */
Status measure_peak(Ctx *ctx, double *out);

#endif
