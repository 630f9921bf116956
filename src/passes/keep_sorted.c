/* keep_sorted.c -- rows that go from one product with experts to the next stay sorted by expert in between.
 *
 *   before:  %y = tess.expert_mm(%x, %w, %ids)   %z = silu(%y)   %u = tess.expert_mm(%z, %v, %ids)
 *   after:   %order, %place, %ends = tess.expert_order(%ids, 4)   %s = index_select(%x, 0, %order)
 *            %y = _grouped_mm(%s, %w, %ends)   %z = silu(%y)   %t = _grouped_mm(%z, %v, %ends)
 *            %u = index_select(%t, 0, %place)
 *
 * Each expert_mm by itself brings the rows of an expert together and takes them back.  In one rank's program,
 * forward and backward, that is done once on the way in and once on the way out.  (passes/unsort_rows.c does the
 * opposite before rows are spread over ranks: these are the rows that a rank has.)
 *
 * K1  Sorted are results of expert_mm, and results of row-wise ops on these all of whose users take them sorted.
 *     Other operands of such ops are sorted if they hold one number per row.
 * K2  Only where some row-wise op is sorted: an expert_mm alone needs less memory as it is.
 */
#include <stdlib.h>

#include "passes/match.h"
#include "passes/pass.h"
#include "passes/row_wise.h"
#include "passes/views.h"

typedef struct {
  const Val *ids; /* sorted by these; NULL: not sorted */
  bool product;   /* the result of an expert_mm: may be had in its own order, too */
  bool needed;    /* in its own order, by somebody */
  Val *sorted;
} Sorted;

typedef struct {
  const Val *ids;
  bool used; /* by a row-wise op */
  Val *order, *place, *ends;
} Group;

typedef struct {
  Graph *g;
  Sorted *at; /* by Val.id, of the values before the pass */
  Group *group;
  int ngroups;
} State;

static Group *group_of(State *s, const Val *ids) {
  for (int i = 0; i < s->ngroups; i++)
    if (s->group[i].ids == ids) return &s->group[i];
  return NULL;
}

/* Of the experts that are all here: their ids. */
static const Val *ids_of(const Node *n) {
  const bool mm = node_is(n, "tess.expert_mm.default"), weight = node_is(n, "tess.expert_mm_weight.default");
  if (!mm && !weight) return NULL;
  const Arg *first = &n->args[mm ? 3 : 4], *experts = &n->args[mm ? 4 : 5];
  int64_t begin, count;
  const Val *w = n->args[mm ? 1 : 3].val;
  if (!match_int(first, 0, &begin) || begin || !match_int(experts, -1, &count) || !sym_is_int(w->size[0]))
    return NULL;
  return count < 0 || count == w->size[0]->value ? n->args[2].val : NULL;
}

static bool is_sorted(const State *s, const Val *v, const Val *ids) { return ids && s->at[v->id].ids == ids; }

/* ---- which values are sorted --------------------------------------------------------------------------------- */

/* One number per row: it costs nothing to sort. */
static bool is_narrow(const Val *v) {
  for (int d = 1; d < v->ndim; d++)
    if (!sym_is_int(v->size[d]) || v->size[d]->value != 1) return false;
  return v->ndim > 1;
}

typedef struct {
  State *s;
  const Val *ids;
  int ndim;
  bool rows, fits; /* of one argument: it has rows; all tensors of it can be had sorted, or broadcast */
} Operand;

static void look_at(void *arg, Val **ref) {
  Operand *o = arg;
  const Val *v = *ref;
  if (v->type != TY_TENSOR || v->ndim != o->ndim || v->size[0] != o->ids->size[0]) return;
  o->rows = true;
  o->fits &= is_sorted(o->s, v, o->ids) || is_narrow(v);
}

static void find_ids(void *arg, Val **ref) {
  Operand *o = arg;
  if (!o->ids && (*ref)->type == TY_TENSOR) o->ids = o->s->at[(*ref)->id].ids;
}

/* A row-wise op on sorted values: by which ids; the arguments with rows.  NULL: it is none. */
static const Val *sorted_op(State *s, Node *n, unsigned *rows) {
  Operand o = {.s = s, .fits = true};
  *rows = 0;
  if (!n->op || !n->nouts || n->nargs > 32) return NULL;
  node_each_val(n, find_ids, &o);
  if (!o.ids) return NULL;
  for (int i = 0; i < n->nargs; i++) {
    /* of an op that does not broadcast, argument 0 says how many dimensions there are */
    o.ndim = n->op->def->flags & OP_POINTWISE || n->args[0].kind != ARG_VAL ? n->outs[0]->ndim
                                                                            : n->args[0].val->ndim;
    o.rows = false;
    arg_each_val(&n->args[i], look_at, &o);
    if (o.rows) *rows |= 1u << i;
  }
  return o.fits && is_row_wise(n, *rows, o.ids->size[0]) ? o.ids : NULL;
}

static bool is_kept(const State *s, const Node *n) {
  return n->nouts && s->at[n->outs[0]->id].ids && !s->at[n->outs[0]->id].product;
}

/* A product takes its rows, and the cotangents of rows, sorted. */
static bool takes_sorted(const Node *n, int arg) {
  return ids_of(n) && (arg == 0 || (arg == 1 && node_is(n, "tess.expert_mm_weight.default")));
}

typedef struct {
  State *s;
  const Val *ids; /* what is sorted by these need not be in its own order; NULL: all is needed so */
} Need;

static void need(void *arg, Val **ref) {
  const Need *o = arg;
  if (!is_sorted(o->s, *ref, o->ids)) o->s->at[(*ref)->id].needed = true;
}

static void find_needed(State *s) {
  Need plain = {s, NULL};
  unsigned rows;
  for (int v = 0; v < s->g->nvals; v++) s->at[v].needed = false;
  for (Node *n = s->g->first; n; n = n->next) {
    const bool kept = is_kept(s, n) && sorted_op(s, n, &rows);
    Need sorted = {s, kept ? s->at[n->outs[0]->id].ids : ids_of(n)};
    for (int i = 0; i < n->nargs; i++)
      arg_each_val(&n->args[i], need, (kept ? rows >> i & 1 : takes_sorted(n, i)) ? &sorted : &plain);
  }
  for (int i = 0; i < s->g->noutputs; i++) arg_each_val(&s->g->outputs[i], need, &plain);
}

/* Values that somebody takes in another order, or that are made of such, are not kept: again and again, until none
 * is left. */
static bool drop_needed(State *s) {
  bool dropped = false;
  unsigned rows;
  find_needed(s);
  for (Node *n = s->g->first; n; n = n->next) {
    if (!is_kept(s, n)) continue;
    bool keep = sorted_op(s, n, &rows) == s->at[n->outs[0]->id].ids;
    for (int i = 0; i < n->nouts; i++) keep &= !s->at[n->outs[i]->id].needed;
    for (int i = 0; i < n->nouts && !keep; i++) s->at[n->outs[i]->id].ids = NULL;
    dropped |= !keep;
  }
  return dropped;
}

static Status find_sorted(State *s) {
  unsigned rows;
  for (Node *n = s->g->first; n; n = n->next) {
    const Val *ids = ids_of(n);
    if (ids && !group_of(s, ids)) s->group[s->ngroups++] = (Group){.ids = ids};
    const bool product = ids && node_is(n, "tess.expert_mm.default");
    if (!ids) ids = sorted_op(s, n, &rows);
    for (int i = 0; i < n->nouts && ids && (product || !ids_of(n)); i++)
      s->at[n->outs[i]->id] = (Sorted){.ids = ids, .product = product};
  }
  while (drop_needed(s)) {
  }
  for (Node *n = s->g->first; n; n = n->next)
    if (is_kept(s, n)) group_of(s, s->at[n->outs[0]->id].ids)->used = true;
  return OK;
}

/* ---- making them -----------------------------------------------------------------------------------------------
 */

static Status make_order(State *s, Node *n, Group *group) {
  const Val *w = n->args[node_is(n, "tess.expert_mm.default") ? 1 : 3].val;
  Node *order;
  if (group->order) return OK;
  Arg args[] = {n->args[2], arg_int(w->size[0]->value)};
  TRY(graph_emit_like(s->g, n, n, "tess.expert_order.default", args, 2, &order));
  TRY(node_add_tensor(order, "order", DT_I64, 1, group->ids->size, &group->order));
  TRY(node_add_tensor(order, "place", DT_I64, 1, group->ids->size, &group->place));
  return node_add_tensor(order, "ends", DT_I64, 1, w->size, &group->ends);
}

/* v, sorted: kept so, or brought into the order before n. */
static Status sorted_value(State *s, Node *n, const Group *group, Val *v, Val **out) {
  Sorted *at = &s->at[v->id];
  if (at->sorted && (at->ids == group->ids || (!at->ids && at->sorted->node->args[2].val == group->order)))
    return *out = at->sorted, OK;
  Node *take;
  Arg args[] = {arg_val(v), arg_int(0), arg_val(group->order)};
  TRY(graph_emit_like(s->g, n, n, "aten.index_select.default", args, 3, &take));
  TRY(node_add_out_like(take, v->name, v, out));
  (*out)->stride = NULL;
  if (!at->ids) at->sorted = *out;
  return OK;
}

static Status make_product(State *s, Node *n, const Group *group) {
  Sorted *at = &s->at[n->outs[0]->id];
  Val *x;
  TRY(sorted_value(s, n, group, n->args[0].val, &x));
  Arg args[] = {arg_val(x), n->args[1], arg_val(group->ends)};
  TRY(graph_emit_value(s->g, n, n, "aten._grouped_mm.default", args, 3, n->outs[0], &at->sorted));
  if (!at->needed) return OK;
  Arg back[] = {arg_val(at->sorted), arg_int(0), arg_val(group->place)};
  return graph_emit_value(s->g, n, n, "aten.index_select.default", back, 3, n->outs[0], &n->outs[0]->forward);
}

static Status make_weight(State *s, Node *n, const Group *group) {
  Val *x, *g, *turned;
  Node *turn;
  TRY(sorted_value(s, n, group, n->args[0].val, &x));
  TRY(sorted_value(s, n, group, n->args[1].val, &g));
  const Sym *size[2] = {x->size[1], x->size[0]};
  Arg dims[] = {arg_val(x), arg_int(0), arg_int(1)};
  TRY(graph_emit_like(s->g, n, n, "aten.transpose.int", dims, 3, &turn));
  TRY(node_add_tensor(turn, x->name, x->dtype, 2, size, &turned));
  Arg args[] = {arg_val(turned), arg_val(g), arg_val(group->ends)};
  return graph_emit_value(s->g, n, n, "aten._grouped_mm.default", args, 3, n->outs[0], &n->outs[0]->forward);
}

typedef struct {
  State *s;
  Node *before;
  const Group *group;
  Status status;
} Replace;

static void replace(void *arg, Val **ref) {
  Replace *r = arg;
  Val *sorted;
  if (r->status || (*ref)->type != TY_TENSOR) return;
  if (!is_sorted(r->s, *ref, r->group->ids) && !((*ref)->ndim > 1 && (*ref)->size[0] == r->group->ids->size[0]))
    return;
  r->status = sorted_value(r->s, r->before, r->group, *ref, &sorted);
  *ref = sorted;
}

/* A row-wise op: on sorted values. */
static Status make_kept(State *s, Node *n) {
  unsigned rows;
  const Val *ids = sorted_op(s, n, &rows);
  Node *twin;
  TRY(node_clone(n, n, &twin));
  Replace r = {s, n, group_of(s, ids), OK};
  for (int i = 0; i < n->nargs; i++)
    if (rows >> i & 1) arg_each_val(&twin->args[i], replace, &r);
  node_move_before(twin, n); /* behind what was made for it */
  for (int i = 0; i < n->nouts; i++) s->at[n->outs[i]->id].sorted = twin->outs[i];
  return r.status;
}

static Status make(State *s, Node *n) {
  const Val *ids = ids_of(n);
  if (!ids) return is_kept(s, n) ? make_kept(s, n) : OK;
  Group *group = group_of(s, ids);
  if (!group->used) return OK;
  TRY(make_order(s, n, group));
  return node_is(n, "tess.expert_mm.default") ? make_product(s, n, group) : make_weight(s, n, group);
}

static Status keep_sorted(State *s, int *kept) {
  TRY(find_sorted(s));
  for (Node *n = s->g->first, *next; n; n = next) {
    next = n->next;
    *kept += is_kept(s, n);
    TRY(make(s, n));
  }
  graph_forward(s->g);
  if (*kept) views_relax(s->g);
  return OK;
}

Status pass_keep_sorted(Exported *e, const PassArgs *args) {
  State s = {.g = e->graph};
  int products = 0, kept = 0;
  for (const Node *n = s.g->first; n; n = n->next) products += ids_of(n) != NULL;
  if (!products || !graph_is_functional(s.g)) return OK;
  s.at = calloc((size_t)s.g->nvals + 1, sizeof *s.at);
  s.group = calloc((size_t)products, sizeof *s.group);
  Status status = s.at && s.group ? keep_sorted(&s, &kept) : fail_oom();
  free(s.at);
  free(s.group);
  if (!status && args->stats && kept) text_printf(args->stats, "keep_sorted: %d nodes on sorted rows\n", kept);
  return status;
}
