/* ddp_buckets.h -- which all-reduces are those of gradients, and which of them go together.
 *
 * A gradient's all-reduce is
 *     %d = div(%grad, divisor)  %r = all_reduce(%d, op, group)  %w = wait(%r)
 * where the wait has one user: the program's outputs, or a copy_.  In a training step (Node.stage) it has any
 * number of users, all in the update, and the division may be missing; it may be missing in joint programs of a
 * mesh's ranks, too, if the rules say so.  Those of one kind, that is with the same group, op, divisor and dtypes,
 * go into buckets in the order of the program.
 *
 * I1  A bucket takes all-reduces until it holds its limit, the first one of the program
 *     first_bucket_mb, later ones bucket_size_mb; the one that reaches the limit is the last
 *     one in.  Where PyTorch, which does not look at kinds, happens to mix none, its buckets
 *     are the same.
 * I2  Buckets can be put in order: an all-reduce that needs what a bucket reduces closes that
 *     bucket before it joins one.  So what needs a bucket joined others after the bucket's
 *     last, and no two buckets wait for each other.
 */
#ifndef TESS_PASSES_DDP_BUCKETS_H
#define TESS_PASSES_DDP_BUCKETS_H

#include "base/textbuf.h"
#include "passes/order.h"

/* Why an all-reduce is left alone. */
typedef enum {
  /* not a gradient's */
  LEFT_UNUSED,
  LEFT_NO_WAIT,
  LEFT_NO_DIV,
  LEFT_USERS,
  LEFT_SIZE,
  /* a gradient's, but joining it with others would change what it computes: a bucket of its own */
  LEFT_DIVISOR,
  LEFT_WRITTEN,
  LEFT_SHARED,
  LEFT_COUNT /* not at all */
} LeftAlone;

typedef struct {
  int div, comm, wait; /* positions; where nothing is divided, div is comm */
  Val *grad;           /* what is divided, or reduced as it is */
  Arg divisor;         /* ARG_UNSET: none */
  int64_t numel;
  size_t bytes;
  LeftAlone alone;
  int kind; /* -1: alone */
  int next; /* of its bucket, -1 */
} Reduction;

typedef struct {
  int first, last, count; /* reductions, in the order of the program */
  size_t bytes;
  bool full;  /* it reached its limit */
  bool early; /* it was closed because a later gradient needs it */
} Bucket;

typedef struct {
  Reduction *reduction; /* in the order of the collectives */
  int n;
  Bucket *bucket; /* in the order of their first reductions */
  int nbuckets, nkinds;
  int all_reduces;                      /* in the program */
  int left[LEFT_COUNT];                 /* those that are no gradients' */
  const char *left_example[LEFT_COUNT]; /* name of the first one */
} Buckets;

typedef struct {
  double bucket_bytes, first_bytes; /* limits */
  bool undivided;                   /* sums that are outputs count as gradients as they are */
  bool by_list;                     /* for _foreach_div: a tensor as divisor must have no dimensions */
} BucketRules;

Status ddp_buckets_find(Arena *arena, const Order *o, const BucketRules *rules, Buckets *out);

/* Lines for --stats: what was fused, bucket by bucket, and what was not, and why. */
void ddp_buckets_tell(TextBuf *b, const char *pass, const Order *o, const Buckets *all);

#endif
