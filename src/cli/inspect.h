/* inspect.h -- what `tessera inspect` finds out before it prints. */
#ifndef TESS_CLI_INSPECT_H
#define TESS_CLI_INSPECT_H

#include "base/textbuf.h"
#include "cli/cli.h"
#include "cli/modules.h"

typedef struct {
  const char *target;
  int count;
  bool known; /* tessera runs it */
} OpCount;

typedef struct {
  Arena arena;
  const char *path;
  const Exported *e;
  Module *root;
  OpCount *ops; /* most frequent first */
  int nops, nodes;
  int unknown; /* ops that tessera does not run */
  /* By kind of state. */
  int64_t parameters, buffers, constants; /* elements; tied ones once */
  /* What a call takes at the sizes `at` ("s0=2, s1=16"; "" if all are fixed). */
  bool has_cost;
  const char *no_cost; /* why not */
  const char *at;
  double flops;
  size_t slab_bytes; /* intermediate results */
  int64_t output_bytes;
  int instructions;
} Facts;

/* "f32[2,s0]", "int(s0)" */
void describe_val(TextBuf *b, const Val *v);
Status inspect_print_json(FILE *f, const Facts *facts);

#endif
