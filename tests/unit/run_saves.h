/* run_saves.h -- what tests of run folders save: tensors in which every element is the number of the step, so that
 * parts of different saves cannot be taken for one. */
#ifndef TESS_TESTS_RUN_SAVES_H
#define TESS_TESTS_RUN_SAVES_H

#include <dirent.h>

#include "ckpt/run_folder.h"
#include "ckpt/save.h"
#include "ckpt/steps.h"
#include "unit.h"

enum { STATE_TENSORS = 5 };

typedef struct {
  Scope scope;
  SafeItem item[STATE_TENSORS];
} State;

/* elements: of the largest */
static inline void state_new(State *s, int64_t elements) {
  static const struct {
    const char *name;
    Dtype dtype;
    int ndim;
    int64_t size[2];
  } made[STATE_TENSORS] = {
      {"model.wte.weight", DT_F32, 2, {-1, 4}},
      {"model.head.bias", DT_BF16, 1, {3}},
      {"optim.state.wte.weight.exp_avg", DT_F32, 1, {-1}},
      {"optim.state.head.bias.step", DT_I64, 0, {0}},
      {"model.empty", DT_U8, 2, {0, 7}},
  };
  *s = (State){0};
  for (int i = 0; i < STATE_TENSORS; i++) {
    Tensor *t;
    int64_t size[2] = {made[i].size[0], made[i].size[1]};
    if (size[0] < 0) size[0] = made[i].ndim == 2 ? elements / 4 : elements;
    assert_ok(tensor_new(&s->scope, made[i].dtype, made[i].ndim, size, &t));
    s->item[i] = (SafeItem){made[i].name, t};
  }
}

static inline void state_fill(State *s, int64_t step) {
  for (int i = 0; i < STATE_TENSORS; i++) {
    const Tensor *t = s->item[i].tensor;
    for (int64_t k = 0; k < tensor_numel(t); k++) {
      if (t->dtype == DT_F32) ((float *)tensor_data(t))[k] = (float)step;
      if (t->dtype == DT_BF16) ((uint16_t *)tensor_data(t))[k] = (uint16_t)step;
      if (t->dtype == DT_I64) ((int64_t *)tensor_data(t))[k] = step;
    }
  }
}

/* Is every element the step? */
static inline bool state_is(const State *s, int64_t step) {
  for (int i = 0; i < STATE_TENSORS; i++) {
    const Tensor *t = s->item[i].tensor;
    for (int64_t k = 0; k < tensor_numel(t); k++) {
      if (t->dtype == DT_F32 && ((float *)tensor_data(t))[k] != (float)step) return false;
      if (t->dtype == DT_BF16 && ((uint16_t *)tensor_data(t))[k] != (uint16_t)step) return false;
      if (t->dtype == DT_I64 && ((int64_t *)tensor_data(t))[k] != step) return false;
    }
  }
  return true;
}

static inline Status state_save(State *s, RunFolder *run, int64_t step, const KeepSaves *keep) {
  const char *argv[] = {"tessera", "train"};
  SaveFacts f = {.step = step, .seed = 7, .batches = 2 * step, .samples = 8 * step, .argv = argv, .argc = 2};
  state_fill(s, step);
  return run_folder_save(run, &f, s->item, STATE_TENSORS, keep);
}

/* The step of the newest save of a folder, which must be right in all its parts; -1: none is there. */
static inline int64_t newest_step(State *s, const char *folder) {
  Arena arena = {0};
  Steps steps;
  const char *path;
  Save *save;
  int64_t step = -1;
  if (file_is_folder(folder)) {
    assert_ok(steps_list(folder, &arena, &steps));
    if (steps.n) step = steps.step[steps.n - 1];
  }
  if (step >= 0) {
    assert_ok(run_latest(folder, &arena, &path));
    assert_ok(save_open(path, &save));
    state_fill(s, -1);
    assert_ok(save_restore(save, s->item, STATE_TENSORS, 1));
    assert_int_equal(save->m.facts.step, step);
    assert_int_equal(save->m.facts.batches, 2 * step);
    assert_true(state_is(s, step));
    save_close(save);
  }
  arena_free(&arena);
  return step;
}

/* Entries of a folder whose name contains `part`. */
static inline int count_entries(const char *folder, const char *part) {
  DIR *d = opendir(folder);
  int n = 0;
  assert_non_null(d);
  for (struct dirent *e; (e = readdir(d));)
    n += strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strstr(e->d_name, part);
  closedir(d);
  return n;
}

#endif
