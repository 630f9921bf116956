/* api_trainer_state.c -- public functions: what a trainer holds, saved, restored and written. */
#include <stdlib.h>
#include <string.h>

#include "api/trainer.h"
#include "base/near.h"
#include "pt2/read.h"
#include "train/output.h"
#include "train/saving.h"
#include "train/starting_weights.h"

/* ---- by name ---------------------------------------------------------------------------------------- */

static const TrainState *find(const TessTrainer *t, const char *name) {
  for (int i = 0; i < t->nstates; i++)
    if (!strcmp(t->state[i].name, name)) return &t->state[i];
  return NULL;
}

static Status find_or_fail(const TessTrainer *t, const char *name, const TrainState **out) {
  const char *near = NULL;
  *out = find(t, name);
  if (*out) return OK;
  for (int i = 0; i < t->nstates; i++) near = nearer_name(name, near, t->state[i].name);
  Status s = fail(ERR_USAGE, "the trainer of %s has no '%s'", t->path, name);
  return near ? status_hint(s, "did you mean '%s'?", near) : s;
}

int tess_trainer_state_count(const TessTrainer *t) { return t ? t->nstates : 0; }
const char *tess_trainer_state_name(const TessTrainer *t, int i) {
  return t && i >= 0 && i < t->nstates ? t->state[i].name : NULL;
}

int tess_trainer_state_kind(const TessTrainer *t, const char *name) {
  const TrainState *s = t && name ? find(t, name) : NULL;
  if (!s) return -1;
  return !s->is_model ? 3 : s->is_parameter ? 0 : trainer_is_saved(t->trainer, s) ? 1 : 2;
}

/* Its memory where this rank has all of it, else what the ranks have of it together. */
static Status whole_state(TessTrainer *t, const TrainState *s, Tensor **out) {
  Scope *scope = api_scope(t->ctx);
  TRY(trainer_gather(t->trainer, s, scope, out));
  return *out == s->tensor ? tensor_handle(scope, s->tensor, out) : OK;
}

TessTensor *tess_trainer_state(TessTrainer *t, const char *name) {
  const TrainState *s;
  Tensor *out = NULL;
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the name", name)) || api_stick(t->ctx, find_or_fail(t, name, &s)) ||
      api_stick(t->ctx, whole_state(t, s, &out)))
    return NULL;
  return out;
}

static Status set_state(TessTrainer *t, const char *name, const TessTensor *from) {
  const TrainState *s;
  TRY(find_or_fail(t, name, &s));
  if (from->spec) return status_hint(fail(ERR_USAGE, "'%s' is given as a DTensor", name), "give its full tensor");
  return trainer_set_state(t->trainer, s, from, "a state that is set");
}

int tess_trainer_set_state(TessTrainer *t, const char *name, const TessTensor *from) {
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the name", name), GIVEN("the tensor", from))) return -1;
  return api_stick(t->ctx, set_state(t, name, from)) ? -1 : 0;
}

int tess_trainer_load(TessTrainer *t, const char *path) {
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the path", path))) return -1;
  return api_stick(t->ctx, trainer_load_weights(t->trainer, &(StartingWeights){.path = path})) ? -1 : 0;
}

/* ---- files ------------------------------------------------------------------------------------------ */

static Status open_folder(TessTrainer *t, const char *path) {
  char *copy;
  if (t->folder_path && !strcmp(t->folder_path, path)) return OK;
  run_folder_close(t->folder);
  free(t->folder_path);
  t->folder = NULL;
  t->folder_path = NULL;
  TRY_NEW(copy, strdup(path));
  Status s = run_folder_open(path, &t->folder);
  if (!s) s = run_folder_check_start(t->folder, t->began);
  if (!s) {
    t->folder_path = copy;
    return OK;
  }
  free(copy);
  run_folder_close(t->folder);
  t->folder = NULL;
  return s;
}

static Status save(TessTrainer *t, const char *path, int keep) {
  if (t->writes) TRY(open_folder(t, path));
  const SaveFacts facts = {.step = t->step, .samples = t->samples};
  return trainer_save(t->trainer, t->folder, &facts, &(KeepSaves){.last = keep});
}

int tess_trainer_save(TessTrainer *t, const char *folder, int keep) {
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the folder", folder), LISTED("saves to keep", t, keep))) return -1;
  return api_stick(t->ctx, save(t, folder, keep)) ? -1 : 0;
}

int tess_trainer_resume(TessTrainer *t, const char *folder) {
  Arena arena = {0};
  Resumed r;
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the folder", folder))) return -1;
  Status s = trainer_resume(t->trainer, folder, &arena, &r);
  bool left_out = r.note != NULL;
  arena_free(&arena);
  if (api_stick(t->ctx, s)) return -1;
  t->samples = r.samples;
  t->step = t->began = r.step;
  return left_out;
}

static Status write_trained(const TessTrainer *t, const char *path) {
  const char *to = t->writes ? path : NULL;
  Exported *e;
  if (!output_is_program(path)) return trainer_write_weights(t->trainer, to, true);
  TRY(pt2_read(t->path, &e));
  return trainer_write_program(t->trainer, e, to, true);
}

int tess_trainer_write(TessTrainer *t, const char *path) {
  if (!API_BEGIN(TRAINER_CTX(t), GIVEN("the path", path))) return -1;
  return api_stick(t->ctx, write_trained(t, path)) ? -1 : 0;
}
