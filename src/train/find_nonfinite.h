/* find_nonfinite.h -- steps whose loss or gradients are not finite: what becomes of them, and which node was the
 * first to give such a value. */
#ifndef TESS_TRAIN_FIND_NONFINITE_H
#define TESS_TRAIN_FIND_NONFINITE_H

#include "train/settings.h"
#include "train/trainer.h"

typedef struct {
  NonFinite what;
  bool find;       /* the node, the parameter or the input, too; not with NONFINITE_GO */
  int64_t step;    /* for the message */
  uint64_t offset; /* of the context's random numbers before the step */
  /* Is told what was found where a run goes on; NULL: nobody. */
  void (*tell)(void *arg, const char *text);
  void *arg;
} Judge;
/* An error if the step was not finite, unless it is to be left out or to count, or it was left out because the loss
 * was scaled too much.  batch: the step's. */
Status judge_step(Trainer *t, const Judge *j, const StepResult *r, BatchFn *batch, void *arg);

#endif
