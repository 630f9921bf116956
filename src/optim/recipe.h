/* recipe.h -- how a program is to be trained: which optimizer for which parameters, what is done to gradients
 * before.  Made of the texts that users write. */
#ifndef TESS_OPTIM_RECIPE_H
#define TESS_OPTIM_RECIPE_H

#include "optim/optimizer.h"

enum { MAX_GROUPS = 32 };

/* Parameters that share their settings. */
typedef struct {
  const char *name;     /* "all" of those that no other group takes */
  const char *patterns; /* of parameters' names, with commas between them; NULL: all */
  OptimSpec optim;
} OptimGroup;

typedef struct {
  OptimGroup group[MAX_GROUPS]; /* a parameter belongs to the first that matches; the last takes all */
  int ngroups;
  const char *freeze;  /* patterns of parameters that stay as they are; NULL: none */
  double clip_norm;    /* gradients are scaled so that their norm is at most this; 0: they are not */
  double norm_type;    /* of that norm, and of the one that is told: 2, 1, inf, p */
  double clip_value;   /* gradients' elements are brought to at most this; 0: they are not */
  int accumulate;      /* micro-batches whose mean gradient makes one step */
  bool skip_nonfinite; /* a step whose gradients are not finite changes nothing */
  bool keep_gradients; /* what a step was made with stays to be looked at: as optim.grad.<parameter> */
  bool scale_loss;     /* the loss is scaled up before the backward, as 16-bit floats need it; see update.h */
  Dtype compute;       /* of products, as PyTorch's autocast has it; DT_NONE: as the program says */
  Dtype param_dtype;   /* of parameters, buffers and inputs, as Module.to() has it; DT_NONE: as the program says */
  Dtype state_dtype;   /* of the optimizer's states; DT_NONE: the parameter's */
  Arena *arena;        /* of the texts */
} Recipe;

/* One group of all parameters, no clipping, every batch a step. */
Status recipe_init(Recipe *r, Arena *arena, const char *optim);
/* "no_decay=*.bias,*norm*:weight_decay=0": the settings are those of recipe_init() but for what is told here;
 * "optim=NAME" takes another optimizer. */
Status recipe_add_group(Recipe *r, const char *text);
/* "1.0", "0.05,norm=inf", "value=0.5". */
Status recipe_clip(Recipe *r, const char *text);

/* The group of a parameter. */
int recipe_group(const Recipe *r, const char *fqn);
/* Does one of the patterns match the name? */
bool patterns_match(const char *patterns, const char *name);

#endif
