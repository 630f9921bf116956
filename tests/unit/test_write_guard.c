/* Whoever reads a trainer's state beside its steps is told of every write before it happens: compiled and
 * interpreted steps, evaluations, learning rates. */
#include "pt2/read.h"
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

static void begin(Watched *w, const Trainer *t) {
  *w = (Watched){.n = trainer_states(t, NULL)};
  assert_true(w->n <= MOST);
  trainer_states(t, w->state);
  for (int i = 0; i < w->n; i++) {
    const Storage *s = w->state[i].tensor->storage;
    assert_non_null(w->before[i] = malloc(s->size + 1));
    memcpy(w->before[i], s->data, s->size);
  }
}

/* How many have changed. */
static int end(Watched *w) {
  int changed = 0;
  for (int i = 0; i < w->n; i++) {
    const Storage *s = w->state[i].tensor->storage;
    bool now = memcmp(w->before[i], s->data, s->size) != 0;
    if (now && !w->told[i]) test_failed("'%s' was written to without a word", w->state[i].name);
    changed += now;
    free(w->before[i]);
  }
  assert_int_equal(w->early, 0);
  return changed;
}

static Data *data;
static Status next_batch(void *arg, int i, Batch *out) {
  (void)arg;
  return data_batch(data, i, &out->inputs, &out->n);
}

static void watch_steps(const char *model, const char *optim, const char *clip, int accumulate, bool interpreted) {
  char program[300], batches[300];
  const char *files[] = {batches};
  const TrainSettings settings = {.optim = optim, .clip = clip, .accumulate = accumulate};
  Arena arena = {0};
  Recipe recipe;
  Exported *e;
  Trainer *t;
  Watched w;
  StepResult result;
  Batch batch;
  double loss;
  Ctx ctx;
  snprintf(program, sizeof program, "%s/train/%s/forward.pt2", GOLDEN_FOLDER, model);
  snprintf(batches, sizeof batches, "%s/train/%s/batches.safetensors", GOLDEN_FOLDER, model);
  ctx_init(&ctx, 1);
  assert_ok(settings_recipe(&settings, &arena, &recipe));
  assert_ok(pt2_read(program, &e));
  assert_ok(trainer_open(&ctx, e, &recipe, NULL, &t));
  assert_ok(data_open(trainer_program(t), &(DataOptions){.files = files, .nfiles = 1, .batched = true}, &data));
  session_interpret(trainer_session(t), interpreted);
  const WriteGuard guard = {note, &w};
  session_guard_state(trainer_session(t), &guard);
  for (int i = 0; i < 3; i++) {
    begin(&w, t);
    trainer_set_rate(t, 1 - 0.25 * i);
    assert_ok(trainer_step(t, next_batch, NULL, &result));
    assert_true(end(&w) > 5);
    begin(&w, t);
    assert_ok(next_batch(NULL, 0, &batch));
    assert_ok(trainer_loss(t, &batch, &loss));
    end(&w);
  }
  data_free(data);
  trainer_free(t);
  arena_free(&arena);
  ctx_free(&ctx);
}

static void nothing_is_missed(void **state) {
  (void)state;
  static const char *const optims[] = {"adamw", "adam,amsgrad", "sgd,lr=0.1,momentum=0.9", "adagrad", "muon"};
  for (size_t i = 0; i < sizeof optims / sizeof *optims; i++)
    for (int interpreted = 0; interpreted < 2; interpreted++) {
      watch_steps("gpt_tied", optims[i], i % 2 ? "1.0" : NULL, 1 + (int)i % 2, interpreted);
      watch_steps("cnn_bn", optims[i], i % 2 ? NULL : "1.0", 1, interpreted);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_is_missed)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
