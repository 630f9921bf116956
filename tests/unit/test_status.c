/* Errors: codes, notes, and the path through TRY. */
#include "unit.h"

static Status deep(int n) {
  if (n == 0) return fail(ERR_FILE, "byte %d is wrong", 7);
  TRY(deep(n - 1));
  return OK;
}

static Status needs_memory(void *p) {
  void *q;
  TRY_NEW(q, p);
  (void)q;
  return OK;
}

static void codes_and_notes(void **state) {
  (void)state;
  Status s = deep(3);
  assert_int_equal(status_code(s), ERR_FILE);
  assert_string_equal(status_message(s), "byte 7 is wrong");
  s = status_at(s, "file '%s'", "x");
  s = status_hint(s, "try another");
  assert_string_equal(status_message(s), "byte 7 is wrong\n  at   file 'x'\n  hint try another");
  status_free(s);
}

static void ok_stays_ok(void **state) {
  (void)state;
  assert_null(status_at(OK, "here"));
  assert_null(status_hint(OK, "this"));
  status_free(OK);
}

static void out_of_memory(void **state) {
  (void)state;
  Status s = status_at(needs_memory(NULL), "note");
  assert_ptr_equal(s, fail_oom());
  assert_string_equal(status_message(s), "out of memory");
  assert_int_equal(status_code(s), ERR_FAIL);
  status_free(s);
  assert_null(needs_memory(&s));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(codes_and_notes), cmocka_unit_test(ok_stays_ok),
                                     cmocka_unit_test(out_of_memory)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
