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

typedef struct {
  const Order *o;
  const CommBlocks *all;
  int *block_of;       /* by position: 1 + the block that it moves with; -1: several */
  int *waiting, *next; /* by position, + 1: who of the block waits for it; the next of those */
  int *stack;
  bool sort; /* something may stand before what it uses */
} Schedule;

/* The last node of its own block that `at` uses, -1.  What it uses of others must stand before
 * the block's new place. */
static int inner_need(Schedule *s, const CommBlock *b, int at, int self) {
  const Order *o = s->o;
  int last = -1;
  for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
    int from = o->producer[o->arg[i]];
    if (from < 0) continue;
    if (s->block_of[from] == self) last = from;
    else s->sort |= s->block_of[from] != 0 || from >= b->first_user;
  }
  return last;
}

/* The first user may be of the block itself: a follower that comes before somebody else.  Nodes
 * end up in reverse around it, as PyTorch has them, and are sorted. */
static void move_around(Schedule *s, const CommBlock *b) {
  Node *before = s->o->node[b->first_user];
  for (int i = 0; i < b->nnodes; i++) {
    Node *n = s->o->node[s->all->nodes[b->first + i]];
    node_move_before(n, before);
    before = n;
  }
  s->sort = true;
}

/* The block in reverse before its first user, but a node that uses another of the block right
 * behind that one.  With at most one need in the block per node this is what sorting would give. */
static void move_block(Schedule *s, const CommBlock *b, int self) {
  const Order *o = s->o;
  const int *nodes = s->all->nodes + b->first;
  Node *before = b->first_user < o->n ? o->node[b->first_user] : NULL;
  int top = 0;
  for (int i = b->nnodes - 1; i >= 0; i--) s->waiting[nodes[i]] = s->next[nodes[i]] = 0;
  for (int i = 0; i < b->nnodes; i++) { /* pushed to the front: the list ends up in reverse */
    int at = nodes[i], need = inner_need(s, b, at, self);
    int *list = need < 0 ? &top : &s->waiting[need];
    s->next[at] = *list;
    *list = at + 1;
  }
  int height = 0;
  for (int at = top; at || height;) {
    if (!at) {
      at = s->stack[--height];
      continue;
    }
    Node *n = o->node[at - 1];
    node_move_before(n, before);
    s->stack[height++] = s->next[at - 1];
    at = s->waiting[at - 1];
  }
}

static Status prepare(Arena *arena, Schedule *s) {
  int n = s->o->n + 1;
  TRY_NEW(s->block_of, arena_new_n(arena, int, n));
  TRY_NEW(s->waiting, arena_new_n(arena, int, n));
  TRY_NEW(s->next, arena_new_n(arena, int, n));
  TRY_NEW(s->stack, arena_new_n(arena, int, n));
  for (int k = 0; k < s->all->n; k++) {
    const CommBlock *b = &s->all->block[k];
    for (int i = 0; b->first_user >= 0 && i < b->nnodes; i++) {
      int *of = &s->block_of[s->all->nodes[b->first + i]];
      s->sort |= *of != 0;
      *of = *of ? -1 : k + 1;
    }
  }
  s->sort |= !order_is_free(s->o);
  return OK;
}

static void tell(const PassArgs *args, const CommBlocks *blocks, int moved, int unused) {
  if (!args->stats) return;
  if (!blocks->n && !blocks->left_out) {
    text_puts(args->stats, "schedule_comm_wait: no all-reduce in the program: nothing to schedule\n");
    return;
  }
  int count = blocks->n + blocks->left_out;
  text_printf(args->stats, "schedule_comm_wait: %d all-reduce%s, the waits of %d moved later\n", count,
              count == 1 ? "" : "s", moved);
  if (unused) text_printf(args->stats, "  %d left alone: nobody uses what was reduced\n", unused);
  if (blocks->left_out)
    text_printf(args->stats, "  %d left alone: some result is not used by one wait alone\n", blocks->left_out);
}

static Status schedule(Arena *arena, Exported *e, const PassArgs *args) {
  Order o;
  CommBlocks blocks;
  Schedule s = {.o = &o, .all = &blocks};
  int moved = 0, unused = 0;
  TRY(order_new(arena, e->graph, &o));
  TRY(comm_blocks_find(arena, &o, &blocks));
  if (blocks.n) TRY(prepare(arena, &s));
  for (int i = 0; i < blocks.n; i++) {
    if (blocks.block[i].first_user < 0) {
      unused++;
      continue;
    }
    moved += !is_in_place(&blocks, &blocks.block[i]);
    if (s.block_of[blocks.block[i].first_user] == i + 1) move_around(&s, &blocks.block[i]);
    else move_block(&s, &blocks.block[i], i + 1);
  }
  if (s.sort) TRY(order_sort(arena, &o, &(OrderChange){0}));
  tell(args, &blocks, moved, unused);
  return OK;
}

Status pass_schedule_comm_wait(Exported *e, const PassArgs *args) {
  Arena arena = {0};
  Status s = schedule(&arena, e, args);
  arena_free(&arena);
  return s;
}
