/* saving.c -- see saving.h. */
#include "train/saving.h"

#include "ckpt/save.h"
#include "train/saved_states.h"

Status trainer_save(Trainer *t, RunFolder *to, const SaveFacts *known, const KeepSaves *keep) {
  Saver *s;
  TRY(saver_open(t, to, &(SaverOptions){.keep = *keep}, &s));
  Status r = saver_save(s, known);
  saver_free(s);
  return r;
}

static Status restore_shards(Trainer *t, const Source *from, const SavedStates *saved, Arena *arena) {
  Mesh *mesh = trainer_mesh(t);
  Scope scope = {0};
  ShardItem *item;
  Comm *c;
  TRY(mesh_group(mesh, (1u << mesh->naxes) - 1, &c));
  Status s = saved_shards(t, saved, &scope, arena, &item);
  if (!s) s = sharded_load(c, from, item, saved->n, session_ctx(trainer_session(t))->kern.threads);
  scope_clear(&scope);
  return s;
}

static Status restore_alone(Trainer *t, const Save *from, const SavedStates *saved) {
  for (int i = 0; i < saved->n; i++) saved->item[i].tensor = saved->state[i].tensor;
  return save_restore(from, saved->item, saved->n, session_ctx(trainer_session(t))->kern.threads);
}

static Status restore(Trainer *t, const Source *from, Arena *arena) {
  const Mesh *mesh = trainer_mesh(t);
  const SaveFacts *facts = &from->save->m.facts;
  Ctx *ctx = session_ctx(trainer_session(t));
  SavedStates saved;
  TRY(saved_states(t, arena, &saved));
  TRY(save_check_match(from->save, saved.item, saved.n));
  if (mesh && mesh->size > 1) TRY(restore_shards(t, from, &saved, arena));
  else TRY(restore_alone(t, from->save, &saved));
  trainer_was_written(t);
  if (facts->random_bytes == RANDOM_STATE_BYTES) ctx_set_random_state(ctx, facts->random);
  return OK;
}

Status trainer_resume(Trainer *t, const char *folder, int64_t *step, int64_t *samples) {
  Arena arena = {0};
  const char *path;
  Source *from = NULL;
  Status s = run_latest(folder, &arena, &path);
  if (!s) s = source_open(path, &from);
  if (!s && !from->save) s = fail(ERR_CKPT, "'%s' is no save of a run", path);
  if (!s) s = restore(t, from, &arena);
  if (!s) {
    *step = from->save->m.facts.step;
    *samples = from->save->m.facts.samples;
  }
  source_close(from);
  arena_free(&arena);
  return s;
}
