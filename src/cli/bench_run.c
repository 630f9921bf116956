/* bench_run.c -- `tessera bench run`: how fast a program runs here.
 *
 * Opening, compiling for the inputs' sizes, and calls are timed apart.  A number is only
 * worth something on a quiet machine: the least and the median of the calls are both
 * printed, and their distance tells.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/grow.h"
#include "base/progress.h"
#include "cli/bench.h"
#include "cli/cli.h"
#include "harness/feed.h"
#include "runtime/estimate.h"
#include "runtime/session.h"

enum { MOST_RUNS = 1000000, DEFAULT_WARMUP = 2 };

typedef struct {
  const char *input, *weights;
  int64_t repeat, warmup, threads, seed;
  double seconds;
  bool json;
} BenchOptions;

static const char examples[] = "  tessera bench run model.pt2\n"
                               "  tessera bench run model.pt2 -i in.safetensors --repeat 50 --threads 1 --json\n";

typedef struct {
  const BenchOptions *o;
  Ctx ctx;
  Session *session;
  Scope scope;
  Arena arena;
  Value *inputs;
  int ninputs;
  double open, prepare; /* seconds */
  double *times;
  int64_t runs, cap;
} Bench;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static int64_t peak_bytes(void) {
  struct rusage u;
  return getrusage(RUSAGE_SELF, &u) ? 0 : (int64_t)u.ru_maxrss * 1024;
}

static Status one_run(Bench *b, double *seconds) {
  Scope scope = {0};
  Arena arena = {0};
  Value *outs;
  int n;
  double start = clock_now();
  Status s = session_run(b->session, b->inputs, b->ninputs, &scope, &arena, &outs, &n);
  *seconds = clock_now() - start;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status keep_time(Bench *b, double seconds) {
  TRY_ROOM(b->times, b->runs, b->cap);
  b->times[b->runs++] = seconds;
  return OK;
}

/* As often as asked; else for the time asked, five times at least. */
static Status measure(Bench *b) {
  const BenchOptions *o = b->o;
  Progress bar;
  double seconds, total = 0;
  Status s = OK;
  for (int64_t i = 0; i < o->warmup && !s; i++) s = one_run(b, &seconds);
  TRY(s);
  bool counted = o->repeat > 0;
  progress_begin(&bar, stderr, "running", counted ? o->repeat : (int64_t)(o->seconds * 1e3),
                 counted ? PROGRESS_STEPS : PROGRESS_SHARE);
  while (!s && (counted ? b->runs < o->repeat : b->runs < 5 || (total < o->seconds && b->runs < MOST_RUNS))) {
    s = one_run(b, &seconds);
    if (!s) s = keep_time(b, seconds);
    total += seconds;
    progress_set(&bar, counted ? b->runs : (int64_t)(total * 1e3));
  }
  progress_end(&bar);
  if (!s) qsort(b->times, (size_t)b->runs, sizeof *b->times, by_value);
  return s;
}

static Status report(Bench *b) {
  Program *p;
  char text[32], slab[32], peak[32];
  TRY(session_prepare(b->session, b->inputs, b->ninputs, &p));
  double least = b->times[0], median = b->times[b->runs / 2], flops = p ? program_flops(p) : 0;
  int64_t memory = peak_bytes();
  if (b->o->json) {
    printf("{\"runs\": %lld, \"threads\": %d, \"open_ms\": %.4f, \"compile_ms\": %.4f, \"min_ms\": %.4f, "
           "\"median_ms\": %.4f, ",
           (long long)b->runs, b->ctx.kern.threads, b->open * 1e3, b->prepare * 1e3, least * 1e3, median * 1e3);
    if (p)
      printf("\"flops\": %.0f, \"gflops_per_s\": %.3f, \"intermediate_bytes\": %zu, ", flops, flops / least * 1e-9,
             p->slab_bytes);
    printf("\"interpreted\": %s, \"peak_bytes\": %lld}\n", p ? "false" : "true", (long long)memory);
    return OK;
  }
  printf("open      %10.3f ms\ncompile   %10.3f ms\n", b->open * 1e3, b->prepare * 1e3);
  printf("run       %10.3f ms least, %.3f ms median of %lld, %d thread%s\n", least * 1e3, median * 1e3,
         (long long)b->runs, b->ctx.kern.threads, b->ctx.kern.threads == 1 ? "" : "s");
  if (p) {
    printf("rate      %10.2f GFLOP/s (%s a call)\n", flops / least * 1e-9, human_flops(flops, text, sizeof text));
    printf("memory    %13s for intermediate results, %s at most in all\n",
           human_bytes((double)p->slab_bytes, slab, sizeof slab), human_bytes((double)memory, peak, sizeof peak));
  } else {
    printf("memory    %13s at most; interpreted, as sizes or branches depend on data\n",
           human_bytes((double)memory, peak, sizeof peak));
  }
  return OK;
}

static Status run_bench(Bench *b, const char *path) {
  const BenchOptions *o = b->o;
  Exported *e;
  Program *p;
  double start = clock_now();
  TRY(program_load(path, o->weights, &e));
  TRY(session_open(&b->ctx, e, &b->session));
  b->open = clock_now() - start;
  const Exported *program = session_program(b->session);
  if (o->input) TRY(feed_from_file(program, o->input, &b->scope, &b->arena, &b->inputs, &b->ninputs));
  else TRY(feed_random(program, (uint64_t)o->seed, true, &b->scope, &b->arena, &b->inputs, &b->ninputs));
  start = clock_now();
  TRY(session_prepare(b->session, b->inputs, b->ninputs, &p));
  b->prepare = clock_now() - start;
  TRY(measure(b));
  return report(b);
}

static Status check_options(const BenchOptions *o, const TextList *words) {
  if (words->n != 1)
    return status_hint(fail(ERR_USAGE, "bench run takes one program, %d were given", words->n),
                       "tessera bench run model.pt2");
  TRY(option_between("--repeat", o->repeat, 1, MOST_RUNS));
  TRY(option_between("--warmup", o->warmup, 0, MOST_RUNS));
  TRY(option_between("--threads", o->threads, 1, MOST_THREADS));
  if (!(o->seconds >= 0 && o->seconds <= 86400)) return fail(ERR_USAGE, "--seconds must be between 0 and 86400");
  return OK;
}

static const Option options[] = {
    {"--input", 'i', OPT_TEXT | TAKES_TENSORS, offsetof(BenchOptions, input), "FILE",
     "inputs (.safetensors); default: made up, at the sizes of the export"},
    {"--seed", 0, OPT_INT, offsetof(BenchOptions, seed), "N", "of made-up inputs"},
    {"--repeat", 'r', OPT_INT, offsetof(BenchOptions, repeat), "N", "number of timed calls"},
    {"--seconds", 0, OPT_FLOAT, offsetof(BenchOptions, seconds), "S",
     "without --repeat: call for that long (default 1)"},
    {"--warmup", 0, OPT_INT, offsetof(BenchOptions, warmup), "N", "calls before those (default 2)"},
    {"--threads", 't', OPT_INT, offsetof(BenchOptions, threads), "T", "threads (default: all cores)"},
    {"--weights", 0, OPT_TEXT | TAKES_FILE, offsetof(BenchOptions, weights), "FILE",
     "weights of a program in text form (.pt2 or .safetensors)"},
    {"--json", 0, OPT_FLAG, offsetof(BenchOptions, json), NULL, "results as JSON"},
};
const CommandSpec spec_bench_run = {
    .usage = "PROGRAM [options]", .examples = examples, .words = TAKES_PROGRAM, OPTIONS(options)};

Status bench_run(const char *name, int argc, char **argv) {
  (void)name;
  BenchOptions o = {.repeat = NOT_GIVEN, .threads = NOT_GIVEN, .warmup = DEFAULT_WARMUP, .seconds = 1};
  TextList words;
  bool help;
  TRY(options_parse("bench run", &spec_bench_run, &o, argc, argv, &words, &help));
  if (help) return OK;
  TRY(check_options(&o, &words));
  Bench b = {.o = &o};
  ctx_init(&b.ctx, threads_or_default(o.threads));
  Status s = run_bench(&b, words.v[0]);
  scope_clear(&b.scope);
  arena_free(&b.arena);
  session_free(b.session);
  ctx_free(&b.ctx);
  free(b.times);
  return s;
}
