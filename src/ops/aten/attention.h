/* attention.h -- what the ops of attention and their gradients share. */
#ifndef TESS_OPS_ATEN_ATTENTION_H
#define TESS_OPS_ATEN_ATTENTION_H

#include "kernels/attention.h"
#include "ops/rule.h"

/* The sizes of one call: any number of batch dimensions, the last of them counts heads. */
typedef struct {
  int nbatch;
  int64_t batch[MAX_DIMS]; /* of the result */
  int64_t t, s, d, e;
} AttnSizes;

/* A view of four dimensions: dimensions that it lacks or that are broadcast have stride 0.
 * keep: how many trailing dimensions are the tensor's own (heads of k and v stay as they are). */
typedef struct {
  int64_t size[4], stride[4];
  View v;
} AttnView;

/* The mask as four dimensions; sizes of 1 say what is broadcast.  outer: position in the batch dimensions before
 * the last two.  NULL for none. */
const View *attn_mask_view(const Tensor *t, const AttnSizes *z, const int64_t *outer, AttnView *f);
/* Does the mask in this argument broadcast to the scores? */
Status attn_check_mask(const Call *c, int arg, const AttnSizes *z);
/* The scale in this argument, or 1 / sqrt(d). */
double attn_scale(const Call *c, int arg, int64_t d);

/* The random numbers of dropout: weight [batch ..., i, j] takes the element of that number of
 * a tensor of all weights, row-major.  number[d][n] is what index n of dimension d (batch ...,
 * queries) adds; a rank that holds a shard of output 0 has global indices. */
Status attn_number_weights(const Call *c, const AttnSizes *z, Arena *arena, int64_t **number);

/* How dimension d of q is cut in a mask that broadcasts to the scores. */
Placement attn_place_mask(const Tensor *m, int d, int ndim, int64_t unit);
/* Batch and heads: the query is input q, key and value follow it, a mask is the last input. */
Status attn_place_heads(Rules *r, int q, bool mask);

#endif
