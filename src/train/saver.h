/* saver.h -- the saves of a training run: one after the other, while it goes on.
 *
 *     saver_open(trainer, run, &options, &s);
 *     saver_save(s, &facts);                 after a step; returns when the state is held, not when it is written
 *     if (saver_is_idle(s) on all ranks) saver_advance(s);    now and then
 *     saver_wait(s);                         in the end
 *     saver_free(s);
 *
 * On one rank a save has whole tensors; on a mesh every rank writes its shards (ckpt/sharded_save.h).  A thread of
 * each rank writes; what it has not written when the next update comes is copied first (ckpt/snapshot.h).
 *
 * I1  A save has the bits of the moment of saver_save(), whatever is done to the trainer afterwards.
 * I2  One at a time: saver_save() waits for the one before.
 * I3  Errors are the same on all ranks.  After an error nothing is under way.
 * I4  Functions marked (collective) are called by all ranks of the mesh, in the same order.
 */
#ifndef TESS_TRAIN_SAVER_H
#define TESS_TRAIN_SAVER_H

#include "ckpt/run_folder.h"
#include "train/trainer.h"

typedef struct {
  KeepSaves keep;
  bool beside;  /* a thread writes while training goes on; false: saver_save() returns when it is saved */
  int64_t most; /* bytes of copies at a time (SnapshotHow.most); 0: as many as it takes */
} SaverOptions;

typedef struct Saver Saver;
/* run: of the first rank of the mesh, NULL on the others. */
Status saver_open(Trainer *t, RunFolder *run, const SaverOptions *o, Saver **out);
/* A save that is not complete is given up. */
void saver_free(Saver *s); /* NULL is fine */

/* known: step, samples and the command line, which are borrowed until the save is complete; the rest is what the
 * trainer is.  (collective) */
Status saver_save(Saver *s, const SaveFacts *known);
/* Is a save under way?  The same on all ranks. */
bool saver_is_saving(const Saver *s);
/* Does this rank's thread have nothing to do? */
bool saver_is_idle(const Saver *s);
/* The next part of the save, after waiting for this rank's thread.  (collective) */
Status saver_advance(Saver *s);
/* Until nothing is under way.  (collective) */
Status saver_wait(Saver *s);

/* Of this rank, all saves so far: seconds of steps that were held up by them, in saver_save() and later; bytes of
 * copies at most. */
typedef struct {
  double waited;
  int64_t copied;
} SaverCost;
SaverCost saver_cost(const Saver *s);

#endif
