/* golden_grads -- losses and gradients of exported programs, compared with PyTorch's.
 *
 *     golden_grads [FOLDER...] [--model NAME] [--threads N] [--interpret] [--verbose]
 *                  [--memory | --mesh tp=2 ... [--plan plan.json|auto]]
 *
 * --memory: the same bits under limits of memory, each of which the plan meets.
 * A FOLDER has a folder per model: programs that return a loss (program.pt2, forward.pt2, forward_core.pt2) or are
 * joint ones already (joint.pt2, joint_native.pt2), inputs.safetensors, grads.safetensors (`loss`, and of every
 * parameter that has one its gradient, as `grad/<name>` or by its name), about.json or meta.json (`noise` or
 * `noise_gradient`: parameters whose true gradient is 0, of which nothing is compared; `none`: parameters without
 * one), and a plan for meshes.  Every gradient is compared relative to its
 * largest element: 1e-4, 3e-2 for half precision; PyTorch's own error, where about.json tells it, is added.
 * NAME matches as a substring.  Models run in child processes: a crash or a hang is the failure of one model.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/parallel.h"
#include "dist/dispatch.h"
#include "harness/feed.h"
#include "harness/rank_results.h"
#include "model_folders.h"
#include "pt2/read.h"
#include "runtime/session.h"

enum { MAX_MESHES = 16, PATH_CAP = 4096 };

typedef struct {
  const char *only, *plan;
  const char *mesh[MAX_MESHES];
  int nmeshes, threads, passed, failed;
  bool interpret, verbose, memory;
} Suite;

typedef struct {
  const Suite *suite;
  const char *mesh; /* NULL: one rank */
  char folder[PATH_CAP / 2];
  const char *program; /* in the folder */
  char label[256];
  yyjson_val *about;
  SafeTensors *want;
} Model;

static void path_in(const Model *m, const char *name, char *path) {
  snprintf(path, PATH_CAP, "%s/%.1000s", m->folder, name);
}

/* ---- comparing ------------------------------------------------------------------------------------- */

static double tolerance(const Model *m, const char *parameter, Dtype d) {
  yyjson_val *errors = yyjson_obj_get(m->about, "f32_grad_error");
  yyjson_val *own = parameter && yyjson_is_obj(errors) ? yyjson_obj_get(errors, parameter) : NULL;
  double most = d == DT_F64 ? 1e-7 : d == DT_F32 ? 1e-4 : 3e-2;
  return most + (own && yyjson_is_num(own) ? yyjson_get_num(own) : 0);
}

static Status compare(const Model *m, const char *what, const char *parameter, const Tensor *got,
                      const Tensor *want) {
  char a[160], b[160];
  if (!tensor_same_size(got, want) || got->dtype != want->dtype)
    return fail(ERR_DIFF, "%s is %s, should be %s", what, tensor_describe(got, a, sizeof a),
                tensor_describe(want, b, sizeof b));
  double largest = 0, worst = 0;
  bool bad = false;
  for (int64_t i = 0; i < tensor_numel(want); i++) {
    double w = element_at(want, i), g = element_at(got, i);
    bad |= !isfinite(w) || !isfinite(g);
    if (fabs(w) > largest) largest = fabs(w);
    if (fabs(g - w) > worst) worst = fabs(g - w);
  }
  if (bad || worst > tolerance(m, parameter, want->dtype) * (largest > 1e-12 ? largest : 1e-12))
    return fail(ERR_DIFF, "%s differs by %.3g, its largest element is %.3g%s", what, worst, largest,
                bad ? ", and not all are finite" : "");
  return OK;
}

/* Programs that a folder may have. */
static const char *const programs[] = {"program.pt2", "forward.pt2", "forward_core.pt2", "joint.pt2",
                                       "joint_native.pt2"};

static bool is_joint(const Model *m) { return !strncmp(m->program, "joint", 5); }

static bool is_listed(const Model *m, const char *list, const char *name) {
  size_t i, n;
  yyjson_val *v;
  yyjson_arr_foreach(yyjson_obj_get(m->about, list), i, n, v) if (!strcmp(yyjson_get_str(v), name)) return true;
  return false;
}

/* The output that is the gradient of this parameter, the loss if name is NULL; NULL: there is none. */
static const Tensor *find_output(const Session *s, const char *name, const Value *outs) {
  const GradRequest *r = session_gradients(s);
  const Exported *e = session_program(s);
  for (int i = 0, at = 0; i < e->graph->noutputs + (r ? r->n : 0); i++) {
    OutputSpec spec = r ? grad_output(e, r, i) : e->outputs[i];
    if (!output_is_returned(spec.kind)) continue;
    const Value *v = &outs[at++];
    bool found = name ? spec.kind == OUT_GRADIENT_TO_PARAMETER && !strcmp(spec.target, name)
                      : spec.kind == OUT_LOSS;
    if (found) return v->kind == VAL_TENSOR ? v->tensor : NULL;
  }
  return NULL;
}

/* The gradient of a parameter; of one that has several names (tied), under whichever it came out. */
static const Tensor *find_gradient(const Session *s, const char *name, const Value *outs) {
  const Exported *e = session_program(s);
  const StateEntry *own = exported_state(e, name);
  const Tensor *found = find_output(s, name, outs);
  for (int i = 0; own && !found && i < e->nstate; i++)
    if (!strcmp(e->state[i].record, own->record)) found = find_output(s, e->state[i].fqn, outs);
  return found;
}

static Status refuse_others(const Model *m, const Session *s, const Value *outs) {
  size_t i, n;
  yyjson_val *none;
  yyjson_arr_foreach(yyjson_obj_get(m->about, "none"), i, n, none) {
    const Tensor *t = find_output(s, yyjson_get_str(none), outs);
    for (int64_t k = 0; t && k < tensor_numel(t); k++)
      if (element_at(t, k) != 0) return fail(ERR_DIFF, "%s should have no gradient", yyjson_get_str(none));
  }
  return OK;
}

static Status compare_all(const Model *m, const Session *s, const Value *outs, Scope *scope) {
  Tensor *want;
  int seen = 0;
  for (int i = 0; i < m->want->count; i++) {
    const SafeEntry *entry = &m->want->entries[i];
    const char *name = strcmp(entry->name, "loss") ? entry->name : NULL;
    if (name && !strncmp(name, "grad/", 5)) name += 5;
    TRY(safetensors_tensor(m->want, entry, scope, &want));
    if (name && (is_listed(m, "noise", name) || is_listed(m, "noise_gradient", name))) continue;
    const Tensor *got = name ? find_gradient(s, name, outs) : find_output(s, NULL, outs);
    if (!got) return fail(ERR_DIFF, "there is no %s", entry->name);
    TRY(compare(m, entry->name, name, got, want));
    seen++;
  }
  TRY(refuse_others(m, s, outs));
  return seen > 1 ? OK : fail(ERR_DIFF, "nothing was compared");
}

/* ---- one model --------------------------------------------------------------------------------------- */

/* Its calls do not depend on earlier ones. */
static bool is_stateless(const Exported *e) {
  for (int i = 0; i < e->nstate; i++)
    if (exported_is_mutated(e, e->state[i].fqn)) return false;
  return true;
}

static Status run_calls(Model *m, Session *session) {
  char path[PATH_CAP];
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs, *outs;
  int ninputs, nouts;
  path_in(m, "inputs.safetensors", path);
  Status s = feed_from_file(session_program(session), path, &scope, &arena, &inputs, &ninputs);
  int rounds = is_stateless(session_program(session)) ? 2 : 1;
  for (int round = 0; round < rounds && !s; round++) {
    s = session_run(session, inputs, ninputs, &scope, &arena, &outs, &nouts);
    if (!s && !is_joint(m)) s = session_gather_gradients(session, inputs, &scope, outs, nouts);
    if (!s) s = compare_all(m, session, outs, &scope);
  }
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status open_on_mesh(const Model *m, Ctx *ctx, Exported *e, Session **out) {
  char path[PATH_CAP];
  Mesh *mesh;
  PlanFile *plan = NULL;
  path_in(m, m->suite->plan, path);
  Status s = mesh_parse(ctx->dist, m->mesh, &mesh);
  if (!s) s = plan_file_read(strcmp(m->suite->plan, "auto") ? path : "auto", &plan);
  if (s) exported_free(e);
  else s = session_open_on_mesh(ctx, e, mesh, plan, out);
  plan_file_free(plan);
  return s;
}

static Status run_session(Model *m, Ctx *ctx) {
  char path[PATH_CAP];
  Exported *e;
  Session *session = NULL;
  path_in(m, m->program, path);
  TRY(pt2_read(path, &e));
  Status s = m->mesh ? open_on_mesh(m, ctx, e, &session) : session_open(ctx, e, &session);
  if (!s && !is_joint(m)) s = session_want_gradients(session, &(GradOptions){0});
  if (!s && m->suite->interpret) session_force_interpreter(session);
  if (!s) s = run_calls(m, session);
  session_free(session);
  return s;
}

/* ---- limits of memory ---------------------------------------------------------------------------------- */

typedef struct {
  size_t slab;
  uint64_t bits; /* of all outputs */
} Limited;

static Status open_limited(const Model *m, Ctx *ctx, MemoryLimit limit, Session **out) {
  char path[PATH_CAP];
  Exported *e;
  *out = NULL;
  path_in(m, m->program, path);
  TRY(pt2_read(path, &e));
  TRY(session_open(ctx, e, out));
  session_limit_memory(*out, limit);
  return is_joint(m) ? OK : session_want_gradients(*out, &(GradOptions){0});
}

static Status call_limited(const Model *m, Session *session, Scope *scope, Arena *arena, Limited *out) {
  char path[PATH_CAP];
  Value *inputs, *outs;
  int ninputs, nouts;
  Program *p;
  path_in(m, "inputs.safetensors", path);
  TRY(feed_from_file(session_program(session), path, scope, arena, &inputs, &ninputs));
  TRY(session_prepare(session, inputs, ninputs, &p));
  if (!p) return fail(ERR_DIFF, "the program is interpreted");
  session_ctx(session)->offset = 0;
  TRY(session_run(session, inputs, ninputs, scope, arena, &outs, &nouts));
  *out = (Limited){.slab = p->slab_bytes};
  for (int i = 0; i < nouts; i++) out->bits = out->bits * 31 + value_hash(&outs[i]);
  return OK;
}

static Status run_limited(const Model *m, Ctx *ctx, MemoryLimit limit, Limited *out) {
  Session *session;
  Scope scope = {0};
  Arena arena = {0};
  Status s = open_limited(m, ctx, limit, &session);
  if (!s) s = call_limited(m, session, &scope, &arena, out);
  scope_clear(&scope);
  arena_free(&arena);
  session_free(session);
  return s;
}

/* The least that computing again can do. */
static Status least_memory(const Model *m, Ctx *ctx, size_t *least) {
  char path[PATH_CAP];
  Session *session;
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs;
  Exported *special = NULL;
  MemoryStep *steps = NULL;
  int ninputs, n;
  path_in(m, "inputs.safetensors", path);
  Status s = open_limited(m, ctx, (MemoryLimit){0}, &session);
  if (!s) s = feed_from_file(session_program(session), path, &scope, &arena, &inputs, &ninputs);
  if (!s) s = session_specialize(session, inputs, ninputs, &special);
  if (!s) s = memory_curve(ctx, special, &steps, &n);
  if (!s) *least = steps[n - 1].slab;
  free(steps);
  exported_free(special);
  scope_clear(&scope);
  arena_free(&arena);
  session_free(session);
  return s;
}

static Status refuses(const Model *m, Ctx *ctx, MemoryLimit limit) {
  Limited got;
  Status s = run_limited(m, ctx, limit, &got);
  bool right = s && status_code(s) == ERR_USAGE && strstr(status_message(s), "the smallest limit");
  if (s && !right) return s;
  status_free(s);
  return right ? OK : fail(ERR_DIFF, "%g is less than can be, and was not refused", limit.amount);
}

static Status check_limits(const Model *m, Ctx *ctx) {
  Limited whole, got;
  size_t least = 0, last;
  TRY(run_limited(m, ctx, (MemoryLimit){0}, &whole));
  TRY(least_memory(m, ctx, &least));
  last = whole.slab;
  for (int share = 100; share >= 20; share -= 10) {
    size_t limit = (size_t)((double)whole.slab * share / 100);
    MemoryLimit bytes = {.amount = (double)(limit < least ? least : limit)};
    TRY(run_limited(m, ctx, bytes, &got));
    if (got.bits != whole.bits) return fail(ERR_DIFF, "other bits at %d%% of the memory", share);
    if ((double)got.slab > bytes.amount || got.slab > last)
      return fail(ERR_DIFF, "%zu bytes where %.0f are allowed, %zu with a larger limit", got.slab, bytes.amount,
                  last);
    last = got.slab;
    if (m->suite->verbose) printf("  %3d%%: %zu\n", share, got.slab);
  }
  return refuses(m, ctx, (MemoryLimit){.amount = (double)least - 1});
}

static Status session_of(Ctx *ctx, void *arg) { return run_session(arg, ctx); }

static Status run_rank(World *w, void *arg) {
  const Model *m = arg;
  return run_on_rank(w, session_of, arg, world_rank(w) == 0 && m->suite->verbose ? stdout : NULL);
}

static Status run_model(Model *m) {
  char path[PATH_CAP];
  FileMap *about;
  yyjson_doc *doc = NULL;
  path_in(m, "about.json", path);
  if (!file_exists(path)) path_in(m, "meta.json", path);
  TRY(file_map(path, &about));
  Status s = json_parse(path, about->data, about->size, JSON_NAN, &doc);
  file_map_unref(about);
  m->about = yyjson_doc_get_root(doc);
  path_in(m, "grads.safetensors", path);
  if (!s) s = safetensors_open(path, &m->want);
  if (!s && m->mesh) {
    int n = 0;
    s = mesh_text_ranks(m->mesh, &n);
    if (!s) s = world_threads(n, run_rank, m, NULL);
  } else if (!s) {
    Ctx ctx;
    ctx_init(&ctx, m->suite->threads);
    s = m->suite->memory ? check_limits(m, &ctx) : run_session(m, &ctx);
    ctx_free(&ctx);
  }
  safetensors_close(m->want);
  yyjson_doc_free(doc);
  return s;
}

/* A line on stdout. */
static int run_one(void *arg) {
  Model *m = arg;
  double start = clock_now();
  Status s = run_model(m);
  if (!s) printf("ok   %-36s %8.1f ms\n", m->label, (clock_now() - start) * 1e3);
  else printf("FAIL %s: %s\n", m->label, status_message(s));
  int code = s ? MODEL_FAILED : 0;
  status_free(s);
  return code;
}

/* ---- all of them ----------------------------------------------------------------------------------- */

static void start_model(Suite *suite, const char *folder, const char *name, const char *program, const char *mesh) {
  Model m = {.suite = suite, .mesh = mesh, .program = program};
  bool named = strcmp(program, programs[0]);
  snprintf(m.folder, sizeof m.folder, "%.1000s/%.900s", folder, name);
  snprintf(m.label, sizeof m.label, "%s%s%s%s%s", name, named ? "/" : "", named ? program : "", mesh ? " " : "",
           mesh ? mesh : "");
  bool ok = run_in_child(run_one, &m, m.label);
  suite->passed += ok;
  suite->failed += !ok;
}

/* All programs of a model, on one rank or on the meshes. */
static void run_programs(Suite *suite, const char *folder, const char *name) {
  for (size_t p = 0; p < sizeof programs / sizeof *programs; p++) {
    char path[PATH_CAP], plan[PATH_CAP];
    snprintf(path, sizeof path, "%.2000s/%.1000s/%s", folder, name, programs[p]);
    snprintf(plan, sizeof plan, "%.2000s/%.1000s/%.200s", folder, name, suite->plan);
    if (!file_exists(path)) continue;
    if (!suite->nmeshes) start_model(suite, folder, name, programs[p], NULL);
    for (int k = 0; k < suite->nmeshes; k++)
      if ((file_exists(plan) || !strcmp(suite->plan, "auto")) && strncmp(programs[p], "joint", 5))
        start_model(suite, folder, name, programs[p], suite->mesh[k]);
  }
}

static void run_folder(void *arg, const char *folder, const char *name) {
  Suite *suite = arg;
  char path[PATH_CAP];
  snprintf(path, sizeof path, "%.2000s/%.1000s/grads.safetensors", folder, name);
  if (file_exists(path) && (!suite->only || strstr(name, suite->only))) run_programs(suite, folder, name);
}

int main(int argc, char **argv) {
  Suite suite = {.threads = parallel_cores(), .plan = "plan.json"};
  int folders = 0;
  for (int i = 1; i < argc; i++) {
    if (!strcmp(argv[i], "--model")) suite.only = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--threads")) suite.threads = atoi(option_value(argc, argv, &i));
    else if (!strcmp(argv[i], "--mesh") && suite.nmeshes < MAX_MESHES)
      suite.mesh[suite.nmeshes++] = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--plan")) suite.plan = option_value(argc, argv, &i);
    else if (!strcmp(argv[i], "--interpret")) suite.interpret = true;
    else if (!strcmp(argv[i], "--verbose")) suite.verbose = true;
    else if (!strcmp(argv[i], "--memory")) suite.memory = true;
    else if (argv[i][0] == '-') {
      fprintf(stderr, "usage: golden_grads [FOLDER...] [--model NAME] [--threads N] [--interpret] [--verbose] "
                      "[--memory | --mesh tp=2 ... [--plan plan.json|auto]]\n");
      return 2;
    } else argv[1 + folders++] = argv[i];
  }
  for (int i = 0; i < folders; i++) each_model(argv[1 + i], run_folder, &suite);
  if (!folders) each_model(GOLDEN_FOLDER "/grads", run_folder, &suite);
  printf("%d passed, %d failed\n", suite.passed, suite.failed);
  return suite.failed > 0 || suite.passed == 0;
}
