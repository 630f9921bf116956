/* settings.h -- what a user says of a training, in the words of the command line and of the libraries, and what it
 * means. */
#ifndef TESS_TRAIN_SETTINGS_H
#define TESS_TRAIN_SETTINGS_H

#include "optim/recipe.h"
#include "optim/schedule.h"

/* What becomes of a step whose loss or gradients are not finite. */
typedef enum {
  NONFINITE_STOP,
  NONFINITE_SKIP, /* the step is left out */
  NONFINITE_GO    /* parameters become what they become */
} NonFinite;

/* NULL and 0: not told.  Everything is borrowed. */
typedef struct {
  const char *optim;         /* "adamw,lr=3e-4"; not told: adamw */
  const char *const *groups; /* "no_decay=*.bias,*norm*:weight_decay=0" */
  int ngroups;
  const char *freeze;    /* patterns of names */
  const char *clip;      /* "1.0", "0.05,norm=inf", "value=0.5" */
  const char *schedule;  /* "cosine,warmup=100" */
  const char *nonfinite; /* "stop" (not told), "skip", "go" */
  const char *dtype, *param_dtype, *state_dtype;
  int64_t accumulate;
} TrainSettings;

/* Texts are copied into the arena.  Errors name the setting. */
Status settings_recipe(const TrainSettings *s, Arena *arena, Recipe *out);
Status settings_nonfinite(const TrainSettings *s, NonFinite *out);
/* steps: of the run; 0: not known, which some schedules cannot do with. */
Status settings_schedule(const TrainSettings *s, int64_t steps, Schedule *out);

#endif
