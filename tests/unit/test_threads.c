/* Contexts are independent: threads that open, compile and run the same programs at the
 * same time, each with workers of its own, get the same bits.  Means most under the
 * thread sanitizer. */
#include <pthread.h>
#include <string.h>

#include "base/parallel.h"
#include "tessera.h"
#include "unit.h"

enum { RANKS = 3, CALLS = 2, MOST_BYTES = 1 << 20 };

static const char *const models[] = {"llama", "resnet", "tied"};

typedef struct {
  const char *model;
  int threads;
  char bytes[MOST_BYTES]; /* of the first output, after the last call */
  size_t size;
  char error[256];
} Job;

static void run_calls(TessCtx *ctx, TessProgram *p, Job *job) {
  static const size_t width[] = {
      [TESS_BOOL] = 1, [TESS_U8] = 1,   [TESS_I8] = 1,  [TESS_I16] = 2, [TESS_I32] = 4, [TESS_I64] = 8,
      [TESS_F16] = 2,  [TESS_BF16] = 2, [TESS_F32] = 4, [TESS_F64] = 8, [TESS_C64] = 8};
  char path[512];
  const TessTensor *in[16];
  TessTensor *out[16];
  snprintf(path, sizeof path, GOLDEN_FOLDER "/models/%s/inputs.safetensors", job->model);
  int n = tess_input_count(p);
  for (int i = 0; i < n; i++) in[i] = tess_load(ctx, path, tess_input_name(p, i));
  for (int call = 0; call < CALLS; call++) {
    if (tess_run(p, in, n, out, 16) < 1) return;
  }
  job->size = (size_t)tess_numel(out[0]) * width[tess_dtype(out[0])];
  if (job->size <= MOST_BYTES) tess_read(ctx, out[0], job->bytes);
}

static void *run_job(void *arg) {
  Job *job = arg;
  char path[512];
  TessCtx *ctx = tess_ctx_new(job->threads);
  snprintf(path, sizeof path, GOLDEN_FOLDER "/models/%s/program.pt2", job->model);
  TessProgram *p = tess_open(ctx, path);
  if (p) run_calls(ctx, p, job);
  snprintf(job->error, sizeof job->error, "%s", tess_error_message(ctx));
  tess_close(p);
  tess_ctx_free(ctx);
  return NULL;
}

static void ranks_agree(void **state) {
  (void)state;
  static Job jobs[RANKS];
  for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
    pthread_t thread[RANKS];
    for (int r = 0; r < RANKS; r++) {
      jobs[r].model = models[m];
      jobs[r].threads = 2;
      jobs[r].size = 0;
      assert_int_equal(pthread_create(&thread[r], NULL, run_job, &jobs[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    for (int r = 0; r < RANKS; r++) {
      assert_string_equal(jobs[r].error, "");
      assert_true(jobs[r].size > 0 && jobs[r].size <= MOST_BYTES);
      assert_memory_equal(jobs[r].bytes, jobs[0].bytes, jobs[0].size);
    }
  }
}

/* ---- parallel_for ------------------------------------------------------------------ */

typedef struct {
  int visits[1000];
  int worker[1000];
  int64_t grain;
} Visits;

static void visit(void *arg, int64_t begin, int64_t end, int worker) {
  Visits *v = arg;
  if (begin % v->grain) v->visits[begin] += 100; /* a range starts with a whole grain */
  for (int64_t i = begin; i < end; i++) v->visits[i]++, v->worker[i] = worker;
}

static void every_item_once(void **state) {
  (void)state;
  static const int64_t sizes[] = {0, 1, 2, 7, 64, 1000}, grains[] = {1, 3, 64, 5000};
  for (int threads = 1; threads <= 5; threads++) {
    for (int s = 0; s < 6; s++) {
      for (int g = 0; g < 4; g++) {
        Visits v = {.grain = grains[g]};
        parallel_for(threads, sizes[s], grains[g], visit, &v);
        for (int64_t i = 0; i < 1000; i++) {
          assert_int_equal(v.visits[i], i < sizes[s]);
          assert_true(v.worker[i] < parallel_workers(threads, sizes[s], grains[g]));
          if (i && i < sizes[s]) assert_true(v.worker[i] >= v.worker[i - 1]);
        }
      }
    }
  }
}

static void nested(void *arg, int64_t begin, int64_t end, int worker) {
  Visits *rows = arg;
  (void)worker;
  for (int64_t i = begin; i < end; i++) parallel_for(4, 1000, 1, visit, &rows[i]);
}

static void loops_inside_loops(void **state) {
  (void)state;
  static Visits rows[4];
  for (int i = 0; i < 4; i++) rows[i] = (Visits){.grain = 1};
  parallel_for(4, 4, 1, nested, rows);
  for (int i = 0; i < 4; i++) {
    for (int k = 0; k < 1000; k++) assert_int_equal(rows[i].visits[k], 1);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_item_once),
      cmocka_unit_test(loops_inside_loops),
      cmocka_unit_test(ranks_agree),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
