/* test_module.c -- modules of the public header: the tree and its names, parameters and buffers,
 * hooks around forward.  Distributing them is in test_dtensor.c. */
#include <string.h>

#include "tessera.h"
#include "unit.h"

static TessTensor *number(TessCtx *ctx, float x) { return tess_tensor_from(ctx, TESS_F32, 1, (int64_t[]){1}, &x); }

static TessModule *empty(TessCtx *ctx) { return tess_module_new(ctx, NULL, NULL); }

static void told(TessCtx *ctx, const char *part) {
  if (!strstr(tess_error_message(ctx), part))
    test_failed("error '%s' does not say '%s'", tess_error_message(ctx), part);
  tess_error_clear(ctx);
}

/* root { blocks { 0 { w }, 1 = 0 again }, head } */
static TessModule *build(TessCtx *ctx) {
  TessModule *root = empty(ctx), *blocks = empty(ctx), *block = empty(ctx);
  assert_int_equal(tess_module_add(ctx, root, "blocks", blocks), 0);
  assert_int_equal(tess_module_add(ctx, blocks, "0", block), 0);
  assert_int_equal(tess_module_add(ctx, blocks, "1", tess_module_hold(block)), 0);
  assert_int_equal(tess_module_add(ctx, root, "head", empty(ctx)), 0);
  assert_int_equal(tess_module_set(ctx, root, "blocks.0.w", number(ctx, 1)), 0);
  return root;
}

static int note_path(TessCtx *ctx, const char *path, TessModule *m, void *arg) {
  (void)ctx, (void)m;
  strcat(strcat(arg, path), " ");
  return !strcmp(path, "head") ? 7 : 0;
}

static void names(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessModule *root = build(ctx), *block = tess_module_child(root, "blocks.0");
  char text[100] = "";
  assert_ptr_equal(block, tess_module_child(root, "blocks.1"));
  assert_ptr_equal(tess_module_get(root, "blocks.1.w"), tess_module_get(block, "w"));
  assert_string_equal(tess_module_path(block, text, sizeof text), "blocks.0");
  assert_ptr_equal(tess_module_parent(block), tess_module_child(root, "blocks"));
  assert_null(tess_module_parent(root));
  assert_ptr_equal(tess_module_child(root, ""), root);
  assert_null(tess_module_child(root, "blocks.2"));
  assert_int_equal(tess_module_child_count(root), 2);
  assert_string_equal(tess_module_child_name(root, 1), "head");
  assert_null(tess_module_child_name(root, 2));
  text[0] = 0;
  assert_int_equal(tess_module_walk(ctx, root, note_path, text), 7);
  assert_string_equal(text, " blocks blocks.0 head "); /* each once */
  assert_int_equal(tess_module_add(ctx, block, "up", tess_module_hold(root)), -1);
  told(ctx, "inside itself");
  tess_module_free(root); /* the reference that was not taken over */
  TessModule *other = empty(ctx);
  assert_int_equal(tess_module_add(ctx, root, "a.b", other), -1);
  told(ctx, "'a.b'");
  tess_module_free(other);
  tess_module_free(root);
  tess_ctx_free(ctx);
}

/* A child outlives the tree that it was in, and tensors their context. */
static void references(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessModule *root = build(ctx), *block = tess_module_hold(tess_module_child(root, "blocks.0"));
  tess_module_free(root);
  assert_null(tess_module_parent(block));
  tess_ctx_free(ctx);
  assert_true(*(float *)tess_data(tess_module_get(block, "w")) == 1);
  tess_module_free(block);
}

static void tensors(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessModule *m = build(ctx);
  int64_t version = tess_module_version(m);
  assert_int_equal(tess_module_set(ctx, m, "scale", number(ctx, 2)), 0);
  assert_true(tess_module_version(m) > version);
  assert_int_equal(tess_module_set_buffer(ctx, m, "mean", number(ctx, 3), 1), 0);
  assert_int_equal(tess_module_set_buffer(ctx, m, "mask", number(ctx, 4), 0), 0);
  assert_int_equal(tess_module_set(ctx, m, "ids", tess_tensor_new(ctx, TESS_I64, 0, NULL)), 0);
  assert_int_equal(tess_module_tensor_count(m), 4);
  assert_string_equal(tess_module_tensor_name(m, 1), "mean");
  assert_int_equal(tess_module_is_buffer(m, "scale"), 0);
  assert_int_equal(tess_module_is_buffer(m, "mean"), 1);
  assert_int_equal(tess_module_is_buffer(m, "mask"), 2);
  assert_int_equal(tess_module_is_buffer(m, "none"), -1);
  assert_int_equal(tess_module_requires_grad(m, "scale"), 1);
  assert_int_equal(tess_module_requires_grad(m, "mean"), 0);
  assert_int_equal(tess_module_requires_grad(m, "ids"), 0);
  assert_int_equal(tess_module_set_requires_grad(ctx, m, "blocks.0.w", 0), 0);
  assert_int_equal(tess_module_requires_grad(m, "blocks.0.w"), 0);
  assert_int_equal(tess_module_set_requires_grad(ctx, m, "ids", 1), -1);
  told(ctx, "only floating point");
  assert_int_equal(tess_module_set(ctx, m, "mean", number(ctx, 5)), 0); /* stays a buffer */
  assert_int_equal(tess_module_is_buffer(m, "mean"), 1);
  assert_true(*(float *)tess_data(tess_module_get(m, "mean")) == 5);
  assert_int_equal(tess_module_set(ctx, m, "head", number(ctx, 5)), -1);
  told(ctx, "a module called 'head'");
  assert_int_equal(tess_module_set(ctx, m, "tail.w", number(ctx, 5)), -1);
  told(ctx, "no such module");
  assert_int_equal(tess_module_remove(ctx, m, "scale"), 0);
  assert_int_equal(tess_module_remove(ctx, m, "blocks.0"), 0);
  assert_null(tess_module_get(m, "scale"));
  assert_non_null(tess_module_get(m, "blocks.1.w"));
  assert_int_equal(tess_module_remove(ctx, m, "scale"), -1);
  told(ctx, "no 'scale'");
  tess_module_free(m);
  tess_ctx_free(ctx);
}

static int twice(TessCtx *ctx, TessModule *m, TessTensor **in, int n, TessTensor **out, int cap, void *arg) {
  (void)m, (void)n, (void)cap, (void)arg;
  return (out[0] = tess_call(ctx, "aten.mul.Scalar", tess_t(in[0]), tess_f(2))) ? 1 : -1;
}

static int add(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)m, (void)n, (void)mesh;
  return !(t[0] = tess_call(ctx, "aten.add.Scalar", tess_t(t[0]), tess_f(*(float *)arg)));
}

static int times_ten(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)m, (void)n, (void)mesh, (void)arg;
  return !(t[0] = tess_call(ctx, "aten.mul.Scalar", tess_t(t[0]), tess_f(10)));
}

static int fails(TessCtx *ctx, TessModule *m, TessTensor **t, int n, TessMesh *mesh, void *arg) {
  (void)ctx, (void)m, (void)t, (void)n, (void)mesh, (void)arg;
  return 1;
}

static float called(TessCtx *ctx, TessModule *m) {
  TessTensor *in = number(ctx, 1), *out = NULL;
  return tess_module_call(ctx, m, &in, 1, &out, 1) == 1 ? *(float *)tess_data(out) : -1;
}

static void hooks(void **state) {
  (void)state;
  TessCtx *ctx = tess_ctx_new(1);
  TessModule *m = tess_module_new(ctx, twice, NULL), *none = empty(ctx);
  float three = 3;
  assert_true(called(ctx, m) == 2);
  int first = tess_module_hook(ctx, m, TESS_BEFORE_FORWARD, add, &three);
  assert_int_equal(tess_module_hook(ctx, m, TESS_AFTER_FORWARD, times_ten, NULL), first + 1);
  tess_module_hook(ctx, m, TESS_AFTER_FORWARD, add, &three);
  assert_true(called(ctx, m) == ((1 + 3) * 2) * 10 + 3);
  tess_module_unhook(m, first);
  assert_true(called(ctx, m) == 2 * 10 + 3);
  tess_module_hook(ctx, m, TESS_AFTER_FORWARD, fails, NULL);
  assert_true(called(ctx, m) == -1);
  told(ctx, "a hook after the forward function");
  assert_true(called(ctx, none) == -1);
  told(ctx, "no forward function");
  tess_module_free(none);
  tess_module_free(m);
  tess_ctx_free(ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(names), cmocka_unit_test(references),
                                     cmocka_unit_test(tensors), cmocka_unit_test(hooks)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
