/* boxes.h -- which part of one rank's shard is which part of another's.
 *
 * A shard is runs per dimension (layout.h); what two shards share is, per dimension, a
 * list of common stretches, and altogether their product: boxes.
 */
#ifndef TESS_DIST_BOXES_H
#define TESS_DIST_BOXES_H

#include "comm/comm.h"
#include "shard/layout.h"

/* Runs of all dimensions of one rank. */
typedef struct {
  int ndim;
  Runs dim[MAX_DIMS];
} Region;

Status region_of(const Layout *l, const int *coord, Arena *arena, Region *out);

typedef struct {
  Box *v;
  int n, cap;
} BoxList;

/* Adds the boxes that `have` and `want` share, as parts of have's buffer (strides
 * have_stride) to from, and of want's to into; either list may be NULL.  Both sides come
 * in the same order whoever asks. */
Status boxes_shared(const Region *have, const int64_t *have_stride, const Region *want, const int64_t *want_stride,
                    int peer, Arena *arena, BoxList *from, BoxList *into);

#endif
