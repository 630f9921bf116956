/* Golden programs whose JSON bytes change (changed_model.h): which program, what is done with it, then the changes.
 * What the reader lets through is verified, printed, run on one rank and on a mesh, cut into rank files, planned,
 * transformed, estimated, written and read again. */
#include <stdio.h>

#include "changed_model.h"
#include "check_program.h"
#include "dist/dispatch.h"
#include "harness/feed.h"
#include "limit_memory.h"
#include "passes/pass.h"
#include "rank_files/partition.h"
#include "report/plan_report.h"
#include "runtime/estimate.h"
#include "runtime/ranks.h"
#include "runtime/session.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void fuzz_count(void); /* for replay.c: what became of all programs, to stdout */
const char *__asan_default_options(void);

/* Sizes may be anything: memory that is not there is an error of the program, not of the test.  The rest is speed.
 */
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=256:detect_stack_use_after_return=0:"
         "clear_shadow_mmap_threshold=100000000:quarantine_size_mb=16";
}

enum { RANKS = 2, LARGEST = 60000 /* bytes of a file */ };

static const ModelSources *source_list(void) {
  static ModelSources all;
  static const char *const folders[] = {"../fuzz/corpus/pt2", "models", "tp", "train"};
  if (all.n) return &all;
  for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
    model_sources_add(&all, folders[i], MOST_SOURCES, LARGEST);
  model_sources_add(&all, "ddp/fusion", 6, LARGEST); /* much the same */
  if (!all.n) abort();
  return &all;
}

/* ---- what is done with it ------------------------------------------------------------------------- */

typedef struct {
  const ZipBytes *zip;
  Exported *of_rank[RANKS]; /* taken by the ranks; NULL: they read the file */
  PlanFile *plan;           /* automatic */
  bool interpret, mesh;
} Job;

static Status call(const Job *j, Session *s) {
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs, *outs;
  int ninputs, nouts;
  if (j->interpret) session_force_interpreter(s);
  Status st = model_check_inputs(session_program(s), &scope, &arena);
  if (!st) st = feed_random(session_program(s), 0, false, &scope, &arena, &inputs, &ninputs);
  for (int i = 0; i < 2 && !st; i++) st = session_run(s, inputs, ninputs, &scope, &arena, &outs, &nouts);
  scope_clear(&scope);
  arena_free(&arena);
  return st;
}

static Status run_alone(Job *j) {
  Exported *e;
  Session *session;
  Ctx ctx;
  TRY(model_read(j->zip, &e));
  ctx_init(&ctx, 1);
  Status s = session_open(&ctx, e, &session);
  if (!s) s = call(j, session), session_free(session);
  ctx_free(&ctx);
  return s;
}

static Status interpret_alone(Job *j) {
  j->interpret = true;
  return run_alone(j);
}

static Status open_on_mesh(const Job *j, Ctx *ctx, Exported *e, Session **out) {
  Mesh *mesh;
  Status s = mesh_parse(ctx->dist, "tp=2", &mesh);
  if (s) exported_free(e);
  return s ? s : session_open_on_mesh(ctx, e, mesh, j->plan, out);
}

static Status on_rank(Ctx *ctx, World *w, void *arg) {
  Job *j = arg;
  Exported *e = j->of_rank[world_rank(w)];
  Session *session;
  Dist *dist = NULL;
  j->of_rank[world_rank(w)] = NULL;
  if (!e) TRY(model_read(j->zip, &e));
  Status s = j->mesh ? dist_new(w, &dist) : OK;
  if (s) exported_free(e);
  if (dist) ctx_attach_dist(ctx, dist);
  if (!s) s = j->mesh ? open_on_mesh(j, ctx, e, &session) : session_open(ctx, e, &session);
  if (!s) s = call(j, session), session_free(session);
  if (dist) ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static Status run_ranks(Job *j) {
  const double timeout = 10;
  return ranks_run(&(Ranks){.n = RANKS, .threads = 1, .timeout = &timeout}, on_rank, j);
}

static Status run_mesh(Job *j) {
  j->mesh = true;
  TRY(plan_file_read("auto", &j->plan));
  Status s = run_ranks(j);
  plan_file_free(j->plan);
  return s;
}

static Status cut_ranks(Job *j) {
  Exported *e;
  Partition *p;
  TRY(model_read(j->zip, &e));
  TRY(plan_file_read("auto", &j->plan));
  Status s = partition_open(e, "tp=2", j->plan, NULL, &p);
  if (!s) {
    for (int r = 0; r < RANKS && !s; r++) {
      RankFacts facts;
      Exported *cut;
      s = partition_rank(p, r, &cut, &facts);
      if (s) continue;
      s = model_write_again(cut, &j->of_rank[r]);
      exported_free(cut);
      rank_facts_free(&facts);
    }
    if (!s) s = run_ranks(j);
    for (int r = 0; r < RANKS; r++) exported_free(j->of_rank[r]);
    partition_free(p);
  }
  plan_file_free(j->plan);
  return s;
}

static Status tell_plan(const Exported *e, const PlanFile *plan) {
  Scope scope = {0};
  Arena arena = {0};
  SymBindings b;
  Value *inputs;
  PlanReport *report;
  PlanRequest r = {.mesh = "dp=2,tp=2", .plan = plan};
  TRY(feed_symbols(e, true, &b));
  Status s = feed_sizes(e, &b, &scope, &arena, &inputs, &r.ninputs);
  free(b.v);
  r.inputs = s ? NULL : inputs;
  if (!s) s = plan_report(e, &r, &report);
  if (!s) {
    TextBuf text = {0}, html = {0};
    plan_report_text(&text, report, (PlanTextOptions){.nodes = true, .weights = true});
    s = plan_report_html(&html, report);
    text_free(&text);
    text_free(&html);
    plan_report_free(report);
  }
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status plan_program(Job *j) {
  Exported *e;
  Ctx ctx;
  TRY(model_read(j->zip, &e));
  ctx_init(&ctx, 1);
  Status s = plan_file_read("auto", &j->plan);
  if (!s) s = plan_report_prepare(&ctx, e);
  if (!s) s = tell_plan(e, j->plan);
  plan_file_free(j->plan);
  exported_free(e);
  ctx_free(&ctx);
  return s;
}

static Status transform(Job *j, const char *passes) {
  Exported *e;
  Ctx ctx;
  TextBuf stats = {0};
  TRY(model_read(j->zip, &e));
  ctx_init(&ctx, 1);
  Status s = graph_verify(e);
  if (!s) s = pass_run_list(e, passes, &ctx, &stats);
  if (!s) {
    Exported *again;
    check_program(e);
    s = model_write_again(e, &again);
    exported_free(again);
  }
  text_free(&stats);
  exported_free(e);
  ctx_free(&ctx);
  return s;
}

static Status optimize(Job *j) {
  return transform(j, "inline,functionalize,dce,cse,constant_fold,recompose,dce,fuse_epilogue,fuse_pointwise");
}
static Status rewrite(Job *j) { return transform(j, "dce"); }
static Status reduce_gradients(Job *j) {
  return transform(j, "ddp(world_size=2),fuse_ddp_with_concat_op(bucket_size_mb=1),schedule_comm_wait,overlap");
}
static Status coalesce_gradients(Job *j) {
  return transform(j, "fuse_ddp_with_coalesced_op(bucket_size_mb=1),overlap,lower_torch(rank=0)");
}

static Status estimate(Job *j) {
  Exported *e;
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  Program *p = NULL;
  Value *inputs;
  SymBindings b;
  int n;
  TRY(model_read(j->zip, &e));
  ctx_init(&ctx, 1);
  Status s = feed_symbols(e, true, &b);
  if (!s) s = feed_sizes(e, &b, &scope, &arena, &inputs, &n), free(b.v);
  if (!s) s = estimate_program(&ctx, e, inputs, n, &p);
  program_free(p);
  scope_clear(&scope);
  arena_free(&arena);
  exported_free(e);
  ctx_free(&ctx);
  return s;
}

static unsigned long long programs, read_ones, done;

void fuzz_count(void) {
  printf("%llu programs, %llu could be read, %llu of these were done with to the end\n", programs, read_ones, done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t many[SEED_CHOICES];
  static Status (*const what[])(Job *) = {run_alone, run_mesh,        cut_ranks,        plan_program,
                                          optimize,  interpret_alone, run_ranks,        rewrite,
                                          estimate,  cut_ranks,       reduce_gradients, coalesce_gradients};
  const ModelSources *sources = source_list();
  limit_memory();
  Choices c = model_choices(data, size, many);
  ZipBytes zip = {0};
  Exported *e = NULL;
  const ModelSource *source = &sources->list[choose(&c, (uint32_t)sources->n)];
  uint32_t mode = choose(&c, sizeof what / sizeof *what);
  model_change(source, &c, 1 << choose(&c, 8) / 3 /* 1, 2 or 4 */, &zip);
  Status s = model_read(&zip, &e);
  programs++;
  if (!s) {
    read_ones++;
    check_program(e);
    exported_free(e);
    s = what[mode](&(Job){.zip = &zip});
    done += !s;
  }
  if (getenv("FUZZ_SAVE")) fprintf(stderr, "mode %u: %s\n", mode, s ? status_message(s) : "fine");
  status_free(s);
  zip_bytes_free(&zip);
  return 0;
}
