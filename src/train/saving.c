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
  return s && status_code(s) == ERR_CKPT ? save_hint_before(from->path, s) : s;
}

static Status restore_alone(Trainer *t, const Save *from, const SavedStates *saved) {
  for (int i = 0; i < saved->n; i++) saved->item[i].tensor = saved->state[i].tensor;
  return save_restore(from, saved->item, saved->n, session_ctx(trainer_session(t))->kern.threads);
}

/* Leaves those that the save can fill. */
static void keep_matching(SavedStates *saved, const SaveMatch *match) {
  int n = 0;
  for (int i = 0; i < saved->n; i++) {
    if (!match->fits[i]) continue;
    saved->state[n] = saved->state[i];
    saved->item[n++] = saved->item[i];
  }
  saved->n = n;
}

static Status restore(Trainer *t, const Source *from, Arena *arena, const char **note) {
  const Mesh *mesh = trainer_mesh(t);
  const SaveFacts *facts = &from->save->m.facts;
  Ctx *ctx = session_ctx(trainer_session(t));
  SavedStates saved;
  SaveMatch match;
  TRY(saved_states(t, arena, &saved));
  TRY(save_match(from->save, saved.item, saved.n, arena, &match));
  *note = match.note;
  keep_matching(&saved, &match);
  if (mesh && mesh->size > 1) TRY(restore_shards(t, from, &saved, arena));
  else TRY(restore_alone(t, from->save, &saved));
  trainer_was_written(t);
  if (facts->random_bytes == RANDOM_STATE_BYTES) ctx_set_random_state(ctx, facts->random);
  return OK;
}

Status trainer_resume(Trainer *t, const char *folder, Arena *arena, Resumed *out) {
  const char *path;
  Source *from = NULL;
  *out = (Resumed){0};
  Status s = run_latest(folder, arena, &path);
  if (!s) s = source_open(path, &from);
  if (!s && !from->save) s = fail(ERR_CKPT, "'%s' is no save of a run", path);
  if (!s) s = restore(t, from, arena, &out->note);
  if (!s) {
    out->step = from->save->m.facts.step;
    out->samples = from->save->m.facts.samples;
  }
  source_close(from);
  return s;
}
