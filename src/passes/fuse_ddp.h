/* fuse_ddp.h -- what the passes that fuse the all-reduces of gradients share: finding buckets,
 * putting one collective in the place of many, and leaving the program in a legal order.
 *
 * How a bucket is written with ops is the pass's: it gives a function that adds the nodes.
 */
#ifndef TESS_PASSES_FUSE_DDP_H
#define TESS_PASSES_FUSE_DDP_H

#include "passes/ddp_buckets.h"
#include "passes/pass.h"

typedef struct {
  Arena *arena; /* of the pass */
  Graph *graph;
  const Order *order;
  const Buckets *all;
  int old_vals;
  bool *gone;   /* by position: collectives and waits that a bucket stands for */
  int *reduced; /* by reduction: mark of the node behind which it is done; -1: not fused */
  int *takes_start, *takes;
  int nnew, ntakes;
} Fuse;

/* The nodes of one bucket, as its function leaves them. */
typedef struct {
  Node *last;    /* of all; those who used the results early are moved behind it */
  Node *reduced; /* behind it what was divided may be written to */
  Val **results; /* one per reduction, in their order */
} Fused;

/* Adds nodes before (or behind) `last_div`, the last division of the bucket, which may go
 * away: all in a row. */
typedef Status FuseFn(Fuse *f, const Bucket *b, Node *last_div, Fused *out);

/* A call, placed before `before`, with the metadata of `like`. */
Status fuse_add(Fuse *f, Node *before, const char *target, const Arg *args, int nargs, const Node *like,
                Node **out);
/* The node that was added last does the reduction's division. */
void fuse_takes(Fuse *f, const Reduction *r);
/* sizes of a 1-d tensor */
Status fuse_length(Fuse *f, int64_t length, const Sym **out);

/* The whole pass. */
Status fuse_ddp(Exported *e, const PassArgs *args, const char *pass, bool by_list, FuseFn *build);

#endif
