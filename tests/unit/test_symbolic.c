/* Arithmetic on sizes: what Python gives, as numbers of the same kind; and what the ops
 * on indices and assertions say when something is wrong. */
#include "ops/op.h"
#include "unit.h"

static Ctx ctx;
static Arena arena;
static Scope scope;

static Status call(const char *name, const Value *args, int n, Value *out) {
  Call c = {.ctx = &ctx, .op = op_find(name), .scope = &scope, .arena = &arena};
  Value bound[MAX_PARAMS];
  NamedValue given[MAX_PARAMS];
  assert_non_null(c.op);
  for (int i = 0; i < n; i++) given[i] = (NamedValue){NULL, args[i]};
  TRY(op_bind(&arena, c.op, given, n, bound));
  c.arg = bound;
  TRY(op_dispatch(&c));
  *out = c.nout ? c.out[0] : val_none();
  return OK;
}
#define CALL(name, out, ...) \
  call(name, (const Value[]){__VA_ARGS__}, (int)(sizeof((const Value[]){__VA_ARGS__}) / sizeof(Value)), out)

#define I(x) val_int(x)
#define F(x) val_float(x)
#define B(x) val_bool(x)

static void numbers_are_pythons(void **state) {
  (void)state;
  const struct {
    const char *name;
    Value a, b, want;
  } cases[] = {
      {"_operator.add", I(2), B(true), I(3)},
      {"_operator.add", I(2), F(0.5), F(2.5)},
      {"_operator.mul", B(true), B(true), I(1)},
      {"_operator.sub", I(2), I(5), I(-3)},
      {"_operator.truediv", I(7), I(2), F(3.5)},
      {"_operator.truediv", I(4), I(2), F(2)},
      {"_operator.floordiv", I(-7), I(2), I(-4)},
      {"_operator.floordiv", I(7), I(-2), I(-4)},
      {"_operator.floordiv", I(-6), I(2), I(-3)},
      {"_operator.floordiv", F(-7), I(2), F(-4)},
      {"_operator.mod", I(-7), I(3), I(2)},
      {"_operator.mod", I(7), I(-3), I(-2)},
      {"_operator.mod", I(-6), I(3), I(0)},
      {"_operator.mod", F(-7.5), I(2), F(0.5)},
      {"_operator.pow", I(3), I(4), I(81)},
      {"_operator.pow", I(2), I(-1), F(0.5)},
      {"_operator.pow", I(5), I(0), I(1)},
      {"_operator.lshift", I(3), I(4), I(48)},
      {"_operator.rshift", I(-5), I(1), I(-3)},
      {"_operator.eq", I(2), F(2), B(true)},
      {"_operator.lt", I(2), I(2), B(false)},
      {"_operator.le", I(2), I(2), B(true)},
      {"_operator.and_", B(true), B(false), B(false)},
      {"_operator.and_", I(6), I(3), I(2)},
      {"_operator.or_", B(true), I(2), I(3)},
      {"torch.sym_max", I(2), F(1), F(2)},
      {"torch.sym_min", I(2), I(1), I(1)},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Value got;
    assert_ok(CALL(cases[i].name, &got, cases[i].a, cases[i].b));
    if (got.kind != cases[i].want.kind || val_as_float(&got) != val_as_float(&cases[i].want)) {
      test_failed("%s of %g and %g gives %s %g, should be %s %g", cases[i].name, val_as_float(&cases[i].a),
                  val_as_float(&cases[i].b), val_kind_name(got.kind), val_as_float(&got),
                  val_kind_name(cases[i].want.kind), val_as_float(&cases[i].want));
    }
  }
}

static void of_one_number(void **state) {
  (void)state;
  const struct {
    const char *name;
    Value a, want;
  } cases[] = {
      {"_operator.neg", B(true), I(-1)}, {"_operator.not_", I(0), B(true)}, {"torch.sym_not", B(true), B(false)},
      {"torch.sym_int", F(-2.7), I(-2)}, {"torch.sym_float", I(3), F(3)},   {"math.trunc", F(-2.7), I(-2)},
      {"math.ceil", F(-2.7), I(-2)},     {"math.floor", F(-2.7), I(-3)},    {"math.ceil", I(4), I(4)},
      {"torch._sym_sqrt", I(9), F(3)},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    Value got;
    assert_ok(CALL(cases[i].name, &got, cases[i].a));
    assert_int_equal(got.kind, cases[i].want.kind);
    assert_true(val_as_float(&got) == val_as_float(&cases[i].want));
  }
}

static void what_has_no_answer_is_an_error(void **state) {
  (void)state;
  Value got;
  assert_error(CALL("_operator.floordiv", &got, I(1), I(0)), "division by zero");
  assert_error(CALL("_operator.mul", &got, I(INT64_MAX), I(2)), "64 bits");
  assert_error(CALL("math.floor", &got, F(1e300)), "64 bits");
}

static Tensor *numbers(Dtype d, int ndim, const int64_t *size, int64_t first) {
  Tensor *t = NULL;
  assert_ok(tensor_new(&scope, d, ndim, size, &t));
  for (int64_t i = 0; i < tensor_numel(t); i++) {
    Value v = val_int(first + i);
    val_store(&v, d, (char *)tensor_data(t) + (size_t)i * dtype_size(d));
  }
  return t;
}

static void errors_say_what_is_wrong(void **state) {
  (void)state;
  const int64_t size[2] = {3, 4}, two = 2, wrong[2] = {5, 5};
  Tensor *x = numbers(DT_F32, 2, size, 0), *index = numbers(DT_I64, 1, &two, 2);
  Value got;
  assert_error(CALL("aten.index_select.default", &got, val_tensor(x), I(0), val_tensor(index)),
               "index 3 is out of bounds for dimension 0 with size 3");
  assert_error(CALL("aten.embedding.default", &got, val_tensor(x), val_tensor(index)), "index 3 is out of bounds");
  assert_error(CALL("aten.view.default", &got, val_tensor(x), val_ints(wrong, 2)),
               "12 elements cannot have size [5,5]");
  assert_error(CALL("aten.select.int", &got, val_tensor(x), I(1), I(4)),
               "index 4 is out of range for dimension 1 with size 4");
  assert_error(CALL("aten.transpose.int", &got, val_tensor(x), I(0), I(2)), "dimension 2 is out of range");
  assert_error(CALL("aten.view.default", &got, I(3), val_ints(wrong, 2)), "must be a Tensor");
  assert_error(CALL("aten._assert_tensor_metadata.default", &got, val_tensor(x), val_ints(wrong, 2)),
               "should have size [5,5], it is f32[3,4]");
  assert_error(CALL("aten._assert_scalar.default", &got, B(false), val_str("u0 >= 0")),
               "assertion failed: u0 >= 0");
  assert_error(CALL("aten.sym_constrain_range_for_size.default", &got, I(-1)), "-1 is outside the range");
  assert_ok(CALL("aten._assert_scalar.default", &got, B(true), val_str("")));
}

static int setup(void **state) {
  (void)state;
  ctx_init(&ctx, 1);
  return 0;
}
static int teardown(void **state) {
  (void)state;
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(numbers_are_pythons),
      cmocka_unit_test(of_one_number),
      cmocka_unit_test(what_has_no_answer_is_an_error),
      cmocka_unit_test(errors_say_what_is_wrong),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
