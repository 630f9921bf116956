/* reduce_op.c -- see reduce_op.h. */
#include "kernels/reduce_op.h"

#include <string.h>

static const char *const names[REDUCE_OP_COUNT] = {
#define X(id, name) [id] = name,
    REDUCE_OPS(X)
#undef X
};

static const struct {
  const char *name;
  ReduceOp op;
} synonyms[] = {
    {"prod", REDUCE_PRODUCT},
    {"mean", REDUCE_AVG},
};

const char *reduce_op_name(ReduceOp op) { return (unsigned)op < REDUCE_OP_COUNT ? names[op] : "no op"; }

int reduce_op_parse(const char *name, ReduceOp *out) {
  for (int i = 0; i < REDUCE_OP_COUNT; i++) {
    if (!strcmp(name, names[i])) return *out = (ReduceOp)i, 1;
  }
  for (size_t i = 0; i < sizeof synonyms / sizeof *synonyms; i++) {
    if (!strcmp(name, synonyms[i].name)) return *out = synonyms[i].op, 1;
  }
  return 0;
}
