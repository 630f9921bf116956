/* Arenas: zeroed, aligned, separate, and honest about overflow. */
#include "base/arena_reuse.h"
#include "unit.h"

static void zeroed_and_aligned(void **state) {
  (void)state;
  Arena a = {0};
  unsigned char *before = NULL;
  for (size_t n = 0; n < 5000; n += 37) {
    unsigned char *p = arena_alloc(&a, n);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    assert_ptr_not_equal(p, before);
    for (size_t i = 0; i < n; i++) assert_int_equal(p[i], 0);
    memset(p, 0xff, n);
    before = p;
  }
  unsigned char *large = arena_alloc(&a, (size_t)8 << 20);
  assert_non_null(large);
  assert_int_equal(large[((size_t)8 << 20) - 1], 0);
  arena_free(&a);
  assert_null(a.block);
  assert_non_null(arena_alloc(&a, 1));
  arena_free(&a);
}

static void cleared(void **state) {
  (void)state;
  Arena a = {0};
  arena_clear(&a);
  assert_null(a.block);
  for (int round = 0; round < 3; round++) {
    const struct ArenaBlock *kept = a.block;
    unsigned char *first = arena_alloc(&a, 5000);
    for (size_t i = 0; i < 5000; i++) assert_int_equal(first[i], 0);
    memset(first, 0xff, 5000);
    if (kept) assert_ptr_equal(a.block, kept);
    else assert_non_null(arena_alloc(&a, 6000)); /* a second block: the larger stays */
    memset(arena_alloc(&a, 100), 0xff, 100);
    arena_clear(&a);
    assert_non_null(a.block);
    assert_int_equal(a.used, 0);
  }
  arena_free(&a);
}

static void overflow(void **state) {
  (void)state;
  Arena a = {0};
  assert_null(arena_alloc(&a, SIZE_MAX));
  assert_null(arena_alloc(&a, SIZE_MAX - 40));
  assert_null(arena_array(&a, SIZE_MAX / 4, 8));
  arena_free(&a);
}

static void strings(void **state) {
  (void)state;
  Arena a = {0};
  assert_string_equal(arena_strdup(&a, "abc"), "abc");
  assert_string_equal(arena_strndup(&a, "abcdef", 2), "ab");
  assert_string_equal(arena_printf(&a, "%d-%s", 4, "x"), "4-x");
  arena_free(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(zeroed_and_aligned), cmocka_unit_test(overflow),
                                     cmocka_unit_test(strings), cmocka_unit_test(cleared)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
