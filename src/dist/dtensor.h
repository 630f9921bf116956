/* dtensor.h -- making DTensors, and coming back to plain tensors.
 *
 * A DTensor is a Tensor with a spec: sizes and strides are those of the whole, `local` is
 * this rank's shard.  On a rank outside the mesh the shard is empty, of size [0].
 *
 * Functions marked (collective) must be called by every rank of the mesh, in the same
 * order.  Errors in arguments are found by every rank alike, before anything is sent.
 */
#ifndef TESS_DIST_DTENSOR_H
#define TESS_DIST_DTENSOR_H

#include "dist/dispatch.h"

/* A shard that every rank holds already.  No copy: the DTensor shares local's memory.
 * shape NULL: all shards are as large as this one.  stride NULL: contiguous, or what the
 * local strides imply.
 * run_check (collective): dtypes and sizes of all ranks are compared; without a shape, the
 * true one is found from them, also for uneven shards; replicas are overwritten with
 * those of coordinate 0 of each R axis. */
typedef struct {
  const int64_t *shape, *stride;
  int ndim; /* of shape */
  bool run_check;
  const Placement
      *grad; /* the gradient's shards are of it placed so; NULL: as the DTensor, and whole where that is P */
} FromLocal;
Status dtensor_from_local(Ctx *ctx, Scope *scope, Tensor *local, Mesh *m, const Placement *place,
                          const FromLocal *how, Tensor **out);

/* This rank's shard, in memory that it shares with the DTensor.  grad: shards of the gradient that come back are
 * taken as placed so; NULL: as t is, and whole where that is P. */
Status dtensor_to_local_with(Ctx *ctx, Scope *scope, const Tensor *t, const Placement *grad, Tensor **out);
static inline Status dtensor_to_local(Ctx *ctx, Scope *scope, const Tensor *t, Tensor **out) {
  return dtensor_to_local_with(ctx, scope, t, NULL, out);
}
/* The whole, on every rank of the mesh.  (collective) */
Status dtensor_full_with(Ctx *ctx, Scope *scope, const Tensor *t, const Placement *grad, Tensor **out);
static inline Status dtensor_full(Ctx *ctx, Scope *scope, const Tensor *t, Tensor **out) {
  return dtensor_full_with(ctx, scope, t, NULL, out);
}

/* mesh NULL: its own.  dtype DT_NONE: its own; else values are cast before they are sent.
 * (collective; over the world if the mesh changes) */
Status dtensor_redistribute(Ctx *ctx, Scope *scope, const Tensor *t, Mesh *mesh, const Placement *place,
                            Dtype dtype, Tensor **out);
/* backward DT_NONE: t's own; else gradients are cast to it before they are sent back.  They arrive in t's dtype. */
Status dtensor_redistribute_as(Ctx *ctx, Scope *scope, const Tensor *t, Mesh *mesh, const Placement *place,
                               Dtype forward, Dtype backward, Tensor **out);

/* The same mesh, shape and dtype, placed as `to` says, for a program: its gradient comes back as it is placed then,
 * but for axes along which t is sharded, which it is brought to.  (collective) */
Status dtensor_place(Ctx *ctx, Scope *scope, const Tensor *t, const Spec *to, const char *why, Tensor **out);

/* A plain tensor that all ranks have, spread.  src >= 0: the values are those of the rank
 * with coordinate (src, src ...); the others need only the right sizes.  (collective)
 * src < 0: each rank cuts its part out of its own; nothing is sent.
 * A DTensor is returned as it is if mesh and placements are the same, refused otherwise. */
Status dtensor_distribute(Ctx *ctx, Scope *scope, Tensor *t, Mesh *m, const Placement *place, int src,
                          Tensor **out);
/* The part of it that is this rank's, for ops_dtensor.c. */
Status dtensor_cut(Ctx *ctx, Scope *scope, Tensor *t, const Spec *to, int src, Tensor **out);

/* Of one value in every element. */
Status dtensor_fill(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                    const int64_t *size, double value, Tensor **out);

/* Random numbers, uniform in [0, 1) or normal: those of one rank with the same seed and
 * offset, however they are spread (dtensor_random.c).  Not P. */
Status dtensor_rand(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                    const int64_t *size, Tensor **out);
Status dtensor_randn(Ctx *ctx, Scope *scope, Mesh *m, const Placement *place, Dtype dtype, int ndim,
                     const int64_t *size, Tensor **out);

/* The same elements and specs?  (collective) */
Status dtensor_equal(Ctx *ctx, const Tensor *a, const Tensor *b, bool *out);

/* "DTensor(f32[8,4], Mesh(tp=2), [S(0)], local f32[4,4])" */
const char *dtensor_print(const Tensor *t, char *buf, size_t cap);

#endif
