/* lower_torch.h -- what the files of the passes lower_torch and lower_groups share; not for others.
 *
 *   lower_torch.c            the pass: which op becomes what
 *   lower_redistribute.c     tess.redistribute: collectives, and what is cut and joined
 *                            around them
 *   lower_groups.c           the same of several tensors that one collective moves
 *   lower_parts.c            shards of random tensors, sums of batch norms
 */
#ifndef TESS_PASSES_LOWER_TORCH_H
#define TESS_PASSES_LOWER_TORCH_H

#include "dist/redistribute.h"
#include "graph/builder.h"
#include "passes/pass.h"

typedef struct {
  GraphBuilder builder; /* records before the node that is being replaced */
  Exported *e;
  Call call;  /* for OP(): context, scope, arena */
  Dist *dist; /* plans only */
  int rank;
} Lower;

/* Calls `each` for every node, which it may replace; option rank of the pass says whose program it is. */
Status lower_program(Exported *e, const PassArgs *args, Status (*each)(Lower *l, Node *n));

/* A value, or a tensor argument of the node, without data; NULL if it is none. */
Status lower_val(Lower *l, Val *v, Tensor **out);
Status lower_tensor(Lower *l, const Node *n, int i, Tensor **out);
/* Tells the open logs of the context's Dist. */
Status lower_log(const Lower *l, StepKind kind, unsigned axes, int64_t bytes, const char *why);

Status lower_redistribute(Lower *l, const Node *n, Tensor **out);

/* One of several tensors that all_gather_into_tensor_coalesced or reduce_scatter_tensor_coalesced moves over the
 * axes along which it becomes whole, or a shard. */
typedef struct {
  Placement from[MAX_AXES], to[MAX_AXES];
  int64_t shape[MAX_DIMS];
  int ndim;
  bool gathers;
} MoveText;
typedef struct Move Move; /* lives in the arena of l->call */
Status move_new(Lower *l, const char *mesh, const MoveText *what, Tensor *in, Move **out);
const char *move_group(const Move *v, int *members, unsigned *axes);
Status move_pack(const Move *v, Tensor **out);                /* what the collective takes */
Status move_unpack(const Move *v, Tensor *got, Tensor **out); /* the tensor, of what it gives */

/* lower_attention.c: as `rows` of lower_torch.c has them. */
bool attention_is_foreign(const Node *n);
Status lower_attention(Lower *l, const Node *n, Tensor **out);
Status lower_attention_backward(Lower *l, const Node *n, Tensor **out);
Status lower_mask_backward(Lower *l, const Node *n, Tensor **out);
Status lower_attention_dropout(Lower *l, const Node *n, Tensor **out);
Status lower_attention_dropout_backward(Lower *l, const Node *n, Tensor **out);

/* lower_tables.c: the same. */
Status lower_embedding(Lower *l, const Node *n, Tensor **out);
Status lower_gather(Lower *l, const Node *n, Tensor **out);
Status lower_bag(Lower *l, const Node *n, Tensor **out);
Status lower_embedding_backward(Lower *l, const Node *n, Tensor **out);
Status lower_bag_backward(Lower *l, const Node *n, Tensor **out);
Status lower_samples_backward(Lower *l, const Node *n, Tensor **out);

/* lower_norm.c: the same. */
bool norm_is_foreign(const Node *n);
Status lower_rms_norm_backward(Lower *l, const Node *n, Tensor **out);

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
