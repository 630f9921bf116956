/* Golden programs whose JSON bytes change: which program, what is done with it, then changes one
 * by one (mutate_json.h).  What the reader lets through is verified, printed, run on one rank and
 * on a mesh, cut into rank files, planned, transformed, estimated, written and read again.
 *
 * Eight bytes or fewer are a seed, which random bytes are made from.  The variable FUZZ_SAVE names a
 * file that gets the changed program, to try it by hand. */
#include <dirent.h>
#include <stdio.h>
#include <unistd.h>

#include "base/json.h"
#include "base/zip.h"
#include "check_program.h"
#include "dist/dispatch.h"
#include "harness/feed.h"
#include "limit_memory.h"
#include "mutate_json.h"
#include "passes/pass.h"
#include "pt2/read.h"
#include "pt2/write.h"
#include "rank_files/partition.h"
#include "report/plan_report.h"
#include "runtime/estimate.h"
#include "runtime/ranks.h"
#include "runtime/session.h"
#include "zip_bytes.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
void fuzz_count(void); /* for replay.c: what became of all programs, to stdout */
const char *__asan_default_options(void);

/* Sizes may be anything: memory that is not there is an error of the program, not of the test.  The rest is speed.
 */
const char *__asan_default_options(void) {
  return "allocator_may_return_null=1:max_allocation_size_mb=256:detect_stack_use_after_return=0:"
         "clear_shadow_mmap_threshold=100000000:quarantine_size_mb=16";
}

enum { MOST_SOURCES = 64, RANDOM_BYTES = 64, LARGEST = 60000 /* bytes of a file, elements of inputs */, RANKS = 2 };

/* ---- programs to start from ------------------------------------------------------------------ */

typedef struct {
  Zip *zip;
  yyjson_doc **json; /* per entry; NULL: no JSON */
} Source;

static bool ends_with(const char *text, const char *end) {
  size_t n = strlen(text), k = strlen(end);
  return n >= k && !strcmp(text + n - k, end);
}

static void add_source(Source *list, int *n, const char *path) {
  Zip *z;
  if (*n == MOST_SOURCES) return;
  Status s = zip_open(path, &z);
  if (s) abort();
  if (z->file->size > LARGEST) {
    zip_close(z);
    return;
  }
  Source *source = &list[(*n)++];
  source->zip = z;
  if (!(source->json = calloc((size_t)z->count, sizeof *source->json))) abort();
  for (int i = 0; i < z->count; i++) {
    ZipData d = {0};
    if (!ends_with(z->entries[i].name, ".json")) continue;
    s = zip_read(z, &z->entries[i], &d);
    if (!s) s = json_parse(path, d.data, d.size, JSON_NAN, &source->json[i]);
    if (s) abort();
    zip_data_free(&d);
  }
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* The first small programs of a folder: FOLDER/x.pt2, FOLDER/x/program.pt2, FOLDER/x/rank0.pt2. */
static void add_folder(Source *list, int *n, const char *folder, int most) {
  struct dirent **entry;
  int count = scandir(folder, &entry, NULL, by_name), end = *n + most;
  for (int i = 0; i < count; i++) {
    static const char *const files[] = {"", "/program.pt2", "/rank0.pt2"};
    for (int k = 0; k < 3; k++) {
      char path[4096];
      snprintf(path, sizeof path, "%s/%s%s", folder, entry[i]->d_name, files[k]);
      if (*n < end && ends_with(path, ".pt2") && !access(path, R_OK)) add_source(list, n, path);
    }
    free(entry[i]);
  }
  if (count >= 0) free(entry);
}

static const Source *source_list(int *n) {
  static Source list[MOST_SOURCES];
  static int count;
  if (!count) {
    add_folder(list, &count, GOLDEN_FOLDER "/../fuzz/corpus/pt2", MOST_SOURCES);
    add_folder(list, &count, GOLDEN_FOLDER "/models", MOST_SOURCES);
    add_folder(list, &count, GOLDEN_FOLDER "/tp", MOST_SOURCES);
    add_folder(list, &count, GOLDEN_FOLDER "/train", MOST_SOURCES);
    add_folder(list, &count, GOLDEN_FOLDER "/ddp/fusion", 6); /* much the same */
    if (!count) abort();
  }
  *n = count;
  return list;
}

/* ---- a program with changes -------------------------------------------------------------------- */

static void add_changed(ZipBytes *z, const char *name, yyjson_mut_doc *doc) {
  size_t size;
  char *text = yyjson_mut_write(doc, YYJSON_WRITE_ALLOW_INF_AND_NAN, &size);
  if (text) zip_bytes_add(z, name, text, size);
  free(text);
}

/* One change in ten is in a config of weights or constants. */
static int pick_entry(const Source *s, Choices *c) {
  int model = 0, other = choose(c, 10) ? 0 : 1 + (int)choose(c, 2);
  for (int i = 0; i < s->zip->count; i++) {
    if (!s->json[i]) continue;
    if (ends_with(s->zip->entries[i].name, "models/model.json")) model = i;
    else if (other && --other == 0) return i;
  }
  return model;
}

static void change_source(const Source *s, Choices *c, ZipBytes *z) {
  yyjson_mut_doc *changed[64] = {NULL};
  int n = s->zip->count < 64 ? s->zip->count : 64, changes = 1 << choose(c, 8) / 3; /* 1, 2 or 4 */
  for (int k = 0; k < changes && choices_left(c); k++) {
    int i = pick_entry(s, c);
    if (!changed[i] && !(changed[i] = yyjson_doc_mut_copy(s->json[i], NULL))) abort();
    mutate_json(changed[i], c);
  }
  for (int i = 0; i < s->zip->count; i++) {
    const ZipEntry *e = &s->zip->entries[i];
    if (i < n && changed[i]) add_changed(z, e->name, changed[i]);
    else zip_bytes_add(z, e->name, s->zip->file->data + e->offset, (size_t)e->size);
  }
  for (int i = 0; i < n; i++) yyjson_mut_doc_free(changed[i]);
  zip_bytes_end(z);
}

/* ---- what is done with it ------------------------------------------------------------------------- */

typedef struct {
  const ZipBytes *zip;
  Exported *of_rank[RANKS]; /* taken by the ranks; NULL: they read the file */
  PlanFile *plan;           /* automatic */
  bool interpret, mesh;
} Job;

static Status read_program(const Job *j, Exported **out) {
  return pt2_read_memory(j->zip->out.data, j->zip->out.size, "fuzz.pt2", out);
}

/* Inputs of sizes that only take time are not made. */
static Status check_inputs(const Exported *e, Scope *scope, Arena *arena) {
  SymBindings b;
  Value *inputs;
  int n;
  int64_t elements = 0;
  TRY(feed_symbols(e, false, &b));
  Status s = feed_sizes(e, &b, scope, arena, &inputs, &n);
  free(b.v);
  for (int i = 0; !s && i < n; i++) elements += inputs[i].kind == VAL_TENSOR ? tensor_numel(inputs[i].tensor) : 0;
  return s || elements < LARGEST ? s : fail(ERR_FAIL, "inputs of %lld elements", (long long)elements);
}

static Status call(const Job *j, Session *s) {
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs, *outs;
  int ninputs, nouts;
  if (j->interpret) session_force_interpreter(s);
  Status st = check_inputs(session_program(s), &scope, &arena);
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
  TRY(read_program(j, &e));
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
  if (!e) TRY(read_program(j, &e));
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

/* Written and read again.  *out NULL: it cannot be written. */
static Status write_program(const Exported *e, Exported **out) {
  char path[64];
  *out = NULL;
  snprintf(path, sizeof path, "%s/fuzz_model.%ld.pt2", access("/dev/shm", W_OK) ? "." : "/dev/shm", (long)getpid());
  Status s = pt2_write(e, path, true), read = s ? OK : pt2_read(path, out);
  unlink(path);
  if (read) {
    fprintf(stderr, "what was written cannot be read: %s\n", status_message(read));
    __builtin_trap();
  }
  if (!s) check_program(*out);
  return s;
}

static Status cut_ranks(Job *j) {
  Exported *e;
  Partition *p;
  TRY(read_program(j, &e));
  TRY(plan_file_read("auto", &j->plan));
  Status s = partition_open(e, "tp=2", j->plan, NULL, &p);
  if (!s) {
    for (int r = 0; r < RANKS && !s; r++) {
      RankFacts facts;
      Exported *cut;
      s = partition_rank(p, r, &cut, &facts);
      if (s) continue;
      s = write_program(cut, &j->of_rank[r]);
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
  TRY(read_program(j, &e));
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
  TRY(read_program(j, &e));
  ctx_init(&ctx, 1);
  Status s = graph_verify(e);
  if (!s) s = pass_run_list(e, passes, &ctx, &stats);
  if (!s) {
    Exported *again;
    check_program(e);
    s = write_program(e, &again);
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
  TRY(read_program(j, &e));
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

/* Bytes for many choices from a few. */
static void spread_seed(const uint8_t *data, size_t size, uint8_t *out, size_t n) {
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (size_t i = 0; i < size; i++) state = (state ^ data[i]) * 0xff51afd7ed558ccdu;
  for (size_t i = 0; i < n; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = (uint8_t)(state >> 56);
  }
}

static unsigned long long programs, read_ones, done;

void fuzz_count(void) {
  printf("%llu programs, %llu could be read, %llu of these were done with to the end\n", programs, read_ones, done);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t many[RANDOM_BYTES];
  static Status (*const what[])(Job *) = {run_alone, run_mesh,        cut_ranks,        plan_program,
                                          optimize,  interpret_alone, run_ranks,        rewrite,
                                          estimate,  cut_ranks,       reduce_gradients, coalesce_gradients};
  int n;
  const Source *sources = source_list(&n);
  limit_memory();
  if (size <= 8) spread_seed(data, size, many, sizeof many);
  Choices c = size <= 8 ? (Choices){many, sizeof many, 0} : (Choices){data, size, 0};
  ZipBytes zip = {0};
  Exported *e = NULL;
  const Source *source = &sources[choose(&c, (uint32_t)n)];
  uint32_t mode = choose(&c, sizeof what / sizeof *what);
  change_source(source, &c, &zip);
  const char *save = getenv("FUZZ_SAVE");
  if (save) {
    fprintf(stderr, "%s, mode %u\n", source->zip->file->path, mode);
    status_free(file_write_all(save, zip.out.data, zip.out.size, FILE_OVERWRITE));
  }
  Status s = pt2_read_memory(zip.out.data, zip.out.size, "fuzz.pt2", &e);
  programs++;
  if (!s) {
    read_ones++;
    check_program(e);
    exported_free(e);
    s = what[mode](&(Job){.zip = &zip});
    done += !s;
  }
  if (save && s) fprintf(stderr, "%s\n", status_message(s));
  status_free(s);
  zip_bytes_free(&zip);
  return 0;
}
