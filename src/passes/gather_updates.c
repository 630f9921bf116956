/* gather_updates.c -- in a training step, parameters of which each rank has updated a part become whole again group
 * by group, as soon as all of a group are updated.
 *
 *   before:  %v1, .. = adam_step(..)  %v0, .. = adam_step(..)  %w1 = redistribute(%v1, S(0) -> R)  %w0 = ...
 *   after:   %v1, .. = adam_step(..)  %v0, .. = adam_step(..)  %h1, %h0 = gather_each([%v1, %v0])  (more of these)
 *            %w1 = wait(%h1)  %w0 = wait(%h0)                                                     (all at the end)
 *
 * A group is neighbours of so many MiB (`bucket_size_mb`).  No collective of the program comes
 * behind the first of these: where parameters are updated before the backward is over may differ from rank to rank
 * (what they compute again does), and collectives are in one order on all.  So that gathers need not wait for them,
 * those that the program has behind updates (of the loss that is returned) are made as soon as they can be.
 */
#include "passes/comm_block.h"
#include "passes/move_groups.h"
#include "passes/pass.h"
#include "passes/started.h"

typedef struct {
  Exported *e;
  Arena arena;
  unsigned axes; /* of the mesh; 0: any */
  NodeList all;
  GroupList groups;
  int behind; /* position of the last collective that stays */
} Gather;

/* By value id: it is what a parameter becomes. */
static Status find_results(const Gather *g, Arena *arena, bool **out) {
  TRY_NEW(*out, arena_new_n(arena, bool, g->e->graph->nvals + 1));
  for (int i = 0; i < g->e->graph->noutputs; i++)
    if (g->e->outputs[i].kind == OUT_PARAMETER_MUTATION && g->e->graph->outputs[i].kind == ARG_VAL)
      (*out)[g->e->graph->outputs[i].val->id] = true;
  return OK;
}

static bool communicates(const Node *n) { return node_starts(n) || comm_is_start(n) || is_redistribute(n); }

/* The axes of an updated parameter that becomes whole; 0: it is no such node. */
static unsigned gathered_axes(const Gather *g, const bool *result, const Node *n) {
  unsigned axes = n->nouts == 1 && result[n->outs[0]->id] ? move_axes(n, PLACE_S, PLACE_R, g->axes) : 0;
  return n->nargs && n->args[0].kind == ARG_VAL && n->args[0].val->node ? axes : 0;
}

/* The last node that makes what another one reads.  Collectives do not count. */
static void find_maker(void *arg, Val **ref) {
  Node **last = arg, *n = (*ref)->node;
  if (n && !communicates(n) && (!*last || n->mark > (*last)->mark)) *last = n;
}

/* Redistributions behind the first update go to where the collective before them is and what they move is there:
 * all stay in the order that they have. */
static Status hurry_others(Gather *g, const bool *result) {
  Node *before = NULL;              /* the collective before the one at hand */
  int first = g->all.n, place = -1; /* of the first update; of `before` as it stands now */
  for (int at = 0; at < g->all.n; at++) {
    const Node *n = g->all.node[at];
    if (gathered_axes(g, result, n) && n->args[0].val->node->mark < first) first = n->args[0].val->node->mark;
  }
  for (int at = 0; at < g->all.n; at++) {
    Node *n = g->all.node[at], *last = NULL;
    if (gathered_axes(g, result, n) || !communicates(n)) continue;
    node_each_val(n, find_maker, &last);
    if (!last || last->mark <= place) last = before;
    else place = last->mark;
    if (at <= first || !last || !is_redistribute(n)) place = at;
    else if (last->next != n) node_move_before(n, last->next);
    before = n;
  }
  return node_list(g->e->graph, &g->arena, &g->all);
}

static Status find_groups(Gather *g, const bool *result) {
  for (int at = 0; at < g->all.n; at++) {
    Node *n = g->all.node[at];
    unsigned axes = gathered_axes(g, result, n);
    Group *group;
    Member *m;
    if (axes) {
      TRY(group_find(&g->groups, n, "updates", axes, &group));
      TRY(group_add(&g->groups, group, n, &m));
    } else if (communicates(n)) g->behind = at;
  }
  return OK;
}

/* The last parameters are updated first.  Whatever is updated when: groups in this order. */
static Status write_groups(Gather *g) {
  Group **list;
  Node *waits = NULL; /* the first of them, all of which are at the end */
  int n = 0, at = g->behind + 1;
  TRY_NEW(list, arena_new_n(&g->arena, Group *, g->groups.n + 1));
  for (Group *group = g->groups.first; group; group = group->next) list[n++] = group;
  for (int i = n - 1; i >= 0; i--) {
    Val **results;
    int k = 0;
    if (list[i]->last_made >= at) at = list[i]->last_made + 1;
    TRY_NEW(results, arena_new_n(&g->arena, Val *, list[i]->n + 1));
    TRY(group_write_each(g->e->graph, list[i], "tess.gather_each.default", at < g->all.n ? g->all.node[at] : waits,
                         NULL, STAGE_UPDATE, results));
    if (!waits) waits = results[0]->node;
    for (Member *m = list[i]->first; m; m = m->next) m->node->outs[0]->forward = results[k++];
  }
  if (n) graph_forward(g->e->graph);
  for (int i = 0; i < n; i++)
    for (Member *m = list[i]->first; m; m = m->next) node_remove(m->node);
  return OK;
}

static Status rewrite(Gather *g) {
  bool *result;
  TRY(find_results(g, &g->arena, &result));
  TRY(node_list(g->e->graph, &g->arena, &g->all));
  TRY(hurry_others(g, result));
  TRY(find_groups(g, result));
  return write_groups(g);
}

Status pass_gather_updates(Exported *e, const PassArgs *args) {
  Gather g = {.e = e, .axes = (unsigned)pass_int(args, "axes"), .behind = -1};
  if (!graph_is_functional(e->graph)) return OK;
  const double limit = pass_number(args, "bucket_size_mb") * (1 << 20);
  g.groups = (GroupList){.arena = &g.arena, .limit = limit, .first_limit = limit};
  Status s = rewrite(&g);
  if (args->stats) text_printf(args->stats, "gather_updates: %d groups gathered\n", g.groups.n);
  arena_free(&g.arena);
  return s;
}
