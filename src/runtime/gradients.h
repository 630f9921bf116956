/* gradients.h -- which gradients are asked of a program, and the backward that follows its walk.
 *
 * A program whose gradients are asked for is walked under a tape (grad/tape.h); then the tape is gone through
 * backwards on the same terms: interpreted, the gradients are there; recorded, the backward's calls stand behind
 * the forward's and the program is a *joint* one; on a mesh both are calls on DTensors, placed by the rules.
 *
 * I1  A gradient is placed like the input it belongs to.
 * I2  Parameters that are one tensor (tied) have one gradient, under the first name; a parameter that the loss
 *     does not depend on has none.
 */
#ifndef TESS_RUNTIME_GRADIENTS_H
#define TESS_RUNTIME_GRADIENTS_H

#include "grad/tape.h"
#include "graph/graph.h"
#include "runtime/update.h"

typedef struct {
  int loss;   /* the graph output that is differentiated */
  int *input; /* graph inputs whose gradients are wanted */
  int n;
  const Update *update; /* what the gradients are used for; NULL: they are outputs */
  Phase phase;          /* of the update */
  Dtype reduce_dtype;   /* ReduceGradients.dtype */
  /* Ranks that walk the same program with other rows, and average their gradients; 0: there are none.  They lie
   * along these axes of the mesh, and what is said to be alike on them (rows of a batch and all that is made of
   * them) is not. */
  int replicas;
  unsigned replica_axes;
} GradRequest;

/* What a user may ask for; zeroed: of the loss by all parameters that require a gradient. */
typedef struct {
  const char *loss;       /* an output by its name or number; NULL: the only one that can be a loss */
  const char *parameters; /* patterns with commas between them (`*` any, `?` one character); NULL: all */
  const char *freeze;     /* patterns of parameters that are left out; NULL: none */
  bool inputs;            /* by user inputs that are floats, too */
} GradOptions;

/* Errors say what the program offers. */
Status grad_request(const Exported *e, const GradOptions *o, Arena *arena, GradRequest *out);

/* Outputs that a walk gives behind those of the graph: one per gradient, or those of the update. */
static inline int grad_outputs(const GradRequest *r) { return !r ? 0 : r->update ? r->update->noutputs : r->n; }
/* What output i of the joint program is: those of the forward, then the others. */
OutputSpec grad_output(const Exported *e, const GradRequest *r, int i);

/* Before the walk: inputs[i] become leaves where their gradient is wanted. */
Status gradients_require(Tape *t, const Exported *e, const GradRequest *r, Scope *scope, Value *inputs);
/* After it: gradients[k] of the request's input k; VAL_NONE where the loss does not depend on it. */
Status gradients_find(Tape *t, const GradRequest *r, const Value *inputs, Tensor *loss, Scope *scope, Arena *arena,
                      Value *gradients);

#endif
