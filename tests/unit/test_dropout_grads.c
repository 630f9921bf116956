/* test_dropout_grads.c -- the gradient of dropout: it drops what the forward dropped, and scales alike.
 *
 * Of ones, the results are what each element is multiplied by: with a cotangent of ones, the gradient is the
 * result. */
#include "grad/tape.h"
#include "unit.h"

enum { ROWS = 50, COLUMNS = 40 };

static const float *numbers(const Tensor *t) { return tensor_data(t); }

static Tensor *ones(Scope *scope) {
  const int64_t size[] = {ROWS, COLUMNS};
  Tensor *t;
  assert_ok(tensor_new(scope, DT_F32, 2, size, &t));
  for (int64_t i = 0; i < tensor_numel(t); i++) ((float *)tensor_data(t))[i] = 1;
  return t;
}

/* The call, and its gradient; without a tape the same numbers are drawn. */
static void drops_alike(const char *op, double p, Value train) {
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  Tape tape;
  Tensor *x = ones(&scope), *plain, *y, *dx;
  ctx_init(&ctx, 1);
  Call c = {.ctx = &ctx, .scope = &scope, .arena = &arena};
  ctx.seed = 5, ctx.offset = 3;
  assert_ok(OP(&c, op, &plain, val_tensor(x), val_float(p), train));
  tape_begin(&tape, &ctx);
  ctx.offset = 3;
  assert_ok(tape_require(&tape, &scope, x, &x));
  assert_ok(OP(&c, op, &y, val_tensor(x), val_float(p), train));
  Tensor *g = ones(&scope);
  assert_ok(tape_gradients(&tape, &y, &g, 1, &x, 1, &(Backward){0}, &scope, &dx));
  int64_t dropped = 0;
  for (int64_t i = 0; i < tensor_numel(x); i++) {
    assert_true(numbers(y)[i] == numbers(plain)[i]);
    assert_true(numbers(dx)[i] == numbers(y)[i]);
    dropped += numbers(y)[i] == 0;
  }
  bool drops = p > 0 && !(train.kind == VAL_BOOL && !train.b);
  assert_true(drops == (dropped > 0) && (p == 1 || dropped < tensor_numel(x)));
  tape_end(&tape);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

static void all_forms(void **state) {
  (void)state;
  const char *const ops[] = {"aten.dropout.default", "aten.feature_dropout.default", "aten.native_dropout.default"};
  const double p[] = {0, .25, .5, 1};
  for (int i = 0; i < 3; i++)
    for (int k = 0; k < 4; k++) {
      drops_alike(ops[i], p[k], val_bool(true));
      if (p[k] < 1) drops_alike(ops[i], p[k], val_bool(false));
      if (i == 2) drops_alike(ops[i], p[k], val_none());
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(all_forms)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
