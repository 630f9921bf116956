/* lower_torch.h -- what the files of the pass lower_torch share; not for others.
 *
 *   lower_torch.c            the pass: which op becomes what
 *   lower_redistribute.c     tess.redistribute: collectives, and what is cut and joined
 *                            around them
 *   lower_parts.c            shards of random tensors, sums of batch norms
 */
#ifndef TESS_PASSES_LOWER_TORCH_H
#define TESS_PASSES_LOWER_TORCH_H

#include "dist/mesh.h"
#include "graph/builder.h"

typedef struct {
  GraphBuilder builder; /* records before the node that is being replaced */
  Exported *e;
  Call call;  /* for OP(): context, scope, arena */
  Dist *dist; /* plans only */
  int rank;
} Lower;

/* A tensor argument of the node, without data; NULL if it is none. */
Status lower_tensor(Lower *l, const Node *n, int i, Tensor **out);

Status lower_redistribute(Lower *l, const Node *n, Tensor **out);

/* lower_attention.c: as `rows` of lower_torch.c has them. */
bool attention_is_foreign(const Node *n);
Status lower_attention(Lower *l, const Node *n, Tensor **out);
Status lower_attention_backward(Lower *l, const Node *n, Tensor **out);
Status lower_mask_backward(Lower *l, const Node *n, Tensor **out);
Status lower_attention_dropout(Lower *l, const Node *n, Tensor **out);
Status lower_attention_dropout_backward(Lower *l, const Node *n, Tensor **out);

/* lower_parts.c: a random op that makes a shard (Node.shard). */
Status lower_numbered(Lower *l, const Node *n, Tensor **out);
/* This shard of a mask that is true with probability 1 - p. */
Status lower_drawn_mask(Lower *l, const struct ShardOf *of, Tensor *like, double p, Tensor **out);
Status lower_channel_moments(Lower *l, const Node *n, Tensor **out);
Status lower_channel_gradient_sums(Lower *l, const Node *n, Tensor **out);

/* lower_optim.c: the same. */
Status lower_adam_step(Lower *l, const Node *n, Tensor **out);
Status lower_sgd_step(Lower *l, const Node *n, Tensor **out);
Status lower_adagrad_step(Lower *l, const Node *n, Tensor **out);

#endif
