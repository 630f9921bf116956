/* order.c -- see order.h. */
#include "passes/order.h"

#include <string.h>

/* ---- users ------------------------------------------------------------------------------- */

static bool node_writes(const Node *n);

typedef struct {
  Arena *arena;
  Order *o;
  int count, cap;
  int effect_cap;
  bool writes, random;
} Reading;

/* Values of one argument, lists included. */
static Status add_values(Reading *r, const Arg *a) {
  if (a->kind == ARG_LIST) {
    for (int i = 0; i < a->n; i++) TRY(add_values(r, &a->list[i]));
    return OK;
  }
  if (a->kind != ARG_VAL) return OK;
  TRY_NEW(r->o->arg, arena_more(r->arena, r->o->arg, r->count, &r->cap));
  r->o->arg[r->count++] = a->val->id;
  return OK;
}

static Status read_nodes(Reading *r) {
  Order *o = r->o;
  Graph *g = o->graph;
  int nouts = 0;
  r->cap = 2 * g->nnodes + g->noutputs + 16;
  TRY_NEW(o->node, arena_new_n(r->arena, Node *, g->nnodes + 1));
  TRY_NEW(o->arg_start, arena_new_n(r->arena, int, g->nnodes + 2));
  TRY_NEW(o->arg, arena_new_n(r->arena, int, r->cap));
  TRY_NEW(o->out_start, arena_new_n(r->arena, int, g->nnodes + 1));
  TRY_NEW(o->out, arena_new_n(r->arena, int, g->nvals + 1)); /* ids are given once */
  TRY_NEW(o->producer, arena_new_n(r->arena, int, g->nvals + 1));
  for (int i = 0; i < g->nvals; i++) o->producer[i] = -1;
  for (Node *n = g->first; n; n = n->next) {
    n->mark = o->n;
    o->node[o->n] = n;
    o->arg_start[o->n] = r->count;
    for (int i = 0; i < n->nargs; i++) TRY(add_values(r, &n->args[i]));
    for (int i = 0; i < n->nouts; i++) {
      o->producer[n->outs[i]->id] = o->n;
      o->out[nouts++] = n->outs[i]->id;
    }
    o->out_start[o->n + 1] = nouts;
    r->writes |= node_writes(n);
    r->random |= n->op && (n->op->def->flags & OP_RANDOM);
    if (!n->op || (n->op->def->flags & OP_EFFECT)) {
      TRY_NEW(o->effect, arena_more(r->arena, o->effect, o->neffects, &r->effect_cap));
      o->effect[o->neffects++] = o->n;
    }
    o->n++;
  }
  o->arg_start[o->n] = r->count;
  for (int i = 0; i < g->noutputs; i++) TRY(add_values(r, &g->outputs[i]));
  o->arg_start[o->n + 1] = r->count;
  return OK;
}

/* From who uses what to what is used by whom: counted, then filled in. */
static Status find_users(Arena *arena, Order *o) {
  int nvals = o->graph->nvals, *last, *fill;
  TRY_NEW(o->use_start, arena_new_n(arena, int, nvals + 1));
  TRY_NEW(last, arena_new_n(arena, int, nvals + 1)); /* latest user so far, + 1 */
  for (int at = 0; at <= o->n; at++) {
    for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
      if (last[o->arg[i]] == at + 1) continue;
      last[o->arg[i]] = at + 1;
      o->use_start[o->arg[i] + 1]++;
    }
  }
  for (int i = 0; i < nvals; i++) o->use_start[i + 1] += o->use_start[i];
  TRY_NEW(o->use, arena_new_n(arena, int, o->use_start[nvals] + 1));
  TRY_NEW(fill, arena_new_n(arena, int, nvals + 1));
  memcpy(fill, o->use_start, (size_t)nvals * sizeof *fill);
  for (int at = 0; at <= o->n; at++) {
    for (int i = o->arg_start[at]; i < o->arg_start[at + 1]; i++) {
      int id = o->arg[i];
      if (fill[id] == o->use_start[id] || o->use[fill[id] - 1] != at) o->use[fill[id]++] = at;
    }
  }
  return OK;
}

/* ---- shared memory -------------------------------------------------------------------------- */

/* An op that we do not know writes to its first argument if its name says so: my.scale_.default */
static bool unknown_writes(const Node *n) {
  const char *dot = strrchr(n->target, '.');
  return !n->op && strncmp(n->target, "higher_order.", 13) && dot && dot > n->target && dot[-1] == '_';
}

/* Sub-graphs see the outer values as arguments; one that writes may write to any of them. */
static bool graph_argument_writes(const Node *n) {
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind == ARG_GRAPH && !graph_is_functional(n->args[i].graph)) return true;
  }
  return false;
}

static bool argument_is_written(const Node *n, int i) {
  if (n->op) return n->op->schema.params[i].mutated;
  return unknown_writes(n) ? i == 0 : graph_argument_writes(n);
}

static bool node_writes(const Node *n) {
  return n->op ? n->op->schema.mutates : unknown_writes(n) || graph_argument_writes(n);
}

static bool is_wait(const Node *n) { return node_is(n, "_c10d_functional.wait_tensor.default"); }

typedef struct {
  const Order *o;
  const Val *v;
  bool found;
} Shared;

static void look_for(void *ctx, Val **ref) {
  Shared *s = ctx;
  s->found |= order_share(s->o, *ref, s->v);
}

bool order_writes_to(const Order *o, int at, const Val *v) {
  Node *n = o->node[at];
  Shared s = {o, v, false};
  if (!node_writes(n) && !is_wait(n)) return false;
  for (int i = 0; i < n->nargs; i++) {
    if (argument_is_written(n, i) || is_wait(n)) arg_each_val(&n->args[i], look_for, &s);
  }
  return s.found;
}

/* May results be memory of argument i? */
static bool argument_is_shared(const Node *n, int i) {
  if (!n->op) return unknown_writes(n) && i == 0;
  const Param *p = &n->op->schema.params[i];
  if (p->mutated) return true;
  if (p->aliased) return n->op->schema.nreturns > 0 && n->op->schema.returns[0].aliased;
  return i == 0 && (is_wait(n) || node_is(n, "_c10d_functional._wrap_tensor_autograd.default") ||
                    node_is(n, "aten.dropout.default"));
}

static int find_root(int *memory, int id) {
  while (memory[id] != id) id = memory[id] = memory[memory[id]];
  return id;
}

typedef struct {
  int *memory;
  const Node *node;
} Joining;

static void join_results(void *ctx, Val **ref) {
  const Joining *j = ctx;
  for (int i = 0; i < j->node->nouts; i++)
    j->memory[find_root(j->memory, j->node->outs[i]->id)] = find_root(j->memory, (*ref)->id);
}

static Status find_memory(Arena *arena, Order *o) {
  int nvals = o->graph->nvals;
  TRY_NEW(o->memory, arena_new_n(arena, int, nvals + 1));
  for (int i = 0; i < nvals; i++) o->memory[i] = i;
  for (int at = 0; at < o->n; at++) {
    Joining j = {o->memory, o->node[at]};
    for (int i = 0; i < o->node[at]->nargs; i++) {
      if (argument_is_shared(o->node[at], i)) arg_each_val(&o->node[at]->args[i], join_results, &j);
    }
  }
  for (int i = 0; i < nvals; i++) o->memory[i] = find_root(o->memory, i);
  return OK;
}

/* ---- what must stay behind what --------------------------------------------------------------- */

typedef struct Reader Reader;
struct Reader {
  int at;
  Reader *next;
};

/* The present state of one piece of memory while the nodes are walked in order. */
typedef struct {
  bool written;    /* by some node, at some time */
  int last_write;  /* position, -1 */
  Reader *readers; /* since then */
} Memory;

typedef struct {
  Arena *arena;
  Order *o;
  Memory *memory; /* by number */
  int at, count, cap;
  bool writes, failed;
} Walk;

static void stay_behind(Walk *w, int before) {
  if (before < 0 || before == w->at) return;
  int *room = arena_more(w->arena, w->o->behind, w->count, &w->cap);
  w->failed |= !room;
  if (!room) return;
  w->o->behind = room;
  room[w->count++] = before;
}

static void touch(void *ctx, Val **ref) {
  Walk *w = ctx;
  Memory *m = &w->memory[w->o->memory[(*ref)->id]];
  if (!m->written) return;
  stay_behind(w, m->last_write);
  if (w->writes) {
    for (const Reader *r = m->readers; r; r = r->next) stay_behind(w, r->at);
    m->readers = NULL;
    m->last_write = w->at;
    return;
  }
  Reader *r = arena_new(w->arena, Reader);
  if (!r) {
    w->failed = true;
    return;
  }
  *r = (Reader){w->at, m->readers};
  m->readers = r;
}

static void mark_written(void *ctx, Val **ref) {
  Walk *w = ctx;
  w->memory[w->o->memory[(*ref)->id]].written = true;
}

/* A collective that works in place has written when it is waited for: the wait counts as a
 * write to memory that is written to at all. */
static void touch_arguments(Walk *w, const Node *n) {
  for (int pass = 0; pass < 2; pass++) {
    for (int i = 0; i < n->nargs; i++) {
      w->writes = argument_is_written(n, i) || is_wait(n);
      if (w->writes == (pass == 1)) arg_each_val(&n->args[i], touch, w);
    }
  }
}

static Status find_writes(Walk *w) {
  Order *o = w->o;
  TRY_NEW(w->memory, arena_new_n(w->arena, Memory, o->graph->nvals + 1));
  for (int i = 0; i < o->graph->nvals; i++) w->memory[i].last_write = -1;
  for (int at = 0; at < o->n; at++) {
    Node *n = o->node[at];
    if (!node_writes(n)) continue;
    for (int i = 0; i < n->nargs; i++) {
      if (argument_is_written(n, i)) arg_each_val(&n->args[i], mark_written, w);
    }
  }
  return OK;
}

static Status find_behind(Arena *arena, Order *o, bool random) {
  Walk w = {.arena = arena, .o = o};
  int last_random = -1;
  TRY_NEW(o->behind_start, arena_new_n(arena, int, o->n + 1));
  if (o->memory) TRY(find_writes(&w));
  for (w.at = 0; w.at < o->n && (o->memory || random); w.at++) {
    const Node *n = o->node[w.at];
    o->behind_start[w.at] = w.count;
    if (o->memory) touch_arguments(&w, n);
    if (n->op && (n->op->def->flags & OP_RANDOM)) stay_behind(&w, last_random), last_random = w.at;
  }
  o->behind_start[o->n] = w.count;
  return w.failed ? fail_oom() : OK;
}

Status order_new(Arena *arena, Graph *g, Order *out) {
  *out = (Order){.graph = g};
  Reading r = {.arena = arena, .o = out};
  TRY(read_nodes(&r));
  TRY(find_users(arena, out));
  if (r.writes) TRY(find_memory(arena, out));
  return find_behind(arena, out, r.random);
}

/* ---- sorting ---------------------------------------------------------------------------------- */

/* A node that waits hangs in the list of the node it waits for: the last one of its needs that
 * is not there yet.  needs[..left) may still be missing; what is behind is there. */
typedef struct {
  Node *node;
  int first, left; /* in Sort.needs */
  bool ready;
  int waiting, waiting_last, next; /* marks, -1 */
} Item;

typedef struct {
  const Order *o;
  const OrderChange *change;
  Item *item; /* by mark */
  int *needs;
  int count, cap;
  Arena *arena;
  bool failed;
} Sort;

static void need(Sort *s, int mark) {
  int *room = arena_more(s->arena, s->needs, s->count, &s->cap);
  s->failed |= !room;
  if (!room) return;
  s->needs = room;
  room[s->count++] = mark;
}

static void need_producer(void *ctx, Val **ref) {
  if ((*ref)->node) need(ctx, (*ref)->node->mark);
}

/* The node at a position if it is still there, and whoever does its work now. */
static void need_position(Sort *s, int position, int self) {
  const OrderChange *c = s->change;
  if (s->item[position].node) need(s, position);
  for (int i = c->instead ? c->instead_start[position] : 0, end = c->instead ? c->instead_start[position + 1] : 0;
       i < end; i++) {
    if (c->instead[i] != self) need(s, c->instead[i]);
  }
}

static void need_place_of(Sort *s, int position, int self) {
  for (int i = s->o->behind_start[position]; i < s->o->behind_start[position + 1]; i++)
    need_position(s, s->o->behind[i], self);
}

static void find_needs(Sort *s, Item *it, int mark) {
  it->first = s->count;
  if (mark < s->o->n) {
    need_place_of(s, mark, mark);
  } else {
    const int *start = s->change->takes_start + (mark - s->o->n);
    for (int i = start[0]; i < start[1]; i++) need_place_of(s, s->change->takes[i], mark);
  }
  node_each_val(it->node, need_producer, s);
  it->left = s->count;
}

static void wait_for(Sort *s, int mark, int on) {
  Item *it = &s->item[on];
  s->item[mark].next = -1;
  if (it->waiting < 0) it->waiting = mark;
  else s->item[it->waiting_last].next = mark;
  it->waiting_last = mark;
}

/* Puts those who waited for `mark` on the stack, the first of them on top. */
static int release(Sort *s, int mark, int *stack, int top) {
  int from = top;
  for (int i = s->item[mark].waiting; i >= 0; i = s->item[i].next) stack[top++] = i;
  for (int a = from, b = top - 1; a < b; a++, b--) {
    int swap = stack[a];
    stack[a] = stack[b];
    stack[b] = swap;
  }
  return top;
}

static bool is_ready(Sort *s, Item *it, int *missing) {
  while (it->left > it->first) {
    *missing = s->needs[it->left - 1];
    if (!s->item[*missing].ready) return false;
    it->left--;
  }
  return true;
}

static Status sort_nodes(Sort *s, int *stack, Node **sorted) {
  int top = 0, done = 0, missing = 0, n = s->o->graph->nnodes;
  for (const Node *node = s->o->graph->last; node; node = node->prev) stack[top++] = node->mark;
  while (top) {
    int mark = stack[--top];
    Item *it = &s->item[mark];
    if (!is_ready(s, it, &missing)) {
      wait_for(s, mark, missing);
      continue;
    }
    it->ready = true;
    sorted[done++] = it->node;
    top = release(s, mark, stack, top);
  }
  return done == n ? OK
                   : fail(ERR_FAIL, "the nodes cannot be put in order: %d of %d wait for each other", n - done, n);
}

Status order_sort(Arena *arena, const Order *o, const OrderChange *change) {
  Sort s = {.o = o, .change = change, .arena = arena};
  int marks = o->n + change->nnew, *stack;
  Node **sorted;
  TRY_NEW(s.item, arena_new_n(arena, Item, marks + 1));
  TRY_NEW(stack, arena_new_n(arena, int, marks + 1));
  TRY_NEW(sorted, arena_new_n(arena, Node *, marks + 1));
  for (int i = 0; i < marks; i++) s.item[i].waiting = -1;
  for (Node *n = o->graph->first; n; n = n->next) s.item[n->mark].node = n;
  for (Node *n = o->graph->first; n; n = n->next) find_needs(&s, &s.item[n->mark], n->mark);
  if (s.failed) return fail_oom();
  TRY(sort_nodes(&s, stack, sorted));
  Node *at = o->graph->first; /* what stands right stays */
  for (int i = 0, count = o->graph->nnodes; i < count; i++) {
    if (sorted[i] == at) at = at->next;
    else node_move_before(sorted[i], at);
  }
  return OK;
}
