/* attention_problem.h -- shared by the attention_*.c files, nobody else's. */
#ifndef TESS_KERNELS_ATTENTION_PROBLEM_H
#define TESS_KERNELS_ATTENTION_PROBLEM_H

#include "kernels/attention.h"
#include "kernels/gemm_problem.h"
#include "kernels/gemm_simd.h"

/* Sizes of a problem; heads per key head. */
typedef struct {
  int64_t batch, heads, groups, per_group, t, s, d, e;
} AttentionSize;

AttentionSize attention_size(const Attention *a);

/* One head of a (batch, heads, rows, columns) view. */
Matrix attention_head(View v, int64_t b, int64_t h);

/* Masks the scores of one query: s[n] for keys s0 .. s0+n; gives the largest.  room: n floats. */
float attention_mask_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, int64_t s0, int64_t n,
                         float *s, float *room);

/* How many of n keys from s0 on query i sees. */
static inline int64_t attention_visible(const Attention *a, int64_t i, int64_t s0, int64_t n) {
  return a->causal ? most(0, least(n, i + 1 - s0)) : n;
}

/* The random number that weight (b, h, i, 0) takes. */
static inline uint64_t attention_number(const Attention *a, int64_t b, int64_t h, int64_t i) {
  if (a->number[0]) return (uint64_t)(a->number[0][b] + a->number[1][h] + a->number[2][i]);
  return (uint64_t)(((b * a->q.size[1] + h) * a->q.size[2] + i) * a->k.size[2]);
}

/* Dropout of the weights of one query, for keys s0 .. s0+n.  room: n + 8 words. */
void attention_drop_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, int64_t s0, int64_t n,
                        float *s, float *room);

/* out[b, h, i, :] = o / sum (zeros for a query that saw nothing), and its logsumexp. */
void attention_store_row(const Kern *k, const Attention *a, int64_t b, int64_t h, int64_t i, float *o, float max,
                         float sum);

/* attention_thin.c: few queries per key head; k and v contiguous along their last dimension. */
bool attention_thin_fits(const Attention *a);
Status attention_thin(Kern *k, const Attention *a);

#endif
