/* Traces: every instruction is there, slices lie in each other, and stages and modules are told.
 *
 * test_trace FILE... checks traces that are there. */
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "comm/launch.h"
#include "dist/dispatch.h"
#include "harness/feed.h"
#include "harness/trace_save.h"
#include "pt2/read.h"
#include "train/trainer.h"
#include "unit.h"

enum { MOST_OPEN = 128 };

/* ---- reading ------------------------------------------------------------------------------------------- */

typedef struct {
  int slices, nodes, modules, stages[3]; /* slices of stages */
  int node_stages[3], processes, update_modules;
  int collectives, started, arrows; /* arrows: both ends of each */
  bool sources;
} Facts;

static const char *text(yyjson_val *o, const char *key) {
  const char *s = yyjson_get_str(yyjson_obj_get(o, key));
  return s ? s : "";
}

/* Nanoseconds: times are written with three digits. */
static int64_t time_of(yyjson_val *o, const char *key) {
  yyjson_val *v = yyjson_obj_get(o, key);
  assert_true(yyjson_is_num(v));
  return (int64_t)(yyjson_get_num(v) * 1e3 + 0.5);
}

static int stage_of(const char *name) {
  for (int p = 0; p < 3; p++)
    if (!strcmp(name, stage_name((Stage)p))) return p;
  return -1;
}

typedef struct {
  int64_t pid, end[MOST_OPEN];
  int64_t begun; /* of the last slice */
  int n;
} Track;

/* A collective lies beside others of its track, inside of nothing. */
static void check_collective(Track *t, yyjson_val *e, Facts *f) {
  int64_t begun = time_of(e, "ts"), end = begun + time_of(e, "dur");
  int64_t pid = yyjson_get_sint(yyjson_obj_get(e, "pid")), tid = yyjson_get_sint(yyjson_obj_get(e, "tid"));
  yyjson_val *args = yyjson_obj_get(e, "args");
  assert_true(begun >= 0 && end >= begun && tid >= 1000 * pid);
  assert_true(yyjson_get_sint(yyjson_obj_get(args, "ranks")) > 1);
  t += tid - 1000 * pid;
  if (pid != t->pid) *t = (Track){.pid = pid};
  assert_true(begun >= t->begun);
  t->begun = end;
  f->collectives++;
  f->started += yyjson_get_bool(yyjson_obj_get(args, "started"));
}

/* Its end stands behind its beginning, at the same moment, on the track of another rank. */
static void check_arrow(yyjson_val *e, yyjson_val **begun, Facts *f) {
  f->arrows++;
  if (!strcmp(text(e, "ph"), "s")) {
    assert_null(*begun);
    *begun = e;
    return;
  }
  assert_non_null(*begun);
  assert_int_equal(yyjson_get_sint(yyjson_obj_get(e, "id")), yyjson_get_sint(yyjson_obj_get(*begun, "id")));
  assert_int_equal(time_of(e, "ts"), time_of(*begun, "ts"));
  assert_int_not_equal(yyjson_get_sint(yyjson_obj_get(e, "pid")), yyjson_get_sint(yyjson_obj_get(*begun, "pid")));
  *begun = NULL;
}

/* Events of a track come in the order of their beginnings, those around others first. */
static void check_slice(Track *t, yyjson_val *e, Facts *f) {
  yyjson_val *args = yyjson_obj_get(e, "args");
  int64_t begun = time_of(e, "ts"), end = begun + time_of(e, "dur"),
          pid = yyjson_get_sint(yyjson_obj_get(e, "pid"));
  int stage = stage_of(text(e, "cat"));
  assert_true(stage >= 0 && begun >= 0 && end >= begun && pid > 0);
  if (pid != t->pid) *t = (Track){.pid = pid};
  assert_true(begun >= t->begun);
  while (t->n && t->end[t->n - 1] <= begun) t->n--;
  if (t->n && end > t->end[t->n - 1])
    test_failed("'%s' ends at %lld ns, after what it lies in (%lld)", text(e, "name"), (long long)end,
                (long long)t->end[t->n - 1]);
  t->begun = begun;
  assert_true(t->n < MOST_OPEN);
  if (end > begun) t->end[t->n++] = end;
  f->slices++;
  if (*text(args, "op")) {
    f->nodes++;
    f->node_stages[stage]++;
    f->sources |= strstr(text(args, "source"), ".py:") != NULL;
  } else if (yyjson_obj_get(args, "class")) f->modules++, f->update_modules += stage == STAGE_UPDATE;
  else f->stages[stage]++;
}

static void check_trace(const char *path, Facts *f) {
  FileMap *file;
  yyjson_doc *doc;
  Track track = {0}, communication[16] = {0};
  yyjson_val *arrow = NULL;
  *f = (Facts){0};
  assert_ok(file_map(path, &file));
  assert_ok(json_parse(path, file->data, file->size, 0, &doc));
  yyjson_val *events = yyjson_obj_get(yyjson_doc_get_root(doc), "traceEvents"), *e;
  yyjson_arr_iter it = yyjson_arr_iter_with(events);
  assert_true(yyjson_is_arr(events));
  while ((e = yyjson_arr_iter_next(&it))) {
    const char *ph = text(e, "ph");
    if (!strcmp(text(e, "cat"), "communication")) check_collective(communication, e, f);
    else if (!strcmp(ph, "X")) check_slice(&track, e, f);
    else if (!strcmp(ph, "s") || !strcmp(ph, "f")) check_arrow(e, &arrow, f);
    else f->processes += !strcmp(text(e, "name"), "process_name");
  }
  yyjson_doc_free(doc);
  file_map_unref(file);
}

/* ---- writing -------------------------------------------------------------------------------------------- */

typedef struct {
  const char *model, *mesh; /* mesh NULL: one rank */
  bool grad, interpret;
  char path[512];
  int instrs; /* of a compiled program */
} Job;

static Status trace_session(Job *job, World *w, Ctx *ctx, Session *session) {
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs, *outputs;
  int n, nout;
  char path[1024];
  const Program *program = NULL;
  TraceFile f = {.path = job->path, .program = "folder/program.pt2", .force = true};
  (void)ctx;
  snprintf(path, sizeof path, GOLDEN_FOLDER "/%s/inputs.safetensors", job->model);
  Status s = feed_from_file(session_program(session), path, &scope, &arena, &inputs, &n);
  for (int i = 0; i < 2 && !s; i++) s = session_run(session, inputs, n, &scope, &arena, &outputs, &nout);
  if (!s) s = trace_save(&f, w, session, NULL);
  if (!s) program = session_last_program(session);
  if (program && (!w || world_rank(w) == 0)) job->instrs = program->ninstrs;
  scope_clear(&scope);
  arena_free(&arena);
  return s;
}

static Status open_session(Job *job, Ctx *ctx, Exported *e, Session **out) {
  Mesh *mesh;
  if (!job->mesh) return session_open(ctx, e, out);
  Status s = mesh_parse(ctx->dist, job->mesh, &mesh);
  if (s) return exported_free(e), s;
  return session_open_on_mesh(ctx, e, mesh, NULL, out);
}

static Status run_job(Job *job, World *w, Ctx *ctx) {
  char path[1024];
  Exported *e;
  Session *session = NULL;
  snprintf(path, sizeof path, GOLDEN_FOLDER "/%s/program.pt2", job->model);
  TRY(pt2_read(path, &e));
  Status s = open_session(job, ctx, e, &session);
  if (!s && job->grad) s = session_want_gradients(session, &(GradOptions){0});
  if (!s) session_set_profile(session, true);
  if (!s && job->interpret) session_force_interpreter(session);
  if (!s) s = trace_session(job, w, ctx, session);
  session_free(session);
  return s;
}

static Status run_rank(World *w, void *arg) {
  Ctx ctx;
  Dist *d = NULL;
  ctx_init(&ctx, 1);
  Status s = dist_new(w, &d);
  if (!s) ctx_attach_dist(&ctx, d);
  if (!s) s = run_job(arg, w, &ctx);
  if (d) ctx_detach_dist(&ctx);
  ctx_free(&ctx);
  dist_free(d);
  return s;
}

static Facts trace_of(Job *job) {
  char folder[256];
  Facts f;
  make_folder(folder, sizeof folder);
  snprintf(job->path, sizeof job->path, "%s/trace.json", folder);
  if (job->mesh) {
    assert_ok(world_threads(2, run_rank, job, NULL));
  } else {
    Ctx ctx;
    ctx_init(&ctx, 2);
    assert_ok(run_job(job, NULL, &ctx));
    ctx_free(&ctx);
  }
  check_trace(job->path, &f);
  remove_folder(folder);
  return f;
}

/* ---- cases ------------------------------------------------------------------------------------------------ */

static void forward_alone(void **state) {
  (void)state;
  Job job = {.model = "models/gpt2"};
  Facts f = trace_of(&job);
  assert_int_equal(f.nodes, job.instrs);
  assert_int_equal(f.node_stages[STAGE_FORWARD], f.nodes);
  assert_int_equal(f.stages[STAGE_FORWARD], 1);
  assert_true(f.modules > 2 && f.sources && f.processes == 1);
}

static void forward_and_backward(void **state) {
  (void)state;
  Job job = {.model = "grads/gpt2.core", .grad = true};
  Facts f = trace_of(&job);
  assert_int_equal(f.nodes, job.instrs);
  assert_true(f.node_stages[STAGE_FORWARD] > 5);
  assert_true(f.node_stages[STAGE_BACKWARD] > f.node_stages[STAGE_FORWARD]);
  assert_true(f.stages[STAGE_FORWARD] >= 1 && f.stages[STAGE_BACKWARD] >= 1);
  assert_int_equal(f.node_stages[STAGE_UPDATE], 0);
}

static void interpreted(void **state) {
  (void)state;
  Job job = {.model = "grads/gpt2.core", .grad = true, .interpret = true};
  Facts f = trace_of(&job);
  assert_true(f.node_stages[STAGE_FORWARD] > 10 && f.node_stages[STAGE_BACKWARD] > 10 && f.modules > 2);
  assert_true(f.stages[STAGE_FORWARD] == 1 && f.stages[STAGE_BACKWARD] == 1);
}

static void on_ranks(void **state) {
  (void)state;
  Job job = {.model = "grads/mlp", .grad = true, .mesh = "dp=2"};
  Facts f = trace_of(&job);
  assert_int_equal(f.processes, 2);
  assert_int_equal(f.nodes, 2 * job.instrs);
  assert_true(f.node_stages[STAGE_BACKWARD] > 0);
  assert_true(f.collectives > 0 &&
              f.arrows == f.collectives); /* two ranks: an arrow, and so two ends, for each pair */
  job.interpret = true;
  f = trace_of(&job);
  assert_true(f.processes == 2 && f.node_stages[STAGE_BACKWARD] > 0);
}

/* Of programs that do not say it: a view that stands in the forward and is read by the backward alone, an output
 * that is made behind the loss. */
static void stages_are_found(void **state) {
  (void)state;
  static const char text_form[] =
      "graph(%w: f32[4,4] = parameter \"w\", %b: f32[4] = buffer \"b\", %x: f32[2,4] = user) {\n"
      "  %h: f32[2,4] = aten.linear.default(%x, %w)\n"
      "  %saved: f32[4,2] = aten.transpose.int(%x, 0, 1)\n"
      "  %l: f32[] = aten.mean.default(%h)\n"
      "  %s: f32[4] = aten.sum.dim_IntList(%h, [0])\n"
      "  %g: f32[] = aten.full.default([], 0.125)\n"
      "  %e: f32[2,4] = aten.expand.default(%g, [2, 4])\n"
      "  %d: f32[4,4] = aten.mm.default(%saved, %e)\n"
      "  %dw: f32[4,4] = aten.transpose.int(%d, 0, 1)\n"
      "  return buffer_mutation \"b\" %s, loss %l, gradient_to_parameter \"w\" %dw\n"
      "}\n";
  Exported *e;
  char got[64] = "";
  assert_ok(graph_parse(text_form, sizeof text_form - 1, "case", &e));
  assert_ok(exported_find_stages(e));
  for (const Node *n = e->graph->first; n; n = n->next) strcat(got, n->stage == STAGE_FORWARD ? "f" : "b");
  assert_string_equal(got, "ffffbbbb");
  exported_free(e);
}

static Status same_batch(void *arg, int i, Batch *out) {
  (void)i;
  *out = *(const Batch *)arg;
  return OK;
}

/* Two steps of a training; the update belongs to no module. */
static Status train(const char *model, const char *trace) {
  char path[1024];
  Ctx ctx;
  Exported *e;
  Recipe recipe;
  Trainer *t = NULL;
  Scope scope = {0};
  Arena arena = {0};
  Value *inputs;
  Batch batch;
  StepResult result;
  TraceFile f = {.path = trace, .program = "loss.pt2"};
  ctx_init(&ctx, 1);
  snprintf(path, sizeof path, GOLDEN_FOLDER "/%s/program.pt2", model);
  Status s = recipe_init(&recipe, &arena, "adamw,lr=1e-3");
  if (!s) s = recipe_clip(&recipe, "1.0");
  if (!s) s = pt2_read(path, &e);
  if (!s) s = trainer_open(&ctx, e, &recipe, NULL, &t);
  snprintf(path, sizeof path, GOLDEN_FOLDER "/%s/inputs.safetensors", model);
  if (!s) s = feed_from_file(trainer_program(t), path, &scope, &arena, &inputs, &batch.n);
  if (!s) batch.inputs = inputs, session_set_profile(trainer_session(t), true);
  for (int i = 0; i < 2 && !s; i++) s = trainer_step(t, same_batch, &batch, &result);
  if (!s) s = trace_save(&f, NULL, trainer_session(t), NULL);
  trainer_free(t);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  return s;
}

static void with_an_update(void **state) {
  (void)state;
  char folder[256], path[512];
  Facts f;
  make_folder(folder, sizeof folder);
  snprintf(path, sizeof path, "%s/trace.json", folder);
  assert_ok(train("grads/gpt2.core", path));
  check_trace(path, &f);
  assert_true(f.node_stages[STAGE_FORWARD] > 5 && f.node_stages[STAGE_BACKWARD] > 5);
  assert_true(f.node_stages[STAGE_UPDATE] > 5 && f.update_modules == 0);
  remove_folder(folder);
}

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(forward_alone),  cmocka_unit_test(forward_and_backward),
                                     cmocka_unit_test(interpreted),    cmocka_unit_test(on_ranks),
                                     cmocka_unit_test(with_an_update), cmocka_unit_test(stages_are_found)};
  for (int i = 1; i < argc; i++) {
    Facts f;
    check_trace(argv[i], &f);
    printf("%s: %d nodes (%d forward, %d backward, %d update) in %d slices of modules, %d process%s\n", argv[i],
           f.nodes, f.node_stages[0], f.node_stages[1], f.node_stages[2], f.modules, f.processes,
           f.processes == 1 ? "" : "es");
  }
  return argc > 1 ? 0 : cmocka_run_group_tests(tests, NULL, NULL);
}
