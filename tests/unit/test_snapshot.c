/* Tensors that are changed while they are written: what is written is what they were. */
#include "ckpt/snapshot.h"

#include <pthread.h>
#include <unistd.h>

#include "unit.h"

enum { TENSORS = 6 };
static const int64_t sizes[TENSORS][2] = {{3, 5}, {900, 1000}, {3, 1400001}, {1, 1}, {0, 7}, {700, 300}};

typedef struct {
  Scope scope;
  Tensor *tensor[TENSORS];
  const Tensor *list[TENSORS];
  Snapshot *held;
  Status status;
  useconds_t pause;
  int fail_at; /* tensor; -1: none */
} Work;

static float value_of(int tensor, int64_t i) { return (float)(tensor * 1000 + i % 997); }

/* The last one is a transposed view. */
static void make(Work *w, useconds_t pause, int64_t most) {
  *w = (Work){.pause = pause, .fail_at = -1};
  for (int i = 0; i < TENSORS; i++) {
    assert_ok(tensor_new(&w->scope, DT_F32, 2, sizes[i], &w->tensor[i]));
    for (int64_t k = 0; k < tensor_numel(w->tensor[i]); k++)
      ((float *)tensor_data(w->tensor[i]))[k] = value_of(i, k);
    w->list[i] = w->tensor[i];
  }
  Tensor *turned;
  assert_ok(tensor_as_strided(&w->scope, w->tensor[5], 2, (int64_t[]){300, 700}, (int64_t[]){1, 300}, 0, &turned));
  w->list[5] = turned;
  assert_ok(snapshot_new(w->list, TENSORS, &(SnapshotHow){.most = most, .threads = 2}, &w->held));
}

static float want(int tensor, uint64_t element) {
  int64_t k = (int64_t)element;
  return value_of(tensor, tensor == 5 ? k % 700 * 300 + k / 700 : k);
}

/* Takes everything in order, as who writes a file does. */
static Status take_all(Work *w) {
  for (int i = 0; i < TENSORS; i++) {
    const uint64_t bytes = (uint64_t)tensor_numel(w->list[i]) * sizeof(float);
    if (i == w->fail_at) return fail(ERR_FAIL, "the disk is full");
    for (uint64_t at = 0; at < bytes;) {
      const void *data;
      size_t size;
      TRY(snapshot_take(w->held, i, at, &data, &size));
      usleep(w->pause);
      const float *v = data;
      bool right = true;
      for (size_t k = 0; k < size / sizeof *v; k++) right &= v[k] == want(i, at / sizeof *v + k);
      snapshot_give_back(w->held, i, at);
      if (!right) return fail(ERR_FAIL, "tensor %d is not what it was", i);
      at += size;
    }
  }
  return OK;
}

static void *run(void *arg) {
  Work *w = arg;
  w->status = take_all(w);
  snapshot_close(w->held);
  return NULL;
}

/* Overwrites all, in an order of its own. */
static void change_all(Work *w) {
  for (int i = TENSORS - 1; i >= 0; i--) {
    snapshot_before_write(w->held, w->tensor[i]->storage);
    if (tensor_numel(w->tensor[i])) memset(tensor_data(w->tensor[i]), 0xff, w->tensor[i]->storage->size);
  }
}

static Status change_while_taking(useconds_t pause, int64_t most, int fail_at, SnapshotCost *cost) {
  Work w;
  pthread_t thread;
  make(&w, pause, most);
  w.fail_at = fail_at;
  assert_int_equal(pthread_create(&thread, NULL, run, &w), 0);
  usleep(pause / 2);
  change_all(&w);
  pthread_join(thread, NULL);
  *cost = snapshot_cost(w.held);
  snapshot_free(w.held);
  scope_clear(&w.scope);
  return w.status;
}

static void as_they_were(void **state) {
  (void)state;
  SnapshotCost cost;
  for (int i = 0; i < 20; i++) assert_ok(change_while_taking((useconds_t)i * 100, 0, -1, &cost));
  assert_ok(change_while_taking(30000, 0, -1, &cost));
  assert_true(cost.copied > 15 << 20); /* who takes is slow: most was copied */
  assert_ok(change_while_taking(3000, 9 << 20, -1, &cost));
  assert_true(cost.copied <= 9 << 20); /* and here he was waited for */
  assert_ok(change_while_taking(1000, 1, -1, &cost));
  assert_true(cost.copied < 1024); /* what is small */
}

/* Whoever waits for something that will not be written goes on. */
static void failures(void **state) {
  (void)state;
  SnapshotCost cost;
  for (int i = 0; i < TENSORS; i++) assert_error(change_while_taking(1000, 1, i, &cost), "the disk is full");
  Work w;
  make(&w, 0, 0);
  snapshot_give_up(w.held);
  assert_error(take_all(&w), "given up");
  snapshot_close(w.held);
  change_all(&w);
  snapshot_free(w.held);
  scope_clear(&w.scope);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(as_they_were), cmocka_unit_test(failures)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
