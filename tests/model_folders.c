/* model_folders.c -- see model_folders.h. */
#include "model_folders.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/value.h"

static int is_model(const struct dirent *e) { return e->d_name[0] != '.'; }

void each_model(const char *folder, void (*fn)(void *arg, const char *folder, const char *name), void *arg) {
  struct dirent **names;
  int n = scandir(folder, &names, is_model, alphasort);
  if (n < 0) {
    perror(folder);
    exit(2);
  }
  for (int i = 0; i < n; i++) {
    fn(arg, folder, names[i]->d_name);
    free(names[i]);
  }
  free(names);
}

bool run_in_child(int (*fn)(void *arg), void *arg, const char *label) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    alarm(MODEL_SECONDS);
    int code = fn(arg);
    fflush(stdout);
    exit(code); /* not _exit: leaks are looked for at exit */
  }
  int status = 0;
  if (pid < 0 || waitpid(pid, &status, 0) < 0) {
    perror(label);
    exit(2);
  }
  if (WIFSIGNALED(status))
    printf("FAIL %s: %s\n", label, WTERMSIG(status) == SIGALRM ? "took too long" : strsignal(WTERMSIG(status)));
  else if (WEXITSTATUS(status) && WEXITSTATUS(status) != MODEL_FAILED)
    printf("FAIL %s: exit code %d\n", label, WEXITSTATUS(status));
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

Status run_on_rank(World *w, Status (*fn)(Ctx *ctx, void *arg), void *arg, FILE *log) {
  Ctx ctx;
  Dist *d = NULL;
  CommLog events;
  ctx_init(&ctx, 1);
  Status s = dist_new(w, &d);
  if (!s) {
    ctx_attach_dist(&ctx, d);
    comm_log_begin(d, &events);
    s = fn(&ctx, arg);
    for (int i = 0; log && i < events.n; i++)
      fprintf(log, "  %-15s %8lld bytes  %s\n", step_kind_name(events.event[i].kind),
              (long long)events.event[i].bytes, events.event[i].why);
    comm_log_end(d, &events);
    comm_log_free(&events);
  }
  ctx_free(&ctx);
  dist_free(d);
  return s;
}

const char *option_value(int argc, char **argv, int *i) {
  if (*i + 1 < argc) return argv[++*i];
  fprintf(stderr, "%s needs a value\n", argv[*i]);
  exit(2);
}

double element_at(const Tensor *t, int64_t i) {
  int64_t at = 0;
  for (int d = t->ndim - 1; d >= 0; d--) {
    at += i % t->size[d] * t->stride[d];
    i /= t->size[d];
  }
  Value v = val_load(t->dtype, (const char *)tensor_data(t) + (size_t)at * dtype_size(t->dtype));
  return val_as_float(&v);
}
