/* flat_group.h -- tensors that are gathered together and whose gradients are reduced together: where each element
 * of each of them stands in one flat shard per rank, in the gathered buffer and in the reduce buffer.
 *
 * Members are the ranks that gather from each other.  Of every tensor each of them has a shard (`shard`), and works
 * with all that the shards of the members make up (`whole`): the tensor, or with tensor parallelism the part of it
 * that these ranks share.  Pure arithmetic on index runs: any dimension, uneven and empty shards, strided ones.
 *
 *   flat shard    shards one behind the other, each dense and row-major
 *   gathered      wholes one behind the other, each dense and row-major: views of it are the tensors
 *   reduce        the members' parts one behind the other, each like a flat shard: what a reduce-scatter takes
 *
 * I1  Nothing is padded: the flat shards have as many elements as the gathered buffer, together.
 * I2  In every buffer tensors stand by falling item size, those of one size in their own order, so that each begins
 *     at a multiple of its own.
 * I3  Any member can ask about any other: nothing is sent.
 */
#ifndef TESS_DIST_FLAT_GROUP_H
#define TESS_DIST_FLAT_GROUP_H

#include "dist/boxes.h"

/* One tensor: of the same shape on the same mesh, as it is gathered and as it is sharded. */
typedef struct {
  Layout whole, shard;
  const int *coord; /* of the members on that mesh: whole.naxes numbers each, by member */
} FlatParam;

typedef struct {
  int n, members, me;
  const FlatParam *param; /* n; lives as long as the group */
  int64_t *count;         /* elements of tensor p that member m has: [m * n + p] */
  int64_t *numel;         /* of the wholes, by tensor */
} FlatGroup;

/* Fails if the members' shards of a tensor are not its whole, each element once. */
Status flat_group_new(const FlatParam *param, int n, int members, int me, Arena *arena, FlatGroup *out);

/* Elements of each tensor that member m has, n numbers. */
static inline const int64_t *flat_counts(const FlatGroup *g, int m) { return &g->count[(int64_t)m * g->n]; }
/* Sizes of member m's shard of tensor p, or of the whole. */
Status flat_shard_size(const FlatGroup *g, int m, int p, int64_t *size);
Status flat_whole_size(const FlatGroup *g, int p, int64_t *size);

/* Where tensors of these counts and dtypes begin in a buffer, in bytes (I2); returns its size in bytes.
 * in NULL: all of them; others are left out.  at may be NULL. */
int64_t flat_places(const FlatGroup *g, const int64_t *count, const Dtype *dtype, const bool *in, int64_t *at);

/* Which parts of this member's flat shard go where, and which parts of the gathered buffer come from whom: boxes of
 * an exchange of `as` (the tensors' common dtype, or bytes). */
typedef struct {
  BoxList send, recv;
  Dtype as;
} FlatGather;
Status flat_gather(const FlatGroup *g, const Dtype *dtype, Arena *arena, FlatGather *out);

/* The way of gradients into the reduce buffer: box from[i] of tensor param[i], of these strides, is box into[i] of
 * the buffer, both in elements.  counts[m]: elements that member m gets. */
typedef struct {
  BoxList from, into;
  int *param;
  int64_t *counts, total;
} FlatScatter;
Status flat_scatter(const FlatGroup *g, const bool *in, const int64_t (*stride)[MAX_DIMS], Arena *arena,
                    FlatScatter *out);

/* The elements of member m's shard of tensor p: boxes of the whole, of these strides (NULL: dense), and of the
 * dense shard. */
Status flat_part(const FlatGroup *g, int m, int p, const int64_t *stride, Arena *arena, BoxList *of_whole,
                 BoxList *of_shard);

#endif
