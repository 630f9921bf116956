/* find_nonfinite.h -- which node was the first to give something that is not finite. */
#ifndef TESS_TRAIN_FIND_NONFINITE_H
#define TESS_TRAIN_FIND_NONFINITE_H

#include "train/trainer.h"

/* Makes the step again, node by node; the recipe skips steps that are not finite, so that nothing changes.  Gives
 * an error that names the node, or OK if there is none. */
Status find_nonfinite(Trainer *t, BatchFn *batch, void *arg);

#endif
