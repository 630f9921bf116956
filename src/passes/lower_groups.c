/* lower_groups.c -- collectives of groups of fully sharded parameters become ops that PyTorch has.
 *
 *   before:  %f = tess.gather_group([%p0, %p1], ..)  (...)  %f' = wait_tensor(%f)
 *            %s0, %s1 = split(%f', ..)  %w0 = reshape(%s0, ..)  %w1 = reshape(%s1, ..)
 *   after:   %g0, %g1 = all_gather_into_tensor_coalesced([%p0, %p1], ..)  (...)
 *            %w0 = wait_tensor(%g0)  %w1 = wait_tensor(%g1)
 *
 * One collective of a list still, which starts and ends where the other did.  A list, because nothing is copied
 * then where shards are rows: what is gathered is the parameter, what is scattered the gradient, as they are.
 * Shards that are not equal are padded to the largest (lower_redistribute.c): with rows as torch.chunk makes them,
 * the parameter is a slice of what was gathered; along other dimensions parts are cut out and joined.
 *
 * The last pass of a rank's program: passes that move collectives know the groups, which are placed already, and
 * not these.  Sizes of parameters are numbers; others may be symbols.
 */
#include <string.h>

#include "passes/comm_block.h"
#include "passes/lower_torch.h"

static const char gather_group[] = "tess.gather_group.default", scatter_group[] = "tess.scatter_group.default";
enum { ARG_MESH = 1, ARG_MOVES, ARG_SHAPES, ARG_SIZE, ARG_WHY };

/* What the collective was and what became of it. */
typedef struct {
  Lower *l;
  Node *start, *wait, *split;
  int n;
  Move **move;
  Tensor **in, **got; /* what it takes, and gives */
  int64_t bytes;      /* of the whole tensors */
} GroupOf;

static Status next_of(Node *n, const char *target, Node **out) {
  for (Node *user = n->next; user; user = user->next) {
    if (!node_is(user, target) || user->args[0].kind != ARG_VAL || user->args[0].val != n->outs[0]) continue;
    *out = user;
    return OK;
  }
  return fail(ERR_FAIL, "%s: no %s of its result follows", n->target, target);
}

/* Lengths of the split and shapes of the node tell the same of each tensor. */
static Status read_group(GroupOf *g) {
  const Node *n = g->start;
  const Arg *shapes = &n->args[ARG_SHAPES];
  const char *text = n->args[ARG_MOVES].str;
  Arena *arena = g->l->call.arena;
  bool gathers = node_is(n, gather_group);
  g->n = n->args[0].n;
  TRY_NEW(g->move, arena_new_n(arena, Move *, g->n + 1));
  TRY_NEW(g->in, arena_new_n(arena, Tensor *, g->n + 1));
  if (g->split->nouts != g->n) return fail(ERR_FAIL, "%s: its split has other parts than the group", n->target);
  for (int k = 0, at = 0; k < g->n; k++) {
    MoveText what = {.gathers = gathers};
    int naxes;
    int64_t numel = 1;
    what.ndim = at < shapes->n ? (int)shapes->list[at++].i : -1;
    if (what.ndim < 0 || what.ndim > MAX_DIMS || at + what.ndim > shapes->n)
      return fail(ERR_FAIL, "%s: the shapes do not fit the tensors", n->target);
    for (int d = 0; d < what.ndim; d++) numel *= what.shape[d] = shapes->list[at++].i;
    TRY(placements_parse_move(&text, what.ndim, what.from, what.to, &naxes));
    TRY(lower_val(g->l, n->args[0].list[k].val, &g->in[k]));
    TRY(move_new(g->l, n->args[ARG_MESH].str, &what, g->in[k], &g->move[k]));
    g->bytes += numel * (int64_t)dtype_size(g->in[k]->dtype);
  }
  return OK;
}

static Status start_group(GroupOf *g) {
  const Call *c = &g->l->call;
  int members, n;
  unsigned axes;
  bool gathers = node_is(g->start, gather_group);
  const char *group = move_group(g->move[0], &members, &axes);
  for (int k = 0; k < g->n; k++) TRY(move_pack(g->move[k], &g->in[k]));
  TRY(lower_log(g->l, gathers ? STEP_ALL_GATHER : STEP_REDUCE_SCATTER, axes, g->bytes,
                g->start->args[ARG_WHY].str));
  if (gathers)
    return OP_LIST(c, "_c10d_functional.all_gather_into_tensor_coalesced.default", &g->got, &n,
                   val_tensors(g->in, g->n), val_int(members), val_str(group));
  return OP_LIST(c, "_c10d_functional.reduce_scatter_tensor_coalesced.default", &g->got, &n,
                 val_tensors(g->in, g->n), val_str("sum"), val_int(members), val_str(group));
}

/* Whoever reads the view of part k, a reshape, reads the tensor. */
static void replace_views(const GroupOf *g, int k, Val *tensor) {
  for (Node *n = g->split->next, *next; n; n = next) {
    next = n->next;
    if (!node_is(n, "aten.reshape.default") || n->args[0].kind != ARG_VAL || n->args[0].val != g->split->outs[k])
      continue;
    bool same = n->outs[0]->ndim == tensor->ndim;
    for (int d = 0; same && d < tensor->ndim; d++) same = n->outs[0]->size[d] == tensor->size[d];
    if (!same) continue;
    const char *name = n->outs[0]->name;
    n->outs[0]->name = tensor->name;
    tensor->name = name;
    n->outs[0]->forward = tensor;
    node_remove(n);
    return;
  }
}

static Status end_group(GroupOf *g) {
  const Call *c = &g->l->call;
  for (int k = 0; k < g->n; k++) TRY(OP(c, WAIT_TENSOR, &g->got[k], val_tensor(g->got[k])));
  for (int k = 0; k < g->n; k++) {
    Tensor *t, *flat;
    Val *tensor, *part;
    TRY(move_unpack(g->move[k], g->got[k], &t));
    TRY(builder_val(&g->l->builder, t, &tensor));
    replace_views(g, k, tensor);
    int64_t numel = tensor_numel(t);
    TRY(OP(c, "aten.reshape.default", &flat, val_tensor(t), val_ints(&numel, 1))); /* for other readers, if any */
    TRY(builder_val(&g->l->builder, flat, &part));
    g->split->outs[k]->forward = part;
  }
  return OK;
}

static Status lower_group(Lower *l, Node *n) {
  GroupOf g = {.l = l, .start = n};
  if (!node_is(n, gather_group) && !node_is(n, scatter_group)) return OK;
  TRY(next_of(n, WAIT_TENSOR, &g.wait));
  TRY(next_of(g.wait, "aten.split.sizes", &g.split));
  l->builder.before = n;
  l->builder.origin = n;
  TRY(read_group(&g));
  TRY(start_group(&g));
  l->builder.before = g.split;
  TRY(end_group(&g));
  node_remove(g.split);
  node_remove(g.wait);
  node_remove(n);
  return OK;
}

Status pass_lower_groups(Exported *e, const PassArgs *args) { return lower_program(e, args, lower_group); }
