/* A save while something goes wrong, at every place where it can: each call that changes the disk fails once with
 * "no space" and once with "I/O error", and is once the last thing that the process does and once the first that it
 * does not.  Whatever it was, the save before or the new one loads, and the next save leaves nothing behind.
 *
 * So for saves of one rank, for those that a thread writes while the tensors change, and for those of two ranks,
 * which have the same outcome. */
#include <pthread.h>

#include "ckpt/sharded_save.h"
#include "disk_faults.h"
#include "run_saves.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

/* A new one each time. */
static const char *new_run(void) {
  static char path[300];
  static int number;
  snprintf(path, sizeof path, "%s/run%d", folder, number++);
  return path;
}

typedef enum { ALONE, BESIDE, TOGETHER, WAYS } Way;
static Way way;
static const KeepSaves one = {.last = 1};

typedef struct {
  RunFolder *run;
  State *s;
  SaveFacts facts;
  Snapshot *held;
  Status status;
  char message[2][300]; /* by rank */
} Saving;

static void *write_beside(void *arg) {
  Saving *v = arg;
  v->status = run_folder_save_snapshot(v->run, &v->facts, v->s->item, STATE_TENSORS, v->held, &one);
  return NULL;
}

/* The tensors are those of another step when most of it is written. */
static Status save_beside(Saving *v) {
  const Tensor *tensor[STATE_TENSORS];
  pthread_t thread;
  for (int i = 0; i < STATE_TENSORS; i++) tensor[i] = v->s->item[i].tensor;
  TRY(snapshot_new(tensor, STATE_TENSORS, &(SnapshotHow){.threads = 1}, &v->held));
  assert_int_equal(pthread_create(&thread, NULL, write_beside, v), 0);
  for (int i = 0; i < STATE_TENSORS; i++) snapshot_before_write(v->held, tensor[i]->storage);
  state_fill(v->s, -2);
  pthread_join(thread, NULL);
  snapshot_free(v->held);
  return v->status;
}

static Status save_rank(World *w, void *arg) {
  Saving *v = arg;
  int rank = world_rank(w);
  ShardItem item[STATE_TENSORS];
  for (int i = 0; i < STATE_TENSORS; i++) item[i] = (ShardItem){v->s->item[i].name, v->s->item[i].tensor, NULL};
  Status r = sharded_save(rank ? NULL : v->run, world_comm(w), &v->facts, item, STATE_TENSORS, &one);
  snprintf(v->message[rank], sizeof v->message[rank], "%s", r ? status_message(r) : "");
  if (!rank) v->status = r;
  else status_free(r);
  return OK;
}

static Status save_together(Saving *v) {
  assert_ok(world_threads(2, save_rank, v, NULL));
  assert_string_equal(v->message[0], v->message[1]);
  return v->status;
}

static Status save_step(const char *path, State *s, int64_t step) {
  Saving v = {.s = s, .facts = {.step = step, .batches = 2 * step, .mesh = way == TOGETHER ? "dp=2" : NULL}};
  TRY(run_folder_open(path, &v.run));
  state_fill(s, step);
  Status r = way == ALONE ? state_save(s, v.run, step, &one) : way == BESIDE ? save_beside(&v) : save_together(&v);
  run_folder_close(v.run);
  return r;
}

/* After whatever happened: the newest save is whole, and the next one leaves itself alone. */
static int64_t check_run(const char *path, State *s) {
  int64_t step = newest_step(s, path);
  assert_true(step == 1 || step == 2);
  assert_ok(save_step(path, s, 3));
  assert_int_equal(newest_step(s, path), 3);
  if (count_entries(path, "step-") != 1) test_failed("something is left after %s", plan.hit);
  return step;
}

/* Again saves the step that is there if `again`.  How many calls there are. */
static int all_failures(int error, bool again) {
  State s;
  state_new(&s, 80000); /* more than a buffer of a file */
  int n = 0;
  for (;; n++) {
    int64_t step = again ? 1 : 2;
    const char *path = new_run();
    assert_ok(save_step(path, &s, 1));
    plan.fault = FAIL, plan.error = error, plan.hit = NULL;
    plan.left = n;
    Status r = save_step(path, &s, step);
    plan.left = -1;
    bool ok = !r, removing = plan.hit && (!strcmp(plan.hit, "unlinkat") || !strcmp(plan.hit, "rmdir"));
    if (!ok && !plan.hit) test_failed("%s", status_message(r));
    status_free(r);
    if (!removing && !ok && count_entries(path, "part")) test_failed("something is left after %s fails", plan.hit);
    int64_t now = newest_step(&s, path);
    if (ok) assert_int_equal(now, step);
    check_run(path, &s);
    if (!plan.hit) break;
  }
  scope_clear(&s.scope);
  return n;
}

static void failures(void **state) {
  (void)state;
  for (way = ALONE; way < WAYS; way++) {
    int n = all_failures(ENOSPC, false);
    assert_true(n > 30);
    if (way != ALONE) continue;
    assert_int_equal(all_failures(EIO, false), n);
    assert_true(all_failures(ENOSPC, true) > 30);
  }
}

static int all_deaths(Fault fault, bool again) {
  State s;
  int steps[3] = {0};
  state_new(&s, 20000);
  int n = 0;
  for (bool alive = false; !alive; n++) {
    int status;
    const char *path = new_run();
    assert_ok(save_step(path, &s, 1));
    pid_t pid = fork();
    if (!pid) {
      plan.fault = fault, plan.left = n;
      Status r = save_step(path, &s, again ? 1 : 2);
      plan.left = -1;
      _exit(r ? 1 : 0);
    }
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 99 || WEXITSTATUS(status) == 0));
    alive = WEXITSTATUS(status) == 0;
    steps[check_run(path, &s)]++;
  }
  if (!again) assert_true(steps[1] > 10 && steps[2] > 3);
  scope_clear(&s.scope);
  return n;
}

static void deaths(void **state) {
  (void)state;
  for (way = ALONE; way < WAYS; way++) {
    int n = all_deaths(DIE_BEFORE, false), other = all_deaths(DIE_AFTER, false);
    assert_true(n > 30 && (way == ALONE ? other == n : other > 30));
    if (way == ALONE) all_deaths(DIE_BEFORE, true);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(deaths)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
