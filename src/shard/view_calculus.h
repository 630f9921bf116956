/* view_calculus.h -- how shardings move through reshapes, cuts and joins.
 *
 * Pure arithmetic on placements and sizes: no tensors, no ranks.  Sizes may be hints for
 * symbolic ones; the answer then holds for these sizes.
 *
 * The one definition: the output's placements are right if and only if, for every rank,
 * the indices it holds of the output are the images of those it holds of the input, in
 * the same order.  Axes are taken left to right.  An axis sees on each rank what the axes
 * before it left there, so the question is asked for every set of local sizes that occurs
 * (a few: whole pieces, last pieces); an answer must fit all of them.
 *
 * I1  Exact for sizes that do not divide and for empty shards.
 * I2  Where several spellings are right, the one with the smallest factor is given, then
 *     the one without a unit: PyTorch's, where PyTorch has one.  A unit that the input
 *     has is kept.
 * I3  Turns (shard orders) are understood where all sizes divide, and come out strided.
 */
#ifndef TESS_SHARD_VIEW_CALCULUS_H
#define TESS_SHARD_VIEW_CALCULUS_H

#include "shard/layout.h"

/* The axes of a mesh. */
typedef struct {
  int naxes;
  const int *axis;
} Axes;

/* Row-major reshape of `from` (global sizes) to `to`, both with the same number of
 * elements.  in and out: one placement per axis; R and P pass.  False: *bad is the first
 * axis whose shards of `from` are no shards of `to`; in is then to be R there. */
bool view_reshape(const Axes *m, int from_ndim, const int64_t *from, int to_ndim, const int64_t *to,
                  const Placement *in, Placement *out, int *bad);

/* Elements [begin, end) of dimension dim, which has n: slices, and each piece of a split.
 * Right where the cuts fall between segments.  Other dimensions are not looked at. */
bool view_cut(const Axes *m, int dim, int64_t n, int64_t begin, int64_t end, const Placement *in, Placement *out,
              int *bad);

/* Concatenation along dim of `count` tensors with size[t] there.  in: tensor t on axis a
 * is in[t * naxes + a]; on an axis where one is S(dim) all must be, in the same units. */
enum { MAX_JOINED = 32 };
bool view_join(const Axes *m, int dim, const int64_t *size, int count, const Placement *in, Placement *out,
               int *bad);

#endif
