/* inline.c -- dissolves sub-graphs that only wrap: wrap_with_set_grad_enabled and
 * wrap_with_autocast.
 *
 *   before:  %a = higher_order.wrap_with_set_grad_enabled(false, graph(%x) { %y = cos(%x) return %y }, %b)
 *   after:   %c = cos(%b)
 *            %a = detach(%c)
 *
 * What comes out of a region without gradients is detached, so that none passes it; an autocast region's
 * casts become explicit (autocast.h).  Sub-graphs are moved, not copied: linear.
 */
#include "passes/autocast.h"
#include "passes/pass.h"

static int graph_argument(const Node *n) {
  for (int i = 0; i < n->nargs; i++) {
    if (n->args[i].kind == ARG_GRAPH) return i;
  }
  return -1;
}

static bool is_wrapper(const Node *n) {
  return node_is(n, "higher_order.wrap_with_set_grad_enabled") || node_is(n, "higher_order.wrap_with_autocast");
}

static bool is_without_gradients(const Node *n) {
  return node_is(n, "higher_order.wrap_with_set_grad_enabled") && n->nargs && n->args[0].kind == ARG_BOOL &&
         !n->args[0].b;
}

/* The value that stands for result v of a region without gradients: detached, unless the region only passed it
 * through, or no gradient could pass it anyway. */
static Status detach(Graph *g, Node *n, Val **v) {
  bool tensor = (*v)->type == TY_TENSOR && dtype_kind((*v)->dtype) >= KIND_FLOAT;
  for (int i = 0; i < n->nargs; i++)
    if (n->args[i].kind == ARG_VAL && n->args[i].val == *v) return OK;
  if (!tensor) return OK;
  Arg arg = arg_val(*v);
  return graph_emit_value(g, n, n, "aten.detach.default", &arg, 1, *v, v);
}

static Status dissolve(Graph *g, Node *n) {
  int at = graph_argument(n);
  if (at < 0) return fail(ERR_FILE, "%s has no sub-graph", n->target);
  Graph *sub = n->args[at].graph;
  Arg *outs;
  if (node_is(n, "higher_order.wrap_with_autocast")) TRY(autocast_make_explicit(n, sub));
  TRY_NEW(outs, arena_new_n(g->arena, Arg, sub->noutputs));
  TRY(graph_splice(g, n, sub, n->args + at + 1, n->nargs - at - 1, outs));
  if (sub->noutputs < n->nouts)
    return fail(ERR_FILE, "%s: %d results of a sub-graph with %d outputs", n->target, n->nouts, sub->noutputs);
  for (int i = 0; i < n->nouts; i++) {
    if (outs[i].kind != ARG_VAL)
      return fail(ERR_FILE, "%s: result %d of its sub-graph is not a value", n->target, i);
    if (is_without_gradients(n)) TRY(detach(g, n, &outs[i].val));
    n->outs[i]->forward = outs[i].val;
  }
  return OK;
}

static Status inline_graph(Graph *g, int *count) {
  for (Node *n = g->first, *next; n; n = next) {
    /* What a wrapper held is visited too: wrappers may be nested. */
    node_forward(n);
    next = n->next;
    for (int i = 0; i < n->nargs && !is_wrapper(n); i++) {
      if (n->args[i].kind == ARG_GRAPH) TRY(inline_graph(n->args[i].graph, count));
    }
    if (!is_wrapper(n)) continue;
    Node *prev = n->prev;
    TRY(dissolve(g, n));
    next = prev ? prev->next : g->first;
    if (next == n) next = n->next;
    node_remove(n);
    (*count)++;
  }
  graph_forward(g);
  return OK;
}

Status pass_inline(Exported *e, const PassArgs *args) {
  int count = 0;
  TRY(inline_graph(e->graph, &count));
  if (args->stats) text_printf(args->stats, "inline: %d sub-graphs dissolved\n", count);
  return OK;
}
