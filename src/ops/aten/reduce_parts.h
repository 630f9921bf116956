/* reduce_parts.h -- variances and logsumexp along dimensions that ranks share.
 *
 * No kind of partial value stands for what they leave of a shard, so a single call would gather rows.  Written with
 * sums (and a largest element) only these go over the ranks.  The mean comes first, as in the kernel: a difference
 * of large sums would lose its digits. */
#ifndef TESS_OPS_ATEN_REDUCE_PARTS_H
#define TESS_OPS_ATEN_REDUCE_PARTS_H

#include "ops/op.h"

typedef struct {
  const bool *dims; /* that are folded */
  bool keepdim;
  Dtype out;
  double correction; /* of a variance */
  bool root;         /* std */
} PartsRequest;

Status variance_in_parts(Call *c, const PartsRequest *p);
Status logsumexp_in_parts(Call *c, const PartsRequest *p);

#endif
