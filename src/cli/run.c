/* run.c -- `tessera run`: a program on inputs, once or several times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/cli.h"
#include "cli/compare.h"
#include "cli/feed.h"
#include "cli/outputs.h"
#include "cli/profile.h"
#include "runtime/session.h"

enum { MOST_RUNS = 100000000 };
#define BY_DTYPE (-INFINITY) /* a tolerance that was not given */

typedef struct {
  TextList inputs, outputs, expect;
  int64_t repeat, threads, seed, warmup;
  bool print_outputs, profile, json, force, interpret;
  bool nothing_asked; /* of the outputs: they are listed */
  const char *weights, *random;
  double atol, rtol;
} RunOptions;

static const char examples[] =
    "  tessera run model.pt2 -i in.safetensors -o out.safetensors\n"
    "  tessera run model.pt2 -i step0.safetensors -i step1.safetensors -o out0.safetensors -o out1.safetensors\n"
    "  tessera run model.pt2 --random-inputs 0 --repeat 20 --profile\n"
    "  tessera run model.pt2 -i in.safetensors --expect out.safetensors\n";

/* One call: inputs file (or random numbers) in, outputs file out. */
typedef struct {
  Ctx *ctx;
  Session *session;
  const RunOptions *o;
  Scope scope;   /* inputs */
  Scope results; /* outputs of the last run */
  Arena arena, results_arena;
  Progress bar; /* over the steps of all runs */
  double *times; /* seconds of each repetition */
  double open_seconds;
} RunState;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

/* So many calls, of so many runs each: the last one's outputs are the call's. */
static int count_calls(const RunOptions *o) { return o->random || o->inputs.n == 0 ? 1 : o->inputs.n; }
static int64_t timed_runs(const RunOptions *o) { return o->repeat == NOT_GIVEN ? 1 : o->repeat; }

static Status feed(RunState *r, int call, Value **inputs, int *n) {
  const RunOptions *o = r->o;
  const Exported *e = session_program(r->session);
  if (o->random) return feed_random(e, (uint64_t)o->seed + (uint64_t)call, false, &r->scope, &r->arena, inputs, n);
  return feed_from_file(e, call < o->inputs.n ? o->inputs.v[call] : NULL, &r->scope, &r->arena, inputs, n);
}

/* Stateful programs must not run more often than asked: repetitions are timed runs. */
static Status timed(RunState *r, const Value *inputs, int ninputs, Value **outs, int *nouts) {
  for (int64_t k = -r->o->warmup; k < timed_runs(r->o); k++) {
    scope_clear(&r->results);
    arena_free(&r->results_arena);
    double start = seconds_now();
    TRY(session_run(r->session, inputs, ninputs, &r->results, &r->results_arena, outs, nouts));
    if (k >= 0) r->times[k] = seconds_now() - start;
  }
  return OK;
}

static void print_times(const RunState *r, double compile) {
  int64_t n = r->o->repeat;
  qsort(r->times, (size_t)n, sizeof *r->times, by_value);
  double least = r->times[0] * 1e3, median = r->times[n / 2] * 1e3, open = r->open_seconds * 1e3;
  if (r->o->json) {
    printf("{\"runs\": %lld, \"min_ms\": %.4f, \"median_ms\": %.4f, \"open_ms\": %.4f, \"compile_ms\": %.4f}\n", (long long)n, least, median, open, compile * 1e3);
  } else {
    printf("%lld run%s: min %.3f ms, median %.3f ms (open %.1f ms, compile %.1f ms)\n", (long long)n, PLURAL(n), least, median, open, compile * 1e3);
  }
}

static Status one_call(RunState *r, int call) {
  const RunOptions *o = r->o;
  Value *inputs, *outs;
  int ninputs, nouts = 0;
  int64_t steps;
  TRY(feed(r, call, &inputs, &ninputs));
  double start_compile = seconds_now();
  TRY(session_steps(r->session, inputs, ninputs, &steps));
  double compile = seconds_now() - start_compile;
  r->bar.total = r->bar.done + (count_calls(o) - call) * (o->warmup + timed_runs(o)) * steps;
  Status s = timed(r, inputs, ninputs, &outs, &nouts);
  progress_end(&r->bar);
  TRY(s);
  if (o->repeat != NOT_GIVEN) print_times(r, compile);
  if (call < o->outputs.n) TRY(outputs_save(o->outputs.v[call], outs, nouts, o->force));
  if (o->print_outputs) TRY(outputs_print(stdout, outs, nouts, o->json));
  if (o->profile) TRY(profile_print(stdout, r->session, inputs, ninputs, o->json));
  if (call < o->expect.n) TRY(compare_with_file(stdout, o->expect.v[call], outs, nouts, o->rtol, o->atol, o->json));
  if (o->nothing_asked && !o->json) TRY(outputs_list(stdout, outs, nouts));
  scope_clear(&r->results);
  scope_clear(&r->scope);
  arena_free(&r->results_arena);
  arena_free(&r->arena);
  return OK;
}

static Status run_calls(RunState *r, Exported *e) {
  const RunOptions *o = r->o;
  double start = seconds_now();
  TRY(session_open(r->ctx, e, &r->session));
  r->open_seconds += seconds_now() - start;
  if (o->interpret) session_force_interpreter(r->session);
  session_set_profile(r->session, o->profile);
  session_set_progress(r->session, &r->bar);
  progress_begin(&r->bar, stderr, "running", 0, PROGRESS_SHARE);
  int calls = count_calls(o);
  for (int i = 0; i < calls; i++) {
    Status s = one_call(r, i);
    if (s) return calls > 1 ? status_at(s, "call %d of %d", i + 1, calls) : s;
  }
  return OK;
}

static Status check_tolerance(const char *name, double x) {
  return x == BY_DTYPE || x >= 0 ? OK : fail(ERR_USAGE, "%s must not be negative", name);
}

static Status check_options(const RunOptions *o, const TextList *words) {
  if (words->n != 1) return status_hint(fail(ERR_USAGE, "run takes one program, %d were given", words->n), "tessera run model.pt2 -i in.safetensors -o out.safetensors");
  int calls = count_calls(o);
  if (o->random && o->inputs.n) return fail(ERR_USAGE, "--random-inputs and -i exclude each other");
  if (o->outputs.n > calls) return fail(ERR_USAGE, "%d output files for %d call%s: give one -i for each -o", o->outputs.n, calls, PLURAL(calls));
  if (o->expect.n > calls) return fail(ERR_USAGE, "%d files to --expect for %d call%s", o->expect.n, calls, PLURAL(calls));
  TRY(option_between("--repeat", o->repeat, 1, MOST_RUNS));
  TRY(option_between("--warmup", o->warmup, 0, MOST_RUNS));
  TRY(option_between("--threads", o->threads, 1, MOST_THREADS));
  TRY(check_tolerance("--rtol", o->rtol));
  TRY(check_tolerance("--atol", o->atol));
  for (int i = 0; i < o->outputs.n; i++) {
    TRY(output_check(o->outputs.v[i], o->force));
    for (int j = 0; j < i; j++) {
      if (!strcmp(o->outputs.v[i], o->outputs.v[j]) && strncmp(o->outputs.v[i], "/dev/", 5) != 0) return fail(ERR_USAGE, "'%s' is the output of two calls", o->outputs.v[i]);
    }
  }
  return OK;
}

Status command_run(int argc, char **argv) {
  RunOptions o = {.rtol = BY_DTYPE, .atol = BY_DTYPE, .repeat = NOT_GIVEN, .threads = NOT_GIVEN};
  const Option table[] = {
      {"--input", 'i', OPT_LIST, &o.inputs, "FILE", "inputs by name or position (.safetensors); several: successive calls, buffers keep their state"},
      {"--output", 'o', OPT_LIST, &o.outputs, "FILE", "outputs by position (.safetensors), one per -i"},
      {"--expect", 0, OPT_LIST, &o.expect, "FILE", "compare the outputs with this file; exit code 4 if they differ"},
      {"--rtol", 0, OPT_FLOAT, &o.rtol, "X", "with --expect: relative tolerance (default: by dtype)"},
      {"--atol", 0, OPT_FLOAT, &o.atol, "X", "with --expect: absolute tolerance (default: by dtype)"},
      {"--random-inputs", 0, OPT_TEXT, &o.random, "SEED", "make the inputs up; symbols take their smallest value above one"},
      {"--repeat", 0, OPT_INT, &o.repeat, "N", "run N times and print the least and the median time"},
      {"--warmup", 0, OPT_INT, &o.warmup, "N", "untimed runs before those"},
      {"--threads", 't', OPT_INT, &o.threads, "T", "threads (default: all cores)"},
      {"--print-outputs", 0, OPT_FLAG, &o.print_outputs, NULL, "print the outputs"},
      {"--profile", 0, OPT_FLAG, &o.profile, NULL, "print time per kind of op and per node"},
      {"--interpret", 0, OPT_FLAG, &o.interpret, NULL, "run node by node, without a compiled program"},
      {"--weights", 0, OPT_TEXT, &o.weights, "FILE", "weights of a program in text form (.pt2 or .safetensors)"},
      {"--json", 0, OPT_FLAG, &o.json, NULL, "results as JSON"},
      {"--force", 'f', OPT_FLAG, &o.force, NULL, "overwrite output files"},
  };
  TextList words;
  bool help;
  TRY(options_parse("run", "PROGRAM [-i FILE]... [-o FILE]... [options]", examples, OPTIONS(table), argc, argv, &words, &help));
  if (help) return OK;
  TRY(check_options(&o, &words));
  o.nothing_asked = o.repeat == NOT_GIVEN && !o.outputs.n && !o.expect.n && !o.print_outputs && !o.profile;
  if (o.random) {
    char *end;
    o.seed = strtoll(o.random, &end, 10);
    if (*end || end == o.random) return fail(ERR_USAGE, "--random-inputs takes a number, '%s' is none", o.random);
  }
  Exported *e;
  double start = seconds_now();
  TRY(program_load(words.v[0], o.weights, &e));
  double open_seconds = seconds_now() - start;
  Ctx ctx;
  ctx_init(&ctx, threads_or_default(o.threads));
  RunState r = {.ctx = &ctx, .o = &o, .open_seconds = open_seconds};
  r.times = calloc((size_t)timed_runs(&o), sizeof *r.times);
  Status s = r.times ? run_calls(&r, e) : fail_oom();
  progress_end(&r.bar);
  scope_clear(&r.results);
  scope_clear(&r.scope);
  arena_free(&r.results_arena);
  arena_free(&r.arena);
  session_free(r.session);
  ctx_free(&ctx);
  free(r.times);
  return s;
}
