/* stepper.h -- an optimizer that holds the parameters it steps: what torch.optim's classes are.
 *
 * The rows are those of optimizer.h.  Parameters and states are plain tensors or DTensors; a state lies as its
 * parameter does, and a gradient is brought there before it is used.
 *
 * I1  A parameter is written to in place, so that every handle of it sees the step; states are replaced.
 * I2  A parameter without a gradient is left alone, its states and its count of steps too.
 */
#ifndef TESS_OPTIM_STEPPER_H
#define TESS_OPTIM_STEPPER_H

#include "grad/tape.h"
#include "optim/optimizer.h"

typedef struct {
  Tensor *param;                   /* held */
  Tensor *state[OPTIM_MAX_STATES]; /* held; NULL: not kept, or there was no step yet */
  int64_t steps;                   /* that were made */
  int group;
} Stepped;

typedef struct {
  OptimSpec *group;
  int ngroups, group_cap;
  Stepped *param;
  int nparams, param_cap;
} Stepper;

/* Takes n more parameters, with these settings; none of them, if one is refused. */
Status stepper_add(Stepper *s, const OptimSpec *optim, Tensor *const *params, int n);
void stepper_free(Stepper *s);

/* What parameter i is stepped with: its group's optimizer, or AdamW for what that one leaves to it. */
void stepper_optim(const Stepper *s, int i, OptimSpec *out);
/* The number of that state of the parameter's optimizer; -1: it keeps none of this name. */
int stepper_state_at(const Stepper *s, int i, const char *name);
/* In place of the state that is there; of the parameter's sizes, a DTensor if that is one. */
Status stepper_set_state(Tape *t, Stepper *s, int i, int state, Tensor *from);

/* One step of every parameter that has a gradient.  (collective, if there are DTensors) */
Status stepper_step(Tape *t, Stepper *s);

#endif
