/* attention.h -- softmax(scale q k^T + mask) v without ever holding all the scores.
 *
 *     q (B, H, T, D)   k (B, G, S, D)   v (B, G, S, E)   out (B, H, T, E)
 *
 * G divides H: query heads h and key head h / (H / G) belong together.  Any strides: heads
 * that are columns of one projection are used where they are.  f32, f16, bf16 (sums in f32,
 * one rounding) or f64.
 *
 * mask is broadcast to (B, H, T, S): bool (false: not seen) or a float dtype (added to the
 * scores).  causal: query i sees keys 0 .. i.  A query that sees no key gives zeros.
 */
#ifndef TESS_KERNELS_ATTENTION_H
#define TESS_KERNELS_ATTENTION_H

#include "kernels/kernel.h"

typedef struct {
  View q, k, v, out;
  const View *mask;      /* NULL: none */
  const View *logsumexp; /* NULL, or out, (B, H, T), f32 (f64 for f64): log of the sum of exp(scores), 0 where no
                            key is seen */
  double scale;
  bool causal;
  /* Weights are zeroed with probability dropout, the others grow by 1 / (1 - dropout).  Weight
   * (b, h, i, j) is element ((b H + h) T + i) S + j of the stream that begins at block `offset`;
   * with numbers, element number[0][b] + number[1][h] + number[2][i] + j (parts of a larger problem). */
  double dropout;
  uint64_t seed, offset;
  const int64_t *number[3];
} Attention;

Status attention(Kern *k, const Attention *a);

/* The specification: one query at a time, in f64. */
Status attention_naive(Kern *k, const Attention *a);

/* Gradients of q, k and v for that of out; out, logsumexp and the random numbers of dropout are those of the
 * forward pass. */
typedef struct {
  Attention forward;
  View grad_out, grad_q, grad_k, grad_v;
} AttentionGrad;

Status attention_grad(Kern *k, const AttentionGrad *g);
Status attention_grad_naive(Kern *k, const AttentionGrad *g);

/* The gradient of a mask of floats, of four dimensions: those of size 1 were broadcast, and are summed over.  Of g
 * grad_q, grad_k and grad_v are not used. */
Status attention_grad_mask(Kern *k, const AttentionGrad *g, View grad_mask);
Status attention_grad_mask_naive(Kern *k, const AttentionGrad *g, View grad_mask);

#endif
