/* comm_block.h -- a collective and the nodes that belong to it: its waits, and what merely
 * cuts or renames what was waited for.
 *
 *     all_reduce -> wait -> split -> reshape, reshape -> users
 *     all_reduce_coalesced -> wait, wait, wait -> users
 *
 * I1  Every result that is used at all is used by one wait and nothing else.  A collective
 *     that returns a list has at least two such results: one alone is no block, as in
 *     PyTorch, where it could not be told from a collective that nobody waits for.
 * I2  Followers are told by name, as in PyTorch: a node is one if it is called split...,
 *     reshape..., getitem..., detach... or alias...; nodes with several results have no name
 *     and go by their op.
 */
#ifndef TESS_PASSES_COMM_BLOCK_H
#define TESS_PASSES_COMM_BLOCK_H

#include "passes/order.h"

#define WAIT_TENSOR "_c10d_functional.wait_tensor.default"

typedef enum {
  COMM_BLOCK,
  COMM_UNUSED,  /* nobody uses it */
  COMM_NO_WAIT, /* something else than one wait uses a result */
} CommBlockKind;

typedef struct {
  int comm;  /* position */
  int first; /* in CommBlocks.nodes: waits in the order of the results, then followers, nearest first */
  int nnodes;
  int first_user; /* the first node outside that uses the block; the order's n: the outputs; -1: none */
} CommBlock;

typedef struct {
  CommBlock *block; /* in the order of the collectives */
  int n;
  int *nodes;
  int left_out; /* all-reduces that are no blocks */
} CommBlocks;

/* all_reduce or all_reduce_, of one tensor. */
bool comm_is_all_reduce(const Node *n);
/* Any collective that is started here and waited for elsewhere. */
bool comm_is_start(const Node *n);

/* The only wait of a collective with one result, -1 if it is no block. */
CommBlockKind comm_find_wait(const Order *o, int comm, int *wait);
/* The blocks of all all-reduces, of tensors and of lists. */
Status comm_blocks_find(Arena *arena, const Order *o, CommBlocks *out);

#endif
