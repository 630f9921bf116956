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

/* Brings a trainer, and the context's random numbers, to where the newest save of a folder was made, on whichever
 * mesh; *step: the last one that is in it; *samples: trained on until then.  Every rank reads what it holds.
 * (collective) */
Status trainer_resume(Trainer *t, const char *folder, int64_t *step, int64_t *samples);

#endif
