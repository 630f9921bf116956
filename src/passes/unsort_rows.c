/* unsort_rows.c -- computes rows in the order that they have, instead of sorting them by expert and back.
 *
 *   before:  %s, %o = sort(%ids)   %xs = index(%x, [floor_divide(%o, 2)])   ... %offs = cumsum(histc(%s))
 *            %y = grouped_mm(%xs, %w, %offs)   %z = silu(%y)
 *            %back = index_put(empty, [%o], arange(n))   %u = index(%z, [%back])
 *   after:   %t = repeat_interleave(%x, 2, 0)   %y = tess.expert_mm(%t, %w, %ids)   %u = silu(%y)
 *
 * What is computed row by row of x[order] is the same of x, in that order.  A sort of a batch needs all of its
 * rows; without it ranks keep their rows, and the gradient's as well.
 *
 * U1  Every value that is such rows has a *twin*, whose rows, in the order, are the value's.  Twins are made where
 * a program brings rows back to where they came from; everything else stays as it is. U2  Exact for every input of
 * the program: whatever permutation the sort gives, numbers of experts that come in range by themselves
 * (match_sorted.h).  Rows that are added up are added in another order. U3  Before gradients are made: theirs is
 * that of the twins.
 */
#include <stdlib.h>
#include <string.h>

#include "passes/match_sorted.h"
#include "passes/pass.h"
#include "passes/row_wise.h"
#include "passes/views.h"

typedef enum {
  NO_ROWS,
  ROWS,    /* the twin is a value */
  NUMBERS, /* the order itself: its twin would be 0, 1, 2 ... */
  SHARES,  /* the order / by: c rows in a row have the same number */
} Form;

typedef struct {
  Form form;
  const Val *order;
  int64_t by;
  bool wanted;
  Val *twin;
} Rows;

typedef struct {
  Graph *g;
  Rows *rows; /* by Val.id, of the values before the pass */
  int count;  /* values that were brought back */
} State;

static bool is_int(Dtype d) { return d == DT_I64 || d == DT_I32; }

static Rows *rows_of(const State *s, const Arg *a) {
  return a->kind == ARG_VAL && a->val->type == TY_TENSOR ? &s->rows[a->val->id] : NULL;
}

static bool has_order(const Rows *r, const Val *order) { return r && r->form != NO_ROWS && r->order == order; }

/* ---- what a node is to rows --------------------------------------------------------------------------------- */

typedef enum { STEP_NONE, STEP_SORT, STEP_EACH, STEP_LOOKUP, STEP_EXPERTS, STEP_BACK, STEP_SUM_BACK } Step;

typedef struct {
  Step step;
  const Val *order;
  unsigned args; /* bit i: argument i has rows whose twin is needed; of a lookup, see places_of() */
} Seen;

static bool is_zero(const Arg *a) {
  double x;
  return match_number(a, &x) && x == 0;
}

/* The one index tensor of index and index_put. */
static Arg *only_index(const Node *n) {
  return n->args[1].kind == ARG_LIST && n->args[1].n == 1 ? &n->args[1].list[0] : NULL;
}

/* The argument that says which rows of argument 0 a node looks up; NULL: it does not. */
static Arg *places_of(const Node *n) {
  if (node_is(n, "aten.index.Tensor")) return only_index(n);
  const bool looks_up = node_is(n, "aten.index_select.default") || node_is(n, "aten.gather.default");
  return looks_up && is_zero(&n->args[1]) ? &n->args[2] : NULL;
}

static bool has_times_rows(const State *s, const Val *x, const Val *order, int64_t by) {
  return x->ndim >= 1 && by > 0 && sym_mul(s->g->syms, sym_int(s->g->syms, by), x->size[0]) == order->size[0];
}

/* a and b differ in the number of rows alone. */
static bool have_equal_rows(const Val *a, const Val *b) {
  return a->ndim == b->ndim && a->ndim >= 1 && same_last_sizes(a, b, a->ndim - 1);
}

/* x[places], where the places are rows: x itself, x with its rows repeated, x[twin of the places]. */
static bool is_lookup(const State *s, const Node *n, Seen *seen) {
  const Arg *places = places_of(n);
  const Rows *r = places ? rows_of(s, places) : NULL;
  if (!r || r->form == NO_ROWS || !is_int(places->val->dtype) || n->args[0].kind != ARG_VAL) return false;
  const Val *x = n->args[0].val;
  const bool gather = node_is(n, "aten.gather.default");
  if (!gather && places->val->ndim != 1) return false;
  if (r->form != ROWS) {
    if (gather && !have_equal_rows(x, places->val)) return false;
    if (!has_times_rows(s, x, r->order, r->by)) return false;
  }
  *seen = (Seen){.step = STEP_LOOKUP, .order = r->order};
  return true;
}

static bool is_unset(const Arg *a) { return a->kind == ARG_UNSET || a->kind == ARG_NONE; }

static bool is_experts(const State *s, const Node *n, Seen *seen) {
  const bool aten = node_is(n, "aten._grouped_mm.default");
  if (!aten && !node_is(n, "transformers.grouped_mm_fallback.default")) return false;
  if (aten && (!is_unset(&n->args[3]) || !is_unset(&n->args[4]))) return false;
  const Rows *x = rows_of(s, &n->args[0]);
  const Val *w = n->args[1].kind == ARG_VAL ? n->args[1].val : NULL;
  if (!x || x->form != ROWS || n->args[2].kind != ARG_VAL || !w || w->ndim != 3 || !sym_is_int(w->size[0]))
    return false;
  const Val *in = n->args[0].val;
  if (in->ndim != 2 || !dtype_is_float(in->dtype) ||
      !match_are_offsets(n->args[2].val, x->order, w->size[0]->value))
    return false;
  *seen = (Seen){.step = STEP_EXPERTS, .order = x->order, .args = 1};
  return true;
}

/* A node that puts rows into argument 0: the argument with the places, the one with the rows. */
typedef struct {
  const Arg *places;
  int rows;
  bool adds;
} Put;

static bool is_one_or_unset(const Arg *a) {
  double x;
  return a->kind == ARG_UNSET || (match_number(a, &x) && x == 1);
}

static bool match_put(const Node *n, Put *p) {
  if (node_is(n, "aten.index_put.default")) {
    *p = (Put){only_index(n), 2, n->args[3].kind == ARG_BOOL && n->args[3].b};
    return p->places && (n->args[3].kind == ARG_BOOL || n->args[3].kind == ARG_UNSET);
  }
  *p = (Put){&n->args[2], 3, true};
  const bool add = node_is(n, "aten.index_add.default");
  if (!add && !node_is(n, "aten.scatter_add.default")) return false;
  return is_zero(&n->args[1]) && (!add || is_one_or_unset(&n->args[4]));
}

/* All rows are put: each where it comes from, or added up where its share comes from. */
static bool is_put_back(const State *s, const Node *n, Seen *seen) {
  Put p;
  if (!match_put(n, &p)) return false;
  const Rows *to = rows_of(s, p.places), *r = rows_of(s, &n->args[p.rows]);
  if (!to || (to->form != NUMBERS && to->form != SHARES) || !has_order(r, to->order) || r->form != ROWS ||
      n->args[0].kind != ARG_VAL)
    return false;
  const Val *self = n->args[0].val, *rows = n->args[p.rows].val, *places = p.places->val;
  if (!have_equal_rows(self, rows) || self->dtype != rows->dtype || self->ndim == MAX_DIMS) return false;
  if (!has_times_rows(s, self, to->order, to->by) || (p.adds ? !dtype_is_float(rows->dtype) : to->by != 1))
    return false;
  if (node_is(n, "aten.scatter_add.default") ? !same_sizes(places, rows) : places->ndim != 1) return false;
  *seen = (Seen){p.adds ? STEP_SUM_BACK : STEP_BACK, to->order, 1u << p.rows};
  return true;
}

/* rows[inverse of the order] */
static bool is_taken_back(const State *s, const Node *n, Seen *seen) {
  const Arg *places = node_is(n, "aten.gather.default") ? NULL : places_of(n);
  const Rows *r = places ? rows_of(s, &n->args[0]) : NULL;
  if (!r || r->form != ROWS || places->kind != ARG_VAL || !match_is_inverse(places->val, r->order)) return false;
  *seen = (Seen){STEP_BACK, r->order, 1};
  return true;
}

static bool is_each(const State *s, const Node *n, Seen *seen) {
  *seen = (Seen){.step = STEP_EACH};
  for (int i = 0; i < n->nargs && i < 32; i++) {
    const Rows *r = rows_of(s, &n->args[i]);
    if (!r || r->form != ROWS || (seen->order && seen->order != r->order)) continue;
    if (n->args[i].val->ndim != n->outs[0]->ndim && n->op->def->flags & OP_POINTWISE) continue; /* broadcast */
    seen->order = r->order;
    seen->args |= 1u << i;
  }
  return seen->order && is_row_wise(n, seen->args, seen->order->size[0]);
}

static Seen look(const State *s, const Node *n) {
  Seen seen = {.step = STEP_NONE};
  if (!n->op || !n->nouts) return seen;
  const Val *last = n->outs[n->nouts - 1];
  if (last->ndim == 1 && match_is_order(last)) return (Seen){.step = STEP_SORT, .order = last};
  if (is_put_back(s, n, &seen) || is_taken_back(s, n, &seen) || is_lookup(s, n, &seen) || is_experts(s, n, &seen) ||
      is_each(s, n, &seen))
    return seen;
  return (Seen){.step = STEP_NONE};
}

/* ---- which values are rows ----------------------------------------------------------------------------------- */

/* Every row holds one number. */
static bool repeats_numbers(const Node *n, const Sym *count) {
  static const char *const names[] = {"aten.to.dtype",      "aten._to_copy.default", "aten.clone.default",
                                      "aten.view.default",  "aten.reshape.default",  "aten.unsqueeze.default",
                                      "aten.expand.default"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (node_is(n, names[i])) return is_row_wise(n, 1, count);
  return false;
}

/* The order, or divided by a number: numbers of rows, or of what has so many rows each. */
static bool note_numbers(State *s, const Node *n) {
  const Rows *r = n->nargs ? rows_of(s, &n->args[0]) : NULL;
  double by = 0;
  if (!n->op || !r || r->form == NO_ROWS || r->form == ROWS || n->nouts != 1 || !is_int(n->outs[0]->dtype))
    return false;
  if (repeats_numbers(n, r->order->size[0])) return s->rows[n->outs[0]->id] = *r, true;
  const bool mode = node_is(n, "aten.div.Tensor_mode") && n->args[2].kind == ARG_STR &&
                    (!strcmp(n->args[2].str, "floor") || !strcmp(n->args[2].str, "trunc"));
  if (!mode && !node_is(n, "aten.floor_divide.default") && !node_is(n, "aten.floor_divide.Scalar")) return false;
  if (r->form != NUMBERS || !match_number(&n->args[1], &by) || by < 1 || by != (double)(int64_t)by) return false;
  s->rows[n->outs[0]->id] = (Rows){.form = SHARES, .order = r->order, .by = (int64_t)by};
  return true;
}

static void note_rows(State *s, const Node *n) {
  if (n->nouts && note_numbers(s, n)) return;
  const Seen seen = look(s, n);
  const Val *order = seen.order;
  if (seen.step == STEP_NONE || seen.step == STEP_BACK || seen.step == STEP_SUM_BACK) return;
  for (int i = 0; i < n->nouts; i++) s->rows[n->outs[i]->id] = (Rows){.form = ROWS, .order = order};
  if (seen.step == STEP_SORT) s->rows[order->id] = (Rows){.form = NUMBERS, .order = order, .by = 1};
}

static void want(State *s, const Node *n) {
  const Seen seen = look(s, n);
  bool wanted = seen.step == STEP_BACK || seen.step == STEP_SUM_BACK;
  for (int i = 0; i < n->nouts && !wanted; i++) wanted = s->rows[n->outs[i]->id].wanted;
  if (!wanted) return;
  for (int i = 0; i < n->nargs && i < 32; i++)
    if (seen.args >> i & 1) s->rows[n->args[i].val->id].wanted = true;
  if (seen.step == STEP_LOOKUP) rows_of(s, places_of(n))->wanted = true;
}

/* ---- twins ------------------------------------------------------------------------------------------------- */

/* The node on twins: its results are of the same sizes. */
static Status make_each(State *s, Node *n, unsigned args) {
  Node *twin;
  TRY(node_clone(n, n, &twin));
  for (int i = 0; i < n->nargs && i < 32; i++)
    if (args >> i & 1) twin->args[i] = arg_val(rows_of(s, &n->args[i])->twin);
  for (int i = 0; i < n->nouts; i++) s->rows[n->outs[i]->id].twin = twin->outs[i];
  return OK;
}

static Status make_lookup(State *s, Node *n) {
  const Rows *r = rows_of(s, places_of(n));
  Rows *out = &s->rows[n->outs[0]->id];
  if (r->form != ROWS && r->by == 1) return out->twin = n->args[0].val, OK;
  if (r->form == SHARES) {
    Arg args[] = {n->args[0], arg_int(r->by), arg_int(0)};
    return graph_emit_value(s->g, n, n, "aten.repeat_interleave.self_int", args, 3, n->outs[0], &out->twin);
  }
  Node *twin;
  TRY(node_clone(n, n, &twin));
  *places_of(twin) = arg_val(r->twin);
  return out->twin = twin->outs[0], OK;
}

static Status make_experts(State *s, Node *n, const Val *order) {
  Arg args[] = {arg_val(rows_of(s, &n->args[0])->twin), n->args[1], arg_val(match_order_source(order))};
  return graph_emit_value(s->g, n, n, "tess.expert_mm.default", args, 3, n->outs[0], &s->rows[n->outs[0]->id].twin);
}

static Status new_list(State *s, const Arg *items, int n, Arg *out) {
  Arg *list;
  TRY_NEW(list, arena_new_n(s->g->arena, Arg, n));
  for (int i = 0; i < n; i++) list[i] = items[i];
  return *out = arg_list(list, n), OK;
}

/* The sum of every `by` rows, of which there are as many as in `like`. */
static Status sum_shares(State *s, Node *n, const Val *like, int64_t by, Val **rows) {
  const Sym *size[MAX_DIMS] = {like->size[0], sym_int(s->g->syms, by)};
  Node *node;
  Val *parts;
  Arg sizes, dim;
  for (int d = 1; d < (*rows)->ndim; d++) size[d + 1] = (*rows)->size[d];
  TRY(new_list(s, (Arg[]){arg_int(-1), arg_int(by)}, 2, &sizes));
  TRY(new_list(s, (Arg[]){arg_int(1)}, 1, &dim));
  TRY(graph_emit_like(s->g, n, n, "aten.unflatten.int", (Arg[]){arg_val(*rows), arg_int(0), sizes}, 3, &node));
  TRY(node_add_tensor(node, n->outs[0]->name, (*rows)->dtype, (*rows)->ndim + 1, size, &parts));
  return graph_emit_value(s->g, n, n, "aten.sum.dim_IntList", (Arg[]){arg_val(parts), dim}, 2, n->outs[0], rows);
}

static Status make_sum(State *s, Node *n) {
  Put p;
  match_put(n, &p);
  const Rows *to = rows_of(s, p.places);
  Val *rows = rows_of(s, &n->args[p.rows])->twin;
  if (to->by > 1) TRY(sum_shares(s, n, n->args[0].val, to->by, &rows));
  Arg args[] = {n->args[0], arg_val(rows)};
  s->count++;
  return graph_emit_value(s->g, n, n, "aten.add.Tensor", args, 2, n->outs[0], &n->outs[0]->forward);
}

/* The only argument with rows that the node puts or takes back. */
static Status make_back(State *s, Node *n, unsigned args) {
  int i = 0;
  while (!(args >> i & 1)) i++;
  n->outs[0]->forward = rows_of(s, &n->args[i])->twin;
  s->count++;
  return OK;
}

static Status make(State *s, Node *n) {
  const Seen seen = look(s, n);
  if (seen.step == STEP_BACK) return make_back(s, n, seen.args);
  if (seen.step == STEP_SUM_BACK) return make_sum(s, n);
  bool wanted = false;
  for (int i = 0; i < n->nouts; i++) wanted |= s->rows[n->outs[i]->id].wanted;
  if (!wanted) return OK;
  switch (seen.step) {
    case STEP_SORT:
      if (n->nouts == 2) s->rows[n->outs[0]->id].twin = match_order_source(seen.order);
      return OK;
    case STEP_EACH: return make_each(s, n, seen.args);
    case STEP_LOOKUP: return make_lookup(s, n);
    case STEP_EXPERTS: return make_experts(s, n, seen.order);
    default: return OK;
  }
}

static Status unsort(State *s) {
  for (Node *n = s->g->first; n; n = n->next) note_rows(s, n);
  for (Node *n = s->g->last; n; n = n->prev) want(s, n);
  for (Node *n = s->g->first, *next; n; n = next) {
    next = n->next;
    TRY(make(s, n));
  }
  if (!s->count) return OK;
  graph_forward(s->g);
  views_relax(s->g);
  return OK;
}

Status pass_unsort_rows(Exported *e, const PassArgs *args) {
  State s = {.g = e->graph};
  if (!graph_is_functional(s.g)) return OK;
  TRY_NEW(s.rows, calloc((size_t)s.g->nvals + 1, sizeof *s.rows));
  Status status = unsort(&s);
  free(s.rows);
  if (!status && args->stats && s.count)
    text_printf(args->stats, "unsort_rows: %d values left unsorted\n", s.count);
  return status;
}
