/* DTensors through the public API, on thread ranks. */
#include <unistd.h>

#include "api_ranks.h"

static TessTensor *counting(TessCtx *ctx, int rows, int cols) {
  float data[400];
  for (int i = 0; i < rows * cols; i++) data[i] = (float)(i % 7) - 2;
  return tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){rows, cols}, data);
}

/* A product with every pair of placements is the product on one rank. */
static int multiply(TessCtx *ctx, void *arg) {
  (void)arg;
  static const char *const places[] = {"RR",      "S(0)R",        "RS(1)",      "S(0)S(1)",      "S(1)S(1)",
                                       "P(sum)R", "_S(0, 2)S(0)", "S(1)P(sum)", "S(0)[1]S(0)[0]"};
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 2}, (const char *const[]){"dp", "tp"});
  TessTensor *a = counting(ctx, 7, 9), *b = counting(ctx, 9, 5),
             *want = tess_call(ctx, "aten.mm.default", tess_t(a), tess_t(b));
  for (size_t i = 0; i < sizeof places / sizeof *places; i++)
    for (size_t j = 0; j < sizeof places / sizeof *places; j++) {
      TessScope *scope = tess_scope_begin(ctx);
      TessTensor *x = tess_distribute_tensor(ctx, a, mesh, places[i], 0),
                 *y = tess_distribute_tensor(ctx, b, mesh, places[j], 0);
      TessTensor *z = tess_call(ctx, "aten.mm.default", tess_t(x), tess_t(y));
      CHECK(z && tess_is_dtensor(z) && tess_size(z)[0] == 7 && tess_size(z)[1] == 5);
      CHECK(tess_equal(ctx, z, want) == 1);
      tess_scope_end(ctx, scope);
    }
  return 0;
}

static void test_multiply(void **state) {
  (void)state;
  on_ranks(4, multiply);
}

static int meshes(TessCtx *ctx, void *arg) {
  (void)arg;
  char text[128];
  int coord[2];
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 3}, (const char *const[]){"dp", "tp"});
  CHECK(mesh == tess_init_device_mesh(ctx, 2, (int[]){2, 3}, (const char *const[]){"dp", "tp"}));
  CHECK(!strcmp(tess_mesh_repr(mesh, text, sizeof text), "Mesh(dp=2, tp=3)"));
  CHECK(tess_mesh_coordinate(mesh, coord) == 0 && coord[0] == tess_rank(ctx) / 3 && coord[1] == tess_rank(ctx) % 3);
  TessMesh *tp = tess_mesh_sub(ctx, mesh, (const char *const[]){"tp"}, 1);
  CHECK(tp && tess_mesh_size(tp, 0) == 3 && tess_mesh_ranks(tp)[0] == coord[0] * 3);
  TessMesh *flat = tess_mesh_flatten(ctx, mesh, (const char *const[]){"dp", "tp"}, 2, NULL);
  CHECK(flat && tess_mesh_size(flat, 0) == 6 && !strcmp(tess_mesh_name(flat, 0), "dp_tp"));
  TessTensor *t = tess_distribute_tensor(ctx, counting(ctx, 8, 3), tp, "S(0)", 0); /* each row of ranks by itself */
  TessTensor *u = tess_redistribute(ctx, tess_distribute_tensor(ctx, counting(ctx, 8, 3), flat, "S(0)", 0), mesh,
                                    "S(1)S(0)", -1); /* across meshes */
  CHECK(t && u && tess_equal(ctx, tess_full_tensor(ctx, t), tess_full_tensor(ctx, u)) == 1);
  CHECK(!tess_mesh_sub(ctx, mesh, (const char *const[]){"pp"}, 1) && strstr(tess_error_message(ctx), "pp"));
  tess_error_clear(ctx);
  CHECK(!tess_init_device_mesh(ctx, 1, (int[]){7}, NULL) && strstr(tess_error_message(ctx), "7 ranks"));
  tess_error_clear(ctx);
  return 0;
}

static void test_meshes(void **state) {
  (void)state;
  on_ranks(6, meshes);
}

static int watching(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, NULL);
  TessTensor *x = tess_distribute_tensor(ctx, counting(ctx, 4, 6), mesh, "S(1)", -1),
             *w = tess_distribute_tensor(ctx, counting(ctx, 6, 4), mesh, "S(0)", -1);
  CHECK(tess_comm_debug_begin(ctx) == 0);
  TessTensor *y = tess_call(ctx, "aten.mm.default", tess_t(x), tess_t(w)); /* partial: nothing is sent */
  char *text = tess_comm_debug_end(ctx);
  char place[64];
  CHECK(y && strstr(text, "\"total\": 0") && !strcmp(tess_placements(y, place, sizeof place), "P(sum)"));
  tess_free(text);
  CHECK(tess_comm_debug_begin(ctx) == 0);
  CHECK(tess_call(ctx, "aten.relu.default", tess_t(y)));
  text = tess_comm_debug_end(ctx);
  CHECK(strstr(text, "\"total\": 1") && strstr(text, "aten.relu.default"));
  tess_free(text);
  CHECK(tess_explicit_redistribution(ctx, 1) == 0);
  CHECK(!tess_call(ctx, "aten.relu.default", tess_t(y)) &&
        strstr(tess_error_message(ctx), "implicit redistribution"));
  tess_error_clear(ctx);
  CHECK(tess_explicit_redistribution(ctx, 0) == 1);
  CHECK(!tess_call(ctx, "aten.add.Tensor", tess_t(x), tess_t(counting(ctx, 4, 6))) &&
        strstr(tess_error_message(ctx), "plain tensor"));
  tess_error_clear(ctx);
  CHECK(tess_implicit_replication(ctx, 1) == 0 &&
        tess_call(ctx, "aten.add.Tensor", tess_t(x), tess_t(counting(ctx, 4, 6))));
  return 0;
}

static void test_watching(void **state) {
  (void)state;
  on_ranks(2, watching);
}

static int uneven_local(TessCtx *ctx, void *arg) {
  (void)arg;
  static const int rows[] = {2, 2, 2, 1};
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){4}, NULL);
  TessTensor *mine = tess_dtensor_full(ctx, mesh, "R", TESS_F32, 2, (int64_t[]){rows[tess_rank(ctx)], 2},
                                       tess_rank(ctx));
  TessTensor *t = tess_from_local(ctx, tess_to_local(ctx, mine), mesh, "S(0)", 1, 0, NULL, NULL);
  CHECK(t && tess_size(t)[0] == 7);
  TessTensor *whole = tess_full_tensor(ctx, t);
  CHECK(whole && ((float *)tess_data(whole))[13] == 3 && ((float *)tess_data(whole))[6] == 1);
  CHECK(!tess_from_local(ctx, tess_to_local(ctx, mine), mesh, "S(0)", 0, 2, (int64_t[]){9, 2}, NULL));
  tess_error_clear(ctx);
  return 0;
}

static void test_uneven_local(void **state) {
  (void)state;
  on_ranks(4, uneven_local);
}

static int one_fails(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){3}, NULL);
  TessTensor *t = tess_distribute_tensor(ctx, counting(ctx, 6, 2), mesh, "P(sum)", -1);
  if (tess_rank(ctx) == 1) return 9;
  return tess_full_tensor(ctx, t) ? 0 : 1;
}

static void test_failure_reaches_all(void **state) {
  (void)state;
  char error[1024];
  int code = tess_run_ranks(3, 1, one_fails, NULL, error, sizeof error);
  assert_int_equal(code, 5);
  assert_non_null(strstr(error, "rank 1"));
}

/* Two linear layers, the first cut by columns, the second by rows: one all-reduce. */
static int mlp_forward(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)arg;
  if (n != 1 || cap < 1) return -1;
  TessTensor *h = tess_call(ctx, "aten.linear.default", tess_t(in[0]), tess_t(tess_module_get(m, "up.weight")));
  h = tess_call(ctx, "aten.relu.default", tess_t(h));
  out[0] = tess_call(ctx, "aten.linear.default", tess_t(h), tess_t(tess_module_get(m, "down.weight")));
  return out[0] ? 1 : -1;
}

static int mlp_partition(TessCtx *ctx, const char *path, TessModule *m, TessMesh *mesh, void *arg) {
  (void)arg;
  const char *place = !strcmp(path, "up") ? "S(0)" : !strcmp(path, "down") ? "S(1)" : NULL;
  if (!place) return 0;
  return tess_module_set(ctx, m, "weight",
                         tess_distribute_tensor(ctx, tess_module_get(m, "weight"), mesh, place, 0));
}

static int mlp_input(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)m, (void)n, (void)arg;
  return !(t[0] = tess_distribute_tensor(ctx, t[0], mesh, NULL, -1));
}

static int mlp_output(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)m, (void)n, (void)mesh, (void)arg;
  return !(t[0] = tess_full_tensor(ctx, t[0]));
}

static int modules(TessCtx *ctx, void *arg) {
  (void)arg;
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){3}, NULL);
  TessModule *m = tess_module_new(ctx, mlp_forward, NULL);
  tess_module_add(ctx, m, "up", tess_module_new(ctx, NULL, NULL));
  tess_module_add(ctx, m, "down", tess_module_new(ctx, NULL, NULL));
  tess_module_set(ctx, m, "up.weight", counting(ctx, 8, 6));
  tess_module_set(ctx, m, "down.weight", counting(ctx, 5, 8));
  tess_module_set(ctx, m, "scale", counting(ctx, 1, 1));
  TessTensor *x = counting(ctx, 4, 6), *want, *got, *in = x;
  char place[64];
  CHECK(tess_module_call(ctx, m, &in, 1, &want, 1) == 1);
  CHECK(tess_distribute_module(ctx, m, mesh, mlp_partition, mlp_input, mlp_output, NULL) == 0);
  CHECK(!strcmp(tess_placements(tess_module_get(m, "up.weight"), place, sizeof place), "S(0)"));
  CHECK(!strcmp(tess_placements(tess_module_get(m, "scale"), place, sizeof place), "R"));
  in = x;
  CHECK(tess_comm_debug_begin(ctx) == 0);
  CHECK(tess_module_call(ctx, m, &in, 1, &got, 1) == 1);
  char *text = tess_comm_debug_end(ctx);
  CHECK(strstr(text, "\"total\": 1") && strstr(text, "all_reduce"));
  tess_free(text);
  CHECK(tess_equal(ctx, got, want) == 1);
  CHECK(tess_distribute_module(ctx, m, mesh, NULL, NULL, NULL, NULL) == -1 &&
        strstr(tess_error_message(ctx), "already"));
  tess_error_clear(ctx);
  tess_module_free(m);
  return 0;
}

static void test_modules(void **state) {
  (void)state;
  on_ranks(3, modules);
}

/* Started redistributions beside computing, waited for later. */
static int started(TessCtx *ctx, void *arg) {
  (void)arg;
  static const char *const from[] = {"S(0)R", "P(sum)S(1)", "S(0)S(0)", "RR"}, *const to[] = {"RS(0)", "S(0)R",
                                                                                              "RS(1)", "S(1)S(1)"};
  TessMesh *mesh = tess_init_device_mesh(ctx, 2, (int[]){2, 3}, NULL);
  TessTensor *a = counting(ctx, 7, 9);
  TessWork *work[4];
  for (int i = 0; i < 4; i++) {
    TessScope *scope = tess_scope_begin(ctx);
    work[i] = tess_redistribute_start(ctx, tess_distribute_tensor(ctx, a, mesh, from[i], -1), to[i]);
    CHECK(work[i]);
    tess_scope_end(ctx, scope);
  }
  CHECK(tess_call(ctx, "aten.mm.default", tess_t(a), tess_t(counting(ctx, 9, 4))));
  for (int i = 0; i < 4; i++) {
    char place[64];
    TessTensor *t = tess_redistribute_wait(work[i]);
    CHECK(t && !strcmp(tess_placements(t, place, sizeof place), to[i]) && tess_equal(ctx, t, a) == 1);
  }
  return 0;
}

static void test_started(void **state) {
  (void)state;
  on_ranks(6, started);
}

/* A spec as text, and the boxes of a strided shard. */
static int in_parts(TessCtx *ctx, void *arg) {
  (void)arg;
  char spec[256], place[64];
  int64_t offsets[8], sizes[8];
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){2}, NULL);
  TessTensor *a = counting(ctx, 7, 3), *t = tess_distribute_tensor(ctx, a, mesh, "_S(0, 2)", 0);
  TessTensor *local = tess_dtensor_flatten(ctx, t, spec, sizeof spec);
  TessTensor *back = tess_dtensor_unflatten(ctx, local, mesh, spec);
  CHECK(back && !strcmp(tess_placements(back, place, sizeof place), "_S(0, 2)") && tess_equal(ctx, back, a) == 1);
  CHECK(tess_chunk_list(ctx, t, offsets, sizes, 4) == 2 && sizes[1] == 3 && offsets[0] == 2 * tess_rank(ctx));
  CHECK(tess_get_chunk(ctx, t, offsets) && tess_size(tess_get_chunk(ctx, t, offsets))[0] == 2);
  CHECK(!tess_dtensor_unflatten(ctx, local, mesh, "{") && tess_error(ctx));
  tess_error_clear(ctx);
  CHECK(tess_chunk_list(ctx, tess_distribute_tensor(ctx, a, mesh, "P(sum)", -1), offsets, sizes, 4) == -1);
  tess_error_clear(ctx);
  return 0;
}

static void test_in_parts(void **state) {
  (void)state;
  on_ranks(2, in_parts);
}

/* A rank that gives up, and one that is late: the others learn why, the flight records are kept. */
static int gives_up(TessCtx *ctx, void *arg) {
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){3}, NULL);
  TessTensor *t = tess_dtensor_full(ctx, mesh, "P(sum)", TESS_F32, 1, (int64_t[]){4}, 1);
  CHECK(tess_full_tensor(ctx, t));
  if (tess_rank(ctx) == 0) tess_set_flight(ctx, arg);
  if (tess_rank(ctx) == 1) tess_fail(ctx, "no data");
  return tess_full_tensor(ctx, t) ? 0 : 1;
}

static void test_flight(void **state) {
  (void)state;
  char error[1024], path[] = "/tmp/tess_flight_XXXXXX", text[4096] = "";
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(tess_run_ranks(3, 1, gives_up, path, error, sizeof error), 5);
  assert_non_null(strstr(error, "rank 1 of 3: no data"));
  assert_non_null(strstr(error, path));
  FILE *f = fopen(path, "r");
  assert_non_null(f);
  assert_true(fread(text, 1, sizeof text - 1, f) > 0);
  fclose(f);
  unlink(path);
  assert_non_null(strstr(text, "{\"error\": \"rank 1 of 3: no data\", \"ranks\": ["));
  assert_non_null(strstr(text, "\"kind\": \"all_reduce\""));
}

static void test_planning(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_plan();
  char *text = tess_plan_layout(ctx, 2, (int64_t[]){9, 4}, 1, (int[]){4}, "_S(0, 2)", (int[]){1});
  assert_string_equal(text, "{\"shape\": [3, 4], \"offset\": [2, 0], \"runs\": [[[2, 2], [6, 1]], [[0, 4]]]}");
  tess_free(text);
  text = tess_plan_redistribute(ctx, TESS_F32, 2, (int64_t[]){1024, 1024}, 2, (int[]){2, 4}, "S(0)S(1)", "S(1)S(0)",
                                0);
  assert_non_null(strstr(text, "\"collectives\": 1"));
  tess_free(text);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){64}, NULL);
  TessTensor *x = tess_plan_tensor(ctx, mesh, "S(0)", TESS_F32, 2, (int64_t[]){128, 64}, NULL);
  TessTensor *w = tess_plan_tensor(ctx, mesh, "R", TESS_F32, 2, (int64_t[]){64, 32}, NULL);
  text = tess_propagate(ctx, "aten.mm.default", (TessArg[]){tess_t(x), tess_t(w)}, 2);
  assert_non_null(text);
  tess_free(text);
  text = tess_propagate(ctx, "aten.linalg_cross.default", (TessArg[]){tess_t(x)}, 1);
  assert_null(text);
  tess_error_clear(ctx);
  TessTensor *v = tess_plan_tensor(ctx, mesh, "S(0)", TESS_F32, 1, (int64_t[]){64},
                                   NULL); /* taken apart: view, mm, view */
  text = tess_propagate(ctx, "aten.einsum.default",
                        (TessArg[]){tess_s("ij,j->i"), tess_tensors((const TessTensor *[]){x, v}, 2)}, 2);
  assert_non_null(text);
  assert_non_null(strstr(text, "\"inputs\": [[\"S(0)\"], [\""));
  assert_non_null(strstr(text, "\"op\": null"));
  tess_free(text);
  assert_null(tess_plan_layout(ctx, 1, (int64_t[]){4}, 1, (int[]){2}, "S(3)", (int[]){0}));
  assert_int_equal(tess_error(ctx), 2);
  tess_ctx_free(ctx);
}

static void test_checkpoint_plans(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_plan();
  const TessSaved saved[] = {{"w", TESS_F32, 2, (int64_t[]){7, 4}, "_S(0, 2)"},
                             {"b", TESS_BF16, 1, (int64_t[]){4}, NULL}};
  const TessSaved wanted[] = {{"w", TESS_F32, 2, (int64_t[]){7, 4}, "S(1)"}};
  char *plan = tess_plan_save(ctx, 1, (int[]){2}, saved, 2, 0);
  assert_non_null(plan);
  assert_non_null(strstr(plan, "{\"name\": \"w\", \"dtype\": \"f32\", \"shape\": [7, 4], \"chunks\": [{\"rank\": "
                               "0, \"offset\": [0, 0], \"size\": [2, 4]}, "));
  assert_non_null(
      strstr(plan, "\"chunks\": [{\"rank\": 1, \"offset\": [0], \"size\": [4]}]")); /* rank 1 writes less of w */
  char *reads = tess_plan_load(ctx, plan, 1, (int[]){4}, wanted, 1, (int[]){1});
  assert_non_null(reads);
  assert_non_null(strstr(reads, "{\"chunk\": 0, \"from\": [0, 1], \"into\": [0, 0], \"size\": [2, 1]}"));
  tess_free(reads);
  assert_null(tess_plan_load(ctx, "{}", 1, (int[]){4}, wanted, 1, (int[]){1}));
  tess_error_clear(ctx);
  assert_null(tess_plan_load(ctx, plan, 1, (int[]){4}, wanted, 1, (int[]){4}));
  tess_error_clear(ctx);
  assert_null(tess_plan_save(ctx, 1, (int[]){2}, &(TessSaved){"p", TESS_F32, 1, (int64_t[]){4}, "P(sum)"}, 1, 0));
  tess_free(plan);
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      /* clang-format off */
      cmocka_unit_test(test_multiply),     cmocka_unit_test(test_meshes),
      cmocka_unit_test(test_watching),     cmocka_unit_test(test_uneven_local),
      cmocka_unit_test(test_failure_reaches_all), cmocka_unit_test(test_planning),
      cmocka_unit_test(test_modules),      cmocka_unit_test(test_started),
      cmocka_unit_test(test_in_parts),     cmocka_unit_test(test_flight),
      /* clang-format on */
      cmocka_unit_test(test_checkpoint_plans),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
