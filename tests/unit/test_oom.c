/* Out of memory, at every place where memory is asked for: each run lets one more
 * allocation succeed, until all do.  Nothing may crash, hang, leak (ASan looks) or claim
 * success.  The linker sends malloc and its kin here (tests/CMakeLists.txt). */
#include <unistd.h>

#include "base/json.h"
#include "base/zip.h"
#include "ckpt/run_folder.h"
#include "ckpt/save.h"
#include "passes/pass.h"
#include "report/plan_report.h"
#include "report/trace.h"
#include "tensor/safetensors.h"
#include "tessera.h"
#include "train/data.h"
#include "train/step_log.h"
#include "train/train_report.h"
#include "unit.h"

static long left = -1; /* allocations before the one that fails; -1: none fails */
static bool failed;

static bool refuse(void) {
  if (left < 0) return false;
  if (left-- > 0) return false;
  failed = true;
  left = -1;
  return true;
}

/* The names are the linker's. */
void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t align, size_t n);
void *__wrap_aligned_alloc(size_t align, size_t n);
char *__real_strdup(const char *s);
char *__wrap_strdup(const char *s);

void *__wrap_malloc(size_t n) { return refuse() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return refuse() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return refuse() ? NULL : __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t align, size_t n) { return refuse() ? NULL : __real_aligned_alloc(align, n); }
char *__wrap_strdup(const char *s) { return refuse() ? NULL : __real_strdup(s); }

static char folder[256];

static int set_up(void **state) { return (void)state, make_folder(folder, sizeof folder) == NULL; }
static int tear_down(void **state) { return (void)state, remove_folder(folder), 0; }

/* Runs `work` with ever more memory; returns how many allocations it makes. */
static int starve(Status (*work)(const char *path), const char *path) {
  for (int n = 0; n < 10000; n++) {
    left = n;
    failed = false;
    Status s = work(path);
    left = -1;
    bool ok = !s;
    if (!ok && !failed) test_failed("%s", status_message(s));
    status_free(s);
    if (!failed) return n;
    assert_false(ok);
  }
  test_failed("it never ends");
  return 0;
}

static Status save_safetensors(const char *path) {
  Scope scope = {0};
  Tensor *a, *b;
  Status s = tensor_new(&scope, DT_F32, 2, (int64_t[]){20, 30}, &a);
  if (!s) s = tensor_new(&scope, DT_U8, 1, (int64_t[]){3}, &b);
  if (!s) {
    memset(tensor_data(a), 0, 2400);
    memset(tensor_data(b), 0, 3);
    SafeItem items[] = {{"b", b}, {"a", a}};
    SafeText text = {"k", "v"};
    s = safetensors_save(path, items, 2, &text, 1, FILE_OVERWRITE);
  }
  scope_clear(&scope);
  return s;
}

static Status load_safetensors(const char *path) {
  Scope scope = {0};
  SafeTensors *st = NULL;
  Tensor *t;
  Status s = safetensors_open(path, &st);
  if (!s) s = safetensors_get(st, "a", &scope, &t);
  if (!s) s = safetensors_get(st, "b", &scope, &t);
  safetensors_close(st);
  scope_clear(&scope);
  return s;
}

/* Without a batch: the thread that reads ahead would ask for memory as well. */
static Status open_data(const char *path) {
  const char *text = "symbol s0 in [1, 64]\ngraph(%a: f32[s0,30] = user) { return user %a }";
  long mine = left;
  Exported *e = NULL;
  Data *d = NULL;
  left = -1;
  assert_ok(graph_parse(text, strlen(text), "loss", &e));
  left = mine;
  Status s = data_open(e, &(DataOptions){.files = &path, .nfiles = 1, .batch = 6}, &d);
  data_free(d);
  exported_free(e);
  return s;
}

static Status save_run(const char *path) {
  Scope scope = {0};
  Tensor *a;
  RunFolder *run = NULL;
  SaveFacts facts = {.step = 1, .argc = 2, .argv = (const char *[]){"tessera", "\xff"}};
  Status s = tensor_new(&scope, DT_F32, 2, (int64_t[]){20, 30}, &a);
  if (!s) s = run_folder_open(path, &run);
  if (!s) {
    memset(tensor_data(a), 0, 2400);
    s = run_folder_save(run, &facts, (SafeItem[]){{"model.a", a}, {"optim.b", a}}, 2, NULL);
  }
  run_folder_close(run);
  scope_clear(&scope);
  return s;
}

static Status load_run(const char *path) {
  Scope scope = {0};
  Arena arena = {0};
  Save *save = NULL;
  Tensor *a;
  const char *newest;
  Status s = tensor_new(&scope, DT_F32, 2, (int64_t[]){20, 30}, &a);
  if (!s) s = run_latest(path, &arena, &newest);
  if (!s) s = save_open(newest, &save);
  if (!s) s = save_restore(save, (SafeItem[]){{"model.a", a}, {"optim.b", a}}, 2, 1);
  save_close(save);
  arena_free(&arena);
  scope_clear(&scope);
  return s;
}

static Status save_zip(const char *path) {
  ZipOut *z;
  TRY(zip_out_open(path, FILE_OVERWRITE, &z));
  Status s = zip_out_add(z, "m/a", "hello", 5);
  if (!s) s = zip_out_add(z, "m/b", path, strlen(path));
  if (!s) return zip_out_commit(z);
  zip_out_discard(z);
  return s;
}

static Status load_zip(const char *path) {
  Zip *z;
  ZipData d = {0};
  FileMap *part = NULL;
  TRY(zip_open(path, &z));
  Status s = zip_read(z, zip_find(z, "m/a"), &d);
  if (!s) s = zip_map(z, zip_find(z, "m/b"), &part);
  zip_data_free(&d);
  file_map_unref(part);
  zip_close(z);
  return s;
}

static Status load_json(const char *text) {
  yyjson_doc *doc;
  TRY(json_parse("x", text, strlen(text), 0, &doc));
  Status s = json_check_keys(yyjson_doc_get_root(doc), "x");
  yyjson_doc_free(doc);
  return s;
}

/* Two kinds of gradients, one written to a buffer that is read again. */
static const char program[] =
    "graph(%a: f32[4] = user, %b: f32[2,2] = user, %c: bf16[4] = user, %buf: f32[4] = user) {\n"
    "  %d0: f32[4] = aten.div.Tensor(%a, 2)\n"
    "  %r0: f32[4] = _c10d_functional.all_reduce.default(%d0, \"sum\", \"0\")\n"
    "  %w0: f32[4] = _c10d_functional.wait_tensor.default(%r0)\n"
    "  %x: f32[4] = aten.copy_.default(%buf, %w0)\n"
    "  %y: f32[4] = aten.neg.default(%buf)\n"
    "  %d1: f32[2,2] = aten.div.Tensor(%b, 2)\n"
    "  %r1: f32[2,2] = _c10d_functional.all_reduce.default(%d1, \"sum\", \"0\")\n"
    "  %w1: f32[2,2] = _c10d_functional.wait_tensor.default(%r1)\n"
    "  %d2: bf16[4] = aten.div.Tensor(%c, 2)\n"
    "  %r2: bf16[4] = _c10d_functional.all_reduce.default(%d2, \"sum\", \"0\")\n"
    "  %w2: bf16[4] = _c10d_functional.wait_tensor.default(%r2)\n"
    "  return user %y, user %w1, user %w2\n"
    "}\n";

static Status run_passes(const char *list) {
  Exported *e = NULL;
  TextBuf stats = {0};
  Status s = graph_parse(program, sizeof program - 1, "program", &e);
  if (!s) s = pass_run_list(e, list, NULL, &stats);
  exported_free(e);
  text_free(&stats);
  return s;
}

static void passes(void **state) {
  (void)state;
  status_free(run_passes("dce")); /* the registry of ops is made once, and is not freed */
  assert_true(starve(run_passes, "fuse_ddp_with_concat_op,schedule_comm_wait,overlap") > 4);
  assert_true(starve(run_passes, "ddp(world_size=2,group=\"a, b\"),fuse_ddp_with_coalesced_op(bucket_size_mb=1)") >
              4);
}

static const char blocks[] =
    "graph(%w: f32[8,4] = parameter \"up.weight\", %b: f32[8] = parameter \"up.bias\", %v: f32[4,8] = parameter "
    "\"down.weight\", %x: f32[6,4] = user) {\n"
    "  %y: f32[6,8] = aten.linear.default(%x, %w, %b)\n  %z: f32[6,8] = aten.relu.default(%y)\n  %o: f32[6,4] = "
    "aten.linear.default(%z, %v)\n  return user %o\n}\n";
static const char plan_text[] = "{\"parallelize\": {\"up\": \"colwise\", \"down\": \"rowwise\"}}";

static Status report_on(Exported *e, const PlanFile *plan) {
  Ctx ctx;
  Scope scope = {0};
  Tensor *x;
  PlanReport *r = NULL;
  TextBuf text = {0}, page = {0};
  ctx_init(&ctx, 1);
  Status s = plan_report_prepare(&ctx, e);
  if (!s) s = tensor_meta(&scope, DT_F32, 2, (int64_t[]){6, 4}, &x);
  Value input = s ? val_none() : val_tensor(x);
  if (!s) s = plan_report(e, &(PlanRequest){.mesh = "dp=2,tp=2", .plan = plan, .inputs = &input, .ninputs = 1}, &r);
  if (!s) plan_report_text(&text, r, (PlanTextOptions){.nodes = true, .weights = true});
  if (!s && text.failed) s = fail_oom();
  if (!s) s = plan_report_html(&page, r);
  text_free(&text);
  text_free(&page);
  plan_report_free(r);
  scope_clear(&scope);
  ctx_free(&ctx);
  return s;
}

static Status make_report(const char *plan_file) {
  Exported *e;
  PlanFile *plan = NULL;
  TRY(graph_parse(blocks, sizeof blocks - 1, "x", &e));
  Status s = *plan_file == '{' ? plan_file_parse("plan.json", plan_file, strlen(plan_file), &plan)
                               : plan_file_read(plan_file, &plan);
  if (!s) s = report_on(e, plan);
  plan_file_free(plan);
  exported_free(e);
  return s;
}

static void reports(void **state) {
  (void)state;
  status_free(op_registry_status()); /* once: it is kept for good */
  assert_true(starve(make_report, plan_text) > 50);
  assert_true(starve(make_report, "auto") > 50);
}

/* A run, and the same resumed at its second step. */
static Status log_steps(const char *path) {
  StepLogOptions o = {.json = path, .tensorboard = folder, .bar = stderr, .first = 1, .last = 2, .force = true};
  for (int turn = 0; turn < 2; turn++) {
    StepLog *log;
    TRY(step_log_open(&o, &log));
    Status s = OK;
    for (int64_t i = o.first; i <= 2 && !s; i++) s = step_log_write(log, &(StepRecord){.step = i, .memory = 1});
    step_log_close(log);
    TRY(s);
    o.resumed = true;
    o.first = 2;
  }
  return OK;
}

static Status report_steps(const char *path) {
  StepRecord step[5] = {{.step = 1, .loss = 2}, {.step = 2, .loss = 1}};
  TrainFact fact = {"optimizer", "adamw"};
  return train_report_html(&(TrainReport){.program = "x", .step = step, .nsteps = 2, .fact = &fact, .nfacts = 1},
                           path);
}

static Status trace_nodes(Exported *e, NodeTimes *times, TextBuf *events, const char *path) {
  graph_number_nodes(e->graph, 0);
  TRY(node_times_begin(times, e->graph));
  for (const Node *n = e->graph->first; n; n = n->next) TRY(node_times_next(times, n, n->stage));
  TRY(node_times_next(times, NULL, STAGE_FORWARD));
  TRY(trace_events(events, &(TraceRun){.times = times}, 0, "x", 0));
  return trace_write(path, "x", events, true);
}

static Status make_trace(const char *path) {
  Exported *e;
  NodeTimes times = {0};
  TextBuf events = {0};
  TRY(graph_parse(blocks, sizeof blocks - 1, "x", &e));
  Status s = trace_nodes(e, &times, &events, path);
  text_free(&events);
  node_times_free(&times);
  exported_free(e);
  return s;
}

static void logs_and_traces(void **state) {
  (void)state;
  char path[300];
  snprintf(path, sizeof path, "%s/train.jsonl", folder);
  assert_true(starve(log_steps, path) > 20);
  snprintf(path, sizeof path, "%s/train.html", folder);
  assert_true(starve(report_steps, path) > 8);
  snprintf(path, sizeof path, "%s/trace.json", folder);
  assert_true(starve(make_trace, path) > 8);
}

static void safetensors_files(void **state) {
  (void)state;
  char path[300];
  snprintf(path, sizeof path, "%s/x.safetensors", folder);
  assert_true(starve(save_safetensors, path) > 8);
  assert_true(starve(load_safetensors, path) > 8);
  assert_true(starve(open_data, path) > 8);
}

static void run_folders(void **state) {
  (void)state;
  char path[300];
  snprintf(path, sizeof path, "%s/run", folder);
  assert_true(starve(save_run, path) > 20);
  assert_true(starve(load_run, path) > 20);
}

static void archives(void **state) {
  (void)state;
  char path[300];
  snprintf(path, sizeof path, "%s/x.zip", folder);
  assert_true(starve(save_zip, path) > 4);
  assert_true(starve(load_zip, path) > 5);
}

static void json_text(void **state) {
  (void)state;
  assert_true(starve(load_json, "{\"a\": [1, 2, {\"b\": null}], \"c\": \"d\"}") > 1);
}

/* Through the public header; what the error is, "": none. */
static void train_some(TessCtx *ctx, const char *path, char *error, size_t cap) {
  const char *const groups[] = {"plain=*.bias:weight_decay=0"}, *const files[] = {
                                                                    GOLDEN_FOLDER
                                                                    "/train/mlp_ce/batches.safetensors"};
  const TessTraining how = {.groups = groups, .ngroups = 1, .freeze = "layers.0.*", .clip = "1.0"};
  const TessData data = {.files = files, .nfiles = 1, .batched = 1};
  char name[400];
  double loss;
  TessTrainer *t = tess_trainer_open(ctx, GOLDEN_FOLDER "/train/mlp_ce/forward.pt2", &how);
  tess_trainer_load(t, GOLDEN_FOLDER "/train/mlp_ce/init.safetensors");
  tess_trainer_set_data(t, &data);
  tess_trainer_next(t, NULL);
  tess_trainer_evaluate_data(t, &data, 1, &loss);
  tess_trainer_set_state(t, "layers.1.bias", tess_trainer_state(t, "layers.1.bias"));
  tess_trainer_save(t, path, 1);
  tess_trainer_resume(t, path);
  for (int i = 0; i < 2; i++) {
    snprintf(name, sizeof name, "%s.%s", path, i ? "pt2" : "safetensors");
    tess_trainer_write(t, name);
  }
  snprintf(error, cap, "%s", tess_error_message(ctx));
  tess_trainer_free(t);
}

/* A linear, cut over the one rank of a mesh and data parallel on it, makes a step. */
static void parallelize_some(TessCtx *ctx, const char *path, char *error, size_t cap) {
  (void)path;
  const TessPlanEntry plan = {.path = "*", .style = TESS_COLWISE};
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, (const char *const[]){"x"});
  TessModule *m = tess_module_new(ctx, NULL, NULL), *linear = tess_linear(ctx, 2, 3, 1);
  TessTensor *x = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){1, 2}, (float[]){1, 2}), *y = NULL, *params[4];
  if (tess_module_add(ctx, m, "linear", linear)) tess_module_free(linear);
  tess_parallelize_module(ctx, m, mesh, &plan, 1, 0);
  TessDataParallel *d = tess_data_parallel(ctx, m, mesh, &(TessReplicas){.find_unused = 1, .bf16 = 1});
  int n = tess_module_parameters(ctx, m, params, 4);
  TessOptimizer *o = tess_optimizer_new(ctx, "adamw", params, n < 0 ? 0 : n);
  tess_module_call(ctx, tess_module_child(m, "linear"), &x, 1, &y, 1);
  TessTensor *loss = tess_call(ctx, "aten.sum.default", tess_t(y));
  if (loss) tess_backward(ctx, &loss, NULL, 1, 0);
  tess_clip_grad_norm(ctx, params, n < 0 ? 0 : n, 1, 2, NULL);
  tess_optimizer_step(o);
  snprintf(error, cap, "%s", tess_error_message(ctx));
  tess_optimizer_free(o);
  tess_data_parallel_free(d);
  tess_module_free(m);
}

/* A module that is fully sharded on one rank, with casts, makes a step; a state of it is put back. */
static int pass_on(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)arg;
  return tess_module_call(ctx, tess_module_child(m, "linear"), in, n, out, cap);
}

static void shard_some(TessCtx *ctx, const char *path, char *error, size_t cap) {
  (void)path;
  const TessFsdpOptions how = {.param_dtype = TESS_BF16, .reduce_dtype = TESS_F32, .output_dtype = TESS_F32};
  TessModule *m = tess_module_new(ctx, pass_on, NULL), *linear = tess_linear(ctx, 2, 3, 1);
  TessTensor *x = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){1, 2}, (float[]){1, 2}), *y = NULL, *params[4];
  if (linear) tess_fully_shard(ctx, &linear, 1, NULL, &how);
  if (tess_module_add(ctx, m, "linear", linear)) tess_module_free(linear);
  if (m) tess_fully_shard(ctx, &m, 1, NULL, NULL);
  int n = tess_module_parameters(ctx, m, params, 4);
  for (int i = 0; i < n; i++) params[i] = tess_hold(ctx, params[i]); /* those of the module come and go */
  TessOptimizer *o = tess_optimizer_new(ctx, "sgd", params, n < 0 ? 0 : n);
  for (int i = 0; i < 2; i++) {
    tess_fsdp_set(ctx, m, TESS_FSDP_GRADIENT_SYNC, i, 1);
    tess_module_call(ctx, m, &x, 1, &y, 1);
    TessTensor *loss = tess_call(ctx, "aten.sum.default", tess_t(y));
    if (loss) tess_backward(ctx, &loss, NULL, 1, 0);
  }
  tess_optimizer_step(o);
  tess_module_set(ctx, m, "linear.bias", tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){3}, (float[]){1, 2, 3}));
  tess_module_call(ctx, m, &x, 1, &y, 1);
  tess_free(tess_fsdp_json(ctx, tess_module_child(m, "linear")));
  snprintf(error, cap, "%s", tess_error_message(ctx));
  tess_optimizer_free(o);
  for (int i = 0; i < n; i++) tess_release(params[i]);
  tess_module_free(m);
}

/* Some memory can be done without (copies of weights that are faster to read): success is none to complain about.
 */
static void starve_public(void (*work)(TessCtx *ctx, const char *path, char *error, size_t cap)) {
  char path[300], error[2000] = "";
  int n = 0, refused = 0;
  for (bool more = true; more; n++) {
    TessCtx *ctx = tess_ctx_new(1);
    snprintf(path, sizeof path, "%s/trained-%d", folder, n);
    left = n;
    failed = false;
    work(ctx, path, error, sizeof error);
    left = -1;
    more = failed;
    refused += *error != 0;
    if (*error && !failed) test_failed("%s", error);
    tess_ctx_free(ctx);
  }
  assert_string_equal(error, "");
  assert_true(refused > 100);
}

static void trainers(void **state) {
  (void)state;
  starve_public(train_some);
}

static void parallel_modules(void **state) {
  (void)state;
  starve_public(parallelize_some);
  starve_public(shard_some);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(safetensors_files), cmocka_unit_test(run_folders), cmocka_unit_test(archives),
      cmocka_unit_test(json_text),         cmocka_unit_test(passes),      cmocka_unit_test(reports),
      cmocka_unit_test(logs_and_traces),   cmocka_unit_test(trainers),    cmocka_unit_test(parallel_modules)};
  return cmocka_run_group_tests(tests, set_up, tear_down);
}
