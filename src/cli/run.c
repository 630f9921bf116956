/* run.c -- `tessera run`: a program on inputs, once or several times. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/compare.h"
#include "cli/feed.h"
#include "cli/profile.h"
#include "runtime/session.h"
#include "runtime/specialize.h"
#include "tensor/print.h"

typedef struct {
  TextList inputs, outputs, expect;
  int64_t repeat, threads, seed, warmup;
  bool print_outputs, profile, json, force, interpret;
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
  Arena arena;
  double *times; /* seconds of each repetition */
  double open_seconds;
} RunState;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static Status save_outputs(const RunState *r, const char *path, const Value *outs, int n) {
  SafeItem *items = calloc((size_t)n + 1, sizeof *items);
  char(*names)[16] = calloc((size_t)n + 1, sizeof *names);
  Status s = items && names ? OK : fail_oom();
  int count = 0;
  for (int i = 0; i < n && !s; i++) {
    if (outs[i].kind != VAL_TENSOR) continue;
    snprintf(names[count], sizeof names[count], "%d", i);
    items[count] = (SafeItem){names[count], outs[i].tensor};
    count++;
  }
  if (!s) s = safetensors_save(path, items, count, NULL, 0, r->o->force ? FILE_OVERWRITE : 0);
  free(items);
  free(names);
  return s;
}

static Status print_outputs(const Value *outs, int n) {
  for (int i = 0; i < n; i++) {
    TextBuf b = {0};
    const Value *v = &outs[i];
    if (v->kind == VAL_TENSOR) tensor_print(&b, v->tensor, 1000);
    else if (v->kind == VAL_INT) text_printf(&b, "%lld", (long long)v->i);
    else if (v->kind == VAL_BOOL) text_puts(&b, v->b ? "true" : "false");
    else if (v->kind == VAL_FLOAT) text_printf(&b, "%.9g", v->f);
    else text_puts(&b, v->kind == VAL_STR ? v->str : "None");
    if (b.failed) return text_free(&b), fail_oom();
    printf("%d: %s\n", i, b.text);
    text_free(&b);
  }
  return OK;
}

static Status one_call(RunState *r, int call) {
  const RunOptions *o = r->o;
  const Exported *e = session_program(r->session);
  Value *inputs, *outs;
  int ninputs, nouts = 0;
  if (o->random) TRY(feed_random(e, (uint64_t)o->seed + (uint64_t)call, false, &r->scope, &r->arena, &inputs, &ninputs));
  else TRY(feed_from_file(e, call < o->inputs.n ? o->inputs.v[call] : NULL, &r->scope, &r->arena, &inputs, &ninputs));
  /* Stateful programs must not run more often than asked: repetitions are timed runs. */
  int64_t repeat = o->repeat > 0 ? o->repeat : 1;
  Program *program;
  double start_compile = seconds_now();
  TRY(session_prepare(r->session, inputs, ninputs, &program));
  double compile = seconds_now() - start_compile;
  for (int64_t k = -o->warmup; k < repeat; k++) {
    scope_clear(&r->results);
    double start = seconds_now();
    TRY(session_run(r->session, inputs, ninputs, &r->results, &r->arena, &outs, &nouts));
    if (k >= 0) r->times[k] = seconds_now() - start;
  }
  if (o->repeat > 0) {
    qsort(r->times, (size_t)repeat, sizeof *r->times, by_value);
    if (o->json) printf("{\"runs\": %lld, \"min_ms\": %.4f, \"median_ms\": %.4f, \"open_ms\": %.4f, \"compile_ms\": %.4f}\n", (long long)repeat, r->times[0] * 1e3,
                        r->times[repeat / 2] * 1e3, r->open_seconds * 1e3, compile * 1e3);
    else printf("%lld runs: min %.3f ms, median %.3f ms (open %.1f ms, compile %.1f ms)\n", (long long)repeat, r->times[0] * 1e3,
                r->times[repeat / 2] * 1e3, r->open_seconds * 1e3, compile * 1e3);
  }
  if (call < o->outputs.n) TRY(save_outputs(r, o->outputs.v[call], outs, nouts));
  if (o->print_outputs) TRY(print_outputs(outs, nouts));
  if (o->profile) TRY(profile_print(stdout, r->session, inputs, ninputs, o->json));
  if (call < o->expect.n) TRY(compare_with_file(stdout, o->expect.v[call], outs, nouts, o->rtol, o->atol, o->json));
  scope_clear(&r->results);
  scope_clear(&r->scope);
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
  int calls = o->random || o->inputs.n == 0 ? 1 : o->inputs.n;
  for (int i = 0; i < calls; i++) {
    Status s = one_call(r, i);
    if (s) return calls > 1 ? status_at(s, "call %d of %d", i + 1, calls) : s;
  }
  return OK;
}

static Status check_options(const RunOptions *o, const TextList *words) {
  if (words->n != 1) return status_hint(fail(ERR_USAGE, "run takes one program, %d were given", words->n), "tessera run model.pt2 -i in.safetensors -o out.safetensors");
  int calls = o->random || o->inputs.n == 0 ? 1 : o->inputs.n;
  if (o->random && o->inputs.n) return fail(ERR_USAGE, "--random-inputs and -i exclude each other");
  if (o->outputs.n > calls) return fail(ERR_USAGE, "%d output files for %d calls: give one -i for each -o", o->outputs.n, calls);
  if (o->expect.n > calls) return fail(ERR_USAGE, "%d files to --expect for %d calls", o->expect.n, calls);
  if (o->repeat < 0 || o->repeat > 100000000) return fail(ERR_USAGE, "--repeat must be between 1 and 100000000");
  if (o->threads < 0) return fail(ERR_USAGE, "--threads must be positive");
  for (int i = 0; i < o->outputs.n && !o->force; i++) {
    if (file_exists(o->outputs.v[i])) return status_hint(fail(ERR_USAGE, "'%s' exists already", o->outputs.v[i]), "--force overwrites it");
  }
  return OK;
}

Status command_run(int argc, char **argv) {
  RunOptions o = {.rtol = -1, .atol = -1};
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
  r.times = calloc((size_t)(o.repeat > 0 ? o.repeat : 1), sizeof *r.times);
  Status s = r.times ? run_calls(&r, e) : fail_oom();
  scope_clear(&r.results);
  scope_clear(&r.scope);
  arena_free(&r.arena);
  session_free(r.session);
  ctx_free(&ctx);
  free(r.times);
  return s;
}
