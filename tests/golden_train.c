/* golden_train -- training runs of exported programs, compared with PyTorch's.
 *
 *     golden_train [FOLDER...] [--model NAME] [--case NAME] [--threads N] [--interpret] [--verbose]
 *                  [--mesh dp=2 ... [--plan auto] [--fsdp]]
 *
 * A FOLDER has a folder per model: forward.pt2 and forward_core.pt2 (they return the loss), init.safetensors,
 * batches.safetensors (inputs with the batches in front), meta.json (`trajectories`: by case the optimizer with its
 * arguments, `clip`, `accumulate`, `dtype`, `losses` per batch, `grad_norms` per step), final.safetensors
 * (`<case>/<name>`), optimizer_state.safetensors (`<case>/<name>/<state>`; may be missing).  Losses, norms,
 * parameters, buffers and states are compared relative to the largest element: 1e-4, 3e-2 for half precision.  Of
 * Adam's kind, parameters in `noise_gradient` are left out: their true gradient is 0 and its rounding makes their
 * steps; so are running means of batches when there are such.  In half precision this happens to every parameter:
 * PyTorch itself, on another processor or with its fused optimizer, ends several steps away from what it recorded.
 * There a parameter may be off by a step per step, and states by a fifth.  On a mesh every rank compares the whole.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "dist/dispatch.h"
#include "golden_training.h"
#include "model_folders.h"
#include "pt2/read.h"
#include "train/starting_weights.h"

enum { PATH_CAP = 4096 };

enum { MAX_MESHES = 16 };

typedef struct {
  const char *only, *only_case, *plan;
  const char *mesh[MAX_MESHES];
  int nmeshes, threads, passed, failed;
  bool interpret, verbose, fsdp;
} Suite;

typedef struct {
  const Suite *suite;
  char folder[PATH_CAP / 2];
  const char *program, *name; /* the file, the case */
  const char *mesh;           /* NULL: one rank */
  Prepared *prepared;
  char label[256];
  yyjson_val *meta, *run;
  double tolerance, slack; /* of parameters: relative to the largest element, and absolute */
} Case;

static void path_in(const Case *c, const char *name, char *path) {
  snprintf(path, PATH_CAP, "%s/%.1000s", c->folder, name);
}

/* ---- comparing -------------------------------------------------------------------------------------- */

static bool is_sgd(const Case *c) {
  return !strncmp(yyjson_get_str(yyjson_obj_get(c->run, "optimizer")), "SGD", 3);
}

static bool is_noise(const Case *c, const char *name) {
  size_t i, n;
  yyjson_val *v, *noise = yyjson_obj_get(c->meta, "noise_gradient");
  const char *mean = strstr(name, "running_mean");
  if (is_sgd(c)) return false;
  yyjson_arr_foreach(noise, i, n, v) {
    if (!strcmp(yyjson_get_str(v), name)) return true;
  }
  return mean && yyjson_arr_size(noise);
}

static Status compare_number(const Case *c, const char *what, int step, double got, double want) {
  if (fabs(got - want) <= c->tolerance * fmax(fabs(want), 1e-12)) return OK;
  return fail(ERR_DIFF, "%s of step %d is %.8g, should be %.8g", what, step, got, want);
}

static Status compare_tensor(const Case *c, const char *what, bool state, const Tensor *got, const Tensor *want) {
  double largest = 0, worst = 0;
  char a[160], b[160];
  if (!tensor_same_size(got, want))
    return fail(ERR_DIFF, "%s is %s, should be %s", what, tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  for (int64_t i = 0; i < tensor_numel(want); i++) {
    double w = element_at(want, i), g = element_at(got, i);
    if (!(fabs(g - w) <= worst)) worst = fabs(g - w);
    largest = fmax(largest, fabs(w));
  }
  double relative = state && c->tolerance > 1e-2 ? 0.2 : c->tolerance;
  if (worst <= relative * fmax(largest, 1e-12) + (state ? 0 : c->slack)) return OK;
  return fail(ERR_DIFF, "%s differs by %.3g, its largest element is %.3g", what, worst, largest);
}

/* Everything of this case in a file; *n: how many tensors. */
static Status compare_file(const Case *c, Trainer *t, const char *file, bool state, int *n) {
  char path[PATH_CAP];
  SafeTensors *want;
  Scope scope = {0};
  size_t len = strlen(c->name);
  Status s = OK;
  path_in(c, file, path);
  TRY(safetensors_open(path, &want));
  for (int i = 0; i < want->count && !s; i++) {
    const char *name = want->entries[i].name;
    Tensor *w;
    if (strncmp(name, c->name, len) || name[len] != '/') continue;
    Tensor *got = NULL;
    char param[1024];
    snprintf(param, sizeof param, "%s", name + len + 1);
    if (state && strrchr(param, '/')) *strrchr(param, '/') = 0;
    if (is_noise(c, param)) continue;
    s = golden_trained(t, name + len + 1, state, &scope, &got);
    if (!s && !got) s = fail(ERR_DIFF, "there is no '%s'", name);
    if (!s) s = safetensors_tensor(want, &want->entries[i], &scope, &w);
    if (!s) s = compare_tensor(c, name, state, got, w);
    ++*n;
  }
  scope_clear(&scope);
  safetensors_close(want);
  return s;
}

static Status compare_results(const Case *c, Trainer *t) {
  char path[PATH_CAP];
  int finals = 0, states = 0;
  TRY(compare_file(c, t, "final.safetensors", false, &finals));
  if (!finals) return fail(ERR_DIFF, "nothing was compared");
  path_in(c, "optimizer_state.safetensors", path);
  return file_exists(path) ? compare_file(c, t, "optimizer_state.safetensors", true, &states) : OK;
}

/* ---- one run ---------------------------------------------------------------------------------------- */

static Status run_step(const Case *c, Trainer *t, const SafeTensors *file, int step, Scope *scope) {
  int each = trainer_recipe(t)->accumulate;
  GoldenBatches batches = {.e = trainer_program(t), .file = file, .first = (int64_t)step * each, .scope = scope};
  StepResult got;
  double want = 0;
  yyjson_val *losses = yyjson_obj_get(c->run, "losses"), *norms = yyjson_obj_get(c->run, "grad_norms");
  for (int i = 0; i < each; i++) want += yyjson_get_num(yyjson_arr_get(losses, (size_t)(step * each + i))) / each;
  trainer_set_rate(t, 1);
  TRY(trainer_step(t, golden_next_batch, &batches, &got));
  if (c->suite->verbose) printf("  step %d loss %.8g (%.8g) norm %.8g\n", step + 1, got.loss, want, got.grad_norm);
  TRY(compare_number(c, "the loss", step + 1, got.loss, want));
  yyjson_val *norm = yyjson_arr_get(norms, (size_t)step);
  return norm ? compare_number(c, "the norm", step + 1, got.grad_norm, yyjson_get_num(norm)) : OK;
}

static Status run_steps(const Case *c, Trainer *t) {
  char path[PATH_CAP];
  SafeTensors *file;
  Scope scope = {0};
  path_in(c, "init.safetensors", path);
  TRY(trainer_load_weights(t, &(StartingWeights){.path = path}));
  path_in(c, "batches.safetensors", path);
  TRY(safetensors_open(path, &file));
  int batches = (int)yyjson_arr_size(yyjson_obj_get(c->run, "losses"));
  Status s = batches ? OK : fail(ERR_DIFF, "no losses are recorded");
  for (int i = 0; i < batches / trainer_recipe(t)->accumulate && !s; i++) s = run_step(c, t, file, i, &scope);
  scope_clear(&scope);
  safetensors_close(file);
  return s ? s : compare_results(c, t);
}

static Status run_trainer(const Case *c, Ctx *ctx, Mesh *mesh) {
  Trainer *t;
  TRY(trainer_open_on(ctx, c->prepared, mesh, &t));
  if (c->suite->interpret) session_force_interpreter(trainer_session(t));
  Status s = run_steps(c, t);
  trainer_free(t);
  return s;
}

static Status run_rank(World *w, void *arg) {
  const Case *c = arg;
  Dist *dist;
  Mesh *mesh;
  Ctx ctx;
  TRY(dist_new(w, &dist));
  ctx_init(&ctx, 1);
  ctx_attach_dist(&ctx, dist);
  Status s = mesh_parse(dist, c->mesh, &mesh);
  if (!s) s = run_trainer(c, &ctx, mesh);
  ctx_detach_dist(&ctx);
  ctx_free(&ctx);
  dist_free(dist);
  return s;
}

static Status run_prepared(Case *c, Ctx *ctx) {
  int n;
  if (!c->mesh) return run_trainer(c, ctx, NULL);
  TRY(mesh_text_ranks(c->mesh, &n));
  return world_threads(n, run_rank, c, NULL);
}

static Status prepare_case(Case *c, Ctx *ctx, const Recipe *r) {
  char path[PATH_CAP];
  PlanFile *plan = NULL;
  Exported *e;
  path_in(c, c->suite->plan, path);
  if (c->mesh) TRY(plan_file_read(strcmp(c->suite->plan, "auto") ? path : "auto", &plan));
  path_in(c, c->program, path);
  Status s = pt2_read(path, &e);
  const TrainerPlan how = {.recipe = r, .mesh = c->mesh, .plan = plan, .fsdp = c->suite->fsdp ? "" : NULL};
  if (!s) s = trainer_prepare(ctx, e, &how, &c->prepared);
  plan_file_free(plan);
  return s;
}

static Status run_case(Case *c) {
  Ctx ctx;
  Arena arena = {0};
  Recipe r;
  Status s = golden_recipe(c->run, &arena, &r);
  bool half = !s && r.param_dtype != DT_NONE;
  c->tolerance = half ? 3e-2 : 1e-4;
  if (half && !is_sgd(c))
    c->slack = optim_number(&r.group[0].optim, "lr", 0) * (double)yyjson_arr_size(yyjson_obj_get(c->run, "losses"));
  ctx_init(&ctx, c->suite->threads);
  if (!s) s = prepare_case(c, &ctx, &r);
  if (!s) s = run_prepared(c, &ctx);
  prepared_unref(c->prepared);
  c->prepared = NULL;
  ctx_free(&ctx);
  arena_free(&arena);
  return s;
}

/* A line on stdout. */
static int run_one(void *arg) {
  Case *c = arg;
  double start = clock_now();
  Status s = run_case(c);
  if (!s) printf("ok   %-44s %8.1f ms\n", c->label, (clock_now() - start) * 1e3);
  else printf("FAIL %s: %s\n", c->label, status_message(s));
  int code = s ? MODEL_FAILED : 0;
  status_free(s);
  return code;
}

/* ---- all of them ------------------------------------------------------------------------------------ */

static void run_cases(Suite *suite, Case *c, const char *model) {
  static const char *const programs[] = {"forward.pt2", "forward_core.pt2"};
  size_t i, n;
  yyjson_val *key, *run;
  char path[PATH_CAP];
  yyjson_obj_foreach(yyjson_obj_get(c->meta, "trajectories"), i, n, key, run) {
    c->name = yyjson_get_str(key);
    c->run = run;
    if (suite->only_case && strcmp(suite->only_case, c->name)) continue;
    for (int p = 0; p < 2; p++) {
      c->program = programs[p];
      path_in(c, c->program, path);
      if (!file_exists(path)) continue;
      for (int k = 0; k < (suite->nmeshes ? suite->nmeshes : 1); k++) {
        c->mesh = suite->nmeshes ? suite->mesh[k] : NULL;
        snprintf(c->label, sizeof c->label, "%s/%s %s%s%s", model, c->program, c->name, c->mesh ? " " : "",
                 c->mesh ? c->mesh : "");
        bool ok = run_in_child(run_one, c, c->label);
        suite->passed += ok;
        suite->failed += !ok;
      }
    }
  }
}

static void run_folder(void *arg, const char *folder, const char *name) {
  Suite *suite = arg;
  Case c = {.suite = suite};
  char path[PATH_CAP];
  FileMap *file;
  yyjson_doc *doc = NULL;
  snprintf(c.folder, sizeof c.folder, "%.1000s/%.900s", folder, name);
  path_in(&c, "meta.json", path);
  if (!file_exists(path) || (suite->only && !strstr(name, suite->only))) return;
  Status s = file_map(path, &file);
  if (!s) {
    s = json_parse(path, file->data, file->size, JSON_NAN, &doc);
    file_map_unref(file);
  }
  if (s) {
    printf("FAIL %s: %s\n", name, status_message(s));
    suite->failed++;
    status_free(s);
    return;
  }
  c.meta = yyjson_doc_get_root(doc);
  run_cases(suite, &c, name);
  yyjson_doc_free(doc);
}

int main(int argc, char **argv) {
  Suite suite = {.threads = 1, .plan = "auto"};
  int folders = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--model")) suite.only = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--case")) suite.only_case = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--threads")) suite.threads = atoi(option_value(argc, argv, &i));
    else if (!strcmp(argv[i], "--plan")) suite.plan = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--mesh") && suite.nmeshes < MAX_MESHES)
      suite.mesh[suite.nmeshes++] = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--fsdp")) suite.fsdp = true;
    else if (!strcmp(argv[i], "--interpret")) suite.interpret = true;
    else if (!strcmp(argv[i], "--verbose")) suite.verbose = true;
    else if (argv[i][0] == '-') {
      fprintf(stderr, "usage: golden_train [FOLDER...] [--model NAME] [--case NAME] [--threads N] [--interpret] "
                      "[--verbose] [--mesh dp=2 ... [--plan auto] [--fsdp]]\n");
      return 2;
    } else argv[1 + folders++] = argv[i];
  }
  for (int i = 0; i < folders; i++) each_model(argv[1 + i], run_folder, &suite);
  if (!folders) each_model(GOLDEN_FOLDER "/train", run_folder, &suite);
  printf("%d passed, %d failed\n", suite.passed, suite.failed);
  return suite.failed > 0 || suite.passed == 0;
}
