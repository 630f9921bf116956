/* golden_case.h -- one golden case of an op, read from JSON and .safetensors.
 *
 * The format is told in tests/golden/ops/README.md.  Every argument tensor gets memory
 * of its own, so cases may write to their arguments.
 */
#ifndef TESS_TESTS_GOLDEN_CASE_H
#define TESS_TESTS_GOLDEN_CASE_H

#include "base/json.h"
#include "ops/op.h"
#include "tensor/safetensors.h"

enum { GOLDEN_TENSORS = 64 };

typedef struct {
  const char *id, *op, *family;
  yyjson_val *json;
  const SafeTensors *data;
  Scope scope; /* of the arguments and of what they are compared with */
  Arena arena;
  NamedValue args[MAX_PARAMS];
  int nargs;
  /* All tensor arguments in reading order, and their storages as they were. */
  Tensor *tensor[GOLDEN_TENSORS];
  Storage *before[GOLDEN_TENSORS];
  int tensors;
} GoldenCase;

/* c is zeroed but for json, data and family. */
Status golden_case_read(GoldenCase *c);
void golden_case_free(GoldenCase *c);

/* {"t": ..., "size": ...} as a tensor with memory of its own; without "t" a meta tensor. */
Status golden_tensor(GoldenCase *c, yyjson_val *v, Tensor **out);

/* The argument of that name, positional or not; VAL_NONE if it was not given. */
Value golden_argument(const GoldenCase *c, const char *name);

#endif
