/* saved_states.c -- see saved_states.h. */
#include "train/saved_states.h"

Status saved_states(const Trainer *t, Arena *arena, SavedStates *out) {
  int count = trainer_states(t, NULL), n = 0;
  TRY_NEW(out->state, arena_new_n(arena, TrainState, count + 1));
  TRY_NEW(out->item, arena_new_n(arena, SafeItem, count + 1));
  trainer_states(t, out->state);
  for (int i = 0; i < count; i++) {
    const TrainState *state = &out->state[i];
    if (state->is_temporary) continue;
    out->state[n] = *state;
    out->item[n].tensor = state->whole;
    TRY_NEW(out->item[n].name, arena_printf(arena, "%s%s", state->is_model ? "model." : "", state->name));
    n++;
  }
  out->n = n;
  return OK;
}

Status saved_shards(const Trainer *t, const SavedStates *saved, Scope *scope, Arena *arena, ShardItem **out) {
  TRY_NEW(*out, arena_new_n(arena, ShardItem, saved->n + 1));
  for (int i = 0; i < saved->n; i++) {
    Tensor *tensor;
    TRY(trainer_state_tensor(t, &saved->state[i], scope, &tensor));
    (*out)[i] = (ShardItem){saved->item[i].name, tensor, NULL};
  }
  return OK;
}

uint64_t saved_bytes(const SavedStates *saved) {
  uint64_t bytes = 0;
  for (int i = 0; i < saved->n; i++) {
    const Tensor *whole = saved->state[i].whole;
    bytes += (uint64_t)tensor_numel(whole) * dtype_size(whole->dtype);
  }
  return bytes;
}
