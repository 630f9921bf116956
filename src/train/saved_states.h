/* saved_states.h -- what of a trainer outlives a step, under the names that saves know: "model.<name>" of
 * parameters and buffers, "optim.<...>" of the rest. */
#ifndef TESS_TRAIN_SAVED_STATES_H
#define TESS_TRAIN_SAVED_STATES_H

#include "ckpt/sharded_save.h"
#include "train/trainer.h"

typedef struct {
  TrainState *state;
  SafeItem *item; /* the tensors have sizes; their elements may be from before the training */
  int n;
} SavedStates;

Status saved_states(const Trainer *t, Arena *arena, SavedStates *out);
/* The same as this rank of a mesh holds them. */
Status saved_shards(const Trainer *t, const SavedStates *saved, Scope *scope, Arena *arena, ShardItem **out);
/* Of the whole tensors. */
uint64_t saved_bytes(const SavedStates *saved);

#endif
