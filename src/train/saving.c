/* saving.c -- see saving.h. */
#include "train/saving.h"

#include "ckpt/save.h"

/* What outlives a step, under the names that saves know. */
static Status list_items(const Trainer *t, Arena *arena, SafeItem **out, int *n) {
  TrainState *state;
  int count = trainer_states(t, NULL);
  TRY_NEW(state, arena_new_n(arena, TrainState, count + 1));
  TRY_NEW(*out, arena_new_n(arena, SafeItem, count + 1));
  trainer_states(t, state);
  *n = 0;
  for (int i = 0; i < count; i++) {
    if (state[i].is_temporary) continue;
    SafeItem *item = &(*out)[(*n)++];
    item->tensor = state[i].tensor;
    TRY_NEW(item->name, arena_printf(arena, "%s%s", state[i].is_model ? "model." : "", state[i].name));
  }
  return OK;
}

Status trainer_save(Trainer *t, RunFolder *to, const SaveFacts *known, const KeepSaves *keep) {
  unsigned char random[RANDOM_STATE_BYTES];
  Arena arena = {0};
  SafeItem *items;
  int n;
  Ctx *ctx = session_ctx(trainer_session(t));
  SaveFacts facts = *known;
  ctx_random_state(ctx, random);
  facts.seed = ctx->seed;
  facts.random = random;
  facts.random_bytes = sizeof random;
  facts.batches = known->step * trainer_recipe(t)->accumulate;
  facts.program = trainer_program(t)->name;
  Status s = list_items(t, &arena, &items, &n);
  if (!s) s = run_folder_save(to, &facts, items, n, keep);
  arena_free(&arena);
  return s;
}

static Status restore(Trainer *t, const Save *s, Arena *arena, int64_t *step, int64_t *samples) {
  SafeItem *items;
  int n;
  Ctx *ctx = session_ctx(trainer_session(t));
  TRY(list_items(t, arena, &items, &n));
  TRY(save_restore(s, items, n, ctx->kern.threads));
  trainer_was_written(t);
  if (s->m.facts.random_bytes == RANDOM_STATE_BYTES) ctx_set_random_state(ctx, s->m.facts.random);
  *step = s->m.facts.step;
  *samples = s->m.facts.samples;
  return OK;
}

Status trainer_resume(Trainer *t, const char *folder, int64_t *step, int64_t *samples) {
  Arena arena = {0};
  const char *path;
  Save *s = NULL;
  Status status = run_latest(folder, &arena, &path);
  if (!status) status = save_open(path, &s);
  if (!status) status = restore(t, s, &arena, step, samples);
  save_close(s);
  arena_free(&arena);
  return status;
}
