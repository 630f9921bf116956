/* schema.h -- ATen's schema text, parsed: names, kinds and defaults of arguments.
 *
 *     aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor
 */
#ifndef TESS_OPS_SCHEMA_H
#define TESS_OPS_SCHEMA_H

#include "ops/value.h"

typedef enum {
  TYPE_TENSOR,
  TYPE_INT, /* int and SymInt */
  TYPE_FLOAT,
  TYPE_BOOL,
  TYPE_SCALAR,
  TYPE_STR,
  TYPE_DTYPE,
  TYPE_LAYOUT,
  TYPE_MEMORY_FORMAT,
  TYPE_DEVICE,
  TYPE_GENERATOR,
  TYPE_GRAPH, /* sub-graph of a higher-order op */
  TYPE_ANY,   /* higher-order ops */
} TypeKind;

typedef struct {
  const char *name;
  TypeKind type;
  bool list;          /* T[] */
  int length;         /* int[2]: a single number stands for two; 0 = any */
  bool optional;      /* T? */
  bool item_optional; /* Tensor?[] */
  bool keyword;       /* after '*' */
  bool has_default;
  bool aliased; /* (a): the result may be a view of it */
  bool mutated; /* (a!) */
  Value value;  /* the default */
} Param;

typedef struct {
  const char *name; /* "aten.add.Tensor", as in .pt2 targets less "torch.ops." */
  int nparams;
  Param *params;
  int nreturns;
  Param *returns;
  bool returns_list; /* one Tensor[] */
  bool mutates;      /* some parameter is (a!) */
} Schema;

enum { MAX_PARAMS = 24 };

Status schema_parse(Arena *arena, const char *text, Schema *out);
int schema_find(const Schema *s, const char *param); /* -1 if there is none */

#endif
