/* golden_ddp_run -- data-parallel training runs, compared with those of PyTorch's DistributedDataParallel, and of
 * fully_shard.
 *
 *     golden_ddp_run [FOLDER...] [--model NAME] [--case NAME] [--launched] [--interpret]
 *
 * A FOLDER has `ddp/run` and `train`.  ddp/run/<x>.json tells a model, a number of ranks and cases: the optimizer,
 * how many batches are accumulated, the rows of each rank, the arguments of DDP, and the losses of every rank;
 * <x>.safetensors has `<case>/<parameter>` and `<case>/rank<r>/<buffer>` as they are at the end.  Programs, batches
 * and first weights are those of train/<model>.  Each rank trains on its own rows; losses and parameters are
 * compared relative to the largest element, 1e-5 (3e-2 where gradients are reduced in f16).  Adam's steps of
 * parameters whose true gradient is 0 are noise and left out (`noise_gradient` in train/<model>/meta.json); single
 * elements of others are nearly so, and Adam makes rounding as large as a step there: a hundredth of how far
 * PyTorch's own run on one process of the same rows ends from the one on several (`max_diff_to_single_process`) is
 * allowed, too.
 *
 * A FOLDER may have `fsdp` instead, or as well: runs of fully_shard (golden_fsdp_run.h), done again with `--fsdp
 * --data-parallel local`; norms of gradients are compared, too.
 *
 * --launched: the ranks are processes of a launch (mpirun), and runs for another number of them are left out.
 */
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "dist/dispatch.h"
#include "golden_fsdp_run.h"
#include "golden_training.h"
#include "model_folders.h"
#include "pt2/read.h"
#include "runtime/ranks.h"
#include "train/starting_weights.h"

enum { PATH_CAP = 4096 };
static const double tolerance = 1e-5, half_tolerance = 3e-2;

typedef struct {
  const char *only, *only_case;
  bool launched, interpret;
  Ctx *ctx; /* launched: this process's rank */
  World *world;
  char **folder;
  int nfolders, passed, failed;
} Suite;

typedef struct {
  const Suite *suite;
  const char *folder, *program;
  char file[PATH_CAP / 2]; /* <folder>/ddp/run/<x>, without ending */
  char mesh[64];
  char prefix[128]; /* of the tensors of this case */
  char label[512];
  const char *name;
  yyjson_val *run, *meta; /* the case; train/<model>/meta.json */
  const char *model;
  Prepared *prepared;
} Case;

static bool is_half(const Case *c) { return yyjson_get_bool(yyjson_obj_get(c->run, "reduce_f16")); }
static double tolerance_of(const Case *c) { return is_half(c) ? half_tolerance : tolerance; }

/* ---- comparing -------------------------------------------------------------------------------------- */

static Status compare_norm(const Case *c, int step, double got) {
  yyjson_val *want = yyjson_arr_get(yyjson_obj_get(c->run, "grad_norms"), (size_t)step);
  if (!want || fabs(got - yyjson_get_num(want)) <= tolerance_of(c) * yyjson_get_num(want)) return OK;
  return fail(ERR_DIFF, "the norm of step %d is %.8g, should be %.8g", step + 1, got, yyjson_get_num(want));
}

static Status compare_loss(const Case *c, int rank, int step, double got, int each) {
  yyjson_val *losses = yyjson_arr_get(yyjson_obj_get(c->run, "losses_per_rank"), (size_t)rank);
  double want = 0;
  for (int i = 0; i < each; i++) want += yyjson_get_num(yyjson_arr_get(losses, (size_t)(step * each + i))) / each;
  if (fabs(got - want) <= tolerance_of(c) * fabs(want)) return OK;
  return fail(ERR_DIFF, "the loss of rank %d in step %d is %.8g, should be %.8g", rank, step + 1, got, want);
}

static bool is_adaptive(const Case *c) {
  return strncmp(yyjson_get_str(yyjson_obj_get(c->run, "optimizer")), "SGD", 3) != 0;
}

static bool is_noise(const Case *c, const char *name) {
  size_t i, n;
  yyjson_val *v;
  if (!is_adaptive(c)) return false;
  yyjson_arr_foreach(yyjson_obj_get(c->meta, "noise_gradient"), i, n, v) {
    if (!strcmp(yyjson_get_str(v), name)) return true;
  }
  return false;
}

static double allowed(const Case *c, double largest) {
  double spread = yyjson_get_num(yyjson_obj_get(c->run, "max_diff_to_single_process"));
  return fmax(tolerance_of(c) * fmax(largest, 1e-12), is_adaptive(c) ? spread / 100 : 0);
}

static Status compare_tensor(const Case *c, const char *what, const Tensor *got, const Tensor *want) {
  double largest = 0, worst = 0;
  if (!got || !tensor_same_size(got, want)) return fail(ERR_DIFF, "'%s' is not there, or has another size", what);
  for (int64_t i = 0; i < tensor_numel(want); i++) {
    double w = element_at(want, i), g = element_at(got, i);
    if (!(fabs(g - w) <= worst)) worst = fabs(g - w);
    largest = fmax(largest, fabs(w));
  }
  if (worst <= allowed(c, largest)) return OK;
  return fail(ERR_DIFF, "%s differs by %.3g, its largest element is %.3g", what, worst, largest);
}

/* The tensors of this case that are everybody's, or this rank's. */
static Status compare_results(const Case *c, const Trainer *t, int rank) {
  char path[PATH_CAP], own[64];
  SafeTensors *file;
  Scope scope = {0};
  size_t len = strlen(c->prefix);
  int n = 0;
  snprintf(path, sizeof path, "%s.safetensors", c->file);
  int own_len = snprintf(own, sizeof own, "rank%d/", rank);
  TRY(safetensors_open(path, &file));
  Status s = OK;
  for (int i = 0; i < file->count && !s; i++) {
    const char *name = file->entries[i].name, *what = name + len;
    Tensor *want, *got;
    if (strncmp(name, c->prefix, len)) continue;
    if (!strncmp(what, own, (size_t)own_len)) what += own_len;
    else if (!strncmp(what, "rank", 4) && strchr(what, '/')) continue;
    if (is_noise(c, what)) continue;
    s = safetensors_tensor(file, &file->entries[i], &scope, &want);
    if (!s) s = golden_trained(t, what, false, &scope, &got);
    if (!s) s = compare_tensor(c, name, got, want);
    n++;
  }
  scope_clear(&scope);
  safetensors_close(file);
  return s || n ? s : fail(ERR_DIFF, "nothing was compared");
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static void path_of_model(const Case *c, const char *name, char *path) {
  snprintf(path, PATH_CAP, "%.1000s/train/%.200s/%.200s", c->folder, c->model, name);
}

static Status set_rows(const Case *c, Trainer *t) {
  yyjson_val *list = yyjson_obj_get(c->run, "rows_per_rank"), *v;
  int64_t rows[64];
  size_t i, n;
  yyjson_arr_foreach(list, i, n, v) {
    if (i < 64) rows[i] = yyjson_get_sint(v);
  }
  return trainer_set_rows(t, rows, (int)yyjson_arr_size(list));
}

static Status run_steps(const Case *c, Trainer *t, int rank, const SafeTensors *file, Scope *scope) {
  int each = trainer_recipe(t)->accumulate;
  int n = (int)yyjson_arr_size(yyjson_arr_get(yyjson_obj_get(c->run, "losses_per_rank"), 0));
  if (!n) return fail(ERR_DIFF, "no losses are recorded");
  Status differs = OK; /* told at the end: the others go on */
  for (int step = 0; step < n / each; step++) {
    GoldenBatches b = {.e = trainer_program(t), .file = file, .first = (int64_t)step * each, .scope = scope};
    StepResult got;
    trainer_set_rate(t, 1);
    TRY(trainer_step(t, golden_next_batch, &b, &got));
    if (!differs) differs = compare_loss(c, rank, step, got.own_loss, each);
    if (!differs) differs = compare_norm(c, step, got.grad_norm);
    scope_clear(scope);
  }
  Status s = compare_results(c, t, rank);
  if (!differs) return s;
  status_free(s);
  return differs;
}

/* The size of DDP's buckets, which must not change a bit, and groups of parameters. */
static void set_buckets(const Case *c, Trainer *t) {
  yyjson_val *mb = yyjson_obj_get(yyjson_obj_get(c->run, "ddp"), "bucket_cap_mb"),
             *prefetch = yyjson_obj_get(c->run, "prefetch");
  ReduceGradients how = reduce_gradients_default;
  if (mb) how.bucket_mb = yyjson_get_num(mb);
  if (prefetch) how.prefetch = yyjson_get_int(prefetch);
  if (is_half(c)) how.dtype = DT_F16;
  how.wrap = yyjson_get_str(yyjson_obj_get(c->run, "wrap"));
  how.keep_gathered = yyjson_get_bool(yyjson_obj_get(c->run, "keep"));
  session_reduce_gradients(trainer_session(t), &how);
}

static Status run_trainer(const Case *c, Trainer *t, int rank) {
  char path[PATH_CAP];
  SafeTensors *file;
  Scope scope = {0};
  if (c->suite->interpret) session_force_interpreter(trainer_session(t));
  set_buckets(c, t);
  TRY(set_rows(c, t));
  path_of_model(c, "init.safetensors", path);
  TRY(trainer_load_weights(t, &(StartingWeights){.path = path}));
  path_of_model(c, "batches.safetensors", path);
  TRY(safetensors_open(path, &file));
  Status s = run_steps(c, t, rank, file, &scope);
  scope_clear(&scope);
  safetensors_close(file);
  return s;
}

static Status run_rank(Ctx *ctx, World *w, void *arg) {
  const Case *c = arg;
  Dist *dist;
  Mesh *mesh;
  Trainer *t = NULL;
  TRY(dist_new(w, &dist));
  ctx_attach_dist(ctx, dist);
  Status s = mesh_parse(dist, c->mesh, &mesh);
  if (!s) s = trainer_open_on(ctx, c->prepared, mesh, &t);
  if (!s) s = run_trainer(c, t, world_rank(w));
  trainer_free(t);
  ctx_detach_dist(ctx);
  dist_free(dist);
  return s;
}

static Status prepare_case(Case *c, int ranks) {
  char path[PATH_CAP];
  Ctx ctx;
  Arena arena = {0};
  Recipe r;
  Exported *e;
  path_of_model(c, c->program, path);
  TRY(golden_recipe(c->run, &arena, &r));
  r.freeze = yyjson_get_str(yyjson_obj_get(c->run, "freeze"));
  bool fsdp = yyjson_get_bool(yyjson_obj_get(c->run, "fsdp"));
  TrainerPlan how = {.recipe = &r, .mesh = c->mesh, .local = true, .fsdp = fsdp ? "" : NULL};
  ctx_init(&ctx, 1);
  Status s = pt2_read(path, &e);
  if (!s) s = trainer_prepare(&ctx, e, &how, &c->prepared);
  ctx_free(&ctx);
  if (!s && c->suite->launched) s = run_rank(c->suite->ctx, c->suite->world, c);
  else if (!s) s = ranks_run(&(Ranks){.n = ranks, .threads = 1}, run_rank, c);
  prepared_unref(c->prepared);
  arena_free(&arena);
  return s;
}

static bool speaks(const Suite *s) { return !s->launched || world_rank(s->world) == 0; }

static int run_one(void *arg) {
  Case *c = arg;
  Status s = prepare_case(c, (int)yyjson_arr_size(yyjson_obj_get(c->run, "losses_per_rank")));
  if (s) printf("FAIL %s: %s\n", c->label, status_message(s));
  else if (speaks(c->suite)) printf("ok   %s\n", c->label);
  int code = s ? MODEL_FAILED : 0;
  status_free(s);
  return code;
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static Status read_json(const char *path, yyjson_doc **out) {
  FileMap *file;
  TRY(file_map(path, &file));
  Status s = json_parse(path, file->data, file->size, JSON_NAN, out);
  file_map_unref(file);
  return s;
}

/* With the model's programs. */
static void run_case(Suite *suite, Case *c) {
  static const char *const programs[] = {"forward.pt2", "forward_core.pt2"};
  char path[PATH_CAP];
  if (suite->only_case && strcmp(suite->only_case, c->name)) return;
  for (int p = 0; p < 2; p++) {
    c->program = programs[p];
    path_of_model(c, c->program, path);
    if (!file_exists(path)) continue;
    snprintf(c->label, sizeof c->label, "%.200s %s %s", strrchr(c->file, '/') + 1, c->program, c->name);
    bool ok = suite->launched ? !run_one(c) : run_in_child(run_one, c, c->label);
    suite->passed += ok;
    suite->failed += !ok;
  }
}

static void run_cases(Suite *suite, Case *c, yyjson_val *cases) {
  size_t i, n;
  yyjson_val *key, *run;
  if (!cases) return; /* a file of another kind */
  yyjson_obj_foreach(cases, i, n, key, run) {
    c->name = yyjson_get_str(key);
    c->run = run;
    snprintf(c->prefix, sizeof c->prefix, "%.100s/", c->name);
    snprintf(c->mesh, sizeof c->mesh, "dp=%zu", yyjson_arr_size(yyjson_obj_get(run, "losses_per_rank")));
    run_case(suite, c);
  }
}

static void run_fsdp(Suite *suite, Case *c, yyjson_val *record) {
  yyjson_mut_doc *mutable = golden_fsdp_run(record);
  yyjson_doc *doc = mutable ? yyjson_mut_doc_imut_copy(mutable, NULL) : NULL;
  c->run = yyjson_doc_get_root(doc);
  c->name = "fsdp";
  const char *mesh = yyjson_get_str(yyjson_obj_get(c->run, "mesh"));
  snprintf(c->mesh, sizeof c->mesh, "%s", mesh ? mesh : "");
  if (doc) run_case(suite, c);
  yyjson_doc_free(doc);
  yyjson_mut_doc_free(mutable);
}

static Status run_file(Suite *suite, const char *folder, const char *kind, const char *name) {
  char path[PATH_CAP];
  yyjson_doc *doc, *meta = NULL;
  Case c = {.suite = suite, .folder = folder};
  snprintf(c.file, sizeof c.file, "%.1000s/%s/%.*s", folder, kind, (int)(strlen(name) - 5), name);
  snprintf(path, sizeof path, "%s.json", c.file);
  TRY(read_json(path, &doc));
  yyjson_val *root = yyjson_doc_get_root(doc);
  c.model = yyjson_get_str(yyjson_obj_get(root, "model"));
  bool wanted = !suite->only || strstr(name, suite->only);
  if (suite->launched) wanted &= yyjson_get_int(yyjson_obj_get(root, "world")) == world_size(suite->world);
  path_of_model(&c, "meta.json", path);
  Status s = wanted && file_exists(path) ? read_json(path, &meta) : OK;
  if (!s && wanted) {
    c.meta = yyjson_doc_get_root(meta);
    run_cases(suite, &c, yyjson_obj_get(root, "cases"));
    run_fsdp(suite, &c, root);
    yyjson_doc_free(meta);
  }
  yyjson_doc_free(doc);
  return s;
}

static void run_folder(Suite *suite, const char *folder, const char *kind) {
  char path[PATH_CAP];
  struct dirent **list;
  snprintf(path, sizeof path, "%s/%s", folder, kind);
  int n = scandir(path, &list, NULL, alphasort);
  for (int i = 0; i < n; i++) {
    const char *name = list[i]->d_name, *end = strrchr(name, '.');
    Status s = end && !strcmp(end, ".json") ? run_file(suite, folder, kind, name) : OK;
    if (s) printf("FAIL %s: %s\n", name, status_message(s));
    suite->failed += s != NULL;
    status_free(s);
    free(list[i]);
  }
  if (n >= 0) free(list);
}

static Status run_all(Ctx *ctx, World *w, void *arg) {
  Suite *suite = arg;
  suite->ctx = ctx;
  suite->world = w;
  for (int i = 0; i < suite->nfolders; i++) {
    run_folder(suite, suite->folder[i], "ddp/run");
    run_folder(suite, suite->folder[i], "fsdp");
  }
  if (speaks(suite)) printf("%d passed, %d failed\n", suite->passed, suite->failed);
  return OK;
}

static Status run_launched(Suite *suite) {
  Ranks how = {.threads = 1};
  TRY(transport_choose(NULL, &how.transport));
  return ranks_run(&how, run_all, suite);
}

int main(int argc, char **argv) {
  char *own[] = {GOLDEN_FOLDER, GOLDEN_FOLDER "/fsdp"};
  Suite suite = {.folder = argv + 1};
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--model")) suite.only = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--case")) suite.only_case = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--launched")) suite.launched = true;
    else if (!strcmp(argv[i], "--interpret")) suite.interpret = true;
    else if (argv[i][0] == '-') {
      fprintf(stderr,
              "usage: golden_ddp_run [FOLDER...] [--model NAME] [--case NAME] [--launched] [--interpret]\n");
      return 2;
    } else argv[1 + suite.nfolders++] = argv[i];
  }
  if (!suite.nfolders) suite.folder = own, suite.nfolders = 2;
  Status s = suite.launched ? run_launched(&suite) : run_all(NULL, NULL, &suite);
  if (s) printf("FAIL %s\n", status_message(s));
  bool failed = s || suite.failed > 0 || suite.passed == 0;
  status_free(s);
  return failed;
}
