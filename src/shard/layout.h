/* layout.h -- which elements of a global tensor each rank holds.
 *
 * Everything in dist/ asks this file; nobody computes a chunk size by hand.  A rank is
 * a coordinate: one number per mesh axis, so any rank can be asked about by any other.
 *
 * I1  The runs of a dimension are disjoint and not empty; over the ranks of an axis
 *     they cover the dimension (exactly once when sharded, on every rank when not).
 *     They are in local order: the order of the rank's own elements.
 * I2  A segment of b elements is cut into chunks of ceil(ceil(b/unit)/k)*unit; trailing
 *     ranks may hold nothing.
 * I3  An empty shard's offset is the global size.  Checkpoints dedupe on offsets.
 * I4  Axes apply left to right (or by their turns): each chunks what the ones before it
 *     left on this rank.
 */
#ifndef TESS_SHARD_LAYOUT_H
#define TESS_SHARD_LAYOUT_H

#include "base/arena.h"
#include "shard/placement.h"
#include "tensor/tensor.h"

/* How a tensor of some shape lies on a mesh of some shape; borrowed pointers. */
typedef struct {
  int ndim;
  const int64_t *shape; /* global */
  int naxes;
  const int *axis; /* sizes of the mesh axes */
  const Placement *place;
} Layout;

/* A layout as one rank sees it. */
typedef struct ShardOf {
  Layout layout;
  const int *coord;
} ShardOf;

/* The same with memory of its own. */
Status shard_of_copy(const ShardOf *s, Arena *arena, const ShardOf **out);

typedef struct {
  int64_t begin, size;
} Run;

typedef struct {
  Run *run;
  int n;
  int64_t size; /* elements in all */
} Runs;

/* [begin, begin + size) of n elements that piece r of k holds; unit >= 1. */
void chunk_of(int64_t n, int64_t k, int64_t r, int64_t unit, int64_t *begin, int64_t *size);

/* Fails if segments do not fit their extent on some rank, whichever asks. */
Status layout_check(const Layout *l);
/* Local sizes at coord; local has room for ndim. */
Status layout_local(const Layout *l, const int *coord, int64_t *local);
/* First global index per dimension (I3). */
Status layout_offset(const Layout *l, const int *coord, int64_t *offset);
/* The indices of dimension dim that coord holds, in local order. */
Status layout_runs(const Layout *l, const int *coord, int dim, Arena *arena, Runs *out);
/* The same one by one; *n = how many. */
Status layout_indices(const Layout *l, const int *coord, int dim, Arena *arena, int64_t **index, int64_t *n);
/* Axes that cut dim, in the order in which they do so; returns their number. */
int layout_cuts(const Layout *l, int dim, int *axes);
/* Shards that every rank of the axes holds the same number of elements of. */
bool layout_is_even(const Layout *l);

/* coordinate <-> row-major position in the mesh */
void mesh_coord(const int *axis, int naxes, int64_t position, int *coord);
int64_t mesh_position(const int *axis, int naxes, const int *coord);

/* ---- PyTorch's shard orders ---------------------------------------------------- */

/* Plain shards with turns -> the strided spelling without turns: same layout where all
 * sizes divide evenly.  Placements without turns are copied. */
void order_to_strided(const Placement *p, const int *axis, int n, Placement *out);
/* The way back; false if the factors spell no order. */
bool strided_to_order(const Placement *p, const int *axis, int n, Placement *out);

/* ---- strides ------------------------------------------------------------------- */

/* Dense strides of the local shape, dimensions in the order of the global strides. */
void local_strides(int ndim, const int64_t *local, const int64_t *global_stride, int64_t *out);
/* Global sizes and strides when every rank holds an equal shard of these (from_local). */
void global_from_local(const Layout *of_local, const int64_t *local_stride, int64_t *shape, int64_t *stride);

#endif
