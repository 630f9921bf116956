/* snapshot.h -- tensors as they are now, to be written while somebody goes on changing them.
 *
 *     snapshot_new(tensors, n, &how, &s);               nothing is copied yet, but for what is small
 *     ... a thread: snapshot_take(), write, snapshot_give_back(), piece by piece; then snapshot_close() ...
 *     snapshot_before_write(s, storage);                whoever changes them, before each change
 *
 * Pieces are read where they lie as long as nobody changes them.  A piece that is to be changed before it was
 * written is copied first, by who changes it; its copy goes when it is written.  So a save that is faster than what
 * comes before the first change (of a training step: forward and backward) costs neither memory nor time.
 *
 * I1  What is taken is what the tensors held when the snapshot was made.
 * I2  Copies never take more than `most` bytes: whoever would need more waits until others are written.  Where the
 *     machine has no memory for a copy he waits, too.
 * I3  One thread takes, one changes.  The tensors' storages live as long as the snapshot.
 */
#ifndef TESS_CKPT_SNAPSHOT_H
#define TESS_CKPT_SNAPSHOT_H

#include "tensor/safetensors.h"

typedef struct Snapshot Snapshot;
typedef struct {
  int64_t most; /* bytes of copies; 0: as many as it takes */
  int threads;  /* of who changes: they copy */
} SnapshotHow;

/* The array and the handles are borrowed. */
Status snapshot_new(const Tensor *const *tensor, int n, const SnapshotHow *how, Snapshot **out);
void snapshot_free(Snapshot *s); /* closed, or never taken from; NULL is fine */

/* The piece of tensor i that begins `at` bytes into its elements in row-major order. */
Status snapshot_take(Snapshot *s, int i, uint64_t at, const void **data, size_t *size);
void snapshot_give_back(Snapshot *s, int i, uint64_t at);
/* Nothing more is taken: all has been written, or it has failed. */
void snapshot_close(Snapshot *s);
/* From now on, taking fails: nobody wants it any more. */
void snapshot_give_up(Snapshot *s);

/* Returns when the memory may be written to. */
void snapshot_before_write(Snapshot *s, const Storage *storage);

/* What it has cost so far: bytes of copies that there were at once at most, and seconds that
 * snapshot_before_write() took. */
typedef struct {
  int64_t copied;
  double waited;
} SnapshotCost;
SnapshotCost snapshot_cost(Snapshot *s);

#endif
