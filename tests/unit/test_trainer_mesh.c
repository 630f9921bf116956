/* test_trainer_mesh.c -- trainers of the public header on ranks that train together: as one rank does, to the same
 * bits whatever the buckets, and what is wrong with them. */
#include <math.h>

#include "tessera.h"
#include "unit.h"

#define MODEL GOLDEN_FOLDER "/train/gpt_tied/"
enum { STEPS = 4, MOST_STATES = 256 };

/* What a rank is to do, and what came of it. */
typedef struct {
  TessTraining how;
  const char *folder; /* NULL: nothing is saved */
  const char *resume; /* NULL: from the beginning */
  double loss[STEPS], norm[STEPS], evaluated;
  float *state[MOST_STATES]; /* of rank 0, in order; malloc'ed */
  int64_t numel[MOST_STATES];
  int nstates;
} Job;

static int batch_of(TessCtx *ctx, TessTrainer *t, int64_t number, const TessTensor **out) {
  TessProgram *p = tess_trainer_program(t);
  int n = tess_input_count(p);
  for (int i = 0; i < n; i++) {
    TessTensor *all = tess_load(ctx, MODEL "batches.safetensors", tess_input_name(p, i));
    out[i] = tess_call(ctx, "aten.select.int", tess_t(all), tess_i(0), tess_i(number));
  }
  return n;
}

/* Every rank gathers all of them. */
static int keep_states(TessCtx *ctx, TessTrainer *t, Job *job) {
  if (tess_rank(ctx) == 0) job->nstates = tess_trainer_state_count(t);
  for (int i = 0; i < tess_trainer_state_count(t); i++) {
    TessScope *scope = tess_scope_begin(ctx);
    TessTensor *x = tess_trainer_state(t, tess_trainer_state_name(t, i));
    if (!x) return 1;
    if (tess_rank(ctx) == 0 && tess_dtype(x) == TESS_F32 && i < MOST_STATES) {
      size_t bytes = (size_t)tess_numel(x) * sizeof(float);
      job->numel[i] = tess_numel(x);
      job->state[i] = malloc(bytes + 1);
      if (job->state[i]) memcpy(job->state[i], tess_data(x), bytes);
    }
    tess_scope_end(ctx, scope);
  }
  return 0;
}

static int train(TessCtx *ctx, void *arg) {
  Job *job = arg;
  TessTrainer *t = tess_trainer_open(ctx, MODEL "forward.pt2", &job->how);
  if (!t || (job->resume && tess_trainer_resume(t, job->resume))) return 1;
  int64_t first = tess_trainer_steps(t);
  for (int64_t i = first; i < STEPS; i++) {
    const TessTensor *inputs[8];
    TessStep step;
    double evaluated = 0;
    TessScope *scope = tess_scope_begin(ctx);
    int n = batch_of(ctx, t, i, inputs);
    if (tess_trainer_step(t, inputs, n, &step) != 1) return 1;
    if (i + 1 == STEPS && tess_trainer_evaluate(t, inputs, n, &evaluated)) return 1;
    tess_scope_end(ctx, scope);
    if (tess_rank(ctx)) continue;
    job->loss[i] = step.loss;
    job->norm[i] = step.grad_norm;
    job->evaluated = evaluated;
  }
  char path[1024];
  if (job->folder && tess_trainer_save(t, job->folder, 0)) return 1;
  if (job->folder && snprintf(path, sizeof path, "%s.safetensors", job->folder) > 0 && tess_trainer_write(t, path))
    return 1;
  int failed = keep_states(ctx, t, job);
  tess_trainer_free(t);
  return failed;
}

/* On ranks, or by itself; an error fails the test. */
static void train_on(int ranks, Job *job) {
  char error[1024];
  if (ranks) {
    if (tess_run_ranks(ranks, 1, train, job, error, sizeof error)) test_failed("%s", error);
    return;
  }
  TessCtx *ctx = tess_ctx_new(1);
  if (train(ctx, job)) test_failed("%s", tess_error_message(ctx));
  tess_ctx_free(ctx);
}

static void job_free(Job *job) {
  for (int i = 0; i < MOST_STATES; i++) free(job->state[i]);
}

static TessTraining on(const char *mesh) {
  return (TessTraining){.optim = "sgd,lr=0.1,momentum=0.9", .clip = "0.5", .mesh = mesh};
}

static void expect_near(const Job *a, const Job *b) {
  for (int i = 0; i < STEPS; i++) {
    if (!(fabs(a->loss[i] - b->loss[i]) <= 1e-5 * a->loss[i]))
      test_failed("step %d: loss %.9g, one rank has %.9g", i + 1, b->loss[i], a->loss[i]);
    if (!(fabs(a->norm[i] - b->norm[i]) <= 1e-4 * a->norm[i]))
      test_failed("step %d: norm %.9g, one rank has %.9g", i + 1, b->norm[i], a->norm[i]);
  }
  assert_true(fabs(a->evaluated - b->evaluated) <= 1e-5 * a->evaluated);
  assert_int_equal(a->nstates, b->nstates);
  for (int i = 0; i < a->nstates; i++) {
    assert_int_equal(a->numel[i], b->numel[i]);
    for (int64_t k = 0; k < a->numel[i]; k++)
      if (!(fabsf(a->state[i][k] - b->state[i][k]) <= 2e-5f))
        test_failed("state %d differs at %lld", i, (long long)k);
  }
}

static void expect_same_bits(const Job *a, const Job *b) {
  assert_memory_equal(a->loss, b->loss, sizeof a->loss);
  assert_memory_equal(a->norm, b->norm, sizeof a->norm);
  for (int i = 0; i < a->nstates; i++)
    if (a->numel[i]) assert_memory_equal(a->state[i], b->state[i], (size_t)a->numel[i] * sizeof(float));
}

static void as_one_rank(void **state) {
  (void)state;
  static const struct {
    int ranks;
    TessTraining how;
  } rows[] = {
      {4, {.mesh = "dp=2,tp=2"}},
      {3, {.mesh = "dp=3", .bucket_mb = "0"}},
      {2, {.mesh = "a=2", .data_axis = "a"}},
      {3, {.mesh = "tp=3", .plan = "{\"parallelize\": {\"tok\": \"embedding_rowwise\"}}"}},
      {2, {.mesh = "dp=2", .fsdp = ""}},
      {1, {.mesh = "dp=1"}},
  };
  Job alone = {.how = on(NULL)};
  train_on(0, &alone);
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    Job job = {.how = rows[i].how};
    job.how.optim = alone.how.optim;
    job.how.clip = alone.how.clip;
    train_on(rows[i].ranks, &job);
    expect_near(&alone, &job);
    job_free(&job);
  }
  job_free(&alone);
}

/* Gradients one by one, in small buckets, or all at once. */
static void buckets_keep_bits(void **state) {
  (void)state;
  static const char *const meshes[] = {"dp=2,tp=2", "dp=3"}, *const sizes[] = {"0", "0.002", "1000"};
  for (int m = 0; m < 2; m++) {
    Job first = {.how = on(meshes[m])};
    train_on(m ? 3 : 4, &first);
    for (int i = 0; i < 3; i++) {
      Job job = {.how = on(meshes[m])};
      job.how.bucket_mb = sizes[i];
      train_on(m ? 3 : 4, &job);
      expect_same_bits(&first, &job);
      job_free(&job);
    }
    job_free(&first);
  }
}

/* What ranks saved, one rank goes on with, and ranks of another mesh. */
static void saves_fit_any_mesh(void **state) {
  (void)state;
  char folder[512], run[600], again[600], weights[700];
  make_folder(folder, sizeof folder);
  snprintf(run, sizeof run, "%s/run", folder);
  snprintf(again, sizeof again, "%s/again", folder);
  snprintf(weights, sizeof weights, "%s.safetensors", run);
  Job whole = {.how = on(NULL)}, saved = {.how = on("dp=2,tp=2"), .folder = run},
      alone = {.how = on(NULL), .resume = run, .folder = again}, ranks = {.how = on("dp=3"), .resume = again};
  train_on(0, &whole);
  train_on(4, &saved);
  expect_near(&whole, &saved);
  TessCtx *ctx = tess_ctx_new(1);
  assert_non_null(tess_load(ctx, weights, "tok.weight"));
  tess_ctx_free(ctx);
  train_on(0, &alone);
  train_on(3, &ranks);
  for (int i = 0; i < saved.nstates; i++) {
    if (!saved.numel[i]) continue;
    assert_memory_equal(saved.state[i], alone.state[i], (size_t)saved.numel[i] * sizeof(float));
    assert_memory_equal(saved.state[i], ranks.state[i], (size_t)saved.numel[i] * sizeof(float));
  }
  job_free(&whole);
  job_free(&saved);
  job_free(&alone);
  job_free(&ranks);
  remove_folder(folder);
}

static void wrong_settings(void **state) {
  (void)state;
  static const struct {
    int ranks;
    TessTraining how;
    const char *error;
  } rows[] = {
      {2, {.mesh = "dp=4"}, "a mesh of 4 ranks in a world of 2"},
      {2, {.mesh = "dp=2", .data_axis = "x"}, "the axis 'x', which the mesh does not have"},
      {2, {.mesh = "dp=2", .data_parallel = "some"}, "--data-parallel some: there is global and local"},
      {2, {.mesh = "dp=2", .rank_rows = "1,2"}, "every rank works on the whole one"},
      {2, {.mesh = "dp=2", .data_parallel = "local", .rank_rows = "1"}, "rows of 1 ranks are told"},
      {2, {.mesh = "dp=2", .data_parallel = "local", .rank_rows = "1,"}, "rows of each rank are wanted"},
      {2, {.mesh = "tp=2", .data_parallel = "local"}, "no axis of the mesh tp=2 shards batches"},
      {2, {.mesh = "dp=2", .bucket_mb = "x"}, "the MiB of gradients"},
      {2, {.mesh = "dp=2", .plan = "{\"parallelize\": {\"nothing\": \"colwise\"}}"}, "'nothing' matches no module"},
      {1, {.plan = "auto"}, "a plan needs a mesh"},
      {1, {.data_parallel = "local"}, "is about several ranks, and there is one"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    Job job = {.how = rows[i].how};
    char error[1024] = "";
    if (!tess_run_ranks(rows[i].ranks, 1, train, &job, error, sizeof error) || !strstr(error, rows[i].error))
      test_failed("'%s', expected '%s'", error, rows[i].error);
    job_free(&job);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(as_one_rank),
      cmocka_unit_test(buckets_keep_bits),
      cmocka_unit_test(saves_fit_any_mesh),
      cmocka_unit_test(wrong_settings),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
