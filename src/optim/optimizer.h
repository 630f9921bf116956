/* optimizer.h -- optimizers by name, with torch.optim's arguments, and one step of each as calls of ops.
 *
 * A step is written with ops, as gradients are: it runs at once, is recorded into a program, or works on DTensors,
 * as the context says.
 *
 *     OptimSpec adamw;
 *     optim_parse("adamw,lr=3e-4,betas=0.9:0.95,amsgrad", &adamw);
 *
 * To add one: a row in optimizer.c with its settings, its states, and a function that makes the calls.
 */
#ifndef TESS_OPTIM_OPTIMIZER_H
#define TESS_OPTIM_OPTIMIZER_H

#include "ops/op.h"

enum { OPTIM_MAX_STATES = 3, OPTIM_MAX_SETTINGS = 10, OPTIM_MAX_NUMBERS = 3 };

typedef enum { SETTING_NUMBER, SETTING_FLAG, SETTING_WORD } SettingKind;

/* An argument of torch.optim's class. */
typedef struct {
  const char *name;
  SettingKind kind;
  int count; /* numbers, written with colons between them */
  double otherwise[OPTIM_MAX_NUMBERS];
  double least, below; /* least <= number < below */
  const char *words;   /* SETTING_WORD: "original match_rms_adamw"; the number is the word's place */
} Setting;

typedef struct OptimSpec OptimSpec;

/* One parameter's step.  The optimizer replaces param and state by what they become. */
typedef struct {
  Call *c; /* on whose terms the calls are made */
  Tensor *param, *grad;
  Tensor *state[OPTIM_MAX_STATES]; /* NULL: the optimizer keeps no such one */
  Tensor *step, *lr;               /* numbers in 0-d tensors; step counts this one */
  Tensor *scale;                   /* what gradients are multiplied by; NULL: 1 */
  Tensor *skip;                    /* not 0: nothing changes; NULL: never */
} OptimStep;

typedef struct {
  const char *name, *summary;
  Setting settings[OPTIM_MAX_SETTINGS + 1];
  const char *states[OPTIM_MAX_STATES + 1];     /* as torch.optim calls them */
  bool (*keeps)(const OptimSpec *o, int state); /* NULL: all states */
  Status (*step)(const OptimSpec *o, OptimStep *s);
  bool matrices;    /* only of parameters with two dimensions; others are left to AdamW */
  const char *fill; /* the setting that states begin with; NULL: 0 */
} Optimizer;

struct OptimSpec {
  const Optimizer *optimizer;
  double value[OPTIM_MAX_SETTINGS][OPTIM_MAX_NUMBERS];
};

/* "adamw,lr=3e-4": the name and its settings, others as torch.optim has them.  Errors list what there is. */
Status optim_parse(const char *text, OptimSpec *out);
/* More settings for one that is parsed: "lr=1e-3,nesterov". */
Status optim_set(OptimSpec *o, const char *settings);
/* The same settings, as far as it knows them, for another optimizer. */
void optim_convert(const OptimSpec *from, const char *name, OptimSpec *out);

/* Number i of a setting; 0 if the optimizer has none of this name. */
double optim_number(const OptimSpec *o, const char *setting, int i);
static inline bool optim_flag(const OptimSpec *o, const char *setting) { return optim_number(o, setting, 0) != 0; }
/* Does it keep state `i` with these settings? */
bool optim_keeps(const OptimSpec *o, int i);
/* What its states are at the beginning. */
double optim_fill(const OptimSpec *o);

const Optimizer *optimizer_at(int i); /* NULL: no more */

Status muon_step(const OptimSpec *o, OptimStep *s);

#endif
