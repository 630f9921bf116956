/* product.h -- ops that are one matrix product, described by where their arguments are.
 *
 *     act(alpha * left right + beta * add) + residual
 *
 * left (..., m, k), right (..., k, n), or a weight (n, k) if transposed.  One-dimensional
 * operands are a row on the left, a column on the right, and that dimension is not in the
 * result.  Shared by the families matmul and fused.
 */
#ifndef TESS_OPS_ATEN_PRODUCT_H
#define TESS_OPS_ATEN_PRODUCT_H

#include "kernels/gemm.h"
#include "ops/rule.h"

enum { NO_ARG = -1 };

typedef struct {
  int left, right;           /* positions of arguments */
  int add, beta, alpha;      /* NO_ARG: none, 1, 1 */
  int left_rank, right_rank; /* dimensions they must have; 0: any, batches are broadcast */
  bool transposed;
  int residual; /* NO_ARG: none */
  Dtype out;    /* DT_NONE: that of left */
} Product;

Status product_infer(Call *c, const Product *p);
Status product_run(Call *c, const Product *p, GemmAct act);
double product_flops(const Call *c, const Product *p);

/* How it shards: every dimension of the result; the summed one leaves a partial sum,
 * and so do operands that are, one at a time.  What is added must then be partial too: R
 * becomes P on one rank only.  linear = false (an activation): nothing may be partial. */
Status product_place(Rules *r, const Product *p, bool linear);

/* The activation of a name; fails with the names there are. */
Status product_act(const Call *c, const char *name, GemmAct *out);

#endif
