/* dp_mesh.h -- which ranks share a model's parameters, and how a parameter lies on them.
 *
 *   FSDP   one axis: every parameter is cut into one shard per rank
 *   HSDP   two axes: [replicate, shard]; ranks of the first hold the same shards
 *   DDP    one axis of replicas: nothing is cut, gradients are all-reduced
 *
 * I1  Data-parallel axes cut last: a rank's shard is a chunk of what tensor parallelism leaves it, of any size.
 */
#ifndef TESS_FSDP_DP_MESH_H
#define TESS_FSDP_DP_MESH_H

#include "dist/spec.h"

typedef enum { DP_FSDP, DP_HSDP, DP_DDP } DpKind;

typedef struct {
  DpKind kind;
  Mesh *mesh;                              /* [shard], [replicate, shard] or [replicate] */
  int shard, replicate;                    /* its axes; -1: none */
  Mesh *larger;                            /* what it is a part of, if axes were named; NULL: not */
  unsigned larger_shard, larger_replicate; /* the axes there, as sets */
} DpMesh;

/* shard, replicate: names of axes of a larger mesh, with commas between them; several become one.  Both NULL: m is
 * of one axis (FSDP, or DDP if `ddp`) or of two (HSDP). */
Status dp_mesh_new(Mesh *m, const char *shard, const char *replicate, bool ddp, DpMesh *out);
int dp_shard_size(const DpMesh *d);     /* 1: nothing is cut */
int dp_replicate_size(const DpMesh *d); /* 1: there are no replicas */

/* Where a parameter lives: the mesh of its DTensors, how it is placed there when it is gathered, and the axis that
 * cuts it (-1: none). */
typedef struct {
  Mesh *mesh;
  Placement whole[MAX_AXES];
  int shard;
} DpPlace;
/* given: the spec of a parameter that is a DTensor already, on a mesh beside d's or on the larger one; NULL: plain.
 */
Status dp_place(const DpMesh *d, const Spec *given, DpPlace *out);

/* The placements of a tensor that is cut along `dim` by `axis`, after all other axes (I1).  Spelled as PyTorch's
 * strided shards where these say the same for every rank, else with turns. */
Status dp_cut(const Mesh *m, const Placement *whole, int ndim, const int64_t *shape, int axis, int dim,
              Placement *out);
/* The same mesh with an axis of n ranks as two, n/k and k. */
Status dp_split_axis(Mesh *m, int axis, int k, Mesh **out);

/* What is kept between forward and backward. */
typedef enum {
  RESHARD_DEFAULT, /* as ALWAYS; the root as NEVER */
  RESHARD_ALWAYS,
  RESHARD_NEVER,
  RESHARD_TO, /* shards of groups of `ranks` */
} Reshard;
/* RESHARD_TO of a group of one is NEVER, of all ALWAYS.  Fails if ranks do not divide the shard group. */
Status dp_reshard(const DpMesh *d, Reshard how, int ranks, Reshard *out);

/* ---- how gradients are reduced ------------------------------------------------------------------------- */

/* Gradients are multiplied by `before`, reduced by `scatter` over the shard group and `all` over the replicas, and
 * divided by `after`; 1: nothing to do. */
typedef struct {
  double before, after;
  ReduceOp scatter, all;
  bool premultiplied; /* `before` is PyTorch's PREMUL_SUM, not a division of the buffer */
} DpReduction;
/* shard, replicate: sizes of the groups, 0: there is none.  factor 0: the number of ranks. */
DpReduction dp_reduction(int shard, int replicate, Dtype dtype, double factor, bool force_sum);

/* What parameters of this dtype are gathered as and their gradients reduced as; DT_NONE: as they are. */
void dp_dtypes(Dtype original, Dtype *param, Dtype *reduce);

#endif
