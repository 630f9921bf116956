/* output.h -- what was trained, as files: the weights alone, or the program with them. */
#ifndef TESS_TRAIN_OUTPUT_H
#define TESS_TRAIN_OUTPUT_H

#include "train/trainer.h"

/* Is a file of this name to be a program? (.pt2) */
bool output_is_program(const char *path);
/* On a mesh, path NULL on all ranks but one, which writes.  (collective) */
/* Parameters and buffers by name, as a state_dict has them.  force: replaces a file that is there. */
Status trainer_write_weights(const Trainer *t, const char *path, bool force);
/* e: the program as it was read, which is taken over, also on failure. */
Status trainer_write_program(const Trainer *t, Exported *e, const char *path, bool force);

/* Is it part of a state_dict?  Buffers may be not. */
bool trainer_is_saved(const Trainer *t, const TrainState *state);

#endif
