/* starting_weights.h -- parameters and buffers to begin with, from a checkpoint of any format (ckpt/source.h). */
#ifndef TESS_TRAIN_STARTING_WEIGHTS_H
#define TESS_TRAIN_STARTING_WEIGHTS_H

#include "train/trainer.h"

typedef struct {
  const char *path;          /* a file or folder; of a run the model of its newest save */
  const char *const *rename; /* "FROM=TO" of its names to those of the program (ckpt/derived.h) */
  int renames;
} StartingWeights;

/* Every parameter and buffer of a state_dict must be there, with its size; one of several that are tied is enough.
 * Floats are cast.  Tensors that the program does not have are left alone.  Errors list the first that are missing
 * or do not fit, and leave the trainer as it was; a file that cannot be read may leave it half filled.  Every rank
 * reads what it holds.  (collective) */
Status trainer_load_weights(Trainer *t, const StartingWeights *from);

#endif
