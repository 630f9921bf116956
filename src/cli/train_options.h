/* train_options.h -- the options of `tessera train`, and what they ask for. */
#ifndef TESS_CLI_TRAIN_OPTIONS_H
#define TESS_CLI_TRAIN_OPTIONS_H

#include "cli/run_ranks.h"
#include "train/loop.h"
#include "train/spread.h"

typedef struct {
  const char *program;
  TextList data, eval, groups, init_rename;
  const char *tokens, *token_dtype, *optim, *freeze, *schedule, *clip, *dtype, *param_dtype, *state_dtype, *loss;
  const char *init, *save, *resume, *output, *log, *tensorboard, *report, *nonfinite, *memory, *trace, *save_memory;
  const char *mesh, *plan, *data_axis, *data_parallel, *fsdp, *wrap, *rank_rows, *reduce_dtype, *check;
  const char *bucket_mb;
  RankOptions ranks;
  bool unshifted, batched, no_shuffle, drop_last, check_finite, force, quiet, profile, keep_gathered, save_async,
      save_sync, no_overlap, whole_updates;
  int64_t window, batch, steps, epochs, accumulate, eval_every, eval_batches, save_every, keep, keep_every, seed,
      threads, prefetch;
} TrainCommand;

/* The command line; of a run that is resumed, that of its save and then this one.  Checked. */
Status train_options_parse(int argc, char **argv, Arena *arena, TrainCommand *c, bool *help);
/* The command line again, "train" first: what is saved, so that a run can be resumed without saying all of it. */
Status train_options_text(const TrainCommand *c, Arena *arena, const char *const **argv, int *argc);
TrainSettings train_settings(const TrainCommand *c);
SpreadSettings train_spread(const TrainCommand *c);
/* Of --data, or of --eval. */
DataOptions train_data(const TrainCommand *c, bool eval);

#endif
