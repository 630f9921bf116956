/* A checkpoint that is written over another while something goes wrong, at every place where it can: whatever it
 * was, the one before or the new one is there and whole, sources are as they were, and the next leaves nothing
 * behind. */
#include "disk_faults.h"

#include "ckpt/change.h"
#include "run_saves.h"

#define SOURCE GOLDEN_FOLDER "/ckpt/files/dcp"

static char folder[256];
static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

static const char *const formats[] = {"tessera", "hf", "dcp", "safetensors"};
enum { FORMATS = sizeof formats / sizeof *formats };

static Status see(void *arg, const Writing *w) {
  *(int64_t *)arg = w->resumed;
  return OK;
}

/* With or without one of the tensors, so that the two can be told apart.  *resumed: bytes that were there; NULL:
 * not asked for. */
static Status convert_again(const char *to, const char *path, bool less, int64_t *resumed) {
  static const char *const source[] = {SOURCE}, *const drop[] = {"model.0.bias"};
  Change c = {.source = source, .sources = 1, .output = path, .to = to, .force = true, .sync = true};
  c.how = (DeriveHow){.drop = drop, .drops = less ? 1 : 0, .dtype = DT_NONE};
  return checkpoint_change(&c, resumed ? see : NULL, resumed);
}

static Status convert(const char *to, const char *path, bool less) { return convert_again(to, path, less, NULL); }

/* The number of tensors; every one of them must be right. */
static int check_result(const char *path) {
  Source *s;
  assert_ok(source_open(path, &s));
  assert_ok(source_verify(s, &(SourceVerify){.threads = 1}));
  int n = s->tensors;
  source_close(s);
  return n;
}

static void new_path(const char *format, char *out, size_t cap) {
  static int number;
  snprintf(out, cap, "%s/%d", folder, number++);
  assert_int_equal(mkdir(out, 0777), 0);
  snprintf(out + strlen(out), cap - strlen(out), "/result%s", strcmp(format, "safetensors") ? "" : ".safetensors");
}

static void after_all(const char *format, const char *path, int before) {
  char parent[300];
  snprintf(parent, sizeof parent, "%s", path);
  *strrchr(parent, '/') = 0;
  int now = check_result(path);
  assert_true(now == before || now == before - 1);
  assert_ok(convert(format, path, true));
  assert_int_equal(check_result(path), before - 1);
  if (count_entries(parent, "") != 1) test_failed("something is left after %s", plan.hit ? plan.hit : "it");
}

static void failures(void **state) {
  (void)state;
  static const int errors[] = {ENOSPC, EIO};
  for (int f = 0; f < FORMATS; f++) {
    int n = 0;
    for (bool hit = true; hit; n++) {
      char path[300];
      new_path(formats[f], path, sizeof path);
      assert_ok(convert(formats[f], path, false));
      int before = check_result(path);
      plan.fault = FAIL, plan.error = errors[n % 2], plan.hit = NULL;
      plan.left = n;
      Status r = convert(formats[f], path, true);
      plan.left = -1;
      hit = plan.hit != NULL;
      if (r && !hit) test_failed("%s", status_message(r));
      if (!r) assert_int_equal(check_result(path), before - 1);
      status_free(r);
      after_all(formats[f], path, before);
    }
    assert_true(n > 8);
  }
}

/* A process that ends at its n-th call that changes the disk; true: it came to the end of its work before that. */
static bool survives(const char *format, const char *path, int n) {
  int status;
  pid_t pid = fork();
  if (!pid) {
    plan.fault = n % 2 ? DIE_BEFORE : DIE_AFTER, plan.left = n;
    Status r = convert(format, path, true);
    plan.left = -1;
    _exit(r ? 1 : 0);
  }
  assert_int_equal(waitpid(pid, &status, 0), pid);
  assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 99 || WEXITSTATUS(status) == 0));
  return WEXITSTATUS(status) == 0;
}

static void deaths(void **state) {
  (void)state;
  for (int f = 0; f < FORMATS; f++) {
    bool alive = false;
    for (int n = 0; !alive; n++) {
      char path[300];
      new_path(formats[f], path, sizeof path);
      assert_ok(convert(formats[f], path, false));
      int before = check_result(path);
      alive = survives(formats[f], path, n);
      after_all(formats[f], path, before);
    }
  }
}

/* The same work after the death of one goes on with what that one has written, and ends alike. */
static void goes_on(void **state) {
  (void)state;
  for (int f = 0; f < FORMATS; f++) {
    int64_t most = 0;
    bool alive = false;
    for (int n = 0; !alive; n++) {
      char path[300];
      int64_t resumed;
      new_path(formats[f], path, sizeof path);
      alive = survives(formats[f], path, n);
      assert_ok(convert_again(formats[f], path, true, &resumed));
      if (resumed > most) most = resumed;
      int whole = check_result(path);
      after_all(formats[f], path, whole + 1);
    }
    if (!most) test_failed("%s never goes on", formats[f]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(failures), cmocka_unit_test(deaths),
                                     cmocka_unit_test(goes_on)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
