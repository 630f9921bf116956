/* In-place ops: each has a functional form with the same arguments, and writing in
 * memory gives what the copy gives. */
#include "ops/op.h"
#include "unit.h"

static void functional_forms_exist(void **state) {
  (void)state;
  assert_ok(op_registry_status());
  int missing = 0;
  for (int i = 0; i < op_count(); i++) {
    const Op *op = op_at(i);
    if (!op->def->inplace) continue;
    const Op *functional = op_find(op->def->inplace);
    if (!functional) {
      print_error("%s: '%s' is not there\n", op->schema.name, op->def->inplace);
      missing++;
      continue;
    }
    for (int p = 0; p < functional->schema.nparams && p < op->schema.nparams; p++) {
      const Param *a = &op->schema.params[p], *b = &functional->schema.params[p];
      if (a->type != b->type || a->list != b->list)
        print_error("%s: '%s' has another argument '%s'\n", op->schema.name, op->def->inplace, a->name), missing++;
    }
  }
  assert_int_equal(missing, 0);
}

static Tensor *ramp(Scope *s, Dtype d, int64_t rows, int64_t columns) {
  Tensor *t;
  const int64_t size[2] = {rows, columns};
  assert_ok(tensor_new(s, d, 2, size, &t));
  for (int64_t i = 0; i < rows * columns; i++) {
    Value v = val_int(i);
    val_store(&v, d, (char *)tensor_data(t) + (size_t)i * dtype_size(d));
  }
  return t;
}

static Status run(Ctx *ctx, Scope *scope, Arena *arena, const char *name, const NamedValue *args, int n,
                  Tensor **out) {
  Call c = {.ctx = ctx, .op = op_find(name), .scope = scope, .arena = arena};
  Value bound[MAX_PARAMS];
  assert_non_null(c.op);
  TRY(op_bind(arena, c.op, args, n, bound));
  c.arg = bound;
  TRY(op_dispatch(&c));
  *out = out_tensor(&c, 0);
  return OK;
}

static float at(const Tensor *t, int64_t i, int64_t j) {
  return ((const float *)tensor_data(t))[i * t->stride[0] + j * t->stride[1]];
}

/* x.add_(x.t()): the operand lies in the memory that is written. */
static void an_operand_in_the_same_memory(void **state) {
  (void)state;
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  ctx_init(&ctx, 1);
  Tensor *x = ramp(&scope, DT_F32, 3, 3), *t = NULL, *y = NULL;
  assert_ok(run(&ctx, &scope, &arena, "aten.t.default", (const NamedValue[]){{NULL, val_tensor(x)}}, 1, &t));
  assert_ok(run(&ctx, &scope, &arena, "aten.add_.Tensor",
                (const NamedValue[]){{NULL, val_tensor(x)}, {NULL, val_tensor(t)}}, 2, &y));
  for (int64_t i = 0; i < 3; i++) {
    for (int64_t j = 0; j < 3; j++) assert_true(at(x, i, j) == (float)(4 * (i + j)));
  }
  assert_ptr_equal(y->storage, x->storage);
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

static void what_does_not_fit_is_refused(void **state) {
  (void)state;
  Ctx ctx;
  Scope scope = {0};
  Arena arena = {0};
  ctx_init(&ctx, 1);
  Tensor *ints = ramp(&scope, DT_I64, 2, 2), *row = ramp(&scope, DT_F32, 1, 2), *x = ramp(&scope, DT_F32, 2, 2),
         *wide = NULL, *y = NULL;
  const int64_t size[2] = {2, 2};
  assert_error(run(&ctx, &scope, &arena, "aten.add_.Tensor",
                   (const NamedValue[]){{NULL, val_tensor(ints)}, {NULL, val_tensor(x)}}, 2, &y),
               "does not fit");
  assert_error(run(&ctx, &scope, &arena, "aten.add_.Tensor",
                   (const NamedValue[]){{NULL, val_tensor(row)}, {NULL, val_tensor(x)}}, 2, &y),
               "does not fit");
  assert_ok(run(&ctx, &scope, &arena, "aten.expand.default",
                (const NamedValue[]){{NULL, val_tensor(row)}, {NULL, val_ints(size, 2)}}, 2, &wide));
  assert_error(run(&ctx, &scope, &arena, "aten.add_.Tensor",
                   (const NamedValue[]){{NULL, val_tensor(wide)}, {NULL, val_tensor(x)}}, 2, &y),
               "share memory");
  scope_clear(&scope);
  arena_free(&arena);
  ctx_free(&ctx);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(functional_forms_exist),
      cmocka_unit_test(an_operand_in_the_same_memory),
      cmocka_unit_test(what_does_not_fit_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
