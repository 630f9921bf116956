/* A save while something goes wrong, at every place where it can: each call that changes the disk fails once with
 * "no space" and once with "I/O error", and is once the last thing that the process does and once the first that it
 * does not.  Whatever it was, the save before or the new one loads, and the next save leaves nothing behind. */
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

static Status save_step(const char *path, State *s, int64_t step) {
  RunFolder *run;
  TRY(run_folder_open(path, &run));
  Status r = state_save(s, run, step, &(KeepSaves){.last = 1});
  run_folder_close(run);
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
    plan.fault = FAIL, plan.error = error, plan.left = n, plan.hit = NULL;
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
  int n = all_failures(ENOSPC, false);
  assert_true(n > 30);
  assert_int_equal(all_failures(EIO, false), n);
  assert_true(all_failures(ENOSPC, true) > 30);
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
  int n = all_deaths(DIE_BEFORE, false);
  assert_int_equal(all_deaths(DIE_AFTER, false), n);
  all_deaths(DIE_BEFORE, true);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(deaths)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
