/* Tensors: views, bounds, and who keeps the bytes alive. */
#include "tensor/tensor.h"
#include "unit.h"

typedef struct {
  int ndim;
  int64_t size[5], stride[5];
  int to;
  int64_t want_size[5];
  bool possible;
  int64_t want[5];
} ViewCase;

/* What PyTorch says to empty_strided(size, stride).view(want_size).stride(). */
static const ViewCase view_cases[] = {
    {1, {6}, {1}, 2, {2, 3}, true, {3, 1}},
    {2, {2, 3}, {3, 1}, 1, {6}, true, {1}},
    {2, {2, 3}, {1, 2}, 1, {6}, false, {0}},
    {2, {2, 3}, {1, 2}, 3, {2, 3, 1}, true, {1, 2, 2}},
    {3, {2, 3, 4}, {12, 4, 1}, 2, {6, 4}, true, {4, 1}},
    {3, {2, 3, 4}, {12, 4, 1}, 2, {2, 12}, true, {12, 1}},
    {3, {2, 3, 4}, {4, 8, 1}, 2, {6, 4}, false, {0}},
    {3, {2, 3, 4}, {24, 8, 2}, 1, {24}, true, {2}},
    {3, {2, 3, 4}, {24, 8, 2}, 2, {4, 6}, true, {12, 2}},
    {1, {4}, {0}, 2, {2, 2}, true, {0, 0}},
    {1, {4}, {0}, 2, {4, 1}, true, {0, 0}},
    {2, {2, 3}, {0, 1}, 3, {2, 3, 1}, true, {0, 1, 1}},
    {2, {2, 3}, {0, 1}, 1, {6}, false, {0}},
    {2, {1, 4}, {7, 1}, 1, {4}, true, {1}},
    {2, {4, 1}, {1, 9}, 2, {2, 2}, true, {2, 1}},
    {0, {0}, {0}, 2, {1, 1}, true, {1, 1}},
    {0, {0}, {0}, 0, {0}, true, {0}},
    {1, {1}, {5}, 0, {0}, true, {0}},
    {2, {0, 3}, {3, 1}, 2, {3, 0}, true, {1, 1}},
    {2, {2, 0}, {1, 1}, 1, {0}, true, {1}},
    {3, {2, 1, 3}, {3, 100, 1}, 1, {6}, true, {1}},
    {2, {8, 2}, {2, 1}, 4, {2, 2, 2, 2}, true, {8, 4, 2, 1}},
    {2, {8, 2}, {4, 1}, 3, {2, 4, 2}, true, {16, 4, 1}},
    {2, {8, 2}, {4, 1}, 2, {4, 4}, false, {0}},
    {3, {2, 2, 2}, {8, 2, 1}, 2, {2, 4}, true, {8, 1}},
    {3, {2, 2, 2}, {8, 2, 1}, 2, {4, 2}, false, {0}},
    {2, {3, 4}, {4, 1}, 5, {1, 3, 1, 4, 1}, true, {12, 4, 4, 1, 1}},
    {1, {6}, {3}, 2, {3, 2}, true, {6, 3}},
};

static void views(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof view_cases / sizeof *view_cases; i++) {
    const ViewCase *c = &view_cases[i];
    Tensor t = {.dtype = DT_F32, .ndim = c->ndim};
    memcpy(t.size, c->size, sizeof c->size);
    memcpy(t.stride, c->stride, sizeof c->stride);
    int64_t got[MAX_DIMS];
    assert_int_equal(view_strides(&t, c->to, c->want_size, got), c->possible);
    for (int d = 0; c->possible && d < c->to; d++) assert_int_equal(got[d], c->want[d]);
  }
}

static Status check(Storage *s, int64_t size, int64_t stride, int64_t offset) {
  Tensor t = {.storage = s, .dtype = DT_F32, .ndim = 1, .size = {size}, .stride = {stride}, .offset = offset};
  return tensor_check_bounds(&t, "t");
}

static void bounds(void **state) {
  (void)state;
  Storage *s;
  assert_ok(storage_new(43, &s)); /* ten elements and a bit */
  assert_ok(check(s, 10, 1, 0));
  assert_ok(check(s, 4, 3, 0));
  assert_ok(check(s, 0, 1, 1000));
  assert_ok(check(s, 1, INT64_MAX, 9));
  assert_error(check(s, 11, 1, 0), "outside its storage of 10 elements");
  assert_error(check(s, 10, 1, 1), "outside");
  assert_error(check(s, 1, 1, -1), "outside");
  assert_error(check(s, -1, 1, 0), "outside");
  assert_error(check(s, 2, -1, 5), "outside");
  assert_error(check(s, 3, INT64_MAX, 0), "outside");
  assert_error(check(s, INT64_MAX, INT64_MAX, INT64_MAX), "outside");
  assert_error(check(s, 2, 1, INT64_MAX), "outside");
  storage_unref(s);
}

static void impossible_sizes(void **state) {
  (void)state;
  Scope scope = {0};
  Tensor *t;
  int64_t large = (int64_t)1 << 62;
  assert_error(tensor_meta(&scope, DT_F32, 2, (int64_t[]){large, 4}, &t), "impossible");
  assert_error(tensor_meta(&scope, DT_F32, 1, (int64_t[]){large}, &t), "impossible");
  assert_error(tensor_meta(&scope, DT_F32, 1, (int64_t[]){-1}, &t), "impossible");
  assert_error(tensor_meta(&scope, DT_F32, 3, (int64_t[]){large, large, 0}, &t), "impossible");
  assert_error(tensor_meta(&scope, DT_F32, MAX_DIMS + 1, (int64_t[MAX_DIMS + 1]){0}, &t), "dimensions");
  assert_error(tensor_meta(&scope, DT_U8, 1, (int64_t[]){large}, &t), "impossible"); /* in bytes of any dtype */
  assert_ok(tensor_meta(&scope, DT_U8, 1, (int64_t[]){(int64_t)1 << 58}, &t));
  assert_error(tensor_materialize(t), "cannot allocate");
  scope_clear(&scope);
}

static void lifetimes(void **state) {
  (void)state;
  Scope inner = {0}, outer = {0};
  Tensor *t, *kept, *many;
  assert_ok(tensor_new(&inner, DT_F32, 2, (int64_t[]){3, 4}, &t));
  ((float *)tensor_data(t))[11] = 5;
  assert_ok(tensor_as_strided(&outer, t, 1, (int64_t[]){3}, (int64_t[]){4}, 3, &kept));
  for (int i = 0; i < 100; i++) assert_ok(tensor_alias(&inner, t, &many));
  assert_int_equal(atomic_load(&t->storage->refs), 102);
  scope_clear(&inner);
  assert_int_equal(atomic_load(&kept->storage->refs), 1);
  assert_true(((float *)tensor_data(kept))[8] == 5);
  tensor_drop(kept);
  assert_null(tensor_data(kept));
  scope_clear(&outer);
}

static void questions(void **state) {
  (void)state;
  Tensor t = {.dtype = DT_BF16, .ndim = 2, .size = {2, 3}, .stride = {1, 2}};
  char buf[64];
  assert_string_equal(tensor_describe(&t, buf, sizeof buf), "bf16[2,3]");
  assert_string_equal(tensor_describe(&t, buf, 8), "bf16[2,");
  assert_false(tensor_is_contiguous(&t));
  assert_int_equal(tensor_extent(&t), 6);
  assert_false(tensor_overlaps_itself(&t));
  t.stride[0] = 0;
  assert_true(tensor_overlaps_itself(&t));
  t.stride[0] = 3, t.stride[1] = 1;
  assert_true(tensor_is_contiguous(&t));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(views), cmocka_unit_test(bounds),
                                     cmocka_unit_test(impossible_sizes), cmocka_unit_test(lifetimes),
                                     cmocka_unit_test(questions)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
