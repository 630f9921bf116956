/* find_nonfinite.h -- which node was the first to give something that is not finite. */
#ifndef TESS_TRAIN_FIND_NONFINITE_H
#define TESS_TRAIN_FIND_NONFINITE_H

#include "train/trainer.h"

/* Looks at what the step was given, then makes it again, node by node; the recipe must skip steps that are not
 * finite, so that nothing changes.  Gives an error that names the node, the parameter or the input, or OK if there
 * is none.  Of programs that are interpreted the forward alone is looked at. */
Status find_nonfinite(Trainer *t, BatchFn *batch, void *arg);

#endif
