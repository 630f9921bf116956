/* assert_branches.c -- straightens a cond that only serves assertions: both branches are computed, and the
 * predicate says which of them counts.
 *
 *   before:  %ok = cond(%p, graph(%a) { %t = all(%a) return %t }, graph(%a) { %f = any(%a) return %f }, [%x])
 *            _assert_async(%ok)
 *   after:   %t = all(%x)  %f = any(%x)  %ok = where(%p, %t, %f)  _assert_async(%ok)
 *
 *   before:  cond(%p, graph(%a) { %t = all(%a) _assert_async(%t) }, graph(%a) {}, [%x])
 *   after:   %t = all(%x)  %q = logical_not(%p)  %ok = logical_or(%q, %t)  _assert_async(%ok)
 *
 * A branch on data would make the whole program data-dependent for the sake of a check.  Left alone: branches
 * with effects other than assertions on tensors, random numbers, sub-graphs, indices (they may be out of range
 * where the branch is not taken) or sizes that depend on data; and where results go elsewhere, for computing both
 * branches costs.
 */
#include "passes/pass.h"

static bool is_assertion(const Node *n) {
  return node_is(n, "aten._assert_async.default") || node_is(n, "aten._assert_async.msg");
}

/* ---- what may be straightened -------------------------------------------------------------------- */

typedef struct {
  int tensors, integers;
} Operands;

static void count_operand(void *ctx, Val **ref) {
  Operands *o = ctx;
  bool tensor = (*ref)->type == TY_TENSOR;
  o->tensors += tensor;
  o->integers += tensor && (*ref)->dtype != DT_NONE && dtype_is_int((*ref)->dtype);
}

/* Takes elements of one tensor by the numbers in another, which the predicate may be there to keep in range. */
static bool may_index(const Node *n) {
  Operands o = {0};
  node_each_val((Node *)(uintptr_t)n, count_operand, &o);
  return !(n->op->def->flags & OP_POINTWISE) && o.tensors > 1 && o.integers > 0;
}

static bool is_straight(const Graph *g) {
  for (const Node *n = g->first; n; n = n->next) {
    if (!n->op || n->op->schema.mutates || n->op->def->flags & (OP_RANDOM | OP_DYNAMIC)) return false;
    if (may_index(n)) return false;
    if (n->op->def->flags & OP_EFFECT && !is_assertion(n)) return false;
  }
  return true;
}

static bool same_meta(const Arg *a, const Val *b) {
  const Val *v = a->kind == ARG_VAL ? a->val : NULL;
  if (!v || v->type != TY_TENSOR || b->type != TY_TENSOR || v->dtype != b->dtype || v->ndim != b->ndim)
    return false;
  for (int d = 0; d < v->ndim; d++)
    if (v->size[d] != b->size[d]) return false;
  return v->ndim >= 0;
}

/* cond(predicate, true graph, false graph, [inputs]) */
static bool is_candidate(const Node *n) {
  if (!node_is(n, "higher_order.cond") || n->nargs != 4 || n->args[1].kind != ARG_GRAPH ||
      n->args[2].kind != ARG_GRAPH || n->args[3].kind != ARG_LIST)
    return false;
  const Val *p = n->args[0].kind == ARG_VAL ? n->args[0].val : NULL;
  if (!p || p->type != TY_TENSOR || p->dtype != DT_BOOL) return false;
  for (int branch = 1; branch <= 2; branch++) {
    const Graph *sub = n->args[branch].graph;
    if (sub->ninputs != n->args[3].n || sub->noutputs < n->nouts || !is_straight(sub)) return false;
    for (int i = 0; i < n->nouts; i++)
      if (!same_meta(&sub->outputs[i], n->outs[i])) return false;
  }
  return true;
}

static void mark_used(void *ctx, Val **ref) {
  (void)ctx;
  (*ref)->mark = 1;
}

/* Marks the values that serve something else than assertions. */
static void mark_others(Graph *g) {
  for (int i = 0; i < g->ninputs; i++) g->inputs[i]->mark = 0;
  for (Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nouts; i++) n->outs[i]->mark = 0;
  for (int i = 0; i < g->noutputs; i++) arg_each_val(&g->outputs[i], mark_used, NULL);
  for (Node *n = g->last; n; n = n->prev) {
    bool elsewhere = !is_candidate(n) && (!n->op || n->op->def->flags & OP_EFFECT || n->op->schema.mutates);
    for (int i = 0; i < n->nouts; i++) elsewhere |= n->outs[i]->mark != 0;
    if (elsewhere && !is_assertion(n)) node_each_val(n, mark_used, NULL);
  }
}

static bool serves_assertions(const Node *n) {
  for (int i = 0; i < n->nouts; i++)
    if (n->outs[i]->mark) return false;
  return is_candidate(n);
}

/* ---- straightening ----------------------------------------------------------------------------------- */

static Status emit_truth(Graph *g, Node *before, const char *target, const Arg *args, int nargs, Val **out) {
  Node *n;
  TRY(graph_emit_like(g, before, before, target, args, nargs, &n));
  TRY(node_add_out(n, "branch", TY_TENSOR, out));
  (*out)->dtype = DT_BOOL;
  (*out)->ndim = 0;
  return OK;
}

/* Assertions of a branch hold also where it is not taken: `other` is true there. */
static Status weaken(Graph *sub, Val *other) {
  for (Node *n = sub->first; n; n = n->next) {
    Val *ok;
    Arg args[2] = {arg_val(other), n->nargs ? n->args[0] : (Arg){0}};
    if (!is_assertion(n) || args[1].kind != ARG_VAL) continue;
    if (args[1].val->ndim != 0) {
      TRY(emit_truth(sub, n, "aten.reshape.default", (const Arg[]){args[1], arg_list(NULL, 0)}, 2, &args[1].val));
      args[1].val->dtype = n->args[0].val->dtype;
    }
    TRY(emit_truth(sub, n, "aten.logical_or.default", args, 2, &ok));
    n->args[0] = arg_val(ok);
  }
  return OK;
}

/* The branch's nodes before n; `other`, a value of the outer graph, comes in as one more input. */
static Status splice_branch(Graph *g, Node *n, int branch, Val *other, Arg *outs) {
  Graph *sub = n->args[branch].graph;
  const Arg *given = &n->args[3];
  Val *inside;
  Arg *args;
  TRY(graph_add_input(sub, "other", TY_TENSOR, &inside));
  inside->dtype = DT_BOOL;
  inside->ndim = 0;
  TRY(weaken(sub, inside));
  TRY_NEW(args, arena_new_n(g->arena, Arg, given->n + 1));
  for (int i = 0; i < given->n; i++) args[i] = given->list[i];
  args[given->n] = arg_val(other);
  return graph_splice(g, n, sub, args, given->n + 1, outs);
}

static Status straighten(Graph *g, Node *n) {
  Val *p = n->args[0].val, *not_p;
  Arg *yes, *no;
  TRY_NEW(yes, arena_new_n(g->arena, Arg, n->args[1].graph->noutputs + 1));
  TRY_NEW(no, arena_new_n(g->arena, Arg, n->args[2].graph->noutputs + 1));
  if (p->ndim != 0)
    TRY(emit_truth(g, n, "aten.reshape.default", (const Arg[]){arg_val(p), arg_list(NULL, 0)}, 2, &p));
  TRY(emit_truth(g, n, "aten.logical_not.default", (const Arg[]){arg_val(p)}, 1, &not_p));
  TRY(splice_branch(g, n, 1, not_p, yes));
  TRY(splice_branch(g, n, 2, p, no));
  for (int i = 0; i < n->nouts; i++) {
    Val *chosen;
    const Arg args[] = {arg_val(p), yes[i], no[i]};
    TRY(graph_emit_value(g, n, n, "aten.where.self", args, 3, n->outs[i], &chosen));
    n->outs[i]->forward = chosen;
  }
  return OK;
}

static Status visit_graph(Graph *g, int *count) {
  for (Node *n = g->first; n; n = n->next)
    for (int i = 0; i < n->nargs; i++)
      if (n->args[i].kind == ARG_GRAPH) TRY(visit_graph(n->args[i].graph, count));
  if (!graph_is_functional(g)) return OK;
  mark_others(g);
  for (Node *n = g->first, *next; n; n = next) {
    next = n->next;
    if (!serves_assertions(n)) continue;
    node_forward(n); /* an earlier one's results */
    TRY(straighten(g, n));
    node_remove(n);
    ++*count;
  }
  graph_forward(g);
  return OK;
}

Status pass_assert_branches(Exported *e, const PassArgs *args) {
  int count = 0;
  TRY(visit_graph(e->graph, &count));
  if (args->stats) text_printf(args->stats, "assert_branches: %d branches straightened\n", count);
  return OK;
}
