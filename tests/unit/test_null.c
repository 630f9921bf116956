/* test_null.c -- every function of tessera.h with each of its arguments missing.  The calls are
 * made from the header (null_calls.awk); each runs in a process of its own, on plain tensors, on
 * DTensors, and on a context with an error. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tessera.h"
#include "unit.h"

typedef struct {
  TessCtx *ctx;
  TessTensor *tensor, *held, *tensors[8];
  TessProgram *program;
  TessScope *scope;
  TessMesh *mesh;
  TessHub *hub;
  TessModule *module, *modules[8];
  TessFsdpOptions sharding;
  TessWork *work;
  TessHook *hook;
  TessTrainer *trainer;
  TessOptimizer *optimizer;
  TessDataParallel *replicas;
  TessReplicas how;
  TessPlanEntry entry;
  TessCheckpoint *checkpoint;
  TessChange change;
  TessTraining training;
  TessData data;
  TessStep step;
  double number;
  TessCut cut;
  TessSaved saved;
  TessArg args[1];
  TessDtype dtype;
  char text[4096];
  const char *names[8];
  unsigned char state[16];
  int64_t numbers[64];
  int ints[8], zeros[8];
  char room[4096];
} Workbench;

typedef struct {
  const char *function, *without; /* "": all arguments are there */
  long (*call)(Workbench *w);     /* what it returned; a pointer: 1, or -1 for NULL */
  int has_ctx;
} NullCall;

static int null_rank(TessCtx *ctx, void *arg) {
  (void)ctx, (void)arg;
  return 0;
}
static int null_forward(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)ctx, (void)m, (void)arg;
  if (n && cap) out[0] = in[0];
  return n ? 1 : 0;
}
static int null_visit(TessCtx *ctx, const char *path, TessModule *m, void *arg) {
  (void)ctx, (void)path, (void)m, (void)arg;
  return 0;
}
static int null_partition(TessCtx *ctx, const char *path, TessModule *m, TessMesh *mesh, void *arg) {
  (void)ctx, (void)path, (void)m, (void)mesh, (void)arg;
  return 0;
}
static int null_all_reduce(TessCtx *ctx, TessTensor *flat, void *arg) {
  (void)ctx, (void)flat, (void)arg;
  return 0;
}

static void null_watch(const TessFsdpEvent *event, void *arg) { (void)event, (void)arg; }

static int null_hook(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)ctx, (void)m, (void)t, (void)n, (void)mesh, (void)arg;
  return 0;
}
static int null_grad_hook(TessCtx *ctx, TessTensor *gradient, TessTensor **replacement, void *arg) {
  (void)ctx, (void)gradient, (void)replacement, (void)arg;
  return 0;
}
static void null_release(void *owner) { (void)owner; }

#include "null_calls.inc"

/* Arguments that fit each other: one element, one axis of one rank. */
static void set_up(Workbench *w, int spread) {
  memset(w, 0, sizeof *w);
  for (int i = 0; i < 8; i++) w->ints[i] = 1, w->names[i] = "x";
  for (int i = 0; i < 64; i++) w->numbers[i] = 1;
  w->ctx = tess_ctx_new(1);
  w->mesh = tess_init_device_mesh(w->ctx, 1, w->ints, w->names);
  w->tensor = tess_tensor_from(w->ctx, TESS_F32, 1, w->numbers, &(float){1});
  TessTensor *whole = tess_distribute_tensor(w->ctx, w->tensor, w->mesh, "S(0)", -1);
  w->work = tess_redistribute_start(w->ctx, whole, "R");
  if (spread) w->tensor = whole;
  tess_set_requires_grad(w->ctx, w->tensor, 1);
  w->hook = tess_register_hook(w->ctx, w->tensor, null_grad_hook, NULL, NULL);
  w->held = tess_hold(w->ctx, w->tensor);
  for (int i = 0; i < 8; i++) w->tensors[i] = w->tensor;
  w->args[0] = tess_t(w->tensor);
  w->program = tess_open(w->ctx, GOLDEN_FOLDER "/models/mlp/program.pt2");
  w->trainer = tess_trainer_open(w->ctx, GOLDEN_FOLDER "/train/mlp_ce/forward.pt2", NULL);
  w->checkpoint = tess_checkpoint_open(w->ctx, GOLDEN_FOLDER "/models/mlp/program.pt2");
  w->change = (TessChange){.source = w->names, .sources = 1, .output = "/dev/null/x"};
  w->scope = tess_scope_begin(w->ctx);
  w->hub = tess_hub_new(1);
  w->module = tess_module_new(w->ctx, null_forward, NULL);
  tess_module_set(w->ctx, w->module, "weight", w->tensor);
  tess_module_add(w->ctx, w->module, "x", tess_module_new(w->ctx, NULL, NULL));
  w->optimizer = tess_optimizer_new(w->ctx, "sgd,momentum=0.9", w->tensors, 1);
  w->replicas = tess_data_parallel(w->ctx, w->module, w->mesh, NULL);
  for (int i = 0; i < 8; i++) w->modules[i] = w->module;
  w->entry = (TessPlanEntry){.style = TESS_PREPARE};
  w->cut = (TessCut){.program = GOLDEN_FOLDER "/models/mlp/program.pt2", .mesh = "tp=1"};
  w->saved = (TessSaved){"weight", TESS_F32, 1, w->numbers, "S(0)"};
  if (tess_error(w->ctx) || !w->program || !w->trainer || !w->hub || !w->module || !w->optimizer || !w->replicas)
    _exit(90);
}

/* These free the context or clear its error. */
static int ends_context(const char *f) {
  return !strcmp(f, "tess_ctx_free") || !strcmp(f, "tess_hub_leave") || !strcmp(f, "tess_error_clear");
}

/* NULL or -1 is an answer of these, not a failure. */
static int may_answer_none(const char *f) {
  static const char *const names[] = {"tess_set_mesh", "tess_error_message", "tess_grad_of",
                                      "tess_checkpoint_name"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(f, names[i])) return 1;
  return 0;
}

/* 0, or what is wrong. */
static int try_call(const NullCall *c) {
  static Workbench w;
  const int no_ctx = !strcmp(c->without, "ctx");
  for (int spread = 0; spread < 2; spread++) {
    set_up(&w, spread);
    long r = c->call(&w);
    if (!c->has_ctx || ends_context(c->function) || no_ctx) continue;
    if (r < 0 && !may_answer_none(c->function) && !tess_error(w.ctx)) return 91;
  }
  set_up(&w, 1);
  tess_open(w.ctx, "/nonexistent.pt2");
  char first[200];
  snprintf(first, sizeof first, "%s", tess_error_message(w.ctx));
  c->call(&w);
  if (!ends_context(c->function) && strncmp(tess_error_message(w.ctx), first, strlen(first))) return 92;
  return 0;
}

static void report(const NullCall *c, int status, int *wrong) {
  if (status == 0) return;
  ++*wrong;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
  fprintf(stderr, "%s without '%s': ", c->function, c->without);
  if (WIFSIGNALED(status)) fprintf(stderr, "signal %d\n", WTERMSIG(status));
  else if (code == 91) fprintf(stderr, "failed and told no error\n");
  else if (code == 92) fprintf(stderr, "lost the error that was there\n");
  else fprintf(stderr, "ended with %d\n", code);
}

static void nothing_crashes(void **state) {
  (void)state;
  static const int fatal[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
  int wrong = 0;
  const int n = (int)(sizeof null_calls / sizeof *null_calls);
  for (int i = 0; i < n; i++) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (!child) {
      alarm(30);
      for (size_t k = 0; k < sizeof fatal / sizeof *fatal; k++) signal(fatal[k], SIG_DFL); /* not cmocka's */
      _exit(try_call(&null_calls[i]));
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    report(&null_calls[i], status, &wrong);
  }
  assert_true(n > 300);
  assert_int_equal(wrong, 0);
}

/* The example at the head of the header, with a file that is not there. */
static void a_failed_open(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessProgram *p = tess_open(ctx, "/nonexistent.pt2");
  const TessTensor *in[] = {tess_tensor_from(ctx, TESS_I64, 1, (int64_t[]){1}, &(int64_t){1})};
  TessTensor *out[8];
  assert_int_equal(tess_run(p, in, 1, out, 8), -1);
  assert_int_equal(tess_error(ctx), 3);
  assert_non_null(strstr(tess_error_message(ctx), "/nonexistent.pt2"));
  tess_close(p);
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(nothing_crashes), cmocka_unit_test(a_failed_open)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
