/* gemm.h -- matrix products, with what usually follows them.
 *
 *     c[m,n] = act(alpha * sum_k a[m,k] b[k,n] + beta * add[m,n]) + residual[m,n]
 *
 * c may have more dimensions in front: a batch of products, to which those of a and b are
 * broadcast.  Any strides, so that a transposed weight is a view; add and residual are
 * broadcast to c and may have fewer dimensions.  a and b have at least two.
 *
 * Dtypes: one for all operands, any compute dtype but bool; or i8 operands with an i32 c.
 * f16 and bf16 are multiplied and summed in f32 and rounded once.  Integers wrap.
 * act and residual are quick in f32, f16 and bf16.
 *
 * beta == 0: add is not read (nan in it does not count).  c does not overlap a, b or
 * residual; add may be c itself.
 */
#ifndef TESS_KERNELS_GEMM_H
#define TESS_KERNELS_GEMM_H

#include "kernels/kernel.h"

/* The functions are those of ATen's ops of these names; gelu is the one with erf. */
#define GEMM_ACTS(X)        \
  X(NONE, "none")           \
  X(RELU, "relu")           \
  X(GELU, "gelu")           \
  X(GELU_TANH, "gelu_tanh") \
  X(SILU, "silu")           \
  X(TANH, "tanh")           \
  X(SIGMOID, "sigmoid")
/* clang-format off */
typedef enum {
#define X(id, name) GEMM_ACT_##id,
  GEMM_ACTS(X)
#undef X
} GemmAct;
/* clang-format on */

/* What a call site keeps of a b that never changes (Call.fixed): a packed copy, which call sites
 * with the same b share.  It is freed before b is. */
typedef struct GemmPack GemmPack;
void gemm_pack_free(GemmPack *p); /* NULL is fine */

typedef struct {
  View a, b, c;
  const View *add, *residual; /* NULL: none */
  double alpha, beta;
  GemmAct act;
  GemmPack **pack; /* NULL: b may be another one in the next call.  Else *pack starts as NULL and
                    * is filled when a packed copy of b pays; the caller frees it. */
} Gemm;

Status gemm(Kern *k, const Gemm *g);

/* The specification: three loops, sums in f64 or int64.  Slow. */
Status gemm_naive(Kern *k, const Gemm *g);

/* Owned by Kern.  NULL is fine. */
void gemm_cache_free(struct GemmCache *c);

#endif
