/* Trainings that bytes choose: a golden program that returns a loss, as it is or with changes (changed_model.h),
 * any settings, any mesh of two ranks, FSDP with its options.  Steps are made and evaluated, planned, written as
 * rank files, or the program of a step goes through a random list of passes.  What is asked for may be refused; it
 * may not crash, and what comes out of passes must be well formed. */
#include <stdio.h>

#include "changed_model.h"
#include "check_program.h"
#include "dist/dispatch.h"
#include "harness/feed.h"
#include "limit_memory.h"
#include "passes/pass.h"
#include "rank_files/partition.h"
#include "runtime/ranks.h"
#include "train/settings.h"
#include "train/spread.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void fuzz_tell(void);  /* for replay.c: the training under way, to stderr */
void fuzz_count(void); /* and what became of all of them, to stdout */

enum { LARGEST = 80000 /* bytes of a file */, STEPS = 2, MOST_PASSES = 6, LIST = 1000 };

typedef enum { TRAIN, PASSES, PLAN, FILES } Use;

typedef struct {
  Use use;
  ZipBytes zip;
  TrainSettings settings;
  SpreadSettings spread;
  const char *group, *loss, *plan_name, *memory;
  char passes[LIST];
  int64_t rows; /* of batches; 0: as exported */
  bool interpret;
  /* What they mean. */
  Recipe recipe;
  PlanFile *plan;
  Prepared *prepared;
  Arena arena;
} Training;

/* ---- choices ---------------------------------------------------------------------------------------------- */

static const char *pick(Choices *c, const char *const *words, uint32_t n) { return words[choose(c, n)]; }
#define PICK(c, ...) \
  pick(c, (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *))

/* Now and then something that is to be refused, or that seldom makes sense. */
static const char *or_else(Choices *c, const char *usual, const char *odd) { return choose(c, 30) ? usual : odd; }

static void choose_settings(Training *t, Choices *c) {
  t->settings = (TrainSettings){
      .optim = or_else(c,
                       PICK(c, "adamw", "adamw,amsgrad", "sgd", "sgd,momentum=0.9,nesterov", "adagrad", "muon",
                            "adam,weight_decay=0.1"),
                       PICK(c, "adamw,maximize,lr=1e300", "sgd,lr=nan", "adamw,betas=0.9:1.5", "x")),
      .freeze = or_else(c, PICK(c, NULL, NULL, NULL, "*bias"), PICK(c, "*.weight", "*", "nothing")),
      .clip = or_else(c, PICK(c, NULL, "1.0", "0.05,norm=inf", "value=0.01", "1,norm=3"), PICK(c, "0", "-1")),
      .nonfinite = PICK(c, NULL, "skip", "go"),
      .dtype = or_else(c, PICK(c, NULL, NULL, NULL, "bf16", "f16"), "f64"),
      .param_dtype = or_else(c, PICK(c, NULL, NULL, NULL, "f64", "bf16"), PICK(c, "f16", "i64")),
      .state_dtype = PICK(c, NULL, NULL, NULL, "f32", "bf16"),
      .accumulate = (int64_t)(const int[]){1, 1, 1, 2, 3}[choose(c, 5)],
  };
  t->group = or_else(
      c, PICK(c, NULL, NULL, NULL, "a=*weight:lr=0.1", "a=*bias:optim=sgd,lr=0.1", "a=*.0.*:optim=muon,lr=0.1"),
      "a=x:");
  if (t->group) t->settings.groups = &t->group, t->settings.ngroups = 1;
  t->loss = or_else(c, NULL, PICK(c, "0", "1"));
  t->memory = PICK(c, NULL, NULL, NULL, NULL, NULL, "100%", "95%", "80%", "64K");
  t->rows = choose(c, 3) ? 0 : (int64_t)(const int[]){1, 3, 5, 8}[choose(c, 4)];
  t->interpret = !choose(c, 6);
}

static void choose_spread(Training *t, Choices *c) {
  t->spread = (SpreadSettings){.prefetch = -1};
  t->spread.mesh = or_else(
      c, PICK(c, NULL, "dp=2", "dp=2", "tp=2", "dp=1,tp=2", "replica=1,dp=2", "dp=2,tp=1", "replica=2,dp=1"),
      "x=2");
  if (!t->spread.mesh) return;
  bool local = t->use == TRAIN && !choose(c, 5), data = strstr(t->spread.mesh, "dp") != NULL;
  t->spread.data_parallel = local ? "local" : NULL;
  t->spread.rank_rows = local ? PICK(c, NULL, NULL, "1,1", "2,1", "0,3") : or_else(c, NULL, "1,1");
  t->spread.data_axis = or_else(c, NULL, PICK(c, "dp", "tp", "x"));
  t->spread.fsdp = or_else(c, local || !data ? NULL : PICK(c, NULL, "", "dp"), PICK(c, "", "tp", "x"));
  t->spread.wrap = t->spread.fsdp ? PICK(c, NULL, NULL, "*", "nothing", "*.0,*.1", "net.*", "[", "") : NULL;
  t->spread.keep_gathered = t->spread.fsdp && !choose(c, 3);
  if (t->spread.fsdp) t->spread.prefetch = (int64_t)(const int[]){-1, 0, 1, 2, 7}[choose(c, 5)];
  t->spread.whole_updates = !choose(c, 3);
  t->spread.bucket_mb = PICK(c, NULL, NULL, "0", "0.001", "1e9", "auto");
  t->plan_name = PICK(c, NULL, "auto");
}

static void add_pass(Training *t, Choices *c) {
  size_t at = strlen(t->passes);
  const PassDef *p = &pass_table[choose(c, (uint32_t)pass_count)];
  at += (size_t)snprintf(t->passes + at, LIST - at, "%s%s", at ? "," : "", p->name);
  const char *between = "(";
  for (int i = 0; i < pass_option_count; i++) {
    const PassOption *o = &pass_option_table[i];
    if (strcmp(o->pass, p->name) || (o->value && choose(c, 2))) continue;
    const char *value = o->type == OPTION_FLAG   ? PICK(c, "true", "false")
                        : o->type == OPTION_TEXT ? PICK(c, "0", "blocks", "\"*\"", "\"net.*|x\"")
                                                 : PICK(c, "1", "2", "3", "0", "0.001", "1000000");
    at += (size_t)snprintf(t->passes + at, LIST - at, "%s%s=%s", between, o->name, value);
    between = ",";
  }
  if (*between == ',') snprintf(t->passes + at, LIST - at, ")");
}

/* ---- what is done ----------------------------------------------------------------------------------------- */

/* Inputs of another number of rows: the first ones, again and again. */
static Status with_rows(Ctx *ctx, int64_t rows, Scope *scope, Arena *arena, Value *inputs, int n) {
  const Call c = {.ctx = ctx, .scope = scope, .arena = arena};
  int64_t before = 0;
  for (int i = 0; i < n && rows; i++) {
    Tensor *t = inputs[i].kind == VAL_TENSOR ? inputs[i].tensor : NULL;
    if (!t || !t->ndim || !t->size[0]) continue;
    if (!before) before = t->size[0];
    if (t->size[0] != before) continue;
    int64_t times[MAX_DIMS];
    for (int d = 0; d < t->ndim; d++) times[d] = 1;
    times[0] = (rows + before - 1) / before;
    TRY(OP(&c, "aten.repeat.default", &t, val_tensor(t), val_ints(times, t->ndim)));
    TRY(OP(&c, "aten.narrow.default", &t, val_tensor(t), val_int(0), val_int(0), val_int(rows)));
    TRY(OP(&c, "aten.clone.default", &inputs[i].tensor, val_tensor(t)));
  }
  return OK;
}

static Status transform_step(const Training *t, Session *s, const Batch *b) {
  Exported *step;
  TextBuf stats = {0};
  TRY(session_specialize(s, b->inputs, b->n, &step));
  Status st = pass_run_list(step, t->passes, session_ctx(s), &stats);
  if (!st) check_program(step);
  exported_free(step);
  text_free(&stats);
  return st;
}

static Status use_trainer(const Training *t, Ctx *ctx, Trainer *trainer) {
  Session *s = trainer_session(trainer);
  Scope scope = {0};
  Arena arena = {0};
  Batch b = {0};
  Value *inputs;
  Status st = model_check_inputs(session_program(s), &scope, &arena);
  if (!st) st = feed_random(session_program(s), 0, false, &scope, &arena, &inputs, &b.n);
  if (!st) st = with_rows(ctx, t->rows, &scope, &arena, inputs, b.n);
  b.inputs = st ? NULL : inputs;
  if (t->interpret) session_force_interpreter(s);
  if (!st && t->use == PASSES) st = transform_step(t, s, &b);
  for (int i = 0; i < STEPS && !st && t->use == TRAIN; i++) {
    StepResult result;
    double loss;
    bool done = false;
    while (!st && !done) st = trainer_feed(trainer, &b, &result, &done);
    if (!st) st = trainer_loss(trainer, &b, &loss);
  }
  scope_clear(&scope);
  arena_free(&arena);
  return st;
}

static Status open_and_use(Training *t, Ctx *ctx, Mesh *mesh) {
  Arena arena = {0};
  Trainer *trainer = NULL;
  Status s = trainer_open_on(ctx, t->prepared, mesh, &trainer);
  MemoryLimit limit;
  if (!s && t->memory) s = memory_limit_parse(t->memory, &limit);
  if (!s && t->memory) session_limit_memory(trainer_session(trainer), limit);
  if (!s) s = spread_apply(&t->spread, &arena, trainer);
  if (!s) s = use_trainer(t, ctx, trainer);
  trainer_free(trainer);
  arena_free(&arena);
  return s;
}

static Status on_rank(Ctx *ctx, World *w, void *arg) {
  Training *t = arg;
  Dist *dist;
  Mesh *mesh;
  TRY(dist_new(w, &dist));
  ctx_attach_dist(ctx, dist);
  Status s = mesh_parse(dist, t->spread.mesh, &mesh);
  if (!s) s = open_and_use(t, ctx, mesh);
  ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static Status tell_plan(Training *t) {
  ReduceGradients reduce;
  PlanRequest r = {
      .mesh = t->spread.mesh ? t->spread.mesh : "dp=1", .plan = t->plan, .step = t->prepared, .reduce = &reduce};
  if (t->memory) TRY(memory_limit_parse(t->memory, &r.memory));
  TRY(spread_reductions(&t->spread, &t->arena, &reduce));
  return model_tell_plan(t->prepared->program, r);
}

/* A rank's joint program is written; with the update, whose state has no elements yet, it is only looked at. Takes
 * over e. */
static Status write_files(Training *t, Exported *e) {
  const GradOptions grad = {.loss = t->loss};
  const PartitionStep step = {&t->recipe, &grad};
  bool updates = t->interpret;
  Partition *p;
  TRY(partition_open(e, t->spread.mesh ? t->spread.mesh : "dp=1", t->plan, updates ? &step : NULL, &p));
  RankFacts facts;
  Exported *cut, *again = NULL;
  Status s = updates ? OK : partition_want_gradients(p, &grad);
  if (!s) s = partition_rank(p, 0, &cut, &facts);
  if (!s) {
    if (updates) check_program(cut);
    else s = model_write_again(cut, &again);
    exported_free(again);
    exported_free(cut);
    rank_facts_free(&facts);
  }
  partition_free(p);
  return s;
}

/* Takes over e. */
static Status train(Training *t, Ctx *ctx, Exported *e) {
  const double timeout = 20;
  TrainerPlan how = {.recipe = &t->recipe, .loss = t->loss};
  Status s = settings_recipe(&t->settings, &t->arena, &t->recipe);
  if (!s) s = spread_plan(&t->spread, t->plan, &how);
  if (!s && t->use == PLAN) s = plan_report_sizes(e);
  if (s) return exported_free(e), s;
  if (t->use == FILES) return write_files(t, e);
  if (t->use == PLAN && !how.mesh) how.mesh = "dp=1";
  TRY(trainer_prepare(ctx, e, &how, &t->prepared));
  if (t->use == PLAN) return tell_plan(t);
  if (!t->spread.mesh) return open_and_use(t, ctx, NULL);
  return ranks_run(&(Ranks){.n = 2, .threads = 1, .timeout = &timeout}, on_rank, t);
}

static Status read_and_train(Training *t) {
  Exported *e;
  Ctx ctx;
  TRY(model_read(&t->zip, &e));
  Status s = t->plan_name && t->spread.mesh ? plan_file_read(t->plan_name, &t->plan) : OK;
  ctx_init(&ctx, 1);
  if (!s) s = train(t, &ctx, e);
  else exported_free(e);
  prepared_unref(t->prepared);
  ctx_free(&ctx);
  plan_file_free(t->plan);
  return s;
}

/* ---- counting --------------------------------------------------------------------------------------------- */

static unsigned long long trainings[FILES + 1], done[FILES + 1];
static const char *const uses[] = {"trainings", "lists of passes", "plans", "rank files"};
static Training *now;

static const char *said(const char *text) { return text ? text : "-"; }

void fuzz_tell(void) {
  const Training *t = now;
  if (!t) return;
  const TrainSettings *s = &t->settings;
  const SpreadSettings *p = &t->spread;
  fprintf(
      stderr,
      "%s: --optim %s --group %s --freeze %s --clip %s --nonfinite %s --dtype %s --param-dtype %s --state-dtype %s "
      "--accumulate %d --loss %s --memory %s --batch %d --mesh %s --plan %s --data-axis %s --data-parallel %s "
      "--rank-rows %s --fsdp %s --wrap %s --keep-gathered %d --prefetch %d --bucket-mb %s, whole updates %d, "
      "interpreted %d, %s\n",
      uses[t->use], said(s->optim), said(t->group), said(s->freeze), said(s->clip), said(s->nonfinite),
      said(s->dtype), said(s->param_dtype), said(s->state_dtype), (int)s->accumulate, said(t->loss),
      said(t->memory), (int)t->rows, said(p->mesh), said(t->plan_name), said(p->data_axis), said(p->data_parallel),
      said(p->rank_rows), said(p->fsdp), said(p->wrap), p->keep_gathered, (int)p->prefetch, said(p->bucket_mb),
      p->whole_updates, t->interpret, t->passes);
}

void fuzz_count(void) {
  for (int i = 0; i <= FILES; i++) printf("%llu %s, %llu to the end\n", trainings[i], uses[i], done[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ModelSources sources;
  uint8_t many[SEED_CHOICES];
  if (!sources.n) {
    model_sources_add(&sources, "train", MOST_SOURCES, LARGEST);
    model_sources_add(&sources, "grads", MOST_SOURCES, LARGEST);
    if (!sources.n) abort();
  }
  limit_memory();
  Choices c = model_choices(data, size, many);
  Training t = {.use = (Use)(const int[]){TRAIN, TRAIN, TRAIN, PASSES, PASSES, PLAN, FILES}[choose(&c, 7)]};
  const ModelSource *source = &sources.list[choose(&c, (uint32_t)sources.n)];
  choose_settings(&t, &c);
  choose_spread(&t, &c);
  for (uint32_t n = t.use == PASSES ? 1 + choose(&c, MOST_PASSES) : 0; n; n--) add_pass(&t, &c);
  model_change(source, &c, (const int[]){0, 0, 1, 2}[choose(&c, 4)], &t.zip);
  now = &t;
  trainings[t.use]++;
  Status s = read_and_train(&t);
  done[t.use] += !s;
  if (getenv("FUZZ_SAVE")) fuzz_tell(), fprintf(stderr, "%s\n", s ? status_message(s) : "fine");
  now = NULL;
  status_free(s);
  arena_free(&t.arena);
  zip_bytes_free(&t.zip);
  return 0;
}
