/* sharded_save.h -- saves of several ranks: each writes what it holds, and one rename makes it a save.
 *
 *     ShardItem items[] = {{"model.wte.weight", dtensor, NULL}, {"optim.state.wte.weight.exp_avg", shard, &lies}};
 *     sharded_save(run, comm, &facts, items, n, &keep);
 *
 *     step-00000100/model-rank00000.safetensors        boxes that rank 0 wrote, under the names of their tensors
 *                   model-rank00000-1.safetensors      second boxes of tensors that it holds in several
 *                   optimizer-rank00000.safetensors
 *                   manifest.json                      what is where (manifest.h, version 2)
 *
 * Files carry DCP_SHARDING_INFO, so that PyTorch's HuggingFaceStorageReader loads the folder, too.
 *
 * I1  Collective over the group, whose ranks see the same file system.  Every rank names the tensors of which it
 *     holds something, in any order; all agree about dtype and size of a tensor.
 * I2  A box that several ranks hold is written once, by the one that has written the fewest bytes so far.  Together
 *     the boxes cover every tensor, or nothing is saved.
 * I3  The outcome is the same on all ranks.  OK: the save is on the disk and has its name.  An error: nothing of it
 *     is left, and what was there is untouched.
 * I4  Only names, boxes and hashes go from rank to rank; tensors go from their memory to the file in one pass.
 */
#ifndef TESS_CKPT_SHARDED_SAVE_H
#define TESS_CKPT_SHARDED_SAVE_H

#include "ckpt/run_folder.h"
#include "ckpt/source.h"

/* A tensor as this rank holds it. */
typedef struct {
  const char *name;     /* "model.wte.weight" */
  const Tensor *tensor; /* a DTensor, or a plain tensor */
  const ShardOf *shard; /* the plain tensor is this shard of a larger one; NULL: it is the whole, on every rank */
} ShardItem;

/* How an item lies, whichever way it was told. */
typedef struct {
  ShardOf of;
  const Tensor *local; /* NULL: this rank holds nothing of it */
} ItemShard;
Status item_shard(const ShardItem *item, ItemShard *out);

/* run is rank 0's of the group, NULL on others.  facts are rank 0's, with the mesh.  keep may be NULL. */
Status sharded_save(RunFolder *run, Comm *c, const SaveFacts *facts, const ShardItem *items, int n,
                    const KeepSaves *keep);

/* The same into a folder that is no part of a run; it is told by rank 0.  force: replaces what is there. */
Status sharded_save_folder(const char *path, bool force, Comm *c, const SaveFacts *facts, const ShardItem *items,
                           int n);

/* The same in pieces, so that training goes on while files are written.  The parts are called in this order;
 * begin, join and end are collective and have the same outcome on all ranks, after an error the save is freed.
 * write and commit are this rank's own work, on any thread, whose outcome join and end tell. */
typedef struct ShardedSave ShardedSave;
Status sharded_save_begin(RunFolder *run, Comm *c, const SaveFacts *facts, const ShardItem *items, int n,
                          ShardedSave **out);
/* Takes the data of the items, which are those of begin in the same order (at begin, no data is needed): of what
 * they are now (how), or of what they are while they are written (NULL).  The snapshot is the save's. */
Snapshot *sharded_save_hold(ShardedSave *s, const ShardItem *items, const SnapshotHow *how);
void sharded_save_write(ShardedSave *s);
Status sharded_save_join(ShardedSave *s);
/* Rank 0 gives the save its name, and removes old ones. */
void sharded_save_commit(ShardedSave *s, const KeepSaves *keep);
Status sharded_save_end(ShardedSave *s);
/* What has no name is removed.  NULL is fine. */
void sharded_save_free(ShardedSave *s);
/* Bytes that this rank writes. */
int64_t sharded_save_bytes(const ShardedSave *s);

/* ---- loading ---------------------------------------------------------------------------------------------- */

/* Fills one tensor, or this rank's shard of it, from a checkpoint of any format, mesh and dtype.  Not collective.
 */
Status source_fill(const Source *s, const ShardItem *item, int threads);
/* Fills all on all ranks (c NULL: on one).  Collective: hashes are verified first, each rank a part of the bytes,
 * and the outcome is the same on all ranks; with an error, tensors may have been written to.  threads: of this
 * rank. */
Status sharded_load(Comm *c, const Source *s, const ShardItem *items, int n, int threads);

#endif
