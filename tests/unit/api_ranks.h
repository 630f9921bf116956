/* api_ranks.h -- tests through the public header on ranks: a rank's function checks and gives 1 where something is
 * wrong, which ends the run. */
#ifndef TESS_TESTS_API_RANKS_H
#define TESS_TESTS_API_RANKS_H

#include "tessera.h"
#include "unit.h"

/* In a rank's function, with `ctx`. */
#define CHECK(condition)                                                                   \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, tess_error_message(ctx)); \
      return 1;                                                                            \
    }                                                                                      \
  } while (0)

static inline void on_ranks(int n, TessRankFn *fn) {
  char error[1024];
  int code = tess_run_ranks(n, 1, fn, NULL, error, sizeof error);
  if (code) fprintf(stderr, "%s\n", error);
  assert_int_equal(code, 0);
}

#endif
