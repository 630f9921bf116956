/* plan.c -- `tessera plan`: what a program would do on a mesh of ranks.  Nothing is run,
 * and no rank is needed. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "cli/cli.h"
#include "cli/plan_memory.h"
#include "cli/run_ranks.h"
#include "cli/train_options.h"
#include "report/plan_report.h"
#include "runtime/feed_sizes.h"
#include "train/settings.h"
#include "train/spread.h"
#include "train/trainer.h"

static const char examples[] =
    "  tessera plan model.pt2 --mesh tp=4\n"
    "  tessera plan model.pt2 --mesh tp=4 --plan plan.json\n"
    "  tessera plan model.pt2 --mesh tp=4 --plan auto --save-plan plan.json\n"
    "  tessera plan model.pt2 --mesh dp=16,tp=64 --plan plan.json --machine a100 --report plan.html\n"
    "  tessera plan model.pt2 --mesh dp=2,tp=4 --plan plan.json --size s0=8 --size s1=1024\n"
    "  tessera plan model.pt2 --mesh tp=4 --plan plan.json --nodes | less\n"
    "  tessera plan model.pt2 --mesh tp=4 --plan plan.json --json | jq .rank.memory\n"
    "  tessera plan loss.pt2 --mesh dp=2,tp=2 --plan plan.json --grad\n"
    "  tessera plan loss.pt2 --grad --memory 600M\n"
    "  tessera plan loss.pt2 --train=adamw --memory 2G\n"
    "  tessera plan loss.pt2 --train --mesh dp=16,tp=64 --batch 128 --machine a100 --report step.html\n"
    "  tessera bench calibrate -o machine.json && tessera plan model.pt2 --mesh tp=2 --plan plan.json --machine "
    "machine.json\n";

typedef struct {
  const char *mesh, *plan, *machine, *report, *save, *weights, *memory, *train, *clip, *dtype, *data_axis,
      *data_parallel, *fsdp, *wrap, *bucket_mb, *reduce_dtype;
  TextList sizes;
  int64_t rank, batch, accumulate, prefetch;
  GradientWords gradients;
  bool json, nodes, all_weights, force, keep_gathered, whole_updates;
} PlanOptions;

/* ---- sizes ---------------------------------------------------------------------------------- */

static SymRange *range_of(Exported *e, const char *symbol, size_t len) {
  for (int i = 0; i < e->nranges; i++)
    if (strlen(e->ranges[i].symbol) == len && !strncmp(e->ranges[i].symbol, symbol, len)) return &e->ranges[i];
  return NULL;
}

/* "s0=4": from now on that is the symbol's value when nobody says another. */
static Status set_size(Exported *e, const char *word) {
  size_t len = strcspn(word, "=");
  char *end;
  long long value = word[len] ? strtoll(word + len + 1, &end, 10) : 0;
  if (!len || !word[len] || end == word + len + 1 || *end)
    return fail(ERR_USAGE, "--size takes SYMBOL=NUMBER, '%s' is not that", word);
  SymRange *r = range_of(e, word, len);
  if (!r) {
    Status s = fail(ERR_USAGE, "the program has no symbol '%.*s' in its sizes", (int)len, word);
    if (!e->nranges) return status_hint(s, "all its sizes are fixed: it was exported without dynamic shapes");
    return status_hint(s, "`tessera inspect` lists its symbols: %s%s%s ...", e->ranges[0].symbol,
                       e->nranges > 1 ? ", " : "", e->nranges > 1 ? e->ranges[1].symbol : "");
  }
  if (value < r->min || value > r->max)
    return fail(ERR_USAGE, "%s=%lld: the program takes %lld to %lld", r->symbol, value, (long long)r->min,
                (long long)r->max);
  r->hint = value;
  return OK;
}

static Status sizes_text(Arena *arena, const SymBindings *b, const char **out) {
  TextBuf t = {0};
  for (int i = 0; i < b->n; i++)
    text_printf(&t, "%s%s=%lld", i ? ", " : "", b->v[i].name, (long long)b->v[i].value);
  *out = arena_strdup(arena, t.text ? t.text : "");
  bool failed = t.failed || !*out;
  text_free(&t);
  return failed ? fail_oom() : OK;
}

/* ---- the report ------------------------------------------------------------------------------- */

static Status print_report(const PlanReport *r, const PlanOptions *o) {
  if (o->json) {
    yyjson_mut_doc *doc;
    TRY(plan_report_json(r, &doc));
    return json_print(stdout, doc);
  }
  TextBuf b = {0};
  plan_report_text(&b, r, (PlanTextOptions){.nodes = o->nodes, .weights = o->all_weights});
  Status s = b.failed ? fail_oom() : OK;
  if (!s) print_plain(stdout, b.text ? b.text : "");
  text_free(&b);
  return s;
}

/* --batch: as many rows of every input that has those of the first. */
static Status set_batch(const Value *inputs, int n, int64_t rows) {
  int64_t before = -1;
  for (int i = 0; i < n; i++) {
    Tensor *t = inputs[i].kind == VAL_TENSOR ? inputs[i].tensor : NULL;
    if (!t || !t->ndim) continue;
    if (before < 0) before = t->size[0];
    if (t->size[0] != before) continue;
    t->size[0] = rows;
    contiguous_strides(t->ndim, t->size, t->stride);
  }
  return before < 0 ? fail(ERR_USAGE, "--batch: no input of the program has rows") : OK;
}

static Status report_program(const PlanOptions *o, const Exported *e, PlanRequest *r, Scope *scope, Arena *arena) {
  GradOptions grad;
  PlanReport *report;
  SymBindings b;
  if (o->gradients.names && !r->step) {
    grad = gradient_words_ask(&o->gradients);
    r->grad = &grad;
  }
  Value *inputs;
  TRY(feed_symbols(e, true, &b));
  Status s = sizes_text(arena, &b, &r->sizes);
  if (!s) s = feed_sizes(e, &b, scope, arena, &inputs, &r->ninputs);
  free(b.v);
  TRY(s);
  if (o->batch) TRY(set_batch(inputs, r->ninputs, o->batch));
  r->inputs = inputs;
  TRY(plan_report(e, r, &report));
  s = print_report(report, o);
  if (!s && o->save && report->derived)
    s = file_write_all(o->save, report->derived, strlen(report->derived), o->force ? FILE_OVERWRITE : 0);
  if (!s && o->report) s = plan_report_write(report, o->report, o->force ? FILE_OVERWRITE : 0);
  plan_report_free(report);
  return s;
}

static SpreadSettings spread_of(const PlanOptions *o) {
  return (SpreadSettings){.mesh = o->mesh,
                          .data_axis = o->data_axis,
                          .data_parallel = o->data_parallel,
                          .fsdp = o->fsdp,
                          .wrap = o->wrap,
                          .keep_gathered = o->keep_gathered,
                          .prefetch = given_or(o->prefetch, -1),
                          .whole_updates = o->whole_updates,
                          .reduce_dtype = o->reduce_dtype,
                          .bucket_mb = o->bucket_mb};
}

/* --train on a mesh: prepared as `tessera train` does it, which takes over the program. */
static Status prepare_step(Ctx *ctx, const PlanOptions *o, const char *path, const PlanFile *plan, Arena *arena,
                           Prepared **out) {
  Exported *e;
  Recipe *recipe;
  TRY_NEW(recipe, arena_new(arena, Recipe));
  const TrainSettings settings = {
      .optim = *o->train ? o->train : NULL, .clip = o->clip, .dtype = o->dtype, .accumulate = o->accumulate};
  const SpreadSettings spread = spread_of(o);
  TrainerPlan how = {.loss = o->gradients.loss, .recipe = recipe};
  TRY(spread_plan(&spread, plan, &how));
  TRY(settings_recipe(&settings, arena, recipe));
  TRY(program_load(path, o->weights, &e));
  Status s = spread_check_modules(o->wrap, arena, e);
  for (int i = 0; i < o->sizes.n && !s; i++) s = set_size(e, o->sizes.v[i]);
  if (!s) s = plan_report_sizes(e);
  if (s) return exported_free(e), s;
  return trainer_prepare(ctx, e, &how, out);
}

/* What is left open by the user. */
static Status train_request(PlanOptions *o, PlanRequest *r, PlanFile **plan) {
  TRY(mesh_plan_read(&o->mesh, o->plan, plan));
  if (!o->mesh) o->mesh = "dp=1";
  r->mesh = o->mesh;
  r->plan = *plan;
  return o->memory ? memory_limit_parse(o->memory, &r->memory) : OK;
}

static Status check_files(const PlanOptions *o, Machine *machine) {
  if (o->report) TRY(output_check(o->report, o->force));
  if (o->save && o->plan && strcmp(o->plan, "auto") != 0)
    return fail(ERR_USAGE, "--save-plan is for plans that are derived (--plan auto)");
  if (o->save) TRY(output_check(o->save, o->force));
  return o->machine ? machine_find(o->machine, machine) : OK;
}

static Status plan_training(PlanOptions *o, const char *path) {
  PlanFile *plan = NULL;
  Prepared *step = NULL;
  Machine machine;
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  PlanRequest r = {.machine = o->machine ? &machine : NULL, .rank = (int)o->rank};
  TRY(check_files(o, &machine));
  ctx_init(&ctx, 1);
  const SpreadSettings words = spread_of(o);
  ReduceGradients reduce;
  Status s = train_request(o, &r, &plan);
  if (!s) s = spread_reductions(&words, &arena, &reduce);
  r.reduce = &reduce;
  if (!s) s = prepare_step(&ctx, o, path, plan, &arena, &step);
  r.step = step;
  if (!s) s = report_program(o, step->program, &r, &scope, &arena);
  scope_clear(&scope);
  prepared_unref(step);
  ctx_free(&ctx);
  arena_free(&arena);
  plan_file_free(plan);
  return s;
}

/* --memory, and --train without a mesh: what a limit of memory costs on one rank. */
static Status limit_program(const PlanOptions *o, const char *path) {
  Exported *e;
  MemoryLimit limit;
  const char *option = o->train ? "--train" : "--memory";
  TRY(memory_limit_parse(o->memory ? o->memory : "100%", &limit));
  if (!o->gradients.names && !o->train)
    return status_hint(fail(ERR_USAGE, "--memory limits what is kept for a backward"),
                       "give --grad or --train, too");
  if (o->mesh || o->plan || o->report || o->save || o->machine || o->nodes || o->all_weights)
    return status_hint(fail(ERR_USAGE, "%s tells of the program on one rank", option),
                       "leave out what speaks of a mesh: tessera plan loss.pt2 --grad --memory 70%%");
  TRY(program_load(path, o->weights, &e));
  for (int i = 0; i < o->sizes.n; i++) {
    Status s = set_size(e, o->sizes.v[i]);
    if (s) return exported_free(e), s;
  }
  return plan_memory(e, &o->gradients, o->train, limit, o->json);
}

static Status plan_program(const PlanOptions *o, const char *path) {
  Exported *e;
  PlanFile *plan = NULL;
  Machine machine;
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  PlanRequest r = {.mesh = o->mesh, .machine = o->machine ? &machine : NULL, .rank = (int)o->rank};
  TRY(check_files(o, &machine));
  TRY(plan_file_read(o->plan ? o->plan : "auto", &plan));
  Status s = program_load(path, o->weights, &e);
  if (s) return plan_file_free(plan), s;
  r.plan = plan;
  ctx_init(&ctx, 1);
  s = plan_report_prepare(&ctx, e);
  for (int i = 0; i < o->sizes.n && !s; i++) s = set_size(e, o->sizes.v[i]);
  if (!s) s = report_program(o, e, &r, &scope, &arena);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  exported_free(e);
  plan_file_free(plan);
  return s;
}

static const Option options[] = {
    {"--mesh", 'm', OPT_TEXT | TAKES_MESH, offsetof(PlanOptions, mesh), "AXES",
     "ranks on named axes: tp=4 or dp=2,tp=4 (default: the plan's)"},
    {"--plan", 'p', OPT_TEXT | TAKES_PLAN, offsetof(PlanOptions, plan), "FILE",
     "which weights are sharded how: a plan (JSON), as Hugging Face models have them too, or auto (default)"},
    {"--save-plan", 0, OPT_TEXT | TAKES_FILE, offsetof(PlanOptions, save), "FILE",
     "write the plan that auto derived, to be edited and used again"},
    {"--machine", 0, OPT_TEXT | TAKES_MACHINE, offsetof(PlanOptions, machine), "NAME|FILE",
     "predict times: cpu2, a100, h100, or a file as `tessera bench calibrate` writes it"},
    {"--size", 's', OPT_LIST, offsetof(PlanOptions, sizes), "SYMBOL=N",
     "value of a symbol in the sizes (default: as exported); may be given several times"},
    GRADIENT_OPTIONS(PlanOptions, gradients),
    {"--train", 0, OPT_MAYBE, offsetof(PlanOptions, train), "OPTIM",
     "a step of training with this optimizer (default adamw): with --mesh or --machine its collectives, memory and "
     "predicted time; else what it takes on one rank, and the curve of memory against time"},
    {"--batch", 0, OPT_INT, offsetof(PlanOptions, batch), "N",
     "with --train: rows of a batch of all ranks (default: as exported)"},
    {"--clip", 0, OPT_TEXT, offsetof(PlanOptions, clip), "MAX,..", "with --train: as `tessera train` takes it"},
    {"--dtype", 0, OPT_TEXT | TAKES_DTYPE, offsetof(PlanOptions, dtype), "DTYPE",
     "with --train: compute products in bf16 or f16"},
    {"--data-axis", 0, OPT_TEXT, offsetof(PlanOptions, data_axis), "AXIS",
     "with --train: of the mesh, over which batches are sharded (default: those called dp, data, fsdp ...)"},
    {"--data-parallel", 0, OPT_TEXT, offsetof(PlanOptions, data_parallel), "global|local",
     "with --train: as `tessera train` takes it"},
    {"--accumulate", 0, OPT_INT, offsetof(PlanOptions, accumulate), "N",
     "with --train: a step is made with the mean gradient of N batches"},
    {"--bucket-mb", 0, OPT_TEXT, offsetof(PlanOptions, bucket_mb), "N|auto",
     "with --train: MiB of gradients that are reduced at once (default 4; auto: as the machine is done first)"},
    {"--whole-updates", 0, OPT_FLAG, offsetof(PlanOptions, whole_updates), NULL,
     "with --train: ranks that have a parameter each update all of it (default: a part each)"},
    {"--reduce-dtype", 0, OPT_TEXT, offsetof(PlanOptions, reduce_dtype), "bf16|f16",
     "with --train: gradients are rounded to it before they are added up over the ranks"},
    {"--fsdp", 0, OPT_MAYBE, offsetof(PlanOptions, fsdp), "AXIS",
     "with --train: parameters, gradients and optimizer state are sharded over the data axis, too"},
    OPTIONS_OF_GROUPS(PlanOptions),
    {"--memory", 0, OPT_TEXT, offsetof(PlanOptions, memory), "BYTES",
     "with --train, or with --grad and without a mesh: what is computed again so that intermediate results take at "
     "most 600M, 2G, or 70% of what they take without a limit"},
    {"--report", 'r', OPT_TEXT | TAKES_FILE, offsetof(PlanOptions, report), "FILE",
     "write the report there, too: .html (a page for a browser), .json, else text with all tables"},
    {"--nodes", 0, OPT_FLAG, offsetof(PlanOptions, nodes), NULL, "also the placements at every node"},
    {"--weights-table", 0, OPT_FLAG, offsetof(PlanOptions, all_weights), NULL,
     "also the placement of every weight"},
    {"--rank", 0, OPT_INT, offsetof(PlanOptions, rank), "N",
     "as that rank sees it (default 0, which holds the most)"},
    {"--weights", 0, OPT_TEXT | TAKES_FILE, offsetof(PlanOptions, weights), "FILE",
     "weights of a program in text form; not needed"},
    {"--json", 0, OPT_FLAG, offsetof(PlanOptions, json), NULL, "everything as JSON"},
    {"--force", 'f', OPT_FLAG, offsetof(PlanOptions, force), NULL, "overwrite the report"},
};
const CommandSpec spec_plan = {.usage = "PROGRAM --mesh AXES [--plan FILE] [options]",
                               .examples = examples,
                               .words = TAKES_PROGRAM,
                               OPTIONS(options)};

Status command_plan(int argc, char **argv) {
  PlanOptions o = {.prefetch = NOT_GIVEN};
  TextList words;
  bool help;
  TRY(options_parse("plan", &spec_plan, &o, argc, argv, &words, &help));
  if (help) return OK;
  if (words.n != 1)
    return status_hint(fail(ERR_USAGE, "plan takes one program, %d were given", words.n),
                       "tessera plan model.pt2 --mesh tp=4 --plan plan.json");
  if (o.rank < 0 || o.rank > 1 << 24) return fail(ERR_USAGE, "--rank must be between 0 and the number of ranks");
  if (!o.train) TRY(gradient_words_check(&o.gradients));
  if (o.batch < 0 || o.batch > INT32_MAX) return fail(ERR_USAGE, "--batch must be between 1 and %d", INT32_MAX);
  if (!o.train && (o.batch || o.clip || o.dtype || o.data_axis || o.fsdp || o.data_parallel || o.accumulate ||
                   o.bucket_mb || o.reduce_dtype || o.whole_updates))
    return status_hint(fail(ERR_USAGE,
                            "--batch, --clip, --dtype, --data-axis, --data-parallel, --accumulate, --bucket-mb, "
                            "--reduce-dtype, --whole-updates and --fsdp speak of a training"),
                       "give --train, too");
  if (o.fsdp && !o.mesh && !o.plan)
    return status_hint(fail(ERR_USAGE, "--fsdp shards parameters over the ranks of a mesh"), "--mesh dp=4");
  TRY(options_of_groups(o.fsdp, o.wrap, o.keep_gathered, o.prefetch));
  bool looks = o.mesh || o.plan || o.machine || o.report || o.nodes || o.all_weights || o.batch || o.dtype ||
               o.accumulate || o.data_parallel || o.whole_updates;
  if (o.train && looks) return plan_training(&o, words.v[0]);
  if (o.memory || o.train) return limit_program(&o, words.v[0]);
  if (!o.mesh && !o.plan) return status_hint(fail(ERR_USAGE, "which mesh?"), "--mesh tp=4");
  return plan_program(&o, words.v[0]);
}
