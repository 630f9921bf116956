/* loop.h -- a training run: step after step with a schedule, evaluations, records of what happened, and saves.
 *
 * I1  Which batches step n takes, and its learning rate, are functions of n: a run that was saved after step n and
 *     resumed goes on to the same bits.
 * I2  A step whose loss or gradients are not finite changes nothing, unless it was asked to go on.
 */
#ifndef TESS_TRAIN_LOOP_H
#define TESS_TRAIN_LOOP_H

#include <signal.h>

#include "train/data.h"
#include "train/saver.h"
#include "train/settings.h"
#include "train/step_log.h"
#include "train/trainer.h"

/* Looks on while steps are made; what it returns ends the run.  On several ranks all have one, or none. */
typedef struct {
  void *arg;
  Status (*begins)(void *arg);                    /* a step, with the learning rates set */
  Status (*takes)(void *arg, const Batch *batch); /* a batch of it, which the trainer gets next */
  Status (*made)(void *arg, int64_t step, const StepResult *result);
} StepWatch;

typedef struct {
  World *world;    /* whose ranks make the run together; NULL: one does.  Ranks other than 0 have no log */
  int64_t steps;   /* the last one */
  int64_t samples; /* of the run before it was resumed */
  Schedule schedule;
  Data *data;
  Data *eval;              /* NULL: no evaluations */
  int64_t eval_every;      /* steps; the last one is always evaluated */
  int64_t eval_batches;    /* 0: all there are */
  StepLog *log;            /* NULL: nobody is told */
  Saver *save;             /* NULL: nothing is saved, on any rank */
  int64_t save_every;      /* steps; 0: at the end alone */
  const char *const *argv; /* kept in saves */
  int argc;
  NonFinite nonfinite;
  bool find_nonfinite; /* tell which node was the first to give something that is not finite; not with
                          NONFINITE_GO, whose steps cannot be made again */

  const StepWatch *watch; /* NULL: nobody */

  /* Is told when the last step is made, before its evaluation; NULL: nobody. */
  Status (*last_step)(void *arg);
  /* Is told what was found where a run goes on after a step that was not finite; NULL: nobody. */
  void (*tell)(void *arg, const char *text);
  void *arg;

  double peak;                       /* FLOP/s of the machine; 0: not known */
  const volatile sig_atomic_t *stop; /* not 0: end after this step; NULL: never */
} LoopOptions;

typedef struct {
  StepRecord *record; /* of every step, in order; malloc'ed */
  int64_t n, cap;
  int64_t samples, tokens;
  double seconds;
  int stopped;  /* what *stop was, on some rank; 0: it was not */
  int64_t slab; /* bytes of memory that a step works in, as far as it is planned */
} LoopResult;
void loop_result_free(LoopResult *r);

/* From step `first` on.  The result is filled also when it fails. */
Status loop_run(Trainer *t, const LoopOptions *o, int64_t first, LoopResult *out);

/* The mean loss of the samples of an epoch, or of its first batches (0: of all). */
Status loop_evaluate(Trainer *t, Data *data, int64_t batches, double *out);

#endif
