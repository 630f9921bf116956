/* common_ranks.h -- rows of fsdp_common.jsonl that need modules and ranks; see common.c. */
#ifndef TESS_TESTS_FSDP_COMMON_RANKS_H
#define TESS_TESTS_FSDP_COMMON_RANKS_H

#include "base/json.h"
#include "dist/flat_group.h"

typedef struct {
  char text[512]; /* the first thing that is wrong; "": nothing */
} Trouble;

void common_wrong(Trouble *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
int common_ints(yyjson_val *list, int *out, int cap);

/* One parameter of values 1, 2, 3 ... on a mesh, maybe sharded by tensor parallelism already. */
void common_param(yyjson_val *row, Trouble *t);
/* A tree of modules, some of which are sharded before the root: who owns what. */
void common_modules(yyjson_val *row, Trouble *t);

#endif
