/* batch_norm.h -- what batch norm, its gradient and their forms on several ranks share. */
#ifndef TESS_OPS_ATEN_BATCH_NORM_H
#define TESS_OPS_ATEN_BATCH_NORM_H

#include "ops/rule.h"

/* Positions of arguments (input 0, weight 1, bias 2); 0: none.  The row of the three ops that normalise. */
typedef struct {
  int mean, var; /* running statistics */
  int training;  /* a flag; 0: always_training decides */
  bool always_training;
  int momentum, eps;
  bool returns_running;
} BatchNormRow;

bool batch_norm_is_training(const Call *c);
/* Of the mean and the reciprocal standard deviation that it returns. */
Dtype batch_norm_stat_dtype(const Call *c);

/* compose_sharded of batch norm and of native_batch_norm_backward: where the batch (or a plane) is cut, ranks
 * exchange sums of channels and keep their rows. */
Status batch_norm_in_parts(Call *c, const Sharded *how, bool *done);
Status batch_norm_backward_in_parts(Call *c, const Sharded *how, bool *done);

#endif
