/* Whoever reads a trainer's state beside its steps is told of every write before it happens: compiled and
 * interpreted steps, evaluations, learning rates, and on ranks that update a part of a parameter each. */
#include "dist/dispatch.h"
#include "dist/dist.h"
#include "plan/plan_file.h"
#include "pt2/read.h"
#include "runtime/ranks.h"
#include "train/data.h"
#include "train/settings.h"
#include "train/trainer.h"
#include "unit.h"

enum { MOST = 200 };

typedef struct {
  TrainState state[MOST];
  void *before[MOST]; /* bytes of the state's storage */
  bool told[MOST];
  int n, early; /* early: told of when it was written already */
} Watched;

static void note(void *arg, const Storage *s) {
  Watched *w = arg;
  for (int i = 0; i < w->n; i++) {
    if (w->state[i].tensor->storage != s || w->told[i]) continue;
    w->told[i] = true;
    w->early += memcmp(w->before[i], s->data, s->size) != 0;
  }
}

static Status begin(Watched *w, const Trainer *t) {
  *w = (Watched){.n = trainer_states(t, NULL)};
  if (w->n > MOST) return fail(ERR_FAIL, "%d states", w->n);
  trainer_states(t, w->state);
  for (int i = 0; i < w->n; i++) {
    const Storage *s = w->state[i].tensor->storage;
    TRY_NEW(w->before[i], malloc(s->size + 1));
    memcpy(w->before[i], s->data, s->size);
  }
  return OK;
}

/* At least so many have changed. */
static Status end(Watched *w, int least) {
  int changed = 0;
  const char *missed = NULL;
  for (int i = 0; i < w->n; i++) {
    const Storage *s = w->state[i].tensor->storage;
    bool now = memcmp(w->before[i], s->data, s->size) != 0;
    if (now && !w->told[i]) missed = w->state[i].name;
    changed += now;
    free(w->before[i]);
  }
  if (missed) return fail(ERR_FAIL, "'%s' was written to without a word", missed);
  if (w->early) return fail(ERR_FAIL, "%d states were written to before it was told", w->early);
  return changed < least ? fail(ERR_FAIL, "%d states have changed", changed) : OK;
}

static Status next_batch(void *arg, int i, Batch *out) { return data_batch(arg, i, &out->inputs, &out->n); }

typedef struct {
  const char *model, *mesh; /* NULL: one rank */
  bool interpreted;
  Prepared *step;
} Case;

static Status watch_step(Trainer *t, Data *data, double rate, Watched *w) {
  StepResult result;
  Batch batch;
  double loss;
  TRY(begin(w, t));
  trainer_set_rate(t, rate);
  TRY(trainer_step(t, next_batch, data, &result));
  TRY(end(w, 5));
  TRY(begin(w, t));
  TRY(next_batch(data, 0, &batch));
  TRY(trainer_loss(t, &batch, &loss));
  return end(w, 0);
}

static Status watch_trainer(const Case *c, Trainer *t) {
  char batches[300];
  const char *files[] = {batches};
  Data *data;
  Watched w;
  Status s = OK;
  snprintf(batches, sizeof batches, "%s/train/%s/batches.safetensors", GOLDEN_FOLDER, c->model);
  TRY(data_open(trainer_program(t), &(DataOptions){.files = files, .nfiles = 1, .batched = true}, &data));
  session_interpret(trainer_session(t), c->interpreted);
  const WriteGuard guard = {note, &w};
  session_guard_state(trainer_session(t), &guard);
  for (int i = 0; i < 3 && !s; i++) s = watch_step(t, data, 1 - 0.25 * i, &w);
  data_free(data);
  return s;
}

static Status watch_rank(Ctx *ctx, World *w, void *arg) {
  const Case *c = arg;
  Dist *dist;
  Mesh *mesh;
  Trainer *t = NULL;
  TRY(dist_new(w, &dist));
  ctx_attach_dist(ctx, dist);
  Status s = mesh_parse(dist, c->mesh, &mesh);
  if (!s) s = trainer_open_on(ctx, c->step, mesh, &t);
  if (!s) s = watch_trainer(c, t);
  trainer_free(t);
  ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static Status watch_alone(const Case *c, Ctx *ctx) {
  Trainer *t;
  TRY(trainer_open_on(ctx, c->step, NULL, &t));
  Status s = watch_trainer(c, t);
  trainer_free(t);
  return s;
}

static void watch_steps(Case c, const TrainSettings *settings, int ranks) {
  char program[300];
  Arena arena = {0};
  Recipe recipe;
  PlanFile *plan;
  Exported *e;
  Ctx ctx;
  snprintf(program, sizeof program, "%s/train/%s/forward.pt2", GOLDEN_FOLDER, c.model);
  ctx_init(&ctx, 1);
  assert_ok(plan_file_read("auto", &plan));
  assert_ok(settings_recipe(settings, &arena, &recipe));
  assert_ok(pt2_read(program, &e));
  const TrainerPlan how = {.recipe = &recipe, .mesh = c.mesh, .plan = c.mesh ? plan : NULL};
  assert_ok(trainer_prepare(&ctx, e, &how, &c.step));
  assert_ok(c.mesh ? ranks_run(&(Ranks){.n = ranks, .threads = 1}, watch_rank, &c) : watch_alone(&c, &ctx));
  prepared_unref(c.step);
  plan_file_free(plan);
  arena_free(&arena);
  ctx_free(&ctx);
}

static void nothing_is_missed(void **state) {
  (void)state;
  static const char *const optims[] = {"adamw", "adam,amsgrad", "sgd,lr=0.1,momentum=0.9", "adagrad", "muon"};
  for (size_t i = 0; i < sizeof optims / sizeof *optims; i++)
    for (int interpreted = 0; interpreted < 2; interpreted++) {
      const char *clip = "1.0";
      const TrainSettings some = {.optim = optims[i], .clip = i % 2 ? clip : NULL, .accumulate = 1 + (int)i % 2},
                          others = {.optim = optims[i], .clip = i % 2 ? NULL : clip, .accumulate = 1};
      watch_steps((Case){.model = "gpt_tied", .interpreted = interpreted}, &some, 1);
      watch_steps((Case){.model = "cnn_bn", .interpreted = interpreted}, &others, 1);
      watch_steps((Case){.model = "gpt_tied", .mesh = "dp=2,tp=2", .interpreted = interpreted}, &some, 4);
      watch_steps((Case){.model = "cnn_bn", .mesh = "dp=3", .interpreted = interpreted}, &others, 3);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_missed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
