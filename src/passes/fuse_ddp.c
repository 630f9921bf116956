/* fuse_ddp.c -- see fuse_ddp.h. */
#include "passes/fuse_ddp.h"

#include <stdlib.h>
#include <string.h>

#include "passes/bucket_size.h"

/* ---- adding nodes -------------------------------------------------------------------------------- */

Status fuse_add(Fuse *f, Node *before, const char *target, const Arg *args, int nargs, const Node *like,
                Node **out) {
  TRY(graph_emit_like(f->graph, before, like, target, args, nargs, out));
  (*out)->mark = f->order->n + f->nnew++;
  f->takes_start[f->nnew] = f->ntakes;
  return OK;
}

void fuse_takes(Fuse *f, const Reduction *r) {
  f->takes[f->ntakes++] = r->div;
  f->takes_start[f->nnew] = f->ntakes;
}

Status fuse_length(Fuse *f, int64_t length, const Sym **out) {
  TRY_NEW(*out, sym_int(f->graph->syms, length));
  return OK;
}

/* ---- users that come too early --------------------------------------------------------------------- */

/* The users of a bucket's old waits, and their users, may stand before the new one.  They move
 * behind it, in their order.  (What stands there for other reasons, like a read of a buffer that
 * one of them writes to, is order_sort()'s.) */
typedef struct {
  const Order *o;
  int *found; /* positions */
  int count;
  int *seen;    /* by position: bucket + 1 */
  int farthest; /* largest position that was ever moved */
  bool moved;
} Early;

static void look_at_users(Early *e, int value, int stamp, int limit) {
  for (int i = e->o->use_start[value]; i < e->o->use_start[value + 1]; i++) {
    int at = e->o->use[i];
    if (at >= limit || at == e->o->n) return; /* users ascend */
    if (e->seen[at] == stamp) continue;
    e->seen[at] = stamp;
    e->found[e->count++] = at;
  }
}

static int compare_ints(const void *a, const void *b) {
  int x = *(const int *)a, y = *(const int *)b;
  return (x > y) - (x < y);
}

static void move_behind(Node *n, Node *after) {
  if (after->next != n) node_move_before(n, after->next);
}

/* Nodes before the wait of the bucket's last reduction count as early; so does what earlier
 * buckets brought before it. */
static void move_early_users(Early *e, const Buckets *all, int index, Node *last) {
  const Bucket *b = &all->bucket[index];
  int limit = all->reduction[b->last].wait;
  if (e->farthest > limit) limit = e->farthest;
  e->count = 0;
  for (int i = b->first; i >= 0; i = all->reduction[i].next) {
    look_at_users(e, e->o->out[e->o->out_start[all->reduction[i].wait]], index + 1, limit);
  }
  for (int i = 0; i < e->count; i++) {
    int at = e->found[i];
    for (int k = e->o->out_start[at]; k < e->o->out_start[at + 1]; k++)
      look_at_users(e, e->o->out[k], index + 1, limit);
  }
  e->moved |= e->count > 0;
  qsort(e->found, (size_t)e->count, sizeof *e->found, compare_ints);
  for (int i = 0; i < e->count; i++) {
    move_behind(e->o->node[e->found[i]], last);
    last = e->o->node[e->found[i]];
    if (e->found[i] > e->farthest) e->farthest = e->found[i];
  }
}

/* ---- a bucket ---------------------------------------------------------------------------------------- */

static Status fuse_bucket(Fuse *f, Early *early, int index, FuseFn *build) {
  const Buckets *all = f->all;
  const Bucket *b = &all->bucket[index];
  int last_div = -1;
  Fused fused;
  for (int i = b->first; i >= 0; i = all->reduction[i].next) {
    if (all->reduction[i].div > last_div) last_div = all->reduction[i].div;
  }
  TRY_NEW(fused.results, arena_new_n(f->arena, Val *, b->count));
  TRY(build(f, b, f->order->node[last_div], &fused));
  move_early_users(early, all, index, fused.last);
  int k = 0;
  for (int i = b->first; i >= 0; i = all->reduction[i].next) {
    const Reduction *r = &all->reduction[i];
    Node *wait = f->order->node[r->wait], *comm = f->order->node[r->comm];
    wait->outs[0]->forward = fused.results[k++];
    f->reduced[i] = fused.reduced->mark;
    f->gone[r->comm] = f->gone[r->wait] = true;
    node_remove(wait);
    node_remove(comm);
  }
  return OK;
}

/* ---- what nobody uses any more ------------------------------------------------------------------------ */

/* Users of the old waits take the new results. */
static void forward_users(Fuse *f) {
  const Order *o = f->order;
  bool outputs = false;
  for (int i = 0; i < f->all->n; i++) {
    const Val *reduced = o->node[f->all->reduction[i].wait]->outs[0];
    for (int k = 0; k < order_nusers(o, reduced); k++) {
      int user = order_user(o, reduced, k);
      if (user < o->n && reduced->forward) node_forward(o->node[user]);
      outputs |= user == o->n;
    }
  }
  for (int i = 0; outputs && i < f->graph->noutputs; i++) arg_forward(&f->graph->outputs[i]);
}

static bool must_stay(const Node *n) {
  if (!n->op) return n->nouts == 0;
  return (n->op->def->flags & (OP_EFFECT | OP_RANDOM)) || n->op->schema.mutates;
}

/* Of the nodes that were there: positions descend, so users go before what they use.  uses[id]
 * starts as the old count of users, less the collectives that are gone, plus what buckets use. */
static Status remove_dead(Fuse *f) {
  const Order *o = f->order;
  int *uses, *last; /* last, by id: the latest dead user, + 1: a value counts once per user */
  TRY_NEW(uses, arena_new_n(f->arena, int, f->old_vals + 1));
  TRY_NEW(last, arena_new_n(f->arena, int, f->old_vals + 1));
  for (int id = 0; id < f->old_vals; id++) uses[id] = o->use_start[id + 1] - o->use_start[id];
  for (int i = 0; i < f->all->n; i++) {
    const Reduction *r = &f->all->reduction[i];
    if (f->reduced[i] < 0) continue;
    uses[o->node[r->div]->outs[0]->id]--;
    uses[r->grad->id]++;
    if (r->divisor.kind == ARG_VAL) uses[r->divisor.val->id]++;
  }
  for (int at = o->n - 1; at >= 0; at--) {
    bool used = f->gone[at];
    for (int i = o->out_start[at]; i < o->out_start[at + 1] && !used; i++) used = uses[o->out[i]] > 0;
    if (used || must_stay(o->node[at])) continue;
    for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
      if (last[o->arg[i]] != at + 1) uses[o->arg[i]]--;
      last[o->arg[i]] = at + 1;
    }
    node_remove(o->node[at]);
  }
  return OK;
}

/* ---- the pass ------------------------------------------------------------------------------------------- */

/* What had to stay behind a division, collective or wait stays behind what stands for it.  A
 * quotient can be reduced several times, in several buckets. */
static Status sort(Fuse *f) {
  const Buckets *all = f->all;
  OrderChange c = {.nnew = f->nnew, .takes_start = f->takes_start, .takes = f->takes};
  TRY_NEW(c.instead_start, arena_new_n(f->arena, int, f->order->n + 2));
  TRY_NEW(c.instead, arena_new_n(f->arena, int, 3 * all->n + 1));
  for (int pass = 0; pass < 2; pass++) { /* count, then fill from behind */
    for (int i = 0; i < all->n; i++) {
      const Reduction *r = &all->reduction[i];
      const int parts[] = {r->div, r->comm, r->wait};
      for (int k = 0; k < 3 && f->reduced[i] >= 0; k++) {
        if (pass) c.instead[--c.instead_start[parts[k]]] = f->reduced[i];
        else c.instead_start[parts[k]]++;
      }
    }
    for (int at = 0, sum = 0; !pass && at <= f->order->n; at++) c.instead_start[at] = sum += c.instead_start[at];
  }
  return order_sort(f->arena, f->order, &c);
}

static Status fuse_all(Fuse *f, FuseFn *build) {
  const Buckets *all = f->all;
  int n = f->order->n, room = 2 * all->n + 5 * all->nbuckets, fused = 0;
  Early early = {.o = f->order};
  TRY_NEW(f->reduced, arena_new_n(f->arena, int, all->n + 1));
  TRY_NEW(f->gone, arena_new_n(f->arena, bool, n + 1));
  f->old_vals = f->graph->nvals;
  TRY_NEW(f->takes_start, arena_new_n(f->arena, int, room + 1));
  TRY_NEW(f->takes, arena_new_n(f->arena, int, all->n + 1));
  TRY_NEW(early.found, arena_new_n(f->arena, int, n + 1));
  TRY_NEW(early.seen, arena_new_n(f->arena, int, n + 1));
  for (int i = 0; i < all->n; i++) f->reduced[i] = -1;
  for (int i = 0; i < all->nbuckets; i++) {
    if (all->bucket[i].count < 2) continue;
    TRY(fuse_bucket(f, &early, i, build));
    fused++;
  }
  if (!fused) return OK;
  forward_users(f);
  TRY(remove_dead(f));
  if (order_is_free(f->order) && !early.moved) return OK; /* buckets stand behind all they use */
  return sort(f);
}

Status fuse_ddp(Exported *e, const PassArgs *args, const char *pass, bool by_list, FuseFn *build) {
  Arena arena = {0};
  Order order;
  Buckets all;
  BucketRules rules = {.bucket_bytes = pass_auto(args, "bucket_size_mb") * (1 << 20),
                       .first_bytes = pass_number(args, "first_bucket_mb") * (1 << 20),
                       .undivided = pass_flag(args, "undivided"),
                       .by_list = by_list};
  Status s = OK;
  TRY_GOTO(done, order_new(&arena, e->graph, &order));
  const BucketMachine machine = bucket_machine(args);
  if (rules.bucket_bytes < 0) TRY_GOTO(done, bucket_size_choose(&arena, &order, &machine, &rules));
  TRY_GOTO(done, ddp_buckets_find(&arena, &order, &rules, &all));
  Fuse f = {.arena = &arena, .graph = e->graph, .order = &order, .all = &all};
  TRY_GOTO(done, fuse_all(&f, build));
  if (args->stats) ddp_buckets_tell(args->stats, pass, &order, &all);
done:
  arena_free(&arena);
  return s;
}
