/* op_cases.h -- the golden cases of ops as calls to start from: they get deep. */
#ifndef TESS_TESTS_FUZZ_OP_CASES_H
#define TESS_TESTS_FUZZ_OP_CASES_H

#include "golden_case.h"

typedef struct {
  yyjson_val *json;
  const SafeTensors *data;
} OpCase;

/* All of tests/golden/ops; read on the first call, which is not for several threads, and kept. */
int op_cases(const OpCase **out);

#endif
