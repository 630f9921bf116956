/* update.h -- what follows the gradients of a training step: clipping, the optimizers' steps, accumulation.
 *
 * A program that is trained gets more state, as buffers of its own: for each parameter what its optimizer keeps
 * (`optim.state.<parameter>.exp_avg`), the number of the step (`optim.step`), a learning rate per group
 * (`optim.lr.<group>`).  The walk over the program (program_walk.h) calls the update behind the backward on the
 * same terms: interpreted, the new values are there; recorded, they are outputs of the program that are written to
 * parameters and buffers; on a mesh all of them are DTensors that lie as the parameter does.
 *
 * I1  A parameter that the loss does not depend on is left alone, its states too.
 * I2  Of parameters that are one tensor (tied) one is updated; whoever holds the state makes both names one memory.
 */
#ifndef TESS_RUNTIME_UPDATE_H
#define TESS_RUNTIME_UPDATE_H

#include "graph/graph.h"
#include "optim/recipe.h"

/* Which part of a step a walk is.  A step of several micro-batches is FIRST, some of MORE, LAST. */
typedef enum {
  PHASE_STEP,  /* all of it */
  PHASE_LOSS,  /* the forward alone, for evaluation */
  PHASE_FIRST, /* gradients are kept */
  PHASE_MORE,  /* ... and added to those kept */
  PHASE_LAST,  /* ... and the step is made with their mean */
  PHASES
} Phase;

/* Numbers are places among the graph's inputs; -1: there is none. */
typedef struct {
  const OptimSpec *optim;
  int param, group;
  int state[OPTIM_MAX_STATES];
  int sum;  /* of gradients of the micro-batches so far */
  int kept; /* the gradient that the last step was made with */
} UpdateParam;

typedef struct Update {
  Recipe recipe;
  UpdateParam *param; /* one per parameter whose gradient is wanted, in that order */
  int nparams;
  int *arrival; /* parameters in the order in which the backward has their gradients: the one used last, first */
  int step, lr[MAX_GROUPS], loss_scale, growth;
  OutputSpec *output; /* behind the outputs of the graph: what is written to, then the norm of the gradients */
  int noutputs;
} Update;

/* Adds the state to the program and says what a walk gives.  params: graph inputs that are trained.  Once, before
 * anybody shares e. */
Status update_declare(Exported *e, const Recipe *r, const int *params, int n, Arena *arena, Update **out);

/* The loss whose backward gives the gradients that update_walk() wants: scaled, if need be.  tape: the terms on
 * which it is differentiated. */
Status update_loss(const Update *u, Call *tape, const Value *inputs, Tensor *loss, Tensor **out);
/* If steps that are not finite are left out: makes a gradient, the smallest, not finite where the loss is not. */
Status update_spoil(const Update *u, Call *c, const Tensor *loss, Value *gradients);
/* How the walk that calls the update has gradients reduced: of a step's sum over its micro-batches, once. */
typedef struct {
  void *arg;
  Status (*reduce)(void *arg, int k, Tensor *t, Tensor **out); /* of parameter k; out is placed like it */
  Status (*reduced)(void *arg);                                /* all are: what follows belongs to the update */
} UpdateHooks;
/* The calls.  inputs: of the graph; gradients: one per parameter, VAL_NONE: none; placed like the sums of
 * micro-batches, if there are several.  outputs: one per u->output, VAL_NONE where this phase gives none. */
Status update_walk(const Update *u, Phase phase, Call *c, const UpdateHooks *hooks, const Value *inputs,
                   const Value *gradients, Value *outputs);

/* Is this parameter or buffer written by the update? */
bool update_writes(const Update *u, const char *fqn);

/* Of state that is_filled: its elements as they are before the first step. */
void update_fill(Kern *k, const StateEntry *e, Tensor *out);

#endif
