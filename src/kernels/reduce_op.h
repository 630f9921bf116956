/* reduce_op.h -- how values of several ranks become one: the words of collectives and of
 * Partial placements.
 */
#ifndef TESS_KERNELS_REDUCE_OP_H
#define TESS_KERNELS_REDUCE_OP_H

/*            enum      spelling */
#define REDUCE_OPS(X)          \
  X(REDUCE_SUM, "sum")         \
  X(REDUCE_AVG, "avg")         \
  X(REDUCE_MIN, "min")         \
  X(REDUCE_MAX, "max")         \
  X(REDUCE_PRODUCT, "product") \
  X(REDUCE_BAND, "band")       \
  X(REDUCE_BOR, "bor")         \
  X(REDUCE_BXOR, "bxor")

/* clang-format off */
typedef enum {
#define X(id, name) id,
  REDUCE_OPS(X)
#undef X
  REDUCE_OP_COUNT
} ReduceOp;
/* clang-format on */

const char *reduce_op_name(ReduceOp op);
/* The op of that spelling ("prod" and "mean" are understood too); false if there is none. */
int reduce_op_parse(const char *name, ReduceOp *out);

#endif
