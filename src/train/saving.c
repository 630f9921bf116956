/* saving.c -- see saving.h. */
#include "train/saving.h"

#include "ckpt/save.h"

/* What outlives a step, under the names that saves know, and what it is to the trainer. */
typedef struct {
  TrainState *state;
  SafeItem *item;
  int n;
} SavedStates;

/* The items' tensors have sizes; their elements may be from before the training. */
static Status list_states(const Trainer *t, Arena *arena, SavedStates *out) {
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

/* keeps: false where they are gathered for another rank. */
static Status gather(const Trainer *t, SavedStates *saved, bool keeps, Scope *scope) {
  for (int i = 0; i < saved->n; i++) {
    Tensor *whole;
    TRY(trainer_gather(t, &saved->state[i], scope, &whole));
    saved->item[i].tensor = whole;
    if (!keeps) scope_clear(scope);
  }
  return OK;
}

Status trainer_save(Trainer *t, RunFolder *to, const SaveFacts *known, const KeepSaves *keep) {
  unsigned char random[RANDOM_STATE_BYTES];
  Arena arena = {0};
  Scope scope = {0};
  SavedStates saved;
  Ctx *ctx = session_ctx(trainer_session(t));
  SaveFacts facts = *known;
  ctx_random_state(ctx, random);
  facts.seed = ctx->seed;
  facts.random = random;
  facts.random_bytes = sizeof random;
  facts.batches = known->step * trainer_recipe(t)->accumulate;
  facts.program = trainer_program(t)->name;
  Status s = list_states(t, &arena, &saved);
  if (!s) s = gather(t, &saved, to != NULL, &scope);
  if (!s && to) s = run_folder_save(to, &facts, saved.item, saved.n, keep);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

/* Every rank its shards. */
static Status restore_shards(Trainer *t, const Save *s, const SavedStates *saved, int threads, Scope *scope) {
  TRY(save_check_match(s, saved->item, saved->n));
  TRY(save_verify(s, threads));
  for (int i = 0; i < saved->n; i++) {
    Tensor *from;
    TRY(save_tensor(s, saved->item[i].name, scope, &from));
    TRY(trainer_set_state(t, &saved->state[i], from, s->path));
    scope_clear(scope);
  }
  return OK;
}

static Status restore(Trainer *t, const Save *s, Arena *arena, int64_t *step, int64_t *samples) {
  SavedStates saved;
  Scope scope = {0};
  Ctx *ctx = session_ctx(trainer_session(t));
  TRY(list_states(t, arena, &saved));
  if (session_marks(trainer_session(t))) {
    Status status = restore_shards(t, s, &saved, ctx->kern.threads, &scope);
    scope_clear(&scope);
    TRY(status);
  } else {
    for (int i = 0; i < saved.n; i++) saved.item[i].tensor = saved.state[i].tensor;
    TRY(save_restore(s, saved.item, saved.n, ctx->kern.threads));
  }
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
