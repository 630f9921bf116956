/* train_check.h -- `train --check`: every step of a mesh also on one rank, and what differs.
 *
 * Before each step one rank gets the states that the mesh has, so that steps are compared one by one and rounding
 * does not add up.  --check compares the loss, the norm and the gradients; --check=nodes every result of every node
 * before (ranks and reference are then interpreted, node by node).  Every rank of the mesh makes all of it.
 */
#ifndef TESS_CLI_TRAIN_CHECK_H
#define TESS_CLI_TRAIN_CHECK_H

#include "cli/run_check.h"
#include "train/loop.h"

typedef struct {
  Ctx ctx; /* of the one rank */
  bool opened;
  Trainer *alone, *on_mesh;
  TrainState *mine, *theirs; /* of the one rank and of the mesh, the same ones; malloc'ed */
  int nstates;
  bool begun; /* a step was compared */
  StepResult result;
  RunCheck nodes;
  bool by_nodes;
  int64_t steps;
  int gradients;
} TrainCheck;

/* on_mesh: a trainer of p, which keeps gradients.  mode: "" or "nodes". */
Status train_check_open(TrainCheck *c, Prepared *p, Trainer *on_mesh, const char *mode);
StepWatch train_check_watch(TrainCheck *c);
void train_check_tell(const TrainCheck *c, FILE *f);
void train_check_close(TrainCheck *c); /* also of one that was never opened */

#endif
