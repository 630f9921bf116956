/* match_sorted.c -- see match_sorted.h. */
#include "passes/match_sorted.h"

static bool is_one_of(const Node *n, const char *const *names) {
  for (; n && *names; names++)
    if (node_is(n, *names)) return true;
  return false;
}

static bool is_int(Dtype d) { return d == DT_I64 || d == DT_I32; }

/* The first argument where the node keeps its elements and their number. */
static Val *kept_by(const Val *v) {
  static const char *const casts[] = {"aten.to.dtype",
                                      "aten.to.dtype_layout",
                                      "aten.to.device",
                                      "aten._to_copy.default",
                                      "aten.clone.default",
                                      "aten.contiguous.default",
                                      "aten.alias.default",
                                      "aten.detach.default",
                                      "aten.type_as.default",
                                      "aten.lift_fresh_copy.default",
                                      NULL};
  return v->node && is_one_of(v->node, casts) && v->node->args[0].kind == ARG_VAL ? v->node->args[0].val : NULL;
}

static Val *before_int_casts(Val *v) {
  for (Val *from; is_int(v->dtype) && (from = kept_by(v)) && is_int(from->dtype);) v = from;
  return v;
}

/* ---- sorts ------------------------------------------------------------------------------------------------- */

typedef struct {
  Val *source;
  bool falling;
} Sort;

static bool match_sort(const Val *order, Sort *s) {
  static const struct {
    const char *target;
    int falling, result; /* the argument, and which result the indices are */
  } rows[] = {{"aten.sort.default", 2, 1},
              {"aten.sort.stable", 3, 1},
              {"aten.argsort.default", 2, 0},
              {"aten.argsort.stable", 3, 0}};
  const Node *n = order->node;
  for (size_t i = 0; n && i < sizeof rows / sizeof *rows; i++) {
    if (!node_is(n, rows[i].target) || order->index != rows[i].result || n->args[0].kind != ARG_VAL) continue;
    const Arg *falling = &n->args[rows[i].falling];
    *s = (Sort){n->args[0].val, falling->kind == ARG_BOOL && falling->b};
    return s->source->ndim == 1 && (falling->kind == ARG_BOOL || falling->kind == ARG_UNSET);
  }
  return false;
}

bool match_is_order(const Val *v) {
  Sort s;
  return match_sort(v, &s);
}

Val *match_order_source(const Val *order) {
  Sort s;
  return match_sort(order, &s) ? s.source : NULL;
}

/* ---- inverses ---------------------------------------------------------------------------------------------- */

static bool is_number(const Arg *a, double number) {
  double x;
  return match_number(a, &x) && x == number;
}

/* The argument is the size of the order: as a number, or as the value of a symbol. */
static bool is_length(const Arg *a, const Val *order) {
  const Sym *n = order->size[0];
  if (a->kind == ARG_INT) return sym_is_int(n) && n->value == a->i;
  return a->kind == ARG_VAL && a->val->type == TY_INT && a->val->sym == n;
}

/* 0, 1, 2 ... as many as there are rows in the order. */
static bool is_count_up(Val *v, const Val *order) {
  v = before_int_casts(v);
  const Node *n = v->node;
  if (!n || !is_int(v->dtype) || v->ndim != 1) return false;
  if (node_is(n, "aten.arange.default")) return is_length(&n->args[0], order);
  const bool step = node_is(n, "aten.arange.start_step");
  if (!step && !node_is(n, "aten.arange.start")) return false;
  return is_number(&n->args[0], 0) && is_length(&n->args[1], order) &&
         (!step || n->args[2].kind == ARG_UNSET || is_number(&n->args[2], 1));
}

static bool is_order(const Arg *a, const Val *order) {
  return a->kind == ARG_VAL && before_int_casts(a->val) == order;
}

/* Numbers of rows are written to where the rows come from: every place is written once. */
static bool writes_numbers(const Node *n, const Val *order) {
  const Val *to = n->outs[0];
  if (to->ndim != 1 || to->size[0] != order->size[0] || !is_int(to->dtype)) return false;
  if (node_is(n, "aten.index_put.default")) {
    const Arg *list = &n->args[1], *sums = &n->args[3];
    return list->kind == ARG_LIST && list->n == 1 && is_order(&list->list[0], order) &&
           n->args[2].kind == ARG_VAL && is_count_up(n->args[2].val, order) &&
           (sums->kind == ARG_UNSET || (sums->kind == ARG_BOOL && !sums->b));
  }
  return (node_is(n, "aten.scatter.src") || node_is(n, "aten.index_copy.default")) &&
         is_order(&n->args[2], order) && n->args[3].kind == ARG_VAL && is_count_up(n->args[3].val, order);
}

bool match_is_inverse(Val *v, const Val *order) {
  Sort s;
  v = before_int_casts(v);
  if (!v->node || !is_int(v->dtype)) return false;
  if (match_sort(v, &s)) return !s.falling && before_int_casts(s.source) == order;
  return writes_numbers(v->node, order);
}

/* ---- integers that count from 0 to groups - 1 --------------------------------------------------------------- */

/* How many the dimension `dim` of the node's argument has; 0: not known. */
static int64_t extent(const Node *n, const Arg *dim) {
  const Val *x = n->args[0].kind == ARG_VAL ? n->args[0].val : NULL;
  int64_t d;
  if (!x || x->ndim < 1 || !match_int(dim, -1, &d)) return 0;
  d += d < 0 ? x->ndim : 0;
  return d >= 0 && d < x->ndim && sym_is_int(x->size[d]) ? x->size[d]->value : 0;
}

/* Places along a dimension of at most so many elements. */
static bool are_places(const Val *v, int64_t groups) {
  static const struct {
    const char *target;
    int dim, result;
    bool named; /* the dimension: else they are places among all elements */
  } rows[] = {{"aten.topk.default", 2, 1, false},   {"aten.sort.default", 1, 1, false},
              {"aten.sort.stable", 2, 1, false},    {"aten.argsort.default", 1, 0, false},
              {"aten.argsort.stable", 2, 0, false}, {"aten.max.dim", 1, 1, true},
              {"aten.min.dim", 1, 1, true},         {"aten.argmax.default", 1, 0, true},
              {"aten.argmin.default", 1, 0, true}};
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    if (!node_is(v->node, rows[i].target) || v->index != rows[i].result) continue;
    const Arg *dim = &v->node->args[rows[i].dim];
    const int64_t n = rows[i].named && dim->kind != ARG_INT ? 0 : extent(v->node, dim);
    return n > 0 && n <= groups;
  }
  return false;
}

/* Ops whose results are elements of their argument 0. */
static const char *const hand_on[] = {
    "aten.view.default",         "aten.reshape.default", "aten._unsafe_view.default",
    "aten.flatten.using_ints",   "aten.unflatten.int",   "aten.unsqueeze.default",
    "aten.squeeze.dim",          "aten.squeeze.default", "aten.transpose.int",
    "aten.permute.default",      "aten.t.default",       "aten.slice.Tensor",
    "aten.select.int",           "aten.expand.default",  "aten.index.Tensor",
    "aten.index_select.default", "aten.gather.default",  NULL};

/* All elements are from 0 to groups - 1. */
static bool are_below(const Val *v, int64_t groups) {
  while (v->node && is_int(v->dtype)) {
    const Node *n = v->node;
    if (are_places(v, groups)) return true;
    if (!kept_by(v) && !is_one_of(n, hand_on)) return false;
    if (n->args[0].kind != ARG_VAL) return false;
    v = n->args[0].val;
  }
  return false;
}

/* ---- offsets ----------------------------------------------------------------------------------------------- */

/* All integers from 0 to groups - 1 are numbers of this dtype. */
static bool holds(Dtype d, int64_t groups) {
  if (is_int(d) || d == DT_F64 || d == DT_F32) return true;
  return (d == DT_BF16 && groups <= 1 << 8) || (d == DT_F16 && groups <= 1 << 11);
}

/* Back through what keeps every element, if in another place. */
static Val *same_elements(Val *v, int64_t groups) {
  static const char *const views[] = {
      "aten.view.default",       "aten.reshape.default", "aten._unsafe_view.default",
      "aten.flatten.using_ints", "aten.unflatten.int",   "aten.unsqueeze.default",
      "aten.squeeze.dim",        "aten.squeeze.default", "aten.transpose.int",
      "aten.permute.default",    "aten.t.default",       NULL};
  for (;;) {
    Val *from = kept_by(v);
    if (from && !holds(v->dtype, groups)) return v;
    if (!from && v->node && is_one_of(v->node, views) && v->node->args[0].kind == ARG_VAL)
      from = v->node->args[0].val;
    if (!from) return v;
    v = from;
  }
}

/* What was sorted, or what the sort gave, in any order. */
static bool are_sorted_elements(const Arg *a, const Val *order, int64_t groups) {
  if (a->kind != ARG_VAL) return false;
  const Val *v = same_elements(a->val, groups);
  if (v->node && v->node == order->node && order->index == 1) return v->index == 0;
  return v == same_elements(match_order_source(order), groups);
}

/* histc of integers puts each into a bin of its own, from 0 to groups - 1, or to groups where dividing by their
 * number is exact.  Its sums are taken for the counts that they are, also where they would not fit the dtype: it is
 * one that the program's own casts did not ask for (--dtype). */
static bool is_histogram(const Node *n, const Val *order, int64_t groups) {
  enum { EXACT_BINS = 2048 }; /* beyond, rounding in f32 may put a number into its neighbour's bin */
  if (!node_is(n, "aten.histc.default") || groups > EXACT_BINS || !is_number(&n->args[1], (double)groups))
    return false;
  const bool power = (groups & (groups - 1)) == 0;
  return is_number(&n->args[2], 0) &&
         (is_number(&n->args[3], (double)(groups - 1)) || (power && is_number(&n->args[3], (double)groups))) &&
         are_sorted_elements(&n->args[0], order, groups);
}

static bool is_bincount(const Node *n, const Val *order, int64_t groups) {
  return node_is(n, "aten.bincount.default") && (n->args[1].kind == ARG_UNSET || n->args[1].kind == ARG_NONE) &&
         is_number(&n->args[2], (double)groups) && are_sorted_elements(&n->args[0], order, groups);
}

/* The sum of rows that are 1 at their number: over all dimensions but the last. */
static bool is_sum_of_one_hot(const Node *n, const Val *order, int64_t groups) {
  if (!node_is(n, "aten.sum.dim_IntList") || n->args[0].kind != ARG_VAL || n->args[1].kind != ARG_LIST)
    return false;
  const Val *hot = kept_by(n->args[0].val) ? kept_by(n->args[0].val) : n->args[0].val;
  const Arg *dims = &n->args[1];
  unsigned seen = 0;
  int64_t d;
  if (!match_val_node(hot, "aten.one_hot.default") || dims->n != hot->ndim - 1) return false;
  for (int i = 0; i < dims->n; i++) {
    if (!match_int(&dims->list[i], 0, &d)) return false;
    seen |= 1u << (d < 0 ? d + hot->ndim : d);
  }
  return seen == (1u << (hot->ndim - 1)) - 1 && is_number(&hot->node->args[1], (double)groups) &&
         are_sorted_elements(&hot->node->args[0], order, groups);
}

static bool holds_counts(Dtype d) { return is_int(d) || d == DT_F32 || d == DT_F64; }

bool match_are_offsets(Val *offsets, const Val *order, int64_t groups) {
  Sort s;
  Val *sum = before_int_casts(offsets);
  const Node *n = match_val_node(sum, "aten.cumsum.default");
  if (!n || !match_sort(order, &s) || s.falling || !is_int(sum->dtype) || sum->ndim != 1) return false;
  if (!is_number(&n->args[1], 0) && !is_number(&n->args[1], -1)) return false;
  if (n->args[0].kind != ARG_VAL || !is_int(s.source->dtype) || !are_below(s.source, groups)) return false;
  const Val *counts = n->args[0].val;
  for (Val *from; (from = kept_by(counts)) && holds_counts(counts->dtype);) counts = from;
  return counts->node && (is_histogram(counts->node, order, groups) || is_bincount(counts->node, order, groups) ||
                          is_sum_of_one_hot(counts->node, order, groups));
}
