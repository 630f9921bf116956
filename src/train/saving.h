/* saving.h -- a trainer into a run folder, and back.
 *
 * I1  A trainer that is resumed makes the same steps, to the bit, as the one that was saved.
 */
#ifndef TESS_TRAIN_SAVING_H
#define TESS_TRAIN_SAVING_H

#include "ckpt/run_folder.h"
#include "train/trainer.h"

/* known: step, samples and the command line; the rest is what the trainer is.  keep NULL: all saves stay.  On a
 * mesh, `to` is NULL on all ranks but one, which writes the whole tensors: a save does not depend on the mesh that
 * made it.  (collective) */
Status trainer_save(Trainer *t, RunFolder *to, const SaveFacts *known, const KeepSaves *keep);

/* Brings a trainer, and the context's random numbers, to where the newest save of a folder was made; *step: the
 * last one that is in it; *samples: trained on until then.  On a mesh every rank takes its shards. */
Status trainer_resume(Trainer *t, const char *folder, int64_t *step, int64_t *samples);

#endif
