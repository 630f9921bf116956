/* test_api.c -- the public header: ops by name, errors that stick, scopes, programs. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tessera.h"
#include "unit.h"

static void ops_by_name(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  const float x[] = {1, 2, 3, 4, 5, 6}, w[] = {1, 0, 0, 1, 1, 1}, b[] = {10, 20};
  TessTensor *tx = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){2, 3}, x);
  TessTensor *tw = tess_tensor_from(ctx, TESS_F32, 2, (int64_t[]){3, 2}, w);
  TessTensor *tb = tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){2}, b);
  TessTensor *y = tess_call(ctx, "aten.addmm.default", tess_t(tb), tess_t(tx), tess_t(tw));
  assert_non_null(y);
  float out[4];
  assert_int_equal(tess_read(ctx, y, out), 0);
  assert_true(out[0] == 14 && out[1] == 25 && out[2] == 20 && out[3] == 31);
  y = tess_call(ctx, "aten.addmm.default", tess_t(tb), tess_t(tx), tess_t(tw), tess_named("beta", tess_i(0)));
  assert_int_equal(tess_read(ctx, y, out), 0);
  assert_true(out[0] == 4);
  TessTensor *both[2];
  assert_int_equal(tess_call_n(ctx, "aten.max.dim", (TessArg[]){tess_t(tx), tess_i(1)}, 2, both, 2), 2);
  assert_int_equal(tess_dtype(both[1]), TESS_I64);
  assert_int_equal(*(int64_t *)tess_data(both[1]), 2);
  tess_ctx_free(ctx);
}

static void errors_stick(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *a = tess_tensor_new(ctx, TESS_F32, 2, (int64_t[]){2, 3}),
             *b = tess_tensor_new(ctx, TESS_F32, 2, (int64_t[]){4, 5});
  assert_null(tess_call(ctx, "aten.mm.default", tess_t(a), tess_t(b)));
  assert_int_equal(tess_error(ctx), 1);
  assert_non_null(strstr(tess_error_message(ctx), "aten.mm"));
  assert_null(tess_call(ctx, "aten.relu.default", tess_t(a))); /* until it is cleared */
  tess_error_clear(ctx);
  assert_string_equal(tess_error_message(ctx), "");
  assert_null(tess_call(ctx, "aten.reluu.default", tess_t(a)));
  assert_int_equal(tess_error(ctx), 2);
  assert_non_null(strstr(tess_error_message(ctx), "aten.relu.default"));
  tess_error_clear(ctx);
  assert_null(tess_open(ctx, "/nonexistent.pt2"));
  assert_int_equal(tess_error(ctx), 3);
  tess_error_clear(ctx);
  assert_null(tess_tensor_new(ctx, TESS_F32, 1, (int64_t[]){-1}));
  assert_null(tess_tensor_new(ctx, TESS_F32, 2, (int64_t[]){INT64_MAX, INT64_MAX}));
  tess_ctx_free(ctx);
}

static void scopes(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessScope *s = tess_scope_begin(ctx);
  TessTensor *t = tess_call(ctx, "aten.arange.default", tess_i(4)), *kept = tess_keep(ctx, t);
  tess_scope_begin(ctx); /* left open on purpose */
  tess_call(ctx, "aten.ones.default", tess_ints((int64_t[]){3}, 1));
  tess_scope_end(ctx, s);
  assert_int_equal(((int64_t *)tess_data(kept))[3], 3);
  tess_ctx_free(ctx);
}

static void borrowed_memory(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  double data[6] = {1, 2, 3, 4, 5, 6};
  TessTensor *t = tess_tensor_borrow(ctx, TESS_F64, 2, (int64_t[]){3, 2}, (int64_t[]){1, 3}, data);
  TessTensor *two = tess_call(ctx, "aten.mul_.Scalar", tess_t(t), tess_f(2));
  assert_non_null(two);
  assert_true(data[5] == 12);
  double out[6];
  tess_read(ctx, t, out);
  assert_true(out[1] == 8 && out[2] == 4);
  tess_ctx_free(ctx);
}

static void count(void *owner) { ++*(int *)owner; }

/* Handles outside of scopes, and memory that tells when it is no longer used. */
static void held_handles(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessScope *s = tess_scope_begin(ctx);
  float data[4] = {1, 2, 3, 4};
  int released = 0;
  TessTensor *t = tess_tensor_adopt(ctx, TESS_F32, 2, (int64_t[]){2, 2}, NULL, data, count, &released);
  TessTensor *row = tess_hold(ctx, tess_call(ctx, "aten.select.int", tess_t(t), tess_i(0), tess_i(1)));
  tess_scope_end(ctx, s);
  assert_int_equal(released, 0); /* the row is a view of it */
  assert_true(tess_data(row) == &data[2]);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, NULL);
  TessTensor *d = tess_hold(ctx, tess_distribute_tensor(ctx, row, mesh, "S(0)", -1));
  tess_ctx_free(ctx);
  tess_release(row);
  tess_release(d);
  assert_int_equal(released, 1);
}

static void results_of_any_kind(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *t = tess_call(ctx, "aten.arange.default", tess_i(3));
  TessArg out[1];
  assert_int_equal(tess_call_values(ctx, "aten.sym_size.int", (TessArg[]){tess_t(t), tess_i(0)}, 2, out, 1), 1);
  assert_true(out[0].kind == TESS_ARG_INT && out[0].v.i == 3);
  assert_int_equal(
      tess_call_values(ctx, "aten.clone.default",
                       (TessArg[]){tess_t(t), tess_named("memory_format", tess_s("contiguous_format"))}, 2, out, 1),
      1);
  assert_int_equal(out[0].kind, TESS_ARG_TENSOR);
  assert_non_null(strstr(tess_op_schema("aten.clone.default"), "aten::clone(Tensor self"));
  assert_null(tess_op_schema("aten.none.such"));
  tess_ctx_free(ctx);
}

static void told(TessCtx *ctx, int code, const char *part) {
  assert_int_equal(tess_error(ctx), code);
  if (!strstr(tess_error_message(ctx), part))
    test_failed("error '%s' does not say '%s'", tess_error_message(ctx), part);
  tess_error_clear(ctx);
}

static void mistakes_are_told(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessTensor *t = tess_tensor_new(ctx, TESS_F32, 0, NULL);
  assert_non_null(t);
  const char *spellings[] = {"aten.mm", "aten::mm", "torch.ops.aten.mm.default", "aten.mm.defualt"};
  for (int i = 0; i < 4; i++) {
    assert_null(tess_call(ctx, spellings[i], tess_t(t)));
    told(ctx, 2, "did you mean 'aten.mm.default'?");
  }
  assert_null(tess_call(ctx, NULL, tess_t(t)));
  told(ctx, 2, "the op is NULL");
  assert_null(tess_open(ctx, NULL));
  told(ctx, 2, "the path is NULL");
  assert_null(tess_load(ctx, "x", NULL));
  told(ctx, 2, "the name is NULL");
  assert_int_equal(tess_save(ctx, NULL, NULL, NULL, 0), -1);
  told(ctx, 2, "the path is NULL");
  assert_null(tess_tensor_new(ctx, TESS_F32, -1, NULL));
  told(ctx, 2, "-1 dimensions");
  assert_null(tess_tensor_new(ctx, TESS_F32, 2, NULL));
  told(ctx, 2, "without sizes");
  assert_null(tess_tensor_new(ctx, (TessDtype)99, 0, NULL));
  told(ctx, 2, "no dtype 99");
  assert_null(tess_tensor_new(ctx, TESS_F32, 2, (int64_t[]){INT64_MAX, 2}));
  told(ctx, 1, "impossible size");
  tess_ctx_free(ctx);
}

static void sizes_that_are_none(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessMesh *mesh = tess_init_device_mesh(ctx, 1, (int[]){1}, NULL);
  const int64_t wrong[] = {-1, 2};
  assert_null(tess_dtensor_full(ctx, mesh, "R", TESS_F32, 2, wrong, 0));
  told(ctx, 1, "impossible size");
  assert_null(tess_dtensor_rand(ctx, mesh, "R", TESS_F32, 2, wrong, 0));
  told(ctx, 1, "impossible size");
  assert_null(tess_plan_tensor(ctx, mesh, "R", TESS_F32, 2, wrong, NULL));
  told(ctx, 1, "impossible size");
  assert_null(tess_dtensor_full(ctx, mesh, "R", (TessDtype)99, 1, (int64_t[]){1}, 0));
  told(ctx, 2, "no dtype 99");
  TessTensor *one = tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){1}, &(float){1});
  const int64_t many[17] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  assert_null(tess_from_local(ctx, one, mesh, "R", 0, 17, many, NULL));
  told(ctx, tess_error(ctx), "17");
  assert_null(tess_plan_tensor(ctx, mesh, "R", TESS_F32, 17, many, NULL));
  told(ctx, 1, "17");
  assert_null(tess_redistribute(ctx, tess_distribute_tensor(ctx, one, mesh, "R", -1), NULL, "S(0)", 99));
  told(ctx, 2, "no dtype 99");
  assert_null(tess_init_device_mesh(ctx, 1, (int[]){-1}, NULL));
  told(ctx, 2, "-1");
  assert_null(tess_init_device_mesh(ctx, -1, (int[]){1}, NULL));
  told(ctx, 2, "-1 of the sizes");
  assert_non_null(tess_init_device_mesh(ctx, 1, (int[]){1}, (const char *[]){NULL}));
  assert_null(tess_mesh_sub(ctx, mesh, (const char *[]){NULL}, 1));
  told(ctx, 2, "axis name 0 is NULL");
  TessTensor *t = tess_tensor_new(ctx, TESS_F32, 0, NULL);
  const TessTensor *two[] = {t, NULL};
  assert_null(tess_call(ctx, "aten.stack.default", tess_tensors(two, 2)));
  told(ctx, 1, "element 1 is None");
  assert_null(tess_call(ctx, "aten.sum.dim_IntList", tess_t(t), tess_ints(NULL, 2)));
  told(ctx, 2, "argument 1 is NULL");
  assert_null(tess_call(ctx, "aten.sum.dim_IntList", tess_t(t), tess_ints((int64_t[]){0}, -1)));
  told(ctx, 2, "a list of -1");
  tess_ctx_free(ctx);
}

static void *wait_for_others(void *arg) {
  TessCtx *ctx = tess_hub_join(arg, 0, 1);
  tess_barrier(ctx); /* rank 1 never comes */
  char *said = strdup(tess_error_message(ctx));
  tess_hub_leave(ctx, NULL);
  return said;
}

static void ranks_give_up(void **state) {
  (void)state;
  TessHub *hub = tess_hub_new(2);
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, wait_for_others, hub), 0);
  void *said;
  tess_hub_fail(hub, "the user had enough");
  assert_int_equal(pthread_join(thread, &said), 0);
  assert_non_null(strstr(said, "the user had enough"));
  free(said);
  assert_string_equal(tess_hub_error(hub), "the user had enough");
  tess_hub_free(hub);
}

static void programs(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessProgram *p = tess_open(ctx, GOLDEN_FOLDER "/models/mlp/program.pt2");
  assert_non_null(p);
  assert_int_equal(tess_input_count(p), 1);
  assert_non_null(tess_input_name(p, 0));
  assert_null(tess_input_name(p, 1));
  assert_int_equal(tess_output_count(p), 1);
  TessTensor *wrong = tess_tensor_new(ctx, TESS_I64, 1, (int64_t[]){3}), *out[1];
  assert_int_equal(tess_run(p, (const TessTensor *[]){wrong}, 1, out, 1), -1);
  assert_non_null(strstr(tess_error_message(ctx), tess_input_name(p, 0)));
  tess_error_clear(ctx);
  assert_int_equal(tess_run(p, NULL, 0, out, 1), -1);
  tess_error_clear(ctx);
  tess_close(p);
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(ops_by_name),
                                     cmocka_unit_test(errors_stick),
                                     cmocka_unit_test(scopes),
                                     cmocka_unit_test(borrowed_memory),
                                     cmocka_unit_test(mistakes_are_told),
                                     cmocka_unit_test(held_handles),
                                     cmocka_unit_test(results_of_any_kind),
                                     cmocka_unit_test(programs),
                                     cmocka_unit_test(sizes_that_are_none),
                                     cmocka_unit_test(ranks_give_up)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
