/* unit.h -- cmocka and what every unit test needs. */
#ifndef TESS_TESTS_UNIT_H
#define TESS_TESTS_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#undef fail /* ours makes an error */

#include "base/status.h"

#define test_failed(...) (print_error(__VA_ARGS__), print_error("\n"), _fail(__FILE__, __LINE__))

/* Fails the test with the message unless s is OK. */
static inline void assert_ok(Status s) {
  if (s) test_failed("%s", status_message(s));
}

/* s must be an error whose text contains `part`. */
static inline void assert_error(Status s, const char *part) {
  if (!s) test_failed("no error, expected '%s'", part);
  if (!strstr(status_message(s), part)) test_failed("error '%s' does not say '%s'", status_message(s), part);
  status_free(s);
}

/* A folder of this test alone; removed by remove_folder(). */
static inline char *make_folder(char *buf, size_t cap) {
  const char *tmp = getenv("TMPDIR");
  snprintf(buf, cap, "%s/tessera-test-XXXXXX", tmp ? tmp : "/tmp");
  assert_non_null(mkdtemp(buf));
  return buf;
}

static inline void remove_folder(const char *folder) {
  char command[1024];
  snprintf(command, sizeof command, "rm -rf '%s'", folder);
  assert_int_equal(system(command), 0);
}

#endif
