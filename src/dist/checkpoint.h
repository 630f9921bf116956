/* checkpoint.h -- which boxes of a tensor a rank writes to a checkpoint, and which parts of
 * saved boxes another layout needs.
 *
 * I1  A chunk is a box of the global tensor.  The chunks of a shard are disjoint and in
 *     local order; a shard that is contiguous globally is one, a strided one several.
 * I2  An empty shard is one empty chunk whose offset is the global size along the
 *     dimensions that are cut away (layout.h, I3): no two different chunks of a tensor
 *     begin at the same place.
 * I3  Partial tensors cannot be saved: P is refused.
 * I4  Everything is a function of layouts: any rank can ask about any other.
 */
#ifndef TESS_DIST_CHECKPOINT_H
#define TESS_DIST_CHECKPOINT_H

#include "dist/spec.h"

typedef struct {
  int ndim;
  int64_t offset[MAX_DIMS], size[MAX_DIMS];
  int64_t local[MAX_DIMS]; /* where it begins in its shard */
} Chunk;

typedef struct {
  Chunk *v;
  int n, cap;
} ChunkList;

/* The chunks of the rank at coord. */
Status chunks_of(const Layout *l, const int *coord, Arena *arena, ChunkList *out);
/* Of this rank; none outside the mesh. */
Status dtensor_chunks(const Tensor *t, Arena *arena, ChunkList *out);
/* The part of this rank's shard that is the chunk beginning at offset: a view. */
Status dtensor_chunk(Scope *scope, const Tensor *t, const int64_t *offset, Tensor **out);

/* ---- saving ------------------------------------------------------------------------------- */

typedef enum { ITEM_SHARD, ITEM_TENSOR, ITEM_BYTES } ItemKind;

typedef struct {
  const char *fqn; /* borrowed */
  ItemKind kind;
  Dtype dtype;
  int64_t size[MAX_DIMS]; /* of the whole; chunk.ndim of them */
  Chunk chunk;            /* of bytes: no meaning */
} WriteItem;

/* What one rank writes, in order. */
typedef struct {
  WriteItem *v;
  int n, cap;
} SavePlan;

/* Adds the items of a rank at coord, of a tensor as this rank holds it (plain: all of it),
 * of something that is no tensor. */
Status save_plan_add_layout(SavePlan *plan, Arena *arena, const char *fqn, Dtype dtype, const Layout *l,
                            const int *coord);
Status save_plan_add(SavePlan *plan, Arena *arena, const char *fqn, const Tensor *t);
Status save_plan_add_bytes(SavePlan *plan, Arena *arena, const char *fqn);

/* Who keeps what several ranks have. */
typedef enum {
  SAVE_BALANCED,       /* the rank that writes the fewest bytes so far */
  SAVE_BALANCED_WHOLE, /* the same, but every chunk counts as its whole tensor: PyTorch's choice */
  SAVE_LOWEST_RANK,
} SaveTo;

/* Leaves every item (by name and offset) in one plan.  plan[i] is that of rank i.  Fails if
 * ranks disagree about size or dtype of a tensor. */
Status save_plans_dedup(SavePlan *plan, int nplans, SaveTo to);

/* A tensor in a checkpoint: its chunks in file order. */
typedef struct {
  const char *fqn;
  ItemKind kind;
  Dtype dtype;
  int ndim;
  int64_t size[MAX_DIMS];
  ChunkList chunk;
} SavedTensor;

typedef struct {
  SavedTensor *v;
  int n, cap;
} SavedList;

/* What the plans, deduplicated, write together.  Fails on a tensor whose chunks are not
 * within it or do not have as many elements as it. */
Status saved_list(const SavePlan *plan, int nplans, Arena *arena, SavedList *out);

/* ---- loading ------------------------------------------------------------------------------- */

typedef struct {
  int chunk;              /* of the saved ones */
  int64_t from[MAX_DIMS]; /* where it begins in that chunk */
  int64_t into[MAX_DIMS]; /* ... and in the shard */
  int64_t size[MAX_DIMS];
} ReadItem;

typedef struct {
  ReadItem *v;
  int n, cap;
} ReadPlan;

/* The copies that fill a shard of the wanted chunks.  Fails if the saved ones do not have
 * every element of it. */
Status read_plan(const char *fqn, const ChunkList *saved, const ChunkList *wanted, Arena *arena, ReadPlan *out);

#endif
