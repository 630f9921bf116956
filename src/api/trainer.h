/* trainer.h -- what the files of the public API know of a trainer. */
#ifndef TESS_API_TRAINER_H
#define TESS_API_TRAINER_H

#include "api/program.h"
#include "ckpt/run_folder.h"
#include "train/data.h"
#include "train/settings.h"
#include "train/trainer.h"

struct TessTrainer {
  TessCtx *ctx;
  Arena arena;
  const char *path; /* of the program */
  Recipe recipe;
  Schedule schedule;
  NonFinite nonfinite;
  bool check_finite;
  double rate;    /* instead of the schedule; negative: none */
  PlanFile *plan; /* NULL: no mesh */
  bool writes;    /* files, for all ranks that train together */
  Trainer *trainer;
  TessProgram program;   /* lent */
  int64_t step, samples; /* so far */
  Data *data;            /* NULL: none */
  RunFolder *folder;     /* the last that was saved to; NULL: none */
  char *folder_path;
  int64_t began;     /* the step that it was opened or resumed at */
  TrainState *state; /* what outlives a step */
  int nstates;
};

#define TRAINER_CTX(t) ((t) ? (t)->ctx : NULL)

#endif
