/* walk_higher_order.c -- calls of nodes that have sub-graphs: cond, while_loop, scan, map_impl.
 *
 *   cond(predicate, true graph, false graph, [inputs])
 *   while_loop(condition graph, body graph, [carried], [more])     graphs take carried and more
 *   scan(graph, [carried], [xs], [more])         the graph takes carried, an x of each and more; it gives
 *                                                carried and ys, which are stacked
 *   map_impl(graph, [xs], [more])                a scan that carries nothing
 *
 * I1  While interpreting, an iteration holds memory for itself and for what the next one reads: handles and
 *     arguments of older ones are gone.
 * I2  While recording, iterations are recorded one after another: the loop is unrolled.  More than MOST_UNROLLED
 *     nodes, or a predicate that is not known, give ERR_DYNAMIC.
 * I3  On a mesh, values are DTensors inside too, and every rank takes the same branches: a predicate is read
 *     as a whole.
 */
#include <string.h>

#include "graph/resolve.h"
#include "graph/walk_inside.h"

enum { MOST_UNROLLED = 10000 };

/* ---- arguments -------------------------------------------------------------------------------------- */

typedef struct {
  Value *v;
  int n;
} Values;

/* A list of arguments; of cond, which may have them one by one, all from the first. */
static Status resolve_values(WalkState *s, const Arg *args, int nargs, Values *out) {
  if (nargs == 1 && args->kind == ARG_LIST) nargs = args->n, args = args->list;
  TRY_NEW(out->v, arena_new_n(s->w->arena, Value, nargs));
  for (int i = 0; i < nargs; i++) TRY(arg_resolve(s->w->arena, s->env, &args[i], &out->v[i]));
  out->n = nargs;
  return OK;
}

/* The node has ngraphs sub-graphs, then nlists lists of arguments. */
static Status check_form(const Node *n, int ngraphs, int nlists) {
  bool good = n->nargs == ngraphs + nlists;
  for (int i = 0; good && i < n->nargs; i++) good = n->args[i].kind == (i < ngraphs ? ARG_GRAPH : ARG_LIST);
  return good ? OK
              : fail(ERR_FILE, "%s should have %d sub-graph%s and %d lists of arguments", n->target, ngraphs,
                     ngraphs == 1 ? "" : "s", nlists);
}

static Status check_sub_graph(const Node *n, const Graph *sub, int ninputs, int noutputs) {
  if (ninputs != sub->ninputs)
    return fail(ERR_FILE, "%s passes %d arguments to a sub-graph of %d inputs", n->target, ninputs, sub->ninputs);
  if (noutputs > sub->noutputs)
    return fail(ERR_FILE, "%s takes %d results of a sub-graph of %d outputs", n->target, noutputs, sub->noutputs);
  return OK;
}

/* ---- predicates ------------------------------------------------------------------------------------- */

static Status call(const Walk *w, const char *name, const Value *arg, Call *c) {
  *c = (Call){.ctx = w->ctx, .op = op_find(name), .arg = arg, .scope = w->scope, .arena = w->arena};
  return op_dispatch(c);
}

/* While recording, a tensor may have data that is not the program's: of a buffer that it writes to, what is in it
 * now. */
static bool is_known(const Walk *w, const Tensor *t) {
  const Val *v = ctx_is_recording(w->ctx) ? t->tag : NULL;
  return !t->spec && tensor_data(t) && tensor_numel(t) == 1 && (!v || v->constant);
}

static Status is_true(const Walk *w, const Node *n, const Value *predicate, bool *out) {
  Value v = *predicate;
  if (v.kind == VAL_TENSOR && v.tensor->spec && !ctx_is_recording(w->ctx)) { /* I3 */
    Call c;
    TRY(call(w, "aten._local_scalar_dense.default", &v, &c));
    v = c.out[0];
  }
  if (v.kind == VAL_TENSOR) {
    if (!is_known(w, v.tensor))
      return fail(ERR_DYNAMIC, "%s: the predicate is not known before the program runs", n->target);
    v = val_load(v.tensor->dtype, tensor_data(v.tensor));
  }
  *out = val_as_float(&v) != 0;
  return OK;
}

/* ---- cond ---------------------------------------------------------------------------------------------- */

static Status call_cond(WalkState *s, const Node *n) {
  Value predicate, *outs;
  Values args;
  bool yes;
  if (n->nargs < 3 || n->args[1].kind != ARG_GRAPH || n->args[2].kind != ARG_GRAPH)
    return fail(ERR_FILE, "cond without its two sub-graphs");
  TRY(arg_resolve(s->w->arena, s->env, &n->args[0], &predicate));
  TRY(is_true(s->w, n, &predicate, &yes));
  TRY(resolve_values(s, n->args + 3, n->nargs - 3, &args));
  const Graph *sub = n->args[yes ? 1 : 2].graph;
  TRY(check_sub_graph(n, sub, args.n, n->nouts));
  TRY_NEW(outs, arena_new_n(s->w->arena, Value, sub->noutputs));
  TRY(walk_graph(s->w, s->unrolled, sub, args.v, outs));
  return walk_set_outs(s, n, outs, sub->noutputs);
}

/* ---- loops ---------------------------------------------------------------------------------------------- */

/* What the iterations of a loop live in. */
typedef struct {
  WalkState *s;
  const Node *n;
  bool records;
  Walk walk[2]; /* this iteration's and the last one's, alternating; recording, both are the walk itself */
  Scope scope[2];
  Arena arena[2];
  int now;
} Loop;

static void loop_begin(Loop *l, WalkState *s, const Node *n) {
  *l = (Loop){.s = s, .n = n, .records = ctx_is_recording(s->w->ctx)};
  for (int i = 0; i < 2; i++) {
    l->walk[i] = *s->w;
    if (l->records) continue;
    l->walk[i].scope = &l->scope[i];
    l->walk[i].arena = &l->arena[i];
  }
}

static void loop_clear(Loop *l, int i) {
  scope_clear(&l->scope[i]);
  arena_free(&l->arena[i]);
}

static void loop_end(Loop *l) {
  loop_clear(l, 0);
  loop_clear(l, 1);
}

static const Walk *loop_walk(const Loop *l) { return &l->walk[l->now]; }

static Status loop_call(Loop *l, const Graph *sub, const Value *args, Value *outs) {
  if (l->records) { /* I2 */
    *l->s->unrolled += sub->nnodes + 1;
    if (*l->s->unrolled > MOST_UNROLLED)
      return fail(ERR_DYNAMIC, "%s: unrolled, the program would have more than %d nodes", l->n->target,
                  MOST_UNROLLED);
  }
  return walk_graph(loop_walk(l), l->s->unrolled, sub, args, outs);
}

/* Handles in `scope` for values that are to outlive their iteration. */
static Status keep(const Loop *l, Scope *scope, const Value *from, int n, Value *to) {
  for (int i = 0; i < n; i++) {
    to[i] = from[i];
    if (to[i].kind == VAL_TENSOR && !l->records) TRY(tensor_handle(scope, from[i].tensor, &to[i].tensor));
  }
  return OK;
}

/* The next iteration starts with what this one carries; the one before is forgotten (I1). */
static Status loop_next(Loop *l, const Value *outs, int ncarried, Value *carried) {
  TRY(keep(l, loop_walk(l)->scope, outs, ncarried, carried));
  l->now = !l->now;
  loop_clear(l, l->now);
  return OK;
}

static Status at_iteration(Status s, int64_t i) { return s ? status_at(s, "iteration %lld", (long long)i) : OK; }

/* ---- while_loop ----------------------------------------------------------------------------------------- */

/* args: carried, more; outs has room for what the graphs give. */
static Status while_iteration(Loop *l, Values carried, Value *args, Value *outs, bool *goes_on) {
  const Graph *condition = l->n->args[0].graph, *body = l->n->args[1].graph;
  TRY(loop_call(l, condition, args, outs));
  TRY(is_true(loop_walk(l), l->n, &outs[0], goes_on));
  if (!*goes_on) return OK;
  TRY(loop_call(l, body, args, outs));
  return loop_next(l, outs, carried.n, args);
}

static Status call_while_loop(WalkState *s, const Node *n) {
  Values carried, more;
  Value *args, *outs;
  Loop l;
  TRY(check_form(n, 2, 2));
  const Graph *condition = n->args[0].graph, *body = n->args[1].graph;
  TRY(resolve_values(s, &n->args[2], 1, &carried));
  TRY(resolve_values(s, &n->args[3], 1, &more));
  TRY(check_sub_graph(n, condition, carried.n + more.n, 1));
  TRY(check_sub_graph(n, body, carried.n + more.n, carried.n));
  TRY_NEW(args, arena_new_n(s->w->arena, Value, carried.n + more.n + 1));
  TRY_NEW(outs, arena_new_n(s->w->arena, Value, condition->noutputs + body->noutputs));
  if (carried.n) memcpy(args, carried.v, (size_t)carried.n * sizeof *args);
  if (more.n) memcpy(args + carried.n, more.v, (size_t)more.n * sizeof *args);
  loop_begin(&l, s, n);
  Status status = OK;
  bool goes_on = true;
  for (int64_t i = 0; !status && goes_on; i++)
    status = at_iteration(while_iteration(&l, carried, args, outs, &goes_on), i);
  if (!status) status = walk_set_outs(s, n, args, carried.n);
  loop_end(&l);
  return status;
}

/* ---- scan and map ------------------------------------------------------------------------------------------ */

/* A scan under way. */
typedef struct {
  Values carried, xs, more;
  const Graph *graph;
  int64_t length;
  Value *args, *outs;
  Tensor ***y; /* by output of the graph, by iteration */
  int ny;
  Scope kept; /* owns the ys while interpreting */
} Scan;

static Status scan_length(const Node *n, Scan *c) {
  for (int i = 0; i < c->xs.n; i++) {
    const Tensor *t = c->xs.v[i].kind == VAL_TENSOR ? c->xs.v[i].tensor : NULL;
    if (!t || t->ndim == 0) return fail(ERR_FILE, "%s: argument %d has no dimension to go over", n->target, i);
    if (i > 0 && t->size[0] != c->length)
      return fail(ERR_FILE, "%s goes over %lld and %lld elements at once", n->target, (long long)c->length,
                  (long long)t->size[0]);
    c->length = t->size[0];
  }
  if (c->length > 0) return OK;
  return fail(ERR_FILE, "%s: there is nothing to go over, so the sizes of its results are not known", n->target);
}

static Status scan_begin(WalkState *s, const Node *n, Scan *c) {
  Arena *arena = s->w->arena;
  TRY(check_sub_graph(n, c->graph, c->carried.n + c->xs.n + c->more.n, c->carried.n));
  TRY(scan_length(n, c));
  c->ny = c->graph->noutputs - c->carried.n;
  TRY_NEW(c->args, arena_new_n(arena, Value, c->graph->ninputs));
  TRY_NEW(c->outs, arena_new_n(arena, Value, c->graph->noutputs));
  TRY_NEW(c->y, arena_new_n(arena, Tensor **, c->ny + 1));
  for (int j = 0; j < c->ny; j++) TRY_NEW(c->y[j], arena_new_n(arena, Tensor *, c->length));
  if (c->carried.n) memcpy(c->args, c->carried.v, (size_t)c->carried.n * sizeof *c->args);
  if (c->more.n) memcpy(c->args + c->carried.n + c->xs.n, c->more.v, (size_t)c->more.n * sizeof *c->args);
  return OK;
}

static Status scan_iteration(Loop *l, Scan *c, int64_t at) {
  Value y;
  for (int i = 0; i < c->xs.n; i++) {
    Call element;
    Value arg[] = {c->xs.v[i], val_int(0), val_int(at)};
    TRY(call(loop_walk(l), "aten.select.int", arg, &element));
    c->args[c->carried.n + i] = element.out[0];
  }
  TRY(loop_call(l, c->graph, c->args, c->outs));
  for (int j = 0; j < c->ny; j++) {
    if (c->outs[c->carried.n + j].kind != VAL_TENSOR)
      return fail(ERR_FILE, "%s: result %d of its sub-graph is not a tensor", l->n->target, c->carried.n + j);
    TRY(keep(l, &c->kept, &c->outs[c->carried.n + j], 1, &y));
    c->y[j][at] = y.tensor;
  }
  return loop_next(l, c->outs, c->carried.n, c->args);
}

/* All iterations, and the results. */
static Status scan_run(Loop *l, Scan *c) {
  for (int64_t i = 0; i < c->length; i++) TRY(at_iteration(scan_iteration(l, c, i), i));
  for (int i = 0; i < c->carried.n; i++) c->outs[i] = c->args[i];
  for (int j = 0; j < c->ny; j++) {
    Call stack;
    Value arg[] = {val_tensors(c->y[j], (int)c->length), val_int(0)};
    TRY(call(l->s->w, "aten.stack.default", arg, &stack));
    c->outs[c->carried.n + j] = stack.out[0];
  }
  return walk_set_outs(l->s, l->n, c->outs, c->graph->noutputs);
}

static Status run_scan(WalkState *s, const Node *n, Scan *c) {
  Loop l;
  TRY(scan_begin(s, n, c));
  loop_begin(&l, s, n);
  Status status = scan_run(&l, c);
  loop_end(&l);
  scope_clear(&c->kept);
  return status;
}

static Status call_scan(WalkState *s, const Node *n) {
  Scan c = {0};
  TRY(check_form(n, 1, 3));
  c.graph = n->args[0].graph;
  TRY(resolve_values(s, &n->args[1], 1, &c.carried));
  TRY(resolve_values(s, &n->args[2], 1, &c.xs));
  TRY(resolve_values(s, &n->args[3], 1, &c.more));
  return run_scan(s, n, &c);
}

static Status call_map(WalkState *s, const Node *n) {
  Scan c = {0};
  TRY(check_form(n, 1, 2));
  c.graph = n->args[0].graph;
  TRY(resolve_values(s, &n->args[1], 1, &c.xs));
  TRY(resolve_values(s, &n->args[2], 1, &c.more));
  return run_scan(s, n, &c);
}

static const struct {
  const char *target;
  HigherOrderFn *call;
} higher_order[] = {
    {"higher_order.cond", call_cond},
    {"higher_order.while_loop", call_while_loop},
    {"higher_order.scan", call_scan},
    {"higher_order.map_impl", call_map},
};

HigherOrderFn *higher_order_find(const char *target) {
  for (size_t i = 0; i < sizeof higher_order / sizeof *higher_order; i++)
    if (!strcmp(target, higher_order[i].target)) return higher_order[i].call;
  return NULL;
}
