/* overlap.c -- starts collectives as early, and waits for them as late, as data and memory allow.
 *
 *   before:  %x = mm(..)  %d = div(%g, 2)  %r = all_reduce(%d)  %w = wait(%r)  %y = mm(%x, ..)  %z = add(%w, %y)
 *   after:   %d = div(%g, 2)  %r = all_reduce(%d)  %x = mm(..)  %y = mm(%x, ..)  %w = wait(%r)  %z = add(%w, %y)
 *
 * One walk in the present order, with two kinds of exceptions:
 *   hurried  a collective, and what is computed for collectives alone (div, cat, views): as soon
 *            as its arguments are there;
 *   patient  a wait, and views of what was waited for: when somebody asks for it.
 * Of all kinds of collectives, not of all-reduces alone.
 *
 * A collective under way holds its arguments and results.  One that would exceed memory_mb is
 * not hurried; when its turn comes, the oldest ones are waited for first.
 *
 * in_order: collectives keep their mutual order, which the programs of several ranks must share.
 *
 * Linear.  Keeps: a legal order, the order of reads and writes included (order.h); the order of
 * everything else.
 */
#include <string.h>

#include "passes/comm_block.h"
#include "passes/pass.h"

typedef enum { IN_TURN, HURRIED, PATIENT } Haste;

typedef struct {
  Arena *arena;
  const Order *o;
  Haste *haste; /* all arrays by position */
  bool *done;
  int *missing;                     /* hurried: needs that are not done yet */
  int *next_start, *next_of, *next; /* hurried nodes that need this one */
  size_t *bytes;                    /* collectives: what it holds while it is under way */
  int *waits_left;                  /* collectives under way */
  int *start_of;                    /* waits: the collective; -1 */
  int *start_before;                /* in_order, collectives: the one before it; -1 */
  int *order;                       /* result */
  int ndone;
  int *ready, ready_head, ready_tail;      /* hurried nodes whose arguments are there */
  int *held, held_head, held_tail;         /* of these, collectives that memory held back */
  int *under_way, oldest, under_way_count; /* collectives in the order of their start */
  int *stack;
  size_t limit, present, most;
} Overlap;

/* ---- who hurries, who is patient --------------------------------------------------------------- */

static bool is_view(const Node *n) {
  return n->op && !n->op->schema.mutates && n->op->schema.nreturns > 0 && n->op->schema.returns[0].aliased &&
         n->args[0].kind == ARG_VAL;
}

/* Not worth a place of its own: moves or scales what a collective sends. */
static bool is_cheap(const Node *n) {
  if (!n->op || n->op->schema.mutates || (n->op->def->flags & (OP_EFFECT | OP_RANDOM))) return false;
  return is_view(n) || (n->op->def->flags & OP_POINTWISE) || node_is(n, "aten.cat.default") ||
         node_is(n, "aten.clone.default") || !strncmp(n->target, "aten._foreach_div.", 18) ||
         !strncmp(n->target, "aten._foreach_mul.", 18) || !strncmp(n->target, "aten._to_copy.", 14);
}

/* Where the collectives of groups start and end is a matter of memory: who has made them has decided it
 * (move_groups.h). */
static bool is_placed(const Node *n) {
  return node_is(n, "tess.gather_group.default") || node_is(n, "tess.scatter_group.default") ||
         node_is(n, "tess.gather_each.default");
}

static bool all_users_hurry(const Overlap *v, const Node *n) {
  int users = 0;
  for (int i = 0; i < n->nouts; i++) {
    for (int k = 0; k < order_nusers(v->o, n->outs[i]); k++, users++) {
      int at = order_user(v->o, n->outs[i], k);
      if (at == v->o->n || v->haste[at] != HURRIED) return false;
    }
  }
  return users > 0;
}

static void find_haste(Overlap *v) {
  const Order *o = v->o;
  for (int at = 0; at < o->n; at++) {
    const Node *n = o->node[at];
    const Node *from = n->nargs && n->args[0].kind == ARG_VAL ? n->args[0].val->node : NULL;
    bool waits = node_is(n, WAIT_TENSOR) && !(from && is_placed(from));
    if (waits || (is_view(n) && from && v->haste[from->mark] == PATIENT)) v->haste[at] = PATIENT;
  }
  for (int at = o->n - 1; at >= 0; at--) {
    const Node *n = o->node[at];
    if (v->haste[at] == PATIENT) continue;
    if (comm_is_start(n) || (is_cheap(n) && all_users_hurry(v, n))) v->haste[at] = HURRIED;
  }
}

/* ---- collectives ---------------------------------------------------------------------------------- */

static void add_bytes(void *ctx, Val **ref) {
  size_t *sum = ctx, numel = 1;
  const Val *v = *ref;
  if (v->type != TY_TENSOR || v->ndim < 0) return;
  for (int i = 0; i < v->ndim; i++) numel *= sym_is_int(v->size[i]) ? (size_t)v->size[i]->value : 0;
  *sum += numel * dtype_size(v->dtype);
}

static void find_collectives(Overlap *v) {
  const Order *o = v->o;
  for (int at = 0; at < o->n; at++) v->start_of[at] = -1;
  for (int e = 0; e < o->neffects; e++) {
    int at = o->effect[e];
    Node *n = o->node[at];
    if (!comm_is_start(n)) continue;
    for (int i = 0; i < n->nouts; i++) {
      for (int k = 0; k < order_nusers(o, n->outs[i]); k++) {
        int user = order_user(o, n->outs[i], k);
        if (user == o->n || !node_is(o->node[user], WAIT_TENSOR)) continue;
        v->start_of[user] = at;
        v->waits_left[at]++;
      }
    }
    if (!v->waits_left[at]) continue; /* nobody will ever say that it is over */
    node_each_val(n, add_bytes, &v->bytes[at]);
    bool in_place = n->op && n->op->schema.mutates;
    for (int i = 0; i < n->nouts && !in_place; i++) add_bytes(&v->bytes[at], &n->outs[i]);
  }
}

/* ---- who needs whom -------------------------------------------------------------------------------- */

static void each_need(Overlap *v, int at, void (*fn)(Overlap *, int, int)) {
  const Order *o = v->o;
  for (int i = o->behind_start[at]; i < o->behind_start[at + 1]; i++) fn(v, at, o->behind[i]);
  for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
    if (o->producer[o->arg[i]] >= 0) fn(v, at, o->producer[o->arg[i]]);
  }
  if (v->start_before[at] >= 0) fn(v, at, v->start_before[at]);
}

/* Ranks whose programs differ in what is around the collectives must still make them alike. */
static void find_order(Overlap *v, bool in_order) {
  int last = -1;
  for (int at = 0; at < v->o->n; at++) {
    v->start_before[at] = -1;
    if (!in_order || !(comm_is_start(v->o->node[at]) || is_placed(v->o->node[at]))) continue;
    v->start_before[at] = last;
    last = at;
  }
}

static void count_need(Overlap *v, int at, int needs) {
  v->missing[at]++;
  v->next_start[needs + 1]++;
}

static void link_need(Overlap *v, int at, int needs) { v->next[v->next_of[needs]++] = at; }

static Status find_needs(Overlap *v) {
  int n = v->o->n;
  for (int at = 0; at < n; at++) {
    if (v->haste[at] == HURRIED) each_need(v, at, count_need);
  }
  for (int at = 0; at < n; at++) v->next_start[at + 1] += v->next_start[at];
  memcpy(v->next_of, v->next_start, (size_t)n * sizeof *v->next_of);
  TRY_NEW(v->next, arena_new_n(v->arena, int, v->next_start[n] + 1));
  for (int at = 0; at < n; at++) {
    if (v->haste[at] == HURRIED) each_need(v, at, link_need);
  }
  for (int at = 0; at < n; at++) {
    if (v->haste[at] == HURRIED && !v->missing[at]) v->ready[v->ready_tail++] = at; /* works on inputs alone */
  }
  return OK;
}

/* ---- emitting --------------------------------------------------------------------------------------- */

static void emit(Overlap *v, int at);

static void wait_for(Overlap *v, int start) {
  const Node *n = v->o->node[start];
  for (int i = 0; i < n->nouts; i++) {
    for (int k = 0; k < order_nusers(v->o, n->outs[i]); k++) {
      int user = order_user(v->o, n->outs[i], k);
      if (user < v->o->n && node_is(v->o->node[user], WAIT_TENSOR) && !v->done[user]) emit(v, user);
    }
  }
}

/* Waits for the oldest collectives until `bytes` more have room. */
static void make_room(Overlap *v, size_t bytes) {
  while (v->present && v->present + bytes > v->limit) {
    while (v->oldest < v->under_way_count && !v->waits_left[v->under_way[v->oldest]]) v->oldest++;
    if (v->oldest == v->under_way_count) return;
    wait_for(v, v->under_way[v->oldest++]);
  }
}

/* Everything that `at` needs is done. */
static void put(Overlap *v, int at) {
  if (v->done[at]) return;
  if (v->bytes[at] || v->waits_left[at]) {
    make_room(v, v->bytes[at]);
    if (v->done[at]) return;
    v->under_way[v->under_way_count++] = at;
    v->present += v->bytes[at];
    if (v->present > v->most) v->most = v->present;
  }
  v->done[at] = true;
  v->order[v->ndone++] = at;
  int start = v->start_of[at];
  if (start >= 0 && --v->waits_left[start] == 0) v->present -= v->bytes[start];
  for (int i = v->next_start[at]; i < v->next_start[at + 1]; i++) {
    if (--v->missing[v->next[i]] == 0) v->ready[v->ready_tail++] = v->next[i];
  }
}

static void push_need(Overlap *v, int at, int needs) {
  (void)at;
  if (!v->done[needs]) v->stack[++v->stack[0]] = needs;
}

/* Depth first without recursion: stack[0] is the height.  A position may be pushed by several
 * who need it, so the stack has room for all needs. */
static void emit(Overlap *v, int at) {
  int base = v->stack[0];
  v->stack[++v->stack[0]] = at;
  while (v->stack[0] > base) {
    int top = v->stack[0], now = v->stack[top];
    if (!v->done[now]) each_need(v, now, push_need);
    if (v->stack[0] > top) continue;
    put(v, now);
    v->stack[0] = top - 1;
  }
}

/* Collectives that became ready start now, as far as there is room. */
static void start_ready(Overlap *v) {
  for (bool progress = true; progress;) {
    progress = false;
    for (; v->held_head < v->held_tail; v->held_head++) {
      int at = v->held[v->held_head];
      if (!v->done[at] && v->present && v->present + v->bytes[at] > v->limit) break;
      if (!v->done[at]) put(v, at), progress = true;
    }
    for (; v->ready_head < v->ready_tail; v->ready_head++) {
      int at = v->ready[v->ready_head];
      bool room = !v->bytes[at] || !v->present || v->present + v->bytes[at] <= v->limit;
      if (v->done[at]) continue;
      if (room && v->held_head == v->held_tail) put(v, at), progress = true;
      else v->held[v->held_tail++] = at;
    }
  }
}

static void walk(Overlap *v) {
  start_ready(v);
  for (int at = 0; at < v->o->n; at++) {
    if (v->haste[at] == PATIENT || v->done[at]) continue;
    emit(v, at);
    start_ready(v);
  }
  for (int i = 0; i < v->under_way_count; i++) wait_for(v, v->under_way[i]); /* for the outputs */
  for (int at = 0; at < v->o->n; at++) {
    if (!v->done[at]) emit(v, at);
  }
}

/* ---- the pass ------------------------------------------------------------------------------------------ */

static Status allocate(Overlap *v) {
  size_t n = (size_t)v->o->n + 1,
         needs = 2 * n + (size_t)v->o->behind_start[v->o->n] + (size_t)v->o->arg_start[v->o->n];
  TRY_NEW(v->haste, arena_array(v->arena, n, sizeof *v->haste));
  TRY_NEW(v->done, arena_array(v->arena, n, sizeof *v->done));
  TRY_NEW(v->bytes, arena_array(v->arena, n, sizeof *v->bytes));
  int **const arrays[] = {&v->missing, &v->next_of, &v->waits_left, &v->start_of, &v->start_before,
                          &v->order,   &v->ready,   &v->held,       &v->under_way};
  for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
    TRY_NEW(*arrays[i], arena_array(v->arena, n, sizeof(int)));
  TRY_NEW(v->next_start, arena_array(v->arena, n + 1, sizeof(int)));
  TRY_NEW(v->stack, arena_array(v->arena, needs + 1, sizeof(int)));
  return OK;
}

/* What --stats tells: how much of the program stands beside collectives. */
typedef struct {
  int collectives, earlier, later;
  int64_t beside_before, beside_after; /* nodes in turn between start and wait, summed over waits */
} Gain;

static Status measure(const Overlap *v, Gain *g) {
  int *before, *after, count = 0;
  TRY_NEW(before, arena_new_n(v->arena, int, v->o->n + 1));
  TRY_NEW(after, arena_new_n(v->arena, int, v->o->n + 1));
  for (int at = 0; at < v->o->n; at++) {
    before[at] = count;
    count += v->haste[at] == IN_TURN;
  }
  count = 0;
  for (int i = 0; i < v->o->n; i++) {
    after[v->order[i]] = count;
    count += v->haste[v->order[i]] == IN_TURN;
  }
  for (int at = 0; at < v->o->n; at++) {
    if (comm_is_start(v->o->node[at])) g->collectives++, g->earlier += after[at] < before[at];
    int start = v->start_of[at];
    if (start < 0) continue;
    g->later += after[at] > before[at];
    g->beside_before += before[at] - before[start];
    g->beside_after += after[at] - after[start];
  }
  return OK;
}

static Status tell(const PassArgs *args, const Overlap *v) {
  Gain g = {0};
  if (!args->stats) return OK;
  TRY(measure(v, &g));
  if (!g.collectives) {
    text_puts(args->stats, "overlap: no collectives in the program: nothing to overlap\n");
    return OK;
  }
  text_printf(args->stats, "overlap: %d collective%s, starting earlier: %d, waits that are later: %d\n",
              g.collectives, g.collectives == 1 ? "" : "s", g.earlier, g.later);
  text_printf(args->stats, "  nodes beside collectives, summed over waits: %lld -> %lld\n",
              (long long)g.beside_before, (long long)g.beside_after);
  text_printf(args->stats, "  held by collectives under way: at most %zu bytes of %zu\n", v->most, v->limit);
  return OK;
}

static Status overlap(Arena *arena, Exported *e, const PassArgs *args) {
  Order o;
  Overlap v = {.arena = arena, .o = &o};
  double limit = pass_number(args, "memory_mb") * (1 << 20);
  v.limit = limit < 9e18 ? (size_t)limit : (size_t)9e18;
  TRY(order_new(arena, e->graph, &o));
  TRY(allocate(&v));
  find_haste(&v);
  find_collectives(&v);
  find_order(&v, pass_flag(args, "in_order"));
  TRY(find_needs(&v));
  walk(&v);
  for (int i = 0; i < v.ndone; i++) node_move_before(o.node[v.order[i]], NULL);
  return tell(args, &v);
}

Status pass_overlap(Exported *e, const PassArgs *args) {
  Arena arena = {0};
  Status s = overlap(&arena, e, args);
  arena_free(&arena);
  return s;
}
