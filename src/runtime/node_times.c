/* node_times.c -- see node_times.h. */
#include "runtime/node_times.h"

#include <stdlib.h>

#include "base/clock.h"

/* Gives every node its number from `first` on; list may be NULL: they are only counted. */
static int number_nodes(const Graph *g, int first, NodeTime *list) {
  int n = first;
  for (Node *node = g->first; node; node = node->next) {
    if (list) {
      node->mark = n;
      list[n].node = node;
    }
    n++;
    for (int a = 0; a < node->nargs; a++) {
      if (node->args[a].kind == ARG_GRAPH) n = number_nodes(node->args[a].graph, n, list);
    }
  }
  return n;
}

Status node_times_begin(NodeTimes *t, Graph *g) {
  if (!t->list) {
    int n = number_nodes(g, 0, NULL);
    TRY_NEW(t->list, calloc((size_t)n + 1, sizeof *t->list));
    t->n = number_nodes(g, 0, t->list);
  }
  t->runs++;
  t->current = NULL;
  return OK;
}

void node_times_next(NodeTimes *t, const Node *n) {
  double at = clock_now();
  if (t->current) t->current->seconds += at - t->since;
  t->current = n ? &t->list[n->mark] : NULL;
  if (n) t->current->calls++;
  t->since = at;
}

void node_times_free(NodeTimes *t) {
  free(t->list);
  *t = (NodeTimes){0};
}
