/* turns.c -- runs a program when it is told to, so that bench/forward can let several
 * libraries take turns within seconds.
 *
 *     turns PROGRAM INPUTS [--threads T]
 *
 * Prints one JSON object when it has warmed up, and for each line that it reads the seconds
 * of one run, on the wall and of the processor: [1.5, 1.5].  Ends with its input.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/feed.h"
#include "pt2/read.h"
#include "runtime/session.h"

enum { WARMUP = 3 }; /* weights are packed on their second use */

static double read_clock(clockid_t id) {
  struct timespec t;
  clock_gettime(id, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
static double now(void) { return read_clock(CLOCK_MONOTONIC); }

static Status run_once(Session *session, const Value *inputs, int n, double *wall, double *cpu) {
  Scope scope = {0};
  Arena arena = {0};
  Value *outs;
  int nouts;
  double start = now(), start_cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID);
  Status s = session_run(session, inputs, n, &scope, &arena, &outs, &nouts);
  *cpu = read_clock(CLOCK_PROCESS_CPUTIME_ID) - start_cpu;
  *wall = now() - start;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status take_turns(Ctx *ctx, const char *program, const char *file, Scope *scope, Arena *arena, Session **session) {
  Exported *e;
  Value *inputs;
  Program *compiled;
  int n;
  double start = now(), wall, cpu;
  TRY(pt2_read(program, &e));
  TRY(session_open(ctx, e, session));
  double open = now() - start;
  TRY(feed_from_file(session_program(*session), file, scope, arena, &inputs, &n));
  start = now();
  TRY(session_prepare(*session, inputs, n, &compiled));
  double compile = now() - start;
  for (int i = 0; i < WARMUP; i++) TRY(run_once(*session, inputs, n, &wall, &cpu));
  printf("{\"open\": %.6f, \"compile\": %.6f}\n", open, compile);
  fflush(stdout);
  for (int c; (c = getchar()) != EOF;) {
    if (c != '\n') continue;
    TRY(run_once(*session, inputs, n, &wall, &cpu));
    printf("[%.6f, %.6f]\n", wall, cpu);
    fflush(stdout);
  }
  return OK;
}

int main(int argc, char **argv) {
  int threads = argc > 4 && !strcmp(argv[3], "--threads") ? atoi(argv[4]) : 1;
  Ctx ctx;
  Session *session = NULL;
  Scope scope = {0};
  Arena arena = {0};
  ctx_init(&ctx, threads);
  Status s = argc < 3 ? fail(ERR_USAGE, "usage: turns PROGRAM INPUTS [--threads T]") : take_turns(&ctx, argv[1], argv[2], &scope, &arena, &session);
  session_free(session);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  if (!s) return 0;
  fprintf(stderr, "error: %s\n", status_message(s));
  int code = (int)status_code(s);
  status_free(s);
  return code;
}
