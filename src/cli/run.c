/* run.c -- `tessera run`: a program on inputs, once or several times, on one rank or
 * several. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/run_calls.h"
#include "cli/run_ranks.h"

enum { MOST_RUNS = 100000000 };
static const char examples[] =
    "  tessera run model.pt2 -i in.safetensors -o out.safetensors\n"
    "  tessera run model.pt2 -i step0.safetensors -i step1.safetensors -o out0.safetensors -o out1.safetensors\n"
    "  tessera run model.pt2 --random-inputs 0 --repeat 20 --profile\n"
    "  tessera run model.pt2 -i in.safetensors --trace trace.json\n"
    "  tessera run model.pt2 -i in.safetensors --expect out.safetensors\n"
    "  tessera run loss.pt2 -i in.safetensors --grad -o out.safetensors\n"
    "  tessera run loss.pt2 -i in.safetensors --grad --memory 600M -o out.safetensors\n"
    "  tessera run model.pt2 --mesh tp=2 --plan plan.json -i in.safetensors --check\n"
    "  mpirun -n 4 tessera run model.pt2 --mesh dp=2,tp=2 --plan plan.json -i in.safetensors -o out.safetensors\n"
    "  tessera run step.pt2 -n 2 -i rank0.safetensors,rank1.safetensors -o out.safetensors\n"
    "  tessera run DIR -i in.safetensors -o results/      (DIR/rank0.pt2, rank1.pt2 ...)\n"
    "  mpirun -n 2 tessera run step.pt2 -i in.{rank}.safetensors -o out.{rank}.safetensors\n";

static Status check_tolerance(const char *name, double x) {
  return x == BY_DTYPE || x >= 0 ? OK : fail(ERR_USAGE, "%s must not be negative", name);
}

static Status check_options(const RunOptions *o, const TextList *words) {
  if (!words->n)
    return status_hint(fail(ERR_USAGE, "run takes a program, none was given"),
                       "tessera run model.pt2 -i in.safetensors -o out.safetensors");
  int calls = run_count_calls(o);
  if (o->check && *o->check && strcmp(o->check, "nodes"))
    return fail(ERR_USAGE, "--check=%s: there is --check and --check=nodes", o->check);
  for (int i = 0; o->check && !*o->check && i < words->n; i++)
    if (!strcmp(words->v[i], "nodes"))
      return status_hint(fail(ERR_USAGE, "'nodes' is taken for a program"), "write --check=nodes");
  TRY(gradient_words_check(&o->gradients));
  MemoryLimit limit;
  if (o->memory) TRY(memory_limit_parse(o->memory, &limit));
  if (o->random && o->inputs.n) return fail(ERR_USAGE, "--random-inputs and -i exclude each other");
  if (o->outputs.n > calls)
    return fail(ERR_USAGE, "%d output files for %d call%s: give one -i for each -o", o->outputs.n, calls,
                PLURAL(calls));
  if (o->expect.n > calls)
    return fail(ERR_USAGE, "%d files to --expect for %d call%s", o->expect.n, calls, PLURAL(calls));
  TRY(option_between("--repeat", o->repeat, 1, MOST_RUNS));
  TRY(option_between("--warmup", o->warmup, 0, MOST_RUNS));
  TRY(option_between("--threads", o->threads, 1, MOST_THREADS));
  TRY(check_tolerance("--rtol", o->rtol));
  TRY(check_tolerance("--atol", o->atol));
  for (int i = 0; i < o->outputs.n; i++) {
    for (int j = 0; j < i; j++) {
      if (!strcmp(o->outputs.v[i], o->outputs.v[j]) && strncmp(o->outputs.v[i], "/dev/", 5) != 0)
        return fail(ERR_USAGE, "'%s' is the output of two calls", o->outputs.v[i]);
    }
  }
  return OK;
}

static Status run_alone(const RunOptions *o, const char *path) {
  Exported *e;
  Prepared *p = NULL;
  for (int i = 0; i < o->outputs.n; i++) TRY(output_check(o->outputs.v[i], o->force));
  if (o->trace) TRY(output_check(o->trace, o->force));
  double start = clock_now();
  TRY(program_load(path, o->weights, &e));
  Ctx ctx;
  ctx_init(&ctx, threads_or_default(o->threads));
  Status s = prepare(&ctx, e, &p);
  if (!s) s = run_calls(&ctx, NULL, p, o, clock_now() - start);
  prepared_unref(p);
  ctx_free(&ctx);
  return s;
}

static Status run_all(const RunOptions *o, const RankOptions *ro, const TextList *words) {
  Arena arena = {0};
  RankPrograms programs;
  Status s = rank_programs(&arena, words, &programs);
  if (!s) s = run_ranks_wanted(ro, &programs, o) ? run_ranks(ro, &programs, o) : run_alone(o, words->v[0]);
  arena_free(&arena);
  return s;
}

/* --plan, and the mesh that it may tell. */
static Status read_plan(RunOptions *o, const char *path, PlanFile **out) {
  TRY(mesh_plan_read(&o->mesh, path, out));
  if (o->check && !o->mesh)
    return status_hint(fail(ERR_USAGE, "--check compares a mesh's ranks with one rank"),
                       "--mesh tp=2 --plan plan.json; or --expect FILE");
  return OK;
}

typedef struct {
  RunOptions o;
  RankOptions ro;
  const char *plan_path;
} RunCommand;

static const Option options[] = {
    {"--input", 'i', OPT_LIST | TAKES_TENSORS, offsetof(RunCommand, o.inputs), "FILE",
     "inputs by name or position (.safetensors); several: successive calls, buffers keep their state"},
    {"--output", 'o', OPT_LIST | TAKES_FILE, offsetof(RunCommand, o.outputs), "FILE",
     "outputs by position (.safetensors), one per -i; if ranks differ: FILE.rank0 ..., a folder, or x.{rank}.y"},
    {"--expect", 0, OPT_LIST | TAKES_TENSORS, offsetof(RunCommand, o.expect), "FILE",
     "compare the outputs with this file; exit code 4 if they differ"},
    {"--rtol", 0, OPT_FLOAT, offsetof(RunCommand, o.rtol), "X",
     "with --expect: relative tolerance (default: by dtype)"},
    {"--atol", 0, OPT_FLOAT, offsetof(RunCommand, o.atol), "X",
     "with --expect: absolute tolerance (default: by dtype)"},
    {"--random-inputs", 0, OPT_TEXT, offsetof(RunCommand, o.random), "SEED",
     "make the inputs up; symbols take their smallest value above one"},
    {"--repeat", 0, OPT_INT, offsetof(RunCommand, o.repeat), "N",
     "run N times and print the least and the median time"},
    {"--warmup", 0, OPT_INT, offsetof(RunCommand, o.warmup), "N", "untimed runs before those"},
    {"--threads", 't', OPT_INT, offsetof(RunCommand, o.threads), "T",
     "threads (default: all cores; of each rank: its share)"},
    {"--print-outputs", 0, OPT_FLAG, offsetof(RunCommand, o.print_outputs), NULL, "print the outputs"},
    {"--profile", 0, OPT_FLAG, offsetof(RunCommand, o.profile), NULL, "print time per kind of op and per node"},
    {"--trace", 0, OPT_TEXT | TAKES_FILE, offsetof(RunCommand, o.trace), "FILE",
     "write when each node of the last run began and ended, for ui.perfetto.dev or Chrome (.json)"},
    {"--interpret", 0, OPT_FLAG, offsetof(RunCommand, o.interpret), NULL,
     "run node by node, without a compiled program"},
    {"--mesh", 0, OPT_TEXT | TAKES_MESH, offsetof(RunCommand, o.mesh), "AXES",
     "partition the program over a mesh of ranks: tp=2, dp=2,tp=4"},
    {"--plan", 0, OPT_TEXT | TAKES_PLAN, offsetof(RunCommand, plan_path), "FILE",
     "which weights are sharded how: a plan (JSON), as Hugging Face models have them too, or auto (default)"},
    {"--check", 0, OPT_MAYBE, offsetof(RunCommand, o.check), "nodes",
     "with --mesh: run on one rank too and compare the outputs, or every node; exit code 4"},
    GRADIENT_OPTIONS(RunCommand, o.gradients),
    {"--memory", 0, OPT_TEXT, offsetof(RunCommand, o.memory), "BYTES",
     "of a program with gradients: intermediate results take at most 600M, 2G, or 70% of what they take without a "
     "limit; what does "
     "not fit is computed again"},
    {"--ranks", 'n', OPT_INT, offsetof(RunCommand, ro.ranks), "N",
     "on N ranks that communicate by the program's collectives; files of each: a,b or x.{rank}.y"},
    {"--comm", 0, OPT_TEXT | TAKES_COMM, offsetof(RunCommand, ro.comm), "HOW",
     "ranks are threads, or processes of an MPI launch: mpi (default there)"},
    {"--group", 0, OPT_LIST, offsetof(RunCommand, ro.groups), "NAME=RANKS",
     "who is in a group that the program names: 0,1,2 or all (default: all; a folder's plan.json)"},
    {"--timeout", 0, OPT_FLOAT, offsetof(RunCommand, ro.timeout), "SECONDS",
     "a rank that waits longer names who is missing and ends the run (default 1800; 0: never)"},
    {"--flight", 0, OPT_TEXT | TAKES_FILE, offsetof(RunCommand, ro.flight), "FILE",
     "on failure, the last collectives of all ranks as JSON (mpi: FILE.RANK each)"},
    {"--weights", 0, OPT_TEXT | TAKES_FILE, offsetof(RunCommand, o.weights), "FILE",
     "weights of a program in text form (.pt2 or .safetensors)"},
    {"--json", 0, OPT_FLAG, offsetof(RunCommand, o.json), NULL, "results as JSON"},
    {"--force", 'f', OPT_FLAG, offsetof(RunCommand, o.force), NULL, "overwrite output files"},
};
const CommandSpec spec_run = {.usage = "PROGRAM|RANKS.. [-i FILE]... [-o FILE]... [options]",
                              .examples = examples,
                              .words = TAKES_PROGRAM,
                              OPTIONS(options)};

Status command_run(int argc, char **argv) {
  RunCommand all = {.o = {.rtol = BY_DTYPE, .atol = BY_DTYPE, .repeat = NOT_GIVEN, .threads = NOT_GIVEN},
                    .ro = {.ranks = NOT_GIVEN, .timeout = BY_DEFAULT}};
  TextList words;
  bool help;
  TRY(options_parse("run", &spec_run, &all, argc, argv, &words, &help));
  if (help) return OK;
  RunOptions *o = &all.o;
  TRY(check_options(o, &words));
  TRY(rank_options_check(&all.ro));
  o->nothing_asked = o->repeat == NOT_GIVEN && !o->outputs.n && !o->expect.n && !o->print_outputs && !o->profile &&
                     !o->trace;
  if (o->random) {
    char *end;
    o->seed = strtoll(o->random, &end, 10);
    if (*end || end == o->random) return fail(ERR_USAGE, "--random-inputs takes a number, '%s' is none", o->random);
  }
  PlanFile *plan = NULL;
  TRY(read_plan(o, all.plan_path, &plan));
  o->plan = plan;
  o->path = words.v[0];
  Status s = run_all(o, &all.ro, &words);
  plan_file_free(plan);
  return s;
}
