/* bucket_size.h -- how large buckets of gradients are to be: bucket_size_mb=auto of the fuse_ddp passes,
 * and of training steps.
 *
 * Small buckets start early and hide behind the rest of the backward; large ones make fewer calls, and the last one
 * ends late.  What is best depends on when gradients come and on the machine, so every size is tried: the backward
 * is gone through with the times that its nodes take, buckets are reduced one after the other beside it, and the
 * size with which all is over first is taken; of those that are as good, the one nearest to 4 MiB.
 */
#ifndef TESS_PASSES_BUCKET_SIZE_H
#define TESS_PASSES_BUCKET_SIZE_H

#include "passes/ddp_buckets.h"
#include "passes/pass.h"

/* What the passes' options say of the machine. */
typedef struct {
  int ranks;
  double flops, memory;      /* of a rank, per second: operations, bytes */
  double latency, bandwidth; /* of a link: seconds, bytes per second */
  double overlap;            /* of a reduction, the part that costs the rank no time of its own */
} BucketMachine;

BucketMachine bucket_machine(const PassArgs *args);

/* Where nothing is said of it: as the passes' options have it. */
extern const BucketMachine bucket_machine_default;

/* The size for a training step, in MiB: one of this rank's program, which need not be that of another's. */
Status bucket_size_of_step(Exported *e, const BucketMachine *m, double *mb);

/* Sets the limits of the rules. */
Status bucket_size_choose(Arena *arena, const Order *o, const BucketMachine *m, BucketRules *rules);

#endif
