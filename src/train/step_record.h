/* step_record.h -- what is known of one step of a training, once it is done.  Logs, the terminal and the report
 * are made of these. */
#ifndef TESS_TRAIN_STEP_RECORD_H
#define TESS_TRAIN_STEP_RECORD_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  int64_t step;         /* of the optimizer, from 1 on */
  double loss;          /* always known; may be nan or infinite */
  double grad_norm;     /* before clipping; may be nan or infinite; negative: not known */
  double lr;            /* that the step was made with; always known */
  double seconds;       /* that the step took, an evaluation after it not counted; 0: not known */
  double samples_per_s; /* 0: not known */
  double tokens_per_s;  /* 0: not known, or the data are no tokens */
  double tflops;        /* 10^12 floating-point operations per second; 0: not known */
  double share_of_peak; /* of what the machine can do, from 0 to 1; 0: not known */
  int64_t memory;       /* bytes that the process holds; 0: not known */
  double loss_scale;    /* that the loss was multiplied by for f16; 0: it was not */
  bool skipped;         /* the update was left out, because the gradient was not finite */
  bool has_eval;        /* an evaluation followed the step */
  double eval_loss;     /* has_eval: its loss; may be nan or infinite */
} StepRecord;

#endif
