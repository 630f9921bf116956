/* schedule.h -- the learning rate as a function of the step, as a factor of what the optimizer was given.
 *
 *     constant            1
 *     linear              from 1 to min
 *     cosine              from 1 to min, along half a wave
 *     wsd                 1, then over the last `decay` steps linearly to min (warmup, stable, decay)
 *     step,every=N,gamma=G   times G after every N steps
 *
 * With warmup=N the factor grows linearly over the first N steps, before all this: the first step has 1/N.
 * min=F: the least factor.  steps=N: the length of the whole, if it is not the run's.
 */
#ifndef TESS_OPTIM_SCHEDULE_H
#define TESS_OPTIM_SCHEDULE_H

#include "base/status.h"

#include <stdint.h>

typedef enum { SCHEDULE_CONSTANT, SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_WSD, SCHEDULE_STEP } ScheduleKind;

typedef struct {
  ScheduleKind kind;
  int64_t warmup, steps, decay, every;
  double min, gamma;
} Schedule;

/* steps: of the run, taken if the text has none of its own. */
Status schedule_parse(const char *text, int64_t steps, Schedule *out);
/* Of step 1, 2, ... */
double schedule_factor(const Schedule *s, int64_t step);

#endif
