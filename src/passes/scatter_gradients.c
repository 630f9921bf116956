/* scatter_gradients.c -- in a training step, gradients of which each rank gets a part are reduced group by group,
 * as soon as they are there.
 *
 *   before:  %g1 = mm(..)  %g0 = mm(..)  ...  %s1 = redistribute(%g1, P -> S(0))  %s0 = ...   (all at the end)
 *   after:   %g1 = mm(..)  %g0 = mm(..)  %r = scatter_group([%g1, %g0])  (the backward goes on)
 *            %r' = wait(%r)  %s1, %s0 = views of %r'
 *
 * A group is the gradients of a module (`by_module`, `wrap`: the groups of fsdp.c), or neighbours, as many MiB as a
 * bucket of gradients holds (`bucket_size_mb`, `first_bucket_mb`, as in fuse_ddp_with_concat_op; 0: each by
 * itself).
 *
 * One reduction is under way at a time: it is waited for where the next one starts, which frees its gradients; or
 * where it starts (`reduce_at_once`).
 *
 * Only where the result goes to the update: others stay.  Which gradients make a group, and the order of groups,
 * follows from the order in which the program reduces them, never from where nodes stand: ranks fuse nodes and
 * compute them again as each sees fit, and must make their collectives in one order.  Linear but for names.
 */
#include <math.h>
#include <stdlib.h>

#include "passes/comm_block.h"
#include "passes/move_groups.h"
#include "passes/pass.h"

typedef struct {
  Exported *e;
  Arena arena;
  const char *wrap; /* "": by size */
  bool at_once;     /* reductions are waited for where they start */
  unsigned axes;    /* of the mesh; 0: any */
  double large;     /* bytes */
  NodeList all;
  GroupList groups;
} Scatter;

/* A redistribution that can be part of a group. */
typedef struct {
  Node *node;
  const char *name; /* of the parameter */
  unsigned axes;
} Found;

/* ---- groups ------------------------------------------------------------------------------------------------- */

static Status find(Scatter *s, Found **out, int *count) {
  *count = 0;
  TRY_NEW(*out, arena_new_n(&s->arena, Found, s->all.n + 1));
  for (int at = 0; at < s->all.n; at++) {
    Node *n = s->all.node[at];
    const char *of = gradient_of(n, &s->arena);
    unsigned axes = of && n->args[0].kind == ARG_VAL ? move_axes(n, PLACE_P, PLACE_S, s->axes) : 0;
    if (axes) (*out)[(*count)++] = (Found){n, of, axes};
  }
  return OK;
}

/* ---- what is done to gradients before they are reduced ------------------------------------------------------ */

/* Gradients that are rounded on their way are so where they are made. */
static void hurry_casts(const Found *found, int n) {
  for (int i = 0; i < n; i++) {
    Node *cast = found[i].node->args[0].val->node, *made;
    if (!node_is(cast, "aten._to_copy.default") || cast->args[0].kind != ARG_VAL) continue;
    made = cast->args[0].val->node;
    if (made && made->next != cast) node_move_before(cast, made->next);
  }
}

/* ---- what is done with them ---- */

typedef struct {
  const bool *reduced;
  bool found;
} Asks;

static void ask(void *arg, Val **ref) {
  Asks *a = arg;
  a->found |= a->reduced[(*ref)->id];
}

/* The redistributions, other reductions of gradients, and what the backward makes of their results (sums over the
 * replicas of a group) go to its end: behind all gradients, and in the order that they have. */
static Status sink(Scatter *s, const Found *found, int n) {
  bool *reduced;
  Node *end = NULL;
  TRY_NEW(reduced, arena_new_n(&s->arena, bool, s->e->graph->nvals + 1));
  for (int at = 0; n && at < s->all.n; at++) {
    const Node *node = s->all.node[at];
    if (comm_is_all_reduce(node) && node->stage == STAGE_BACKWARD) reduced[node->outs[0]->id] = true;
  }
  for (int i = 0; i < n; i++) reduced[found[i].node->outs[0]->id] = true;
  for (int at = n ? found[n - 1].node->mark : s->all.n; at < s->all.n && !end; at++)
    if (s->all.node[at]->stage == STAGE_UPDATE) end = s->all.node[at];
  for (int at = 0; at < s->all.n && s->all.node[at] != end; at++) {
    Node *node = s->all.node[at];
    Asks a = {reduced, false};
    node_each_val(node, ask, &a);
    for (int i = 0; i < node->nouts; i++) a.found |= reduced[node->outs[i]->id];
    if (!a.found) continue;
    for (int i = 0; i < node->nouts; i++) reduced[node->outs[i]->id] = true;
    node_move_before(node, end);
  }
  return node_list(s->e->graph, &s->arena, &s->all);
}

static Status find_groups(Scatter *s, const Found *found, int n) {
  for (int i = 0; i < n; i++) {
    Group *g;
    Member *m;
    if (s->wrap)
      TRY(group_find_module(&s->groups, found[i].node, s->wrap, s->large, found[i].name, found[i].axes, &g));
    else TRY(group_find(&s->groups, found[i].node, "gradients", found[i].axes, &g));
    TRY(group_add(&s->groups, g, found[i].node, &m));
  }
  return OK;
}

/* ---- written ------------------------------------------------------------------------------------------------ */

/* The first of the redistributions that groups stand for: all gradients are there. */
static int first_old(const Scatter *s) {
  int first = s->all.n - 1;
  for (const Group *g = s->groups.first; g; g = g->next)
    if (g->first->node->mark < first) first = g->first->node->mark;
  return first;
}

/* The order of groups is that in which the program reduces their last gradients, which ranks have in common. */
static int by_end(const void *a, const void *b) {
  return group_last(*(Group *const *)a)->mark - group_last(*(Group *const *)b)->mark;
}

/* Where group i starts: its gradients are there, and all groups before it have started. */
static Status find_starts(Scatter *s, Group **list, int n, int end, int **out) {
  int at = 0, *start;
  TRY_NEW(start, arena_new_n(&s->arena, int, n + 1));
  for (int i = 0; i < n; i++) {
    if (list[i]->last_made >= at) at = list[i]->last_made + 1;
    start[i] = at;
  }
  start[n] = end > at ? end : at;
  *out = start;
  return OK;
}

static Status write_groups(Scatter *s) {
  Group **list;
  int n = 0, *start;
  TRY_NEW(list, arena_new_n(&s->arena, Group *, s->groups.n + 1));
  for (Group *g = s->groups.first; g; g = g->next) list[n++] = g;
  qsort(list, (size_t)n, sizeof(Group *), by_end);
  TRY(find_starts(s, list, n, first_old(s), &start));
  for (int i = 0; i < n; i++) {
    const Group *g = list[i];
    Val **results;
    int k = 0;
    TRY_NEW(results, arena_new_n(&s->arena, Val *, g->n + 1));
    TRY(group_write(s->e->graph, g, "tess.scatter_group.default", s->all.node[start[i]],
                    s->all.node[start[s->at_once ? i : i + 1]], STAGE_BACKWARD, results));
    for (Member *m = g->first; m; m = m->next) m->node->outs[0]->forward = results[k++];
  }
  if (n) graph_forward(s->e->graph);
  for (int i = 0; i < n; i++)
    for (Member *m = list[i]->first; m; m = m->next) node_remove(m->node);
  return OK;
}

static Status rewrite(Scatter *s) {
  Found *found;
  int n;
  if (s->wrap) TRY_NEW(s->wrap, patterns_of_option(&s->arena, s->wrap));
  TRY(node_list(s->e->graph, &s->arena, &s->all));
  TRY(find(s, &found, &n));
  hurry_casts(found, n);
  TRY(sink(s, found, n));
  TRY(find_groups(s, found, n));
  return write_groups(s);
}

Status pass_scatter_gradients(Exported *e, const PassArgs *args) {
  Scatter s = {.e = e,
               .wrap = pass_flag(args, "by_module") ? pass_text(args, "wrap") : NULL,
               .at_once = pass_flag(args, "reduce_at_once"),
               .axes = (unsigned)pass_int(args, "axes"),
               .large = pass_number(args, "large_mb") * (1 << 20)};
  if (!graph_is_functional(e->graph)) return OK;
  const double limit = pass_number(args, "bucket_size_mb"), first = pass_number(args, "first_bucket_mb");
  s.groups = (GroupList){.arena = &s.arena,
                         .limit = s.wrap ? INFINITY : limit * (1 << 20),
                         .first_limit = s.wrap ? INFINITY : fmin(limit, first) * (1 << 20)};
  Status status = rewrite(&s);
  if (args->stats) text_printf(args->stats, "scatter_gradients: %d groups reduced\n", s.groups.n);
  arena_free(&s.arena);
  return status;
}
