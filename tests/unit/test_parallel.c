/* test_parallel.c -- parallel modules of the public header: styles, plans and their mistakes, losses over sharded
 * classes, gradients averaged over replicas, optimizers.  Against one rank; python/tests/test_parallel.py has more.
 */
#include <math.h>
#include <string.h>

#include "tessera.h"
#include "unit.h"

enum { FEATURES = 6, HIDDEN = 10, ROWS = 4, MOST = 16 };

static int has_error(TessCtx *ctx, const char *part) {
  int said = strstr(tess_error_message(ctx), part) != NULL;
  if (!said) print_error("error '%s' does not say '%s'\n", tess_error_message(ctx), part);
  tess_error_clear(ctx);
  return said;
}
#define CHECK(what)                                                                                    \
  do {                                                                                                 \
    if (!(what)) return print_error("line %d: %s; %s\n", __LINE__, #what, tess_error_message(ctx)), 1; \
  } while (0)

/* Runs fn on n ranks; every rank returns 0. */
static void on_ranks(int n, TessRankFn *fn) {
  char error[1024] = "";
  if (tess_run_ranks(n, 1, fn, NULL, error, sizeof error)) test_failed("%s", error);
}

static int mlp_forward(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  TessTensor *x = in[0], *y;
  (void)n, (void)cap, (void)arg;
  if (tess_module_call(ctx, tess_module_child(m, "up"), &x, 1, &y, 1) < 0) return -1;
  y = tess_call(ctx, "aten.gelu.default", tess_t(y));
  return tess_module_call(ctx, tess_module_child(m, "down"), &y, 1, out, 1);
}

/* The same on every rank. */
static TessModule *mlp(TessCtx *ctx) {
  TessModule *m = tess_module_new(ctx, mlp_forward, NULL);
  tess_manual_seed(ctx, 1);
  tess_module_add(ctx, m, "up", tess_linear(ctx, FEATURES, HIDDEN, 1));
  tess_module_add(ctx, m, "down", tess_linear(ctx, HIDDEN, FEATURES, 1));
  return m;
}

static TessTensor *rows(TessCtx *ctx, int n, int from) {
  float data[64][FEATURES];
  for (int i = 0; i < n; i++)
    for (int k = 0; k < FEATURES; k++) data[i][k] = (float)sin(1 + (from + i) * FEATURES + k);
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){n, FEATURES}, data);
}

/* The mean of squares of the module's result. */
static TessTensor *loss_of(TessCtx *ctx, TessModule *m, TessTensor *x) {
  TessTensor *y = NULL;
  if (tess_module_call(ctx, m, &x, 1, &y, 1) != 1) return NULL;
  return tess_call(ctx, "aten.mean.default", tess_t(tess_call(ctx, "aten.mul.Tensor", tess_t(y), tess_t(y))));
}

static TessTensor *opened(TessCtx *ctx, TessTensor *t) {
  t = tess_detach(ctx, t);
  return tess_is_dtensor(t) ? tess_full_tensor(ctx, t) : t;
}

static int is_near(TessCtx *ctx, TessTensor *a, TessTensor *b) {
  float x[256], y[256];
  if (!a || !b) return 0;
  a = opened(ctx, a), b = opened(ctx, b);
  if (tess_numel(a) != tess_numel(b) || tess_numel(a) > 256 || tess_read(ctx, a, x) || tess_read(ctx, b, y))
    return 0;
  for (int64_t i = 0; i < tess_numel(a); i++)
    if (!(fabsf(x[i] - y[i]) <= 1e-6f + 1e-5f * fabsf(y[i]))) return 0;
  return 1;
}

/* Gradients, or values, of all parameters of two trees. */
static int all_near(TessCtx *ctx, TessModule *a, TessModule *b, int gradients) {
  TessTensor *p[MOST], *q[MOST];
  int n = tess_module_parameters(ctx, a, p, MOST);
  if (n < 1 || tess_module_parameters(ctx, b, q, MOST) != n) return 0;
  for (int i = 0; i < n; i++)
    if (!is_near(ctx, gradients ? tess_grad_of(ctx, p[i]) : p[i], gradients ? tess_grad_of(ctx, q[i]) : q[i]))
      return 0;
  return 1;
}

static int counts(TessCtx *ctx, const char *json) {
  char *text = tess_comm_debug_end(ctx);
  int same = text && strstr(text, json) != NULL;
  if (!same) print_error("'%s' is not in %s\n", json, text);
  tess_free(text);
  return same;
}

/* ---- styles --------------------------------------------------------------------------------------------- */

static const TessPlanEntry pair[] = {{.path = "u?", .style = TESS_COLWISE},
                                     {.path = "down", .style = TESS_ROWWISE}};

static int train_mlp(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, (const char *const[]){"tp"});
  TessModule *plain = mlp(ctx), *cut = mlp(ctx);
  TessTensor *x = rows(ctx, ROWS, 0), *p[2][MOST], *loss[2];
  char text[32];
  CHECK(!tess_parallelize_module(ctx, cut, mesh, pair, 2, 0));
  CHECK(!strcmp(tess_placements(tess_module_get(cut, "down.weight"), text, sizeof text), "S(1)"));
  TessOptimizer *o[2];
  for (int i = 0; i < 2; i++) {
    int n = tess_module_parameters(ctx, i ? cut : plain, p[i], MOST);
    CHECK(n == 4 && (o[i] = tess_optimizer_new(ctx, "adamw,lr=0.1", p[i], n)));
  }
  for (int step = 0; step < 3; step++) {
    loss[0] = loss_of(ctx, plain, x);
    tess_comm_debug_begin(ctx);
    loss[1] = loss_of(ctx, cut, x);
    CHECK(counts(ctx, "\"all_reduce\": 1}"));
    tess_comm_debug_begin(ctx);
    CHECK(is_near(ctx, loss[0], loss[1]) && !tess_backward(ctx, loss, NULL, 2, 0));
    CHECK(counts(ctx, "\"total\": 0")); /* the input's gradient is not asked for */
    double norm[2];
    for (int i = 0; i < 2; i++) {
      CHECK(!tess_clip_grad_norm(ctx, p[i], 4, 0.1, 2, &norm[i]) && !tess_optimizer_step(o[i]));
      CHECK(step || tess_optimizer_steps(o[i], 0) == 1);
    }
    CHECK(fabs(norm[0] - norm[1]) < 1e-5 && all_near(ctx, plain, cut, 1));
    for (int i = 0; i < 2; i++) CHECK(!tess_optimizer_zero_grad(o[i]) && !tess_grad_of(ctx, p[i][0]));
  }
  CHECK(all_near(ctx, plain, cut, 0));
  CHECK(!strcmp(tess_placements(tess_optimizer_state(o[1], 0, "exp_avg"), text, sizeof text), "S(0)"));
  for (int i = 0; i < 2; i++) tess_optimizer_free(o[i]);
  tess_module_free(plain);
  tess_module_free(cut);
  return 0;
}

static void styles(void **state) {
  (void)state;
  on_ranks(2, train_mlp);
}

static int prepared(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, (const char *const[]){"tp"});
  TessModule *norm = tess_layer_norm(ctx, FEATURES, 1e-5), *plain = tess_layer_norm(ctx, FEATURES, 1e-5);
  const char *const cut[] = {"S(0)"}, *const whole[] = {"R"};
  const TessPlanEntry plan[] = {
      {.style = TESS_SEQUENCE, .inputs = cut, .ninputs = 1},
      {.style = TESS_PREPARE, .outputs = cut, .want_outputs = whole, .noutputs = 1, .seen_outputs = TESS_PLAIN}};
  TessTensor *x = rows(ctx, ROWS / 2, tess_rank(ctx) * ROWS / 2), *all = rows(ctx, ROWS, 0), *y, *want;
  CHECK(!tess_parallelize_module(ctx, norm, mesh, plan, 2, 0));
  CHECK(tess_module_call(ctx, norm, &x, 1, &y, 1) == 1 && tess_module_call(ctx, plain, &all, 1, &want, 1) == 1);
  CHECK(!tess_is_dtensor(y) && is_near(ctx, y, want));
  TessTensor *two[2] = {all, all};
  const TessPlanEntry one = {.style = TESS_PREPARE, .inputs = whole, .want_inputs = cut, .ninputs = 1};
  CHECK(!tess_parallelize_module(ctx, plain, mesh, &one, 1, 0));
  CHECK(tess_module_call(ctx, plain, two, 2, &y, 1) == -1 && has_error(ctx, "2 tensors come"));
  tess_module_free(norm);
  tess_module_free(plain);
  return 0;
}

static void preparing(void **state) {
  (void)state;
  on_ranks(2, prepared);
}

static void mistakes(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, (const char *const[]){"tp"});
  TessMesh *both = tess_init_device_mesh(ctx, 2, (int[]){1, 1}, (const char *const[]){"dp", "tp"});
  TessModule *m = mlp(ctx);
  const char *const wrong[] = {"X(0)"}, *const none[] = {NULL}, *const whole[] = {"R"};
  const struct {
    TessPlanEntry entry;
    const char *error;
  } cases[] = {{{.path = "dwn"}, "did you mean 'down'"},
               {{.path = "down.inner"}, "'down' has none that matches 'inner'"},
               {{.path = "*z"}, "inside are up, down"},
               {{.path = ""}, "has no kind: the style colwise is for kinds linear and embedding"},
               {{.path = "up", .style = (TessStyle)9}, "no style 9"},
               {{.path = "up", .inputs = wrong, .ninputs = 1}, "X(0)"},
               {{.path = "up", .ninputs = 1}, "are told of, but not given"},
               {{.path = "up", .inputs = whole, .want_inputs = whole, .ninputs = 1}, "knows where it wants them"},
               {{.path = "up", .style = TESS_PREPARE, .inputs = none, .want_inputs = whole, .ninputs = 1},
                "not told how it lies"}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const TessPlanEntry plan[] = {{.path = "down", .style = TESS_ROWWISE}, cases[i].entry};
    assert_int_equal(tess_parallelize_module(ctx, m, mesh, plan, 2, 0), -1);
    assert_true(has_error(ctx, cases[i].error));
    assert_false(tess_is_dtensor(tess_module_get(m, "down.weight"))); /* nothing was changed */
  }
  assert_int_equal(tess_parallelize_module(ctx, m, both, pair, 2, 0), -1);
  assert_true(has_error(ctx, "mesh of one axis"));
  const TessPlanEntry twice[] = {{.path = "up"}, {.path = "u*", .style = TESS_SEQUENCE}};
  assert_int_equal(tess_parallelize_module(ctx, m, mesh, twice, 2, 0), -1);
  assert_true(has_error(ctx, "named by two entries"));
  assert_int_equal(tess_parallelize_module(ctx, m, mesh, pair, 2, 0), 0);
  assert_int_equal(tess_parallelize_module(ctx, m, mesh, pair, 2, 0), -1);
  assert_true(has_error(ctx, "distributed already"));
  assert_null(tess_linear(ctx, 0, 4, 1));
  assert_true(has_error(ctx, "0 features"));
  tess_module_free(m);
  tess_ctx_free(ctx);
}

/* ---- losses ----------------------------------------------------------------------------------------------- */

static int sharded_loss(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, (const char *const[]){"tp"});
  TessTensor *x = rows(ctx, ROWS, 0),
             *target = tess_tensor_from(ctx, TESS_I64, 1, (int64_t[]){ROWS}, (int64_t[]){1, 5, -100, 0});
  tess_set_requires_grad(ctx, x, 1);
  TessTensor *cut = tess_distribute_tensor(ctx, x, mesh, "S(1)", 0), *loss[2];
  loss[0] = tess_call(ctx, "aten.cross_entropy_loss.default", tess_t(x), tess_t(target));
  CHECK(tess_loss_parallel(ctx, 1) == 0);
  tess_comm_debug_begin(ctx);
  loss[1] = tess_call(ctx, "aten.cross_entropy_loss.default", tess_t(cut), tess_t(target));
  CHECK(counts(ctx, "\"counts\": {\"all_reduce\": 3}") && is_near(ctx, loss[0], loss[1]));
  tess_comm_debug_begin(ctx);
  CHECK(!tess_backward(ctx, loss, NULL, 2, 0) && counts(ctx, "\"total\": 0"));
  CHECK(tess_loss_parallel(ctx, 0) == 1);
  return !is_near(ctx, tess_grad_of(ctx, x), tess_grad_of(ctx, cut));
}

static void losses(void **state) {
  (void)state;
  on_ranks(2, sharded_loss);
}

/* ---- replicas ------------------------------------------------------------------------------------------------ */

static int averaged(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, (const char *const[]){"dp"});
  const int rank = tess_rank(ctx);
  for (int bf16 = 0; bf16 < 2; bf16++) {
    TessModule *plain = mlp(ctx), *m = mlp(ctx);
    TessDataParallel *d = tess_data_parallel(ctx, m, mesh, &(TessReplicas){.bucket_mb = 0.0002, .bf16 = bf16});
    CHECK(d && tess_data_parallel_buckets(d) > 1);
    TessTensor *want = loss_of(ctx, plain, rows(ctx, ROWS, 0));
    CHECK(!tess_backward(ctx, &want, NULL, 1, 0));
    CHECK(tess_data_parallel_sync(d, 0) == 1); /* one row of two alone, then the other, then the average of all */
    for (int i = 0; i < ROWS / 2; i++) {
      if (i) CHECK(tess_data_parallel_sync(d, 1) == 0);
      TessTensor *loss = loss_of(ctx, m, rows(ctx, 1, rank * ROWS / 2 + i));
      loss = tess_call(ctx, "aten.mul.Scalar", tess_t(loss), tess_f(2.0 / ROWS));
      tess_comm_debug_begin(ctx);
      CHECK(!tess_backward(ctx, &loss, NULL, 1, 0));
      CHECK(counts(ctx, i ? "\"all_reduce\"" : "\"total\": 0"));
    }
    CHECK(bf16 || all_near(ctx, plain, m, 1));
    tess_data_parallel_free(d);
    tess_module_free(plain);
    tess_module_free(m);
  }
  return 0;
}

/* "down" is called on rank 0 alone; "up" nowhere. */
static int unused(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, (const char *const[]){"dp"});
  TessModule *m = tess_module_new(ctx, NULL, NULL), *other = tess_linear(ctx, 2, 2, 0);
  tess_module_add(ctx, m, "up", tess_linear(ctx, 2, 2, 0));
  tess_module_add(ctx, m, "down", tess_linear(ctx, 2, 2, 0));
  tess_module_add(ctx, m, "other", other);
  TessDataParallel *d = tess_data_parallel(ctx, m, mesh, &(TessReplicas){.find_unused = 1});
  TessTensor *x = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){1, 2}, (float[]){1, 2}), *y, *loss;
  CHECK(d && tess_module_call(ctx, tess_rank(ctx) ? other : tess_module_child(m, "down"), &x, 1, &y, 1) == 1);
  loss = tess_call(ctx, "aten.sum.default", tess_t(y));
  CHECK(!tess_backward(ctx, &loss, NULL, 1, 0));
  CHECK(!tess_grad_of(ctx, tess_module_get(m, "up.weight")));
  for (int i = 0; i < 2; i++) {
    TessTensor *g = tess_grad_of(ctx, tess_module_get(m, i ? "other.weight" : "down.weight"));
    CHECK(g && ((const float *)tess_data(g))[1] == 1); /* 2, of one rank of two */
  }
  tess_data_parallel_free(d);
  tess_module_free(m);
  return 0;
}

/* Rank r has r + 1 batches. */
static int joined(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){3}, (const char *const[]){"dp"});
  TessModule *m = mlp(ctx), *plain = mlp(ctx);
  TessTensor *p[MOST];
  TessDataParallel *d = tess_data_parallel(ctx, m, mesh, NULL);
  TessOptimizer *o[2];
  o[0] = tess_optimizer_new(ctx, "sgd,lr=0.5", p, tess_module_parameters(ctx, plain, p, MOST));
  o[1] = tess_optimizer_new(ctx, "sgd,lr=0.5", p, tess_module_parameters(ctx, m, p, MOST));
  CHECK(d && o[0] && o[1] && !tess_data_parallel_join_begin(d, 1));
  for (int step = 0; step <= tess_rank(ctx); step++) {
    TessTensor *loss = loss_of(ctx, m, rows(ctx, 1, 10 * tess_rank(ctx) + step));
    CHECK(!tess_backward(ctx, &loss, NULL, 1, 0) && !tess_optimizer_step(o[1]) && !tess_optimizer_zero_grad(o[1]));
  }
  CHECK(!tess_data_parallel_join_end(d));
  for (int step = 0; step < 3; step++) { /* ranks step, step + 1 ... 2 have a batch */
    for (int r = step; r < 3; r++) {
      TessTensor *loss = loss_of(ctx, plain, rows(ctx, 1, 10 * r + step));
      loss = tess_call(ctx, "aten.div.Scalar", tess_t(loss), tess_f(3 - step));
      CHECK(!tess_backward(ctx, &loss, NULL, 1, 0));
    }
    CHECK(!tess_optimizer_step(o[0]) && !tess_optimizer_zero_grad(o[0]));
  }
  CHECK(all_near(ctx, plain, m, 0));
  CHECK(tess_data_parallel_join_end(d) == -1 && has_error(ctx, "no join is open"));
  tess_data_parallel_free(d);
  for (int i = 0; i < 2; i++) tess_optimizer_free(o[i]);
  tess_module_free(plain);
  tess_module_free(m);
  return 0;
}

static void replicas(void **state) {
  (void)state;
  on_ranks(2, averaged);
  on_ranks(2, unused);
  on_ranks(3, joined);
}

/* A context that ends before its replicas and optimizers. */
static void ends(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, (const char *const[]){"dp"});
  TessTensor *p[MOST];
  TessModule *m = mlp(ctx), *frozen = tess_module_new(ctx, NULL, NULL);
  TessDataParallel *d = tess_data_parallel(ctx, m, mesh, NULL);
  TessOptimizer *o = tess_optimizer_new(ctx, NULL, p, tess_module_parameters(ctx, m, p, MOST));
  assert_null(tess_data_parallel(ctx, frozen, mesh, NULL));
  assert_true(has_error(ctx, "no parameter that requires a gradient"));
  assert_true(d && o);
  tess_ctx_free(ctx);
  assert_int_equal(tess_data_parallel_buckets(d), 0);
  tess_data_parallel_free(d);
  tess_optimizer_free(o);
  tess_module_free(m);
  tess_module_free(frozen);
}

/* ---- optimizers ---------------------------------------------------------------------------------------------- */

static void optimizers(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *w = tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){2}, (float[]){1, 2}), *p[1] = {w},
             *v = tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){2}, (float[]){3, 4}), *q[1] = {v};
  assert_null(tess_optimizer_new(ctx, "sgd", p, 1));
  assert_true(has_error(ctx, "no leaf"));
  tess_set_requires_grad(ctx, w, 1);
  tess_set_requires_grad(ctx, v, 1);
  TessOptimizer *o = tess_optimizer_new(ctx, "sgd,lr=0.5,momentum=0.5", p, 1);
  assert_int_equal(tess_optimizer_add(o, "lr=0.25,momentum=0", q, 1), 1);
  assert_int_equal(tess_optimizer_add(o, NULL, q, 1), -1);
  assert_true(has_error(ctx, "twice"));
  assert_true(tess_optimizer_setting(o, 1, "lr", 0) == 0.25 && tess_optimizer_setting(o, 0, "momentum", 0) == 0.5);
  for (int step = 0; step < 2; step++) {
    TessTensor *loss = tess_call(ctx, "aten.dot.default", tess_t(w), tess_t(v));
    assert_int_equal(tess_backward(ctx, &loss, NULL, 1, 0), 0);
    double norm;
    assert_int_equal(tess_clip_grad_norm(ctx, p, 1, INFINITY, INFINITY, &norm), 0);
    assert_true(step || norm == 4);
    assert_int_equal(tess_optimizer_step(o), 0);
    assert_int_equal(tess_optimizer_zero_grad(o), 0);
    assert_int_equal(tess_optimizer_set(o, 1, "lr=0"), 0); /* v stays, from the second step on */
  }
  const float *now = tess_data(w), *then = tess_data(v); /* v: 3 - 1/4, 4 - 2/4; w's momentum: 3, 4, then .. */
  assert_true(then[0] == 2.75f && then[1] == 3.5f);
  assert_true(now[0] == 1 - 1.5f - (1.5f + 2.75f) / 2 && now[1] == 2 - 2 - (2 + 3.5f) / 2);
  assert_string_equal(tess_optimizer_state_name(o, 0, 0), "momentum_buffer");
  assert_null(tess_optimizer_state_name(o, 0, 1));
  assert_null(tess_optimizer_state_name(o, 1, 0));
  assert_int_equal(tess_optimizer_param_count(o), 2);
  assert_int_equal(tess_optimizer_steps(o, 1), 2);
  assert_int_equal(tess_optimizer_set_state(o, 0, "momentum_buffer", v), 0);
  assert_true(((const float *)tess_data(tess_optimizer_state(o, 0, "momentum_buffer")))[0] == 2.75f);
  assert_null(tess_optimizer_state(o, 1, "exp_avg"));
  assert_true(has_error(ctx, "sgd keeps no state 'exp_avg'"));
  assert_int_equal(tess_optimizer_set(o, 2, "lr=1"), -1);
  assert_true(has_error(ctx, "no group 2"));
  assert_int_equal(tess_optimizer_set_steps(o, 0, -1), -1);
  assert_true(has_error(ctx, "cannot have made -1 steps"));
  tess_optimizer_free(o);
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(styles),    cmocka_unit_test(preparing),
                                     cmocka_unit_test(mistakes),  cmocka_unit_test(losses),
                                     cmocka_unit_test(replicas),  cmocka_unit_test(ends),
                                     cmocka_unit_test(optimizers)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
