/* op_args.h -- arguments for a call of any op, made from its schema.
 *
 * Everything about them is a choice: kinds, dtypes, sizes, layouts, numbers.  Choices are taken from bytes, and
 * where these run out from random numbers that they seed: the same bytes make the same call.
 *
 * Arguments are mostly right, so that calls get deep, and sometimes wrong in any way that the public API lets
 * through.  Tame ones are of the kinds that the schema names, small, and with elements and numbers of a benign
 * range; the call may still fail, because arguments do not fit each other. */
#ifndef TESS_TESTS_FUZZ_OP_ARGS_H
#define TESS_TESTS_FUZZ_OP_ARGS_H

#include "dist/dtensor.h"

typedef struct {
  const uint8_t *at;
  size_t left;
  uint64_t state;
} Choices;

/* One of 0 .. n - 1. */
int64_t below(Choices *c, int64_t n);
bool chance(Choices *c, int percent);

enum { STORY = 4096 };

typedef struct {
  Choices pick;
  Ctx *ctx;
  Scope *scope;
  Arena *arena;
  Mesh *mesh;       /* NULL: plain tensors */
  int64_t sizes[3]; /* what dimensions are made of: so that operands often fit each other */
  Dtype dtype;      /* of most tensors */
  int ndim;
  int64_t size[MAX_DIMS]; /* of the first tensor, and of most */
  Tensor *earlier;        /* an argument that may be given again */
  char *story;            /* STORY bytes: the call in words; NULL: another rank tells them */
  bool tame;              /* dtype is of all tensors but those of places and masks */
  double low, high;       /* tame: where elements and numbers lie */
} Made;

/* Goes on with the story. */
void tell(const Made *m, const char *text);

int64_t any_int(Made *m);
Value any_number(Made *m);
Dtype any_dtype(Made *m);

/* Sizes small enough that calls are quick; gives their number. */
int fresh_sizes(Made *m, int64_t *size);
/* Of this size and dtype, with any layout and elements, spread if there is a mesh. */
Status tensor_of(Made *m, Dtype d, int ndim, const int64_t *size, bool places, Tensor **out);
Status any_tensor(Made *m, const char *name, Tensor **out);
/* Makes it a DTensor, if there is a mesh. */
Status any_spread(Made *m, Tensor **t);

/* As the parameter's type has it; any_arg: or None, or as another type would have it. */
Status any_value(Made *m, const Param *p, Value *out);
Status any_arg(Made *m, const Param *p, Value *out);
/* By name; args has room for MAX_PARAMS. */
Status any_args(Made *m, const Op *op, NamedValue *args, int *n);

#endif
