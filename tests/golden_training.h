/* golden_training.h -- what the runners of recorded trainings share: recipes as they are recorded, batches, and
 * what was trained by the names of the recordings. */
#ifndef TESS_TESTS_GOLDEN_TRAINING_H
#define TESS_TESTS_GOLDEN_TRAINING_H

#include "base/json.h"
#include "tensor/safetensors.h"
#include "train/trainer.h"

/* Of {"optimizer": "AdamW", "args": {"lr": 0.01}, "clip": .., "accumulate": 2, "dtype": ..}. */
Status golden_recipe(yyjson_val *run, Arena *arena, Recipe *r);

/* Inputs by the names of the program's, the batches in front. */
enum { GOLDEN_INPUTS = 32 };
typedef struct {
  const Exported *e;
  const SafeTensors *file;
  int64_t first; /* batch of the step */
  Scope *scope;
  Value inputs[GOLDEN_INPUTS];
} GoldenBatches;
Status golden_next_batch(void *batches, int i, Batch *out); /* a BatchFn */

/* The whole of what was trained under this name: a parameter or buffer, or (state) `<parameter>/<state>` of the
 * optimizer.  NULL: there is none.  (collective) */
Status golden_trained(const Trainer *t, const char *name, bool state, Scope *scope, Tensor **out);

#endif
