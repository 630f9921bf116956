/* ddp_buckets.h -- which all-reduces are those of gradients, and which of them go together.
 *
 * A gradient's all-reduce is
 *     %d = div(%grad, divisor)  %r = all_reduce(%d, op, group)  %w = wait(%r)
 * where the wait has one user: the program's outputs, or a copy_.  Those of one kind, that is
 * with the same group, op, divisor and dtypes, go into buckets in the order of the program.
 *
 * I1  The buckets of a kind are those that PyTorch makes of a program that has this kind
 *     alone: a bucket takes all-reduces until it holds its limit, the first 1 MiB, later ones
 *     bucket_size_mb; the one that reaches the limit is the last one in.
 * I2  Buckets can be put in order: an all-reduce that needs what a bucket reduces closes that
 *     bucket before it joins one.  So what needs a bucket joined others after the bucket's
 *     last, and no two buckets wait for each other.
 */
#ifndef TESS_PASSES_DDP_BUCKETS_H
#define TESS_PASSES_DDP_BUCKETS_H

#include "base/textbuf.h"
#include "passes/order.h"

typedef struct {
  int div, comm, wait; /* positions */
  Val *grad;           /* what is divided */
  Arg divisor;
  int64_t numel;
  size_t bytes;
  int kind;
  int next; /* of its bucket, -1 */
} Reduction;

typedef struct {
  int first, last, count; /* reductions, in the order of the program */
  size_t bytes;
  bool full; /* it reached its limit; else it was closed early, or the program ended */
  bool early;
} Bucket;

/* Why an all-reduce is left alone. */
typedef enum {
  LEFT_UNUSED,
  LEFT_NO_WAIT,
  LEFT_NO_DIV,
  LEFT_USERS,
  LEFT_SIZE,
  LEFT_DIVISOR,
  LEFT_WRITTEN,
  LEFT_SHARED,
  LEFT_COUNT
} LeftAlone;

typedef struct {
  Reduction *reduction; /* in the order of the collectives */
  int n;
  Bucket *bucket; /* in the order of their first reductions' closing */
  int nbuckets, nkinds;
  int all_reduces; /* in the program */
  int left[LEFT_COUNT];
  const char *left_example[LEFT_COUNT]; /* name of the first one */
} Buckets;

typedef struct {
  double bucket_bytes, first_bytes; /* limits */
  bool by_list; /* for _foreach_div: a tensor as divisor must have no dimensions */
} BucketRules;

Status ddp_buckets_find(Arena *arena, const Order *o, const BucketRules *rules, Buckets *out);

/* Lines for --stats: what was fused, bucket by bucket, and what was not, and why. */
void ddp_buckets_tell(TextBuf *b, const char *pass, const Order *o, const Buckets *all);

#endif
