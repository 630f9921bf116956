/* test_trainer.c -- trainers of the public header, against runs that PyTorch recorded, and what is wrong with them.
 */
#include <math.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "tessera.h"
#include "unit.h"

#define TRAIN GOLDEN_FOLDER "/train/"

static void expect_no_error(TessCtx *ctx) {
  if (tess_error(ctx)) test_failed("%s", tess_error_message(ctx));
}

static void expect_error(TessCtx *ctx, int code, const char *part) {
  if (tess_error(ctx) != code || !strstr(tess_error_message(ctx), part))
    test_failed("error %d '%s', expected %d '%s'", tess_error(ctx), tess_error_message(ctx), code, part);
  tess_error_clear(ctx);
}

static const char *in(const char *model, const char *file) {
  static char path[4][1024];
  static int next;
  next = (next + 1) % 4;
  snprintf(path[next], sizeof path[next], TRAIN "%s/%s", model, file);
  return path[next];
}

/* Batch `number` of the recorded ones, a tensor per input. */
static int batch_of(TessCtx *ctx, TessTrainer *t, const char *model, int64_t number, const TessTensor **out) {
  TessProgram *p = tess_trainer_program(t);
  int n = tess_input_count(p);
  for (int i = 0; i < n; i++) {
    TessTensor *all = tess_load(ctx, in(model, "batches.safetensors"), tess_input_name(p, i));
    out[i] = tess_call(ctx, "aten.select.int", tess_t(all), tess_i(0), tess_i(number));
  }
  return n;
}

static double largest_difference(TessCtx *ctx, const TessTensor *a, const TessTensor *b, double *largest) {
  double worst = 0;
  expect_no_error(ctx);
  assert_int_equal(tess_dtype(a), TESS_F32);
  assert_int_equal(tess_numel(a), tess_numel(b));
  const float *x = tess_data(a), *y = tess_data(b);
  *largest = 1e-12;
  for (int64_t i = 0; i < tess_numel(a); i++) {
    worst = fmax(worst, fabs((double)x[i] - (double)y[i]));
    *largest = fmax(*largest, fabs((double)y[i]));
  }
  return worst;
}

typedef struct {
  const char *model, *name; /* the recorded run */
  TessTraining how;
} Run;

/* The recorded losses, norms and final parameters. */
static void follow(const Run *run) {
  TessCtx *ctx = tess_ctx_new(1);
  FileMap *file;
  yyjson_doc *doc;
  assert_ok(file_map(in(run->model, "meta.json"), &file));
  assert_ok(json_parse("meta.json", file->data, file->size, JSON_NAN, &doc));
  yyjson_val *record = yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(doc), "trajectories"), run->name),
             *losses = yyjson_obj_get(record, "losses"), *norms = yyjson_obj_get(record, "grad_norms");
  assert_non_null(losses);
  TessTrainer *t = tess_trainer_open(ctx, in(run->model, "forward.pt2"), &run->how);
  tess_trainer_load(t, in(run->model, "init.safetensors"));
  expect_no_error(ctx);
  const int each = run->how.accumulate ? run->how.accumulate : 1, batches = (int)yyjson_arr_size(losses);
  double want = 0;
  for (int i = 0; i < batches; i++) {
    TessScope *scope = tess_scope_begin(ctx);
    const TessTensor *inputs[8];
    TessStep step = {0};
    int n = batch_of(ctx, t, run->model, i, inputs), last = i % each == each - 1;
    int made = tess_trainer_step(t, inputs, n, &step);
    expect_no_error(ctx);
    assert_int_equal(made, last);
    want += yyjson_get_num(yyjson_arr_get(losses, (size_t)i)) / each;
    if (last) {
      yyjson_val *norm = yyjson_arr_get(norms, (size_t)(i / each));
      assert_int_equal(step.step, i / each + 1);
      assert_int_equal(tess_trainer_steps(t), step.step);
      assert_true(fabs(step.loss - want) <= 1e-4 * fabs(want));
      if (norm) assert_true(fabs(step.grad_norm - yyjson_get_num(norm)) <= 1e-4 * yyjson_get_num(norm));
      want = 0;
    }
    tess_scope_end(ctx, scope);
  }
  int compared = 0;
  for (int i = 0; i < tess_trainer_state_count(t); i++) {
    char name[512];
    const char *fqn = tess_trainer_state_name(t, i);
    if (tess_trainer_state_kind(t, fqn) != 0) continue;
    snprintf(name, sizeof name, "%s/%s", run->name, fqn);
    TessTensor *wanted = tess_load(ctx, in(run->model, "final.safetensors"), name);
    double largest, worst = largest_difference(ctx, tess_trainer_state(t, fqn), wanted, &largest);
    if (worst > 1e-4 * largest) test_failed("%s differs by %g", name, worst);
    compared++;
  }
  assert_true(compared > 3);
  yyjson_doc_free(doc);
  file_map_unref(file);
  tess_trainer_free(t);
  tess_ctx_free(ctx);
}

static void recorded_runs(void **state) {
  (void)state;
  static const Run runs[] = {
      {"mlp_ce", "adamw_clip2", {.optim = "adamw,lr=0.01", .clip = "0.5"}},
      {"gpt_tied", "sgd_accum2", {.optim = "sgd,lr=0.1,momentum=0.9", .accumulate = 2}},
      {"cnn_bn", "sgd_clipinf", {.optim = "sgd,lr=0.1,momentum=0.9", .clip = "0.05,norm=inf"}},
      {"gpt_tied", "sgd_nesterov", {.optim = "sgd,lr=0.05,momentum=0.9,nesterov", .memory = "80%"}},
  };
  for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) follow(&runs[i]);
}

/* All states of two trainers, to the bit. */
static void expect_same(TessCtx *ctx, TessTrainer *a, TessTrainer *b) {
  assert_int_equal(tess_trainer_state_count(a), tess_trainer_state_count(b));
  for (int i = 0; i < tess_trainer_state_count(a); i++) {
    const char *name = tess_trainer_state_name(a, i);
    TessTensor *x = tess_trainer_state(a, name), *y = tess_trainer_state(b, name);
    if (tess_equal(ctx, x, y) != 1) test_failed("'%s' differs: %s", name, tess_error_message(ctx));
  }
}

static const TessTraining adamw = {
    .optim = "adamw,lr=0.01", .schedule = "cosine,warmup=3", .steps = 12, .accumulate = 2};

static TessTrainer *open_on_files(TessCtx *ctx, const char *model) {
  const char *const files[] = {in(model, "batches.safetensors")};
  TessTrainer *t = tess_trainer_open(ctx, in(model, "forward.pt2"), &adamw);
  tess_trainer_set_data(t, &(TessData){.files = files, .nfiles = 1, .batched = 1});
  expect_no_error(ctx);
  return t;
}

static void files_give_the_same_batches(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(2);
  TessTrainer *a = open_on_files(ctx, "gpt_tied"),
              *b = tess_trainer_open(ctx, in("gpt_tied", "forward.pt2"), &adamw);
  for (int i = 0; i < 4; i++) {
    TessStep x, y;
    const TessTensor *inputs[8];
    assert_int_equal(tess_trainer_next(a, &x), 1);
    int n = batch_of(ctx, b, "gpt_tied", 2 * i, inputs);
    assert_int_equal(tess_trainer_step(b, inputs, n, &y), 0);
    n = batch_of(ctx, b, "gpt_tied", 2 * i + 1, inputs);
    assert_int_equal(tess_trainer_step(b, inputs, n, &y), 1);
    assert_true(x.loss == y.loss && x.grad_norm == y.grad_norm && x.lr == y.lr && x.step == y.step);
    if (i == 0) assert_true(fabs(x.lr - 0.01 / 3) < 1e-9);
  }
  expect_same(ctx, a, b);
  assert_int_equal(tess_trainer_set_rate(a, 0.5), 0);
  TessStep x;
  assert_int_equal(tess_trainer_next(a, &x), 1);
  assert_true(fabs(x.lr - 0.005) < 1e-12);
  tess_trainer_free(a);
  tess_trainer_free(b);
  tess_ctx_free(ctx);
}

static void evaluation_changes_nothing(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTrainer *a = open_on_files(ctx, "cnn_bn"), *b = open_on_files(ctx, "cnn_bn");
  const char *const files[] = {in("cnn_bn", "batches.safetensors")};
  const TessData all = {.files = files, .nfiles = 1, .batched = 1};
  double loss, first, whole;
  for (int i = 0; i < 3; i++) {
    const TessTensor *inputs[8];
    int n = batch_of(ctx, a, "cnn_bn", 0, inputs);
    assert_int_equal(tess_trainer_evaluate(a, inputs, n, &loss), 0);
    assert_int_equal(tess_trainer_evaluate_data(a, &all, 1, &first), 0);
    assert_int_equal(tess_trainer_evaluate_data(a, &all, 0, &whole), 0);
    assert_true(loss == first && whole != first && isfinite(whole));
    assert_int_equal(tess_trainer_next(a, NULL), 1);
    assert_int_equal(tess_trainer_next(b, NULL), 1);
  }
  expect_same(ctx, a, b);
  assert_int_equal(tess_trainer_state_kind(a, "norm1.running_mean"), 1);
  tess_trainer_free(a);
  tess_trainer_free(b);
  tess_ctx_free(ctx);
}

/* Frozen parameters are not written by steps, but can be set, before and after programs were built with them. */
static void frozen_parameters(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  const TessTraining how = {.optim = "sgd,lr=0.1", .freeze = "layers.0.*,layers.1.*"};
  TessTrainer *a = tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"), &how),
              *b = tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"), &(TessTraining){.optim = "sgd,lr=0"});
  const TessTensor *inputs[8];
  int n = batch_of(ctx, a, "mlp_ce", 0, inputs);
  for (int i = 0; i < 3; i++) {
    double x, y;
    const char *const names[] = {"layers.0.weight", "layers.1.weight"};
    for (int k = 0; k < 2; k++) {
      TessTensor *w = tess_call(ctx, "aten.mul.Scalar", tess_t(tess_trainer_state(a, names[k])), tess_f(1.5));
      assert_int_equal(tess_trainer_set_state(a, names[k], w), 0);
    }
    for (int k = 0; k < tess_trainer_state_count(b); k++) {
      const char *name = tess_trainer_state_name(b, k);
      if (tess_trainer_state_kind(b, name) == 0) tess_trainer_set_state(b, name, tess_trainer_state(a, name));
    }
    tess_trainer_evaluate(a, inputs, n, &x);
    tess_trainer_evaluate(b, inputs, n, &y);
    expect_no_error(ctx);
    assert_true(fabs(x - y) < 1e-6);
    TessTensor *before = tess_call(ctx, "aten.clone.default", tess_t(tess_trainer_state(a, names[0])));
    for (int k = 0; k < 3; k++) assert_int_equal(tess_trainer_step(a, inputs, n, NULL), 1);
    assert_int_equal(tess_equal(ctx, before, tess_trainer_state(a, names[0])), 1);
  }
  tess_trainer_free(a);
  tess_trainer_free(b);
  tess_ctx_free(ctx);
}

static void saves_and_files(void **state) {
  (void)state;
  char folder[256], run[300], path[300];
  make_folder(folder, sizeof folder);
  snprintf(run, sizeof run, "%s/run", folder);
  TessCtx *ctx = tess_ctx_new(1);
  TessTrainer *a = open_on_files(ctx, "cnn_bn"), *b = open_on_files(ctx, "cnn_bn"), *c;
  for (int i = 0; i < 6; i++) {
    assert_int_equal(tess_trainer_next(a, NULL), 1);
    if (i == 1 || i == 2) assert_int_equal(tess_trainer_save(a, run, 1), 0);
  }
  assert_int_equal(tess_trainer_resume(b, run), 0);
  assert_int_equal(tess_trainer_steps(b), 3);
  for (int i = 0; i < 3; i++) assert_int_equal(tess_trainer_next(b, NULL), 1);
  expect_same(ctx, a, b);
  assert_int_equal(tess_trainer_save(b, run, 1), -1);
  expect_error(ctx, 2, "another");
  tess_trainer_free(a);
  assert_int_equal(tess_trainer_save(b, run, 1), 0);
  tess_trainer_free(b);
  c = open_on_files(ctx, "cnn_bn"); /* a run of its own */
  tess_trainer_next(c, NULL);
  assert_int_equal(tess_trainer_save(c, run, 0), -1);
  expect_error(ctx, 2, "step");
  for (int i = 0; i < 2; i++) {
    snprintf(path, sizeof path, "%s/trained.%s", folder, i ? "pt2" : "safetensors");
    assert_int_equal(tess_trainer_write(c, path), 0);
    assert_int_equal(tess_trainer_write(c, path), 0);
  }
  TessTrainer *d = tess_trainer_open(ctx, path, &adamw);
  expect_no_error(ctx);
  assert_int_equal(tess_equal(ctx, tess_trainer_state(c, "conv1.weight"), tess_trainer_state(d, "conv1.weight")),
                   1);
  snprintf(path, sizeof path, "%s/trained.safetensors", folder);
  assert_int_equal(tess_trainer_load(d, path), 0);
  assert_int_equal(tess_trainer_load(d, in("mlp_ce", "init.safetensors")), -1);
  expect_error(ctx, 3, "has no 'conv1.weight'");
  assert_int_equal(tess_trainer_resume(d, folder), -1);
  assert_int_not_equal(tess_error(ctx), 0);
  tess_error_clear(ctx);
  assert_int_equal(tess_trainer_write(d, "/nonexistent/x.safetensors"), -1);
  assert_int_not_equal(tess_error(ctx), 0);
  tess_trainer_free(c);
  tess_trainer_free(d);
  tess_ctx_free(ctx);
  remove_folder(folder);
}

static void wrong_settings(void **state) {
  (void)state;
  static const char *const bad_group[] = {"x=nothing.*:lr=1"}, *const null_group[] = {NULL};
  static const struct {
    TessTraining how;
    int code;
    const char *says;
  } wrong[] = {
      {{.optim = "adamv"}, 2, "adamw"},
      {{.optim = "sgd,betas=1:2"}, 2, "betas"},
      {{.dtype = "f32"}, 2, "--dtype is one of"},
      {{.schedule = "cosine"}, 2, "how many steps"},
      {{.schedule = "wave", .steps = 3}, 2, "wave"},
      {{.accumulate = -1}, 2, "--accumulate"},
      {{.steps = -1}, 2, "-1 steps"},
      {{.memory = "much"}, 2, "no amount of memory"},
      {{.nonfinite = "hope"}, 2, "stop, skip or go"},
      {{.loss = "logits"}, 2, "logits"},
      {{.groups = bad_group, .ngroups = 1}, 2, "the group 'x'"},
      {{.groups = null_group, .ngroups = 1}, 2, "group 0 is NULL"},
      {{.groups = NULL, .ngroups = 1}, 2, "1 groups"},
  };
  TessCtx *ctx = tess_ctx_new(1);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    assert_null(tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"), &wrong[i].how));
    expect_error(ctx, wrong[i].code, wrong[i].says);
  }
  assert_null(tess_trainer_open(ctx, "/nonexistent.pt2", NULL));
  expect_error(ctx, 3, "/nonexistent.pt2");
  assert_int_equal(tess_trainer_step(NULL, NULL, 0, NULL), -1);
  tess_ctx_free(ctx);
}

/* After each of these the trainer is as it was. */
static void wrong_calls(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTrainer *a = tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"), &(TessTraining){.accumulate = 2}),
              *b = tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"), &(TessTraining){.accumulate = 2});
  const TessTensor *inputs[8];
  TessTensor *wrong = tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){2}, (float[]){1, 2});
  double loss;
  int n = batch_of(ctx, a, "mlp_ce", 0, inputs);
  assert_int_equal(tess_trainer_step(a, inputs, n, NULL), 0); /* forgotten by the error */
  assert_int_equal(tess_trainer_step(a, (const TessTensor *[]){wrong, wrong}, 2, NULL), -1);
  assert_int_not_equal(tess_error(ctx), 0);
  tess_error_clear(ctx);
  assert_int_equal(tess_trainer_step(a, inputs, n - 1, NULL), -1);
  assert_int_not_equal(tess_error(ctx), 0);
  tess_error_clear(ctx);
  assert_int_equal(tess_trainer_next(a, NULL), -1);
  expect_error(ctx, 2, "no data");
  assert_int_equal(tess_trainer_set_data(a, &(TessData){.nfiles = 0}), -1);
  expect_error(ctx, 2, "no files");
  const char *const files[] = {"/nonexistent.safetensors"};
  assert_int_equal(tess_trainer_evaluate_data(a, &(TessData){.files = files, .nfiles = 1}, 0, &loss), -1);
  expect_error(ctx, 3, "/nonexistent.safetensors");
  assert_int_equal(tess_trainer_set_rate(a, NAN), -1);
  expect_error(ctx, 2, "learning rate");
  assert_null(tess_trainer_state(a, "layers.0.wieght"));
  expect_error(ctx, 2, "did you mean 'layers.0.weight'?");
  assert_int_equal(tess_trainer_set_state(a, "layers.0.weight", wrong), -1);
  expect_error(ctx, 3, "'layers.0.weight' is");
  assert_int_equal(tess_trainer_state_kind(a, "layers.0.wieght"), -1);
  assert_int_equal(tess_trainer_state_kind(a, "optim.state.layers.0.weight.exp_avg"), 3);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(tess_trainer_step(a, inputs, n, NULL), i);
    assert_int_equal(tess_trainer_step(b, inputs, n, NULL), i);
  }
  expect_same(ctx, a, b);
  tess_close(tess_trainer_program(a)); /* it is the trainer's */
  assert_int_equal(tess_run(tess_trainer_program(a), inputs, n, NULL, 0), 1);
  expect_same(ctx, a, b);
  tess_trainer_free(a);
  tess_trainer_free(b);
  tess_ctx_free(ctx);
}

/* A nan in the data, or a batch without targets, whose loss is nan and whose gradients are zeros. */
static void expect_not_finite(TessCtx *ctx, bool ignored, int i) {
  static const char *const what[] = {NULL, "skip", "go"};
  TessTrainer *t = tess_trainer_open(ctx, in("mlp_ce", "forward.pt2"),
                                     &(TessTraining){.nonfinite = what[i], .check_finite = 1});
  const TessTensor *inputs[8];
  TessStep step;
  int n = batch_of(ctx, t, "mlp_ce", 0, inputs);
  TessTensor *before = tess_call(ctx, "aten.clone.default", tess_t(tess_trainer_state(t, "layers.2.bias")));
  if (ignored) inputs[1] = tess_call(ctx, "aten.full_like.default", tess_t(inputs[1]), tess_i(-100));
  else inputs[0] = tess_call(ctx, "aten.mul.Scalar", tess_t(inputs[0]), tess_f(NAN));
  int made = tess_trainer_step(t, inputs, n, &step);
  if (i == 0) expect_error(ctx, 1, "step 1: the loss is nan");
  expect_no_error(ctx);
  assert_int_equal(made, i ? 1 : -1);
  assert_int_equal(tess_trainer_steps(t), i ? 1 : 0);
  if (i) assert_int_equal(step.skipped, i == 1);
  assert_int_equal(tess_equal(ctx, before, tess_trainer_state(t, "layers.2.bias")), i < 2);
  tess_trainer_free(t);
}

static void not_finite(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  for (int i = 0; i < 3; i++) {
    expect_not_finite(ctx, false, i);
    expect_not_finite(ctx, true, i);
  }
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(recorded_runs),
      cmocka_unit_test(files_give_the_same_batches),
      cmocka_unit_test(evaluation_changes_nothing),
      cmocka_unit_test(frozen_parameters),
      cmocka_unit_test(saves_and_files),
      cmocka_unit_test(wrong_settings),
      cmocka_unit_test(wrong_calls),
      cmocka_unit_test(not_finite),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
