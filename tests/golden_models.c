/* golden_models -- runs exported programs and compares their outputs with PyTorch's.
 *
 *     golden_models [FOLDER...] [--model NAME] [--threads N] [--interpret] [--verbose]
 *                   [--mesh tp=2 [--plan plan.json] [--launched | --files]]
 *
 * A FOLDER has a folder per model: program.pt2, about.json, and per run a file of inputs
 * and one of outputs (.safetensors).  A model's runs are successive calls of one session,
 * so buffers keep their state and other sizes meet a warm cache; all runs are made again
 * where there is no state, with what the first round left packed.  Tolerances are
 * compare.h's: f32 1e-4, bf16 3e-2, integers exactly.  NAME matches as a substring.
 *
 * With --mesh (may be given several times), models that have that plan file run on the
 * mesh's ranks, and every rank's outputs are compared; --launched: on the ranks of a launch;
 * --files: cut into rank files first, which are then run by themselves.
 *
 * Models run in child processes: a crash or a hang is the failure of one model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/parallel.h"
#include "comm/launch.h"
#include "dist/dispatch.h"
#include "golden_files.h"
#include "harness/compare.h"
#include "harness/feed.h"
#include "harness/load.h"
#include "model_folders.h"
#include "pt2/read.h"

enum { MAX_MESHES = 16 };
enum { ROUNDS = 3, PATH_CAP = 4096 };

typedef struct {
  const char *only;
  int threads;
  bool interpret, verbose, launched, quiet, files;
  const char *mesh[MAX_MESHES], *plan;
  int nmeshes;
  World *world; /* --launched: the launch */
  char **folder;
  int nfolders;
  int passed, failed;
} Suite;

/* ---- one model ---------------------------------------------------------------- */

typedef struct {
  char folder[PATH_CAP];
  yyjson_val *runs;
  char *report; /* what compare printed */
  size_t report_len;
  const char *mesh; /* NULL: one rank */
} Model;

static Status in_folder(const Model *m, yyjson_val *run, const char *key, char *path) {
  const char *name;
  TRY(json_string(run, key, "about.json", &name));
  if (snprintf(path, PATH_CAP, "%s/%s", m->folder, name) >= PATH_CAP)
    return fail(ERR_FILE, "%s: its name is too long", name);
  return OK;
}

/* Of rank files: whose part of the inputs. */
typedef struct {
  const FolderInputs *cuts;
  Kern *kern;
  int rank;
} Share;

/* Inputs that ranks cannot share as the files want them: nothing to compare. */
static bool is_refused(const Share *share, const Value *inputs, int n) {
  Status s = folder_inputs_check(share->cuts, inputs, n);
  bool refused = s != OK;
  status_free(s);
  return refused;
}

static Status call(Session *session, const Share *share, Value *inputs, int ninputs, Scope *scope, Arena *arena,
                   FILE *report, const char *want) {
  Value *outs;
  int nouts;
  if (share && is_refused(share, inputs, ninputs)) return OK;
  if (share) TRY(folder_inputs_shard(share->cuts, share->kern, share->rank, scope, inputs, ninputs));
  TRY(session_run(session, inputs, ninputs, scope, arena, &outs, &nouts));
  return compare_with_file(report, want, &(OutputList){outs, nouts, NULL}, -1, -1, false);
}

/* share NULL: the inputs are whole. */
static Status one_run(const Model *m, Session *session, const Share *share, yyjson_val *run, FILE *report) {
  char in[PATH_CAP], want[PATH_CAP];
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs;
  int ninputs;
  TRY(in_folder(m, run, "inputs", in));
  TRY(in_folder(m, run, "outputs", want));
  Status s = feed_from_file(session_program(session), in, &scope, &arena, &inputs, &ninputs);
  if (!s) s = call(session, share, inputs, ninputs, &scope, &arena, report, want);
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

/* Its calls do not depend on earlier ones. */
static bool is_stateless(const Exported *e) {
  for (int i = 0; i < e->nstate; i++) {
    if (exported_is_mutated(e, e->state[i].fqn)) return false;
  }
  return true;
}

static Status open_on_mesh(const Suite *suite, const Model *m, Ctx *ctx, Exported *e, Session **out) {
  char path[PATH_CAP];
  Mesh *mesh;
  PlanFile *plan = NULL;
  if (snprintf(path, sizeof path, "%s/%s", m->folder, suite->plan) >= PATH_CAP)
    return fail(ERR_FILE, "%s: its name is too long", m->folder);
  Status s = mesh_parse(ctx->dist, m->mesh, &mesh);
  if (!s) s = plan_file_read(strcmp(suite->plan, "auto") ? path : "auto", &plan);
  if (s) exported_free(e);
  else s = session_open_on_mesh(ctx, e, mesh, plan, out);
  plan_file_free(plan);
  return s;
}

static void print_plan(FILE *f, const PlanFile *plan) {
  TextBuf b = {0};
  plan_file_print(&b, plan, NULL);
  if (b.text) fputs(b.text, f);
  text_free(&b);
}

static Status run_rounds(const Model *m, Session *session, const Share *share, FILE *report) {
  int rounds = is_stateless(session_program(session)) ? ROUNDS : 1;
  Status s = OK;
  for (int round = 0; round < rounds && !s; round++) {
    size_t i, n;
    yyjson_val *run;
    yyjson_arr_foreach(m->runs, i, n, run) {
      if (s) break;
      s = one_run(m, session, share, run, report);
      if (s) s = status_at(s, "run %zu of %zu, round %d", i + 1, n, round + 1);
    }
  }
  return s;
}

static Status run_session(const Suite *suite, const Model *m, Ctx *ctx, FILE *report) {
  char path[PATH_CAP];
  Exported *e;
  Session *session = NULL;
  if (snprintf(path, sizeof path, "%s/program.pt2", m->folder) >= PATH_CAP)
    return fail(ERR_FILE, "%s: its name is too long", m->folder);
  TRY(pt2_read(path, &e));
  Status s = m->mesh ? open_on_mesh(suite, m, ctx, e, &session) : session_open(ctx, e, &session);
  if (!s && suite->interpret) session_force_interpreter(session);
  if (!s && suite->verbose && m->mesh && session_marks(session)->derived)
    print_plan(report, session_marks(session)->derived);
  if (!s) s = run_rounds(m, session, NULL, report);
  session_free(session);
  return s;
}

typedef struct {
  const Suite *suite;
  const Model *m;
  FILE *report; /* rank 0's */
} RankArg;

static Status session_of(Ctx *ctx, void *arg) {
  const RankArg *a = arg;
  return run_session(a->suite, a->m, ctx, a->report);
}

static Status run_rank(World *w, void *arg) {
  const RankArg *a = arg;
  if (world_rank(w) == 0) return run_on_rank(w, session_of, arg, a->suite->verbose ? a->report : NULL);
  FILE *nobody = fopen("/dev/null", "w");
  Status s = run_on_rank(w, session_of, &(RankArg){a->suite, a->m, nobody}, NULL);
  fclose(nobody);
  return s;
}

/* Calls of a rank file. */
static Status file_calls(void *arg, Ctx *ctx, Session *session, int rank, const FolderInputs *cuts) {
  const RankArg *a = arg;
  FILE *report = rank == 0 ? a->report : fopen("/dev/null", "w");
  if (!report) return fail(ERR_FAIL, "no place for a report");
  Status s = run_rounds(a->m, session, &(Share){cuts, &ctx->kern, rank}, report);
  if (rank != 0) fclose(report);
  return s;
}

static Status run_files(const Suite *suite, const Model *m, FILE *report) {
  char program[PATH_CAP + 16], plan[PATH_CAP + 256];
  RankArg arg = {.suite = suite, .m = m, .report = report};
  snprintf(program, sizeof program, "%s/program.pt2", m->folder);
  snprintf(plan, sizeof plan, "%s/%.200s", m->folder, suite->plan);
  return golden_files(program, m->mesh, strcmp(suite->plan, "auto") ? plan : "auto", file_calls, &arg);
}

/* As many ranks as the mesh has. */
static Status run_ranks(const Suite *suite, const Model *m, FILE *report) {
  RankArg arg = {suite, m, report};
  int n = 0;
  TRY(mesh_text_ranks(m->mesh, &n));
  return suite->launched ? run_rank(suite->world, &arg) : world_threads(n, run_rank, &arg, NULL);
}

static Status run_model(const Suite *suite, Model *m) {
  char path[PATH_CAP];
  FileMap *about;
  yyjson_doc *doc;
  if (snprintf(path, sizeof path, "%s/about.json", m->folder) >= PATH_CAP)
    return fail(ERR_FILE, "%s: its name is too long", m->folder);
  TRY(file_map(path, &about));
  Status s = json_parse(path, about->data, about->size, JSON_NAN, &doc);
  file_map_unref(about);
  TRY(s);
  FILE *report = open_memstream(&m->report, &m->report_len);
  Ctx ctx;
  ctx_init(&ctx, suite->threads);
  s = report ? json_array(yyjson_doc_get_root(doc), "runs", path, &m->runs) : fail_oom();
  if (!s && m->mesh && suite->files) s = run_files(suite, m, report);
  else if (!s) s = m->mesh ? run_ranks(suite, m, report) : run_session(suite, m, &ctx, report);
  ctx_free(&ctx);
  if (report) fclose(report);
  yyjson_doc_free(doc);
  return s;
}

/* One model, on one mesh or none. */
typedef struct {
  const Suite *suite;
  const char *folder, *name, *mesh;
} ModelRun;

/* A line on stdout, or several if it failed. */
static int run_one(void *arg) {
  const ModelRun *r = arg;
  const Suite *suite = r->suite;
  Model m = {.mesh = r->mesh};
  char label[256];
  snprintf(m.folder, sizeof m.folder, "%s/%s", r->folder, r->name);
  double start = clock_now();
  Status s = run_model(suite, &m);
  snprintf(label, sizeof label, "%s%s%s", r->name, r->mesh ? " " : "", r->mesh ? r->mesh : "");
  if (suite->quiet && !s) return free(m.report), 0;
  if (!s) printf("ok   %-36s %8.1f ms\n", label, (clock_now() - start) * 1e3);
  else printf("FAIL %s: %s\n", label, status_message(s));
  if ((s || suite->verbose) && m.report && *m.report) printf("%s", m.report);
  int code = s ? MODEL_FAILED : 0;
  status_free(s);
  free(m.report);
  return code;
}

/* ---- all of them ----------------------------------------------------------------- */

static void start_model(Suite *suite, const char *folder, const char *name, const char *mesh) {
  ModelRun r = {suite, folder, name, mesh};
  if (suite->launched) alarm(MODEL_SECONDS);
  bool ok = suite->launched ? run_one(&r) == 0 : run_in_child(run_one, &r, name); /* a launch's ranks cannot fork */
  suite->passed += ok;
  suite->failed += !ok;
}

static void run_folder(void *arg, const char *folder, const char *name) {
  Suite *suite = arg;
  char path[PATH_CAP];
  bool fits = snprintf(path, sizeof path, "%s/%s/about.json", folder, name) < PATH_CAP;
  bool wanted = fits && file_exists(path) && (!suite->only || strstr(name, suite->only));
  if (wanted && !suite->nmeshes) start_model(suite, folder, name, NULL);
  snprintf(path, sizeof path, "%.2000s/%.1000s/%.200s", folder, name, suite->plan);
  for (int m = 0; wanted && m < suite->nmeshes; m++)
    if (file_exists(path) || !strcmp(suite->plan, "auto")) start_model(suite, folder, name, suite->mesh[m]);
}

static Status run_folders(World *w, void *arg) {
  Suite *suite = arg;
  suite->world = w;
  suite->quiet = w && world_rank(w) != 0;
  for (int i = 0; i < suite->nfolders; i++) each_model(suite->folder[i], run_folder, suite);
  if (!suite->nfolders) each_model(GOLDEN_FOLDER "/models", run_folder, suite);
  return OK;
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
    else if (!strcmp(argv[i], "--files")) suite.files = true;
    else if (!strcmp(argv[i], "--launched") || !strcmp(argv[i], "--mpi")) suite.launched = true;
    else if (!strcmp(argv[i], "--interpret")) suite.interpret = true;
    else if (!strcmp(argv[i], "--verbose")) suite.verbose = true;
    else if (argv[i][0] == '-') {
      fprintf(stderr, "usage: golden_models [FOLDER...] [--model NAME] [--threads N] [--interpret] [--verbose] "
                      "[--mesh tp=2 [--plan plan.json] [--launched | --files]]\n");
      return 2;
    } else {
      argv[1 + folders++] = argv[i];
    }
  }
  suite.folder = argv + 1;
  suite.nfolders = folders;
  if (suite.launched) {
    const Transport *t;
    Status s = transport_choose(NULL, &t);
    if (!s) s = world_launch(t, 0, run_folders, &suite, NULL);
    if (s) printf("FAIL %s\n", status_message(s)), suite.failed++;
    status_free(s);
  } else status_free(run_folders(NULL, &suite));
  if (suite.quiet) return suite.failed > 0;
  printf("%d passed, %d failed\n", suite.passed, suite.failed);
  return suite.failed > 0 || suite.passed == 0;
}
