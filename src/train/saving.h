/* saving.h -- a trainer into a run folder at once, and back.
 *
 * I1  A trainer that is resumed makes the same steps, to the bit, as the one that was saved; on another mesh, those
 *     of the same samples.
 */
#ifndef TESS_TRAIN_SAVING_H
#define TESS_TRAIN_SAVING_H

#include "train/saver.h"

/* One save, complete when it returns (saver.h): known is step, samples and the command line.  On a mesh, `to` is
 * NULL on all ranks but the first.  (collective) */
Status trainer_save(Trainer *t, RunFolder *to, const SaveFacts *known, const KeepSaves *keep);

typedef struct {
  int64_t step, samples; /* the last step that is in the save; trained on until then */
  const char *note;      /* what of the optimizer's state is left out (ckpt/save.h, SaveMatch); NULL: nothing */
} Resumed;
/* Brings a trainer, and the context's random numbers, to where the newest save of a folder was made, on whichever
 * mesh.  Every rank reads what it holds.  A save of another optimizer gives the model, and the rest begins anew.
 * (collective) */
Status trainer_resume(Trainer *t, const char *folder, Arena *arena, Resumed *out);

#endif
