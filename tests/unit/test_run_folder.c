/* Run folders: what is saved comes back, what is wrong is said, and whatever happens, a whole save is there. */
#define _GNU_SOURCE /* unshare */
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "run_saves.h"

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

/* A few at a time. */
static const char *path_of(const char *name) {
  static char path[4][400];
  static int turn;
  turn = (turn + 1) % 4;
  snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
  return path[turn];
}

/* In a process that may be somebody else. */
static int in_child(int (*work)(void)) {
  pid_t pid = fork();
  int status = -1;
  if (!pid) _exit(work());
  assert_true(pid > 0);
  assert_int_equal(waitpid(pid, &status, 0), pid);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 100 + status;
}

/* ---- there and back ------------------------------------------------------------------------------ */

static const char *const words[] = {"tessera", "train", "a b\".pt2", "caf\xe9.bin", "--steps", "5", ""};
static const SafeText texts[] = {{"optim", "adamw,lr=3e-4"}, {"\xc3\xa4", "\xff\n"}};

static void check_facts(const SaveFacts *f) {
  assert_int_equal(f->step, 100);
  assert_true(f->seed == UINT64_MAX);
  assert_int_equal(f->random_bytes, 3);
  assert_memory_equal(f->random, "\x00\xff\x10", 3);
  assert_int_equal(f->batches, 400);
  assert_int_equal(f->samples, 1600);
  assert_string_equal(f->program, "loss.pt2");
  assert_int_equal(f->argc, 7);
  for (int i = 0; i < 7; i++) assert_string_equal(f->argv[i], words[i]);
  assert_int_equal(f->texts, 2);
  for (int i = 0; i < 2; i++) {
    assert_string_equal(f->text[i].key, texts[i].key);
    assert_string_equal(f->text[i].value, texts[i].value);
  }
}

static const SaveFacts facts = {.step = 100,
                                .seed = UINT64_MAX,
                                .random = "\x00\xff\x10",
                                .random_bytes = 3,
                                .batches = 400,
                                .samples = 1600,
                                .argv = words,
                                .argc = 7,
                                .program = "loss.pt2",
                                .text = texts,
                                .texts = 2};

static void there_and_back(void **state) {
  (void)state;
  RunFolder *run;
  Save *save;
  State s;
  Arena arena = {0};
  Scope scope = {0};
  const char *path;
  Tensor *t;
  state_new(&s, 1000);
  state_fill(&s, 100);
  assert_ok(run_folder_open(path_of("a/b/run//"), &run));
  assert_ok(run_folder_check_start(run, 0));
  assert_ok(run_folder_save(run, &facts, s.item, STATE_TENSORS, NULL));
  run_folder_close(run);
  assert_ok(run_latest(path_of("a/b/run/"), &arena, &path));
  assert_string_equal(path, path_of("a/b/run/step-00000100"));
  assert_int_equal(count_entries(path, ""), 3);
  assert_int_equal(count_entries(path_of("a/b/run"), ""), 2); /* .lock */
  assert_ok(save_open(path, &save));
  check_facts(&save->m.facts);
  assert_ok(save_verify(save, 2));
  state_fill(&s, 0);
  assert_ok(save_restore(save, s.item, STATE_TENSORS, 2));
  assert_true(state_is(&s, 100));
  assert_ok(save_tensor(save, "optim.state.head.bias.step", &scope, &t));
  assert_error(save_tensor(save, "wte.weight", &scope, &t), "holds no tensor 'wte.weight'");
  save_close(save);
  assert_int_equal(*(int64_t *)tensor_data(t), 100); /* it outlives the save */
  const char *again;
  assert_ok(run_latest(path, &arena, &again)); /* a save is its own newest */
  assert_string_equal(again, path);
  SafeTensors *st; /* names of the model are its own */
  assert_ok(safetensors_open(path_of("a/b/run/step-00000100/model.safetensors"), &st));
  assert_non_null(safetensors_find(st, "wte.weight"));
  assert_string_equal(safetensors_text(st, "format"), "pt");
  assert_int_equal(st->count, 3);
  safetensors_close(st);
  scope_clear(&scope);
  scope_clear(&s.scope);
  arena_free(&arena);
}

/* Tensors that are not contiguous are saved and restored as what they hold; memory between their elements is left.
 */
static void any_strides(void **state) {
  (void)state;
  static const int64_t strides[][3] = {{1, 2, 6}, {24, 6, 2}, {12, 1, 3}, {48, 12, 4}};
  RunFolder *run;
  Scope scope = {0};
  Tensor *memory, *t;
  assert_ok(tensor_new(&scope, DT_F32, 1, (int64_t[]){200}, &memory));
  float *data = tensor_data(memory);
  for (int i = 0; i < 4; i++) {
    SafeItem item = {"model.t", NULL};
    char path[64];
    Save *save;
    float want[200];
    for (int k = 0; k < 200; k++) data[k] = (float)(1000 * i + k);
    assert_ok(tensor_as_strided(&scope, memory, 3, (int64_t[]){2, 3, 4}, strides[i], 5, &t));
    item.tensor = t;
    assert_ok(run_folder_open(path_of("strided"), &run));
    assert_ok(run_folder_save(run, &(SaveFacts){.step = i}, &item, 1, NULL));
    run_folder_close(run);
    memcpy(want, data, sizeof want);
    for (int k = 0; k < 24; k++) {
      int64_t at = 5 + k / 12 * strides[i][0] + k / 4 % 3 * strides[i][1] + k % 4 * strides[i][2];
      data[at] = -1;
    }
    snprintf(path, sizeof path, "strided/step-%08d", i);
    assert_ok(save_open(path_of(path), &save));
    assert_ok(save_restore(save, &item, 1, 2));
    save_close(save);
    assert_memory_equal(data, want, sizeof want);
  }
  scope_clear(&scope);
}

/* Signatures tell programs apart, whatever the order of their tensors. */
static void signatures(void **state) {
  (void)state;
  uint64_t seen[4];
  RunFolder *run;
  State s;
  state_new(&s, 8);
  state_fill(&s, 1);
  for (int i = 0; i < 4; i++) {
    char name[32], path[64];
    Save *save;
    SafeItem item[STATE_TENSORS];
    SaveFacts f = {.step = i};
    for (int k = 0; k < STATE_TENSORS; k++) item[k] = s.item[i == 1 ? STATE_TENSORS - 1 - k : k];
    if (i == 2) item[1].name = "model.other";
    if (i == 3) item[3].name = "optim.other";
    snprintf(name, sizeof name, "signed");
    assert_ok(run_folder_open(path_of(name), &run));
    assert_ok(run_folder_save(run, &f, item, STATE_TENSORS, NULL));
    run_folder_close(run);
    snprintf(path, sizeof path, "signed/step-%08d", i);
    assert_ok(save_open(path_of(path), &save));
    seen[i] = save->m.facts.signature;
    assert_string_equal(save->m.facts.program, "");
    save_close(save);
  }
  assert_true(seen[0] == seen[1] && seen[0] == seen[3] && seen[0] != seen[2]);
  scope_clear(&s.scope);
}

static void what_stays(void **state) {
  (void)state;
  RunFolder *run;
  State s;
  char *stale = strdup(path_of("keep/step-00000001.part-Ab12Xy"));
  assert_non_null(stale);
  state_new(&s, 100);
  assert_ok(run_folder_open(path_of("keep"), &run));
  for (int i = 1; i <= 9; i++) assert_ok(state_save(&s, run, i, &(KeepSaves){.last = 2, .every = 4}));
  assert_int_equal(count_entries(path_of("keep"), "step-"), 3); /* 4 8 9 */
  assert_true(file_exists(path_of("keep/step-00000004")));
  assert_true(file_exists(path_of("keep/step-00000008")));
  assert_int_equal(newest_step(&s, path_of("keep")), 9);
  assert_ok(state_save(&s, run, 9, &(KeepSaves){.last = 1})); /* again: replaces it */
  assert_int_equal(count_entries(path_of("keep"), "step-"), 1);
  assert_int_equal(newest_step(&s, path_of("keep")), 9);
  assert_error(state_save(&s, run, 8, NULL), "holds a save of step 9 already, later than step 8");
  assert_error(run_folder_check_start(run, 0), "--resume");
  assert_ok(run_folder_check_start(run, 9));
  assert_error(run_folder_save(run, &(SaveFacts){.step = -1}, NULL, 0, NULL), "not negative");
  run_folder_close(run);
  /* What a killed trainer left goes; a step of more digits is a later one; other names are nobody's. */
  assert_int_equal(mkdir(stale, 0755), 0);
  assert_int_equal(mkdir(path_of("keep/step-7"), 0755), 0);
  assert_int_equal(mkdir(path_of("keep/step-99999999999999999999"), 0755), 0);
  assert_ok(run_folder_open(path_of("keep"), &run));
  assert_false(file_exists(stale));
  assert_ok(state_save(&s, run, 100000000000, &(KeepSaves){.last = 0}));
  run_folder_close(run);
  assert_int_equal(newest_step(&s, path_of("keep")), 100000000000);
  scope_clear(&s.scope);
  free(stale);
}

/* ---- memory --------------------------------------------------------------------------------------- */

static long most_memory(void) { /* KiB, so far */
  struct rusage u;
  return getrusage(RUSAGE_SELF, &u) ? 0 : u.ru_maxrss;
}

/* KiB that a save of 128 MiB may take.  An address sanitizer keeps what is freed for a while: the buffers of all
 * pieces, one after the other. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KEEPS_FREED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define KEEPS_FREED 1
#endif
#ifdef KEEPS_FREED
enum { MOST_TAKEN = 256 << 10 };
#else
enum { MOST_TAKEN = 64 << 10 };
#endif

static int save_much(void) {
  RunFolder *run;
  State s;
  state_new(&s, 16 << 20); /* 128 MiB */
  state_fill(&s, 1);
  long before = most_memory();
  if (run_folder_open(path_of("much"), &run) || state_save(&s, run, 1, NULL)) return 1;
  run_folder_close(run);
  scope_clear(&s.scope);
  printf("saving 128 MiB took %ld KiB of memory\n", most_memory() - before);
  fflush(stdout);
  return most_memory() - before > MOST_TAKEN;
}

static void no_second_copy(void **state) {
  (void)state;
  assert_int_equal(in_child(save_much), 0);
  remove_folder(path_of("much"));
}

/* ---- what is wrong is said ------------------------------------------------------------------------ */

static void wrong_folders(void **state) {
  (void)state;
  RunFolder *run, *second;
  Arena arena = {0};
  const char *path;
  Save *save;
  char pid[32];
  assert_ok(file_write_all(path_of("file"), "x", 1, 0));
  assert_error(run_folder_open(path_of("file"), &run), "it is a file, not a folder");
  assert_error(run_folder_open("", &run), "is empty");
  assert_error(run_latest(path_of("file"), &arena, &path), "is a file");
  assert_error(run_latest(path_of("none"), &arena, &path), "there is no run folder");
  assert_error(run_latest(folder, &arena, &path), "holds no save");
  assert_error(run_latest("", &arena, &path), "is empty");
  assert_error(save_open(path_of("none"), &save), "there is no save");
  assert_error(save_open(folder, &save), "has no manifest.json");
  assert_ok(run_folder_open(path_of("locked"), &run));
  snprintf(pid, sizeof pid, "(process %ld)", (long)getpid());
  assert_error(run_folder_open(path_of("locked"), &second), pid);
  run_folder_close(run);
  assert_ok(run_folder_open(path_of("locked"), &run)); /* the lock ends with its holder, not with the file */
  run_folder_close(run);
  arena_free(&arena);
}

static bool says(Status s, const char *part) {
  bool yes = s && strstr(status_message(s), part);
  if (!yes) fprintf(stderr, "'%s' does not say '%s'\n", s ? status_message(s) : "OK", part);
  status_free(s);
  return yes;
}

static int write_read_only(void) {
  RunFolder *run;
  if (!geteuid() && seteuid(65534)) return 77;
  return !says(run_folder_open(path_of("locked"), &run), "Permission denied") ||
         !says(run_folder_open(path_of("locked/new"), &run), "Permission denied");
}

static void read_only_folder(void **state) {
  (void)state;
  assert_int_equal(chmod(folder, 0755), 0);
  assert_int_equal(chmod(path_of("locked/.lock"), 0444), 0);
  assert_int_equal(chmod(path_of("locked"), 0555), 0);
  assert_int_equal(in_child(write_read_only), 0);
  assert_int_equal(chmod(path_of("locked"), 0755), 0);
}

static void another_program(void **state) {
  (void)state;
  RunFolder *run;
  State s;
  Save *save;
  Tensor *wide;
  Arena arena = {0};
  SaveMatch match;
  state_new(&s, 100);
  state_fill(&s, 100);
  assert_ok(run_folder_open(path_of("other"), &run));
  assert_ok(run_folder_save(run, &facts, s.item, STATE_TENSORS, NULL));
  run_folder_close(run);
  assert_ok(save_open(path_of("other/step-00000100"), &save));
  assert_ok(save_match(save, s.item, STATE_TENSORS, &arena, &match));
  assert_null(match.note);
  assert_ok(tensor_new(&s.scope, DT_F32, 2, (int64_t[]){26, 4}, &wide));
  SafeItem other[STATE_TENSORS + 1];
  memcpy(other, s.item, sizeof s.item);
  other[0].tensor = wide;
  other[1].name = "model.head.weight";
  other[5] = (SafeItem){"optim.state.head.weight.exp_avg", wide};
  Status r = save_match(save, other, STATE_TENSORS + 1, &arena, &match);
  assert_non_null(r);
  assert_int_equal(status_code(r), ERR_USAGE);
  assert_true(says(r, "is a save of another program ('loss.pt2'): 3 tensors differ") || !r);
  r = save_match(save, other, STATE_TENSORS + 1, &arena, &match);
  const char *text = status_message(r);
  assert_non_null(strstr(text, "'model.wte.weight': f32[25,4] there, f32[26,4] here"));
  assert_non_null(strstr(text, "'model.head.weight': not in the save"));
  assert_non_null(strstr(text, "'model.head.bias': only in the save"));
  assert_non_null(strstr(text, "the run was started as: tessera train"));
  status_free(r);
  memcpy(other, s.item, sizeof s.item);
  other[2].name = "optim.state.wte.weight.momentum";
  assert_ok(save_match(save, other, STATE_TENSORS, &arena, &match));
  assert_non_null(strstr(match.note, "is of another optimizer"));
  assert_non_null(strstr(match.note, "'optim.state.wte.weight.momentum': not in the save"));
  for (int i = 0; i < STATE_TENSORS; i++) assert_int_equal(match.fits[i], !strncmp(other[i].name, "model.", 6));
  assert_error(save_restore(save, other, STATE_TENSORS, 1), "has no tensor like 'optim.state.wte.weight.momentum'");
  assert_error(save_match(save, NULL, 0, &arena, &match), "tensors differ");
  Tensor bare = *wide;
  bare.storage = NULL, bare.size[0] = 25;
  memcpy(other, s.item, sizeof s.item);
  other[0].tensor = &bare;
  assert_error(save_restore(save, other, STATE_TENSORS, 1), "has no memory");
  save_close(save);
  scope_clear(&s.scope);
  arena_free(&arena);
}

static void cannot_be_saved(void **state) {
  (void)state;
  RunFolder *run;
  Scope scope = {0};
  Tensor *c, *meta, *f;
  assert_ok(tensor_new(&scope, DT_C128, 1, (int64_t[]){1}, &c));
  assert_ok(tensor_meta(&scope, DT_F32, 1, (int64_t[]){1}, &meta));
  assert_ok(tensor_new(&scope, DT_U8, 0, NULL, &f));
  *(char *)tensor_data(f) = 0;
  assert_ok(run_folder_open(path_of("unsaved"), &run));
  SaveFacts none = {.step = 1};
  SafeItem twice[] = {{"model.a", f}, {"model.a", f}};
  SaveFacts doubled = {.step = 1, .texts = 2, .text = (SafeText[]){{"k", "1"}, {"k", "2"}}};
  assert_error(run_folder_save(run, &none, &(SafeItem){"model.c", c}, 1, NULL), "cannot hold the dtype c128");
  assert_error(run_folder_save(run, &none, &(SafeItem){"model.m", meta}, 1, NULL), "no data");
  assert_error(run_folder_save(run, &none, &(SafeItem){"\xff", f}, 1, NULL), "not UTF-8");
  assert_error(run_folder_save(run, &none, twice, 2, NULL), "'a'");
  assert_error(run_folder_save(run, &doubled, twice, 1, NULL), "occurs twice");
  assert_int_equal(count_entries(path_of("unsaved"), "step"), 0);
  assert_ok(run_folder_save(run, &none, NULL, 0, NULL)); /* nothing can be saved */
  run_folder_close(run);
  Save *save;
  assert_ok(save_open(path_of("unsaved/step-00000001"), &save));
  assert_ok(save_restore(save, NULL, 0, 2));
  save_close(save);
  scope_clear(&scope);
}

/* ---- damage --------------------------------------------------------------------------------------- */

static Status read_all(const char *path, State *s) {
  Save *save;
  TRY(save_open(path, &save));
  Status r = save_restore(save, s->item, STATE_TENSORS, 1);
  save_close(save);
  return r;
}

/* Every file of a save cut off and with bits turned at many places: always ERR_CKPT, nothing is restored, and the
 * save before it is named. */
static void damaged_files(void **state) {
  (void)state;
  static const char *const names[] = {"model.safetensors", "optimizer.safetensors", "manifest.json"};
  RunFolder *run;
  State s;
  uint64_t random = 1;
  char *save = strdup(path_of("hurt/step-00000002"));
  state_new(&s, 64);
  assert_ok(run_folder_open(path_of("hurt"), &run));
  assert_ok(state_save(&s, run, 1, NULL));
  assert_ok(state_save(&s, run, 2, NULL));
  run_folder_close(run);
  for (int i = 0; i < 3; i++) {
    char path[512];
    FileMap *f;
    snprintf(path, sizeof path, "%s/%s", save, names[i]);
    assert_ok(file_map(path, &f));
    unsigned char *copy = malloc(f->size);
    assert_non_null(copy);
    for (int k = 0; k < 200; k++) {
      size_t at = random_bits(&random) % f->size;
      bool metadata = i < 2 && at >= 8 && at < 8 + f->data[0] + (size_t)f->data[1] * 256;
      memcpy(copy, f->data, f->size);
      copy[at] ^= (unsigned char)(1u << k % 8);
      assert_ok(file_write_all(path, copy, k % 3 ? f->size : at, FILE_OVERWRITE));
      state_fill(&s, 5);
      Status r = read_all(save, &s);
      if (!r && metadata && k % 3) continue; /* in the words about the format: nobody's bytes */
      assert_non_null(r);
      assert_int_equal(status_code(r), ERR_CKPT);
      assert_non_null(strstr(status_message(r), "the save before it is"));
      assert_true(state_is(&s, 5));
      status_free(r);
    }
    assert_ok(file_write_all(path, f->data, f->size, FILE_OVERWRITE));
    assert_ok(read_all(save, &s));
    assert_int_equal(unlink(path), 0);
    assert_error(read_all(save, &s), names[i]);
    assert_ok(file_write_all(path, f->data, f->size, 0));
    free(copy);
    file_map_unref(f);
  }
  free(save);
  scope_clear(&s.scope);
}

/* ---- a process that ends at any moment ------------------------------------------------------------ */

static void save_forever(const char *run_path, int64_t from) {
  RunFolder *run;
  State s;
  state_new(&s, 20000);
  Status r = run_folder_open(run_path, &run);
  for (int64_t step = from; !r; step++) r = state_save(&s, run, step, &(KeepSaves){.last = 2});
  fprintf(stderr, "%s\n", status_message(r));
  _exit(1);
}

/* Nanoseconds that a save takes here, and some more. */
static uint64_t time_of_save(const char *path, State *s) {
  double begin = clock_now();
  RunFolder *run;
  assert_ok(run_folder_open(path, &run));
  for (int i = 0; i < 3; i++) assert_ok(state_save(s, run, i, &(KeepSaves){.last = 2}));
  run_folder_close(run);
  return (uint64_t)((clock_now() - begin) * 1e9) + 5000000;
}

static void killed_at_any_moment(void **state) {
  (void)state;
  enum { KILLS = 100 };
  char *path = strdup(path_of("killed"));
  uint64_t random = 5;
  int advanced = 0;
  State s;
  state_new(&s, 20000);
  uint64_t longest = time_of_save(path, &s);
  int64_t last = newest_step(&s, path);
  for (int i = 0; i < KILLS; i++) {
    pid_t pid = fork();
    int status;
    if (!pid) save_forever(path, last + 1);
    assert_true(pid > 0);
    uint64_t wait = random_bits(&random) % longest;
    nanosleep(&(struct timespec){(time_t)(wait / 1000000000), (long)(wait % 1000000000)}, NULL);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    int64_t now = newest_step(&s, path);
    assert_true(now >= last);
    advanced += now > last;
    last = now;
  }
  printf("%d of %d killed processes had saved something\n", advanced, KILLS);
  RunFolder *run;
  assert_ok(run_folder_open(path, &run));
  assert_ok(state_save(&s, run, last + 1, &(KeepSaves){.last = 2}));
  run_folder_close(run);
  assert_int_equal(count_entries(path, "part"), 0);
  assert_int_equal(count_entries(path, "step-"), 2);
  scope_clear(&s.scope);
  free(path);
}

/* ---- a full disk ---------------------------------------------------------------------------------- */

/* A disk of 1 MB, or else files of at most 300 kB. */
static const char *limit_space(void) {
  struct rlimit small = {300000, 300000};
  bool own = unshare(CLONE_NEWNS) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0;
  if (own && !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
      !mount("none", path_of("full"), "tmpfs", 0, "size=1m"))
    return "No space left on device";
  signal(SIGXFSZ, SIG_IGN);
  return setrlimit(RLIMIT_FSIZE, &small) ? NULL : "File too large";
}

static int fill_disk(void) {
  RunFolder *run;
  State small, large;
  if (mkdir(path_of("full"), 0755)) return 1;
  const char *reason = limit_space();
  if (!reason) return 2;
  printf("full disk: %s\n", reason);
  fflush(stdout);
  state_new(&small, 1000);
  state_new(&large, 200000);
  if (run_folder_open(path_of("full"), &run) || state_save(&small, run, 1, NULL)) return 3;
  for (int i = 0; i < 3; i++) {
    Status s = state_save(&large, run, 2, &(KeepSaves){.last = 1});
    if (!s || !strstr(status_message(s), "the save of step 1 is untouched")) return 4;
    if (!says(s, reason)) return 5;
    if (count_entries(path_of("full"), "step-") != 1) return 6;
  }
  if (newest_step(&small, path_of("full")) != 1) return 7;
  if (state_save(&small, run, 2, &(KeepSaves){.last = 1})) return 8; /* what fits is saved */
  run_folder_close(run);
  scope_clear(&small.scope);
  scope_clear(&large.scope);
  return 0;
}

static void full_disk(void **state) {
  (void)state;
  assert_int_equal(in_child(fill_disk), 0);
}

/* ---- other readers -------------------------------------------------------------------------------- */

static void python_reads_it(void **state) {
  (void)state;
  char command[2048];
  snprintf(command, sizeof command,
           "python3 - '%s' <<'E'\n"
           "import json, sys\n"
           "try:\n"
           "  import torch\n"
           "  from safetensors.torch import load_file\n"
           "except ImportError:\n"
           "  sys.exit(77)\n"
           "model = load_file(sys.argv[1] + '/model.safetensors')\n"
           "assert sorted(model) == ['empty', 'head.bias', 'wte.weight'], model\n"
           "assert model['wte.weight'].shape == (250, 4) and (model['wte.weight'] == 100).all()\n"
           "assert model['head.bias'].dtype == torch.bfloat16\n"
           "optim = load_file(sys.argv[1] + '/optimizer.safetensors')\n"
           "assert optim['optim.state.head.bias.step'].item() == 100, optim\n"
           "manifest = json.load(open(sys.argv[1] + '/manifest.json'))\n"
           "assert manifest['step'] == 100 and manifest['seed'] == 2**64 - 1\n"
           "assert manifest['command'][2] == 'a b\".pt2', manifest['command']\n"
           "E",
           path_of("a/b/run/step-00000100"));
  int status = system(command);
  if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) skip();
  assert_int_equal(status, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(there_and_back),   cmocka_unit_test(any_strides),          cmocka_unit_test(signatures),
      cmocka_unit_test(what_stays),       cmocka_unit_test(no_second_copy),       cmocka_unit_test(wrong_folders),
      cmocka_unit_test(read_only_folder), cmocka_unit_test(another_program),      cmocka_unit_test(cannot_be_saved),
      cmocka_unit_test(damaged_files),    cmocka_unit_test(killed_at_any_moment), cmocka_unit_test(full_disk),
      cmocka_unit_test(python_reads_it),
  };
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
