/* opt_steps.h -- what may stand in a list of passes but makes a new program of the old one:
 *
 *   specialize(s0=2)    sizes become numbers, those of the export unless told
 *   partition(s0=2)     the same for one rank of a mesh: weights are sharded as a plan says
 *   grad                the joint program: gradients behind the outputs, in ops that PyTorch has; symbols stay.
 *                       loss=OUTPUT, parameters=PATTERN (may be repeated), inputs
 *
 *
 * Behind grad may stand what is done with the gradients; then the program is a training step, whose parameters and
 * optimizer state are buffers that it writes:
 *
 *   clip_grad_norm(max=1, norm=2)   clip_grad_value(max=0.5)   adamw(lr=3e-4, betas=0.9:0.95), sgd(...), ...
 *
 * specialize(grad) and partition(grad) make the joint program as it is run. */
#ifndef TESS_CLI_OPT_STEPS_H
#define TESS_CLI_OPT_STEPS_H

#include "dist/mesh.h"
#include "optim/recipe.h"
#include "plan/mark.h"

typedef struct {
  const char *mesh, *plan; /* of partition; plan NULL: auto */
  int rank;
  Exported *program; /* the present one */
  Exported *source;  /* what it was made of; NULL before */
  Dist *dist;        /* what a rank's program borrows from */
  Marks *marks;
  struct Partition *joint; /* what the program of `grad` borrows from */
  Recipe recipe;           /* of the update behind it; ngroups 0: none */
  Recipe clip;             /* what was said of clipping before the optimizer */
  Scope scope;
  Arena arena;
} OptSteps;

/* Is the item of a list one of them: "partition" or "partition(...)"? */
bool opt_is_step(const char *item);
/* Is the list's next item something that is done with gradients? */
bool opt_is_update(const char *list);
/* Notes it, for the `grad` before it. */
Status opt_note_update(OptSteps *s, char *item);
/* Runs it; what is in brackets is taken apart. */
Status opt_step(OptSteps *s, Ctx *ctx, char *item);
void opt_steps_free(OptSteps *s);

#endif
