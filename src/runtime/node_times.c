/* node_times.c -- see node_times.h. */
#include "runtime/node_times.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/grow.h"

/* Nodes of the graph and its sub-graphs, in order, from number `first` on; list may be NULL: they are
 * only counted. */
static int list_nodes(const Graph *g, int first, NodeTime *list) {
  int n = first;
  for (const Node *node = g->first; node; node = node->next) {
    if (list) list[n].node = node;
    n++;
    for (int a = 0; a < node->nargs; a++)
      if (node->args[a].kind == ARG_GRAPH) n = list_nodes(node->args[a].graph, n, list);
  }
  return n;
}

Status node_times_begin(NodeTimes *t, const Graph *g) {
  if (!t->list) {
    int n = list_nodes(g, 0, NULL);
    TRY_NEW(t->list, calloc((size_t)n + 1, sizeof *t->list));
    t->n = list_nodes(g, 0, t->list);
  }
  t->runs++;
  t->current = NULL;
  t->nspans = 0;
  return OK;
}

static Status add_span(NodeTimes *t, NodeSpan span) {
  TRY_ROOM(t->span, t->nspans, t->spans_cap);
  t->span[t->nspans++] = span;
  return OK;
}

Status node_times_next(NodeTimes *t, const Node *n, Stage stage) {
  double at = clock_now();
  if (t->current) {
    NodeSpan *last = &t->span[t->nspans - 1];
    last->ended = at;
    t->current->seconds += at - last->begun;
  }
  t->current = NULL;
  if (!n) return OK;
  TRY(add_span(t, (NodeSpan){n, stage, at, at}));
  t->current = &t->list[n->mark];
  t->current->calls += stage == STAGE_FORWARD;
  return OK;
}

void node_times_free(NodeTimes *t) {
  free(t->list);
  free(t->span);
  *t = (NodeTimes){0};
}
