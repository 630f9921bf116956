/* fsdp.c -- fully sharded parameters are gathered group by group: started before they are needed, freed after their
 * last use, gathered again for the backward; gradients become shards group by group, too.
 *
 *   before:  %w0 = redistribute(%p0, S(0) -> R)  %w1 = redistribute(%p1, S(0) -> R) ...   (all at the beginning)
 *            %g0 = mm(..)  ...  %s0 = redistribute(%g0, P -> S(0))  %s1 = ...              (all at the end)
 *   after:   %f = gather_group([%p0, %p1])  (the group before is computed)  %f' = wait(%f)  %w0, %w1 = views of %f'
 *            %r = scatter_group([%g0, %g1])  (the backward goes on)  %r' = wait(%r)  %s0, %s1 = views of %r'
 *
 * A group is the parameters of a module (`wrap`); those that are in none are the root's, but for large ones (tables
 * of tokens), of which each is a group: a buffer stays as long as any of its parameters is needed.  Parameters
 * outside of modules stay gathered for the backward.  The collectives of a group are one.  Groups are gathered in
 * the order in which they are first used, in the forward and again in the backward, `prefetch` groups ahead.
 *
 * One reduction is under way at a time: it is waited for where the next one starts, which frees its gradients; or
 * where it starts (`reduce_at_once`).
 *
 * Only where a redistribution is of a parameter itself, or its result goes to the update: others stay.  Linear but
 * for names.
 */
#include <stdlib.h>
#include <string.h>

#include "base/textbuf.h"
#include "dist/spec.h"
#include "optim/recipe.h"
#include "passes/comm_block.h"
#include "passes/pass.h"

static const char redistribute[] = "tess.redistribute.default",
                  sum_of[] = "optim.sum."; /* a parameter: the state that micro-batches are added up in */
enum { ARG_MESH = 1, ARG_SRC, ARG_DST, ARG_SHAPE };

/* One redistribution that becomes part of a group. */
typedef struct Member {
  struct Member *next;
  Node *node;
  struct Group *group;
  Val *in;                 /* the shard, or the partial gradient */
  Val *forward, *backward; /* what stands for its result */
} Member;

/* Redistributions that are made at once: of one module, of one kind. */
typedef struct Group {
  struct Group *next;
  const char *key;    /* module|mesh|dtype|axes */
  const char *module; /* or the parameter that is a group by itself; "": the root */
  bool wrapped;       /* it is a module's */
  Member *first, **last;
  int n;
  int first_use, first_again; /* positions, in the forward and behind it; INT_MAX: none */
  int again_for_all;          /* the same behind the forward, but by nodes that all ranks have, see Fsdp.epoch */
  int last_made;              /* scatters: position behind which all are there */
} Group;

typedef struct {
  Exported *e;
  Arena arena;
  const char *wrap;
  bool keep;     /* nothing is gathered again */
  bool at_once;  /* reductions are waited for where they start */
  unsigned axes; /* that parameters are fully sharded over; 0: any */
  int prefetch;
  double large;           /* bytes */
  Node **node;            /* by position */
  int n, nvals, boundary; /* the first position of the backward; n: there is none */
  /* By position: collectives of all ranks before it.  Ranks choose by themselves what they compute again
   * (Node.again), and must make their collectives in one order: what a gather is moved by for the sake of such
   * nodes stays within two collectives. */
  int *epoch;
  Group *gathers, *scatters;
  Member **gathered; /* by value id: whose result it is, or a view of; NULL: none */
  Val **again;       /* by value id: what stands for a view of a gathered tensor in the backward */
  Val **view_of;     /* by value id: what it is a view of, as the program had it */
  int ngathers, nscatters;
} Fsdp;

/* ---- which redistributions ------------------------------------------------------------------------------- */

static bool read_move(const Node *n, Placement *from, Placement *to, int *naxes) {
  int ndim = n->args[ARG_SHAPE].kind == ARG_LIST ? n->args[ARG_SHAPE].n : -1, other = 0;
  Status s = placements_parse(n->args[ARG_SRC].str, ndim, from, naxes);
  if (!s) s = placements_parse(n->args[ARG_DST].str, ndim, to, &other);
  bool good = !s && other == *naxes;
  status_free(s);
  return good;
}

/* Do the ranks along the axis have neighbouring parts of what the other axes leave?  If another axis cuts the same
 * dimension after it, elements come from ranks outside of the group. */
static bool is_innermost(const Placement *p, int naxes, int axis) {
  for (int b = 0; b < naxes; b++)
    if (b != axis && is_s(&p[b]) && p[b].dim == p[axis].dim && !(p[b].turn && p[b].turn < p[axis].turn))
      return false;
  return true;
}

/* Axes along which it goes from one kind of placement to another, if along the others it stays; 0: it is no such.
 */
static unsigned changed_axes(const Fsdp *f, const Node *n, PlaceKind from_kind, PlaceKind to_kind) {
  Placement from[MAX_AXES], to[MAX_AXES];
  unsigned axes = 0;
  int naxes;
  if (!node_is(n, redistribute) || n->args[ARG_SHAPE].kind != ARG_LIST || !read_move(n, from, to, &naxes)) return 0;
  for (int a = 0; a < naxes; a++) {
    bool sum = from[a].kind != PLACE_P || (from[a].op == REDUCE_SUM && from[a].norm == 0);
    if (from[a].kind == from_kind && to[a].kind == to_kind && sum) axes |= 1u << a;
    else if (from[a].kind != to[a].kind || from[a].dim != to[a].dim) return 0;
  }
  const Placement *sharded = from_kind == PLACE_S ? from : to;
  for (int a = 0; a < naxes; a++)
    if (axes >> a & 1 && !is_innermost(sharded, naxes, a)) return 0;
  return f->axes && axes != f->axes ? 0 : axes;
}

static const char *parameter_of(const Fsdp *f, const Val *v) {
  if (!v || v->node || v->index >= f->e->graph->ninputs || f->e->graph->inputs[v->index] != v) return NULL;
  return f->e->inputs[v->index].kind == IN_PARAMETER ? f->e->inputs[v->index].target : NULL;
}

/* ---- groups ---------------------------------------------------------------------------------------------- */

/* "model.layers.3" of "model.layers.3.mlp.up.weight": the outermost module that `wrap` names, or by default the one
 * whose name is a number; "" if there is none. */
static const char *module_of(Fsdp *f, const char *name) {
  const char *begin = name;
  for (const char *dot = strchr(name, '.'); dot; begin = dot + 1, dot = strchr(begin, '.')) {
    char *prefix = arena_printf(&f->arena, "%.*s", (int)(dot - name), name);
    bool number = (size_t)(dot - begin) == strspn(begin, "0123456789");
    if (prefix && (strcmp(f->wrap, "blocks") ? patterns_match(f->wrap, prefix) : number)) return prefix;
  }
  return "";
}

/* Of the whole tensor that a redistribution moves. */
static double bytes_moved(const Node *n) {
  double bytes = (double)dtype_size(n->outs[0]->dtype);
  for (int d = 0; d < n->args[ARG_SHAPE].n; d++) bytes *= (double)n->args[ARG_SHAPE].list[d].i;
  return bytes;
}

/* The group of a parameter whose redistribution is n. */
static Status find_group(Fsdp *f, Group **list, int *count, const Node *n, const char *name, unsigned axes,
                         Group **out) {
  const char *key, *module = module_of(f, name);
  bool wrapped = *module;
  Group **at = list;
  if (!wrapped && bytes_moved(n) >= f->large) module = name;
  TRY_NEW(key, arena_printf(&f->arena, "%s|%s|%d|%u", module, n->args[ARG_MESH].str, (int)n->outs[0]->dtype, axes));
  while (*at && strcmp((*at)->key, key)) at = &(*at)->next;
  if (!*at) {
    TRY_NEW(*at, arena_new(&f->arena, Group));
    **at = (Group){.key = key,
                   .module = module,
                   .wrapped = wrapped,
                   .first_use = INT32_MAX,
                   .first_again = INT32_MAX,
                   .again_for_all = INT32_MAX};
    (*at)->last = &(*at)->first;
    ++*count;
  }
  *out = *at;
  return OK;
}

static Status add_member(Fsdp *f, Group *g, Node *n, Member **out) {
  Member *m;
  TRY_NEW(m, arena_new(&f->arena, Member));
  *m = (Member){.node = n, .group = g, .in = n->args[0].val};
  *g->last = m;
  g->last = &m->next;
  g->n++;
  *out = m;
  return OK;
}

static Status find_gathers(Fsdp *f) {
  for (int at = 0; at < f->n; at++) {
    Node *n = f->node[at];
    const char *name = n->nargs && n->args[0].kind == ARG_VAL ? parameter_of(f, n->args[0].val) : NULL;
    unsigned axes = name ? changed_axes(f, n, PLACE_S, PLACE_R) : 0;
    Group *g;
    if (!axes) continue;
    TRY(find_group(f, &f->gathers, &f->ngathers, n, name, axes, &g));
    TRY(add_member(f, g, n, &f->gathered[n->outs[0]->id]));
  }
  return OK;
}

/* ---- gradients ------------------------------------------------------------------------------------------- */

static bool is_cast(const Node *n) { return node_is(n, "aten._to_copy.default") && n->args[0].kind == ARG_VAL; }

/* n and what it is made of, as far as it is rounded or redistributed, goes to where the gradient is made. */
static void hurry(Node *n) {
  Node *made = n->args[0].kind == ARG_VAL ? n->args[0].val->node : NULL;
  if (!made || !(is_cast(n) || node_is(n, redistribute))) return;
  hurry(made);
  if (made->next != n) node_move_before(n, made->next);
}

/* What is done to gradients before they are reduced is done as soon as they are there. */
static void hurry_gradients(Fsdp *f) {
  for (Node *n = f->e->graph->first; n; n = n->next)
    if (n->stage == STAGE_BACKWARD && n->nargs && n->args[0].kind == ARG_VAL && n->args[0].val->node &&
        changed_axes(f, n, PLACE_P, PLACE_S))
      hurry(n->args[0].val->node);
}

/* By value id: the parameter that some node of the update reads together with it. */
static const char **name_gradients(Fsdp *f) {
  const char **of = arena_new_n(&f->arena, const char *, f->e->graph->nvals + 1);
  for (int at = 0; of && at < f->n; at++) {
    const Node *n = f->node[at];
    const char *name = NULL;
    if (n->stage != STAGE_UPDATE) continue;
    for (int i = 0; i < n->nargs && !name; i++)
      if (n->args[i].kind == ARG_VAL) name = parameter_of(f, n->args[i].val);
    for (int i = 0; name && i < n->nargs; i++)
      if (n->args[i].kind == ARG_VAL) of[n->args[i].val->id] = name;
  }
  for (int i = 0; of && i < f->e->graph->noutputs; i++) { /* or that it is an output for, or added up for */
    const Arg *out = &f->e->graph->outputs[i];
    const char *target = f->e->outputs[i].target;
    bool sum = target && !strncmp(target, sum_of, strlen(sum_of));
    if ((f->e->outputs[i].kind == OUT_GRADIENT_TO_PARAMETER || sum) && out->kind == ARG_VAL)
      of[out->val->id] = target + (sum ? strlen(sum_of) : 0);
  }
  /* Back through what reduces it further (the replicas of a group): from users to what they use. */
  for (int at = f->n - 1; of && at >= 0; at--) {
    const Node *n = f->node[at];
    bool adds = node_is(n, "aten.add.Tensor"),
         passes_on = node_is(n, WAIT_TENSOR) || comm_is_all_reduce(n) || node_is(n, redistribute) || is_cast(n);
    for (int i = 0; i < (adds ? 2 : passes_on ? 1 : 0); i++)
      if (n->args[i].kind == ARG_VAL && !of[n->args[i].val->id]) of[n->args[i].val->id] = of[n->outs[0]->id];
  }
  return of;
}

static Status find_scatters(Fsdp *f) {
  const char **name;
  int end = f->n; /* the first: all gradients are made before it, and nothing reads what is reduced */
  TRY_NEW(name, name_gradients(f));
  for (int at = f->boundary; at < f->n; at++) {
    Node *n = f->node[at];
    unsigned axes = n->nouts == 1 && name[n->outs[0]->id] ? changed_axes(f, n, PLACE_P, PLACE_S) : 0;
    Group *g;
    Member *m;
    if (!axes || n->args[0].kind != ARG_VAL || !n->args[0].val->node) continue;
    if (at < end) end = at;
    if (n->args[0].val->node->mark >= end) continue;
    TRY(find_group(f, &f->scatters, &f->nscatters, n, name[n->outs[0]->id], axes, &g));
    TRY(add_member(f, g, n, &m));
    if (m->in->node->mark > g->last_made) g->last_made = m->in->node->mark;
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
  int *first = u->at < u->f->boundary ? &g->first_use : &g->again_for_all;
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
  for (int at = 0; at < f->n; at++) {
    Node *n = f->node[at];
    Use u = {f, at};
    if (is_view(n) && f->gathered[n->args[0].val->id] && at < f->boundary) {
      f->gathered[n->outs[0]->id] = f->gathered[n->args[0].val->id];
      f->view_of[n->outs[0]->id] = n->args[0].val;
    }
    if (!n->again) node_each_val(n, note_use, &u);
  }
  for (Group *g = f->gathers; g; g = g->next) g->first_again = g->again_for_all;
  for (int at = f->boundary; at < f->n; at++) {
    Use u = {f, at};
    if (f->node[at]->again) node_each_val(f->node[at], note_early_use, &u);
  }
}

static bool communicates(const Node *n) { return comm_is_start(n) || node_is(n, redistribute); }

/* Collectives that stay where they are, and the starts of those that scatter_all() makes. */
static Status count_epochs(Fsdp *f) {
  TRY_NEW(f->epoch, arena_new_n(&f->arena, int, f->n + 2));
  for (int at = 0; at < f->n; at++) f->epoch[at + 1] += communicates(f->node[at]) && !f->node[at]->again;
  for (const Group *g = f->scatters; g; g = g->next) {
    for (const Member *m = g->first; m; m = m->next) f->epoch[m->node->mark + 1]--;
    f->epoch[g->last_made + 1]++;
  }
  for (const Group *g = f->gathers; g; g = g->next)
    for (const Member *m = g->first; m; m = m->next) f->epoch[m->node->mark + 1]--;
  for (int at = 0; at < f->n; at++) f->epoch[at + 1] += f->epoch[at];
  return OK;
}

/* ---- writing a group ------------------------------------------------------------------------------------- */

static int64_t numel_of(const Val *v) {
  int64_t n = 1;
  for (int d = 0; d < v->ndim; d++) n *= v->size[d]->value;
  return n;
}

/* The arguments that tell how each of the group moves. */
static Status describe_moves(Fsdp *f, const Group *g, Arg *moves, Arg *shapes, Arg *list, int64_t *size) {
  Arena *arena = f->e->graph->arena;
  TextBuf text = {0};
  int n = 0, cap = 0;
  for (const Member *m = g->first; m; m = m->next) cap += 1 + m->node->args[ARG_SHAPE].n;
  Arg *numbers = arena_new_n(arena, Arg, cap + 1), *in = arena_new_n(arena, Arg, g->n + 1);
  if (!numbers || !in) return fail_oom();
  int k = 0;
  *size = 0;
  for (const Member *m = g->first; m; m = m->next) {
    const Arg *a = m->node->args;
    text_printf(&text, "%s%s>%s", k ? ";" : "", a[ARG_SRC].str, a[ARG_DST].str);
    numbers[n++] = arg_int(a[ARG_SHAPE].n);
    for (int d = 0; d < a[ARG_SHAPE].n; d++) numbers[n++] = a[ARG_SHAPE].list[d];
    in[k++] = arg_val(m->in);
    *size += numel_of(m->node->outs[0]);
  }
  const char *copy = text.failed ? NULL : arena_strdup(arena, text.text);
  text_free(&text);
  if (!copy) return fail_oom();
  *moves = arg_str(copy);
  *shapes = arg_list(numbers, n);
  *list = arg_list(in, k);
  return OK;
}

static Status add_call(Fsdp *f, Node *before, const Node *like, Stage stage, const char *target, const Arg *args,
                       int nargs, Node **out) {
  TRY(graph_emit_like(f->e->graph, before, like, target, args, nargs, out));
  (*out)->stage = stage;
  return OK;
}

/* The tensors of a group as views of the buffer; results[k] of member k. */
static Status add_views(Fsdp *f, const Group *g, Node *before, Stage stage, Val *flat, Val **results) {
  Graph *graph = f->e->graph;
  Arg *lengths;
  Node *split;
  int k = 0;
  TRY_NEW(lengths, arena_new_n(graph->arena, Arg, g->n + 1));
  for (const Member *m = g->first; m; m = m->next) lengths[k++] = arg_int(numel_of(m->node->outs[0]));
  TRY(add_call(f, before, g->first->node, stage, "aten.split.sizes",
               (Arg[]){arg_val(flat), arg_list(lengths, g->n)}, 2, &split));
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    const Sym *length;
    Val *part;
    TRY_NEW(length, sym_int(graph->syms, lengths[k].i));
    TRY(node_add_tensor(split, "getitem", like->dtype, 1, &length, &part));
  }
  k = 0;
  for (const Member *m = g->first; m; m = m->next, k++) {
    const Val *like = m->node->outs[0];
    Arg *size;
    Node *n;
    TRY_NEW(size, arena_new_n(graph->arena, Arg, like->ndim + 1));
    for (int d = 0; d < like->ndim; d++) size[d] = arg_int(like->size[d]->value);
    TRY(add_call(f, before, m->node, stage, "aten.reshape.default",
                 (Arg[]){arg_val(split->outs[k]), arg_list(size, like->ndim)}, 2, &n));
    TRY(node_add_tensor(n, like->name, like->dtype, like->ndim, like->size, &results[k]));
  }
  return OK;
}

/* The start before one node, the wait and the views before another. */
static Status add_group(Fsdp *f, const Group *g, const char *target, Node *before, Node *needed, Stage stage,
                        Val **results) {
  Graph *graph = f->e->graph;
  const Node *like = g->first->node;
  Arg args[6];
  int64_t size;
  const Sym *length;
  Node *n;
  Val *flat;
  TRY(describe_moves(f, g, &args[2], &args[3], &args[0], &size));
  args[1] = like->args[ARG_MESH];
  args[4] = arg_int(size);
  const char *why = arena_printf(graph->arena, "group '%s'", *g->module ? g->module : "(root)");
  if (!why) return fail_oom();
  args[5] = arg_str(why);
  TRY_NEW(length, sym_int(graph->syms, size));
  TRY(add_call(f, before, like, stage, target, args, 6, &n));
  TRY(node_add_tensor(n, "group", like->outs[0]->dtype, 1, &length, &flat));
  Arg started = arg_val(flat);
  TRY(add_call(f, needed, like, stage, WAIT_TENSOR, &started, 1, &n));
  TRY(node_add_tensor(n, "group_wait", like->outs[0]->dtype, 1, &length, &flat));
  return add_views(f, g, needed, stage, flat, results);
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
  TRY_NEW(list, arena_new_n(&f->arena, Gather, f->ngathers + 1));
  for (Group *g = f->gathers; g; g = g->next) {
    bool late = again || g->first_use == INT32_MAX; /* or of the backward alone */
    Gather one = {g, late ? g->again_for_all : g->first_use, 0, late ? g->first_again : g->first_use};
    if (again ? is_gathered_again(f, g) : one.need < INT32_MAX) list[(*n)++] = one;
  }
  qsort(list, (size_t)*n, sizeof *list, by_turn);
  for (int i = 0; i < *n; i++) {
    int begin = again ? f->boundary : 0, ahead = i >= f->prefetch ? list[i - f->prefetch].need : begin;
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
    TRY(add_group(f, g, "tess.gather_group.default", f->node[list[i].start], f->node[list[i].need],
                  again ? STAGE_BACKWARD : STAGE_FORWARD, results));
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
  Node *node;
  Status status;
} Replace;

static void replace_ref(void *arg, Val **ref) {
  Replace *r = arg;
  Fsdp *f = r->f;
  const Member *m = !r->status && (*ref)->id < f->nvals ? f->gathered[(*ref)->id] : NULL;
  if (!m) return;
  bool behind = r->node->mark >= f->boundary && r->node->mark >= m->group->first_again;
  if (behind && m->backward) r->status = again_of(f, *ref, f->node[m->group->first_again], ref);
  else if ((*ref)->node == m->node && m->forward) *ref = m->forward;
}

static Status replace_uses(Fsdp *f) {
  for (int at = 0; at < f->n; at++) {
    Replace r = {f, f->node[at], OK};
    node_each_val(f->node[at], replace_ref, &r);
    TRY(r.status);
  }
  return OK;
}

/* ---- all of it ------------------------------------------------------------------------------------------- */

static int by_last_made(const void *a, const void *b) {
  const Group *x = *(Group *const *)a, *y = *(Group *const *)b;
  return x->last_made - y->last_made;
}

/* The first of the redistributions that groups stand for: all gradients are there. */
static int first_scatter(const Fsdp *f) {
  int first = f->n - 1;
  for (const Group *g = f->scatters; g; g = g->next)
    for (const Member *m = g->first; m; m = m->next)
      if (m->node->mark < first) first = m->node->mark;
  return first;
}

static Status scatter_all(Fsdp *f) {
  Group **list;
  int n = 0, end = first_scatter(f);
  TRY_NEW(list, arena_new_n(&f->arena, Group *, f->nscatters + 1));
  for (Group *g = f->scatters; g; g = g->next) list[n++] = g;
  if (!n) return OK;
  qsort(list, (size_t)n, sizeof(Group *), by_last_made);
  for (int i = 0; i < n; i++) {
    Group *g = list[i];
    int start = g->last_made + 1, next = i + 1 < n ? list[i + 1]->last_made + 1 : end, k = 0;
    Val **results;
    if (next > end) next = end;
    if (f->at_once) next = start;
    TRY_NEW(results, arena_new_n(&f->arena, Val *, g->n + 1));
    TRY(add_group(f, g, "tess.scatter_group.default", f->node[start], f->node[next > start ? next : start],
                  STAGE_BACKWARD, results));
    for (Member *m = g->first; m; m = m->next) m->node->outs[0]->forward = results[k++];
  }
  graph_forward(f->e->graph);
  return OK;
}

static void remove_old(Group *g) {
  for (; g; g = g->next)
    for (Member *m = g->first; m; m = m->next) node_remove(m->node);
}

static Status number_nodes(Fsdp *f) {
  Graph *g = f->e->graph;
  TRY_NEW(f->node, arena_new_n(&f->arena, Node *, g->nnodes + 1));
  f->nvals = g->nvals;
  TRY_NEW(f->gathered, arena_new_n(&f->arena, Member *, g->nvals + 1));
  TRY_NEW(f->again, arena_new_n(&f->arena, Val *, g->nvals + 1));
  TRY_NEW(f->view_of, arena_new_n(&f->arena, Val *, g->nvals + 1));
  f->boundary = -1;
  for (Node *n = g->first; n; n = n->next) {
    n->mark = f->n;
    if (n->stage == STAGE_BACKWARD && f->boundary < 0) f->boundary = f->n;
    f->node[f->n++] = n;
  }
  if (f->boundary < 0) f->boundary = f->n;
  return OK;
}

static Status rewrite(Fsdp *f) {
  hurry_gradients(f);
  TRY(number_nodes(f));
  TRY(find_gathers(f));
  TRY(find_scatters(f));
  TRY(count_epochs(f));
  find_uses(f);
  TRY(scatter_all(f)); /* first: gathers that start at the same place stand behind, which is their epoch */
  TRY(gather_all(f, false));
  TRY(gather_all(f, true));
  TRY(replace_uses(f));
  remove_old(f->gathers);
  remove_old(f->scatters);
  return OK;
}

/* Options of passes have commas between them, so patterns have | instead. */
static char *with_commas(Arena *arena, const char *text) {
  char *copy = arena_strdup(arena, text);
  for (char *p = copy; p && *p; p++)
    if (*p == '|') *p = ',';
  return copy;
}

Status pass_fsdp(Exported *e, const PassArgs *args) {
  Fsdp f = {.e = e,
            .keep = pass_flag(args, "keep"),
            .at_once = pass_flag(args, "reduce_at_once"),
            .prefetch = (int)pass_int(args, "prefetch"),
            .large = pass_number(args, "large_mb") * (1 << 20),
            .axes = (unsigned)pass_int(args, "axes")};
  if (!graph_is_functional(e->graph)) return OK;
  f.wrap = with_commas(&f.arena, pass_text(args, "wrap"));
  Status s = f.wrap ? rewrite(&f) : fail_oom();
  if (args->stats) text_printf(args->stats, "fsdp: %d groups gathered, %d reduced\n", f.ngathers, f.nscatters);
  arena_free(&f.arena);
  return s;
}
