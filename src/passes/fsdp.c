/* fsdp.c -- fully sharded parameters are gathered group by group: started before they are needed, freed after their
 * last use, gathered again for the backward.  (Their gradients become shards in scatter_gradients.c.)
 *
 *   before:  %w0 = redistribute(%p0, S(0) -> R)  %w1 = redistribute(%p1, S(0) -> R) ...   (all at the beginning)
 *   after:   %f = gather_group([%p0, %p1])  (the group before is computed)  %f' = wait(%f)  %w0, %w1 = views of %f'
 *
 * A group is the parameters of a module (`wrap`); those that are in none are the root's, but for large ones (tables
 * of tokens), of which each is a group: a buffer stays as long as any of its parameters is needed.  Parameters
 * outside of modules stay gathered for the backward.  The collectives of a group are one.  Groups are gathered in
 * the order in which they are first used, in the forward and again in the backward, `prefetch` groups ahead.
 *
 * Only where a redistribution is of a parameter itself: others stay.  Linear but for names.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "passes/comm_block.h"
#include "passes/move_groups.h"
#include "passes/pass.h"
#include "passes/started.h"

typedef struct {
  Exported *e;
  Arena arena;
  const char *wrap;
  bool keep;     /* nothing is gathered again */
  unsigned axes; /* that parameters are fully sharded over; 0: any */
  int prefetch;
  double large; /* bytes */
  NodeList all;
  int nvals;
  /* By position: collectives of all ranks before it.  Ranks choose by themselves what they compute again
   * (Node.again), and must make their collectives in one order: what a gather is moved by for the sake of such
   * nodes stays within two collectives. */
  int *epoch;
  GroupList gathers;
  Member **gathered; /* by value id: whose result it is, or a view of; NULL: none */
  Val **again;       /* by value id: what stands for a view of a gathered tensor in the backward */
  Val **view_of;     /* by value id: what it is a view of, as the program had it */
} Fsdp;

static Status find_gathers(Fsdp *f) {
  for (int at = 0; at < f->all.n; at++) {
    Node *n = f->all.node[at];
    const char *name = n->nargs && n->args[0].kind == ARG_VAL ? parameter_of(f->e, n->args[0].val) : NULL;
    unsigned axes = name ? move_axes(n, PLACE_S, PLACE_R, f->axes) : 0;
    Group *g;
    if (!axes) continue;
    TRY(group_find_module(&f->gathers, n, f->wrap, f->large, name, axes, &g));
    TRY(group_add(&f->gathers, g, n, &f->gathered[n->outs[0]->id]));
  }
  return OK;
}

/* ---- uses ------------------------------------------------------------------------------------------------ */

static bool is_view(const Node *n) {
  return n->op && !n->op->schema.mutates && n->nouts == 1 && n->op->schema.nreturns > 0 &&
         n->op->schema.returns[0].aliased && n->args[0].kind == ARG_VAL;
}

typedef struct {
  Fsdp *f;
  int at;
} Use;

static void note_use(void *arg, Val **ref) {
  const Use *u = arg;
  const Member *m = u->f->gathered[(*ref)->id];
  if (!m) return;
  Group *g = m->group;
  int *first = u->at < u->f->all.boundary ? &g->first_use : &g->again_for_all;
  if (u->at < *first) *first = u->at;
}

/* What is computed again may read a group earlier, but not before another collective. */
static void note_early_use(void *arg, Val **ref) {
  const Use *u = arg;
  const Fsdp *f = u->f;
  const Member *m = f->gathered[(*ref)->id];
  Group *g = m ? m->group : NULL;
  if (!g || g->again_for_all == INT32_MAX || u->at >= g->first_again) return;
  if (f->epoch[u->at] == f->epoch[g->again_for_all]) g->first_again = u->at;
}

/* Views of gathered tensors count as they do. */
static void find_uses(Fsdp *f) {
  for (int at = 0; at < f->all.n; at++) {
    Node *n = f->all.node[at];
    Use u = {f, at};
    if (is_view(n) && f->gathered[n->args[0].val->id] && at < f->all.boundary) {
      f->gathered[n->outs[0]->id] = f->gathered[n->args[0].val->id];
      f->view_of[n->outs[0]->id] = n->args[0].val;
    }
    if (!n->again) node_each_val(n, note_use, &u);
  }
  Use end = {f, f->all.boundary > 0 ? f->all.boundary - 1 : 0}; /* of the forward: before shards are updated */
  for (int i = 0; i < f->e->graph->noutputs; i++) arg_each_val(&f->e->graph->outputs[i], note_use, &end);
  for (Group *g = f->gathers.first; g; g = g->next) g->first_again = g->again_for_all;
  for (int at = f->all.boundary; at < f->all.n; at++) {
    Use u = {f, at};
    if (f->all.node[at]->again) node_each_val(f->all.node[at], note_early_use, &u);
  }
}

static bool communicates(const Node *n) { return node_starts(n) || comm_is_start(n) || is_redistribute(n); }

/* Collectives that stay where they are. */
static Status count_epochs(Fsdp *f) {
  TRY_NEW(f->epoch, arena_new_n(&f->arena, int, f->all.n + 2));
  for (int at = 0; at < f->all.n; at++)
    f->epoch[at + 1] += communicates(f->all.node[at]) && !f->all.node[at]->again;
  for (const Group *g = f->gathers.first; g; g = g->next)
    for (const Member *m = g->first; m; m = m->next) f->epoch[m->node->mark + 1]--;
  for (int at = 0; at < f->all.n; at++) f->epoch[at + 1] += f->epoch[at];
  return OK;
}

/* ---- gathering ------------------------------------------------------------------------------------------- */

static bool is_gathered_again(const Fsdp *f, const Group *g) {
  return !f->keep && g->wrapped && g->first_use < INT32_MAX && g->again_for_all < INT32_MAX;
}

typedef struct {
  Group *group;
  int turn;        /* positions: the order in which groups are gathered, */
  int start, need; /* where it starts, and before which it must be there */
} Gather;

static int by_turn(const void *a, const void *b) { return ((const Gather *)a)->turn - ((const Gather *)b)->turn; }

/* Groups in their order; each is started where the one `prefetch` before it is first used, and none before those
 * before it. */
static Status plan_gathers(Fsdp *f, bool again, Gather **out, int *n) {
  Gather *list;
  *n = 0;
  TRY_NEW(list, arena_new_n(&f->arena, Gather, f->gathers.n + 1));
  for (Group *g = f->gathers.first; g; g = g->next) {
    bool late = again || g->first_use == INT32_MAX; /* or of the backward alone */
    Gather one = {g, late ? g->again_for_all : g->first_use, 0, late ? g->first_again : g->first_use};
    if (again ? is_gathered_again(f, g) : one.need < INT32_MAX) list[(*n)++] = one;
  }
  qsort(list, (size_t)*n, sizeof *list, by_turn);
  for (int i = 0; i < *n; i++) {
    int begin = again ? f->all.boundary : 0, ahead = i >= f->prefetch ? list[i - f->prefetch].need : begin;
    list[i].start = ahead < list[i].need ? ahead : list[i].need;
  }
  for (int i = *n - 1; i > 0; i--)
    if (list[i].start < list[i - 1].start) list[i - 1].start = list[i].start;
  *out = list;
  return OK;
}

static Status gather_all(Fsdp *f, bool again) {
  Gather *list;
  Val **results;
  int n;
  TRY(plan_gathers(f, again, &list, &n));
  for (int i = 0; i < n; i++) {
    const Group *g = list[i].group;
    int k = 0;
    TRY_NEW(results, arena_new_n(&f->arena, Val *, g->n + 1));
    TRY(group_write(f->e->graph, g, "tess.gather_group.default", f->all.node[list[i].start],
                    f->all.node[list[i].need], again ? STAGE_BACKWARD : STAGE_FORWARD, results));
    for (Member *m = g->first; m; m = m->next) *(again ? &m->backward : &m->forward) = results[k++];
  }
  return OK;
}

/* What a node of the backward reads in the place of a gathered tensor or a view of one. */
static Status again_of(Fsdp *f, Val *v, Node *before, Val **out) {
  const Member *m = f->gathered[v->id];
  if (f->again[v->id]) return *out = f->again[v->id], OK;
  if (v->node == m->node) return *out = m->backward, OK;
  Node *copy;
  Val *from;
  TRY(again_of(f, f->view_of[v->id], before, &from));
  TRY(node_clone(v->node, before, &copy));
  copy->args[0] = arg_val(from);
  copy->stage = STAGE_BACKWARD;
  *out = f->again[v->id] = copy->outs[0];
  return OK;
}

typedef struct {
  Fsdp *f;
  Node *node; /* NULL: an output of the program */
  Status status;
} Replace;

static void replace_ref(void *arg, Val **ref) {
  Replace *r = arg;
  Fsdp *f = r->f;
  const Member *m = !r->status && (*ref)->id < f->nvals ? f->gathered[(*ref)->id] : NULL;
  if (!m) return;
  int at = r->node ? r->node->mark : f->all.n;
  bool behind = at >= f->all.boundary && at >= m->group->first_again;
  if (behind && m->backward) r->status = again_of(f, *ref, f->all.node[m->group->first_again], ref);
  else if ((*ref)->node == m->node && m->forward) *ref = m->forward;
}

static Status replace_uses(Fsdp *f) {
  for (int at = 0; at < f->all.n; at++) {
    Replace r = {f, f->all.node[at], OK};
    node_each_val(f->all.node[at], replace_ref, &r);
    TRY(r.status);
  }
  for (int i = 0; i < f->e->graph->noutputs; i++) {
    Replace r = {f, NULL, OK};
    arg_each_val(&f->e->graph->outputs[i], replace_ref, &r);
    TRY(r.status);
  }
  return OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

static void remove_old(Group *g) {
  for (; g; g = g->next)
    for (Member *m = g->first; m; m = m->next) node_remove(m->node);
}

static Status rewrite(Fsdp *f) {
  int nvals = f->nvals = f->e->graph->nvals;
  TRY_NEW(f->wrap, patterns_of_option(&f->arena, f->wrap));
  TRY_NEW(f->gathered, arena_new_n(&f->arena, Member *, nvals + 1));
  TRY_NEW(f->again, arena_new_n(&f->arena, Val *, nvals + 1));
  TRY_NEW(f->view_of, arena_new_n(&f->arena, Val *, nvals + 1));
  TRY(node_list(f->e->graph, &f->arena, &f->all));
  TRY(find_gathers(f));
  TRY(count_epochs(f));
  find_uses(f);
  TRY(gather_all(f, false));
  TRY(gather_all(f, true));
  TRY(replace_uses(f));
  remove_old(f->gathers.first);
  return OK;
}

Status pass_fsdp(Exported *e, const PassArgs *args) {
  Fsdp f = {.e = e,
            .wrap = pass_text(args, "wrap"),
            .keep = pass_flag(args, "keep"),
            .prefetch = (int)pass_int(args, "prefetch"),
            .large = pass_number(args, "large_mb") * (1 << 20),
            .axes = (unsigned)pass_int(args, "axes")};
  if (!graph_is_functional(e->graph)) return OK;
  f.gathers = (GroupList){.arena = &f.arena, .limit = INFINITY, .first_limit = INFINITY};
  Status s = rewrite(&f);
  if (args->stats) text_printf(args->stats, "fsdp: %d groups gathered\n", f.gathers.n);
  arena_free(&f.arena);
  return s;
}
