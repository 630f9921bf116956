/* schedule_comm_wait.c -- moves what waits for an all-reduce to just before its first user.
 *
 *   before:  %r = all_reduce(%g)  %w = wait(%r)  %x = mm(..)  %y = add(%w, %x)
 *   after:   %r = all_reduce(%g)  %x = mm(..)  %w = wait(%r)  %y = add(%w, %x)
 *
 * Nodes that cut up or rename what was waited for (comm_block.h) move with the wait.  Blocks
 * with the same first user keep their order; within a block the last comes first where it can,
 * as PyTorch's pass and the sorting behind it have it.
 *
 * Linear.  Keeps: a legal order; blocks that nobody uses; an order of reads and writes (a
 * follower that would be carried past a write to what it reads keeps its place before it, and
 * whoever reads memory that is reduced in place stays behind the wait).
 */
#include "passes/comm_block.h"
#include "passes/pass.h"

/* Does the block stand right before its first user already? */
static bool is_in_place(const CommBlocks *all, const CommBlock *b) {
  int first = b->first_user, last = -1;
  for (int i = 0; i < b->nnodes; i++) {
    int at = all->nodes[b->first + i];
    if (at < first) first = at;
    if (at > last) last = at;
  }
  return last + 1 == b->first_user && last + 1 - first == b->nnodes;
}

/* Nodes end up in reverse; order_sort() puts right what stands before its arguments. */
static void move_block(const Order *o, const CommBlocks *all, const CommBlock *b) {
  Node *before = b->first_user < o->n ? o->node[b->first_user] : NULL;
  for (int i = 0; i < b->nnodes; i++) {
    Node *n = o->node[all->nodes[b->first + i]];
    node_move_before(n, before);
    before = n;
  }
}

static void tell(const PassArgs *args, const CommBlocks *blocks, int moved, int unused) {
  if (!args->stats) return;
  if (!blocks->n && !blocks->left_out) {
    text_puts(args->stats, "schedule_comm_wait: no all-reduce in the program: nothing to schedule\n");
    return;
  }
  text_printf(args->stats, "schedule_comm_wait: %d all-reduces, the waits of %d moved later\n", blocks->n + blocks->left_out, moved);
  if (unused) text_printf(args->stats, "  %d left alone: nobody uses what was reduced\n", unused);
  if (blocks->left_out) text_printf(args->stats, "  %d left alone: some result is not used by one wait alone\n", blocks->left_out);
}

static Status schedule(Arena *arena, Exported *e, const PassArgs *args) {
  Order o;
  CommBlocks blocks;
  int moved = 0, unused = 0;
  TRY(order_new(arena, e->graph, &o));
  TRY(comm_blocks_find(arena, &o, &blocks));
  for (int i = 0; i < blocks.n; i++) {
    if (blocks.block[i].first_user < 0) {
      unused++;
      continue;
    }
    moved += !is_in_place(&blocks, &blocks.block[i]);
    move_block(&o, &blocks, &blocks.block[i]);
  }
  if (blocks.n) TRY(order_sort(arena, &o, &(OrderChange){0}));
  tell(args, &blocks, moved, unused);
  return OK;
}

Status pass_schedule_comm_wait(Exported *e, const PassArgs *args) {
  Arena arena = {0};
  Status s = schedule(&arena, e, args);
  arena_free(&arena);
  return s;
}
